//! The state of each segment (R7, docs/rules.md). The log is a chain of segments in the order of their batches. The
//! front segment is dead once it has no live record. It may be reused once a tail past it is durable on every member. A
//! recovery from an older tail would miss overwritten batches; a recovery from a newer tail never looks for them.

use std::collections::{BTreeSet, VecDeque};
use std::ops::Range;

use seam::Nanos;

use crate::number::{BootEpoch, SegmentNo, Sequence};

/// Segments reserved for tombstones of whole volumes. They can be appended even when the log is full of blocks that
/// cannot be destaged, so such blocks do not block other volumes.
const TOMBSTONE_RESERVE_SEGMENTS: usize = 2;
/// A log with fewer segments than this has no reserve.
const RESERVING_SEGMENTS_MIN: u32 = 16;

/// One segment.
#[derive(Clone, Copy, Debug, Default)]
pub struct Segment {
    /// The boot epoch in which its batches were written.
    pub boot_epoch: BootEpoch,
    /// Sequence number of its first batch, which serves as the segment's generation.
    pub first_sequence: Sequence,
    /// Sequence number of its last batch.
    pub last_sequence: Sequence,
    /// Live records: neither retired nor superseded when recovery ran.
    pub live_records: u32,
    /// Time at which its first batch was written, or at which the store was opened if a recovery found it.
    pub opened_at: Nanos,
    /// Its ordinal among the segments that the log has begun since the store was opened, from 1; 0 if a recovery found
    /// it.
    pub ordinal: u64,
    /// Reads in flight. A held segment is not overwritten.
    pub reads_in_flight: u32,
    /// Number of times that its retired records have expired since the store was opened, modulo [`EXPIRY_MODULUS`].
    /// Reads of retired records detect by it that the segment was reused.
    pub expiries: u16,
}

/// Modulus of [`Segment::expiries`]: a record's position stores the number in 13 bits.
pub const EXPIRY_MODULUS: u16 = 1 << 13;

/// A segment of the log, as [`Segments::chain`] lists it.
#[derive(Clone, Copy, Debug)]
pub struct LogSegment {
    /// The segment's number.
    pub number: SegmentNo,
    /// Its state.
    pub state: Segment,
    /// Number of used blocks of the open segment; `None` for all others, which get no more batches.
    pub open_blocks: Option<u32>,
}

/// The position of the next batch.
#[derive(Clone, Copy, Debug)]
pub struct OpenSegment {
    /// The segment.
    pub segment: SegmentNo,
    /// The next free block of the segment.
    pub next_block: u32,
}

/// The segments of the store.
pub struct Segments {
    /// All segments, by number.
    table: Vec<Segment>,
    /// Segments of the log, oldest first. The last one is the open one if `open` is set.
    chain: VecDeque<SegmentNo>,
    /// Segments that left the chain and wait for the durable tail to pass them, oldest first.
    dead_segments: VecDeque<SegmentNo>,
    /// Segments that may be written.
    free_segments: VecDeque<SegmentNo>,
    /// Segments that hold pages.
    lent_segments: BTreeSet<SegmentNo>,
    /// The position of the next batch, if a segment is open.
    pub open: Option<OpenSegment>,
    /// Recovery starts at this sequence number or later.
    pub durable_tail: Sequence,
    /// Number of expiries of all segments since the store was opened.
    pub total_expiries: u64,
    /// Number of segments that the log has begun since the store was opened.
    begun_segments: u64,
    /// Number of segments that the log begins before it reuses the newest one.
    reuse_distance_segments: u64,
    /// The number of the log's first segment.
    first_segment: SegmentNo,
    /// Segments from this number on are not written again: a device that will carry the log is too small for them.
    pub limit_segment: SegmentNo,
    /// Violates R7, for tests of the checker.
    pub is_reuse_sabotaged: bool,
}

impl Segments {
    /// The segments of these numbers. `chain` lists the log's segments (number, content), oldest first; `lent` lists
    /// the segments that hold pages.
    pub fn new(
        numbers: Range<SegmentNo>,
        chain: &[(SegmentNo, Segment)],
        lent: BTreeSet<SegmentNo>,
        durable_tail: Sequence,
    ) -> Segments {
        let (first_number, end) = (numbers.start, numbers.end);
        let mut table = vec![Segment::default(); end.index()];
        let mut used = vec![false; end.index()];
        lent.iter().for_each(|number| used[number.index()] = true);
        for (number, segment) in chain {
            table[number.index()] = *segment;
            used[number.index()] = true;
        }
        // Start after the newest segment, so that wear is even across restarts, too.
        let start = chain.last().map_or(first_number, |(number, _)| number.next());
        let free = SegmentNo::each(&(start..end)).chain(SegmentNo::each(&(first_number..start)));
        let free = free.filter(|number| !used[number.index()]).collect();
        let chain = chain.iter().map(|(number, _)| *number).collect();
        Segments {
            table,
            chain,
            dead_segments: VecDeque::new(),
            free_segments: free,
            lent_segments: lent,
            open: None,
            durable_tail,
            total_expiries: 0,
            begun_segments: 0,
            reuse_distance_segments: 0,
            first_segment: first_number,
            limit_segment: end,
            is_reuse_sabotaged: false,
        }
    }

    /// The segment of this number.
    pub fn get(&self, number: SegmentNo) -> &Segment {
        &self.table[number.index()]
    }

    /// The segment of this number, mutable.
    pub fn get_mut(&mut self, number: SegmentNo) -> &mut Segment {
        &mut self.table[number.index()]
    }

    /// Takes dead segments off the front of the chain. Returns the log's tail: batches below this sequence number are
    /// dead. `next_sequence` is the sequence number of the next batch.
    pub fn advance_tail(&mut self, next_sequence: Sequence) -> Sequence {
        let open = self.open.map(|open| open.segment);
        while let Some(front) = self.chain.front().copied()
            && open != Some(front)
            && self.get(front).live_records == 0
        {
            self.chain.pop_front();
            self.dead_segments.push_back(front);
        }
        self.chain.front().map_or(next_sequence, |front| self.get(*front).first_sequence)
    }

    /// Number of segments reserved for tombstones of whole volumes.
    pub fn tombstone_reserve_segments(&self) -> usize {
        if self.limit_segment.distance_from(self.first_segment) < RESERVING_SEGMENTS_MIN {
            0
        } else {
            TOMBSTONE_RESERVE_SEGMENTS
        }
    }

    /// Opens a free segment for a batch of sequence number `first_sequence`, if more than `reserve_segments` are free.
    /// Otherwise the open segment stays open.
    pub fn open_next(
        &mut self,
        boot_epoch: BootEpoch,
        first_sequence: Sequence,
        now: Nanos,
        reserve_segments: usize,
    ) -> bool {
        self.free_dead(first_sequence);
        if !self.has_more_free_than(reserve_segments) {
            return false;
        }
        let limit = self.limit_segment;
        let next = self
            .free_segments
            .iter()
            .position(|number| *number < limit)
            .and_then(|index| self.free_segments.remove(index));
        let Some(number) = next else { return false };
        assert!(self.get(number).reads_in_flight == 0, "a free segment is not held");
        self.expire_records(number);
        let expiries = self.get(number).expiries;
        self.begun_segments += 1;
        *self.get_mut(number) = Segment {
            boot_epoch,
            first_sequence,
            last_sequence: first_sequence,
            live_records: 0,
            opened_at: now,
            ordinal: self.begun_segments,
            reads_in_flight: 0,
            expiries,
        };
        self.chain.push_back(number);
        self.reuse_distance_segments = (self.chain.len() + self.writable_count()) as u64;
        self.open = Some(OpenSegment { segment: number, next_block: 0 });
        true
    }

    /// Frees dead segments that the durable tail has passed and no read holds. `next_sequence` is the sequence number
    /// of the next batch.
    pub fn free_dead(&mut self, next_sequence: Sequence) {
        self.advance_tail(next_sequence);
        let (durable_tail, violates_r7) = (self.durable_tail, self.is_reuse_sabotaged);
        let mut waiting = VecDeque::new();
        while let Some(number) = self.dead_segments.pop_front() {
            let segment = self.get(number);
            let tail_has_passed = segment.last_sequence < durable_tail || violates_r7;
            if tail_has_passed && segment.reads_in_flight == 0 {
                self.free_segments.push_back(number)
            } else {
                waiting.push_back(number)
            }
        }
        self.dead_segments = waiting;
    }

    /// Lends a free segment to the pages, if more than `reserve_segments` are free.
    pub fn lend(&mut self, reserve_segments: usize) -> Option<SegmentNo> {
        let index = self
            .free_segments
            .iter()
            .position(|number| *number < self.limit_segment)
            .filter(|_| self.has_more_free_than(reserve_segments))?;
        let number = self.free_segments.remove(index)?;
        assert!(self.get(number).reads_in_flight == 0, "a free segment is not held");
        self.expire_records(number);
        self.lent_segments.insert(number);
        Some(number)
    }

    /// Expires the retired records of a segment: later reads reject them.
    pub fn expire_records(&mut self, number: SegmentNo) {
        self.total_expiries += 1;
        let segment = self.get_mut(number);
        segment.expiries = (segment.expiries + 1) % EXPIRY_MODULUS;
    }

    /// True if the log has begun more segments since this one than it will begin before it reuses this one.
    pub fn is_past_half_of_lifetime(&self, number: SegmentNo) -> bool {
        (self.begun_segments - self.get(number).ordinal) * 2 > self.reuse_distance_segments
    }

    /// Expires the retired records of all segments outside the chain.
    pub fn expire_records_outside_chain(&mut self) {
        let numbers: Vec<SegmentNo> = self.free_segments.iter().chain(&self.dead_segments).copied().collect();
        numbers.into_iter().for_each(|number| self.expire_records(number));
    }

    /// Returns a lent segment to the log.
    pub fn return_lent(&mut self, number: SegmentNo) {
        assert!(self.lent_segments.remove(&number), "a lent segment is returned once");
        self.free_segments.push_back(number);
    }

    /// Lent segments that the log could reclaim and use: those below the limit.
    pub fn reclaimable_segments(&self) -> impl Iterator<Item = SegmentNo> + '_ {
        self.lent_segments.iter().copied().filter(|number| *number < self.limit_segment)
    }

    /// The number of segments that [`Segments::reclaimable_segments`] returns.
    pub fn reclaimable_count(&self) -> usize {
        // Count the segments past the limit: there are few, if any.
        self.lent_segments.len() - self.lent_segments.range(self.limit_segment..).count()
    }

    /// The segments that hold pages.
    pub fn lent_segments(&self) -> &BTreeSet<SegmentNo> {
        &self.lent_segments
    }

    /// Number of segments that may be written now.
    pub fn writable_count(&self) -> usize {
        self.free_segments.iter().filter(|number| **number < self.limit_segment).count()
    }

    /// True when more than `segment_count` segments may be written now.
    pub fn has_more_free_than(&self, segment_count: usize) -> bool {
        self.free_segments.iter().filter(|number| **number < self.limit_segment).nth(segment_count).is_some()
    }

    /// True when at least `reserve_segments` segments are free.
    pub fn is_reserve_free(&self, reserve_segments: usize) -> bool {
        reserve_segments == 0 || self.has_more_free_than(reserve_segments - 1)
    }

    /// Closes the open segment: no batch follows in it, so the tail may pass it, too.
    pub fn close_open(&mut self) {
        self.open = None;
    }

    /// Closes the open segment if it lies past the limit. The caller ensures that no batch is being written.
    pub fn close_open_past_limit(&mut self) {
        self.open = self.open.filter(|open| open.segment < self.limit_segment);
    }

    /// Number of segments that are free, or will be once a newer tail is durable.
    pub fn free_or_dead_count(&self) -> usize {
        self.free_segments.iter().chain(&self.dead_segments).filter(|number| **number < self.limit_segment).count()
    }

    /// The log's segments, oldest first.
    pub fn chain(&self) -> impl Iterator<Item = LogSegment> {
        let open_blocks = |number| self.open.filter(|open| open.segment == number).map(|open| open.next_block);
        self.chain.iter().map(move |number| LogSegment {
            number: *number,
            state: *self.get(*number),
            open_blocks: open_blocks(*number),
        })
    }

    /// True when the segment belongs to the log and still has this generation.
    pub fn is_in_log(&self, number: SegmentNo, first_sequence: Sequence) -> bool {
        self.get(number).first_sequence == first_sequence && self.chain.contains(&number)
    }

    /// Number of segments from the oldest one up to the last one that lies past the limit; 0 if none lies there. They
    /// must be emptied before the limit can be set.
    pub fn prefix_len_past_limit(&self) -> usize {
        if self.limit_segment.index() == self.table.len() {
            return 0;
        }
        self.chain.iter().rposition(|number| *number >= self.limit_segment).map_or(0, |last| last + 1)
    }

    /// Sets the limit, unless a segment at or past it belongs to the log or may still be read by a recovery. Returns
    /// whether it was set.
    pub fn try_set_limit(&mut self, limit: SegmentNo) -> bool {
        let used = self.chain.iter().any(|number| *number >= limit);
        let may_be_recovered = self
            .dead_segments
            .iter()
            .any(|number| *number >= limit && self.get(*number).last_sequence >= self.durable_tail);
        if !used && !may_be_recovered {
            self.limit_segment = limit;
        }
        !used && !may_be_recovered
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Opens a segment in the first boot epoch.
    fn open_segment(segments: &mut Segments, first: u64, reserve: usize) -> bool {
        segments.open_next(BootEpoch(1), Sequence(first), Nanos::ZERO, reserve)
    }

    #[test]
    fn dead_segment_is_reused_only_behind_a_durable_tail() {
        let mut segments = Segments::new(SegmentNo(0)..SegmentNo(2), &[], BTreeSet::new(), Sequence(1));
        assert!(open_segment(&mut segments, 1, 0));
        segments.get_mut(SegmentNo(0)).last_sequence = Sequence(4);
        assert!(open_segment(&mut segments, 5, 0));
        assert_eq!(segments.advance_tail(Sequence(6)), Sequence(5));
        assert!(!open_segment(&mut segments, 6, 0), "the first segment is dead, but no durable tail has passed it");
        segments.durable_tail = Sequence(5);
        assert!(open_segment(&mut segments, 6, 0));
        assert_eq!(segments.open.unwrap().segment, SegmentNo(0));
    }

    #[test]
    fn reserved_segments_open_for_tombstones_only() {
        let mut segments = Segments::new(SegmentNo(2)..SegmentNo(20), &[], BTreeSet::new(), Sequence(1));
        assert_eq!(segments.tombstone_reserve_segments(), 2);
        assert_eq!(
            Segments::new(SegmentNo(2)..SegmentNo(17), &[], BTreeSet::new(), Sequence(1)).tombstone_reserve_segments(),
            0,
            "a small log reserves nothing"
        );
        let opened = (1..).take_while(|first| open_segment(&mut segments, *first, 2)).count();
        assert_eq!(opened, 16);
        assert!(segments.is_reserve_free(2) && segments.lend(2).is_none());
        assert!(open_segment(&mut segments, 17, 0) && !segments.is_reserve_free(2));
        assert!(open_segment(&mut segments, 18, 0) && !open_segment(&mut segments, 19, 0));
    }

    #[test]
    fn lent_segments_past_the_limit_are_not_usable_by_the_log() {
        let mut segments =
            Segments::new(SegmentNo(0)..SegmentNo(6), &[], BTreeSet::from([1, 4, 5].map(SegmentNo)), Sequence(1));
        assert_eq!(segments.reclaimable_count(), 3);
        assert!(segments.try_set_limit(SegmentNo(4)));
        assert_eq!((segments.reclaimable_count(), segments.reclaimable_segments().count()), (1, 1));
    }

    #[test]
    fn live_record_keeps_its_segment_and_all_newer_ones() {
        let mut segments = Segments::new(SegmentNo(0)..SegmentNo(3), &[], BTreeSet::new(), Sequence(1));
        for first in 1..=3 {
            assert!(open_segment(&mut segments, first, 0));
            segments.get_mut(SegmentNo(first as u32 - 1)).live_records = u32::from(first == 1);
        }
        segments.durable_tail = segments.advance_tail(Sequence(4));
        assert_eq!(segments.durable_tail, Sequence(1));
        assert!(!open_segment(&mut segments, 4, 0));
        segments.get_mut(SegmentNo(0)).live_records = 0;
        segments.durable_tail = segments.advance_tail(Sequence(4));
        assert_eq!(segments.durable_tail, Sequence(3), "the open segment belongs to the log even without live records");
        segments.get_mut(SegmentNo(0)).reads_in_flight = 1;
        assert!(
            open_segment(&mut segments, 4, 0) && segments.open.unwrap().segment == SegmentNo(1),
            "a held segment is not overwritten"
        );
    }
}
