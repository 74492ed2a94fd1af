//! The list of policies by name.

use engine::policy::Clock2Q;

use super::arc::Arc;
use super::belady::Belady;
use super::lirs::Lirs;
use super::lru::Lru;
use super::own::Own;
use super::s3_fifo::S3Fifo;
use super::sieve::Sieve;
use super::two_q::TwoQ;
use super::w_tiny_lfu::WTinyLfu;
use super::{Cache, Outcome, Pages, play};

/// Who leaves when room is needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Replacement {
    /// The engine's own for memory.
    Default,
    /// Least recently used.
    Lru,
    /// ARC.
    Arc,
    /// 2Q, the full version.
    TwoQ,
    /// LIRS.
    Lirs,
    /// S3-FIFO.
    S3Fifo,
    /// SIEVE.
    Sieve,
    /// W-TinyLFU.
    WTinyLfu,
    /// The limit, from knowing the future.
    Belady,
}

impl Replacement {
    /// All of them with their names.
    pub const ALL: [(&str, Replacement); 9] = [
        ("default", Replacement::Default),
        ("lru", Replacement::Lru),
        ("arc", Replacement::Arc),
        ("2q", Replacement::TwoQ),
        ("lirs", Replacement::Lirs),
        ("s3-fifo", Replacement::S3Fifo),
        ("sieve", Replacement::Sieve),
        ("w-tinylfu", Replacement::WTinyLfu),
        ("belady", Replacement::Belady),
    ];

    /// The policy called `name`.
    pub fn named(name: &str) -> Option<Replacement> {
        Replacement::ALL.iter().find(|(known, _)| *known == name).map(|(_, policy)| *policy)
    }

    /// A cache of `slots` pages, one at least, for these accesses.
    pub fn cache(self, slots: usize, pages: &Pages) -> Box<dyn Cache> {
        let (slots, distinct) = (slots.max(1), pages.distinct);
        match self {
            Replacement::Default => Box::new(Own::new(Clock2Q::new(slots), slots, distinct)),
            Replacement::Lru => Box::new(Lru::new(slots, distinct)),
            Replacement::Arc => Box::new(Arc::new(slots, distinct)),
            Replacement::TwoQ => Box::new(TwoQ::new(slots, distinct)),
            Replacement::Lirs => Box::new(Lirs::new(slots, distinct)),
            Replacement::S3Fifo => Box::new(S3Fifo::new(slots, distinct)),
            Replacement::Sieve => Box::new(Sieve::new(slots, distinct)),
            Replacement::WTinyLfu => Box::new(WTinyLfu::new(slots, distinct)),
            Replacement::Belady => Box::new(Belady::new(slots, &pages.accesses, distinct)),
        }
    }

    /// Plays all accesses against a cache of `slots` pages.
    pub fn play(self, slots: usize, pages: &Pages) -> Outcome {
        play(&mut *self.cache(slots, pages), &pages.accesses)
    }
}
