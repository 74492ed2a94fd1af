//! Faults, administrators, and the end of all faults.

use fleet::{Command, CommandId, ConnectionId, Event, NodeLock};

use super::{NODES, SECOND, World};
use crate::events::{Fault, WorldEvent, node_id};
use crate::history::OpKind;
use crate::node::{Instance, Node};
use crate::storage::{BYSTANDER, Image, StorageOp};
use seam::Nanos;

impl World {
    pub fn fault(&mut self, fault: Fault) {
        match fault {
            Fault::CutStorage { node, until } => {
                let cut = &mut self.nodes[node].storage_cut_until;
                *cut = until.max(*cut);
            }
            Fault::CutLink { a, b, until } => {
                self.links_cut_until[a][b] = until;
                self.links_cut_until[b][a] = until;
            }
            Fault::Pause { node, until } => self.nodes[node].paused_until = until,
            Fault::StopClock { node } => {
                let now = self.now;
                self.nodes[node].clock.stop(now);
            }
            Fault::StartClock { node } => {
                let now = self.now;
                self.nodes[node].clock.start(now);
            }
            Fault::Kill { node } => self.kill(node),
            Fault::Start { node } => self.start(node),
            Fault::TakeSnapshot { node } => self.take_snapshot(node),
            Fault::RestoreSnapshot { node } => self.restore_snapshot(node),
            Fault::Move { node, volume, to } => self.command(self.current[node], volume, Command::Move { to }),
            Fault::SecondProcess { volume, pause } => self.start_second_process(volume, pause),
            Fault::CrashHelper { node, volume } => self.crash_helper(node, volume),
            Fault::TakeOver { node, volume, age } => self.take_over(node, volume, age),
            Fault::Isolate { volume, until, cuts_links, take_over_after } => {
                self.isolate(volume, until, cuts_links, take_over_after);
            }
            Fault::RewindOwner { volume, after } => {
                if let Some(node) = self.owner(volume) {
                    self.take_snapshot(node);
                    self.after(after, WorldEvent::Fault(Fault::RestoreSnapshot { node }));
                }
            }
            Fault::BlockShortly { volume, duration } => {
                let record = self.storage.images[volume].record;
                if let Some(owner) = record.owner.filter(|owner| owner.client != BYSTANDER) {
                    let now = Nanos(self.now);
                    self.storage.block(now, owner.client, Nanos(self.now + duration));
                    self.spread_new_map();
                }
            }
            Fault::RewindDestage { volume, after } => self.rewind_at_destage[volume] = Some(after),
            Fault::FenceNode { node } => self.fence_node(node),
            Fault::Migrate { client, to, called_off, stay } => self.migrate(client, to, called_off, stay),
            Fault::End => self.end_faults(),
        }
    }

    /// A node that owns the volume, as it believes.
    fn owner(&self, volume: usize) -> Option<usize> {
        (0..self.nodes.len()).find(|node| {
            let node = &self.nodes[*node];
            node.is_running && node.instances[volume].ownership.epoch().is_some()
        })
    }

    fn isolate(&mut self, volume: usize, until: u64, cuts_links: bool, take_over_after: u64) {
        let Some(node) = self.owner(volume) else { return };
        self.fault(Fault::CutStorage { node, until });
        if cuts_links {
            for other in (0..NODES).filter(|other| *other != node) {
                self.fault(Fault::CutLink { a: node, b: other, until });
            }
        }
        if take_over_after < u64::MAX {
            let to = (node + 1 + self.rng.below(NODES as u64 - 1) as usize) % NODES;
            self.after(take_over_after, WorldEvent::Fault(Fault::TakeOver { node: to, volume, age: 0 }));
        }
    }

    /// Starts a second process on the owner's node, which gets its address. The first one may be stopped for a while.
    fn start_second_process(&mut self, volume: usize, pause: u64) {
        let Some(old) = self.owner(volume) else { return };
        let (id, generation, clock) = (self.nodes[old].id, self.nodes[old].generation, self.nodes[old].clock);
        self.nodes[old].paused_until = self.now + pause;
        let (index, lock) = (self.nodes.len(), NodeLock(1_000 + self.nodes.len() as u128));
        let instances = (0..self.plan.volumes).map(|_| self.new_instance(id, generation, lock)).collect();
        let (is_running, is_gone, session, snapshot) = (true, false, 1, None);
        let (paused_until, storage_cut_until) = (0, self.nodes[old].storage_cut_until);
        self.nodes.push(Node {
            id,
            instances,
            is_running,
            is_gone,
            session,
            paused_until,
            storage_cut_until,
            clock,
            generation,
            lock,
            snapshot,
        });
        self.current[id] = index;
        self.after(0, WorldEvent::Tick { node: index, session });
    }

    pub fn command(&mut self, node: usize, volume: usize, command: Command) {
        if self.nodes[node].is_running && self.nodes[node].paused_until <= self.now {
            self.last_command += 1;
            let id = CommandId(self.last_command);
            self.deliver(node, volume, Event::Command { id, command });
        }
    }

    fn crash_helper(&mut self, node: usize, volume: usize) {
        if self.nodes[node].is_running && self.nodes[node].paused_until <= self.now {
            let instance = &mut self.nodes[node].instances[volume];
            // No operation of the session has a result any more; those under way may have effect.
            instance.outstanding.clear();
            let client = instance.client;
            self.deliver(node, volume, Event::ClientLost(client));
        }
    }

    /// Orders to take over from the owner that the record names, or named `age` epochs ago.
    fn take_over(&mut self, node: usize, volume: usize, age: u64) {
        let image = &self.storage.images[volume];
        let record = image.record;
        let (epoch, owner) = match image.owner_before(age) {
            Some((epoch, owner)) if age > 0 => (epoch, Some(owner)),
            _ => (record.epoch, record.owner.filter(|_| !record.is_released)),
        };
        self.command(node, volume, Command::TakeOver { epoch, owner, is_dead: false });
    }

    fn kill(&mut self, node: usize) {
        if !self.nodes[node].is_running {
            return;
        }
        self.reset_all_connections(node);
        let killed = &mut self.nodes[node];
        killed.is_running = false;
        killed.paused_until = 0;
    }

    fn reset_all_connections(&mut self, node: usize) {
        for volume in 0..self.plan.volumes {
            self.reset_connections(node, volume);
        }
    }

    fn start(&mut self, node: usize) {
        if self.nodes[node].is_running || self.nodes[node].is_gone {
            return;
        }
        if self.rng.chance(300_000) {
            // The machine has booted again, or another process has the node's name.
            self.nodes[node].lock.0 += NODES as u128;
        }
        let (generation, lock) = (self.nodes[node].generation, self.nodes[node].lock);
        let instances =
            (0..self.plan.volumes).map(|_| self.new_instance(self.nodes[node].id, generation, lock)).collect();
        let started = &mut self.nodes[node];
        started.instances = instances;
        started.is_running = true;
        started.session += 1;
        let session = started.session;
        self.after(0, WorldEvent::Tick { node, session });
    }

    fn take_snapshot(&mut self, node: usize) {
        let world = self.now;
        let node = &mut self.nodes[node];
        if node.is_running {
            node.snapshot = Some((node.instances.clone(), node.clock.now(world)));
        }
    }

    /// The node's memory and clock go back. Its connections are lost, and operations that were in progress at the
    /// snapshot are sent again under their numbers.
    fn restore_snapshot(&mut self, node: usize) {
        if self.nodes[node].is_gone {
            return;
        }
        let Some((instances, clock)) = self.nodes[node].snapshot.clone() else { return };
        let is_owner = |(instance, image): (&Instance, &Image)| {
            let owner = image.record.owner.filter(|_| !image.record.is_released);
            owner.is_some_and(|owner| owner.client == instance.client)
        };
        if !self.plan.has_generation && !self.plan.rewinds_same_owner {
            // Nothing but a generation number proves that the owner missed nothing.
            if instances.iter().zip(&self.storage.images).any(is_owner) {
                return;
            }
        }
        self.reset_all_connections(node);
        self.settle_messages(node);
        let world = self.now;
        let restored = &mut self.nodes[node];
        restored.instances = instances;
        restored.is_running = true;
        restored.paused_until = 0;
        restored.session += 1;
        restored.generation.0 += u128::from(self.plan.has_generation);
        restored.clock.set(world, clock);
        let session = restored.session;
        for volume in 0..self.plan.volumes {
            // Without a generation number, an owner may continue without its latest writes.
            let record = self.storage.images[volume].record;
            let is_owner = record.owner.is_some_and(|owner| owner.node == node_id(node)) && !record.is_released;
            if is_owner && !self.plan.has_generation {
                let event = self.event;
                self.crashed(volume, event, OpKind::Rewind);
            }
            let instance = &self.nodes[node].instances[volume];
            let connections: Vec<ConnectionId> = instance.ownership.connections().collect();
            let is_replacing = instance.is_replacing;
            let outstanding: Vec<(u64, StorageOp)> =
                instance.outstanding.iter().map(|(number, (_, op))| (*number, op.clone())).collect();
            for (number, op) in outstanding {
                self.transmit(node, volume, number, op);
            }
            for connection in connections {
                self.deliver(node, volume, Event::Closed(connection));
            }
            if is_replacing {
                self.after(SECOND, WorldEvent::ClientReplaced { node, session, volume });
            }
        }
        self.after(0, WorldEvent::Tick { node, session });
    }

    /// Operations that were under way to the storage arrive before the restored process runs, or never: their
    /// connections are gone.
    fn settle_messages(&mut self, node: usize) {
        let is_of_node = |event: &WorldEvent| matches!(event, WorldEvent::AtStorage { node: at, .. } if *at == node);
        let keys: Vec<_> = self.events.iter().filter(|(_, event)| is_of_node(event)).map(|(key, _)| *key).collect();
        for key in keys {
            let event = self.events.remove(&key).expect("the event is queued");
            if self.rng.chance(500_000) {
                self.after(0, *event);
            }
        }
    }

    /// The hypervisor's fencing hook: the node is off and stays off, another one takes over.
    fn fence_node(&mut self, node: usize) {
        if (0..NODES).filter(|other| *other != node).any(|other| self.nodes[other].is_gone) {
            return;
        }
        self.kill(node);
        self.nodes[node].is_gone = true;
        for volume in 0..self.plan.volumes {
            let to = (node + 1 + self.rng.below(NODES as u64 - 1) as usize) % NODES;
            // The hook names the owner of the record, which may be another node.
            let record = self.storage.images[volume].record;
            if let Some(owner) = record.owner.filter(|owner| owner.node == node_id(node) && !record.is_released) {
                let command = Command::TakeOver { epoch: record.epoch, owner: Some(owner), is_dead: true };
                for to in [to, (0..NODES).find(|other| *other != node && *other != to).expect("there are three")] {
                    let delay = self.rng.below(2 * SECOND);
                    self.after(delay, WorldEvent::Order { node: to, volume, command });
                }
            }
        }
    }

    fn end_faults(&mut self) {
        let now = self.now;
        for node in 0..self.nodes.len() {
            if self.current[self.nodes[node].id] != node {
                // An earlier process of the node.
                self.kill(node);
                continue;
            }
            self.nodes[node].storage_cut_until = 0;
            self.nodes[node].paused_until = now;
            self.nodes[node].clock.start(now);
            self.start(node);
        }
        self.links_cut_until = [[0; NODES]; NODES];
        self.after(12 * SECOND, WorldEvent::Rescue);
    }

    /// The administrator takes volumes over that are still not served. Automatic take-over needs none.
    pub fn rescue(&mut self) {
        if self.plan.is_automatic {
            return;
        }
        for volume in 0..self.plan.volumes {
            let mut clients = self.clients.iter().filter(|client| client.volume == volume);
            if clients.any(|client| client.flushes_after_faults >= 2) {
                continue;
            }
            let client = self.clients.iter().find(|client| client.volume == volume).expect("a volume has a client");
            let home = self.current[client.home];
            let node = client.connection.map_or(home, |connection| self.connections[&connection].node);
            let node = self.nodes[node].id;
            let nodes = [node, (node + 1) % NODES, (node + 2) % NODES];
            if let Some(node) =
                nodes.into_iter().map(|node| self.current[node]).find(|node| self.nodes[*node].is_running)
            {
                self.take_over(node, volume, 0);
            }
        }
        self.after(25 * SECOND, WorldEvent::Rescue);
    }
}
