//! The data of writes: what is held of them, when more is asked for, and how a unit gets them.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Context, Poll};

use iscsi_protocol::ResponseBody;
use iscsi_protocol::request::DataOut;
use scsi::Gone;
use seam::Seam;

use super::Session;
use super::task::{Arrived, Task};
use crate::options::{AHEAD_BYTES, R2T_BYTES};

/// What a session holds of writes.
#[derive(Default)]
pub(super) struct Writes {
    /// Bytes that have come, until their units have done with them, and bytes that were asked for.
    held_bytes: Cell<usize>,
    /// The part of it that units are at work on.
    at_units_bytes: Cell<usize>,
    /// Commands whose units wait for data, by their numbers. The oldest always has room to ask for some, or they would all wait for each
    /// other.
    waiting: RefCell<BTreeMap<u64, Rc<Task>>>,
}

impl Writes {
    pub(super) fn held_bytes(&self) -> usize {
        self.held_bytes.get()
    }

    fn is_oldest(&self, task: &Task) -> bool {
        self.waiting.borrow().first_key_value().is_none_or(|(number, _)| *number >= task.number)
    }

    /// There is room again: the oldest that could not ask looks.
    fn wake_starved(&self) {
        let could_not_ask = |task: &&Rc<Task>| {
            let data = task.data.borrow();
            data.may_ask() && data.outstanding() == 0
        };
        if let Some(task) = self.waiting.borrow().values().find(could_not_ask) {
            task.wake();
        }
    }

    /// A unit waits for its command's data.
    fn wait(&self, task: &Rc<Task>) {
        self.waiting.borrow_mut().entry(task.number).or_insert_with(|| Rc::clone(task));
    }

    /// It waits no longer.
    fn satisfied(&self, task: &Task) {
        if self.waiting.borrow_mut().remove(&task.number).is_some() {
            self.wake_starved();
        }
    }
}

impl<S: Seam> Session<S> {
    /// True when there is no room for `bytes` of data that nobody asked for: the session has more than its share, and all of them
    /// together as much as they may.
    pub(super) fn is_full_of_writes(&self, bytes: usize) -> bool {
        let shared = &self.spec.shared;
        self.writes.held_bytes.get() + bytes > shared.payload_share()
            && shared.payload_bytes.get() + bytes > shared.options.payload_bytes_max
    }

    /// Holds so many more bytes.
    pub(super) fn hold(&self, bytes: usize) {
        for held in [&self.writes.held_bytes, &self.spec.shared.payload_bytes] {
            held.set(held.get() + bytes);
        }
    }

    fn let_go(&self, bytes: usize) {
        if bytes > 0 {
            for held in [&self.writes.held_bytes, &self.spec.shared.payload_bytes] {
                held.set(held.get().checked_sub(bytes).expect("what is let go was held"));
            }
            self.writes.wake_starved();
        }
    }

    /// Takes a piece of data in. A command whose data do not come as they should fails, and nothing but it.
    pub(super) fn take_data(&self, task_tag: u32, pdu: &DataOut, data: &[u8]) {
        // The command may have ended before it wanted them all.
        let Some(task) = self.tasks.borrow().get(&task_tag).cloned() else { return };
        let mut arriving = task.data.borrow_mut();
        let (arrived, is_over) = (arriving.arrive(pdu, data), arriving.is_over());
        drop(arriving);
        match arrived {
            Arrived::Wrong if !task.is_broken.replace(true) => {
                self.end_data(&task);
                task.cancel();
            }
            Arrived::Unasked { spare } if !is_over => self.let_go(spare as usize),
            Arrived::Unasked { .. } | Arrived::Asked | Arrived::Wrong => (),
        }
        task.wake();
    }

    /// Asks for data up to the `wanted`th byte of the command, and some more where there is room.
    fn ask_for(&self, task: &Rc<Task>, wanted: u32) {
        let parameters = &self.spec.agreed.parameters;
        let r2t_bytes = R2T_BYTES.min(parameters.burst_bytes);
        let mut data = task.data.borrow_mut();
        while data.may_ask() && data.outstanding() < usize::from(parameters.outstanding_r2t) {
            let is_wanted = data.requested() < wanted;
            if !is_wanted && data.requested() >= wanted.saturating_add(AHEAD_BYTES) {
                break;
            }
            // The other half is for what comes without being asked for. Units at work make room without being given more.
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

    /// Waits until nothing more of a command's data is on its way, so that its answer comes after all that it asked for.
    pub(super) async fn settle(&self, task: &Rc<Task>) {
        self.end_data(task);
        poll_fn(|context| {
            if task.cancel.is_cancelled() || self.draining.get() || task.data.borrow().is_settled() {
                return Poll::Ready(());
            }
            task.register(context);
            Poll::Pending
        })
        .await;
    }

    /// Nobody takes a command's data any more.
    pub(super) fn end_data(&self, task: &Task) {
        let held = task.data.borrow_mut().end();
        self.let_go(held);
        self.writes.satisfied(task);
    }
}

/// A unit's way to a command's data.
pub(super) struct Data<S: Seam> {
    session: Rc<Session<S>>,
    task: Rc<Task>,
    /// Bytes that the unit is at work on.
    at_unit_bytes: usize,
}

impl<S: Seam> Data<S> {
    pub(super) fn new(session: &Rc<Session<S>>, task: &Rc<Task>) -> Self {
        Data { session: Rc::clone(session), task: Rc::clone(task), at_unit_bytes: 0 }
    }

    /// The unit has done with what it was given.
    fn done(&mut self) {
        let bytes = std::mem::take(&mut self.at_unit_bytes);
        let at_units = &self.session.writes.at_units_bytes;
        at_units.set(at_units.get() - bytes);
        self.session.let_go(bytes);
    }

    fn poll_here(&self, len: usize, context: &Context<'_>) -> Poll<Result<(), Gone>> {
        let (here, position) = {
            let data = self.task.data.borrow();
            (data.here(), data.position())
        };
        let lost = self.session.draining.get() && here < len;
        if self.task.cancel.is_cancelled() || lost {
            return Poll::Ready(Err(Gone));
        }
        let is_here = here >= len;
        match is_here {
            true => self.session.writes.satisfied(&self.task),
            false => self.session.writes.wait(&self.task),
        }
        let wanted = position.saturating_add(len.try_into().unwrap_or(u32::MAX));
        self.session.ask_for(&self.task, wanted);
        if is_here {
            return Poll::Ready(Ok(()));
        }
        self.task.register(context);
        Poll::Pending
    }
}

impl<S: Seam> scsi::DataOut for Data<S> {
    async fn take(&mut self, len: usize, into: &mut Vec<u8>) -> Result<(), Gone> {
        if into.is_empty() {
            self.done();
            if self.task.data.borrow().here() < len {
                // What waits holds no more than what is counted.
                *into = Vec::new();
            }
        }
        poll_fn(|context| self.poll_here(len, context)).await?;
        let taken = self.task.data.borrow_mut().take(len, into);
        assert_eq!(taken, len, "as many were there");
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
