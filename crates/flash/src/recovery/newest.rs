//! Finds the newest record of each block: data, zeroes, or a tombstone, which leaves no live record.
//!
//! Nearly all records are data of one block. These are sorted, and the last record of a block is its newest. Records of
//! ranges go into a tree, where a newer range removes the overlapped part of older ones. Then a merge passes over both
//! in address order. Recovery must be fast: a log of many gigabytes has millions of records, and clients are served
//! only afterwards.

use std::collections::BTreeMap;

use crate::format::batch::{RecordEntry, RecordKind};
use crate::number::{Epoch, SegmentNo};
use crate::record::{BlockAddress, Position, Recovered, RecoveredContent};
use crate::recovery::chain::LogChain;

/// A data record with all fields that the merge needs: millions of look-ups in the headers would take longer than
/// sorting.
#[derive(Clone, Copy)]
struct DataRecord {
    address: BlockAddress,
    epoch: Epoch,
    checksum: u32,
    at: LogPosition,
}

/// A record's position in the log: its batch, its index there, and the number of data records before it in the batch.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct LogPosition {
    batch_index: u32,
    record_index: u8,
    data_records_before: u8,
}

/// The range of a record of zeroes or a tombstone. Its first block is the key.
#[derive(Clone, Copy)]
struct RangeRecord {
    blocks: u64,
    at: LogPosition,
}

/// The live records in the order of their addresses, and the number of live records in each segment.
pub fn newest_records(chain: &LogChain) -> (Vec<Recovered>, Vec<u32>) {
    let (data_records, ranges) = collect_records(chain);
    let positions = chain.batches.iter().map(|batch| (batch.header.segment, batch.header.offset)).collect();
    let (records, live_per_segment) = (Vec::with_capacity(data_records.len()), vec![0; chain.segments as usize]);
    let mut merge = Merge { chain, positions, records, live_per_segment };
    let mut ranges = ranges.into_iter().map(|(address, range)| (address, range.blocks, range.at));
    let mut range = ranges.next();
    for (index, record) in data_records.iter().enumerate() {
        let DataRecord { address, at, .. } = *record;
        if data_records.get(index + 1).is_some_and(|next| next.address == address) {
            continue;
        }
        // Emit the ranges before the block. A range that covers the block is split around it if the block's record is
        // newer; otherwise it hides the record.
        while let Some((start, blocks, range_position)) = range.filter(|(start, _, _)| *start <= address) {
            if start.volume_id == address.volume_id && start.block.plus(blocks) > address.block {
                break;
            }
            merge.emit_range(start, blocks, range_position);
            range = ranges.next();
        }
        match range.filter(|(start, _, _)| *start <= address) {
            Some((_, _, range_position)) if range_position > at => {}
            Some((start, blocks, range_position)) => {
                merge.emit_range(start, address.block.since(start.block), range_position);
                merge.emit_data(record);
                let remainder = BlockAddress { block: address.block.next(), ..address };
                range = Some((remainder, start.block.plus(blocks).since(remainder.block), range_position));
            }
            None => merge.emit_data(record),
        }
    }
    range
        .into_iter()
        .chain(ranges)
        .for_each(|(start, blocks, range_position)| merge.emit_range(start, blocks, range_position));
    (merge.records, merge.live_per_segment)
}

/// All records of data, sorted, and the newest records of ranges, cut so that they do not overlap.
fn collect_records(chain: &LogChain) -> (Vec<DataRecord>, BTreeMap<BlockAddress, RangeRecord>) {
    let records = chain.batches.iter().map(|batch| batch.header.records.len()).sum();
    let (mut data_records, mut ranges) = (Vec::with_capacity(records), BTreeMap::new());
    for (batch_index, batch) in (0..).zip(&chain.batches) {
        let mut data_records_before = 0;
        for (record_index, record) in (0..).zip(&batch.header.records) {
            let address = BlockAddress { volume_id: record.volume_id, block: record.block };
            let at = LogPosition { batch_index, record_index, data_records_before };
            match record.kind {
                RecordKind::Data { checksum } => {
                    data_records_before += 1;
                    data_records.push(DataRecord { address, epoch: record.epoch, checksum, at });
                }
                RecordKind::Zero { .. } | RecordKind::Tombstone => {
                    let blocks = u64::from(record.blocks);
                    remove_range(&mut ranges, address, blocks);
                    ranges.insert(address, RangeRecord { blocks, at });
                }
            }
        }
    }
    // By block, and for one block in the log's order.
    data_records.sort_unstable_by_key(|record| (record.address, record.at));
    (data_records, ranges)
}

/// The state of the merge, and its result.
struct Merge<'a> {
    chain: &'a LogChain,
    /// Segment and block of each batch, in a compact array.
    positions: Vec<(SegmentNo, u32)>,
    records: Vec<Recovered>,
    /// The number of live records in each segment.
    live_per_segment: Vec<u32>,
}

impl Merge<'_> {
    fn emit_data(&mut self, record: &DataRecord) {
        let DataRecord { address, epoch, checksum, at } = *record;
        let (segment, offset) = self.positions[at.batch_index as usize];
        let position = Position {
            segment,
            index: offset + 1 + u32::from(at.data_records_before),
            checksum,
            expiries: 0,
            live: true,
        };
        self.emit(Recovered { address, epoch, position, content: RecoveredContent::Data });
    }

    fn emit_range(&mut self, address: BlockAddress, blocks: u64, at: LogPosition) {
        let header = &self.chain.batches[at.batch_index as usize].header;
        let RecordEntry { epoch, kind, .. } = header.records[usize::from(at.record_index)];
        if let RecordKind::Zero { may_unmap } = kind
            && blocks > 0
        {
            let blocks = u32::try_from(blocks).expect("a part of a range is not longer than the range");
            let position =
                Position { segment: header.segment, index: header.offset, checksum: 0, expiries: 0, live: true };
            self.emit(Recovered { address, epoch, position, content: RecoveredContent::Zero { blocks, may_unmap } });
        }
    }

    fn emit(&mut self, recovered: Recovered) {
        self.live_per_segment[recovered.position.segment.index()] += 1;
        self.records.push(recovered);
    }
}

/// Removes the range of `blocks` from `address` on from older ranges.
fn remove_range(ranges: &mut BTreeMap<BlockAddress, RangeRecord>, address: BlockAddress, blocks: u64) {
    let end = BlockAddress { block: address.block.plus(blocks), ..address };
    // At most one range begins before it and overlaps it.
    let before = ranges.range(..address).next_back().map(|(start, range)| (*start, *range));
    if let Some((start, range)) = before
        && start.volume_id == address.volume_id
        && start.block.plus(range.blocks) > address.block
    {
        ranges.insert(start, RangeRecord { blocks: address.block.since(start.block), ..range });
        if start.block.plus(range.blocks) > end.block {
            ranges.insert(end, RangeRecord { blocks: start.block.plus(range.blocks).since(end.block), ..range });
        }
    }
    let inside: Vec<_> = ranges.range(address..end).map(|(start, range)| (*start, *range)).collect();
    for (start, range) in inside {
        ranges.remove(&start);
        if start.block.plus(range.blocks) > end.block {
            ranges.insert(end, RangeRecord { blocks: start.block.plus(range.blocks).since(end.block), ..range });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::batch::BatchHeader;
    use crate::number::{BlockNo, BootEpoch, CommitNo, Sequence, VolumeId};
    use crate::recovery::chain::LogBatch;

    /// A log of these batches in one segment.
    fn chain(batches: Vec<Vec<RecordEntry>>) -> LogChain {
        let (mut log_batches, mut offset) = (Vec::new(), 0);
        for (sequence, records) in (1..).map(Sequence).zip(batches) {
            let header = BatchHeader {
                store: [0; 16],
                boot: BootEpoch(1),
                sequence,
                tail: Sequence(1),
                segment: SegmentNo(0),
                offset,
                first_sequence: Sequence(1),
                previous: 0,
                journal_commit: CommitNo(0),
                records,
            };
            offset += header.blocks();
            log_batches.push(LogBatch::new(header, 0));
        }
        LogChain {
            batches: log_batches,
            tail: Sequence(1),
            next_sequence: Sequence(0),
            segments: 1,
            page_segment_generations: BTreeMap::new(),
            journal_commit: CommitNo(0),
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
                        1 => (1 + below(32 - block), RecordKind::Tombstone),
                        _ => (1, RecordKind::Data { checksum: epoch as u32 }),
                    };
                    let block_state = (kind != RecordKind::Tombstone).then_some((Epoch(epoch), kind));
                    array[volume as usize][block as usize..(block + blocks) as usize].fill(block_state);
                    records.push(RecordEntry {
                        volume_id: VolumeId(volume),
                        block: BlockNo(block),
                        epoch: Epoch(epoch),
                        blocks: blocks as u32,
                        kind,
                    });
                }
                batches.push(records);
            }
            let chain = chain(batches);
            let (newest, live_per_segment) = newest_records(&chain);
            let mut actual = [[None; 32]; 2];
            for recovered in &newest {
                let (blocks, kind) = match recovered.content {
                    RecoveredContent::Zero { blocks, may_unmap } => (blocks, RecordKind::Zero { may_unmap }),
                    RecoveredContent::Data => (1, RecordKind::Data { checksum: recovered.position.checksum }),
                };
                let range = recovered.address.block.0 as usize..recovered.address.block.0 as usize + blocks as usize;
                let block_states = &mut actual[recovered.address.volume_id.0 as usize][range];
                assert!(block_states.iter().all(Option::is_none), "recovered records do not overlap");
                block_states.fill(Some((recovered.epoch, kind)));
                if recovered.content == RecoveredContent::Data {
                    let mut headers = chain.batches.iter().map(|batch| &batch.header);
                    let named = headers.any(|header| {
                        header.data().any(|(record, index, _)| {
                            (record.epoch, index) == (recovered.epoch, recovered.position.index)
                        })
                    });
                    assert!(named, "the header names the block's position");
                }
            }
            assert_eq!(actual, array);
            assert!(newest.is_sorted_by_key(|record| record.address));
            assert_eq!(live_per_segment, [newest.len() as u32]);
        }
    }
}
