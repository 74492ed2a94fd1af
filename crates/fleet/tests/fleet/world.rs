//! The simulated world: a queue of events in virtual time.

mod clients;
mod faults;
mod nodes;
mod storage_link;

use std::collections::BTreeMap;

use fleet::{
    Epoch, Event, ImageId, MachineGeneration, NodeLock, Owner, OwnerRecord, Sabotage, Settings, StorageClient,
};
use seam::Nanos;

use crate::checker;
use crate::client::{Client, Connection};
use crate::events::{Fault, WorldEvent, node_id};
use crate::failure::{Check, Failure};
use crate::faults::{Focus, Plan};
use crate::history::{History, OpKind};
use crate::node::{Clock, Instance, Node, Origin};
use crate::storage::{BYSTANDER, Storage};
use seam::sim::Rng;

pub const NODES: usize = 3;
pub const MILLI: u64 = 1_000_000;
pub const SECOND: u64 = 1_000 * MILLI;
/// End of all faults.
pub const FAULTS_END: u64 = 45 * SECOND;
/// Every volume must answer a flush until this time.
const LIVENESS_END: u64 = FAULTS_END + 90 * SECOND;
/// Events of a run, at most.
const EVENTS_MAX: u64 = 400_000;

/// A number from `low` on, below `high`.
pub fn between(rng: &Rng, low: u64, high: u64) -> u64 {
    low + rng.below(high - low)
}

/// The world.
pub struct World {
    now: u64,
    event: u64,
    /// Events by their time and number.
    events: BTreeMap<(u64, u64), Box<WorldEvent>>,
    last_event: u64,
    rng: Rng,
    plan: Plan,
    sabotage: Sabotage,
    /// Processes: one for each node, then further ones.
    nodes: Vec<Node>,
    /// The process that has the address of each node.
    current: [usize; NODES],
    links_cut_until: [[u64; NODES]; NODES],
    storage: Storage,
    clients: Vec<Client>,
    connections: BTreeMap<u64, Connection>,
    histories: Vec<History>,
    last_client: u64,
    last_value: u32,
    last_command: u64,
    /// Numbers of ownerships served, by volume.
    serves: Vec<usize>,
    /// Numbers of the events at which the record named an owner after one that was lost, by volume.
    losses: Vec<Vec<u64>>,
    /// Number of the event at which each flush was last executed, by connection and tag.
    flushed_at: BTreeMap<(u64, usize), u64>,
    /// Time after which a snapshot is restored that is taken at the next batch of destage, by volume.
    rewind_at_destage: Vec<Option<u64>>,
    failure: Option<Failure>,
    trace: Option<Vec<String>>,
}

/// The result of a run.
pub struct Outcome {
    pub failure: Option<Failure>,
    pub trace: Vec<String>,
}

/// Runs the life of `seed`, whose faults are drawn too unless `focus` sets them.
pub fn run(seed: u64, sabotage: Sabotage, focus: Option<Focus>, is_traced: bool) -> Outcome {
    let rng = Rng::new(seed, 0);
    let mut plan = Plan::draw(&rng, focus);
    let clients = std::mem::take(&mut plan.clients);
    let faults = std::mem::take(&mut plan.faults);
    let mut world = World {
        now: SECOND / 2,
        event: 0,
        events: BTreeMap::new(),
        last_event: 0,
        rng,
        sabotage,
        nodes: Vec::new(),
        current: std::array::from_fn(|node| node),
        links_cut_until: [[0; NODES]; NODES],
        storage: Storage::new(plan.volumes, plan.forgets),
        clients,
        connections: BTreeMap::new(),
        histories: vec![History::default(); plan.volumes],
        last_client: 0,
        last_value: 0,
        last_command: 0,
        serves: vec![0; plan.volumes],
        losses: vec![Vec::new(); plan.volumes],
        flushed_at: BTreeMap::new(),
        rewind_at_destage: vec![None; plan.volumes],
        failure: None,
        trace: is_traced.then(Vec::new),
        plan,
    };
    world.begin(faults);
    world.run_events();
    world.check();
    Outcome { failure: world.failure, trace: world.trace.unwrap_or_default() }
}

impl World {
    fn begin(&mut self, faults: Vec<(u64, Fault)>) {
        if self.trace.is_some() {
            self.note(format!("{:?}", self.plan));
            for (at, fault) in &faults {
                let text = format!("plan: {:.3} s {fault:?}", *at as f64 / SECOND as f64);
                self.note(text);
            }
        }
        if self.plan.has_copied_records {
            self.copy_records();
        }
        for node in 0..NODES {
            // Clocks of nodes have nothing to do with each other.
            let mut clock = Clock::default();
            clock.set(self.now, Nanos(SECOND * (1 + self.rng.below(1_000))));
            let instances = (0..self.plan.volumes)
                .map(|_| self.new_instance(node, MachineGeneration(0), NodeLock(node as u128)))
                .collect();
            self.nodes.push(Node {
                id: node,
                instances,
                is_running: true,
                is_gone: false,
                session: 1,
                paused_until: 0,
                storage_cut_until: 0,
                clock,
                generation: MachineGeneration(0),
                lock: NodeLock(node as u128),
                snapshot: None,
            });
            let at = self.rng.below(SECOND / 2);
            self.after(at, WorldEvent::Tick { node, session: 1 });
        }
        for client in 0..self.clients.len() {
            let at = self.rng.below(SECOND);
            self.after(at, WorldEvent::ClientStep { client });
        }
        for (at, fault) in faults {
            self.after(at, WorldEvent::Fault(fault));
        }
        let start = self.now;
        self.after(FAULTS_END - start, WorldEvent::Fault(Fault::End));
    }

    /// The images are copies of one whose record names a session that lives.
    fn copy_records(&mut self) {
        for volume in 0..self.plan.volumes {
            let node = self.rng.below(NODES as u64) as usize;
            let (client, lock) = (BYSTANDER, NodeLock(node as u128));
            let owner = Some(Owner { node: node_id(node), client, lock, generation: MachineGeneration(0) });
            let record = OwnerRecord { image: ImageId(99), epoch: Epoch(5), owner, ..OwnerRecord::default() };
            self.storage.images[volume].copy_record(record);
        }
    }

    fn new_instance(&mut self, node: usize, generation: MachineGeneration, lock: NodeLock) -> Instance {
        let client = self.new_client();
        let sabotage = self.sabotage;
        let takes_over_automatically = self.plan.is_automatic;
        let max = self.plan.requests_max;
        let settings = Settings {
            takes_over_automatically,
            sabotage,
            superseded_writes_max: max,
            forwarded_requests_max: max,
            waiting_requests_max: max,
            is_restorable: self.plan.is_restorable,
            ..Settings::new(node_id(node), lock)
        };
        Instance::new(settings, generation, client)
    }

    fn new_client(&mut self) -> StorageClient {
        self.last_client += 1;
        // A session begins with its watch.
        self.storage.ping(Nanos(self.now), StorageClient(self.last_client));
        StorageClient(self.last_client)
    }

    fn after(&mut self, delay: u64, event: WorldEvent) {
        self.last_event += 1;
        self.events.insert((self.now + delay, self.last_event), Box::new(event));
    }

    fn run_events(&mut self) {
        while let Some(((at, _), event)) = self.events.pop_first() {
            if at >= LIVENESS_END || self.failure.is_some() || self.has_recovered() {
                break;
            }
            if self.event >= EVENTS_MAX {
                self.fail(Check::Liveness, format!("more than {EVENTS_MAX} events"));
                break;
            }
            self.now = at;
            self.event += 1;
            self.process(*event);
            if let Some(violation) = self.storage.violation.take() {
                let (check, text) = violation;
                self.fail(check, text);
            }
        }
    }

    /// True when all faults have ended; since then every volume was written, and every reader was served.
    fn has_recovered(&self) -> bool {
        self.now >= FAULTS_END + 2 * SECOND
            && self.clients.iter().all(Client::is_served)
            && (0..self.plan.volumes).all(|volume| {
                let of_volume = |client: &&Client| client.volume == volume;
                self.clients.iter().filter(of_volume).any(Client::has_written)
            })
    }

    fn check(&mut self) {
        if self.failure.is_some() {
            return;
        }
        if !self.has_recovered() {
            let states: Vec<_> = self.nodes.iter().map(|node| self.states(node)).collect();
            return self.fail(Check::Liveness, format!("a client is not served {} s after all faults: {states:?}", 90));
        }
        for volume in 0..self.plan.volumes {
            if let Err(error) = checker::check(&self.histories[volume]) {
                return self.fail(Check::History, format!("volume {volume}: {error}"));
            }
            // Without faults, each migration moves the volume at most once, and one that is called off not at all.
            if !self.plan.has_faults && self.serves[volume] > 1 + self.plan.calm_migrations {
                let (serves, migrations) = (self.serves[volume], self.plan.calm_migrations);
                return self
                    .fail(Check::Moves, format!("volume {volume}: {serves} ownerships with {migrations} migrations"));
            }
        }
        if !self.plan.has_faults && self.clients.iter().any(|client| client.failed_ops > 0) {
            self.fail(Check::Requests, "a request failed without faults".to_owned());
        }
    }

    fn states(&self, node: &Node) -> Vec<String> {
        node.instances.iter().map(|instance| format!("{:?}", instance.ownership.state())).collect()
    }

    fn fail(&mut self, check: Check, text: String) {
        self.note(format!("FAILURE: {check:?}: {text}"));
        self.failure.get_or_insert(Failure { check, text });
    }

    fn note(&mut self, text: String) {
        let now = self.now as f64 / SECOND as f64;
        let event = self.event;
        if let Some(trace) = &mut self.trace {
            trace.push(format!("{now:10.6} #{event} {text}"));
        }
    }

    fn process(&mut self, event: WorldEvent) {
        if self.trace.is_some() && !matches!(event, WorldEvent::Tick { .. } | WorldEvent::ClientStep { .. }) {
            self.note(format!("{event:?}"));
        }
        match event {
            WorldEvent::Tick { node, session } => self.tick(node, session),
            WorldEvent::AtStorage { node, session, volume, sender, op } => {
                self.at_storage(node, session, volume, sender, &op);
            }
            WorldEvent::StorageReply { node, session, volume, sender, result } => {
                if self.defer_if_paused(node, || WorldEvent::StorageReply {
                    node,
                    session,
                    volume,
                    sender,
                    result: result.clone(),
                }) {
                    return;
                }
                self.storage_reply(node, session, volume, sender, result);
            }
            WorldEvent::ClientReplaced { node, session, volume } => self.client_replaced(node, session, volume),
            WorldEvent::Peer { from, to, volume, message } => {
                if self.defer_if_paused(to, || WorldEvent::Peer { from, to, volume, message }) {
                    return;
                }
                if self.nodes[to].is_running {
                    self.deliver(to, volume, Event::Peer { from: node_id(self.nodes[from].id), message });
                }
            }
            WorldEvent::Forward { from, session, to, volume, epoch, request, op } => {
                let event = || WorldEvent::Forward { from, session, to, volume, epoch, request, op };
                if self.defer_if_paused(to, event) {
                    return;
                }
                self.forwarded(Origin::Peer { node: from, session, request }, to, volume, epoch, op);
            }
            WorldEvent::ForwardReply { to, session, volume, request, reply } => {
                if self.defer_if_paused(to, || WorldEvent::ForwardReply { to, session, volume, request, reply }) {
                    return;
                }
                self.forward_reply(to, session, volume, request, reply);
            }
            WorldEvent::ForwardTimeout { node, session, volume, request } => {
                if self.defer_if_paused(node, || WorldEvent::ForwardTimeout { node, session, volume, request }) {
                    return;
                }
                self.forward_reply(node, session, volume, request, Err(fleet::RequestError::NotOwner));
            }
            WorldEvent::Connect { connection } => self.connect(connection),
            WorldEvent::Request { connection, tag, op } => self.request(connection, tag, op),
            WorldEvent::Disconnect { connection } => self.disconnect(connection),
            WorldEvent::Reply { connection, tag, reply } => self.reply(connection, tag, reply),
            WorldEvent::ConnectionReset { connection } => self.connection_reset(connection),
            WorldEvent::ClientStep { client } => self.client_step(client),
            WorldEvent::RequestTimeout { client, tag } => self.request_timeout(client, tag),
            WorldEvent::SwitchOver { client, migration } => self.switch_over(client, migration),
            WorldEvent::OldFlush { connection } => self.old_flush(connection),
            WorldEvent::OldClose { connection } => self.close_connection(connection),
            WorldEvent::SpreadMap { osd, map } => self.storage.spread_map(osd, map),
            WorldEvent::Fault(fault) => self.fault(fault),
            WorldEvent::Order { node, volume, command } => self.command(node, volume, command),
            WorldEvent::Rescue => self.rescue(),
        }
    }

    /// Puts an event off while the node's process is stopped.
    fn defer_if_paused(&mut self, node: usize, event: impl FnOnce() -> WorldEvent) -> bool {
        let until = self.nodes[node].paused_until;
        if until <= self.now || !self.nodes[node].is_running {
            return false;
        }
        let delay = until - self.now;
        self.after(delay, event());
        true
    }

    /// A new owner serves: a crash of the disk, unless the epoch before was released.
    fn served(&mut self, volume: usize, epoch: Epoch) {
        self.serves[volume] += 1;
        let image = &self.storage.images[volume];
        let was_released = epoch.0 <= 1 || image.released.contains(&Epoch(epoch.0 - 1));
        if !was_released {
            let sealed_at = *image.sealed_at.get(&epoch).expect("an owner has replayed the log");
            let lost_at = image.recorded_at.get(&epoch).copied().unwrap_or(self.event);
            self.losses[volume].push(lost_at);
            self.crashed(volume, sealed_at, OpKind::Crash);
        }
    }

    /// The disk loses writes between the event `from` and now.
    fn crashed(&mut self, volume: usize, from: u64, kind: OpKind) {
        let event = self.event;
        let op = self.histories[volume].invoke(from, kind);
        self.histories[volume].complete(event, op, 0);
    }
}
