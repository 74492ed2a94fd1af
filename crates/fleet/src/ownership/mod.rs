//! The ownership of one volume at one node: takes events, returns actions.

mod claiming;
mod clients;
mod draining;
mod owning;
mod standby;
mod storage;

use std::collections::{BTreeMap, BTreeSet};

use crate::action::{Action, LossReason};
use crate::claim::TakeOver;
use crate::connection::Connection;
use crate::event::{Command, CommandError, Event, StorageError};
use crate::ids::{CommandId, ConnectionId, Epoch, MachineGeneration, NodeId, OpId, RequestId, StorageClient};
use crate::peer::PeerMessage;
use crate::record::OwnerRecord;
use crate::request::{Request, RequestError, Source};
use crate::sabotage::Sabotage;
use crate::settings::{RETRY_PERIOD, SESSION_TIMEOUT, Settings};
use crate::state::{DrainStep, Standby, State, StateKind};
use seam::Nanos;

/// The ownership of one volume at one node.
#[derive(Clone, Debug)]
pub struct Ownership {
    settings: Settings,
    generation: MachineGeneration,
    client: StorageClient,
    state: State,
    connections: BTreeMap<ConnectionId, Connection>,
    requests: BTreeMap<RequestId, Request>,
    /// Nodes with clients of the volume that this node owns.
    nodes_with_clients: BTreeSet<NodeId>,
    /// The latest epoch that this node has seen.
    known_epoch: Epoch,
    /// An accepted order whose claim has failed: the next claim carries it out.
    order: Option<TakeOver>,
    /// The renewal that the next batch of destage waits for.
    destage_needs_renewal: Option<u64>,
    /// A new session is being opened.
    is_replacing_client: bool,
    /// Time of the last event.
    now: Nanos,
    /// Time of the last order to open a session.
    client_ordered_at: Nanos,
    /// The front ends were told to stop reading.
    is_reading_stopped: bool,
    last_op: u64,
    actions: Vec<Action>,
}

impl Ownership {
    /// A standby whose session with the storage is `client`, on a machine of `generation`.
    pub fn new(settings: Settings, generation: MachineGeneration, client: StorageClient) -> Ownership {
        Ownership {
            settings,
            generation,
            client,
            state: State::Standby(Standby::default()),
            connections: BTreeMap::new(),
            requests: BTreeMap::new(),
            nodes_with_clients: BTreeSet::new(),
            known_epoch: Epoch::default(),
            order: None,
            destage_needs_renewal: None,
            is_replacing_client: false,
            now: Nanos::default(),
            client_ordered_at: Nanos::default(),
            is_reading_stopped: false,
            last_op: 0,
            actions: Vec::new(),
        }
    }

    /// The state, for reports.
    pub fn state(&self) -> StateKind {
        self.state.kind()
    }

    /// The epoch of an owner.
    pub fn epoch(&self) -> Option<Epoch> {
        match &self.state {
            State::Owning { lease } | State::Draining { lease, .. } => Some(lease.record.epoch),
            _ => None,
        }
    }

    /// The connections of clients, in the order of their numbers.
    pub fn connections(&self) -> impl Iterator<Item = ConnectionId> {
        self.connections.keys().copied()
    }

    /// Processes an event, and returns the actions to execute, in order. `now` (`CLOCK_BOOTTIME`, which counts the time
    /// of a suspended machine) and `generation` are read after the event has arrived: a process that stops in between
    /// would acknowledge with old values. No event makes it panic.
    pub fn handle(&mut self, now: Nanos, generation: MachineGeneration, event: Event) -> Vec<Action> {
        self.now = now;
        let is_restored = std::mem::replace(&mut self.generation, generation) != generation;
        if is_restored && !self.settings.sabotage.is(Sabotage::IgnoreGeneration) {
            self.restored(now);
            if matches!(event, Event::ClientReplaced(_) | Event::ClientLost(_)) {
                // The session was opened before the snapshot, and may have been used since.
                return std::mem::take(&mut self.actions);
            }
        }
        match event {
            Event::Tick => self.tick(now),
            Event::Connected(connection) => self.connect(now, connection),
            Event::Closed(connection) => self.close(now, connection),
            Event::Request { connection, request, kind } => self.accept(now, connection, request, kind),
            Event::Forwarded { from, epoch, request, kind } => self.accept_forwarded(now, from, epoch, request, kind),
            Event::Executed { request, result } => self.executed(now, request, result),
            Event::ForwardAnswered { request, result } => self.forward_answered(now, request, result),
            Event::DestageWanted => self.want_destage(now),
            Event::Storage { op, result } => self.storage(now, op, result),
            Event::DataPathRefused { client, error } => self.data_path_refused(now, client, error),
            Event::Progress { op } => {
                if self.awaits(op) {
                    self.note_progress(now);
                }
            }
            Event::ClientReplaced(client) => self.client_replaced(now, client),
            Event::ClientLost(client) => {
                if client == self.client || self.is_replacing_client {
                    self.client_lost(now);
                }
            }
            Event::Peer { from, message } => self.peer(now, from, message),
            Event::Command { id, command } => self.command(now, id, command),
        }
        self.bound_waiting();
        std::mem::take(&mut self.actions)
    }

    fn tick(&mut self, now: Nanos) {
        self.expire_requests(now);
        if self.is_replacing_client && now.since(self.client_ordered_at) >= SESSION_TIMEOUT {
            self.client_ordered_at = now;
            self.actions.push(Action::ReplaceClient);
        }
        self.tick_claim(now);
        self.tick_owner(now);
        self.step(now);
    }

    /// Does all that the present state allows.
    fn step(&mut self, now: Nanos) {
        match self.state {
            State::Standby(_) => self.step_standby(now),
            State::Owning { .. } => self.step_owning(now),
            State::Draining { .. } => self.step_draining(now),
            _ => {}
        }
    }

    fn peer(&mut self, now: Nanos, from: NodeId, message: PeerMessage) {
        match message {
            PeerMessage::HandOverRequest { epoch, is_first_write } => {
                self.hand_over_requested(now, from, epoch, is_first_write);
            }
            PeerMessage::ClientsGone => {
                self.nodes_with_clients.remove(&from);
            }
            PeerMessage::Released(epoch) => self.released(now, epoch),
        }
    }

    fn command(&mut self, now: Nanos, id: CommandId, command: Command) {
        match command {
            Command::TakeOver { epoch, owner, is_dead } => {
                self.take_over(now, TakeOver { id, epoch, owner, is_dead, is_accepted: false });
            }
            Command::Move { to } => {
                let result = match &self.state {
                    _ if to == self.settings.node => Err(CommandError::SameNode),
                    State::Owning { .. } => Ok(()),
                    State::Draining { .. } => Err(CommandError::Busy),
                    _ => Err(CommandError::NotOwner),
                };
                self.actions.push(Action::AnswerCommand { id, result });
                if result.is_ok() {
                    self.start_drain(now, Some(to));
                }
            }
        }
    }

    fn data_path_refused(&mut self, now: Nanos, client: StorageClient, error: StorageError) {
        // The data path repeats an operation that has timed out.
        let is_refusal = !matches!(error, StorageError::TimedOut | StorageError::Other);
        if client == self.client && is_refusal {
            self.refused(now, error);
        }
    }

    /// Acts on an error of the storage: an owner that is refused is none any more.
    fn refused(&mut self, now: Nanos, error: StorageError) {
        match (&self.state, error) {
            // Nothing more happens at a volume that is released: the lock is broken with the session.
            (State::Draining { step: DrainStep::Unlock(_), .. }, _) => self.unlocked(now),
            (State::Owning { .. } | State::Draining { .. }, StorageError::TimedOut | StorageError::Other) => {
                self.repeat_operation(now);
            }
            (State::Owning { .. } | State::Draining { .. }, error) => self.lose(now, loss_reason(error)),
            (State::Fenced, _) => {}
            (_, StorageError::Blocked) => self.replace_client(),
            (_, StorageError::LockedByOther | StorageError::Stale | StorageError::TimedOut | StorageError::Other) => {
                self.abandon_claim(now)
            }
        }
    }

    /// The machine was restored from a snapshot: all that it remembers of an ownership, its session and its clients is
    /// over.
    fn restored(&mut self, now: Nanos) {
        self.is_replacing_client = false;
        match &self.state {
            State::Owning { .. } | State::Draining { .. } => self.lose(now, LossReason::Restored),
            _ => {
                self.close_front_ends();
                self.replace_client();
            }
        }
    }

    /// Ends an ownership that is lost: closes the front ends, and discards what is not in the log.
    fn lose(&mut self, now: Nanos, reason: LossReason) {
        self.actions.extend([Action::ReportLoss(reason), Action::StopAcknowledging]);
        self.close_front_ends();
        self.actions.push(Action::Discard);
        self.destage_needs_renewal = None;
        self.answer_peers_as_standby(now);
        self.replace_client();
    }

    fn replace_client(&mut self) {
        self.refuse_command(CommandError::NoAnswer);
        self.keep_order();
        self.state = State::Fenced;
        self.order_new_client();
    }

    fn order_new_client(&mut self) {
        if !std::mem::replace(&mut self.is_replacing_client, true) {
            self.client_ordered_at = self.now;
            self.actions.push(Action::ReplaceClient);
        }
    }

    /// The new session is open. Operations of the old one have no results.
    fn client_replaced(&mut self, now: Nanos, client: StorageClient) {
        if !self.is_replacing_client {
            // The session was replaced without an order: all that belongs to the old one is over.
            return self.client_lost(now);
        }
        (self.is_replacing_client, self.client) = (false, client);
        match &self.state {
            State::Fenced => {
                // The pause bounds the rate at which sessions are opened that the storage blocks.
                self.enter_standby(now, Standby { look_at: now + RETRY_PERIOD, ..Standby::default() });
            }
            State::Connecting { .. } => self.claim_connected(),
            State::Claiming { claim, .. } => {
                let claim = claim.clone();
                self.read_header(claim);
            }
            _ => {}
        }
    }

    /// The session with the storage has ended. An owner without a session is none; a claim begins again.
    fn client_lost(&mut self, now: Nanos) {
        self.is_replacing_client = false;
        match &self.state {
            State::Owning { .. } | State::Draining { .. } => self.lose(now, LossReason::SessionLost),
            _ => self.replace_client(),
        }
    }

    /// Closes every connection and drops its requests. Operations in progress may still have effect.
    fn close_front_ends(&mut self) {
        self.actions.push(Action::CloseFrontEnds);
        self.connections.clear();
        self.requests.retain(|_, request| matches!(request.source, Source::Peer(_)));
    }

    /// Learns the epoch, and closes the connections that began before the volume was last lost.
    fn learn(&mut self, record: &OwnerRecord) {
        self.known_epoch = self.known_epoch.max(record.epoch);
        if record.lost_epoch == Epoch::default() || self.settings.sabotage.is(Sabotage::KeepOldConnections) {
            return;
        }
        let is_old = |connection: &Connection| connection.epoch <= record.lost_epoch;
        let old: Vec<_> = self.connections.iter().filter(|(_, c)| is_old(c)).map(|(id, _)| *id).collect();
        for connection in old {
            self.connections.remove(&connection);
            self.requests.retain(|_, request| request.source != Source::Connection(connection));
            self.actions.push(Action::CloseConnection(connection));
        }
    }

    /// Refuses requests of other nodes: this node does not own the volume any more.
    fn answer_peers_as_standby(&mut self, _now: Nanos) {
        let from_peers = |request: &Request| matches!(request.source, Source::Peer(_));
        let ids: Vec<_> = self.requests.iter().filter(|(_, r)| from_peers(r)).map(|(id, _)| *id).collect();
        for id in ids {
            self.answer(id, Err(RequestError::NotOwner));
        }
    }

    fn answer(&mut self, request: RequestId, result: Result<(), RequestError>) {
        let removed = self.requests.remove(&request);
        assert!(removed.is_some(), "a request is answered once");
        self.actions.push(Action::Answer { request, result });
    }

    fn next_op(&mut self) -> OpId {
        self.last_op += 1;
        OpId(self.last_op)
    }
}

fn loss_reason(error: StorageError) -> LossReason {
    match error {
        StorageError::Blocked => LossReason::Blocked,
        StorageError::LockedByOther => LossReason::LockedByOther,
        StorageError::Stale | StorageError::TimedOut | StorageError::Other => LossReason::Stale,
    }
}
