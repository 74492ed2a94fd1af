//! Nodes: delivers events to the state machines, and executes their actions.

use std::collections::VecDeque;

use fleet::{Action, Epoch, Event, RequestError, RequestId, Sabotage, StateKind, StorageAnswer};

use super::{MILLI, SECOND, World, between};
use crate::data_path::{DataPath, Output};
use crate::events::{ClientOp, Fault, Reply, Session, WorldEvent, node_id};
use crate::node::{Origin, Purpose};
use crate::storage::StorageOp;

impl World {
    pub fn tick(&mut self, node: usize, session: Session) {
        if self.nodes[node].session != session || !self.nodes[node].is_running {
            return;
        }
        if self.defer_if_paused(node, || WorldEvent::Tick { node, session }) {
            return;
        }
        self.after(SECOND / 2, WorldEvent::Tick { node, session });
        for volume in 0..self.plan.volumes {
            let instance = &self.nodes[node].instances[volume];
            if self.nodes[node].storage_cut_until <= self.now && !instance.is_replacing {
                let now = seam::Nanos(self.now);
                self.storage.ping(now, instance.client);
            }
            let is_log_full = instance.data.as_ref().is_some_and(DataPath::is_log_full);
            let has_dirty = instance.data.as_ref().is_some_and(DataPath::has_dirty);
            self.deliver(node, volume, Event::Tick);
            if has_dirty && (is_log_full || self.rng.chance(300_000)) {
                self.deliver(node, volume, Event::DestageWanted);
                if let Some(after) = self.rewind_at_destage[volume].take() {
                    let delay = self.rng.below(8 * MILLI);
                    self.after(delay, WorldEvent::Fault(Fault::TakeSnapshot { node }));
                    self.after(delay + after, WorldEvent::Fault(Fault::RestoreSnapshot { node }));
                }
            }
        }
    }

    /// Delivers an event, and executes all that follows from it at once.
    pub fn deliver(&mut self, node: usize, volume: usize, event: Event) {
        let mut events = VecDeque::from([event]);
        while let Some(event) = events.pop_front() {
            let now = self.nodes[node].clock.now(self.now);
            let generation = self.nodes[node].generation;
            let instance = &mut self.nodes[node].instances[volume];
            instance.generation = generation;
            let ownership = &mut instance.ownership;
            let before = ownership.state();
            let is_tick = event == Event::Tick;
            let traced = self.trace.is_some().then(|| format!("{event:?}"));
            let actions = ownership.handle(now, generation, event);
            let after = ownership.state();
            if (before, after) == (StateKind::Draining, StateKind::Standby) {
                self.drained(node, volume);
            }
            if let Some(event) = traced.filter(|_| !is_tick || !actions.is_empty()) {
                self.note(format!("    node {node} volume {volume} {before:?} -> {after:?}: {event} => {actions:?}"));
            }
            for action in actions {
                self.act(node, volume, action, &mut events);
            }
        }
    }

    /// Notes that connections with writes have nothing unflushed; one with a request other than a flush in progress is
    /// excepted.
    fn drained(&mut self, node: usize, volume: usize) {
        let session = Some(self.nodes[node].session);
        let requests = self.nodes[node].instances[volume].requests.values();
        let busy: Vec<u64> = requests
            .filter_map(|request| match request {
                (_, ClientOp::Flush) | (Origin::Peer { .. }, _) => None,
                (Origin::Connection { connection, .. }, _) => Some(*connection),
            })
            .collect();
        for (number, connection) in &mut self.connections {
            let is_here = connection.node == node && connection.session == session;
            if is_here && self.clients[connection.client].volume == volume {
                connection.is_drained = connection.has_written && !busy.contains(number);
            }
        }
    }

    fn act(&mut self, node: usize, volume: usize, action: Action, events: &mut VecDeque<Event>) {
        let is_automatic = self.sabotage == Sabotage::AutomaticLock;
        let op = match action {
            Action::ReadHeader { op } => (op, StorageOp::ReadHeader),
            Action::ReadRecord { op } => {
                let (log_end, _) = self.nodes[node].instances[volume].log_end();
                return self.send_op(node, volume, Purpose::Look(op, log_end), StorageOp::ReadRecord);
            }
            Action::Fence { op, client } => (op, StorageOp::Fence(client)),
            Action::AcquireLock { op } => (op, StorageOp::AcquireLock { is_automatic }),
            Action::ReplayLog { op, epoch } => {
                self.nodes[node].instances[volume].replay_op = Some(op);
                (op, StorageOp::ReplayLog(epoch))
            }
            Action::WriteRecord { op, expected, new } => {
                (op, StorageOp::WriteRecord { expected: Box::new(expected), new: Box::new(new) })
            }
            Action::ReleaseLock { op } => (op, StorageOp::ReleaseLock),
            other => return self.act_locally(node, volume, other, events),
        };
        self.send_op(node, volume, Purpose::Ownership(op.0), op.1);
    }

    fn act_locally(&mut self, node: usize, volume: usize, action: Action, events: &mut VecDeque<Event>) {
        let session = self.nodes[node].session;
        let instance = &mut self.nodes[node].instances[volume];
        match action {
            Action::Quiesce { op } => {
                let outputs = instance.data.as_mut().expect("an owner has data").quiesce(op);
                self.collect_outputs(node, volume, outputs, events);
            }
            Action::ReplaceClient => {
                instance.end_session();
                instance.is_replacing = true;
                let (old, is_reachable) = (instance.client, self.nodes[node].storage_cut_until <= self.now);
                // A session that is closed in order takes its watch along; that of one that fails expires.
                if is_reachable && self.rng.chance(700_000) {
                    self.storage.close_watch(old);
                }
                let delay = between(&self.rng, 5 * MILLI, 60 * MILLI);
                self.after(delay, WorldEvent::ClientReplaced { node, session, volume });
            }
            Action::Serve { epoch } => {
                instance.data = Some(DataPath::recover(epoch, &instance.replayed, self.plan.log_records_max));
                self.served(volume, epoch);
            }
            Action::StopReading => instance.is_reading_stopped = true,
            Action::ResumeReading => instance.is_reading_stopped = false,
            Action::CloseFrontEnds => self.reset_connections(node, volume),
            Action::CloseConnection(connection) => self.reset_connection(connection.0),
            Action::Discard => instance.discard(),
            Action::Destage => {
                let rng = self.rng.clone();
                let outputs = instance.data.as_mut().expect("an owner has data").destage(|| rng.chance(600_000));
                self.rng = rng;
                self.collect_outputs(node, volume, outputs, events);
            }
            Action::Execute { request } => self.execute(node, volume, request, events),
            Action::Forward { request, to, epoch } => {
                let (_, op) = instance.requests[&request];
                let to = self.current[to.0 as usize];
                let timeout = WorldEvent::ForwardTimeout { node, session, volume, request };
                self.after(2 * SECOND, timeout);
                if let Some(delay) = self.link_delay(node, to) {
                    self.after(delay, WorldEvent::Forward { from: node, session, to, volume, epoch, request, op });
                }
            }
            Action::Answer { request, result } => self.answer(node, volume, request, result),
            Action::Send { to, message } => {
                let to = self.current[to.0 as usize];
                if let Some(delay) = self.link_delay(node, to) {
                    self.after(delay, WorldEvent::Peer { from: node, to, volume, message });
                    // Messages may arrive twice, the second time much later.
                    if self.plan.has_faults && self.rng.chance(50_000) {
                        let delay = self.rng.below(20 * SECOND);
                        self.after(delay, WorldEvent::Peer { from: node, to, volume, message });
                    }
                }
            }
            _ => {}
        }
    }

    fn execute(&mut self, node: usize, volume: usize, request: RequestId, events: &mut VecDeque<Event>) {
        let instance = &mut self.nodes[node].instances[volume];
        let (origin, op) = instance.requests[&request];
        if matches!(op, ClientOp::Flush) {
            self.note_flush(volume, origin);
        }
        let data = self.nodes[node].instances[volume].data.as_mut().expect("an owner has data");
        let outputs = match op {
            ClientOp::Write { block, value } => {
                data.write(block, value);
                vec![Output::Executed(request, 0)]
            }
            ClientOp::Read { block } => vec![data.read(block, request)],
            ClientOp::Flush => data.flush(request),
        };
        self.collect_outputs(node, volume, outputs, events);
    }

    /// Notes that a client's flush is executed now, which may have been forwarded.
    fn note_flush(&mut self, volume: usize, origin: Origin) {
        let origin = match origin {
            Origin::Peer { node, session, request } => {
                let node = &self.nodes[node];
                let request = node.instances[volume].requests.get(&request).filter(|_| node.session == session);
                request.map(|(origin, _)| *origin)
            }
            Origin::Connection { .. } => Some(origin),
        };
        if let Some(Origin::Connection { connection, tag }) = origin {
            self.flushed_at.insert((connection, tag), self.event);
        }
    }

    /// Executes outputs of the data path after an event of its own.
    pub fn act_for_data_path(&mut self, node: usize, volume: usize, outputs: Vec<Output>) {
        let mut events = VecDeque::new();
        self.collect_outputs(node, volume, outputs, &mut events);
        for event in events {
            self.deliver(node, volume, event);
        }
    }

    fn collect_outputs(&mut self, node: usize, volume: usize, outputs: Vec<Output>, events: &mut VecDeque<Event>) {
        for output in outputs {
            match output {
                Output::Send(purpose, op) => self.send_op(node, volume, Purpose::Data(purpose), op),
                Output::Executed(request, value) => {
                    self.nodes[node].instances[volume].values.insert(request, value);
                    events.push_back(Event::Executed { request, result: Ok(()) });
                }
                Output::Quiesced(op) => events.push_back(Event::Storage { op, result: Ok(StorageAnswer::Done) }),
            }
        }
    }

    fn answer(&mut self, node: usize, volume: usize, request: RequestId, result: Result<(), RequestError>) {
        let instance = &mut self.nodes[node].instances[volume];
        let value = instance.values.remove(&request).unwrap_or(0);
        let Some((origin, _)) = instance.requests.remove(&request) else { return };
        let reply: Reply = result.map(|()| value);
        match origin {
            Origin::Connection { connection, tag } => {
                let delay = between(&self.rng, MILLI / 50, MILLI);
                self.after(delay, WorldEvent::Reply { connection, tag, reply });
            }
            Origin::Peer { node: to, session, request } => {
                if let Some(delay) = self.link_delay(node, to) {
                    self.after(delay, WorldEvent::ForwardReply { to, session, volume, request, reply });
                }
            }
        }
    }

    pub fn forwarded(&mut self, origin: Origin, to: usize, volume: usize, epoch: Epoch, op: ClientOp) {
        let Origin::Peer { node: from, .. } = origin else { unreachable!("a node forwards") };
        if !self.nodes[to].is_running {
            return;
        }
        let request = self.nodes[to].instances[volume].add_request(origin, op);
        self.deliver(
            to,
            volume,
            Event::Forwarded { from: node_id(self.nodes[from].id), epoch, request, kind: op.kind() },
        );
    }

    pub fn forward_reply(&mut self, to: usize, session: Session, volume: usize, request: RequestId, reply: Reply) {
        if !self.nodes[to].is_running || self.nodes[to].session != session {
            return;
        }
        let instance = &mut self.nodes[to].instances[volume];
        if let (Ok(value), true) = (reply, instance.requests.contains_key(&request)) {
            instance.values.insert(request, value);
        }
        self.deliver(to, volume, Event::ForwardAnswered { request, result: reply.map(|_| ()) });
    }

    pub fn client_replaced(&mut self, node: usize, session: Session, volume: usize) {
        if !self.nodes[node].is_running || self.nodes[node].session != session {
            return;
        }
        if self.defer_if_paused(node, || WorldEvent::ClientReplaced { node, session, volume }) {
            return;
        }
        let client = self.new_client();
        let instance = &mut self.nodes[node].instances[volume];
        instance.end_session();
        (instance.client, instance.last_number, instance.is_replacing) = (client, 0, false);
        self.deliver(node, volume, Event::ClientReplaced(client));
    }

    /// Delay of a message between two nodes; `None` if it is lost.
    fn link_delay(&mut self, from: usize, to: usize) -> Option<u64> {
        let is_cut = self.links_cut_until[self.nodes[from].id][self.nodes[to].id] > self.now;
        let is_lossy = self.plan.has_faults && self.now < super::FAULTS_END;
        if is_cut || (is_lossy && self.rng.chance(10_000 * self.plan.loss_percent)) {
            return None;
        }
        let late = if is_lossy && self.rng.chance(20_000) { self.rng.below(5 * SECOND) } else { 0 };
        Some(late + between(&self.rng, MILLI / 20, MILLI))
    }
}
