//! What of a volume lies in the flash log, and what has changed since.
//!
//! A record of the log may be let go when something durable stands for it: a newer record, or the backing, once a write that was
//! sent after the record was taken has completed and a flush of the backing has covered it. Which of these steps a block has come
//! to is its [`Way`]. Records of which no step has been taken lie on a [`Shelf`] when their block is not in memory.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;
use std::rc::Rc;

use flash::Position;

use super::outdated::Outdated;
use super::shelf::Shelf;

/// Ranges that are listed at most; past it everything counts as changed.
const RANGES_MAX: usize = 1024;

/// How far a block's content of the log, or newer, has come on its way to the backing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Nowhere yet.
    Here,
    /// It is being written there.
    Sent,
    /// It is there; the number of its completion, which a flush has yet to cover.
    Written(u64),
    /// It is durable there.
    Durable,
}

struct Entry {
    /// `None` while its record is being appended.
    position: Option<Position>,
    /// The older record of the block, until the new one is durable.
    older: Option<Position>,
    way: Way,
}

/// What has changed since the last flush.
#[derive(Clone, Debug, Default)]
pub struct Changed {
    /// Blocks that were written.
    pub blocks: BTreeSet<u64>,
    /// Ranges that were zeroed: first block to the one behind the last.
    pub ranges: BTreeMap<u64, u64>,
    /// More has changed than could be listed.
    pub everything: bool,
}

impl Changed {
    /// True when something of `blocks` has.
    fn touches(&self, blocks: &Range<u64>) -> bool {
        self.everything
            || self.blocks.range(blocks.clone()).next().is_some()
            || self.ranges.range(..blocks.end).any(|(_, end)| *end > blocks.start)
    }

    /// True when there is nothing to make durable.
    pub fn is_empty(&self) -> bool {
        self.blocks.is_empty() && self.ranges.is_empty() && !self.everything
    }

    fn range(&mut self, range: Range<u64>) {
        self.ranges.entry(range.start).and_modify(|end| *end = range.end.max(*end)).or_insert(range.end);
        if self.ranges.len() > RANGES_MAX {
            self.all();
        }
    }

    fn all(&mut self) {
        *self = Changed { everything: true, ..Changed::default() };
    }

    /// Both.
    pub fn join(&mut self, other: Changed, blocks_max: usize) {
        if other.everything {
            return self.all();
        }
        self.blocks.extend(other.blocks);
        other.ranges.into_iter().for_each(|(start, end)| self.range(start..end));
        if self.blocks.len() > blocks_max {
            self.all();
        }
    }
}

/// A volume's part of the log.
#[derive(Default)]
pub struct Ledger {
    /// Changes are noted.
    on: bool,
    /// A recovery might find records of the volume.
    records: bool,
    changed: Changed,
    /// What a flush is making durable.
    taken: Option<Rc<Changed>>,
    /// What a kill must not bring back, where memory outlives the process.
    outdated: Option<Outdated>,
    blocks_max: usize,
    entries: BTreeMap<u64, Entry>,
    /// As entries with a position, nothing older and the way [`Way::Here`]. No block is in both.
    shelf: Shelf,
    written: VecDeque<(u64, u64)>,
    /// Positions that may be let go.
    freed: Vec<Position>,
}

impl Ledger {
    /// From now on changes are noted, at most so many blocks one by one. `keeps`: memory outlives the process.
    pub fn open(&mut self, blocks_max: usize, keeps: bool) {
        (self.on, self.blocks_max, self.outdated) = (true, blocks_max, keeps.then(Outdated::default));
    }

    /// What of the log is out of date, where that outlives the process.
    pub fn outdated(&mut self) -> Option<&mut Outdated> {
        self.outdated.as_mut()
    }

    /// The newest content of these blocks is durable on the backing, or given up, and nothing in memory says so any more.
    pub fn cleaned(&mut self, blocks: Range<u64>) {
        let is_due = |changed: &Changed| changed.touches(&blocks);
        if let Some(outdated) = self.outdated.as_mut().filter(|_| self.records)
            && (is_due(&self.changed) || self.taken.as_deref().is_some_and(is_due))
        {
            outdated.add(blocks);
        }
    }

    /// True when a recovery might find records of the volume.
    pub fn has_records(&self) -> bool {
        self.records
    }

    /// Records that hold their segments.
    pub fn len(&self) -> usize {
        self.entries.len() + self.shelf.len()
    }

    /// Blocks whose newest content is a record alone.
    pub fn resting(&self) -> u64 {
        self.shelf.resting()
    }

    /// Bytes of memory that they take.
    pub fn resting_bytes(&self) -> usize {
        self.shelf.bytes()
    }

    /// True when the block's newest content is a record alone: neither memory nor the backing has it.
    pub fn rests(&self, block: u64) -> bool {
        self.shelf.rests(block)
    }

    /// The record that is a resting block's newest content.
    pub fn resting_at(&self, block: u64) -> Option<Position> {
        self.shelf.get(block).filter(|(_, rests)| *rests).map(|(position, _)| position)
    }

    /// As [`Shelf::next_run`].
    pub fn next_resting(
        &self,
        from: u64,
        boundary: u64,
        count: u64,
        wanted: impl Fn(u64) -> bool,
    ) -> Option<Range<u64>> {
        self.shelf.next_run(from, boundary, count, wanted)
    }

    /// True when the block's record is durable and is its newest content, of which nothing is on its way.
    pub fn may_rest(&self, block: u64) -> bool {
        let entry = self.entries.get(&block);
        let here =
            entry.is_some_and(|entry| entry.position.is_some() && entry.older.is_none() && entry.way == Way::Here);
        here && !self.changed.everything && !self.changed.blocks.contains(&block)
    }

    /// The block leaves memory, which had the content of its record.
    pub fn rest(&mut self, block: u64) {
        assert!(self.may_rest(block), "the only copy of a block leaves memory");
        let entry = self.entries.remove(&block).expect("just looked at");
        self.shelf.insert(block, entry.position.expect("just looked at"), true);
        self.outdated.iter_mut().for_each(|outdated| outdated.remove(block..block + 1));
    }

    /// The content of a resting block is in memory again.
    pub fn wake(&mut self, block: u64) {
        let (position, rests) = self.shelf.remove(block).expect("it rests");
        assert!(rests, "an old record is not a block's content");
        self.entries.insert(block, Entry { position: Some(position), older: None, way: Way::Here });
    }

    /// What rests of these blocks is not their newest content any more. Returns how many blocks rested.
    pub fn supersede(&mut self, blocks: Range<u64>) -> u64 {
        self.shelf.supersede(blocks)
    }

    /// The block's newest content is not in the log.
    pub fn change(&mut self, block: u64) {
        if self.on && !self.changed.everything {
            self.changed.blocks.insert(block);
            if self.changed.blocks.len() > self.blocks_max {
                self.changed.all();
            }
        }
    }

    /// As [`Ledger::change`], for a range.
    pub fn change_range(&mut self, blocks: Range<u64>) {
        if self.on && !self.changed.everything {
            self.changed.range(blocks);
        }
    }

    /// Takes the list of what has changed; a new one begins.
    pub fn take_changed(&mut self) -> Rc<Changed> {
        let changed = Rc::new(std::mem::take(&mut self.changed));
        self.taken = Some(Rc::clone(&changed));
        changed
    }

    /// What was taken is durable, or else has changed still.
    pub fn settle(&mut self, changed: &Changed, durable: bool) {
        self.taken = None;
        match durable {
            true => self.outdated.iter_mut().for_each(|outdated| outdated.keep_only(&self.changed)),
            false => self.changed.join(changed.clone(), self.blocks_max),
        }
    }

    /// Blocks of these ranges that have been written since the list was taken; `None` where something of them has been zeroed again, or too
    /// much has changed to say.
    pub fn written_within(&self, ranges: &BTreeMap<u64, u64>) -> Option<Vec<u64>> {
        let overlaps = |(start, end): (&u64, &u64)| self.changed.ranges.range(..end).any(|(_, other)| other > start);
        if self.changed.everything || ranges.iter().any(overlaps) {
            return None;
        }
        let written = ranges.iter().flat_map(|(start, end)| self.changed.blocks.range(start..end));
        Some(written.copied().collect())
    }

    /// True when something has changed.
    pub fn has_changed(&self) -> bool {
        !self.changed.is_empty()
    }

    /// True when so much has changed that it can hardly be listed or noted much longer.
    pub fn has_changed_much(&self) -> bool {
        let is_crowded = self.outdated.as_ref().is_some_and(Outdated::is_crowded);
        is_crowded || self.changed.blocks.len() > self.blocks_max / 2 || self.changed.ranges.len() > RANGES_MAX / 2
    }

    /// The block's content goes into the log; it is on its way to the backing as `way` says.
    pub fn take(&mut self, block: u64, way: Way) {
        self.records = true;
        let older = match self.entries.remove(&block) {
            Some(entry) => entry.position,
            None => self.take_off_shelf(block),
        };
        self.entries.insert(block, Entry { position: None, older, way });
        if let Way::Written(sequence) = way {
            self.written.push_back((block, sequence));
        }
    }

    /// The record of a block that was taken is durable.
    pub fn logged(&mut self, block: u64, position: Position) {
        let entry = self.entries.get_mut(&block).expect("it was taken");
        entry.position = Some(position);
        self.freed.extend(entry.older.take());
        if entry.way == Way::Durable {
            self.let_go(block);
        }
    }

    /// The record of a block that was taken could not be made durable; the older one, if there is one, may be all that a recovery finds.
    pub fn not_logged(&mut self, block: u64) {
        let entry = self.entries.get_mut(&block).expect("it was taken");
        entry.position = entry.older.take();
        match entry.position {
            // What was on its way when the content was taken may be older than the older record: nothing is concluded from it.
            Some(_) => entry.way = Way::Here,
            None => {
                self.entries.remove(&block);
            }
        }
    }

    /// Nothing of what was taken was written, and nothing had been before.
    pub fn nothing_logged(&mut self) {
        assert!(self.len() == 0, "a volume with records has records");
        self.records = false;
    }

    /// A recovery found the newest content of these blocks at these positions, in the blocks' order; and whether it counts.
    pub fn adopt(&mut self, records: impl Iterator<Item = (u64, Position, bool)>) {
        self.records = true;
        self.shelf.fill(records);
    }

    /// Tombstones of these blocks are durable.
    pub fn buried(&mut self, blocks: Range<u64>) {
        self.outdated.iter_mut().for_each(|outdated| outdated.remove(blocks.clone()));
        self.freed.extend(self.shelf.take(blocks.clone()));
        // One by one: cutting the tree apart and joining it again would cost as much as all that lies behind.
        let gone: Vec<u64> = self.entries.range(blocks).map(|(block, _)| *block).collect();
        for entry in gone.iter().filter_map(|block| self.entries.remove(block)) {
            assert!(entry.position.is_some(), "no record is appended while a tombstone is");
            self.freed.extend(entry.position);
        }
    }

    /// Tombstones of the whole volume are durable: no recovery finds anything of it.
    pub fn buried_all(&mut self) {
        self.buried(0..u64::MAX);
        self.records = false;
    }

    /// The block's newest content is being written to the backing.
    pub fn sent(&mut self, block: u64) {
        if let Some(position) = self.take_off_shelf(block) {
            self.entries.insert(block, Entry { position: Some(position), older: None, way: Way::Here });
        }
        if let Some(entry) = self.entries.get_mut(&block) {
            entry.way = Way::Sent;
        }
    }

    /// What was sent of the block is there.
    pub fn sent_done(&mut self, block: u64, sequence: u64) {
        if let Some(entry) = self.entries.get_mut(&block)
            && entry.way == Way::Sent
        {
            entry.way = Way::Written(sequence);
            self.written.push_back((block, sequence));
        }
    }

    /// What was sent of the block did not get there.
    pub fn sent_failed(&mut self, block: u64) {
        if let Some(entry) = self.entries.get_mut(&block)
            && entry.way == Way::Sent
        {
            entry.way = Way::Here;
        }
    }

    /// A flush of the backing covered what completed below `covered`.
    pub fn flushed(&mut self, covered: u64) {
        for _ in 0..self.written.len() {
            let (block, sequence) = self.written.pop_front().expect("counted");
            if sequence >= covered {
                self.written.push_back((block, sequence));
                continue;
            }
            let Some(entry) = self.entries.get_mut(&block).filter(|entry| entry.way == Way::Written(sequence)) else {
                continue;
            };
            entry.way = Way::Durable;
            if entry.position.is_some() {
                self.let_go(block);
            }
        }
    }

    /// The backing may have lost what it had not flushed.
    pub fn lost(&mut self) {
        for (block, sequence) in std::mem::take(&mut self.written) {
            if let Some(entry) = self.entries.get_mut(&block).filter(|entry| entry.way == Way::Written(sequence)) {
                entry.way = Way::Here;
            }
        }
    }

    /// Lets go the records of all blocks in memory or nowhere whose newest content is durably on the backing, as `durable` says; none is being appended.
    pub fn let_go_if(&mut self, durable: impl Fn(u64) -> bool) {
        let blocks: Vec<u64> = self.entries.keys().copied().filter(|block| durable(*block)).collect();
        blocks.into_iter().for_each(|block| self.let_go(block));
        for block in self.shelf.superseded().into_iter().filter(|block| durable(*block)) {
            let position = self.take_off_shelf(block);
            self.freed.extend(position);
        }
    }

    /// The blocks whose records hold these segments, in order.
    pub fn in_segments(&self, segments: &BTreeSet<u32>) -> Vec<u64> {
        let holds = |entry: &Entry| {
            let mut positions = entry.position.iter().chain(&entry.older);
            positions.any(|position| segments.contains(&position.segment()))
        };
        let entries = self.entries.iter().filter(|(_, entry)| holds(entry)).map(|(block, _)| *block);
        let mut blocks: Vec<u64> = entries.chain(self.shelf.in_segments(segments)).collect();
        blocks.sort_unstable();
        blocks
    }

    /// The record of a block that does not rest, to be followed from now on.
    fn take_off_shelf(&mut self, block: u64) -> Option<Position> {
        let (position, rests) = self.shelf.remove(block)?;
        assert!(!rests, "a block that rests has no content elsewhere");
        Some(position)
    }

    /// Positions that may be let go since the last call.
    pub fn take_freed(&mut self) -> Vec<Position> {
        std::mem::take(&mut self.freed)
    }

    fn let_go(&mut self, block: u64) {
        let entry = self.entries.remove(&block).expect("just looked at");
        self.freed.extend(entry.position);
        self.freed.extend(entry.older);
    }
}
