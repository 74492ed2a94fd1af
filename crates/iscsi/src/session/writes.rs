//! Flow control of write data: counting, R2Ts, and the delivery to units.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Context, Poll};

use iscsi_protocol::ResponseBody;
use iscsi_protocol::request::DataOut;
use scsi::Cancelled;
use seam::Seam;

use super::Session;
use super::task::{DataClass, Task};
use crate::options::{AHEAD_BYTES, R2T_BYTES};

/// Write data held by a session.
#[derive(Default)]
pub(super) struct Writes {
    /// Bytes requested or received, until their units are done with them.
    held_bytes: Cell<usize>,
    /// Bytes that units are working on.
    at_units_bytes: Cell<usize>,
    /// Commands whose units wait for data, by number. The oldest may always send an R2T, which prevents a deadlock.
    waiting: RefCell<BTreeMap<u64, Rc<Task>>>,
}

impl Writes {
    pub(super) fn held_bytes(&self) -> usize {
        self.held_bytes.get()
    }

    fn is_oldest(&self, task: &Task) -> bool {
        self.waiting.borrow().first_key_value().is_none_or(|(number, _)| *number >= task.number)
    }

    /// Wakes the oldest command that had no room for an R2T.
    fn wake_starved(&self) {
        let could_not_ask = |task: &&Rc<Task>| {
            let data = task.data.borrow();
            data.may_ask() && data.outstanding() == 0
        };
        if let Some(task) = self.waiting.borrow().values().find(could_not_ask) {
            task.wake();
        }
    }

    /// Records that a unit waits for its command's data.
    fn wait(&self, task: &Rc<Task>) {
        self.waiting.borrow_mut().entry(task.number).or_insert_with(|| Rc::clone(task));
    }

    /// Records that the unit waits no longer.
    fn stop_waiting(&self, task: &Task) {
        if self.waiting.borrow_mut().remove(&task.number).is_some() {
            self.wake_starved();
        }
    }
}

impl<S: Seam> Session<S> {
    /// True if there is no room for `bytes` of unsolicited data: both the session's share and the server's limit are
    /// exceeded.
    pub(super) fn is_full_of_writes(&self, bytes: usize) -> bool {
        let shared = &self.spec.shared;
        self.writes.held_bytes.get() + bytes > shared.payload_share()
            && shared.payload_bytes.get() + bytes > shared.options.payload_bytes_max
    }

    /// Counts further bytes.
    pub(super) fn hold(&self, bytes: usize) {
        for held in [&self.writes.held_bytes, &self.spec.shared.payload_bytes] {
            held.set(held.get() + bytes);
        }
    }

    fn release(&self, bytes: usize) {
        if bytes > 0 {
            for held in [&self.writes.held_bytes, &self.spec.shared.payload_bytes] {
                held.set(held.get().checked_sub(bytes).expect("released bytes were held"));
            }
            self.writes.wake_starved();
        }
    }

    /// Accepts data of a command. Data out of order fail this command only.
    pub(super) fn receive_data(&self, task_tag: u32, pdu: &DataOut, data: &[u8]) {
        // The command may have ended before its data were complete.
        let Some(task) = self.tasks.borrow().get(&task_tag).cloned() else { return };
        let mut arriving = task.data.borrow_mut();
        let (arrived, is_over) = (arriving.arrive(pdu, data), arriving.is_over());
        drop(arriving);
        match arrived {
            DataClass::Wrong if !task.is_broken.replace(true) => {
                self.end_reception(&task);
                task.cancel();
            }
            DataClass::Unsolicited { spare } if !is_over => self.release(spare as usize),
            DataClass::Unsolicited { .. } | DataClass::Solicited | DataClass::Wrong => (),
        }
        task.wake();
    }

    /// Sends R2Ts for data up to offset `wanted`, and for some data ahead if there is room.
    fn send_r2ts(&self, task: &Rc<Task>, wanted: u32) {
        let parameters = &self.spec.agreed.parameters;
        let r2t_bytes = R2T_BYTES.min(parameters.burst_bytes);
        let mut data = task.data.borrow_mut();
        while data.may_ask() && data.outstanding() < usize::from(parameters.outstanding_r2t) {
            let is_wanted = data.requested() < wanted;
            if !is_wanted && data.requested() >= wanted.saturating_add(AHEAD_BYTES) {
                break;
            }
            // Half of the share is left for unsolicited data. While units work, their progress makes room.
            let fits = self.writes.held_bytes.get() + r2t_bytes as usize <= self.spec.shared.payload_share() / 2;
            let must = is_wanted
                && data.outstanding() == 0
                && self.writes.at_units_bytes.get() == 0
                && self.writes.is_oldest(task);
            if !fits && !must {
                break;
            }
            let target_tag = self.next_number();
            let (r2t_sn, offset, len) = data.ask(target_tag, r2t_bytes);
            self.hold(len as usize);
            let body = ResponseBody::ReadyToTransfer { lun: task.lun, target_tag, r2t_sn, offset, len };
            self.queue(task.tag, body, &[]);
            self.control().wake();
        }
    }

    /// Waits until a command's requested data have arrived: its answer follows the last of them.
    pub(super) async fn wait_for_requested_data(&self, task: &Rc<Task>) {
        self.end_reception(task);
        poll_fn(|context| {
            if task.cancel.is_cancelled() || self.duplex.is_draining() || task.data.borrow().is_settled() {
                return Poll::Ready(());
            }
            task.register(context);
            Poll::Pending
        })
        .await;
    }

    /// Ends the reception of a command's data.
    pub(super) fn end_reception(&self, task: &Task) {
        let held = task.data.borrow_mut().end();
        self.release(held);
        self.writes.stop_waiting(task);
    }
}

/// Delivery of a command's data to its unit.
pub(super) struct Data<S: Seam> {
    session: Rc<Session<S>>,
    task: Rc<Task>,
    /// Bytes that the unit is working on.
    at_unit_bytes: usize,
}

impl<S: Seam> Data<S> {
    pub(super) fn new(session: &Rc<Session<S>>, task: &Rc<Task>) -> Self {
        Data { session: Rc::clone(session), task: Rc::clone(task), at_unit_bytes: 0 }
    }

    /// Releases the bytes that the unit is done with.
    fn done(&mut self) {
        let bytes = std::mem::take(&mut self.at_unit_bytes);
        let at_units = &self.session.writes.at_units_bytes;
        at_units.set(at_units.get() - bytes);
        self.session.release(bytes);
    }

    fn poll_here(&self, len: usize, context: &Context<'_>) -> Poll<Result<(), Cancelled>> {
        let (here, position) = {
            let data = self.task.data.borrow();
            (data.here(), data.position())
        };
        let lost = self.session.duplex.is_draining() && here < len;
        if self.task.cancel.is_cancelled() || lost {
            return Poll::Ready(Err(Cancelled));
        }
        let is_here = here >= len;
        match is_here {
            true => self.session.writes.stop_waiting(&self.task),
            false => self.session.writes.wait(&self.task),
        }
        let wanted = position.saturating_add(len.try_into().unwrap_or(u32::MAX));
        self.session.send_r2ts(&self.task, wanted);
        if is_here {
            return Poll::Ready(Ok(()));
        }
        self.task.register(context);
        Poll::Pending
    }
}

impl<S: Seam> scsi::DataOut for Data<S> {
    async fn take(&mut self, len: usize, into: &mut Vec<u8>) -> Result<(), Cancelled> {
        if into.is_empty() {
            self.done();
            if self.task.data.borrow().here() < len {
                // A waiting unit keeps no spare capacity.
                *into = Vec::new();
            }
        }
        poll_fn(|context| self.poll_here(len, context)).await?;
        let taken = self.task.data.borrow_mut().take(len, into);
        assert_eq!(taken, len, "the data have arrived");
        self.at_unit_bytes += len;
        let at_units = &self.session.writes.at_units_bytes;
        at_units.set(at_units.get() + len);
        let write_bytes = &self.session.counters.write_bytes;
        write_bytes.set(write_bytes.get() + len as u64);
        Ok(())
    }
}

impl<S: Seam> Drop for Data<S> {
    fn drop(&mut self) {
        self.done();
    }
}
