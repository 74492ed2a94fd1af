//! Counters of a volume's flash tier, and the reasons for cache misses and rejected promotions. Counters, reports and
//! documentation use the lists of names here.

use std::cell::Cell;

/// Reasons why a page that clients used was not promoted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RejectReason {
    /// First use within the recorded history.
    FirstUse,
    /// Used again too soon: a burst counts as one use.
    Burst,
    /// Part of a sequential stream.
    Stream,
    /// Suspect since a crash; it is compared with the backing first.
    Suspect,
    /// Flash is disabled for the volume, the volume is paused or frozen, or its pages are still being compared with the
    /// backing.
    Off,
    /// The queue of promotions is full.
    QueueFull,
    /// Memory no longer holds clean blocks of the page.
    NoContent,
    /// No slot is free at present.
    NoSlot,
    /// Every page that could be evicted is as hot.
    AllHot,
    /// The volume has reached its quota, and none of its own pages could be evicted.
    QuotaUsed,
    /// The flash device failed the write.
    DeviceFailed,
    /// The endurance budget of the day is used up.
    Endurance,
    /// Recent promotions yielded few hits.
    LowGain,
}

impl RejectReason {
    /// All reasons with their names in reports.
    pub const ALL: [(&'static str, RejectReason); 13] = [
        ("first-use", RejectReason::FirstUse),
        ("burst", RejectReason::Burst),
        ("stream", RejectReason::Stream),
        ("suspect", RejectReason::Suspect),
        ("off", RejectReason::Off),
        ("queue-full", RejectReason::QueueFull),
        ("no-content", RejectReason::NoContent),
        ("no-slot", RejectReason::NoSlot),
        ("all-hot", RejectReason::AllHot),
        ("share-used", RejectReason::QuotaUsed),
        ("device-failed", RejectReason::DeviceFailed),
        ("endurance", RejectReason::Endurance),
        ("low-gain", RejectReason::LowGain),
    ];
}

/// Reasons why memory and flash alone did not serve a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MissReason {
    /// No block was cached.
    Absent,
    /// Some of the blocks were cached.
    Partial,
    /// Another request was reading the same blocks from the backing.
    Joined,
    /// The page is on flash, but suspect since a crash or not yet compared with the backing.
    Unchecked,
    /// The copy on flash could not be read.
    BadCopy,
    /// The request failed.
    Failed,
}

impl MissReason {
    /// All reasons with their names in reports.
    pub const ALL: [(&'static str, MissReason); 6] = [
        ("absent", MissReason::Absent),
        ("part-absent", MissReason::Partial),
        ("joined", MissReason::Joined),
        ("unchecked", MissReason::Unchecked),
        ("bad-copy", MissReason::BadCopy),
        ("failed", MissReason::Failed),
    ];
}

/// Counters of one volume.
#[derive(Default)]
pub struct TierCounters {
    /// Blocks read from flash.
    pub read_blocks: Cell<u64>,
    /// Blocks of these that were read from kept records of the log.
    pub kept_blocks_read: Cell<u64>,
    /// Blocks on flash that could not be read or failed verification.
    pub bad_blocks: Cell<u64>,
    /// Pages promoted.
    pub promoted_pages: Cell<u64>,
    /// Blocks put on flash.
    pub promoted_blocks: Cell<u64>,
    /// Pages that were not promoted, by reason.
    rejection_reasons: [Cell<u64>; RejectReason::ALL.len()],
    /// Reads that were not hits, by reason.
    miss_reasons: [Cell<u64>; MissReason::ALL.len()],
}

impl TierCounters {
    /// Adds `count` to a counter.
    pub fn add(&self, counter: &Cell<u64>, count: u64) {
        counter.set(counter.get() + count);
    }

    /// Counts a page that was not promoted.
    pub fn count_rejection(&self, reason: RejectReason) {
        self.add(&self.rejection_reasons[reason as usize], 1);
    }

    /// Counts a read that was not a hit.
    pub fn count_miss(&self, reason: MissReason) {
        self.add(&self.miss_reasons[reason as usize], 1);
    }

    /// Counts blocks put on flash. `is_new`: flash held no block of the page before.
    pub fn count_promotion(&self, is_new: bool, blocks: u64) {
        self.add(&self.promoted_pages, u64::from(is_new));
        self.add(&self.promoted_blocks, blocks);
    }

    /// Number of rejected promotions by reason; reasons that never occurred are left out.
    pub fn rejection_reasons(&self) -> Vec<(&'static str, u64)> {
        with_names(&RejectReason::ALL.map(|(name, _)| name), &self.rejection_reasons)
    }

    /// Number of cache misses by reason; reasons that never occurred are left out.
    pub fn miss_reasons(&self) -> Vec<(&'static str, u64)> {
        with_names(&MissReason::ALL.map(|(name, _)| name), &self.miss_reasons)
    }
}

/// The counts above zero, with their names.
fn with_names(names: &[&'static str], counts: &[Cell<u64>]) -> Vec<(&'static str, u64)> {
    names.iter().zip(counts).map(|(name, count)| (*name, count.get())).filter(|(_, count)| *count > 0).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_is_counted_under_its_own_name() {
        let counters = TierCounters::default();
        for (times, (_, reason)) in (1..).zip(RejectReason::ALL) {
            (0..times).for_each(|_| counters.count_rejection(reason));
        }
        let expected: Vec<_> = RejectReason::ALL.iter().map(|(name, _)| *name).zip(1..).collect();
        assert_eq!(counters.rejection_reasons(), expected);
        for (times, (_, reason)) in (1..).zip(MissReason::ALL) {
            (0..times).for_each(|_| counters.count_miss(reason));
        }
        assert_eq!(counters.miss_reasons(), MissReason::ALL.iter().map(|(name, _)| *name).zip(1..).collect::<Vec<_>>());
    }
}
