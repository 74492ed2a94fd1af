//! Epochs of a volume: which dirty data a flush must write to the backing.
//!
//! A flush closes the current epoch. Data dirtied up to then counts as *closing*, later data as *filling*. A volume has
//! at most these two, and flushes that arrive meanwhile join the filling one.

use flash::Epoch;

/// The epochs of a shard. Counts are in units (blocks and zero-ranges) that are not on the backing.
#[derive(Debug)]
pub struct Epochs {
    current: Epoch,
    closed: Epoch,
    closing_units: u64,
    filling_units: u64,
}

impl Default for Epochs {
    fn default() -> Self {
        Epochs { current: Epoch(1), closed: Epoch(0), closing_units: 0, filling_units: 0 }
    }
}

impl Epochs {
    /// The epoch of data that becomes dirty now.
    pub fn current(&self) -> Epoch {
        self.current
    }

    /// The last epoch that a flush closed.
    pub fn closed(&self) -> Epoch {
        self.closed
    }

    /// True if a flush has closed the epoch.
    pub fn is_closed(&self, epoch: Epoch) -> bool {
        epoch <= self.closed
    }

    /// Units of closed epochs that are not on the backing.
    pub fn closing_units(&self) -> u64 {
        self.closing_units
    }

    /// Units of any epoch that are not on the backing.
    pub fn unwritten_units(&self) -> u64 {
        self.closing_units + self.filling_units
    }

    /// Ends the current epoch and returns its number.
    pub fn close(&mut self) -> Epoch {
        self.closed = self.current;
        self.current = self.current.next();
        self.closing_units += std::mem::take(&mut self.filling_units);
        self.closed
    }

    /// Adds a unit of `epoch` that is not on the backing.
    pub fn add(&mut self, epoch: Epoch) {
        self.add_many(epoch, 1);
    }

    /// Adds units of `epoch` that are not on the backing.
    pub fn add_many(&mut self, epoch: Epoch, units: u64) {
        assert!(epoch <= self.current, "the epoch has begun");
        *self.units_of(epoch) += units;
    }

    /// Removes a unit of `epoch` that is on the backing or was superseded.
    pub fn remove(&mut self, epoch: Epoch) {
        let count = self.units_of(epoch);
        *count = count.checked_sub(1).expect("a removed unit was added before");
    }

    fn units_of(&mut self, epoch: Epoch) -> &mut u64 {
        if self.is_closed(epoch) { &mut self.closing_units } else { &mut self.filling_units }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn next_flush_covers_units_of_a_failed_flush() {
        let mut epochs = Epochs::default();
        epochs.add(Epoch(1));
        assert_eq!(epochs.close(), Epoch(1));
        epochs.add(Epoch(2));
        assert_eq!((epochs.closing_units(), epochs.unwritten_units()), (1, 2));
        assert_eq!(epochs.close(), Epoch(2));
        assert_eq!(epochs.closing_units(), 2);
        epochs.remove(Epoch(1));
        epochs.remove(Epoch(2));
        assert_eq!(epochs.unwritten_units(), 0);
    }
}
