//! Reads of appended records (R11, docs/rules.md): every block is checked, a bad copy is replaced by its mirror's, and
//! old content is never returned.

use std::rc::Rc;

use seam::{Block, BlockMut, Piece, Seam};

use crate::device::{Device, Durability, block_offset};
use crate::error::StoreError;
use crate::format::batch::data_seed;
use crate::number::SegmentNo;
use crate::record::{BlockAddress, Position};
use crate::sabotage::Sabotage;
use crate::slow_detection::{QueuedRequest, read_measured};
use crate::state::Inner;
use crate::state::latency::RequestWork;
use task_sync::{BoxFuture, join};

/// Keeps a segment from being overwritten during a read.
pub struct SegmentHold<S: Seam> {
    inner: Rc<Inner<S>>,
    segment: SegmentNo,
}

impl<S: Seam> SegmentHold<S> {
    /// Holds a segment until the result is dropped.
    pub fn new(inner: &Rc<Inner<S>>, segment: SegmentNo) -> Self {
        inner.state.borrow_mut().segments.get_mut(segment).reads_in_flight += 1;
        SegmentHold { inner: Rc::clone(inner), segment }
    }
}

impl<S: Seam> Drop for SegmentHold<S> {
    fn drop(&mut self) {
        self.inner.state.borrow_mut().segments.get_mut(self.segment).reads_in_flight -= 1;
    }
}

/// A request to read the block of a record.
pub struct ReadRequest<S: Seam> {
    /// The block.
    pub address: BlockAddress,
    /// Its record's position.
    pub position: Position,
    /// The destination.
    pub buffer: S::BlockMut,
}

/// The index of a request, and the result of its read.
type IndexedResult<S> = (usize, Result<<S as Seam>::Block, StoreError>);

/// The seed of a block's checksum.
pub fn checksum_seed<S: Seam>(inner: &Inner<S>, address: BlockAddress, position: &Position) -> u32 {
    let state = inner.state.borrow();
    let segment = state.segments.get(position.segment);
    data_seed(address.volume_id, address.block, segment.boot_epoch, segment.first_sequence)
}

/// The byte offset of a record on its device.
pub fn byte_offset_of<S: Seam>(inner: &Inner<S>, position: &Position) -> u64 {
    block_offset(inner.state.borrow().superblock.segment_bytes, position.segment, position.block_index)
}

/// The devices in the order in which a read tries them. It depends on the segment: all devices share the load, and
/// neighbouring blocks come from one device.
pub fn read_order<S: Seam>(inner: &Inner<S>, segment: SegmentNo) -> Vec<Device<S>> {
    let mut devices = inner.log_devices();
    if segment.0 % 2 == 1 {
        devices.reverse();
    }
    devices
}

/// Reads one block, from the mirror if the first copy is bad, and repairs bad copies.
pub async fn read<S: Seam>(
    inner: &Rc<Inner<S>>,
    address: BlockAddress,
    position: Position,
    mut buffer: S::BlockMut,
) -> Result<S::Block, StoreError> {
    let hold = SegmentHold::new(inner, position.segment);
    let (seed, at) = (checksum_seed(inner, address, &position), byte_offset_of(inner, &position));
    let mut bad = Vec::new();
    for device in read_order(inner, position.segment) {
        let read = inner.read_from(&device, at, vec![Piece::whole(buffer)]);
        let (result, mut pieces) = read_measured(inner, device.member, at, read).await;
        let block = pieces.pop().expect("a read returns its pieces").block.freeze();
        let skips_check = inner.sabotage.is(Sabotage::SkipChecksum);
        if result.is_ok() && (skips_check || block.checksum(seed) == position.checksum) {
            if !bad.is_empty() {
                inner.seam.spawn(repair(hold, bad, at, block.clone()));
            }
            return Ok(block);
        }
        bad.push(device);
        // No copy is good: record the loss.
        if bad.len() == inner.log_devices().len() {
            inner.state.borrow_mut().lost_blocks.add(address, position);
        }
        buffer = match block.thaw() {
            Ok(buffer) => buffer,
            Err(_) => unreachable!("the block has one owner"),
        };
    }
    Err(StoreError::Lost { volume_id: address.volume_id, block: address.block })
}

/// Requests, each with its index.
pub type IndexedRequests<S> = Vec<(usize, ReadRequest<S>)>;

/// Passes the requests to `read_run` in runs of adjacent blocks, all at once. The records of a run have the same number
/// of expiries, so one check shows whether they have expired. Returns the results, each with its index.
pub async fn read_in_runs<'a, S: Seam, R>(
    mut requests: IndexedRequests<S>,
    read_run: impl Fn(IndexedRequests<S>) -> BoxFuture<'a, Vec<(usize, R)>>,
) -> impl Iterator<Item = (usize, R)> {
    requests
        .sort_by_key(|(_, ReadRequest { position, .. })| (position.segment, position.expiries, position.block_index));
    let mut runs: Vec<IndexedRequests<S>> = Vec::new();
    for (index, request) in requests {
        let continues_run = |run: &&mut IndexedRequests<S>| {
            let (_, ReadRequest { position: last, .. }) = run.last().expect("a run is not empty");
            let next = &request.position;
            (last.segment, last.expiries, last.block_index + 1) == (next.segment, next.expiries, next.block_index)
        };
        match runs.last_mut().filter(continues_run) {
            Some(run) => run.push((index, request)),
            None => runs.push(vec![(index, request)]),
        }
    }
    join(runs.into_iter().map(read_run).collect()).await.into_iter().flatten()
}

/// Reads many blocks, each into its own buffer. Adjacent blocks share one request. Otherwise like [`read`].
pub async fn read_all<S: Seam>(
    inner: &Rc<Inner<S>>,
    requests: Vec<ReadRequest<S>>,
) -> Vec<Result<S::Block, StoreError>> {
    let mut results: Vec<Option<Result<S::Block, StoreError>>> = (0..requests.len()).map(|_| None).collect();
    let requests = requests.into_iter().enumerate().collect();
    for (index, result) in read_in_runs::<S, _>(requests, |run| Box::pin(read_run(inner, run))).await {
        results[index] = Some(result);
    }
    results.into_iter().map(|result| result.expect("every block was in a run")).collect()
}

/// Reads adjacent blocks in one request. Blocks that fail their check are read again, one by one, from any device with
/// a good copy.
async fn read_run<S: Seam>(inner: &Rc<Inner<S>>, mut run: IndexedRequests<S>) -> Vec<IndexedResult<S>> {
    if run.len() == 1 {
        let (index, ReadRequest { address, position, buffer }) = run.remove(0);
        return vec![(index, read(inner, address, position, buffer).await)];
    }
    let first = &run[0].1.position;
    let (hold, at) = (SegmentHold::new(inner, first.segment), byte_offset_of(inner, first));
    let mut results = Vec::with_capacity(run.len());
    let device = read_order(inner, first.segment).into_iter().next();
    let (mut requested, mut buffers) = (Vec::with_capacity(run.len()), Vec::with_capacity(run.len()));
    for (index, ReadRequest { address, position, buffer }) in run {
        requested.push((index, address, position));
        buffers.push(Piece::whole(buffer));
    }
    let (was_read, buffers) = match device {
        Some(device) => {
            // Not measured: it takes longer than the single-block reads that make up a device's latency history.
            let _queued = QueuedRequest::new(inner, device.member, RequestWork::Read(buffers.len()));
            let (result, buffers) = inner.read_from(&device, at, buffers).await;
            (result.is_ok(), buffers)
        }
        None => (false, buffers),
    };
    for ((index, address, position), piece) in requested.into_iter().zip(buffers) {
        let block = piece.block.freeze();
        if was_read && block.checksum(checksum_seed(inner, address, &position)) == position.checksum {
            results.push((index, Ok(block)));
            continue;
        }
        let Ok(buffer) = block.thaw() else { unreachable!("the block has one owner") };
        results.push((index, read(inner, address, position, buffer).await));
    }
    drop(hold);
    results
}

/// Writes the good copy over the bad ones. It runs in its own task and holds the segment, so that it ends before the
/// segment is overwritten, even if the reader is dropped. A failure of this write is ignored: the write path detects
/// failing devices.
///
/// It does not flush: a device may report a failed flush only once, and the batch that issued that flush must get the
/// error. The batch's flush makes the repair durable, too.
async fn repair<S: Seam>(hold: SegmentHold<S>, bad: Vec<Device<S>>, offset_bytes: u64, block: S::Block) {
    for device in bad {
        let _ = hold.inner.write_with_retry_to(&device, offset_bytes, vec![block.clone()], Durability::Unflushed).await;
    }
    drop(hold);
}
