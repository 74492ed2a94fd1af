//! The samples of the last minute, by number.

use std::collections::VecDeque;
use std::sync::Arc;

use super::sample::Sample;

/// Samples in the ring at most.
const SAMPLES_MAX: usize = 60;

/// The ring of samples.
pub struct Ring {
    /// Distinguishes this daemon's event ids from a predecessor's.
    start_id: u64,
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
    pub fn new(start_id: u64) -> Ring {
        Ring { start_id, samples: VecDeque::new(), next: 1 }
    }

    /// Adds a sample and returns its number.
    pub fn push(&mut self, sample: Sample) -> u64 {
        if self.samples.len() == SAMPLES_MAX {
            self.samples.pop_front();
        }
        self.samples.push_back(Arc::new(sample));
        self.next += 1;
        self.next - 1
    }

    /// Drops all samples; numbering continues.
    pub fn clear(&mut self) {
        self.samples.clear();
    }

    /// The position of a client whose last event is `after`: the sample after it, or the next sample if the id is not
    /// this daemon's.
    pub fn start(&self, after: Option<&str>) -> Start {
        let seen = after.and_then(|id| {
            let (start_id, number) = id.split_once('-')?;
            let (start_id, number): (u64, u64) = (start_id.parse().ok()?, number.parse().ok()?);
            (start_id == self.start_id && number < self.next).then_some(number)
        });
        Start { next: seen.map_or(self.next, |seen| seen + 1) }
    }

    /// The first sample in the ring from `number` on: its number, its event id, and the sample.
    pub fn first_from(&self, number: u64) -> Option<(u64, String, Arc<Sample>)> {
        let oldest = self.next - self.samples.len() as u64;
        let number = number.max(oldest);
        let sample = self.samples.get((number - oldest) as usize)?;
        Some((number, format!("{}-{number}", self.start_id), sample.clone()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(ring: &Ring, mut next: u64) -> Vec<u64> {
        let mut seen = Vec::new();
        while let Some((number, _, _)) = ring.first_from(next) {
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
