//! Finds the newest record of each block: data, zeroes, or a tombstone, which leaves no live record.
//!
//! Nearly all records are data of one block. These are sorted by block, and of each block the one with the last
//! position in the log is kept. Records of ranges go into a tree, where a newer range removes the overlapped part of
//! older ones. Then a merge passes over both in address order. Recovery must be fast: a log of many gigabytes has
//! millions of records, and clients are served only afterwards. Memory that is touched for the first time costs much of
//! the time, so the records of data are collected, sorted and merged in the array that recovery returns.

use std::collections::BTreeMap;

use crate::format::batch::{BatchHeader, RecordKind};
use crate::number::{BlockNo, Epoch, SegmentNo};
use crate::record::{BlockAddress, Position, RecoveredContent, RecoveredRecord};

/// A record's position in the log: its batch, its index there, and the number of data records before it in the batch.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct LogPosition {
    batch_index: u32,
    record_index: u8,
    data_records_before: u8,
}

/// A record of data before the merge: [`RecoveredRecord::position`] holds a packed [`LogPosition`] and the checksum of
/// the data. It has the layout of a [`RecoveredRecord`], so that the merge converts the array in place.
#[derive(Clone, Copy)]
#[repr(transparent)]
struct DataRecord(RecoveredRecord);

impl DataRecord {
    fn new(address: BlockAddress, epoch: Epoch, at: LogPosition, checksum: u32) -> DataRecord {
        let index = u32::from(at.record_index) << 8 | u32::from(at.data_records_before);
        let position =
            Position { segment: SegmentNo(at.batch_index), block_index: index, checksum, expiries: 0, is_live: true };
        DataRecord(RecoveredRecord { address, epoch, position, content: RecoveredContent::Data })
    }

    /// Unpacks the position in the log.
    fn log_position(&self) -> LogPosition {
        let Position { segment: SegmentNo(batch_index), block_index: index, .. } = self.0.position;
        LogPosition { batch_index, record_index: (index >> 8) as u8, data_records_before: index as u8 }
    }

    /// The address as one number, which compares faster than two fields.
    fn sort_key(&self) -> u128 {
        let BlockAddress { volume_id, block } = self.0.address;
        u128::from(volume_id.0) << 64 | u128::from(block.0)
    }

    /// The record with its position on the devices. `batches`: segment and block of each batch.
    fn into_recovered(self, batches: &[(SegmentNo, u32)]) -> RecoveredRecord {
        let at = self.log_position();
        let (segment, offset) = batches[at.batch_index as usize];
        let block_index = offset + 1 + u32::from(at.data_records_before);
        RecoveredRecord { position: Position { segment, block_index, ..self.0.position }, ..self.0 }
    }
}

/// The range of a record of zeroes or a tombstone. Its first block is the key.
#[derive(Clone, Copy)]
struct RangeRecord {
    block_count: u64,
    epoch: Epoch,
    kind: RangeKind,
    position: LogPosition,
}

/// The kind of a range's record.
#[derive(Clone, Copy)]
enum RangeKind {
    /// The range reads as zeroes; the backing may release its space if `may_unmap`.
    Zeroes { may_unmap: bool },
    /// The range has no live record.
    Tombstone,
}

impl RangeRecord {
    /// The block past the range, which begins at `start`.
    fn end(&self, start: BlockNo) -> BlockNo {
        start.plus(self.block_count)
    }

    /// The parts before and from block `at` on, which lies in the range or at its end. The range begins at `start`.
    fn split_at(self, start: BlockNo, at: BlockNo) -> (RangeRecord, RangeRecord) {
        let before = RangeRecord { block_count: at.distance_from(start), ..self };
        (before, RangeRecord { block_count: self.end(start).distance_from(at), ..self })
    }
}

/// The records of a log, collected in its order.
#[derive(Default)]
pub struct LogRecords {
    /// All records of data.
    data: Vec<DataRecord>,
    /// The newest records of ranges, cut so that they do not overlap.
    ranges: BTreeMap<BlockAddress, RangeRecord>,
    /// Segment and block of each batch, in a compact array: a look-up for each record misses the processor's caches.
    batches: Vec<(SegmentNo, u32)>,
}

impl LogRecords {
    /// Adds the records of the next batch.
    pub fn add(&mut self, header: &BatchHeader) {
        let batch_index = u32::try_from(self.batches.len()).expect("each batch takes a block of a device");
        self.batches.push((header.segment, header.offset_blocks));
        let mut data_records_before = 0;
        for (record_index, record) in (0..).zip(&header.records) {
            let (address, epoch) = (BlockAddress { volume_id: record.volume_id, block: record.block }, record.epoch);
            let at = LogPosition { batch_index, record_index, data_records_before };
            let kind = match record.kind {
                RecordKind::Data { checksum } => {
                    data_records_before += 1;
                    self.data.push(DataRecord::new(address, epoch, at, checksum));
                    continue;
                }
                RecordKind::Zero { may_unmap } => RangeKind::Zeroes { may_unmap },
                RecordKind::Tombstone => RangeKind::Tombstone,
            };
            let blocks = u64::from(record.block_count);
            remove_range(&mut self.ranges, address, blocks);
            self.ranges.insert(address, RangeRecord { block_count: blocks, epoch, kind, position: at });
        }
    }

    /// The live records in the order of their addresses, and the number of live records in each of the `segments`.
    pub fn into_newest(self, segments: u32) -> (Vec<RecoveredRecord>, Vec<u32>) {
        let LogRecords { mut data, ranges, batches } = self;
        data.sort_unstable_by_key(DataRecord::sort_key);
        data.dedup_by(|other, newest| {
            let is_same_block = other.0.address == newest.0.address;
            if is_same_block && other.log_position() > newest.log_position() {
                *newest = *other;
            }
            is_same_block
        });
        let mut zeroes = ZeroRanges { batches: &batches, records: Vec::new() };
        let mut ranges = ranges.into_iter();
        let mut next_range = ranges.next();
        let merged = data.into_iter().filter_map(|record| {
            let (address, at) = (record.0.address, record.log_position());
            // Emit the ranges before the block. A range that covers the block is split around it if the block's record
            // is newer; otherwise it hides the record.
            while let Some((start, range)) = next_range.filter(|(start, _)| *start <= address) {
                if start.volume_id == address.volume_id && range.end(start.block) > address.block {
                    if range.position > at {
                        return None;
                    }
                    let (before, _) = range.split_at(start.block, address.block);
                    zeroes.emit(start, before);
                    let after_block = address.block.next();
                    let (_, after) = range.split_at(start.block, after_block);
                    next_range = Some((BlockAddress { block: after_block, ..address }, after));
                    break;
                }
                zeroes.emit(start, range);
                next_range = ranges.next();
            }
            Some(record.into_recovered(&batches))
        });
        // The standard library collects this iterator into the array that it consumes.
        let mut records: Vec<RecoveredRecord> = merged.collect();
        next_range.into_iter().chain(ranges).for_each(|(start, range)| zeroes.emit(start, range));
        if records.is_empty() {
            records = zeroes.records;
        } else if !zeroes.records.is_empty() {
            // Both parts are sorted; a stable sort merges them.
            records.append(&mut zeroes.records);
            records.sort_by_key(|record| record.address);
        }
        records.shrink_to_fit();
        let mut live_per_segment = vec![0; segments as usize];
        records.iter().for_each(|record| live_per_segment[record.position.segment.index()] += 1);
        (records, live_per_segment)
    }
}

/// The ranges of zeroes that recovery returns.
struct ZeroRanges<'a> {
    batches: &'a [(SegmentNo, u32)],
    records: Vec<RecoveredRecord>,
}

impl ZeroRanges<'_> {
    /// Emits the record of a part of a range that no newer record replaced. Tombstones and empty parts leave no record.
    fn emit(&mut self, address: BlockAddress, part: RangeRecord) {
        let RangeRecord { block_count: blocks, epoch, kind, position: at } = part;
        if let RangeKind::Zeroes { may_unmap } = kind
            && blocks > 0
        {
            let (segment, offset) = self.batches[at.batch_index as usize];
            let blocks = u32::try_from(blocks).expect("a part of a range is not longer than the range");
            let position = Position { segment, block_index: offset, checksum: 0, expiries: 0, is_live: true };
            self.records.push(RecoveredRecord {
                address,
                epoch,
                position,
                content: RecoveredContent::Zero { blocks, may_unmap },
            });
        }
    }
}

/// Removes the range of `blocks` from `address` on from older ranges.
fn remove_range(ranges: &mut BTreeMap<BlockAddress, RangeRecord>, address: BlockAddress, blocks: u64) {
    let end = BlockAddress { block: address.block.plus(blocks), ..address };
    // At most one range begins before it and overlaps it.
    let before = ranges.range(..address).next_back().map(|(start, range)| (*start, *range));
    if let Some((start, range)) = before
        && start.volume_id == address.volume_id
        && range.end(start.block) > address.block
    {
        ranges.insert(start, range.split_at(start.block, address.block).0);
        if range.end(start.block) > end.block {
            ranges.insert(end, range.split_at(start.block, end.block).1);
        }
    }
    let inside: Vec<_> = ranges.range(address..end).map(|(start, range)| (*start, *range)).collect();
    for (start, range) in inside {
        ranges.remove(&start);
        if range.end(start.block) > end.block {
            ranges.insert(end, range.split_at(start.block, end.block).1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::batch::{BLOCKS_END, RECORDS_MAX, RecordEntry};
    use crate::number::{BootEpoch, CommitNo, Sequence, VolumeId};
    use crate::recovery::chain::LogChain;

    /// The headers of a log of these batches in one segment.
    fn headers(batches: Vec<Vec<RecordEntry>>) -> Vec<BatchHeader> {
        let (mut headers, mut offset) = (Vec::new(), 0);
        for (sequence, records) in (1..).map(Sequence).zip(batches) {
            let header = BatchHeader {
                store: [0; 16],
                boot_epoch: BootEpoch(1),
                sequence,
                tail: Sequence(1),
                segment: SegmentNo(0),
                offset_blocks: offset,
                first_sequence: Sequence(1),
                previous_checksum: 0,
                journal_commit: CommitNo(0),
                records,
            };
            offset += header.block_count();
            headers.push(header);
        }
        headers
    }

    /// The live records of a log with these headers, and their number in each segment.
    fn newest(headers: &[BatchHeader]) -> (Vec<RecoveredRecord>, Vec<u32>) {
        let mut chain = LogChain::new(Sequence(1), 1);
        headers.iter().for_each(|header| chain.add(header, 0));
        chain.records.into_newest(chain.log_segment_count)
    }

    #[test]
    fn merge_converts_the_collected_records_in_place() {
        let record = |block| RecordEntry {
            volume_id: VolumeId(1),
            block: BlockNo(block),
            epoch: Epoch(1),
            block_count: 1,
            kind: RecordKind::Data { checksum: 7 },
        };
        let mut records = LogRecords::default();
        headers(vec![(0..20).map(record).collect()]).iter().for_each(|header| records.add(header));
        records.data.shrink_to_fit();
        let collected_at = records.data.as_ptr().addr();
        let (newest, _) = records.into_newest(1);
        assert_eq!((newest.len(), newest.as_ptr().addr()), (20, collected_at));
    }

    #[test]
    fn last_record_of_each_address_is_kept_up_to_the_highest_numbers() {
        let mut state = 7_u64;
        let mut below = |bound: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 13) % bound
        };
        let volumes = [0, 1, (1 << 16) - 1, 1 << 16, (1 << 16) + 1, 1 << 60, u64::MAX];
        for spread in [1, 20, 1 << 13] {
            let mut batches = Vec::new();
            for sequence in 0..200 {
                let mut records = Vec::new();
                for index in 0..1 + below(RECORDS_MAX as u64) {
                    let first = [0, (1 << 48) - spread / 2, BLOCKS_END.0 - spread][below(3) as usize];
                    let kind = match below(20) {
                        0 => RecordKind::Tombstone,
                        1 => RecordKind::Zero { may_unmap: below(2) == 0 },
                        _ => RecordKind::Data { checksum: below(1 << 32) as u32 },
                    };
                    let volume_id = VolumeId(volumes[below(volumes.len() as u64) as usize]);
                    let (block, epoch) = (BlockNo(first + below(spread)), Epoch(sequence * 100 + index));
                    records.push(RecordEntry { volume_id, block, epoch, block_count: 1, kind });
                }
                batches.push(records);
            }
            let headers = headers(batches);
            let mut expected = BTreeMap::new();
            for header in &headers {
                let mut next_index = header.offset_blocks + 1;
                for record in &header.records {
                    let address = BlockAddress { volume_id: record.volume_id, block: record.block };
                    let (index, checksum, content) = match record.kind {
                        RecordKind::Data { checksum } => {
                            next_index += 1;
                            (next_index - 1, checksum, RecoveredContent::Data)
                        }
                        RecordKind::Zero { may_unmap } => {
                            (header.offset_blocks, 0, RecoveredContent::Zero { blocks: 1, may_unmap })
                        }
                        RecordKind::Tombstone => {
                            expected.remove(&address);
                            continue;
                        }
                    };
                    let position =
                        Position { segment: header.segment, block_index: index, checksum, expiries: 0, is_live: true };
                    expected.insert(address, RecoveredRecord { address, epoch: record.epoch, position, content });
                }
            }
            let (newest, live_per_segment) = newest(&headers);
            assert_eq!(newest, expected.into_values().collect::<Vec<_>>());
            assert_eq!(live_per_segment, [newest.len() as u32]);
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
                        block_count: blocks as u32,
                        kind,
                    });
                }
                batches.push(records);
            }
            let headers = headers(batches);
            let (newest, live_per_segment) = newest(&headers);
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
                    let named = headers.iter().any(|header| {
                        header.data_records().any(|(record, index, _)| {
                            (record.epoch, index) == (recovered.epoch, recovered.position.block_index)
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
