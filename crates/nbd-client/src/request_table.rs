//! Outstanding requests: the operation, buffers for the reply, and the waiting task.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Poll, Waker};

use nbd_protocol::{Command, Request, command};
use seam::{AllocationExtent, BlockMut, DiskError, DiskResult, PendingRequest, Piece, PieceMut, Seam};

use crate::coverage::Coverage;

/// Kind of request.
pub enum Operation<S: Seam> {
    Read,
    Write(Vec<Piece<S::Block>>),
    Flush,
    Zero { may_unmap: bool, fast_only: bool },
    Status,
}

/// One request, from the call to its reply, over as many connections as needed.
pub struct OpenRequest<S: Seam> {
    pub operation: Operation<S>,
    pub at: u64,
    pub len: u32,
    /// A read's buffers.
    into: RefCell<Vec<PieceMut<S::BlockMut>>>,
    /// The parts of the answer that have arrived.
    received: RefCell<Coverage>,
    /// The first error named by an answer in progress.
    reply_error: RefCell<Option<DiskError>>,
    extents: RefCell<Vec<AllocationExtent>>,
    result: RefCell<Option<DiskResult<()>>>,
    waker: RefCell<Option<Waker>>,
    /// Counts the request as unanswered.
    pending: Cell<Option<PendingRequest>>,
}

impl<S: Seam> OpenRequest<S> {
    /// A request that is not answered yet; `pending` counts it until then.
    pub fn new(
        operation: Operation<S>,
        at: u64,
        len: u32,
        into: Vec<PieceMut<S::BlockMut>>,
        pending: PendingRequest,
    ) -> Rc<Self> {
        Rc::new(OpenRequest {
            operation,
            at,
            len,
            into: RefCell::new(into),
            received: RefCell::default(),
            reply_error: RefCell::default(),
            extents: RefCell::default(),
            result: RefCell::default(),
            waker: RefCell::default(),
            pending: Cell::new(Some(pending)),
        })
    }

    /// Waits for the answer.
    pub async fn wait(&self) -> DiskResult<()> {
        poll_fn(|context| match self.result.take() {
            Some(result) => Poll::Ready(result),
            None => {
                *self.waker.borrow_mut() = Some(context.waker().clone());
                Poll::Pending
            }
        })
        .await
    }

    /// The buffers of a completed read.
    pub fn take_pieces(&self) -> Vec<PieceMut<S::BlockMut>> {
        self.into.take()
    }

    /// The extents of a completed status request.
    pub fn take_extents(&self) -> Vec<AllocationExtent> {
        self.extents.take()
    }

    /// Stores the extents of an answer.
    pub fn put_extents(&self, extents: Vec<AllocationExtent>) {
        *self.extents.borrow_mut() = extents;
    }

    /// True if this is a read and covers `len` bytes at `at` of the export.
    pub fn covers(&self, at: u64, len: u64) -> bool {
        let end = self.at + u64::from(self.len);
        matches!(self.operation, Operation::Read)
            && at >= self.at
            && at.checked_add(len).is_some_and(|range_end| range_end <= end)
    }

    /// Copies bytes of the export from `at` on to the buffers. The caller has checked [`OpenRequest::covers`].
    pub fn put(&self, at: u64, bytes: &[u8]) {
        self.each_piece(at, bytes.len(), |block, start, from, len| block.write_bytes(start, &bytes[from..from + len]));
    }

    /// Zeroes the buffers for `len` bytes from `at` on. The caller has checked [`OpenRequest::covers`].
    pub fn put_zeroes(&self, at: u64, len: usize) {
        self.each_piece(at, len, |block, start, _, len| block.zero(start, len));
    }

    /// Calls `each(block, byte in the block, byte in the range, length)` for every piece of a range of the export.
    fn each_piece(&self, at: u64, len: usize, mut each: impl FnMut(&mut S::BlockMut, usize, usize, usize)) {
        let (start, end) = ((at - self.at) as usize, (at - self.at) as usize + len);
        let mut piece_start = 0;
        for piece in self.into.borrow_mut().iter_mut() {
            let piece_end = piece_start + piece.len();
            let (from, to) = (start.max(piece_start), end.min(piece_end));
            if from < to {
                each(&mut piece.block, usize::from(piece.start) + from - piece_start, from - start, to - from);
            }
            piece_start = piece_end;
        }
        if !self.received.borrow_mut().add(start..end) {
            self.fail(DiskError::Io("the server's reply repeats bytes or has too many gaps".into()));
        }
    }

    /// Records an error named by the answer; the first one counts.
    pub fn fail(&self, error: DiskError) {
        self.reply_error.borrow_mut().get_or_insert(error);
    }

    /// Completes the request: its answer has ended.
    pub fn complete(&self) {
        let incomplete = matches!(self.operation, Operation::Read)
            && !self.received.borrow().is_whole(self.len as usize)
            || matches!(self.operation, Operation::Status) && self.extents.borrow().is_empty();
        self.finish(match self.reply_error.take() {
            Some(error) => Err(error),
            None if incomplete => Err(DiskError::Io("the server's reply covers only a part of the request".into())),
            None => Ok(()),
        });
    }

    /// Passes the result to the waiting task.
    pub fn finish(&self, result: DiskResult<()>) {
        *self.result.borrow_mut() = Some(result);
        self.pending.set(None);
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }

    fn discard_reply(&self) {
        self.received.borrow_mut().clear();
        self.reply_error.take();
        self.extents.take();
    }

    /// The request header for the wire.
    pub fn header(&self, cookie: u64) -> Request {
        let (command, flags) = match &self.operation {
            Operation::Read => (Command::Read, 0),
            Operation::Write(_) => (Command::Write, 0),
            Operation::Flush => (Command::Flush, 0),
            Operation::Zero { may_unmap, fast_only } => {
                let no_hole = if *may_unmap { 0 } else { command::NO_HOLE };
                let fast = if *fast_only { command::FAST_ZERO } else { 0 };
                (Command::WriteZeroes, no_hole | fast)
            }
            Operation::Status => (Command::BlockStatus, 0),
        };
        Request { flags, command, cookie, offset: self.at, len: self.len }
    }
}

/// All unanswered requests, by cookie; a cookie is never reused.
pub struct RequestTable<S: Seam> {
    next_cookie: u64,
    open: BTreeMap<u64, Rc<OpenRequest<S>>>,
    to_send: VecDeque<u64>,
}

impl<S: Seam> Default for RequestTable<S> {
    fn default() -> Self {
        RequestTable { next_cookie: 1, open: BTreeMap::new(), to_send: VecDeque::new() }
    }
}

impl<S: Seam> RequestTable<S> {
    /// Queues a request under a new cookie.
    pub fn add(&mut self, request: Rc<OpenRequest<S>>) {
        self.open.insert(self.next_cookie, request);
        self.to_send.push_back(self.next_cookie);
        self.next_cookie += 1;
    }

    /// The next request to be sent.
    pub fn next_to_send(&mut self) -> Option<(u64, Rc<OpenRequest<S>>)> {
        let cookie = self.to_send.pop_front()?;
        let request = self.open.get(&cookie).expect("a request stays open until its reply, which follows its sending");
        Some((cookie, Rc::clone(request)))
    }

    /// True if a request waits to be sent.
    pub fn has_unsent(&self) -> bool {
        !self.to_send.is_empty()
    }

    /// True if all requests are answered.
    pub fn is_empty(&self) -> bool {
        self.open.is_empty()
    }

    /// True if there is a flush or a zero request: its duration does not depend on its length alone.
    pub fn has_slow(&self) -> bool {
        self.open.values().any(|request| matches!(request.operation, Operation::Flush | Operation::Zero { .. }))
    }

    /// The cookie of the oldest request.
    pub fn oldest(&self) -> Option<u64> {
        self.open.keys().next().copied()
    }

    /// A request that was sent and is not answered.
    pub fn get(&self, cookie: u64) -> Option<Rc<OpenRequest<S>>> {
        let is_unsent = self.to_send.front().is_some_and(|first| cookie >= *first);
        if is_unsent { None } else { self.open.get(&cookie).cloned() }
    }

    /// Removes an answered request.
    pub fn remove(&mut self, cookie: u64) {
        self.open.remove(&cookie);
    }

    /// Removes and returns the flushes.
    pub fn take_flushes(&mut self) -> Vec<Rc<OpenRequest<S>>> {
        let flushes = self.open.extract_if(.., |_, request| matches!(request.operation, Operation::Flush));
        flushes.map(|(_, request)| request).collect()
    }

    /// Prepares for the next connection: queues all requests to be sent again, in order of arrival.
    pub fn restart(&mut self) {
        self.open.values().for_each(|request| request.discard_reply());
        self.to_send = self.open.keys().copied().collect();
    }

    /// Length of the longest read or write, in bytes.
    pub fn longest_data(&self) -> u32 {
        let data =
            self.open.values().filter(|request| matches!(request.operation, Operation::Read | Operation::Write(_)));
        data.map(|request| request.len).max().unwrap_or(0)
    }

    /// True if there is a request that changes content.
    pub fn has_writes(&self) -> bool {
        self.open.values().any(|request| matches!(request.operation, Operation::Write(_) | Operation::Zero { .. }))
    }

    /// Removes and returns all requests.
    pub fn take_all(&mut self) -> Vec<Rc<OpenRequest<S>>> {
        self.to_send.clear();
        std::mem::take(&mut self.open).into_values().collect()
    }
}

#[cfg(test)]
mod tests {
    use seam::sim::{World, WorldSpec};

    use super::*;

    #[test]
    fn repeated_chunk_does_not_replace_missing_one() {
        let world = World::new(WorldSpec::new(1));
        let seam = world.seam();
        let result = |starts: [u64; 2]| {
            let buffer = Piece::whole(seam.alloc().expect("the pool has room"));
            let request: Rc<OpenRequest<seam::sim::SimSeam>> = OpenRequest::new(
                Operation::Read,
                8192,
                4096,
                vec![buffer],
                seam::PendingRequests::default().begin(seam::Nanos::ZERO),
            );
            starts.into_iter().for_each(|start| request.put_zeroes(8192 + start, 2048));
            request.complete();
            world.block_on(request.wait())
        };
        assert_eq!((result([0, 2048]), result([2048, 0])), (Ok(()), Ok(())));
        assert!(result([0, 0]).is_err());
    }
}
