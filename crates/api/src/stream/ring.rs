//! The samples of the last minute, by number.

use std::collections::VecDeque;
use std::sync::Arc;

use super::sample::Sample;

/// Samples that are kept.
const KEPT: usize = 60;

/// A daemon's samples.
pub struct Ring {
    /// Tells this daemon's events from those of one before it.
    life: u64,
    samples: VecDeque<Arc<Sample>>,
    /// Number of the next one; the first is 1.
    next: u64,
}

/// Where a client begins.
#[derive(Debug, PartialEq, Eq)]
pub struct Start {
    /// Number of the first sample that it is sent.
    pub next: u64,
}

impl Ring {
    /// An empty one.
    pub fn new(life: u64) -> Ring {
        Ring { life, samples: VecDeque::new(), next: 1 }
    }

    /// Keeps a sample; its number.
    pub fn push(&mut self, sample: Sample) -> u64 {
        if self.samples.len() == KEPT {
            self.samples.pop_front();
        }
        self.samples.push_back(Arc::new(sample));
        self.next += 1;
        self.next - 1
    }

    /// Forgets all of them; numbers go on.
    pub fn clear(&mut self) {
        self.samples.clear();
    }

    /// Where a client begins that saw the event `after` last: behind it, or with the next sample where it is none of ours.
    pub fn start(&self, after: Option<&str>) -> Start {
        let seen = after.and_then(|id| {
            let (life, number) = id.split_once('-')?;
            let (life, number): (u64, u64) = (life.parse().ok()?, number.parse().ok()?);
            (life == self.life && number < self.next).then_some(number)
        });
        Start { next: seen.map_or(self.next, |seen| seen + 1) }
    }

    /// The first sample from `number` on that is still there: its number, its event's name, and itself.
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
    fn who_comes_back_is_sent_what_it_missed_as_far_as_it_is_there() {
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
