//! An owner: executes requests, renews its lease, and leaves when it cannot.

use super::Ownership;
use crate::action::{Action, LossReason};
use crate::ids::{Epoch, NodeId, OpId};
use crate::lease::{Lease, LeasePhase, ReleasedFence, Renewal, RenewalStep};
use crate::record::{Expected, OwnerRecord};
use crate::request::Stage;
use crate::sabotage::Sabotage;
use crate::settings::{FENCE_ORDERS_MAX, FENCE_TIMEOUT, OPERATION_TIMEOUT};
use crate::state::{DrainStep, State};
use seam::Nanos;

impl Ownership {
    /// Begins to serve. The record was read back by an operation that began at `confirmed_at`.
    pub(super) fn serve(&mut self, now: Nanos, record: OwnerRecord, confirmed_at: Nanos) {
        self.learn(&record);
        for connection in self.connections.values_mut() {
            connection.needs_renewal = 0;
            connection.is_superseded = false;
            connection.is_departing = false;
            connection.precedes_drain = false;
        }
        for request in self.requests.values_mut() {
            request.needs_renewal = 0;
        }
        self.nodes_with_clients.clear();
        self.destage_needs_renewal = None;
        self.state = State::Owning { lease: Lease::new(record, confirmed_at) };
        self.actions.push(Action::Serve { epoch: record.epoch });
        if let Some(client) = record.unfenced {
            let holds_destage = false;
            let fence = ReleasedFence { client, ops: Vec::new(), ordered_at: now, holds_destage };
            self.lease_mut().fence = Some(fence);
            self.fence_released(now);
        }
        self.step(now);
    }

    /// Orders to fence the session of the owner before, once more if there was no answer. While there are
    /// [`FENCE_ORDERS_MAX`] orders without an answer, there is no further one.
    fn fence_released(&mut self, now: Nanos) {
        let op = self.next_op();
        let fence = self.lease_mut().fence.as_mut().expect("a session is to be fenced");
        if fence.ops.len() >= FENCE_ORDERS_MAX {
            return;
        }
        fence.ops.push(op);
        fence.ordered_at = now;
        let client = fence.client;
        self.actions.push(Action::Fence { op, client });
    }

    /// An order to fence the session of the owner before has failed: it is repeated later.
    pub(super) fn released_fence_failed(&mut self, op: OpId) {
        let fence = self.lease_mut().fence.as_mut().expect("a session is to be fenced");
        fence.ops.retain(|ordered| *ordered != op);
    }

    /// True for an order to fence the session of the owner before.
    pub(super) fn is_released_fence(&self, op: OpId) -> bool {
        self.lease().and_then(|lease| lease.fence.as_ref()).is_some_and(|fence| fence.ops.contains(&op))
    }

    pub(super) fn released_fenced(&mut self, now: Nanos) {
        let fence = self.lease_mut().fence.take().expect("a session is to be fenced");
        if fence.holds_destage {
            self.want_destage(now);
        }
        self.step(now);
    }

    /// The lease of an owner.
    fn lease(&self) -> Option<&Lease> {
        match &self.state {
            State::Owning { lease } | State::Draining { lease, .. } => Some(lease),
            _ => None,
        }
    }

    fn lease_mut(&mut self) -> &mut Lease {
        match &mut self.state {
            State::Owning { lease } | State::Draining { lease, .. } => lease,
            _ => unreachable!("an owner has a lease"),
        }
    }

    pub(super) fn lease_phase(&self, now: Nanos) -> Option<LeasePhase> {
        let lease = self.lease()?;
        if self.settings.sabotage.is(Sabotage::AcknowledgeWithoutLease) {
            return Some(LeasePhase::Valid);
        }
        Some(lease.phase(now))
    }

    pub(super) fn step_owning(&mut self, now: Nanos) {
        self.act_on_lease_phase(now);
        self.renew_if_due(now);
        if self.lease_phase(now) != Some(LeasePhase::Valid) {
            return;
        }
        self.answer_all_withheld();
        let completed = self.lease().expect("an owner has a lease").completed();
        for id in self.requests_in(Stage::Waiting) {
            let request = self.requests.get_mut(&id).expect("the request waits");
            if request.needs_renewal <= completed {
                request.stage = Stage::Executing;
                self.actions.push(Action::Execute { request: id });
            }
        }
        self.destage_if_confirmed();
    }

    /// Begins the batch of destage that the data path wants, after its mark.
    pub(super) fn destage_if_confirmed(&mut self) {
        let completed = self.lease().expect("an owner has a lease").completed();
        if self.destage_needs_renewal.is_some_and(|needs| needs <= completed) {
            self.destage_needs_renewal = None;
            self.actions.push(Action::Destage);
        }
    }

    /// Withholds answers when the lease runs out, closes the front ends later, and resumes after a renewal.
    pub(super) fn act_on_lease_phase(&mut self, now: Nanos) {
        let Some(phase) = self.lease_phase(now) else { return };
        let acted = std::mem::replace(&mut self.lease_mut().acted_phase, phase);
        if acted == phase {
            return;
        }
        match phase {
            LeasePhase::Valid => self.actions.push(Action::ResumeAcknowledging),
            LeasePhase::Expired => self.actions.push(Action::StopAcknowledging),
            LeasePhase::Closed => {
                if acted == LeasePhase::Valid {
                    self.actions.push(Action::StopAcknowledging);
                }
                self.close_front_ends();
            }
        }
    }

    pub(super) fn renew_if_due(&mut self, now: Nanos) {
        let requests = self.requests.values().filter(|request| request.stage == Stage::Waiting);
        let needs = requests.map(|request| request.needs_renewal).chain(self.destage_needs_renewal).max();
        let connections = self.connections.values().map(|connection| connection.needs_renewal).max();
        let drain = match &self.state {
            State::Draining { needs_renewal, .. } => Some(*needs_renewal),
            _ => None,
        };
        let needs = needs.max(connections).max(drain).unwrap_or(0);
        if !self.lease().is_some_and(|lease| lease.is_due(now, needs)) {
            return;
        }
        let op = self.next_op();
        let is_mark = self.destage_needs_renewal.is_some() && !self.settings.sabotage.is(Sabotage::DestageWithoutMark);
        self.lease_mut().begin(now, op, is_mark);
        self.actions.push(Action::ReadRecord { op });
    }

    /// Takes the next step of the renewal in progress.
    fn continue_renewal(&mut self, step: RenewalStep) -> OpId {
        let (op, now) = (self.next_op(), self.now);
        let renewal = self.lease_mut().renewal.as_mut().expect("a renewal is in progress");
        (renewal.op, renewal.step, renewal.step_at) = (op, step, now);
        op
    }

    /// Repeats operations of an owner that have had no answer for too long.
    pub(super) fn tick_owner(&mut self, now: Nanos) {
        let is_drain_overdue = match &self.state {
            State::Draining { step: DrainStep::Record { .. } | DrainStep::ReadBack { .. }, step_at, .. }
            | State::Draining { step: DrainStep::Unlock(_), step_at, .. } => now.since(*step_at) >= OPERATION_TIMEOUT,
            _ => false,
        };
        let is_fence_overdue =
            |lease: &Lease| lease.fence.as_ref().is_some_and(|fence| now.since(fence.ordered_at) >= FENCE_TIMEOUT);
        if self.lease().is_some_and(is_fence_overdue) {
            self.fence_released(now);
        }
        if is_drain_overdue || self.lease().is_some_and(|lease| lease.is_overdue(now)) {
            self.repeat_operation(now);
        }
    }

    /// Repeats the operation that has no result: the renewal from its start; the release from its read, which shows
    /// whether the record was written.
    pub(super) fn repeat_operation(&mut self, now: Nanos) {
        if let State::Draining { step, .. } = &self.state {
            match *step {
                DrainStep::Record { new, .. } | DrainStep::ReadBack { new, .. } => return self.release_recorded(new),
                DrainStep::Unlock(_) => return self.unlocked(now),
                DrainStep::AwaitRequests | DrainStep::Quiesce(_) | DrainStep::AwaitRenewal => {}
            }
        }
        let Some(renewal) = self.lease().and_then(|lease| lease.renewal) else { return };
        match renewal.step {
            // The mark may have been written, or may be written later: only a read tells.
            RenewalStep::Write(new) | RenewalStep::ReadBack(new) => self.mark_written(new),
            RenewalStep::Read => {
                let op = self.continue_renewal(RenewalStep::Read);
                self.actions.push(Action::ReadRecord { op });
            }
        }
    }

    /// The mark of a renewal was written: reads it back.
    pub(super) fn mark_written(&mut self, new: OwnerRecord) {
        let op = self.continue_renewal(RenewalStep::ReadBack(new));
        self.actions.push(Action::ReadRecord { op });
    }

    /// A renewal has read the record. Any other than the owner's means that the ownership is lost, or that this process
    /// went back in time.
    pub(super) fn renewal_read(&mut self, now: Nanos, renewal: Renewal, record: OwnerRecord) {
        let old = self.lease_mut().record;
        let expected = match renewal.step {
            RenewalStep::ReadBack(new) => new,
            RenewalStep::Read | RenewalStep::Write(_) => old,
        };
        if matches!(renewal.step, RenewalStep::ReadBack(_)) && record == old {
            // The mark had no answer, and was not written so far.
            let op = self.continue_renewal(RenewalStep::Write(expected));
            self.actions.push(Action::WriteRecord { op, expected: Expected::Record(old), new: expected });
            return;
        }
        if record != expected && !self.tolerates(&record, &expected) {
            return self.lose(now, LossReason::Stale);
        }
        if renewal.step == RenewalStep::Read && (renewal.is_mark || self.is_unrecorded(&record)) {
            let new = OwnerRecord { mark: old.mark + 1, ..old };
            let op = self.continue_renewal(RenewalStep::Write(new));
            let expected = if self.is_unrecorded(&record) || self.settings.sabotage.is(Sabotage::AutomaticLock) {
                Expected::Epoch(record.epoch)
            } else {
                Expected::Record(old)
            };
            self.actions.push(Action::WriteRecord { op, expected, new });
            return;
        }
        self.lease_mut().record = expected;
        self.lease_mut().complete();
        self.act_on_lease_phase(now);
        self.step(now);
    }

    /// True for a record that a sabotaged owner believes.
    fn tolerates(&self, record: &OwnerRecord, expected: &OwnerRecord) -> bool {
        self.is_unrecorded(record)
            || self.settings.sabotage.is(Sabotage::AutomaticLock) && record.epoch == expected.epoch
    }

    /// True if a sabotaged owner has yet to write its record.
    fn is_unrecorded(&self, record: &OwnerRecord) -> bool {
        let is_old = self.lease().is_some_and(|lease| record.epoch < lease.record.epoch);
        self.settings.sabotage.is(Sabotage::EpochAfterServing) && is_old
    }

    /// Destage begins after a renewal that began after the data path has asked, and that has marked the record: a
    /// process whose memory went back in time writes nothing to the image, where the storage could not refuse it.
    pub(super) fn want_destage(&mut self, now: Nanos) {
        let is_draining = matches!(self.state, State::Draining { .. });
        if is_draining && self.settings.sabotage.is(Sabotage::HandOverWithoutDestage) {
            return;
        }
        // A hand-over needs room in the log.
        let (State::Owning { lease }
        | State::Draining { lease, step: DrainStep::AwaitRequests | DrainStep::Quiesce(_), .. }) = &mut self.state
        else {
            return;
        };
        if let Some(fence) = &mut lease.fence {
            fence.holds_destage = true;
            return;
        }
        let needs = if self.settings.sabotage.is(Sabotage::SkipConfirmation) { 0 } else { lease.next_renewal() };
        self.destage_needs_renewal = Some(needs);
        self.step(now);
    }

    pub(super) fn hand_over_requested(&mut self, now: Nanos, from: NodeId, epoch: Epoch, is_first_write: bool) {
        let State::Owning { lease } = &self.state else { return self.taken_for_owner(now) };
        if lease.record.epoch != epoch {
            return;
        }
        self.nodes_with_clients.insert(from);
        let favours_readers = self.settings.sabotage.is(Sabotage::FavourReaders);
        if is_first_write || !self.connections.values().any(|connection| connection.has_written || favours_readers) {
            self.start_drain(now, Some(from));
        }
    }

    pub(super) fn start_drain(&mut self, now: Nanos, to: Option<NodeId>) {
        let State::Owning { lease } = &self.state else { unreachable!("an owner drains") };
        let (lease, needs_renewal) = (lease.clone(), lease.next_renewal());
        if self.settings.sabotage.is(Sabotage::HandOverWithoutDestage) {
            self.destage_needs_renewal = None;
        }
        for connection in self.connections.values_mut() {
            connection.precedes_drain = true;
        }
        self.state = State::Draining { lease, to, needs_renewal, step: DrainStep::AwaitRequests, step_at: now };
        self.step(now);
    }
}
