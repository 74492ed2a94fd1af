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
use crate::options::{PREFETCH_BYTES, R2T_BYTES_MAX};

/// Write data of a session: its reservations, and the commands that wait for data.
#[derive(Default)]
pub(super) struct Writes {
    /// Bytes requested or received and not yet consumed by their units.
    reserved_bytes: Cell<usize>,
    /// Bytes that units are processing.
    processing_bytes: Cell<usize>,
    /// Commands whose units wait for data, by number. The oldest may always send an R2T, which prevents a deadlock.
    waiting: RefCell<BTreeMap<u64, Rc<Task>>>,
}

impl Writes {
    /// Bytes requested or received and not yet consumed by their units.
    pub(super) fn reserved_bytes(&self) -> usize {
        self.reserved_bytes.get()
    }

    fn is_oldest(&self, task: &Task) -> bool {
        self.waiting.borrow().first_key_value().is_none_or(|(number, _)| *number >= task.number)
    }

    /// Wakes the oldest command that could not send an R2T.
    fn wake_starved(&self) {
        let is_starved = |task: &&Rc<Task>| {
            let data = task.data.borrow();
            data.may_send_r2t() && data.outstanding() == 0
        };
        if let Some(task) = self.waiting.borrow().values().find(is_starved) {
            task.wake();
        }
    }

    /// Records that a unit waits for the data of its command.
    fn add_waiting(&self, task: &Rc<Task>) {
        self.waiting.borrow_mut().entry(task.number).or_insert_with(|| Rc::clone(task));
    }

    /// Records that the unit waits no longer.
    fn remove_waiting(&self, task: &Task) {
        if self.waiting.borrow_mut().remove(&task.number).is_some() {
            self.wake_starved();
        }
    }
}

impl<S: Seam> Session<S> {
    /// True if `bytes` of further unsolicited data cannot be accepted: both the session's quota and the server's limit
    /// are exceeded.
    pub(super) fn exceeds_write_quota(&self, bytes: usize) -> bool {
        let shared = &self.spec.shared;
        self.writes.reserved_bytes.get() + bytes > shared.payload_quota_bytes()
            && shared.payload_bytes.get() + bytes > shared.options.payload_bytes_max
    }

    /// Reserves further bytes of the write data quota.
    pub(super) fn reserve_write_bytes(&self, bytes: usize) {
        for counter in [&self.writes.reserved_bytes, &self.spec.shared.payload_bytes] {
            counter.set(counter.get() + bytes);
        }
    }

    /// Releases reserved bytes of write data.
    fn release_write_bytes(&self, bytes: usize) {
        if bytes > 0 {
            for counter in [&self.writes.reserved_bytes, &self.spec.shared.payload_bytes] {
                counter.set(counter.get().checked_sub(bytes).expect("released bytes were reserved"));
            }
            self.writes.wake_starved();
        }
    }

    /// Accepts data of a command. Data out of order fails this command only.
    pub(super) fn receive_data(&self, task_tag: u32, pdu: &DataOut, data: &[u8]) {
        // The command may have ended before its data was complete.
        let Some(task) = self.tasks.borrow().get(&task_tag).cloned() else { return };
        let mut write_data = task.data.borrow_mut();
        let (class, has_ended) = (write_data.accept_pdu(pdu, data), write_data.has_ended());
        drop(write_data);
        match class {
            DataClass::OutOfOrder if !task.has_data_error.replace(true) => {
                self.stop_reception(&task);
                task.cancel();
            }
            DataClass::Unsolicited { spare } if !has_ended => self.release_write_bytes(spare as usize),
            DataClass::Unsolicited { .. } | DataClass::Solicited | DataClass::OutOfOrder => (),
        }
        task.wake();
    }

    /// Sends R2Ts for data up to offset `end`, and for some data beyond it within the quota.
    fn send_r2ts(&self, task: &Rc<Task>, end: u32) {
        let parameters = &self.spec.negotiated.parameters;
        let r2t_bytes = R2T_BYTES_MAX.min(parameters.max_burst_bytes);
        let mut data = task.data.borrow_mut();
        while data.may_send_r2t() && data.outstanding() < usize::from(parameters.outstanding_r2t_max) {
            let is_wanted = data.requested() < end;
            if !is_wanted && data.requested() >= end.saturating_add(PREFETCH_BYTES) {
                break;
            }
            // Half of the quota is left for unsolicited data.
            let is_within_quota =
                self.writes.reserved_bytes.get() + r2t_bytes as usize <= self.spec.shared.payload_quota_bytes() / 2;
            // The oldest command sends one R2T beyond the quota if no unit is processing data: nothing else would
            // release bytes.
            let must_send = is_wanted
                && data.outstanding() == 0
                && self.writes.processing_bytes.get() == 0
                && self.writes.is_oldest(task);
            if !is_within_quota && !must_send {
                break;
            }
            let target_tag = self.draw_target_tag();
            let (r2t_sn, offset, len) = data.request(target_tag, r2t_bytes);
            self.reserve_write_bytes(len as usize);
            let body = ResponseBody::ReadyToTransfer { lun: task.lun, target_tag, r2t_sn, offset, len };
            self.queue(task.tag, body, &[]);
            self.control().wake();
        }
    }

    /// Waits until all data solicited by R2Ts has arrived. The response must not precede the last Data-Out.
    pub(super) async fn wait_for_requested_data(&self, task: &Rc<Task>) {
        self.stop_reception(task);
        poll_fn(|context| {
            if task.cancel.is_cancelled() || self.duplex.is_draining() || task.data.borrow().is_complete() {
                return Poll::Ready(());
            }
            task.register(context);
            Poll::Pending
        })
        .await;
    }

    /// Ends the reception of a command's data.
    pub(super) fn stop_reception(&self, task: &Task) {
        let held = task.data.borrow_mut().stop_reception();
        self.release_write_bytes(held);
        self.writes.remove_waiting(task);
    }
}

/// Delivery of a command's data to its unit.
pub(super) struct DataDelivery<S: Seam> {
    session: Rc<Session<S>>,
    task: Rc<Task>,
    /// Bytes that the unit is processing.
    processing_bytes: usize,
}

impl<S: Seam> DataDelivery<S> {
    /// Delivery of the data of `task`.
    pub(super) fn new(session: &Rc<Session<S>>, task: &Rc<Task>) -> Self {
        DataDelivery { session: Rc::clone(session), task: Rc::clone(task), processing_bytes: 0 }
    }

    /// Releases the bytes that the unit has consumed.
    fn release_consumed(&mut self) {
        let bytes = std::mem::take(&mut self.processing_bytes);
        let processing_bytes = &self.session.writes.processing_bytes;
        processing_bytes.set(processing_bytes.get() - bytes);
        self.session.release_write_bytes(bytes);
    }

    /// Waits until `len` bytes have arrived, and requests them if necessary.
    fn poll_available(&self, len: usize, context: &Context<'_>) -> Poll<Result<(), Cancelled>> {
        let (available, position) = {
            let data = self.task.data.borrow();
            (data.available_bytes(), data.position())
        };
        let is_lost = self.session.duplex.is_draining() && available < len;
        if self.task.cancel.is_cancelled() || is_lost {
            return Poll::Ready(Err(Cancelled));
        }
        let is_available = available >= len;
        match is_available {
            true => self.session.writes.remove_waiting(&self.task),
            false => self.session.writes.add_waiting(&self.task),
        }
        let end = position.saturating_add(len.try_into().unwrap_or(u32::MAX));
        self.session.send_r2ts(&self.task, end);
        if is_available {
            return Poll::Ready(Ok(()));
        }
        self.task.register(context);
        Poll::Pending
    }
}

impl<S: Seam> scsi::DataOut for DataDelivery<S> {
    async fn take(&mut self, len: usize, into: &mut Vec<u8>) -> Result<(), Cancelled> {
        if into.is_empty() {
            self.release_consumed();
            if self.task.data.borrow().available_bytes() < len {
                // A waiting unit keeps no spare capacity.
                *into = Vec::new();
            }
        }
        poll_fn(|context| self.poll_available(len, context)).await?;
        let taken = self.task.data.borrow_mut().take(len, into);
        assert_eq!(taken, len, "the data has arrived");
        self.processing_bytes += len;
        let processing_bytes = &self.session.writes.processing_bytes;
        processing_bytes.set(processing_bytes.get() + len);
        let write_bytes = &self.session.counters.write_bytes;
        write_bytes.set(write_bytes.get() + len as u64);
        Ok(())
    }
}

impl<S: Seam> Drop for DataDelivery<S> {
    fn drop(&mut self) {
        self.release_consumed();
    }
}
