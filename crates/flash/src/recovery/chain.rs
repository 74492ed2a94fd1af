//! Reads the log as a chain of batches: from the tail on, each batch holds the checksum of the batch before it.
//!
//! A batch with a successor was durable on every member in service when the successor was written. So an intact header
//! on one mirror is enough; bad copies on the other mirror are left to the scrub. The last batch is valid only if each
//! of its blocks is intact on some mirror. If the next batch may be at two positions, the one with the later boot epoch
//! is valid. That opening found that the chain ended before the other batch.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};

use seam::{BLOCK_BYTES, Block, BlockMut, Disk, Piece, Seam};

use super::newest_records::LogRecords;
use crate::device::{Device, Durability, block_offset, raw};
use crate::error::StoreError;
use crate::format::batch::{BatchHeader, data_seed};
use crate::format::page::PageSegmentHeader;
use crate::format::summary::{SummaryHead, batch_blocks, summary_blocks};
use crate::format::superblock::Superblock;
use crate::format::{Raw, newer_metadata};
use crate::membership::MemberFailure;
use crate::number::{BootEpoch, CommitNo, MemberSegment, SegmentNo, Sequence};
use crate::sabotage::Sabotage;
use task_sync::{BoxFuture, join};

/// Blocks per read while the rest of a segment is searched.
const SEARCH_BLOCKS: u32 = 32;

/// Segments that are read concurrently.
const CONCURRENT_SEGMENTS_MAX: usize = 64;

/// Maximum number of attempts to read a block that was intact just before.
const COPY_ATTEMPTS_MAX: usize = 8;

/// A batch of the log: its header without the records.
pub struct LogBatch {
    /// Its sequence number.
    pub sequence: Sequence,
    /// The boot epoch in which it was written.
    pub boot_epoch: BootEpoch,
    /// The segment's generation.
    pub first_sequence: Sequence,
    /// The segment that holds it.
    pub segment: SegmentNo,
    /// Blocks from the segment's start to the header.
    pub offset_blocks: u32,
    /// Its blocks, header included.
    pub block_count: u32,
    /// The header's checksum.
    pub checksum: u32,
}

/// A batch with its records, as it was read.
struct ReadBatch {
    header: BatchHeader,
    checksum: u32,
    /// Bad copies, as pairs of device index and block of the batch (0 is the header).
    bad_copies: Vec<(usize, u32)>,
}

impl ReadBatch {
    /// A batch without known bad copies.
    fn new(header: BatchHeader, checksum: u32) -> ReadBatch {
        ReadBatch { header, checksum, bad_copies: Vec::new() }
    }

    /// Records the devices, by index, that do not have this header.
    fn record_bad_headers(&mut self, headers: &[Option<(BatchHeader, u32)>]) {
        let lacks = |found: &Option<(BatchHeader, u32)>| found.as_ref().is_none_or(|(_, sum)| *sum != self.checksum);
        self.bad_copies =
            headers.iter().enumerate().filter(|(_, found)| lacks(found)).map(|(device, _)| (device, 0)).collect();
    }
}

/// The log as recovery has read it.
pub struct LogChain {
    /// Its batches, oldest first.
    pub batches: Vec<LogBatch>,
    /// The records of the batches.
    pub records: LogRecords,
    /// The batches with bad copies.
    incomplete_batches: Vec<ReadBatch>,
    /// Batches with a lower sequence number are dead.
    pub tail: Sequence,
    /// Sequence number of the next batch.
    pub next_sequence: Sequence,
    /// Number of segments for the log.
    pub log_segment_count: u32,
    /// The generation of each segment that holds pages, by member and number.
    pub page_segment_generations: BTreeMap<MemberSegment, u64>,
    /// The last commit of the map journal that is known to be durable (R9, docs/rules.md).
    pub journal_commit: CommitNo,
}

impl LogChain {
    /// A log without batches.
    pub fn new(tail: Sequence, log_segment_count: u32) -> LogChain {
        LogChain {
            batches: Vec::new(),
            records: LogRecords::default(),
            incomplete_batches: Vec::new(),
            tail,
            next_sequence: tail,
            log_segment_count,
            page_segment_generations: BTreeMap::new(),
            journal_commit: CommitNo(0),
        }
    }

    /// Adds the next batch.
    pub fn add(&mut self, header: &BatchHeader, checksum: u32) {
        let BatchHeader { sequence, boot_epoch, first_sequence, segment, offset_blocks: offset, .. } = *header;
        let blocks = header.block_count();
        self.batches.push(LogBatch {
            sequence,
            boot_epoch,
            first_sequence,
            segment,
            offset_blocks: offset,
            block_count: blocks,
            checksum,
        });
        self.records.add(header);
        self.next_sequence = sequence.next();
    }

    /// Adds the next batch, and notes its bad copies for [`repair`].
    fn add_read(&mut self, batch: ReadBatch) {
        self.add(&batch.header, batch.checksum);
        if !batch.bad_copies.is_empty() {
            self.incomplete_batches.push(batch);
        }
    }
}

/// The first batch of a segment.
struct SegmentHead {
    segment: SegmentNo,
    boot_epoch: BootEpoch,
    previous_checksum: u32,
}

/// The header at a position as read from each device, with its checksum. If no device could be read, also the last
/// device's error.
type Headers = (Vec<Option<(BatchHeader, u32)>>, Option<StoreError>);

/// Reads the log. It caches what it has read ahead.
struct LogReader<'a, S: Seam> {
    seam: &'a S,
    /// Devices that carry the log.
    devices: &'a [Device<S>],
    superblock: &'a Superblock,
    /// The first batch of each segment, by its sequence number. Different boot epochs may have used the same number.
    heads: BTreeMap<Sequence, Vec<SegmentHead>>,
    /// Segments whose first batch has a lower sequence number were read ahead.
    prefetched_until: Sequence,
    /// Headers that were read ahead, each from one device, or taken from a summary, by segment and in order.
    prefetched: RefCell<BTreeMap<SegmentNo, VecDeque<(BatchHeader, u32)>>>,
    /// The error of a segment whose first block is unreadable on all devices.
    segment_error: Option<StoreError>,
    /// The generation of each segment that holds pages.
    page_segment_generations: RefCell<BTreeMap<MemberSegment, u64>>,
    /// The last commit of the map journal that any header or superblock names as durable.
    journal_commit: Cell<CommitNo>,
    /// The error of a device with metadata of a later format.
    newer_format_error: RefCell<Option<StoreError>>,
}

/// Reads the log on `devices` from its tail to its end.
pub async fn read_log<S: Seam>(
    seam: &S,
    devices: &[Device<S>],
    superblock: &Superblock,
    sabotage: Sabotage,
) -> Result<LogChain, StoreError> {
    let mut reader = LogReader {
        seam,
        devices,
        superblock,
        heads: BTreeMap::new(),
        prefetched_until: Sequence(0),
        prefetched: RefCell::default(),
        segment_error: None,
        page_segment_generations: RefCell::default(),
        journal_commit: Cell::new(superblock.journal_commit),
        newer_format_error: RefCell::default(),
    };
    let tail = reader.find_heads().await;
    reader.prefetched_until = tail;
    let (mut chain, mut last) = (LogChain::new(tail, superblock.log_segment_count), None::<ReadBatch>);
    loop {
        let sequence = last.as_ref().map_or(tail, |last| last.header.sequence.next());
        if sequence >= reader.prefetched_until {
            reader.prefetch_headers().await;
        }
        let Some(batch) = reader.read_next_batch(last.as_ref(), sequence).await? else { break };
        if let Some(previous) = last.replace(batch) {
            chain.add_read(previous);
        }
    }
    if let Some(error) = reader.newer_format_error.take().or(reader.segment_error.take()) {
        return Err(error);
    }
    if let Some(mut last) = last
        && (reader.has_intact_data(&mut last).await? || sabotage.is(Sabotage::ReplayTorn))
    {
        chain.add_read(last);
    }
    reader.check_end(&chain).await?;
    chain.page_segment_generations = reader.page_segment_generations.take();
    chain.journal_commit = reader.journal_commit.get();
    Ok(chain)
}

impl<S: Seam> LogReader<'_, S> {
    /// The number of blocks of a segment.
    fn segment_blocks(&self) -> u32 {
        self.superblock.segment_blocks()
    }

    /// Reads the header at a position from all devices.
    async fn read_headers(&self, segment: SegmentNo, offset_blocks: u32) -> Headers {
        let at = block_offset(self.superblock.segment_bytes, segment, offset_blocks);
        let (mut headers, mut error, mut any_read) = (Vec::new(), None, false);
        for device in self.devices {
            match device.read_raw(self.seam, at).await {
                Ok(raw) => {
                    any_read = true;
                    self.record_newer_format(device, &raw);
                    headers.push(self.decode(&raw, segment, offset_blocks));
                }
                Err(reason) => {
                    error = Some(device.wrap_error(reason));
                    headers.push(None);
                }
            }
        }
        (headers, error.filter(|_| !any_read))
    }

    /// Records an error for metadata of a later format where a header is expected. Otherwise the log would seem to end
    /// there and would be overwritten. The superblock's version should have been raised first.
    fn record_newer_format(&self, device: &Device<S>, raw: &Raw) {
        if let Some(newer) = newer_metadata(raw, self.superblock.store) {
            *self.newer_format_error.borrow_mut() = Some(StoreError::Newer { device: device.name(), newer });
        }
    }

    /// Decodes the header in a block of the log. Also notes the generation of a page segment, and the last durable
    /// commit of the map journal that the block names.
    fn decode(&self, raw: &Raw, segment: SegmentNo, offset_blocks: u32) -> Option<(BatchHeader, u32)> {
        let Some((header, _)) = BatchHeader::decode(raw) else {
            let page = PageSegmentHeader::decode(raw).filter(|page| offset_blocks == 0 && page.segment == segment);
            if let Some(page) = page.filter(|page| page.store == self.superblock.store) {
                self.page_segment_generations.borrow_mut().insert((page.member, segment), page.segment_generation);
            }
            return None;
        };
        if header.store == self.superblock.store {
            self.journal_commit.set(self.journal_commit.get().max(header.journal_commit));
        }
        decode(self.superblock, raw, segment, offset_blocks)
    }

    /// Reads the first block of every segment. Returns the newest tail of any superblock or header. The tail in
    /// a header is correct even if the batch is not valid.
    async fn find_heads(&mut self) -> Sequence {
        let mut tail = self.superblock.tail;
        let segments: Vec<_> = SegmentNo::each(&self.superblock.log_segments()).collect();
        for segments in segments.chunks(CONCURRENT_SEGMENTS_MAX) {
            let reads = segments.iter().map(|segment| {
                let read: BoxFuture<'_, Headers> = Box::pin(self.read_headers(*segment, 0));
                read
            });
            for (segment, (headers, error)) in segments.iter().zip(join(reads.collect()).await) {
                if let Some(error) = error {
                    self.segment_error = Some(error);
                }
                for (header, _) in headers.into_iter().flatten() {
                    tail = tail.max(header.tail);
                    let heads = self.heads.entry(header.sequence).or_default();
                    let known =
                        heads.iter().any(|head| head.segment == *segment && head.boot_epoch == header.boot_epoch);
                    if !known {
                        heads.push(SegmentHead {
                            segment: *segment,
                            boot_epoch: header.boot_epoch,
                            previous_checksum: header.previous_checksum,
                        });
                    }
                }
            }
        }
        tail
    }

    /// Reads ahead the headers of the next segments, many segments at once. Within a segment the headers are read one
    /// after another, because each header locates the next. Reading ahead the whole log would take much memory.
    async fn prefetch_headers(&mut self) {
        self.prefetched.borrow_mut().retain(|_, headers| !headers.is_empty());
        let mut heads = self.heads.range(self.prefetched_until..);
        let group = heads.by_ref().take(CONCURRENT_SEGMENTS_MAX);
        let group: Vec<_> = group.flat_map(|(first, heads)| heads.iter().map(|head| (*first, head))).collect();
        let prefetched_until = heads.next().map_or(Sequence(u64::MAX), |(first, _)| *first);
        let heads = RefCell::new(group.into_iter());
        let tasks = (0..CONCURRENT_SEGMENTS_MAX).map(|_| {
            let task: BoxFuture<'_, ()> = Box::pin(async {
                loop {
                    let Some((first, head)) = heads.borrow_mut().next() else { return };
                    self.prefetch_segment(first, head).await;
                }
            });
            task
        });
        join(tasks.collect()).await;
        self.prefetched_until = prefetched_until;
    }

    /// Reads ahead the headers of one segment: from its summary if it has one, otherwise one by one.
    async fn prefetch_segment(&self, first: Sequence, head: &SegmentHead) {
        let mut headers = VecDeque::from(self.read_summary(first, head).await.unwrap_or_default());
        let mut offset = headers.back().map_or(0, |(header, _)| header.offset_blocks + header.block_count());
        let is_sealed = offset > 0;
        let fits =
            |(header, _): &(BatchHeader, u32)| (header.boot_epoch, header.first_sequence) == (head.boot_epoch, first);
        while offset < self.segment_blocks() && !is_sealed {
            if let Some(header) = self.read_header_from_one_device(head.segment, offset).await.filter(fits) {
                offset += header.0.block_count();
                headers.push_back(header);
                continue;
            }
            // The copy is bad. Without a header here, all devices are read again, and a device that lacks the header
            // gets it.
            let (copies, _) = self.read_headers(head.segment, offset).await;
            let Some((header, _)) = copies.into_iter().flatten().find(fits) else { break };
            offset += header.block_count();
        }
        self.prefetched.borrow_mut().insert(head.segment, headers);
    }

    /// The headers of a segment by its summary. `None` if no device has an intact one of this generation.
    async fn read_summary(&self, first: Sequence, head: &SegmentHead) -> Option<Vec<(BatchHeader, u32)>> {
        if summary_blocks(self.segment_blocks()) == 0 {
            return None;
        }
        let preferred = head.segment.index() % self.devices.len();
        let devices = self.devices[preferred..].iter().chain(&self.devices[..preferred]);
        for device in devices {
            if let Some(headers) = self.read_summary_of(device, first, head).await {
                return Some(headers);
            }
        }
        None
    }

    /// The headers of a segment by its summary on one device.
    async fn read_summary_of(
        &self,
        device: &Device<S>,
        first: Sequence,
        head: &SegmentHead,
    ) -> Option<Vec<(BatchHeader, u32)>> {
        let index = batch_blocks(self.segment_blocks());
        let at = |index| block_offset(self.superblock.segment_bytes, head.segment, index);
        let raw_head = device.read_raw(self.seam, at(index)).await.ok()?;
        let summary = SummaryHead::decode(&raw_head, self.superblock.store, head.segment, head.boot_epoch, first)?;
        let (mut further, mut index) = (Vec::new(), index + 1);
        while further.len() < summary.further_blocks() {
            let count = (summary.further_blocks() - further.len()).min(SEARCH_BLOCKS as usize);
            // Do not wait for buffers: tasks that each hold some and wait for more would deadlock.
            let buffers: Vec<_> = (0..count).map_while(|_| self.seam.alloc()).collect();
            if buffers.len() < count {
                return None;
            }
            let (result, pieces) = device.disk.read(at(index), buffers.into_iter().map(Piece::whole).collect()).await;
            result.ok()?;
            further.extend(pieces.into_iter().map(|piece| raw(&piece.block.freeze())));
            index += count as u32;
        }
        let headers = summary.batches(&further)?;
        let is_valid = |(header, _): &(BatchHeader, u32)| {
            header.offset_blocks + header.block_count() <= self.segment_blocks()
                && !is_superseded(self.superblock, header)
        };
        if !headers.iter().all(is_valid) {
            return None;
        }
        let commits = headers.iter().map(|(header, _)| header.journal_commit);
        self.journal_commit.set(commits.fold(self.journal_commit.get(), CommitNo::max));
        Some(headers)
    }

    /// Reads the header at a position from one device. The segments are spread over the devices, to use all of them.
    async fn read_header_from_one_device(&self, segment: SegmentNo, offset_blocks: u32) -> Option<(BatchHeader, u32)> {
        let device = &self.devices[segment.index() % self.devices.len()];
        let raw = device
            .read_raw(self.seam, block_offset(self.superblock.segment_bytes, segment, offset_blocks))
            .await
            .ok()?;
        self.record_newer_format(device, &raw);
        self.decode(&raw, segment, offset_blocks)
    }

    /// The batch with this sequence number, which follows `last` or is the one at the tail.
    async fn read_next_batch(
        &self,
        last: Option<&ReadBatch>,
        sequence: Sequence,
    ) -> Result<Option<ReadBatch>, StoreError> {
        let follows = |boot_epoch: BootEpoch, previous_checksum: u32| {
            last.is_none_or(|last| previous_checksum == last.checksum && boot_epoch >= last.header.boot_epoch)
        };
        let heads = self.heads.get(&sequence).into_iter().flatten();
        let head =
            heads.filter(|head| follows(head.boot_epoch, head.previous_checksum)).max_by_key(|head| head.boot_epoch);
        // The first batch of a later boot takes precedence over a batch that follows the last one in its own segment.
        let next_in_segment = last.and_then(|last| {
            let offset = last.header.offset_blocks + last.header.block_count();
            (offset < self.segment_blocks()).then_some((
                last.header.segment,
                offset,
                last.header.boot_epoch,
                last.header.first_sequence,
            ))
        });
        let mut candidates = Vec::new();
        candidates.extend(head.map(|head| (head.segment, 0, head.boot_epoch, sequence)));
        if head.is_none_or(|head| last.is_some_and(|last| head.boot_epoch == last.header.boot_epoch)) {
            candidates.extend(next_in_segment);
        }
        for (segment, offset, boot_epoch, first) in candidates {
            let fits = |(header, _): &(BatchHeader, u32)| {
                (header.sequence, header.boot_epoch, header.first_sequence) == (sequence, boot_epoch, first)
                    && follows(boot_epoch, header.previous_checksum)
            };
            if let Some((header, checksum)) = self.take_prefetched(segment, offset).filter(fits) {
                return Ok(Some(ReadBatch::new(header, checksum)));
            }
            let (headers, error) = self.read_headers(segment, offset).await;
            let good = headers.iter().flatten().find(|header| fits(header)).cloned();
            match (good, error) {
                (Some((header, checksum)), _) => {
                    let mut batch = ReadBatch::new(header, checksum);
                    batch.record_bad_headers(&headers);
                    return Ok(Some(batch));
                }
                (None, Some(error)) => return Err(error),
                (None, None) => {}
            }
        }
        Ok(None)
    }

    /// The header at this position, if it was read ahead.
    fn take_prefetched(&self, segment: SegmentNo, offset_blocks: u32) -> Option<(BatchHeader, u32)> {
        self.prefetched
            .borrow_mut()
            .get_mut(&segment)?
            .pop_front_if(|(header, _)| header.offset_blocks == offset_blocks)
    }

    /// True when every data block of the batch is intact on some device. Records the devices that lack a data block or
    /// the header.
    async fn has_intact_data(&self, batch: &mut ReadBatch) -> Result<bool, StoreError> {
        let (headers, _) = self.read_headers(batch.header.segment, batch.header.offset_blocks).await;
        batch.record_bad_headers(&headers);
        let ReadBatch { header, bad_copies, .. } = batch;
        for (record, index, checksum) in header.data_records() {
            let seed = data_seed(record.volume_id, record.block, header.boot_epoch, header.first_sequence);
            let at = block_offset(self.superblock.segment_bytes, header.segment, index);
            let (mut has_copy, mut error, mut any_read) = (false, None, false);
            for (device_index, device) in self.devices.iter().enumerate() {
                let is_intact = match device.read_blocks(self.seam, at, 1).await {
                    Ok(blocks) => {
                        any_read = true;
                        blocks[0].checksum(seed) == checksum
                    }
                    Err(reason) => {
                        error = Some(device.wrap_error(reason));
                        false
                    }
                };
                has_copy |= is_intact;
                if !is_intact {
                    bad_copies.push((device_index, index - header.offset_blocks));
                }
            }
            if !has_copy {
                // An unreadable batch may have been acknowledged, so recovery must not drop it.
                return match error.filter(|_| !any_read) {
                    Some(error) => Err(error),
                    None => Ok(false),
                };
            }
        }
        Ok(true)
    }

    /// Refuses a log that continues after its end: a later batch proves that the missing one was acknowledged.
    async fn check_end(&self, chain: &LogChain) -> Result<(), StoreError> {
        let next_sequence = chain.next_sequence;
        let damaged = Err(StoreError::Damaged { sequence: next_sequence });
        if self.heads.range(next_sequence.next()..).next().is_some() {
            return damaged;
        }
        let Some(last) = chain.batches.last() else { return Ok(()) };
        let (segment, mut offset) = (last.segment, last.offset_blocks + last.block_count);
        while offset < self.segment_blocks() {
            let count = SEARCH_BLOCKS.min(self.segment_blocks() - offset);
            for device in self.devices {
                let at = block_offset(self.superblock.segment_bytes, segment, offset);
                // An unreadable device is ignored.
                let blocks = device.read_blocks(self.seam, at, count as usize).await.unwrap_or_default();
                let is_later_batch = |(block, offset): (&S::Block, u32)| {
                    self.decode(&raw(block), segment, offset).is_some_and(|(header, _)| header.sequence > next_sequence)
                };
                if blocks.iter().zip(offset..).any(is_later_batch) {
                    return damaged;
                }
            }
            offset += count;
        }
        Ok(())
    }
}

/// Decodes the header in a block of the log. Returns it with its checksum if it is valid.
pub fn decode(
    superblock: &Superblock,
    raw: &Raw,
    segment: SegmentNo,
    offset_blocks: u32,
) -> Option<(BatchHeader, u32)> {
    let (header, checksum) = BatchHeader::decode(raw)?;
    let blocks = (superblock.segment_bytes / BLOCK_BYTES as u64) as u32;
    let is_valid = header.store == superblock.store
        && (header.segment, header.offset_blocks) == (segment, offset_blocks)
        && header.block_count() <= blocks - offset_blocks;
    (is_valid && !is_superseded(superblock, &header)).then_some((header, checksum))
}

/// True if an earlier opening found that the log ended before this batch, and continued from there. The batch stays
/// invalid, even if a device that was unreadable then returns it now.
fn is_superseded(superblock: &Superblock, header: &BatchHeader) -> bool {
    header.boot_epoch < superblock.boot_epoch && header.sequence >= superblock.first_sequence
}

/// Copies to each device the blocks of the log that it lacks, and flushes. Returns the devices that failed.
pub async fn repair<S: Seam>(
    seam: &S,
    devices: &[Device<S>],
    chain: &LogChain,
    segment_bytes: u64,
) -> Result<Vec<MemberFailure>, StoreError> {
    let mut failures: Vec<MemberFailure> = Vec::new();
    for batch in &chain.incomplete_batches {
        for (device_index, index) in &batch.bad_copies {
            let device = &devices[*device_index];
            if failures.iter().any(|(member, _)| *member == device.member) {
                continue;
            }
            let at = block_offset(segment_bytes, batch.header.segment, batch.header.offset_blocks + index);
            let block = read_good_copy(seam, devices, batch, *index, at).await?;
            if let Err(error) = device.write_with_retry(at, vec![block], Durability::Flushed).await {
                failures.push((device.member, error));
            }
        }
    }
    Ok(failures)
}

/// An intact copy of a block of a batch. It is checked again, because it may become the only good copy.
async fn read_good_copy<S: Seam>(
    seam: &S,
    devices: &[Device<S>],
    batch: &ReadBatch,
    block_index: u32,
    offset_bytes: u64,
) -> Result<S::Block, StoreError> {
    let header = &batch.header;
    let lacks = |device_index: usize| batch.bad_copies.contains(&(device_index, block_index));
    for (_, device) in
        devices.iter().enumerate().filter(|(device_index, _)| !lacks(*device_index)).cycle().take(COPY_ATTEMPTS_MAX)
    {
        let Ok(mut blocks) = device.read_blocks(seam, offset_bytes, 1).await else { continue };
        let block = blocks.pop().expect("one block was read");
        let good =
            match header.data_records().find(|(_, data_index, _)| *data_index == header.offset_blocks + block_index) {
                Some((record, _, checksum)) => {
                    block.checksum(data_seed(record.volume_id, record.block, header.boot_epoch, header.first_sequence))
                        == checksum
                }
                None => BatchHeader::decode(&raw(&block)).is_some_and(|(_, checksum)| checksum == batch.checksum),
            };
        if good {
            return Ok(block);
        }
    }
    Err(StoreError::Damaged { sequence: header.sequence })
}
