//! State that the handles of a disk share with the task of its connection.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::task::{Context, Waker};

use nbd_protocol::flags;
use seam::{DiskError, DiskResult, PendingRequests, PieceMut, Seam};

use super::negotiate::Facts;
use super::table::{Ask, Slot, Table};
use super::{NbdOptions, NbdTarget};

/// State shared by the handles and the connection's task.
pub(super) struct Shared<S: Seam> {
    pub(super) seam: S,
    pub(super) target: NbdTarget,
    pub(super) options: NbdOptions,
    pub(super) facts: Cell<Facts>,
    pub(super) incarnation: Cell<u64>,
    pub(super) table: RefCell<Table<S>>,
    pub(super) pending: PendingRequests,
    /// The error of all requests after a connection loss of longer than [`NbdOptions::patience`].
    pub(super) gone: RefCell<Option<DiskError>>,
    /// The last handle was dropped.
    pub(super) closing: Cell<bool>,
    /// The server has refused a fast zero request.
    pub(super) zeroes_slowly: Cell<bool>,
    /// Number of receives.
    pub(super) heard: Cell<u64>,
    pub(super) waker: RefCell<Option<Waker>>,
}

impl<S: Seam> Shared<S> {
    /// Wakes the connection's task.
    pub(super) fn wake(&self) {
        if let Some(waker) = &*self.waker.borrow() {
            waker.wake_by_ref();
        }
    }

    /// Stores the waker of the connection's task.
    pub(super) fn register(&self, context: &Context<'_>) {
        let mut waker = self.waker.borrow_mut();
        match &*waker {
            Some(known) if known.will_wake(context.waker()) => (),
            _ => *waker = Some(context.waker().clone()),
        }
    }

    /// Counts a receive.
    pub(super) fn heard(&self) {
        self.heard.set(self.heard.get() + 1);
    }

    /// Number of receives.
    pub(super) fn heard_count(&self) -> u64 {
        self.heard.get()
    }

    /// Records the loss of the connection: unflushed writes may be lost too. Returns true if there are writes or zero
    /// requests to repeat.
    pub(super) fn lost(&self) -> bool {
        self.incarnation.set(self.incarnation.get() + 1);
        let flushes = self.table.borrow_mut().restart();
        for flush in flushes {
            flush.finish(Err(DiskError::Io("connection lost during flush".into())));
        }
        self.table.borrow().has_changes()
    }

    /// Accepts the server after a reconnect, if its export is the same and can take the waiting requests; else returns
    /// the reason.
    pub(super) fn accept(&self, now: Facts) -> DiskResult<()> {
        let before = self.facts.get();
        let longest = self.table.borrow().longest_data();
        let reason = match () {
            () if now.size_bytes < before.size_bytes => {
                format!("its size is {} bytes, it was {}", now.size_bytes, before.size_bytes)
            }
            () if now.logical_block > before.logical_block => {
                format!("it takes blocks of {} bytes only, it took {}", now.logical_block, before.logical_block)
            }
            () if now.request_bytes_max < longest => {
                format!("it takes requests of {} bytes, one of {longest} waits", now.request_bytes_max)
            }
            () => {
                self.facts.set(now);
                *self.gone.borrow_mut() = None;
                return Ok(());
            }
        };
        let text = format!("{} has come back as something else ({reason}); bring the old export back", self.target);
        Err(DiskError::Open(text))
    }

    /// Fails all open requests, and all later ones until the server is back.
    pub(super) fn give_up(&self, error: &DiskError) {
        *self.gone.borrow_mut() = Some(error.clone());
        let all = self.table.borrow_mut().take_all();
        all.iter().for_each(|slot| slot.finish(Err(error.clone())));
    }

    pub(super) fn submit(&self, ask: Ask<S>, at: u64, len: u32, into: Vec<PieceMut<S::BlockMut>>) -> Rc<Slot<S>> {
        let slot = Slot::new(ask, at, len, into, self.pending.begin(self.seam.now()));
        match &*self.gone.borrow() {
            Some(error) => slot.finish(Err(error.clone())),
            None => {
                self.table.borrow_mut().add(Rc::clone(&slot));
                self.wake();
            }
        }
        slot
    }

    pub(super) fn can(&self, flag: u16) -> bool {
        self.facts.get().flags & flag != 0
    }

    /// True if the server supports fast zero requests and has not refused one.
    pub(super) fn may_zero_fast(&self) -> bool {
        self.can(flags::SEND_WRITE_ZEROES) && self.can(flags::SEND_FAST_ZERO) && !self.zeroes_slowly.get()
    }

    pub(super) fn check_writable(&self) -> DiskResult<()> {
        let read_only = self.options.read_only || self.can(flags::READ_ONLY);
        if read_only { Err(DiskError::ReadOnly) } else { Ok(()) }
    }
}
