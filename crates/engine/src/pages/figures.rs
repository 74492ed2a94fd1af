//! What a volume's flash level has done, and why it did not do more. The lists here feed counters, reports and documentation.

use std::cell::Cell;

/// Why a page that clients used was not promoted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotPromoted {
    /// Not used before in living memory.
    FirstUse,
    /// Used a moment ago: one burst is one use.
    Burst,
    /// Part of a sequential stream.
    Stream,
    /// In doubt since a crash: compared with the backing first.
    Suspect,
    /// The volume is not to have flash, is paused or frozen, or its pages are still compared with the backing.
    Off,
    /// Too many others wait.
    QueueFull,
    /// Memory holds nothing clean of it any more.
    NoContent,
    /// No slot is free at the moment.
    Busy,
    /// What would have to go is as hot.
    Hot,
    /// The volume has as much as it may have, and none of its own could go.
    Share,
    /// The device did not take it.
    Failed,
    /// The day's writes are used up.
    Endurance,
    /// Promotions have lately brought few hits.
    Gain,
}

impl NotPromoted {
    /// All of them, by their names in reports.
    pub const ALL: [(&'static str, NotPromoted); 13] = [
        ("first-use", NotPromoted::FirstUse),
        ("burst", NotPromoted::Burst),
        ("stream", NotPromoted::Stream),
        ("suspect", NotPromoted::Suspect),
        ("off", NotPromoted::Off),
        ("queue-full", NotPromoted::QueueFull),
        ("no-content", NotPromoted::NoContent),
        ("no-slot", NotPromoted::Busy),
        ("all-hot", NotPromoted::Hot),
        ("share-used", NotPromoted::Share),
        ("device-failed", NotPromoted::Failed),
        ("endurance", NotPromoted::Endurance),
        ("low-gain", NotPromoted::Gain),
    ];
}

/// Why a read was not served from memory and flash alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotHit {
    /// Nothing of it was cached.
    Absent,
    /// Some of its blocks were cached.
    Part,
    /// Somebody else was reading the same from the backing.
    Joined,
    /// It lies on flash, in doubt since a crash or not yet compared with the backing.
    Unchecked,
    /// The copy on flash could not be read.
    BadCopy,
    /// The request failed.
    Failed,
}

impl NotHit {
    /// All of them, by their names in reports.
    pub const ALL: [(&'static str, NotHit); 6] = [
        ("absent", NotHit::Absent),
        ("part-absent", NotHit::Part),
        ("joined", NotHit::Joined),
        ("unchecked", NotHit::Unchecked),
        ("bad-copy", NotHit::BadCopy),
        ("failed", NotHit::Failed),
    ];
}

/// Counters of one volume.
#[derive(Default)]
pub struct Figures {
    /// Blocks read from flash.
    pub read_blocks: Cell<u64>,
    /// Blocks on flash that could not be read, or were not what they should be.
    pub bad_blocks: Cell<u64>,
    /// Pages promoted.
    pub pages: Cell<u64>,
    /// Blocks put on flash.
    pub blocks: Cell<u64>,
    not_promoted: [Cell<u64>; NotPromoted::ALL.len()],
    not_hit: [Cell<u64>; NotHit::ALL.len()],
}

impl Figures {
    /// Adds to one counter.
    pub fn add(&self, counter: &Cell<u64>, count: u64) {
        counter.set(counter.get() + count);
    }

    /// A page was not promoted.
    pub fn not_promoted(&self, why: NotPromoted) {
        self.add(&self.not_promoted[why as usize], 1);
    }

    /// A read was not a hit.
    pub fn not_hit(&self, why: NotHit) {
        self.add(&self.not_hit[why as usize], 1);
    }

    /// Blocks of a page were put on flash; `new`: nothing of it was there.
    pub fn promoted(&self, new: bool, blocks: u64) {
        self.add(&self.pages, u64::from(new));
        self.add(&self.blocks, blocks);
    }

    /// Reasons that occurred, by name.
    pub fn why_not_promoted(&self) -> Vec<(&'static str, u64)> {
        named(&NotPromoted::ALL.map(|(name, _)| name), &self.not_promoted)
    }

    /// Reasons that occurred, by name.
    pub fn why_not_hit(&self) -> Vec<(&'static str, u64)> {
        named(&NotHit::ALL.map(|(name, _)| name), &self.not_hit)
    }
}

fn named(names: &[&'static str], counts: &[Cell<u64>]) -> Vec<(&'static str, u64)> {
    names.iter().zip(counts).map(|(name, count)| (*name, count.get())).filter(|(_, count)| *count > 0).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_is_counted_under_its_own_name() {
        let figures = Figures::default();
        for (times, (_, why)) in (1..).zip(NotPromoted::ALL) {
            (0..times).for_each(|_| figures.not_promoted(why));
        }
        let expected: Vec<_> = NotPromoted::ALL.iter().map(|(name, _)| *name).zip(1..).collect();
        assert_eq!(figures.why_not_promoted(), expected);
        for (times, (_, why)) in (1..).zip(NotHit::ALL) {
            (0..times).for_each(|_| figures.not_hit(why));
        }
        assert_eq!(figures.why_not_hit(), NotHit::ALL.iter().map(|(name, _)| *name).zip(1..).collect::<Vec<_>>());
    }
}
