//! A whole trace in memory, as blocks of 4 KiB and pages of 64 KiB: 4 bytes per access of each, 12 per request.

use trace::{Op, Request};

use super::pages::{Numbering, PageTrace};

/// The memory cache's unit.
pub const BLOCK_BYTES: u64 = 4 << 10;
/// The flash cache's unit.
pub const PAGE_BYTES: u64 = 64 << 10;
/// Blocks per page.
pub const BLOCKS_PER_PAGE: u64 = PAGE_BYTES / BLOCK_BYTES;

/// The blocks of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestBlocks {
    /// True for a write, false for a read.
    pub write: bool,
    /// Index of its first block within that block's page.
    pub first: u8,
    /// Number of blocks, at least one.
    pub blocks: u32,
}

impl RequestBlocks {
    /// Number of blocks in each of its pages, in order.
    pub fn blocks_by_page(self) -> impl Iterator<Item = u32> {
        let (mut page_blocks, mut remaining) = (BLOCKS_PER_PAGE as u32 - u32::from(self.first), self.blocks);
        std::iter::from_fn(move || {
            let count = remaining.min(page_blocks);
            (remaining, page_blocks) = (remaining - count, BLOCKS_PER_PAGE as u32);
            (count > 0).then_some(count)
        })
    }
}

/// The reads and writes of a trace.
#[derive(Clone, Debug, Default)]
pub struct Recording {
    /// The requests in order.
    pub requests: Vec<RequestBlocks>,
    /// Their blocks, request by request.
    pub blocks: PageTrace,
    /// Their pages, request by request.
    pub pages: PageTrace,
    /// Nanoseconds from the first request to the last; 0 when the trace has no times.
    pub span_ns: u64,
}

impl Recording {
    /// Collects requests until they end or one is an error, which is returned with the requests before it. Flushes and
    /// discards are skipped because they access no content.
    pub fn of<E>(requests: impl IntoIterator<Item = Result<Request, E>>) -> (Recording, Option<E>) {
        let mut recording = Recording::default();
        let (mut blocks, mut pages) = (Numbering::new(BLOCK_BYTES), Numbering::new(PAGE_BYTES));
        let mut error = None;
        for request in requests {
            let Request { op, at, len, device, time_ns } = match request {
                Ok(request) => request,
                Err(failure) => {
                    error = Some(failure);
                    break;
                }
            };
            let write = match op {
                Op::Read => false,
                Op::Write => true,
                Op::Discard | Op::Flush => continue,
            };
            recording.span_ns = recording.span_ns.max(time_ns.unwrap_or(0));
            let before = recording.blocks.accesses.len();
            recording.blocks.accesses.extend(blocks.pages_of(device, at, len));
            recording.pages.accesses.extend(pages.pages_of(device, at, len));
            let first = (at / BLOCK_BYTES % BLOCKS_PER_PAGE) as u8;
            let blocks_accessed = (recording.blocks.accesses.len() - before) as u32;
            recording.requests.push(RequestBlocks { write, first, blocks: blocks_accessed });
        }
        (recording.blocks.distinct, recording.pages.distinct) = (blocks.distinct(), pages.distinct());
        (recording, error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recording_splits_requests_into_blocks_and_pages() {
        let request = |op, at, len| Ok::<_, ()>(Request { time_ns: None, op, at, len, device: 0 });
        let requests = [
            request(Op::Read, 60 << 10, 72 << 10),
            request(Op::Discard, 0, 1 << 20),
            request(Op::Write, 128 << 10, 512),
            Err(()),
        ];
        let (recording, error) = Recording::of(requests);
        assert_eq!(error, Some(()));
        assert_eq!(recording.blocks.accesses.len(), 19);
        assert_eq!(recording.pages.accesses, [0, 1, 2, 2]);
        assert_eq!(recording.requests[0].blocks_by_page().collect::<Vec<_>>(), [1, 16, 1]);
        assert_eq!(recording.requests[1], RequestBlocks { write: true, first: 0, blocks: 1 });
        assert_eq!(
            (recording.blocks.distinct, recording.pages.distinct),
            (18, 3),
            "the write is to a block that was read"
        );
    }
}
