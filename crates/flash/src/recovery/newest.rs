//! The newest record of each block counts: data, zeroes, or a tombstone that leaves nothing.
//!
//! Nearly all records are data of one block. These are sorted, and the last record of a block is its newest. Records of
//! ranges first go into a tree, in which newer ones cut older ones. Then a merge passes over both in address order. A
//! log of many gigabytes has millions of records, and no client is served before this ends, so it must be fast.

use std::collections::BTreeMap;

use crate::format::batch::{RecordEntry, RecordKind};
use crate::number::Epoch;
use crate::record::{Owner, Position, Recovered, RecoveredContent};
use crate::recovery::chain::Chain;

/// A record of data, with all its needed fields: millions of look-ups in the headers would take longer than sorting.
#[derive(Clone, Copy)]
struct Point {
    owner: Owner,
    epoch: Epoch,
    checksum: u32,
    at: Place,
}

/// A record's place in the log's order: its batch, its index there, and the number of data records before it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    link: u32,
    record: u8,
    data: u8,
}

/// The range of a record of zeroes or a tombstone. Its first block is the key.
#[derive(Clone, Copy)]
struct Range {
    blocks: u64,
    at: Place,
}

/// The live records in the order of their owners, and the number of live records in each segment.
pub fn newest(chain: &Chain) -> (Vec<Recovered>, Vec<u32>) {
    let (points, ranges) = sorted(chain);
    let places = chain.links.iter().map(|link| (link.header.segment, link.header.offset)).collect();
    let (left, live) = (Vec::with_capacity(points.len()), vec![0; chain.segments as usize]);
    let mut found = Found { chain, places, left, live };
    let mut ranges = ranges.into_iter().map(|(owner, range)| (owner, range.blocks, range.at));
    let mut range = ranges.next();
    for (index, point) in points.iter().enumerate() {
        let Point { owner, at, .. } = *point;
        if points.get(index + 1).is_some_and(|next| next.owner == owner) {
            continue;
        }
        // Emit the ranges before the block. A range that covers the block continues after it, unless the block's record
        // is older.
        while let Some((start, blocks, of)) = range.filter(|(start, _, _)| *start <= owner) {
            if start.incarnation == owner.incarnation && start.block.plus(blocks) > owner.block {
                break;
            }
            found.range(start, blocks, of);
            range = ranges.next();
        }
        match range.filter(|(start, _, _)| *start <= owner) {
            Some((_, _, of)) if of > at => {}
            Some((start, blocks, of)) => {
                found.range(start, owner.block.since(start.block), of);
                found.point(point);
                let behind = Owner { block: owner.block.next(), ..owner };
                range = Some((behind, start.block.plus(blocks).since(behind.block), of));
            }
            None => found.point(point),
        }
    }
    range.into_iter().chain(ranges).for_each(|(start, blocks, of)| found.range(start, blocks, of));
    (found.left, found.live)
}

/// All records of data, sorted, and the newest records of ranges, cut so that they do not overlap.
fn sorted(chain: &Chain) -> (Vec<Point>, BTreeMap<Owner, Range>) {
    let records = chain.links.iter().map(|link| link.header.records.len()).sum();
    let (mut points, mut ranges) = (Vec::with_capacity(records), BTreeMap::new());
    for (link, batch) in (0..).zip(&chain.links) {
        let mut data = 0;
        for (number, record) in (0..).zip(&batch.header.records) {
            let owner = Owner { incarnation: record.incarnation, block: record.block };
            let at = Place { link, record: number, data };
            match record.kind {
                RecordKind::Data { checksum } => {
                    data += 1;
                    points.push(Point { owner, epoch: record.epoch, checksum, at });
                }
                RecordKind::Zero { .. } | RecordKind::Retire => {
                    let blocks = u64::from(record.blocks);
                    cut_out(&mut ranges, owner, blocks);
                    ranges.insert(owner, Range { blocks, at });
                }
            }
        }
    }
    // By block, and for one block in the log's order.
    points.sort_unstable_by_key(|point| (point.owner, point.at));
    (points, ranges)
}

/// The result of the merge.
struct Found<'a> {
    chain: &'a Chain,
    /// Segment and block of each batch, in a compact array.
    places: Vec<(u32, u32)>,
    left: Vec<Recovered>,
    /// Live records of each segment.
    live: Vec<u32>,
}

impl Found<'_> {
    fn point(&mut self, point: &Point) {
        let Point { owner, epoch, checksum, at } = *point;
        let (segment, offset) = self.places[at.link as usize];
        let position = Position { segment, index: offset + 1 + u32::from(at.data), checksum, live: true };
        self.add(Recovered { owner, epoch, position, content: RecoveredContent::Data });
    }

    fn range(&mut self, owner: Owner, blocks: u64, at: Place) {
        let header = &self.chain.links[at.link as usize].header;
        let RecordEntry { epoch, kind, .. } = header.records[usize::from(at.record)];
        if let RecordKind::Zero { may_unmap } = kind
            && blocks > 0
        {
            let blocks = u32::try_from(blocks).expect("a piece is no longer than its record");
            let position = Position { segment: header.segment, index: header.offset, checksum: 0, live: true };
            self.add(Recovered { owner, epoch, position, content: RecoveredContent::Zero { blocks, may_unmap } });
        }
    }

    fn add(&mut self, recovered: Recovered) {
        self.live[recovered.position.segment as usize] += 1;
        self.left.push(recovered);
    }
}

/// Removes the range of `blocks` from `owner` on from older ranges.
fn cut_out(ranges: &mut BTreeMap<Owner, Range>, owner: Owner, blocks: u64) {
    let end = Owner { block: owner.block.plus(blocks), ..owner };
    // At most one range begins before it and overlaps it.
    let before = ranges.range(..owner).next_back().map(|(start, range)| (*start, *range));
    if let Some((start, range)) = before
        && start.incarnation == owner.incarnation
        && start.block.plus(range.blocks) > owner.block
    {
        ranges.insert(start, Range { blocks: owner.block.since(start.block), ..range });
        if start.block.plus(range.blocks) > end.block {
            ranges.insert(end, Range { blocks: start.block.plus(range.blocks).since(end.block), ..range });
        }
    }
    let inside: Vec<_> = ranges.range(owner..end).map(|(start, range)| (*start, *range)).collect();
    for (start, range) in inside {
        ranges.remove(&start);
        if start.block.plus(range.blocks) > end.block {
            ranges.insert(end, Range { blocks: start.block.plus(range.blocks).since(end.block), ..range });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::batch::BatchHeader;
    use crate::number::{BlockNo, BootEpoch, CommitNo, Sequence, VolumeId};
    use crate::recovery::chain::Link;

    /// A log of these batches in one segment.
    fn chain(batches: Vec<Vec<RecordEntry>>) -> Chain {
        let (mut links, mut offset) = (Vec::new(), 0);
        for (sequence, records) in (1..).map(Sequence).zip(batches) {
            let header = BatchHeader {
                store: [0; 16],
                boot: BootEpoch(1),
                sequence,
                tail: Sequence(1),
                segment: 0,
                offset,
                first: Sequence(1),
                previous: 0,
                journal: CommitNo(0),
                records,
            };
            offset += header.blocks();
            links.push(Link::new(header, 0));
        }
        Chain {
            links,
            tail: Sequence(1),
            next: Sequence(0),
            segments: 1,
            page_segment_generations: BTreeMap::new(),
            journal: CommitNo(0),
        }
    }

    #[test]
    fn newer_records_replace_older_ones_as_in_a_plain_array() {
        let mut state = 1_u64;
        let mut below = |bound: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % bound
        };
        for _ in 0..400 {
            // The state of each block of two volumes: empty, zeroes of an epoch, or data with a checksum.
            let (mut array, mut batches, mut epoch) = ([[None; 32]; 2], Vec::new(), 0);
            for _ in 0..1 + below(8) {
                let mut records = Vec::new();
                for _ in 0..1 + below(6) {
                    epoch += 1;
                    let (volume, block) = (below(2), below(32));
                    let (blocks, kind) = match below(5) {
                        0 => (1 + below(32 - block), RecordKind::Zero { may_unmap: epoch % 2 == 0 }),
                        1 => (1 + below(32 - block), RecordKind::Retire),
                        _ => (1, RecordKind::Data { checksum: epoch as u32 }),
                    };
                    let now = (kind != RecordKind::Retire).then_some((Epoch(epoch), kind));
                    array[volume as usize][block as usize..(block + blocks) as usize].fill(now);
                    records.push(RecordEntry {
                        incarnation: VolumeId(volume),
                        block: BlockNo(block),
                        epoch: Epoch(epoch),
                        blocks: blocks as u32,
                        kind,
                    });
                }
                batches.push(records);
            }
            let chain = chain(batches);
            let (left, live) = newest(&chain);
            let mut found = [[None; 32]; 2];
            for one in &left {
                let (blocks, kind) = match one.content {
                    RecoveredContent::Zero { blocks, may_unmap } => (blocks, RecordKind::Zero { may_unmap }),
                    RecoveredContent::Data => (1, RecordKind::Data { checksum: one.position.checksum }),
                };
                let place = one.owner.block.0 as usize..one.owner.block.0 as usize + blocks as usize;
                let row = &mut found[one.owner.incarnation.0 as usize][place];
                assert!(row.iter().all(Option::is_none), "recovered records do not overlap");
                row.fill(Some((one.epoch, kind)));
                if one.content == RecoveredContent::Data {
                    let mut headers = chain.links.iter().map(|link| &link.header);
                    let named = headers.any(|header| {
                        header.data().any(|(record, index, _)| (record.epoch, index) == (one.epoch, one.position.index))
                    });
                    assert!(named, "the header names the block's position");
                }
            }
            assert_eq!(found, array);
            assert!(left.is_sorted_by_key(|one| one.owner));
            assert_eq!(live, [left.len() as u32]);
        }
    }
}
