//! The replacement policies by name. `hotset simulate --policy` takes the names of [`Replacement::ALL`].
//!
//! A policy is a variant of [`Replacement`], an entry of [`Replacement::ALL`] and an arm of [`Replacement::cache`].

use engine::policy::Clock2Q;
use engine::policy::promotion::{Admission, LateReturn, PromotionCondition, ThirdTouch};

use super::admission_lru::AdmissionLru;
use super::arc::Arc;
use super::belady::Belady;
use super::engine_policy::EnginePolicy;
use super::lirs::Lirs;
use super::lru::Lru;
use super::s3_fifo::S3Fifo;
use super::sieve::Sieve;
use super::staged::Staged;
use super::two_q::TwoQ;
use super::w_tiny_lfu::WTinyLfu;
use super::{Cache, Outcome, PageTrace, run_accesses};

/// A replacement and admission policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Replacement {
    /// The engine's own policy.
    Default,
    /// The engine's own policy with this condition of a promotion to flash.
    DefaultAt(PromotionCondition),
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
    /// LRU, with FAST Cache's admission rule on flash: a page enters at its third touch.
    ThirdTouch,
    /// Belady's optimum, a bound that needs knowledge of the future.
    Belady,
}

impl Replacement {
    /// All policies with their names.
    pub const ALL: [(&str, Replacement); 10] = [
        ("default", Replacement::Default),
        ("lru", Replacement::Lru),
        ("arc", Replacement::Arc),
        ("2q", Replacement::TwoQ),
        ("lirs", Replacement::Lirs),
        ("s3-fifo", Replacement::S3Fifo),
        ("sieve", Replacement::Sieve),
        ("w-tinylfu", Replacement::WTinyLfu),
        ("third-touch", Replacement::ThirdTouch),
        ("belady", Replacement::Belady),
    ];

    /// Policies whose misses and writes are compared, with their names: the default under each condition, laxest first,
    /// then others.
    pub fn frontier() -> Vec<(String, Replacement)> {
        let default = PromotionCondition::ALL
            .map(|condition| (format!("default, price {}", condition.price()), Replacement::DefaultAt(condition)));
        let others = [Replacement::Lru, Replacement::S3Fifo, Replacement::ThirdTouch];
        let name = |policy| {
            Replacement::ALL.iter().find(|known| known.1 == policy).expect("every policy of the frontier is in ALL").0
        };
        default.into_iter().chain(others.map(|policy| (name(policy).to_owned(), policy))).collect()
    }

    /// The policy called `name`.
    pub fn named(name: &str) -> Option<Replacement> {
        Replacement::ALL.iter().find(|(known, _)| *known == name).map(|(_, policy)| *policy)
    }

    /// A cache of `slots` pages, at least one, for these accesses.
    pub fn cache(self, slots: usize, pages: &PageTrace) -> Box<dyn Cache> {
        let (slots, distinct) = (slots.max(1), pages.distinct);
        match self {
            Replacement::Default | Replacement::DefaultAt(_) => {
                Box::new(EnginePolicy::new(Clock2Q::new(slots), slots, distinct))
            }
            Replacement::Lru => Box::new(Lru::new(slots, distinct)),
            Replacement::Arc => Box::new(Arc::new(slots, distinct)),
            Replacement::TwoQ => Box::new(TwoQ::new(slots, distinct)),
            Replacement::Lirs => Box::new(Lirs::new(slots, distinct)),
            Replacement::S3Fifo => Box::new(S3Fifo::new(slots, distinct)),
            Replacement::Sieve => Box::new(Sieve::new(slots, distinct)),
            Replacement::WTinyLfu => Box::new(WTinyLfu::new(slots, distinct)),
            Replacement::ThirdTouch => Box::new(AdmissionLru::new(ThirdTouch::new(slots as u64), slots, distinct)),
            Replacement::Belady => Box::new(Belady::new(slots, &pages.accesses, distinct)),
        }
    }

    /// A flash cache of `slots` pages. The default policy keeps `stage` of them in memory; without a stage, the memory
    /// cache in front has space for `memory` pages. The other policies have no stage: all their pages are on flash.
    pub fn flash(self, slots: usize, stage: usize, memory: usize, pages: &PageTrace) -> Box<dyn Cache> {
        match self {
            Replacement::Default => {
                Replacement::DefaultAt(PromotionCondition::default()).flash(slots, stage, memory, pages)
            }
            Replacement::DefaultAt(condition) => {
                let slots = slots.max(1);
                let memory = if stage > 0 { stage } else { memory };
                let mut admission = LateReturn::new(slots as u64, memory as u64);
                admission.set_condition(condition);
                Box::new(Staged::new(admission, stage.min(slots), slots, pages.distinct))
            }
            other => other.cache(slots, pages),
        }
    }

    /// Runs all accesses through a cache of `slots` pages.
    pub fn run(self, slots: usize, pages: &PageTrace) -> Outcome {
        run_accesses(&mut *self.cache(slots, pages), &pages.accesses)
    }
}
