//! A whole trace in memory, as blocks of 4 KiB and pages of 64 KiB: 4 bytes an access of each, 12 a request.

use trace::{Op, Request};

use super::pages::{Numbering, Pages};

/// The memory cache's unit.
pub const BLOCK_BYTES: u64 = 4 << 10;
/// The flash cache's unit.
pub const PAGE_BYTES: u64 = 64 << 10;
/// Blocks in a page.
pub const BLOCKS_A_PAGE: u64 = PAGE_BYTES / BLOCK_BYTES;

/// What a request touches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Touch {
    /// A write; else a read.
    pub write: bool,
    /// Place of its first block in its page.
    pub first: u8,
    /// Blocks, one at least.
    pub blocks: u32,
}

impl Touch {
    /// Blocks in each of its pages, in order.
    pub fn parts(self) -> impl Iterator<Item = u32> {
        let (mut room, mut left) = (BLOCKS_A_PAGE as u32 - u32::from(self.first), self.blocks);
        std::iter::from_fn(move || {
            let part = left.min(room);
            (left, room) = (left - part, BLOCKS_A_PAGE as u32);
            (part > 0).then_some(part)
        })
    }
}

/// The reads and writes of a trace.
#[derive(Clone, Debug, Default)]
pub struct Recording {
    /// Each request.
    pub requests: Vec<Touch>,
    /// Their blocks, one request's after the other's.
    pub blocks: Pages,
    /// Their pages.
    pub pages: Pages,
    /// Time from the first to the last of them in nanoseconds; 0 where the trace does not say.
    pub span_ns: u64,
}

impl Recording {
    /// Takes requests in until they end or one is an error, which is given back with what came before. Flushes and discards are
    /// passed over: they ask for no content.
    pub fn of<E>(requests: impl IntoIterator<Item = Result<Request, E>>) -> (Recording, Option<E>) {
        let mut recording = Recording::default();
        let (mut blocks, mut pages) = (Numbering::new(BLOCK_BYTES), Numbering::new(PAGE_BYTES));
        let mut error = None;
        for request in requests {
            let Request { op, at, len, device, time_ns } = match request {
                Ok(request) => request,
                Err(why) => {
                    error = Some(why);
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
            recording.blocks.accesses.extend(blocks.touch(device, at, len));
            recording.pages.accesses.extend(pages.touch(device, at, len));
            let first = (at / BLOCK_BYTES % BLOCKS_A_PAGE) as u8;
            let touched = (recording.blocks.accesses.len() - before) as u32;
            recording.requests.push(Touch { write, first, blocks: touched });
        }
        (recording.blocks.distinct, recording.pages.distinct) = (blocks.distinct(), pages.distinct());
        (recording, error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_known_by_its_blocks_and_pages() {
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
        assert_eq!(recording.requests[0].parts().collect::<Vec<_>>(), [1, 16, 1]);
        assert_eq!(recording.requests[1], Touch { write: true, first: 0, blocks: 1 });
        assert_eq!(
            (recording.blocks.distinct, recording.pages.distinct),
            (18, 3),
            "the write is to a block that was read"
        );
    }
}
