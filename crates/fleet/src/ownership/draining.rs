//! A planned hand-over at the owner: execute requests in flight, append dirty data to the log, release.

use super::Ownership;
use crate::action::{Action, LossReason};
use crate::lease::LeasePhase;
use crate::peer::PeerMessage;
use crate::record::{Expected, OwnerRecord};
use crate::request::{RequestKind, Source, Stage};
use crate::sabotage::Sabotage;
use crate::settings::RETRY_PERIOD;
use crate::state::{DrainStep, Standby, State};
use seam::Nanos;

impl Ownership {
    fn drain_step(&self) -> DrainStep {
        let State::Draining { step, .. } = &self.state else { unreachable!("the volume is handed over") };
        *step
    }

    fn set_drain_step(&mut self, new: DrainStep) {
        let now = self.now;
        let State::Draining { step, step_at, .. } = &mut self.state else { unreachable!("the volume is handed over") };
        (*step, *step_at) = (new, now);
    }

    pub(super) fn step_draining(&mut self, now: Nanos) {
        self.act_on_lease_phase(now);
        self.answer_withheld(now);
        let State::Draining { lease, needs_renewal, .. } = &self.state else { return };
        let is_confirmed = lease.completed() >= *needs_renewal;
        let is_fenced = lease.fence.is_none();
        let is_idle = self.requests_in(Stage::Executing).is_empty();
        if self.drain_step() == DrainStep::AwaitRequests && is_confirmed && is_fenced && is_idle {
            if self.settings.sabotage.is(Sabotage::ReleaseBeforeQuiesce) {
                self.set_drain_step(DrainStep::AwaitRenewal);
            } else {
                let op = self.next_op();
                self.set_drain_step(DrainStep::Quiesce(op));
                self.actions.push(Action::Quiesce { op });
            }
        }
        match self.drain_step() {
            DrainStep::AwaitRequests | DrainStep::Quiesce(_) => {
                self.renew_if_due(now);
                if self.lease_phase(now) == Some(LeasePhase::Valid) {
                    self.destage_if_confirmed();
                }
            }
            DrainStep::AwaitRenewal => self.release_record(),
            DrainStep::Record { .. } | DrainStep::ReadBack { .. } | DrainStep::Unlock(_) => {}
        }
    }

    /// Writes that the volume is released, once no renewal is in progress.
    fn release_record(&mut self) {
        let State::Draining { lease, .. } = &self.state else { unreachable!("the volume is handed over") };
        if lease.renewal.is_some() {
            return;
        }
        let new = OwnerRecord { is_released: true, unfenced: None, ..lease.record };
        self.write_release(new);
    }

    fn write_release(&mut self, new: OwnerRecord) {
        let State::Draining { lease, .. } = &self.state else { unreachable!("the volume is handed over") };
        let old = lease.record;
        let op = self.next_op();
        self.set_drain_step(DrainStep::Record { op, new });
        let is_automatic = self.settings.sabotage.is(Sabotage::AutomaticLock);
        let expected = if is_automatic { Expected::Epoch(old.epoch) } else { Expected::Record(old) };
        self.actions.push(Action::WriteRecord { op, expected, new });
    }

    pub(super) fn quiesced(&mut self, now: Nanos) {
        self.destage_needs_renewal = None;
        self.set_drain_step(DrainStep::AwaitRenewal);
        self.step(now);
    }

    pub(super) fn release_recorded(&mut self, new: OwnerRecord) {
        let op = self.next_op();
        self.set_drain_step(DrainStep::ReadBack { op, new });
        self.actions.push(Action::ReadRecord { op });
    }

    /// The record read back proves that this node owned the volume until now: executed requests are answered.
    pub(super) fn release_read_back(&mut self, now: Nanos, record: OwnerRecord, new: OwnerRecord) {
        let State::Draining { lease, .. } = &self.state else { unreachable!("the volume is handed over") };
        if record == lease.record {
            // The release had no answer, and was not written so far. Nothing was served since.
            return self.write_release(new);
        }
        if record != new {
            return self.lose(now, LossReason::Stale);
        }
        self.answer_all_withheld();
        let op = self.next_op();
        self.set_drain_step(DrainStep::Unlock(op));
        self.actions.push(Action::ReleaseLock { op });
    }

    /// The lock is released: this node is a standby, and its connections have nothing unflushed.
    pub(super) fn unlocked(&mut self, now: Nanos) {
        let State::Draining { lease, to, .. } = &self.state else { unreachable!("the volume is handed over") };
        let (epoch, to) = (lease.record.epoch, *to);
        let departs_all = self.settings.sabotage.is(Sabotage::TargetDeparts);
        for connection in self.connections.values_mut().filter(|connection| connection.precedes_drain) {
            connection.is_superseded = true;
            // One without writes may be the target of a migration, whose guest still writes elsewhere.
            connection.is_departing = connection.has_written || departs_all;
        }
        // Requests that wait here may have observed what the target writes.
        for request in self.requests.values().filter(|request| request.kind != RequestKind::Flush) {
            if let Source::Connection(connection) = request.source
                && let Some(connection) = self.connections.get_mut(&connection)
            {
                connection.is_departing = false;
            }
        }
        self.nodes_with_clients.extend(to);
        for node in std::mem::take(&mut self.nodes_with_clients) {
            self.actions.push(Action::Send { to: node, message: PeerMessage::Released(epoch) });
        }
        self.actions.push(Action::Discard);
        // The target claims first.
        let look_at = now + RETRY_PERIOD;
        self.enter_standby(now, Standby { owner: None, epoch, look_at, ask_at: now });
    }
}
