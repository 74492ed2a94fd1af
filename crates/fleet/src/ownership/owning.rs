//! An owner: executes requests, renews its lease, and leaves when it cannot.

use super::Ownership;
use crate::action::{Action, LossReason};
use crate::ids::{Epoch, NodeId};
use crate::lease::{Lease, LeasePhase};
use crate::record::{Expected, OwnerRecord};
use crate::request::Stage;
use crate::sabotage::Sabotage;
use crate::state::{DrainStep, State};
use crate::time::Nanos;

impl Ownership {
    /// Begins to serve. The record was read back by an operation that began at `confirmed_at`.
    pub(super) fn serve(&mut self, now: Nanos, record: OwnerRecord, confirmed_at: Nanos, _is_handed_over: bool) {
        for connection in self.connections.values_mut() {
            connection.needs_renewal = 0;
            connection.is_superseded = false;
        }
        for request in self.requests.values_mut() {
            request.needs_renewal = 0;
        }
        self.nodes_with_clients.clear();
        self.destage_needs_renewal = None;
        self.state = State::Owning { lease: Lease::new(record, confirmed_at, 0) };
        self.actions.push(Action::Serve { epoch: record.epoch });
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
        let needs = needs.max(connections).unwrap_or(0);
        if !self.lease().is_some_and(|lease| lease.is_due(now, needs)) {
            return;
        }
        let op = self.next_op();
        let lease = self.lease_mut();
        let expected = lease.record;
        let new = lease.begin(now, op);
        let is_unrecorded = self.settings.sabotage.is(Sabotage::EpochAfterServing) && expected.renewal == 0;
        let expected = if is_unrecorded {
            Expected::Epoch(Epoch(expected.epoch.0 - 1))
        } else if self.settings.sabotage.is(Sabotage::AutomaticLock) {
            Expected::Epoch(expected.epoch)
        } else {
            Expected::Record(expected)
        };
        self.actions.push(Action::WriteRecord { op, expected, new });
    }

    /// The record of a renewal was written: reads it back.
    pub(super) fn renewal_written(&mut self, now: Nanos) {
        if self.settings.sabotage.is(Sabotage::SkipReadBack) {
            self.lease_mut().complete();
            return self.step(now);
        }
        let op = self.next_op();
        let renewal = self.lease_mut().renewal.as_mut().expect("a renewal is in progress");
        renewal.op = op;
        renewal.is_written = true;
        self.actions.push(Action::ReadRecord { op });
    }

    pub(super) fn renewal_read_back(&mut self, now: Nanos, record: OwnerRecord) {
        let lease = self.lease_mut();
        let renewal = lease.renewal.expect("a renewal is in progress");
        let is_automatic = self.settings.sabotage.is(Sabotage::AutomaticLock) && record.epoch == renewal.new.epoch;
        if record != renewal.new && !is_automatic {
            return self.lose(now, LossReason::Stale);
        }
        self.lease_mut().complete();
        self.act_on_lease_phase(now);
        self.step(now);
    }

    /// Destage begins after a renewal that began after the data path has asked: a process whose memory went back in time
    /// writes nothing to the image, which the storage could not refuse.
    pub(super) fn want_destage(&mut self, now: Nanos) {
        let State::Owning { lease } = &self.state else { return };
        let needs = if self.settings.sabotage.is(Sabotage::SkipConfirmation) { 0 } else { lease.next_renewal() };
        self.destage_needs_renewal = Some(needs);
        self.step(now);
    }

    pub(super) fn hand_over_requested(&mut self, now: Nanos, from: NodeId, epoch: Epoch, is_first_write: bool) {
        let State::Owning { lease } = &self.state else { return };
        if lease.record.epoch != epoch {
            return;
        }
        self.nodes_with_clients.insert(from);
        if is_first_write || self.connections.is_empty() {
            self.start_drain(now, Some(from));
        }
    }

    pub(super) fn start_drain(&mut self, now: Nanos, to: Option<NodeId>) {
        let State::Owning { lease } = &self.state else { unreachable!("an owner drains") };
        let lease = lease.clone();
        self.destage_needs_renewal = None;
        self.state = State::Draining { lease, to, step: DrainStep::AwaitRequests };
        self.step(now);
    }
}
