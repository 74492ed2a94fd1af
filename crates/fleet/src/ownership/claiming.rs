//! A claim: header, new session, fences, lock, log, lease of the old owner, record.
//!
//! Each claim has a session of its own. The storage answers a write under a number that it has seen in that session
//! without executing it: a process whose memory went back in time, and that used its session again, would take an
//! append for done. Within one ownership, the renewals detect it.
//!
//! Every step can be repeated: fences and the lock are idempotent, the log is only read, and the record is written by
//! compare-and-write.

use super::Ownership;
use crate::action::Action;
use crate::claim::{Claim, Recording, TakeOver, Trigger};
use crate::event::CommandError;
use crate::ids::{Epoch, StorageClient};
use crate::record::{Expected, Header, Owner, OwnerRecord};
use crate::sabotage::Sabotage;
use crate::settings::{ATTEMPT_TIMEOUT, CLOCK_MARGIN, LEASE, RETRY_PERIOD, RIVAL_TIMEOUT, Settings};
use crate::state::{Standby, State};
use seam::Nanos;

/// Decision after the header was read.
enum Plan {
    Proceed,
    /// Another claim, or a release, is in progress.
    Retry,
    /// Another node owns the volume.
    LeaveToOwner(Owner),
    /// No node owns the volume, and this one has no use for it.
    LeaveFree,
    /// The order names another owner than the record.
    Refuse,
}

impl Ownership {
    pub(super) fn take_over(&mut self, now: Nanos, order: TakeOver) {
        let result = match &self.state {
            _ if order.is_dead && order.owner.is_some_and(|owner| owner.node == self.settings.node) => {
                Err(CommandError::SameNode)
            }
            State::Standby(_) => Ok(()),
            State::Claiming { claim, .. } if !matches!(claim.trigger, Trigger::Command(_)) => Ok(()),
            State::Owning { .. } | State::Draining { .. } => Err(CommandError::IsOwner),
            _ => Err(CommandError::Busy),
        };
        match result {
            Ok(()) => {
                self.order = None;
                self.start_claim(now, Trigger::Command(order));
            }
            Err(error) => self.actions.push(Action::AnswerCommand { id: order.id, result: Err(error) }),
        }
    }

    /// Refuses the order of a claim that ends before it is carried out.
    pub(super) fn refuse_command(&mut self, error: CommandError) {
        if let State::Claiming { claim, .. } | State::Connecting { claim } = &self.state
            && let Trigger::Command(TakeOver { id, is_accepted: false, .. }) = claim.trigger
        {
            self.actions.push(Action::AnswerCommand { id, result: Err(error) });
        }
    }

    pub(super) fn start_claim(&mut self, now: Nanos, trigger: Trigger) {
        self.read_header(Claim::new(trigger, now));
    }

    pub(super) fn read_header(&mut self, claim: Claim) {
        let op = self.next_op();
        self.state = State::Claiming { claim, op: Some(op), retry_at: Nanos::default() };
        self.actions.push(Action::ReadHeader { op });
    }

    /// Continues a claim that waits for time to pass.
    pub(super) fn tick_claim(&mut self, now: Nanos) {
        let progress_at = match &self.state {
            State::Claiming { claim, op: None, retry_at } if now >= *retry_at => {
                let claim = claim.clone();
                return self.read_header(claim);
            }
            State::AwaitingLease { claim } if now >= claim.lease_ends_at => {
                let claim = Claim { progress_at: now, ..claim.clone() };
                return self.write_record(now, claim);
            }
            State::Claiming { claim, .. }
            | State::Connecting { claim }
            | State::Fencing { claim, .. }
            | State::Acquiring { claim, .. }
            | State::Replaying { claim, .. }
            | State::Recording { claim, .. } => claim.progress_at,
            _ => return,
        };
        if now.since(progress_at) >= ATTEMPT_TIMEOUT {
            self.abandon_claim(now);
        }
    }

    /// Gives the attempt up. Its operations may still have effect, none of which harms: their results are ignored. A
    /// session that may have the lock is closed, so that the lock becomes free; an order is carried out later.
    pub(super) fn abandon_claim(&mut self, now: Nanos) {
        match &self.state {
            State::Claiming { .. } | State::Connecting { .. } | State::Fencing { .. } => {
                self.refuse_command(CommandError::NoAnswer);
                self.keep_order();
                self.enter_standby(now, Standby { look_at: now + RETRY_PERIOD, ..Standby::default() });
            }
            State::Acquiring { .. }
            | State::Replaying { .. }
            | State::AwaitingLease { .. }
            | State::Recording { .. } => self.replace_client(),
            State::Standby(_) | State::Owning { .. } | State::Draining { .. } | State::Fenced => {}
        }
    }

    /// Keeps the accepted order of a claim that fails, for the next one. The record decides whether it still holds.
    pub(super) fn keep_order(&mut self) {
        if let Some(claim) = self.state.claim_mut()
            && let Trigger::Command(order) = claim.trigger
        {
            self.order = Some(order).filter(|order| order.is_accepted);
        }
    }

    /// Notes that an operation of the claim has ended, or has come further.
    pub(super) fn note_progress(&mut self, now: Nanos) {
        if let Some(claim) = self.state.claim_mut() {
            claim.progress_at = now;
        }
    }

    pub(super) fn header_read(&mut self, now: Nanos, header: &Header) {
        let State::Claiming { claim, .. } = &self.state else { unreachable!("a claim reads the header") };
        let mut claim = claim.clone();
        let trusts_copy = self.settings.sabotage.is(Sabotage::TrustCopiedRecord);
        let record = if trusts_copy { header.record } else { header.own_record() };
        (claim.image, claim.old_epoch, claim.lost_epoch) = (header.image, record.epoch, record.lost_epoch);
        if claim.epoch() == claim.old_epoch {
            // No epoch is left: the record is damaged, and no owner can be told from the next one.
            return self.abandon_claim(now);
        }
        self.learn(&record);
        if claim.trigger == Trigger::Request && self.connections.is_empty() {
            // The clients are gone for which the volume was claimed.
            return self.abandon_claim(now);
        }
        match self.plan(now, &mut claim, header, &record) {
            Plan::Proceed => {
                if let Trigger::Command(order) = &mut claim.trigger
                    && !std::mem::replace(&mut order.is_accepted, true)
                {
                    self.actions.push(Action::AnswerCommand { id: order.id, result: Ok(()) });
                }
                self.connect_claim(claim);
            }
            Plan::Refuse => {
                self.refuse_command(CommandError::OtherOwner(header.record));
                self.enter_standby(now, Standby::default());
            }
            Plan::Retry => self.state = State::Claiming { claim, op: None, retry_at: now + self.retry_pause() },
            Plan::LeaveFree => {
                let look_at = now + RETRY_PERIOD;
                self.enter_standby(now, Standby { look_at, ..Standby::default() });
            }
            Plan::LeaveToOwner(owner) => {
                let (epoch, look_at) = (record.epoch, now + RETRY_PERIOD);
                self.enter_standby(now, Standby { owner: Some(owner), epoch, look_at, ask_at: Nanos::default() });
            }
        }
    }

    fn connect_claim(&mut self, claim: Claim) {
        if self.settings.sabotage.is(Sabotage::ReuseSession) {
            return self.fence_next(claim);
        }
        self.state = State::Connecting { claim };
        self.order_new_client();
    }

    /// The session of the claim is open.
    pub(super) fn claim_connected(&mut self) {
        let State::Connecting { claim } = &self.state else { unreachable!("a claim connects") };
        let claim = claim.clone();
        if self.settings.sabotage.is(Sabotage::ServeBeforeFencing) {
            return self.replay_log(claim);
        }
        self.fence_next(claim);
    }

    /// Decides about the claim, and finds the clients to fence.
    fn plan(&self, now: Nanos, claim: &mut Claim, header: &Header, record: &OwnerRecord) -> Plan {
        let is_alive = |client: StorageClient| header.watchers.contains(&client);
        claim.fences.clear();
        claim.unfenced = None;
        claim.awaits_lease = false;
        if let Trigger::Command(order) = claim.trigger {
            let owner = record.owner.filter(|_| !record.is_released);
            if (record.epoch, owner) != (order.epoch, order.owner) {
                return Plan::Refuse;
            }
        }
        if self.settings.sabotage.is(Sabotage::AutomaticLock) {
            return Plan::Proceed;
        }
        if let Some(owner) = record.owner.filter(|_| !record.is_released) {
            claim.lost_epoch = record.epoch;
            // An earlier process that had the lock has ended, and an earlier session of this one is not used any more.
            let has_lock = (owner.lock, owner.generation) == (self.settings.lock, self.generation);
            let is_here = owner.node == self.settings.node;
            let is_own = is_here && (has_lock || self.settings.sabotage.is(Sabotage::TrustNode));
            let is_declared_dead = match claim.trigger {
                Trigger::Command(order) => order.is_dead,
                Trigger::Request | Trigger::Peer if is_own => false,
                // Another process of this node, which may be alive until its watch has expired.
                Trigger::Request | Trigger::Peer if is_here && !is_alive(owner.client) => false,
                Trigger::Request if self.settings.takes_over_automatically && !is_alive(owner.client) => false,
                Trigger::Request | Trigger::Peer => return Plan::LeaveToOwner(owner),
            };
            claim.fences.push(owner.client);
            claim.fences.extend(record.unfenced);
            // An expired watch proves nothing: the owner may renew its lease until it is fenced.
            let trusts_watch = self.settings.sabotage.is(Sabotage::TrustExpiredWatch) && !is_alive(owner.client);
            let is_dead = is_own || is_declared_dead || trusts_watch;
            claim.awaits_lease = !is_dead && !self.settings.sabotage.is(Sabotage::SkipLeaseWait);
        }
        if record.is_released && record.is_restorable && !self.settings.sabotage.is(Sabotage::TrustReleased) {
            let released = record.owner.map(|owner| owner.client);
            claim.unfenced =
                released.filter(|client| !self.settings.sabotage.is(Sabotage::ReuseSession) || *client != self.client);
        }
        if claim.trigger == Trigger::Peer && claim.fences.is_empty() {
            return Plan::LeaveFree;
        }
        let lock_owner = header.lock_owner.filter(|lock_owner| !claim.fences.contains(lock_owner));
        if let Some(rival) = lock_owner {
            // A living one is another claim, a release in progress, or no node at all (`rbd map`).
            if rival != self.client && is_alive(rival) {
                let seen_at = claim.rival.filter(|(client, _)| *client == rival).map_or(now, |(_, seen_at)| seen_at);
                claim.rival = Some((rival, seen_at));
                // The session of an owner that has released the volume has no use for the lock: its release failed.
                let has_released = record.is_released && record.owner.is_some_and(|owner| owner.client == rival);
                let may_fence = has_released || matches!(claim.trigger, Trigger::Command(_));
                if !may_fence || now.since(seen_at) < RIVAL_TIMEOUT {
                    return Plan::Retry;
                }
            }
            claim.fences.push(rival);
        }
        Plan::Proceed
    }

    /// The pause before the next look: claims of several nodes, which began at once, do not meet again.
    fn retry_pause(&self) -> Nanos {
        RETRY_PERIOD + Nanos::from_millis((u64::from(self.settings.node.0) * 271 + self.last_op * 97) % 500)
    }

    /// Fences the next client, or continues after the last one.
    fn fence_next(&mut self, claim: Claim) {
        if let Some(client) = claim.fences.first().copied() {
            let op = self.next_op();
            self.actions.push(Action::Fence { op, client });
            self.state = State::Fencing { claim, op };
            return;
        }
        let op = self.next_op();
        self.actions.push(Action::AcquireLock { op });
        self.state = State::Acquiring { claim, op };
    }

    pub(super) fn client_fenced(&mut self) {
        let State::Fencing { claim, .. } = &self.state else { unreachable!("a claim fences") };
        let mut claim = claim.clone();
        claim.fences.remove(0);
        self.fence_next(claim);
    }

    /// From here on the storage refuses renewals of the old owner: the lock and the record are in the same object,
    /// which has now seen an operation of a client that knows of the fence.
    pub(super) fn lock_acquired(&mut self, now: Nanos) {
        let State::Acquiring { claim, .. } = &self.state else { unreachable!("a claim acquires the lock") };
        let mut claim = claim.clone();
        claim.lease_ends_at = if claim.awaits_lease { now + LEASE + CLOCK_MARGIN } else { now };
        self.replay_log(claim);
    }

    fn replay_log(&mut self, claim: Claim) {
        let op = self.next_op();
        let epoch = self.claimed_epoch(&claim);
        self.actions.push(Action::ReplayLog { op, epoch });
        self.state = State::Replaying { claim, op };
    }

    pub(super) fn log_replayed(&mut self, now: Nanos, epoch: Epoch, last_append: Epoch) {
        let State::Replaying { claim, .. } = &self.state else { unreachable!("a claim replays the log") };
        let claim = claim.clone();
        let believes_all = self.settings.sabotage.is(Sabotage::BelieveLateResults);
        if epoch != self.claimed_epoch(&claim) && !believes_all {
            // Another claim has raised the epoch, or the storage took the operation for one that it knows.
            return self.replace_client();
        }
        if last_append == epoch && !self.settings.sabotage.is(Sabotage::AutomaticLock) {
            // This process has owned the volume in the epoch that it claims, and went back in time since.
            return self.replace_client();
        }
        if self.settings.sabotage.is(Sabotage::EpochAfterServing) {
            let record = self.claimed_record(&claim);
            return self.serve(now, record, now);
        }
        if self.settings.sabotage.is(Sabotage::AutomaticLock) && claim.old_epoch.0 > 0 {
            let record = OwnerRecord { epoch: claim.old_epoch, ..self.claimed_record(&claim) };
            return self.serve(now, record, now);
        }
        if now < claim.lease_ends_at {
            self.state = State::AwaitingLease { claim };
        } else {
            self.write_record(now, claim);
        }
    }

    fn claimed_epoch(&self, claim: &Claim) -> Epoch {
        if self.settings.sabotage.is(Sabotage::AutomaticLock) { claim.old_epoch } else { claim.epoch() }
    }

    fn claimed_record(&self, claim: &Claim) -> OwnerRecord {
        let Settings { node, lock, is_restorable, .. } = self.settings;
        let owner = Owner { node, client: self.client, lock, generation: self.generation };
        OwnerRecord {
            image: claim.image,
            epoch: claim.epoch(),
            owner: Some(owner),
            mark: 0,
            is_released: false,
            lost_epoch: claim.lost_epoch,
            is_restorable,
            unfenced: claim.unfenced,
        }
    }

    fn write_record(&mut self, now: Nanos, claim: Claim) {
        let (op, record) = (self.next_op(), self.claimed_record(&claim));
        self.actions.push(Action::WriteRecord { op, expected: Expected::Epoch(claim.old_epoch), new: record });
        self.state =
            State::Recording { claim, recording: Recording { record, is_written: false, started_at: now }, op };
    }

    /// Reads the record back that was just written.
    pub(super) fn claim_recorded(&mut self, now: Nanos) {
        let State::Recording { claim, recording, .. } = &self.state else { unreachable!("a claim writes the record") };
        let (claim, recording) = (claim.clone(), *recording);
        let op = self.next_op();
        self.actions.push(Action::ReadRecord { op });
        let recording = Recording { is_written: true, started_at: now, ..recording };
        self.state = State::Recording { claim, recording, op };
    }

    pub(super) fn claim_read_back(&mut self, now: Nanos, record: OwnerRecord) {
        let State::Recording { claim, recording, .. } = &self.state else { unreachable!("a claim reads the record") };
        assert!(recording.is_written, "the record is read after it was written");
        let (recording, fences) = (*recording, claim.fences.clone());
        if record == recording.record {
            if self.settings.sabotage.is(Sabotage::ServeBeforeFencing) {
                self.fence_after_serving(fences);
            }
            self.serve(now, record, recording.started_at);
        } else {
            // The process went back in time, or another node has claimed since. The session is not trusted any more.
            self.replace_client();
        }
    }

    fn fence_after_serving(&mut self, clients: Vec<StorageClient>) {
        for client in clients {
            let op = self.next_op();
            self.actions.push(Action::Fence { op, client });
        }
        let op = self.next_op();
        self.actions.push(Action::AcquireLock { op });
    }
}
