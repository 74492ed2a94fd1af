//! Reads of kept records: retired records whose segment has not been reused. They make the log a cache of the data that
//! was written; the backing durably has the same content.
//!
//! A read of a kept record does not hold the segment. A record whose segment is reused meanwhile has expired when the
//! read ends, and the read returns nothing (R2, docs/rules.md). Each block is checked like any block of the log (R11).

use std::rc::Rc;

use seam::{Block, BlockMut, Piece, Seam};

use crate::pages::PageReadError;
use crate::record::Position;
use crate::record_read::{IndexedRequests, ReadRequest, byte_offset_of, checksum_seed, read_in_runs, read_order};
use crate::sabotage::Sabotage;
use crate::slow_detection::QueuedRequest;
use crate::state::Inner;
use crate::state::latency::RequestWork;

/// A block, or the reason why it was not read, with the unused buffer.
pub type KeptResult<S> = Result<<S as Seam>::Block, PageReadError<<S as Seam>::BlockMut>>;

/// True if a record has expired.
pub fn has_expired<S: Seam>(inner: &Inner<S>, position: &Position) -> bool {
    let expiries = inner.state.borrow().segments.get(position.segment).expiries;
    expiries != position.expiries && !inner.sabotage.is(Sabotage::SkipExpiryCheck)
}

/// Reads retired records, each into its own buffer. Adjacent blocks share one request. The results are in the same
/// order.
pub async fn read_all<S: Seam>(inner: &Rc<Inner<S>>, requests: Vec<ReadRequest<S>>) -> Vec<KeptResult<S>> {
    let mut results: Vec<Option<KeptResult<S>>> = (0..requests.len()).map(|_| None).collect();
    let mut readable = Vec::with_capacity(requests.len());
    for (index, request) in requests.into_iter().enumerate() {
        match has_expired(inner, &request.position) {
            true => results[index] = Some(Err(PageReadError::Absent(request.buffer))),
            false => readable.push((index, request)),
        }
    }
    for (index, result) in read_in_runs::<S, _>(readable, |run| Box::pin(read_run(inner, run))).await {
        results[index] = Some(result);
    }
    results.into_iter().map(|result| result.expect("every block was in a run")).collect()
}

/// Reads adjacent blocks of one segment in one request, from one device.
async fn read_run<S: Seam>(inner: &Rc<Inner<S>>, run: IndexedRequests<S>) -> Vec<(usize, KeptResult<S>)> {
    let first = run[0].1.position;
    let at = byte_offset_of(inner, &first);
    let device = read_order(inner, first.segment).into_iter().next();
    let (mut requested, mut buffers) = (Vec::with_capacity(run.len()), Vec::with_capacity(run.len()));
    for (index, ReadRequest { address, position, buffer }) in run {
        requested.push((index, position.checksum, checksum_seed(inner, address, &position)));
        buffers.push(buffer);
    }
    let Some(device) = device else {
        let absent = requested.into_iter().zip(buffers);
        return absent.map(|((index, ..), buffer)| (index, Err(PageReadError::Absent(buffer)))).collect();
    };
    // Its latency is not measured: a slow device is detected by reads of dirty records.
    let queued = QueuedRequest::new(inner, device.member, RequestWork::Read(buffers.len()));
    let (result, pieces) = inner.read_from(&device, at, buffers.into_iter().map(Piece::whole).collect()).await;
    drop(queued);
    let is_expired = has_expired(inner, &first);
    let skips_check = inner.sabotage.is(Sabotage::SkipChecksum);
    let mut results = Vec::with_capacity(requested.len());
    for ((index, checksum, seed), piece) in requested.into_iter().zip(pieces) {
        let block = piece.block.freeze();
        let is_good = result.is_ok() && (skips_check || block.checksum(seed) == checksum);
        if is_good && !is_expired {
            results.push((index, Ok(block)));
            continue;
        }
        let Ok(buffer) = block.thaw() else { unreachable!("the block has one owner") };
        let unread = if is_expired { PageReadError::Absent(buffer) } else { PageReadError::Bad(buffer) };
        results.push((index, Err(unread)));
    }
    results
}
