//! State that the handles of a disk share with the task of its connection.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::task::{Context, Waker};

use nbd_protocol::flags;
use seam::{DiskError, DiskResult, PendingRequests, PieceMut, Seam};

use crate::export_info::ExportInfo;
use crate::request_table::{OpenRequest, Operation, RequestTable};
use crate::{DedicatedServer, NbdOptions, NbdTarget};

/// State shared by the handles and the connection's task.
pub struct SharedConnection<S: Seam> {
    pub seam: S,
    pub target: NbdTarget,
    pub options: NbdOptions,
    /// The server, if it serves this disk alone.
    pub server: Option<Box<dyn DedicatedServer>>,
    pub export_info: Cell<ExportInfo>,
    pub connection_epoch: Cell<u64>,
    pub request_table: RefCell<RequestTable<S>>,
    pub pending: PendingRequests,
    /// The error of all requests after a connection loss of longer than [`NbdOptions::reconnect_timeout`].
    pub failure: RefCell<Option<DiskError>>,
    /// The last handle was dropped.
    pub is_closing: Cell<bool>,
    /// True once the disk is abandoned, although handles to it exist.
    pub is_abandoned: Cell<bool>,
    /// The server has refused a fast zero request.
    pub is_fast_zero_refused: Cell<bool>,
    /// Number of receives from the socket.
    pub receive_count: Cell<u64>,
    pub waker: RefCell<Option<Waker>>,
}

impl<S: Seam> SharedConnection<S> {
    /// Wakes the connection's task.
    pub fn wake(&self) {
        if let Some(waker) = &*self.waker.borrow() {
            waker.wake_by_ref();
        }
    }

    /// Stores the waker of the connection's task.
    pub fn register(&self, context: &Context<'_>) {
        let mut waker = self.waker.borrow_mut();
        match &*waker {
            Some(known) if known.will_wake(context.waker()) => (),
            _ => *waker = Some(context.waker().clone()),
        }
    }

    /// Counts a receive.
    pub fn record_receive(&self) {
        self.receive_count.set(self.receive_count.get() + 1);
    }

    /// Number of receives.
    pub fn receive_count(&self) -> u64 {
        self.receive_count.get()
    }

    /// Records the loss of the connection: unflushed writes may be lost too, and flushes fail. A dedicated server has
    /// made all writes durable that it has answered, so its flushes are repeated instead. Returns true if there are
    /// writes or zero requests to repeat.
    pub fn record_loss(&self) -> bool {
        self.connection_epoch.set(self.connection_epoch.get() + 1);
        let mut request_table = self.request_table.borrow_mut();
        let failed = if self.server.is_some() { Vec::new() } else { request_table.take_flushes() };
        request_table.restart();
        for flush in failed {
            flush.finish(Err(DiskError::Io("connection lost during flush".into())));
        }
        request_table.has_writes()
    }

    /// Accepts the server after a reconnect, if its export is the same and can take the waiting requests; else returns
    /// the reason.
    pub fn accept(&self, new: ExportInfo) -> DiskResult<()> {
        let old = self.export_info.get();
        let longest = self.request_table.borrow().longest_data();
        let reason = if new.size_bytes < old.size_bytes {
            format!("size {} bytes instead of {}", new.size_bytes, old.size_bytes)
        } else if new.logical_block_bytes > old.logical_block_bytes {
            format!("block size {} bytes instead of {}", new.logical_block_bytes, old.logical_block_bytes)
        } else if new.request_bytes_max < longest {
            format!("maximum request {} bytes, but a request of {longest} bytes waits", new.request_bytes_max)
        } else {
            self.export_info.set(new);
            *self.failure.borrow_mut() = None;
            return Ok(());
        };
        let text = format!("{} changed while disconnected ({reason}); restore the old export", self.target);
        Err(DiskError::Open(text))
    }

    /// Fails all open requests, and all later ones until the server is back.
    pub fn fail_all(&self, error: &DiskError) {
        *self.failure.borrow_mut() = Some(error.clone());
        let requests = self.request_table.borrow_mut().take_all();
        requests.iter().for_each(|request| request.finish(Err(error.clone())));
    }

    /// Queues a request, or fails it at once after a long connection loss.
    pub fn submit(
        &self,
        operation: Operation<S>,
        at: u64,
        len: u32,
        into: Vec<PieceMut<S::BlockMut>>,
    ) -> Rc<OpenRequest<S>> {
        let request = OpenRequest::new(operation, at, len, into, self.pending.begin(self.seam.now()));
        let abandoned = self.is_abandoned.get().then_some(&DiskError::Gone);
        match self.lost().or(abandoned).or(self.failure.borrow().as_ref()) {
            Some(error) => request.finish(Err(error.clone())),
            None => {
                self.request_table.borrow_mut().add(Rc::clone(&request));
                self.wake();
            }
        }
        request
    }

    /// Why no request can ever succeed again.
    pub fn lost(&self) -> Option<&DiskError> {
        self.server.as_ref().and_then(|server| server.lost())
    }

    /// True if the export has this transmission flag.
    pub fn has_flag(&self, flag: u16) -> bool {
        self.export_info.get().flags & flag != 0
    }

    /// True if the server supports fast zero requests and has not refused one.
    pub fn may_zero_fast(&self) -> bool {
        self.has_flag(flags::SEND_WRITE_ZEROES)
            && self.has_flag(flags::SEND_FAST_ZERO)
            && !self.is_fast_zero_refused.get()
    }

    /// Fails if the export or the options forbid writes.
    pub fn check_writable(&self) -> DiskResult<()> {
        let read_only = self.options.read_only || self.has_flag(flags::READ_ONLY);
        if read_only { Err(DiskError::ReadOnly) } else { Ok(()) }
    }
}
