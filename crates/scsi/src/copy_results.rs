//! Results of copies, held for RECEIVE COPY RESULTS.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

use crate::failure::Failure;
use crate::nexus::Nexus;
use crate::sense::{Asc, Sense};

/// Number of copies from which on a new one drops the result that ended first. Copies in progress are never dropped;
/// the sessions' limits of commands bound them.
const COPIES_MAX: usize = 256;

/// Progress of a copy, final once the copy has ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CopyStatus {
    pub failed: bool,
    /// Segments copied.
    pub segments: u16,
    /// Bytes copied.
    pub bytes: u64,
}

/// A copy, as RECEIVE COPY RESULTS (COPY STATUS) reports it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CopyReport {
    status: CopyStatus,
    /// Position in the order in which the unit's copies ended; `None` while the copy is in progress.
    end_number: Option<u64>,
}

/// The copies of a unit, by nexus number and list identifier.
#[derive(Default)]
pub struct CopyResults {
    copies: RefCell<BTreeMap<(u64, u8), CopyReport>>,
    /// The end number of the copy that ends next.
    next_end_number: Cell<u64>,
}

impl CopyResults {
    /// Records the start of a copy. A list identifier has one copy at a time.
    pub fn begin(&self, nexus: &Nexus, id: u8) -> Result<(), Failure> {
        let mut copies = self.copies.borrow_mut();
        let key = (nexus.0.number, id);
        if copies.get(&key).is_some_and(CopyReport::is_in_progress) {
            return Err(Sense::illegal(Asc::OPERATION_IN_PROGRESS).into());
        }
        // The new copy replaces the result of an earlier one with this identifier.
        copies.remove(&key);
        if copies.len() >= COPIES_MAX {
            let ended = copies.iter().filter_map(|(key, copy)| Some((copy.end_number?, *key)));
            if let Some((_, oldest)) = ended.min() {
                copies.remove(&oldest);
            }
        }
        copies.insert(key, CopyReport::default());
        Ok(())
    }

    /// Drops the copies of all nexuses for which `is_connected` is false.
    pub fn retain_nexuses(&self, is_connected: impl Fn(&u64) -> bool) {
        self.copies.borrow_mut().retain(|(nexus, _), _| is_connected(nexus));
    }

    /// Records the progress of a copy.
    pub fn record_progress(&self, nexus: &Nexus, id: u8, status: CopyStatus) {
        if let Some(copy) = self.copies.borrow_mut().get_mut(&(nexus.0.number, id)) {
            copy.status = status;
        }
    }

    /// Records the end of a copy. `status` is its result; `None` drops the copy.
    pub fn finish(&self, nexus: &Nexus, id: u8, status: Option<CopyStatus>) {
        let mut copies = self.copies.borrow_mut();
        let key = (nexus.0.number, id);
        let Some(status) = status else {
            copies.remove(&key);
            return;
        };
        // The copies of an initiator that has logged out meanwhile are gone.
        if let Some(copy) = copies.get_mut(&key) {
            let end_number = self.next_end_number.get();
            *copy = CopyReport { status, end_number: Some(end_number) };
            self.next_end_number.set(end_number + 1);
        }
    }

    /// Status of a copy. Reading the status of an ended copy removes it.
    pub fn status(&self, nexus: &Nexus, id: u8) -> Option<CopyReport> {
        let mut copies = self.copies.borrow_mut();
        let key = (nexus.0.number, id);
        let report = *copies.get(&key)?;
        if !report.is_in_progress() {
            copies.remove(&key);
        }
        Some(report)
    }

    /// Drops the copies of an initiator that logs out.
    pub fn remove_nexus(&self, nexus: &Nexus) {
        self.copies.borrow_mut().retain(|(number, _), _| *number != nexus.0.number);
    }
}

impl CopyReport {
    fn is_in_progress(&self) -> bool {
        self.end_number.is_none()
    }

    /// Encodes the report.
    pub fn bytes(&self) -> Vec<u8> {
        // COPY STATUS: in progress, completed without errors, completed with errors.
        let copy_status = match (self.is_in_progress(), self.status.failed) {
            (true, _) => 0,
            (false, false) => 1,
            (false, true) => 2,
        };
        // AVAILABLE DATA: the eight bytes that follow this field.
        let mut bytes = vec![0, 0, 0, 8, copy_status];
        bytes.extend(self.status.segments.to_be_bytes());
        // Transfer count units: KiB.
        bytes.push(1);
        bytes.extend(((self.status.bytes >> 10) as u32).to_be_bytes());
        bytes
    }
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use super::*;
    use crate::nexus::{Initiator, Inner};

    fn nexus(number: u64) -> Nexus {
        Nexus(Rc::new(Inner { number, initiator: Initiator::new("iqn.a:b", [1; 6]), port: 1 }))
    }

    #[test]
    fn full_unit_drops_the_result_that_ended_first() {
        let (low, high) = (nexus(1), nexus(2));
        let results = CopyResults::default();
        let begin = |nexus: &Nexus, id: u8| results.begin(nexus, id).unwrap_or_else(|_| panic!("copy {id} begins"));
        let finish = |nexus: &Nexus, id: u8| results.finish(nexus, id, Some(CopyStatus::default()));
        // The results of the higher nexus end first, and 200 before 100.
        begin(&high, 100);
        begin(&high, 200);
        finish(&high, 200);
        finish(&high, 100);
        begin(&low, 0);
        (1..254).for_each(|id| {
            begin(&low, id);
            finish(&low, id);
        });
        assert_eq!(results.copies.borrow().len(), COPIES_MAX);
        begin(&low, 1);
        assert!(results.copies.borrow().contains_key(&(2, 200)), "a copy that replaces its own result drops no other");
        begin(&low, 254);
        begin(&low, 255);
        assert!(results.status(&high, 200).is_none(), "the result that ended first was not dropped");
        assert!(results.status(&high, 100).is_none(), "the result that ended second was not dropped");
        assert!((2..254).all(|id| results.status(&low, id).is_some()), "a newer result was dropped");
        assert!(
            results.status(&low, 0).is_some_and(|report| report.is_in_progress()),
            "a copy in progress was dropped"
        );
    }

    #[test]
    fn copy_without_a_result_or_of_a_gone_nexus_is_not_held() {
        let (first, second) = (nexus(1), nexus(2));
        let results = CopyResults::default();
        for nexus in [&first, &second] {
            assert!(results.begin(nexus, 7).is_ok());
        }
        assert!(results.begin(&first, 7).is_err(), "a list identifier has one copy at a time");
        results.finish(&first, 7, None);
        results.remove_nexus(&second);
        results.finish(&second, 7, Some(CopyStatus::default()));
        assert_eq!((results.status(&first, 7), results.status(&second, 7)), (None, None));
    }
}
