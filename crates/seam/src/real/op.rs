//! Operations on io_uring; each owns the memory that it points to until its completion.

use std::future::Future;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{FromRawFd, OwnedFd};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use compio::BufResult;
use compio::driver::{Extra, OpCode, OpEntry};
use compio::runtime::{Runtime, Submit};
use io_uring::{opcode, squeue, types};

use super::core::{Core, coarse_now};
use super::permits::{Acquire, Permit};
use super::submitter::{SubmitMode, Submitter};
use crate::pending::PendingRequest;

/// Maximum number of buffers of one vectored operation (the kernel's UIO_MAXIOV).
pub(super) const IOV_MAX: usize = 1024;

/// Action on a descriptor.
pub(super) enum Action {
    /// Read into the buffers from this byte on.
    Read(u64),
    /// Write the buffers at this byte.
    Write(u64),
    /// Make data durable.
    DataSync,
    /// `fallocate` with mode, offset, length.
    Allocate(i32, u64, u64),
    /// Receive into the buffers.
    Receive,
    /// Send the buffers.
    Send,
    /// Accept a connection.
    Accept,
    /// Cancel the pending operations of the descriptor.
    Cancel,
}

/// One operation on the descriptor of `owner`, whose buffers belong to `keep`; both live until its completion.
pub(super) struct Operation<F, K> {
    action: Action,
    fd: i32,
    iov: Vec<libc::iovec>,
    message: MaybeUninit<libc::msghdr>,
    accepted: Option<OwnedFd>,
    /// Core that counts the operation from submission to completion.
    counted_by: Option<Rc<Core>>,
    mode: SubmitMode,
    /// Permit for a worker of the ring.
    permit: Option<Permit>,
    /// Guard that counts the request as unanswered.
    pending: Option<PendingRequest>,
    _owner: F,
    keep: K,
}

impl<F, K> Operation<F, K> {
    /// # Safety
    ///
    /// `fd` is open as long as `owner` lives. The memory behind `iov` stays valid as long as `keep` lives, even if
    /// `keep` is moved. During a read no other code accesses that memory.
    ///
    /// Boxed, because an operation is moved a dozen times on its way to the ring and back.
    pub(super) unsafe fn new(action: Action, fd: i32, owner: F, iov: Vec<libc::iovec>, keep: K) -> Box<Self> {
        Box::new(Operation {
            action,
            fd,
            iov,
            message: MaybeUninit::zeroed(),
            accepted: None,
            counted_by: None,
            mode: SubmitMode::Plain,
            permit: None,
            pending: None,
            _owner: owner,
            keep,
        })
    }

    /// The vector of buffers (for reuse), the owner of the buffers, and the connection of an [`Action::Accept`].
    #[inline]
    pub(super) fn into_parts(self) -> (Vec<libc::iovec>, K, Option<OwnedFd>) {
        (self.iov, self.keep, self.accepted)
    }
}

// SAFETY: the operation lives on the heap. Pointers to `iov`'s heap memory and to `message` therefore stay valid until
// the operation leaves the driver after its completion.
unsafe impl<F: 'static, K: 'static> OpCode for Box<Operation<F, K>> {
    type Control = ();

    fn create_entry(&mut self, _: &mut ()) -> OpEntry {
        if let Some(core) = &self.counted_by {
            core.in_flight.set(core.in_flight.get() + 1);
        }
        let fd = types::Fd(self.fd);
        let (iov, count) = (self.iov.as_ptr(), self.iov.len() as u32);
        let first = self.iov.first().map(|only| (only.iov_base.cast::<u8>(), only.iov_len as u32));
        let rw_flags = if self.mode == SubmitMode::NoWait { libc::RWF_NOWAIT } else { 0 };
        // A single buffer needs no vector, which the kernel would copy and check.
        let entry = match (&self.action, first) {
            (Action::Read(at), Some((data, len))) if count == 1 => {
                opcode::Read::new(fd, data, len).offset(*at).rw_flags(rw_flags).build()
            }
            (Action::Read(at), _) => opcode::Readv::new(fd, iov, count).offset(*at).rw_flags(rw_flags).build(),
            (Action::Write(at), Some((data, len))) if count == 1 => {
                opcode::Write::new(fd, data, len).offset(*at).rw_flags(rw_flags).build()
            }
            (Action::Write(at), _) => opcode::Writev::new(fd, iov, count).offset(*at).rw_flags(rw_flags).build(),
            (Action::DataSync, _) => opcode::Fsync::new(fd).flags(types::FsyncFlags::DATASYNC).build(),
            (Action::Allocate(mode, at, len), _) => opcode::Fallocate::new(fd, *len).offset(*at).mode(*mode).build(),
            (Action::Receive, Some((data, len))) if count == 1 => opcode::Recv::new(fd, data, len).build(),
            (Action::Receive, _) => {
                let message = self.message.as_mut_ptr();
                // SAFETY: a zeroed `msghdr` is valid. The width of its count differs among C libraries; the list is
                // short.
                unsafe { ((*message).msg_iov, (*message).msg_iovlen) = (self.iov.as_mut_ptr(), self.iov.len() as _) };
                opcode::RecvMsg::new(fd, message).build()
            }
            (Action::Send, _) => {
                let message = self.message.as_mut_ptr();
                // SAFETY: as above.
                unsafe { ((*message).msg_iov, (*message).msg_iovlen) = (self.iov.as_mut_ptr(), self.iov.len() as _) };
                opcode::SendMsg::new(fd, message).flags(libc::MSG_NOSIGNAL as u32).build()
            }
            (Action::Accept, _) => {
                opcode::Accept::new(fd, std::ptr::null_mut(), std::ptr::null_mut()).flags(libc::SOCK_CLOEXEC).build()
            }
            (Action::Cancel, _) => opcode::AsyncCancel2::new(types::CancelBuilder::fd(fd).all()).build(),
        };
        if self.mode == SubmitMode::Worker { entry.flags(squeue::Flags::ASYNC).into() } else { entry.into() }
    }

    unsafe fn set_result(&mut self, _: &mut (), result: &io::Result<usize>, _: &Extra) {
        if let Some(core) = self.counted_by.take() {
            core.in_flight.set(core.in_flight.get() - 1);
        }
        if let (Action::Accept, Ok(fd)) = (&self.action, result) {
            // SAFETY: the kernel has just created this descriptor. Owned here, it is closed even if the future was
            // dropped.
            self.accepted = Some(unsafe { OwnedFd::from_raw_fd(*fd as i32) });
        }
    }
}

/// Submits `operation`; dropping the future cancels the operation in the kernel (for sockets).
pub(super) fn submit<F: 'static, K: 'static>(operation: Box<Operation<F, K>>) -> Submit<Box<Operation<F, K>>> {
    Runtime::with_current(|runtime| runtime.submit(operation))
}

/// Submits `operation`, which runs to its end even if the future is dropped (for disks). A submitted write is never
/// cancelled halfway, and the core does not end before its operations.
#[inline]
pub(super) fn submit_detached<'a, F: 'static, K: 'static>(
    core: &'a Rc<Core>,
    submitter: &'a Rc<Submitter>,
    mut operation: Box<Operation<F, K>>,
) -> DetachedOperation<'a, F, K> {
    let now = coarse_now();
    (operation.mode, operation.permit) = submitter.admit(&operation.action, now);
    operation.pending = Some(submitter.pending.begin(now));
    let stage = if operation.mode != SubmitMode::NoWait && operation.permit.is_none() {
        Stage::wait(submitter, operation)
    } else {
        Stage::submit(core, operation)
    };
    DetachedOperation { core, submitter, stage }
}

/// Stage of a disk operation.
enum Stage<F: 'static, K: 'static> {
    /// Waits for a permit.
    AwaitingPermit(Box<Operation<F, K>>, Acquire),
    /// Submitted to the ring.
    Submitted {
        submit: Submit<Box<Operation<F, K>>>,
        /// Polled once, and therefore in the ring.
        is_queued: bool,
    },
    Ended,
}

impl<F: 'static, K: 'static> Stage<F, K> {
    #[inline]
    fn submit(core: &Rc<Core>, mut operation: Box<Operation<F, K>>) -> Self {
        operation.counted_by = Some(core.clone());
        Stage::Submitted { submit: submit(operation), is_queued: false }
    }

    fn wait(submitter: &Submitter, operation: Box<Operation<F, K>>) -> Self {
        Stage::AwaitingPermit(operation, submitter.workers().acquire())
    }
}

/// Future of [`submit_detached`].
pub(super) struct DetachedOperation<'a, F: 'static, K: 'static> {
    core: &'a Rc<Core>,
    submitter: &'a Rc<Submitter>,
    stage: Stage<F, K>,
}

// No field is structurally pinned: the memory that the kernel points to is behind `Submit`.
impl<F: 'static, K: 'static> Unpin for DetachedOperation<'_, F, K> {}

impl<F: 'static, K: 'static> Future for DetachedOperation<'_, F, K> {
    type Output = (io::Result<usize>, Box<Operation<F, K>>);

    #[inline]
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        loop {
            match &mut this.stage {
                Stage::AwaitingPermit(_, acquire) => {
                    let Poll::Ready(permit) = Pin::new(acquire).poll(context) else { return Poll::Pending };
                    let Stage::AwaitingPermit(mut operation, _) = std::mem::replace(&mut this.stage, Stage::Ended)
                    else {
                        unreachable!("the stage was just matched");
                    };
                    operation.permit = Some(permit);
                    // The disk may have become hung since the operation was admitted.
                    if this.submitter.is_hung(coarse_now()) {
                        operation.mode = SubmitMode::Worker;
                    }
                    this.stage = Stage::submit(this.core, operation);
                }
                Stage::Submitted { submit, is_queued } => {
                    let Poll::Ready(BufResult(result, mut operation)) = Pin::new(submit).poll(context) else {
                        if !std::mem::replace(is_queued, true) {
                            this.core.record_queued();
                        }
                        return Poll::Pending;
                    };
                    let is_nowait = operation.mode == SubmitMode::NoWait;
                    if is_nowait && this.submitter.is_refused(&operation.action, &result) {
                        operation.mode = SubmitMode::Worker;
                        this.stage = Stage::wait(this.submitter, operation);
                        continue;
                    }
                    this.stage = Stage::Ended;
                    (operation.permit, operation.pending) = (None, None);
                    return Poll::Ready((result, operation));
                }
                Stage::Ended => panic!("a future is not polled after its end"),
            }
        }
    }
}

impl<F: 'static, K: 'static> Drop for DetachedOperation<'_, F, K> {
    #[inline]
    fn drop(&mut self) {
        // A closing core has already waited for its operations; the remaining ones are dropped.
        if !matches!(self.stage, Stage::Ended) && !self.core.closing.get() {
            let stage = std::mem::replace(&mut self.stage, Stage::Ended);
            let (core, submitter) = (self.core.clone(), self.submitter.clone());
            let remainder = async move { drop(DetachedOperation { core: &core, submitter: &submitter, stage }.await) };
            Runtime::with_current(|runtime| runtime.spawn(remainder)).detach();
        }
    }
}
