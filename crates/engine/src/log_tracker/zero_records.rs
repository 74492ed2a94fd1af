//! Records of zero-ranges in the flash log, by the blocks of which they hold the newest durable content.
//!
//! A newer record takes over the blocks that it covers. A record without blocks is retired.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use flash::{BlockNo, Position, SegmentNo};

/// Number of a record, in the order of their appends.
type RecordId = u64;

/// The part of a record between two newer ones. Its first block is the key.
#[derive(Clone, Copy)]
struct RecordPart {
    end: BlockNo,
    record: RecordId,
}

/// A record of a zero-range.
struct ZeroRecord {
    position: Position,
    /// Number of its parts that no newer record has replaced.
    part_count: usize,
}

/// The records of a volume's zero-ranges.
#[derive(Default)]
pub struct ZeroRecords {
    /// Parts by first block; they do not overlap.
    parts: BTreeMap<BlockNo, RecordPart>,
    records: BTreeMap<RecordId, ZeroRecord>,
    next_record: RecordId,
    /// Where the next examination begins.
    cursor: BlockNo,
}

impl ZeroRecords {
    /// Number of parts of records.
    pub fn len(&self) -> usize {
        self.parts.len()
    }

    /// True if there are no records.
    pub fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    /// Adds a record, after [`ZeroRecords::cut`] of its blocks.
    pub fn insert(&mut self, blocks: Range<BlockNo>, position: Position) {
        let record = self.next_record;
        self.next_record += 1;
        self.records.insert(record, ZeroRecord { position, part_count: 1 });
        self.parts.insert(blocks.start, RecordPart { end: blocks.end, record });
    }

    /// Takes `blocks` from all records, because a newer record holds them. Adds the positions of records without blocks
    /// to `retired`.
    pub fn cut(&mut self, blocks: &Range<BlockNo>, retired: &mut Vec<Position>) {
        while let Some((start, part)) = self.parts.range(..blocks.end).next_back().map(|(start, part)| (*start, *part))
            && part.end > blocks.start
        {
            self.parts.remove(&start);
            let remainders = [(start, blocks.start), (blocks.end, part.end)];
            for (start, end) in remainders.into_iter().filter(|(start, end)| start < end) {
                self.parts.insert(start, RecordPart { end, ..part });
                self.record_mut(part.record).part_count += 1;
            }
            self.release_part(part.record, retired);
        }
    }

    /// Removes the parts that `is_durable` elsewhere among the next `examined_parts_max`. Adds the positions of records
    /// without blocks to `retired`.
    pub fn retire(
        &mut self,
        examined_parts_max: usize,
        is_durable: impl Fn(&Range<BlockNo>) -> bool,
        retired: &mut Vec<Position>,
    ) {
        for _ in 0..self.parts.len().min(examined_parts_max) {
            let next = self.parts.range(self.cursor..).next().or_else(|| self.parts.iter().next());
            let Some((start, part)) = next.map(|(start, part)| (*start, *part)) else { return };
            self.cursor = part.end;
            if is_durable(&(start..part.end)) {
                self.parts.remove(&start);
                self.release_part(part.record, retired);
            }
        }
    }

    /// Removes all records and adds their positions to `retired`.
    pub fn clear(&mut self, retired: &mut Vec<Position>) {
        self.parts.clear();
        retired.extend(std::mem::take(&mut self.records).into_values().map(|record| record.position));
    }

    /// True if any of these segments has live records.
    pub fn are_in_segments(&self, segments: &BTreeSet<SegmentNo>) -> bool {
        self.records.values().any(|record| segments.contains(&record.position.segment()))
    }

    fn record_mut(&mut self, id: RecordId) -> &mut ZeroRecord {
        self.records.get_mut(&id).expect("the record of a part exists")
    }

    /// Removes one part from the count of a record; a record without parts is retired.
    fn release_part(&mut self, id: RecordId, retired: &mut Vec<Position>) {
        let record = self.record_mut(id);
        record.part_count -= 1;
        if record.part_count == 0 {
            retired.push(record.position);
            self.records.remove(&id);
        }
    }
}

#[cfg(test)]
mod tests {
    use seam::sim::Rng;

    use super::*;

    const BLOCKS: u64 = 40;

    fn range(start: u64, end: u64) -> Range<BlockNo> {
        BlockNo(start)..BlockNo(end)
    }

    #[test]
    fn records_are_retired_once_when_their_last_block_has_newer_content() {
        let (rng, mut records, mut retired) = (Rng::new(3, 0), ZeroRecords::default(), Vec::new());
        let mut newest: [Option<u32>; BLOCKS as usize] = [None; BLOCKS as usize];
        for number in 0..2_000u32 {
            let start = rng.below(BLOCKS);
            let end = (start + 1 + rng.below(12)).min(BLOCKS);
            let blocks = range(start, end);
            let mut live_before: BTreeSet<u32> = newest.iter().flatten().copied().collect();
            match rng.below(4) {
                0 => {
                    records.cut(&blocks, &mut retired);
                    newest[start as usize..end as usize].fill(None);
                }
                1 => {
                    let is_durable = |part: &Range<BlockNo>| part.start >= blocks.start && part.end <= blocks.end;
                    let held: Vec<_> = records.parts.iter().map(|(start, part)| *start..part.end).collect();
                    records.retire(usize::MAX, is_durable, &mut retired);
                    held.iter()
                        .filter(|part| is_durable(part))
                        .for_each(|part| newest[part.start.0 as usize..part.end.0 as usize].fill(None));
                }
                _ => {
                    records.cut(&blocks, &mut retired);
                    records.insert(blocks, Position::from_words([number, 0, 0]));
                    newest[start as usize..end as usize].fill(Some(number));
                    live_before.insert(number);
                }
            }
            let live_after: BTreeSet<u32> = newest.iter().flatten().copied().collect();
            let mut expected: Vec<u32> = live_before.difference(&live_after).copied().collect();
            let mut actual: Vec<u32> = retired.drain(..).map(|position| position.segment().0).collect();
            expected.sort_unstable();
            actual.sort_unstable();
            assert_eq!(actual, expected, "step {number}");
            assert!(live_after.iter().all(|segment| records.are_in_segments(&BTreeSet::from([SegmentNo(*segment)]))));
            assert_eq!(records.is_empty(), live_after.is_empty());
        }
        let held = newest.iter().flatten().collect::<BTreeSet<_>>().len();
        records.clear(&mut retired);
        assert_eq!((retired.len(), records.len()), (held, 0));
    }

    #[test]
    fn examination_continues_where_the_last_one_ended() {
        let (mut records, mut retired) = (ZeroRecords::default(), Vec::new());
        (0..6).for_each(|number| {
            let start = u64::from(number) * 4;
            records.insert(range(start, start + 4), Position::from_words([number, 0, 0]));
        });
        records.retire(3, |_| false, &mut retired);
        records.retire(2, |_| true, &mut retired);
        assert_eq!(retired.drain(..).map(Position::segment).collect::<Vec<_>>(), [3, 4].map(SegmentNo));
        records.retire(2, |_| true, &mut retired);
        assert_eq!(retired.into_iter().map(Position::segment).collect::<Vec<_>>(), [5, 0].map(SegmentNo));
    }
}
