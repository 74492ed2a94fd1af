//! Clients: connections, operations, migrations.

use std::collections::BTreeSet;

use fleet::{ConnectionId, Event};

use super::{FAULTS_END, MILLI, NODES, SECOND, World, between};
use crate::client::{Connection, Work};
use crate::events::{ClientOp, Reply, WorldEvent};
use crate::failure::Check;
use crate::history::OpKind;
use crate::node::Origin;
use crate::storage::BLOCKS;

/// Tag of requests that the history leaves out.
const UNTRACKED: usize = usize::MAX;

impl World {
    pub fn client_step(&mut self, client: usize) {
        let state = &self.clients[client];
        if state.pending.len() >= state.depth || state.is_stopping {
            return;
        }
        let Some(connection) = self.clients[client].connection else {
            let node = self.choose_node(client);
            let connection = self.open_connection(client, node);
            self.clients[client].connection = Some(connection);
            self.after(50 * MILLI, WorldEvent::ClientStep { client });
            return;
        };
        let work = self.clients[client].work;
        let block = self.rng.below(BLOCKS as u64) as usize;
        let op = match self.rng.below(10) {
            0..4 if work == Work::Mixed => {
                self.last_value += 1;
                ClientOp::Write { block, value: self.last_value }
            }
            4..6 if work != Work::NoFlushes => ClientOp::Flush,
            _ => ClientOp::Read { block },
        };
        let tag = self.invoke(client, op);
        self.clients[client].pending.insert(tag);
        if self.clients[client].pending.len() < self.clients[client].depth {
            let delay = self.rng.below(20 * MILLI);
            self.after(delay, WorldEvent::ClientStep { client });
        }
        self.send_request(connection, tag, op);
        let timeout = self.clients[client].request_timeout;
        self.after(timeout, WorldEvent::RequestTimeout { client, tag });
    }

    fn choose_node(&mut self, client: usize) -> usize {
        let home = self.current[self.clients[client].home];
        if self.nodes[home].is_running && self.rng.chance(700_000) {
            return home;
        }
        self.current[self.rng.below(NODES as u64) as usize]
    }

    fn open_connection(&mut self, client: usize, node: usize) -> u64 {
        let number = self.connections.len() as u64 + 1;
        self.connections.insert(
            number,
            Connection {
                client,
                node,
                session: None,
                opened_at: 0,
                is_open: true,
                is_drained: false,
                has_written: false,
                empty_flushes: BTreeSet::new(),
            },
        );
        let delay = self.rng.below(MILLI);
        self.after(delay, WorldEvent::Connect { connection: number });
        number
    }

    fn invoke(&mut self, client: usize, op: ClientOp) -> usize {
        let kind = match op {
            ClientOp::Write { block, value } => OpKind::Write { block, value },
            ClientOp::Read { block } => OpKind::Read { block },
            ClientOp::Flush => OpKind::Flush,
        };
        let volume = self.clients[client].volume;
        self.histories[volume].invoke(self.event, kind)
    }

    fn send_request(&mut self, connection: u64, tag: usize, op: ClientOp) {
        let delay = between(&self.rng, MILLI, 2 * MILLI);
        self.after(delay, WorldEvent::Request { connection, tag, op });
    }

    pub fn connect(&mut self, connection: u64) {
        let node = self.connections[&connection].node;
        if !self.nodes[node].is_running {
            self.after(100 * MILLI, WorldEvent::ConnectionReset { connection });
            return;
        }
        if self.defer_if_paused(node, || WorldEvent::Connect { connection }) || !self.connections[&connection].is_open {
            return;
        }
        let session = self.nodes[node].session;
        let entry = self.connections.get_mut(&connection).expect("the connection was opened");
        (entry.session, entry.opened_at) = (Some(session), self.event);
        let volume = self.clients[entry.client].volume;
        self.deliver(node, volume, Event::Connected(ConnectionId(connection)));
    }

    pub fn request(&mut self, connection: u64, tag: usize, op: ClientOp) {
        let node = self.connections[&connection].node;
        if self.defer_if_paused(node, || WorldEvent::Request { connection, tag, op }) {
            return;
        }
        if !self.is_accepted(connection) {
            return;
        }
        let volume = self.clients[self.connections[&connection].client].volume;
        if self.nodes[node].instances[volume].is_reading_stopped {
            return self.after(20 * MILLI, WorldEvent::Request { connection, tag, op });
        }
        let entry = self.connections.get_mut(&connection).expect("it is open");
        entry.has_written |= matches!(op, ClientOp::Write { .. });
        entry.is_drained &= matches!(op, ClientOp::Flush);
        if entry.is_drained {
            entry.empty_flushes.insert(tag);
        }
        let origin = Origin::Connection { connection, tag };
        let request = self.nodes[node].instances[volume].add_request(origin, op);
        let connection = ConnectionId(connection);
        self.deliver(node, volume, Event::Request { connection, request, kind: op.kind() });
    }

    /// True if the node's process knows the connection.
    fn is_accepted(&self, connection: u64) -> bool {
        let connection = &self.connections[&connection];
        let node = &self.nodes[connection.node];
        connection.is_open && node.is_running && connection.session == Some(node.session)
    }

    /// The client closes a connection.
    pub fn close_connection(&mut self, connection: u64) {
        if std::mem::replace(&mut self.connections.get_mut(&connection).expect("it was opened").is_open, false) {
            self.after(MILLI, WorldEvent::Disconnect { connection });
        }
    }

    pub fn disconnect(&mut self, connection: u64) {
        let entry = &self.connections[&connection];
        let (node, session, volume) = (entry.node, entry.session, self.clients[entry.client].volume);
        if self.defer_if_paused(node, || WorldEvent::Disconnect { connection }) {
            return;
        }
        if self.nodes[node].is_running && session == Some(self.nodes[node].session) {
            self.deliver(node, volume, Event::Closed(ConnectionId(connection)));
        }
    }

    pub fn reply(&mut self, connection: u64, tag: usize, reply: Reply) {
        let entry = &self.connections[&connection];
        if !entry.is_open {
            return;
        }
        let (client, opened_at, covers_nothing) = (entry.client, entry.opened_at, entry.empty_flushes.contains(&tag));
        if reply.is_err() {
            self.clients[client].failed_ops += 1;
        }
        if tag == UNTRACKED {
            return;
        }
        let volume = self.clients[client].volume;
        let event = self.event;
        if let (Ok(value), false) = (reply, covers_nothing) {
            let since_open = opened_at + 1..=self.flushed_at.get(&(connection, tag)).copied().unwrap_or(0);
            if self.losses[volume].iter().any(|lost_at| since_open.contains(lost_at)) {
                // The client may have acknowledged writes at the lost owner, through whatever connection.
                let text = format!("volume {volume}: a connection of event {opened_at} outlived an owner and flushed");
                self.fail(Check::OldConnection, text);
            }
            self.histories[volume].complete(event, tag, value);
        }
        if self.clients[client].pending.remove(&tag) {
            let op = self.histories[volume].ops[tag];
            if reply.is_ok() && !covers_nothing && self.now > FAULTS_END + SECOND {
                let client = &mut self.clients[client];
                client.flushes_after_faults += u32::from(op.kind == OpKind::Flush);
                client.writes_after_faults += u32::from(matches!(op.kind, OpKind::Write { .. }));
                client.reads_after_faults += u32::from(matches!(op.kind, OpKind::Read { .. }));
            }
            let pause = self.rng.below(self.clients[client].pause_max);
            self.after(pause, WorldEvent::ClientStep { client });
        }
    }

    /// The node has closed a connection, or is gone.
    pub fn connection_reset(&mut self, connection: u64) {
        let entry = self.connections.get_mut(&connection).expect("the connection was opened");
        let was_open = std::mem::replace(&mut entry.is_open, false);
        let client = entry.client;
        if was_open {
            self.forget_connection(client, connection);
        }
    }

    fn forget_connection(&mut self, client: usize, connection: u64) {
        let state = &mut self.clients[client];
        if state.target == Some(connection) {
            state.target = None;
        }
        if state.connection == Some(connection) {
            state.connection = None;
            state.pending.clear();
            let delay = between(&self.rng, 100 * MILLI, 800 * MILLI);
            self.after(delay, WorldEvent::ClientStep { client });
        }
    }

    /// A node closes all connections of a volume.
    pub fn reset_connections(&mut self, node: usize, volume: usize) {
        let session = Some(self.nodes[node].session);
        let clients = &self.clients;
        let of_volume = |connection: &Connection| {
            connection.node == node && connection.session == session && clients[connection.client].volume == volume
        };
        let numbers: Vec<_> =
            self.connections.iter().filter(|(_, c)| c.is_open && of_volume(c)).map(|(number, _)| *number).collect();
        for connection in numbers {
            self.reset_connection(connection);
        }
    }

    /// A node closes a connection. Requests that arrive from now on are lost with it.
    pub fn reset_connection(&mut self, connection: u64) {
        self.connections.get_mut(&connection).expect("it exists").session = None;
        let delay = between(&self.rng, 2 * MILLI, 50 * MILLI);
        self.after(delay, WorldEvent::ConnectionReset { connection });
    }

    pub fn request_timeout(&mut self, client: usize, tag: usize) {
        if !self.clients[client].pending.contains(&tag) {
            return;
        }
        if let Some(connection) = self.clients[client].connection {
            self.close_connection(connection);
            self.forget_connection(client, connection);
        }
    }

    /// The target of a migration connects and reads LBA 0.
    pub fn migrate(&mut self, client: usize, to: usize, called_off: bool, stay: u64) {
        let state = &self.clients[client];
        let Some(connection) = state.connection.filter(|_| state.target.is_none()) else { return };
        if self.nodes[self.connections[&connection].node].id == to {
            return;
        }
        let to = self.current[to];
        let target = self.open_connection(client, to);
        let state = &mut self.clients[client];
        state.target = Some(target);
        state.migrations += 1;
        state.called_off = called_off;
        let migration = state.migrations;
        let op = ClientOp::Read { block: 0 };
        let tag = self.invoke(client, op);
        self.send_request(target, tag, op);
        self.after(stay, WorldEvent::SwitchOver { client, migration });
    }

    /// The guest stops at the source and continues at the target, or the migration is called off.
    pub fn switch_over(&mut self, client: usize, migration: usize) {
        let state = &self.clients[client];
        let (Some(target), true) = (state.target, state.migrations == migration) else {
            // The target's connection is lost: the guest goes on at the source.
            if std::mem::replace(&mut self.clients[client].is_stopping, false) {
                self.after(0, WorldEvent::ClientStep { client });
            }
            return;
        };
        if state.called_off {
            self.clients[client].target = None;
            return self.close_connection(target);
        }
        if !state.pending.is_empty() {
            self.clients[client].is_stopping = true;
            return self.after(20 * MILLI, WorldEvent::SwitchOver { client, migration });
        }
        let old = self.clients[client].connection.replace(target);
        self.clients[client].target = None;
        self.clients[client].home = self.nodes[self.connections[&target].node].id;
        if std::mem::replace(&mut self.clients[client].is_stopping, false) {
            self.after(0, WorldEvent::ClientStep { client });
        }
        let Some(old) = old else { return };
        for _ in 0..2 {
            let delay = self.rng.below(7 * SECOND);
            self.after(delay, WorldEvent::OldFlush { connection: old });
        }
        let delay = if self.rng.chance(700_000) { 8 * SECOND } else { self.rng.below(8 * SECOND) };
        self.after(delay, WorldEvent::OldClose { connection: old });
    }

    /// A flush of the source after the switch-over. It covers nothing that the guest has written since.
    pub fn old_flush(&mut self, connection: u64) {
        if self.connections[&connection].is_open {
            self.send_request(connection, UNTRACKED, ClientOp::Flush);
        }
    }
}
