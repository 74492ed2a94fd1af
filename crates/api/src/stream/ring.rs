//! The samples of the last minute, by number.

use std::collections::VecDeque;
use std::sync::Arc;

use super::sample::Sample;

/// Samples in the ring at most.
const KEPT: usize = 60;

/// The ring of samples.
pub struct Ring {
    /// Distinguishes this daemon's event ids from a predecessor's.
    life: u64,
    samples: VecDeque<Arc<Sample>>,
    /// Number of the next sample; the first is 1.
    next: u64,
}

/// The position where a client begins.
#[derive(Debug, PartialEq, Eq)]
pub struct Start {
    /// Number of the first sample to send.
    pub next: u64,
}

impl Ring {
    /// An empty ring.
    pub fn new(life: u64) -> Ring {
        Ring { life, samples: VecDeque::new(), next: 1 }
    }

    /// Adds a sample and returns its number.
    pub fn push(&mut self, sample: Sample) -> u64 {
        if self.samples.len() == KEPT {
            self.samples.pop_front();
        }
        self.samples.push_back(Arc::new(sample));
        self.next += 1;
        self.next - 1
    }

    /// Drops all samples; numbers go on.
    pub fn clear(&mut self) {
        self.samples.clear();
    }

    /// The position of a client whose last event is `after`: the sample after it, or the next sample if the id is not
    /// ours.
    pub fn start(&self, after: Option<&str>) -> Start {
        let seen = after.and_then(|id| {
            let (life, number) = id.split_once('-')?;
            let (life, number): (u64, u64) = (life.parse().ok()?, number.parse().ok()?);
            (life == self.life && number < self.next).then_some(number)
        });
        Start { next: seen.map_or(self.next, |seen| seen + 1) }
    }

    /// The first kept sample from `number` on: its number, its event id, and the sample.
    pub fn from(&self, number: u64) -> Option<(u64, String, Arc<Sample>)> {
        let oldest = self.next - self.samples.len() as u64;
        let number = number.max(oldest);
        let sample = self.samples.get((number - oldest) as usize)?;
        Some((number, format!("{}-{number}", self.life), sample.clone()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(ring: &Ring, mut next: u64) -> Vec<u64> {
        let mut seen = Vec::new();
        while let Some((number, _, _)) = ring.from(next) {
            seen.push(number);
            next = number + 1;
        }
        seen
    }

    #[test]
    fn returning_client_gets_the_missed_samples_still_in_the_ring() {
        let mut ring = Ring::new(7);
        assert_eq!(ring.start(None), Start { next: 1 });
        for _ in 0..100 {
            ring.push(Sample::default());
        }
        assert_eq!(numbers(&ring, ring.start(Some("7-97")).next), [98, 99, 100]);
        assert_eq!(numbers(&ring, ring.start(Some("7-3")).next), (41..=100).collect::<Vec<_>>());
        for foreign in [None, Some("6-97"), Some("7-101"), Some("7-"), Some("97"), Some("")] {
            assert_eq!(ring.start(foreign), Start { next: 101 }, "{foreign:?}");
        }
        ring.clear();
        assert_eq!(numbers(&ring, 98), Vec::<u64>::new());
        ring.push(Sample::default());
        assert_eq!(numbers(&ring, 98), [101]);
    }
}
