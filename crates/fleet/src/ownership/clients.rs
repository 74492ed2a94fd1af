//! Connections and requests of clients, and requests that other nodes forward.

use super::Ownership;
use crate::action::Action;
use crate::claim::Trigger;
use crate::connection::Connection;
use crate::ids::{ConnectionId, Epoch, NodeId, RequestId};
use crate::lease::LeasePhase;
use crate::peer::PeerMessage;
use crate::request::{Request, RequestError, RequestKind, Source, Stage};
use crate::sabotage::Sabotage;
use crate::settings::BUSY_PAUSE;
use crate::state::State;
use seam::Nanos;

impl Ownership {
    pub(super) fn connect(&mut self, now: Nanos, connection: ConnectionId) {
        let needs_renewal = self.next_renewal();
        let new = Connection {
            needs_renewal,
            epoch: self.known_epoch,
            is_superseded: false,
            is_departing: false,
            precedes_drain: false,
            has_written: false,
        };
        // A repeated event does not begin a connection again.
        self.connections.entry(connection).or_insert(new);
        self.step(now);
    }

    /// Forgets a connection. The last one decides about the place of the volume: an owner without clients hands it over
    /// to a node that has some, and a claim for clients that are gone is abandoned.
    pub(super) fn close(&mut self, now: Nanos, connection: ConnectionId) {
        if self.connections.remove(&connection).is_none() {
            return;
        }
        self.requests.retain(|_, request| request.source != Source::Connection(connection));
        if !self.connections.is_empty() {
            return self.step(now);
        }
        // The fences of a take-over outlast a client's patience: a claim that has begun them goes on without clients.
        let is_early = matches!(self.state, State::Claiming { .. } | State::Connecting { .. });
        match &self.state {
            State::Owning { .. } => {
                if let Some(to) = self.nodes_with_clients.pop_first() {
                    self.start_drain(now, Some(to));
                }
            }
            State::Standby(standby) => {
                if let Some(owner) = standby.owner {
                    self.actions.push(Action::Send { to: owner.node, message: PeerMessage::ClientsGone });
                }
            }
            State::Claiming { claim, .. }
            | State::Connecting { claim }
            | State::Fencing { claim, .. }
            | State::Acquiring { claim, .. }
            | State::Replaying { claim, .. }
                if claim.trigger == Trigger::Request && (!claim.is_take_over() || is_early) =>
            {
                self.abandon_claim(now);
            }
            _ => {}
        }
    }

    pub(super) fn accept(&mut self, now: Nanos, connection: ConnectionId, request: RequestId, kind: RequestKind) {
        // The front end may pass on a request that it received before it closed the connection.
        let Some(state) = self.connections.get_mut(&connection) else { return };
        state.is_departing &= kind == RequestKind::Flush;
        state.has_written |= kind == RequestKind::Write;
        let needs_renewal = state.needs_renewal;
        self.queue(now, request, Source::Connection(connection), kind, needs_renewal);
        self.step(now);
    }

    pub(super) fn accept_forwarded(
        &mut self,
        now: Nanos,
        from: NodeId,
        epoch: Epoch,
        request: RequestId,
        kind: RequestKind,
    ) {
        if self.requests.contains_key(&request) {
            return;
        }
        // A sender that believes in an earlier epoch has yet to learn whether that one was lost.
        if self.epoch() != Some(epoch) || kind == RequestKind::Write {
            self.actions.push(Action::Answer { request, result: Err(RequestError::NotOwner) });
            return self.taken_for_owner(now);
        }
        self.nodes_with_clients.insert(from);
        let needs_renewal = self.next_renewal();
        self.queue(now, request, Source::Peer(from), kind, needs_renewal);
        self.step(now);
    }

    fn queue(&mut self, now: Nanos, id: RequestId, source: Source, kind: RequestKind, needs_renewal: u64) {
        // A repeated event does not begin a request again.
        if self.requests.contains_key(&id) {
            return;
        }
        if let Some(error) = self.lacks_room(source, kind) {
            self.actions.push(Action::Answer { request: id, result: Err(error) });
            return;
        }
        let (stage, forward_at) = (Stage::Waiting, Nanos::default());
        let request = Request { source, kind, stage, arrived_at: now, needs_renewal, forward_at };
        self.requests.insert(id, request);
    }

    /// The error of a request for which there is no room: one of another node, or the write of a superseded connection.
    /// The front ends bound the others.
    fn lacks_room(&self, source: Source, kind: RequestKind) -> Option<RequestError> {
        let mut requests = self.requests.values();
        let (count, max, error) = match source {
            Source::Peer(_) => {
                let count = requests.filter(|request| matches!(request.source, Source::Peer(_))).count();
                (count, self.settings.forwarded_requests_max, RequestError::Busy)
            }
            Source::Connection(_) if self.is_superseded_write(source, kind) => {
                let is_same = |request: &&Request| self.is_superseded_write(request.source, request.kind);
                (
                    requests.by_ref().filter(is_same).count(),
                    self.settings.superseded_writes_max,
                    RequestError::QueueFull,
                )
            }
            Source::Connection(_) => return None,
        };
        (count >= max).then_some(error)
    }

    fn is_superseded_write(&self, source: Source, kind: RequestKind) -> bool {
        let Source::Connection(connection) = source else { return false };
        kind == RequestKind::Write && self.connections.get(&connection).is_some_and(|state| state.is_superseded)
    }

    /// Stops and resumes the front ends. Writes of superseded connections do not count: they have a bound of their own,
    /// and the flushes behind them must be answered.
    pub(super) fn bound_waiting(&mut self) {
        let is_counted = |request: &&Request| {
            let is_client = matches!(request.source, Source::Connection(_));
            is_client && request.stage == Stage::Waiting && !self.is_superseded_write(request.source, request.kind)
        };
        let waiting = self.requests.values().filter(is_counted).count();
        let max = self.settings.waiting_requests_max;
        let stops = if self.is_reading_stopped { waiting > max / 2 } else { waiting >= max };
        if stops != self.is_reading_stopped {
            self.is_reading_stopped = stops;
            self.actions.push(if stops { Action::StopReading } else { Action::ResumeReading });
        }
    }

    /// Answers an executed request, or withholds the answer while the lease is not valid.
    pub(super) fn executed(&mut self, now: Nanos, id: RequestId, result: Result<(), RequestError>) {
        // The connection of the request may have ended.
        let Some(request) = self.requests.get_mut(&id).filter(|request| request.stage == Stage::Executing) else {
            return;
        };
        if result.is_ok() {
            request.stage = Stage::Withheld;
            self.answer_withheld(now);
        } else {
            self.answer(id, result);
        }
        self.step(now);
    }

    /// Answers executed requests if the lease is valid now.
    pub(super) fn answer_withheld(&mut self, now: Nanos) {
        if self.lease_phase(now) == Some(LeasePhase::Valid) {
            self.answer_all_withheld();
        }
    }

    pub(super) fn answer_all_withheld(&mut self) {
        for id in self.requests_in(Stage::Withheld) {
            self.answer(id, Ok(()));
        }
    }

    pub(super) fn forward_answered(&mut self, now: Nanos, id: RequestId, result: Result<(), RequestError>) {
        let Some(request) = self.requests.get_mut(&id).filter(|request| request.stage == Stage::Forwarded) else {
            return;
        };
        if result == Err(RequestError::Busy) {
            (request.stage, request.arrived_at) = (Stage::Waiting, now);
            request.forward_at = now + BUSY_PAUSE;
        } else if result == Err(RequestError::NotOwner) {
            request.stage = Stage::Waiting;
            if let State::Standby(standby) = &mut self.state {
                standby.owner = None;
            }
            self.step(now);
        } else {
            self.answer(id, result);
        }
    }

    /// Fails requests that have waited too long for an ownership.
    pub(super) fn expire_requests(&mut self, now: Nanos) {
        for id in self.requests_in(Stage::Waiting) {
            if now.since(self.requests[&id].arrived_at) >= self.settings.queue_time_max {
                self.answer(id, Err(RequestError::NoOwnership));
            }
        }
    }

    pub(super) fn requests_in(&self, stage: Stage) -> Vec<RequestId> {
        self.requests.iter().filter(|(_, request)| request.stage == stage).map(|(id, _)| *id).collect()
    }

    /// The renewal that a connection or request that arrives now waits for. A new owner has just proved its ownership.
    fn next_renewal(&self) -> u64 {
        match &self.state {
            State::Owning { lease } | State::Draining { lease, .. }
                if !self.settings.sabotage.is(Sabotage::SkipConfirmation) =>
            {
                lease.next_renewal()
            }
            _ => 0,
        }
    }
}
