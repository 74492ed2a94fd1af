//! The plan of a run: its shape, faults, administrators and migrations, drawn from the seed.

use std::collections::BTreeSet;

use crate::client::{Client, Work};
use crate::events::{Fault, node_id};
use crate::world::{FAULTS_END, MILLI, NODES, SECOND, between};
use seam::sim::Rng;

/// Faults on which a run concentrates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Focus {
    All,
    LateResults,
    Rewinds,
    ExpiredWatch,
    Destage,
    /// Two processes of one node.
    TwoProcesses,
    /// Owners that are cut off the storage, but not their clients.
    Isolated,
    /// Owners that are restored after they have released the volume.
    Released,
    /// Owners whose session another program has blocked for a short time.
    ShortBlock,
    /// Restored owners without a generation number, which the ownership does not promise to survive.
    SameOwner,
}

/// The plan of a run.
#[derive(Debug)]
pub struct Plan {
    pub volumes: usize,
    pub is_automatic: bool,
    pub has_faults: bool,
    /// The machines have a generation number. Without one, no machine goes back within one ownership.
    pub has_generation: bool,
    pub rewinds_same_owner: bool,
    /// The machines can be restored.
    pub is_restorable: bool,
    /// The storage forgets the numbers of earlier owners.
    pub forgets: bool,
    /// Records that the log of a volume holds, at most.
    pub log_records_max: usize,
    /// The images are copies, with the record of another one.
    pub has_copied_records: bool,
    /// The helper between a node and the storage loses answers.
    pub has_lossy_helper: bool,
    /// Limits of the queues.
    pub requests_max: usize,
    /// Percentage of messages to the storage that are late by seconds.
    pub late_percent: u32,
    /// Delay of a late message, at most.
    pub late_max: u64,
    /// Percentage of messages between nodes that are lost.
    pub loss_percent: u32,
    pub faults: Vec<(u64, Fault)>,
    pub clients: Vec<Client>,
    pub calm_migrations: usize,
}

impl Plan {
    pub fn draw(rng: &Rng, focus: Option<Focus>) -> Plan {
        let volumes = 1 + rng.below(2) as usize;
        let has_faults = !rng.chance(120_000);
        let mut clients = Vec::new();
        for volume in 0..volumes {
            let home = rng.below(NODES as u64) as usize;
            clients.push(client(rng, volume, home, Work::Mixed));
            if has_faults && rng.chance(500_000) {
                let work = if rng.chance(350_000) { Work::Mixed } else { Work::ReadsOnly };
                let home = rng.below(NODES as u64) as usize;
                clients.push(client(rng, volume, home, work));
            }
        }
        let mut plan = Plan {
            volumes,
            is_automatic: rng.chance(500_000),
            has_faults,
            has_generation: rng.chance(500_000),
            rewinds_same_owner: false,
            is_restorable: false,
            forgets: rng.coin(),
            log_records_max: [6, 1_000][rng.below(2) as usize],
            has_copied_records: rng.chance(100_000),
            has_lossy_helper: has_faults && rng.chance(250_000),
            requests_max: if rng.chance(300_000) { 1 + rng.below(2) as usize } else { 64 },
            late_percent: if has_faults { [0, 1, 3, 15][rng.below(4) as usize] } else { 0 },
            late_max: 8 * SECOND,
            loss_percent: if has_faults { rng.below(20) as u32 } else { 0 },
            faults: Vec::new(),
            clients,
            calm_migrations: 0,
        };
        let drawn = match rng.below(20) {
            3 => Focus::Destage,
            4 => Focus::Released,
            5 => Focus::ShortBlock,
            6 => Focus::Isolated,
            7 => Focus::TwoProcesses,
            0 => Focus::LateResults,
            1 => Focus::Rewinds,
            2 => Focus::ExpiredWatch,
            _ => Focus::All,
        };
        match focus.unwrap_or(drawn) {
            Focus::LateResults if has_faults => plan.draw_late_results(rng),
            Focus::Rewinds if has_faults => plan.draw_rewinds(rng),
            Focus::ExpiredWatch if has_faults => plan.draw_expired_watch(rng),
            Focus::SameOwner if has_faults => plan.draw_same_owner(rng),
            Focus::Released if has_faults => plan.draw_released(rng),
            Focus::ShortBlock if has_faults => plan.draw_short_block(rng),
            Focus::Isolated if has_faults => plan.draw_isolated(rng),
            Focus::TwoProcesses if has_faults => plan.draw_two_processes(rng),
            Focus::Destage if has_faults => plan.draw_destage(rng),
            _ => {
                plan.draw_migrations(rng, 3);
                if has_faults {
                    for _ in 0..1 + rng.below(7) {
                        plan.draw_fault(rng);
                    }
                }
            }
        }
        let restores = |fault: &Fault| {
            matches!(fault, Fault::RestoreSnapshot { .. } | Fault::RewindOwner { .. } | Fault::RewindDestage { .. })
        };
        plan.is_restorable = rng.coin() || plan.faults.iter().any(|(_, fault)| restores(fault));
        plan
    }

    /// Slow storage and impatient clients: many attempts that are abandoned.
    fn draw_late_results(&mut self, rng: &Rng) {
        (self.late_percent, self.late_max) = (15, 35 * SECOND);
        for client in &mut self.clients {
            client.request_timeout = between(rng, SECOND, 4 * SECOND);
        }
        self.draw_migrations(rng, 4);
    }

    /// Nodes whose memory goes back, owners and others, between many migrations.
    fn draw_rewinds(&mut self, rng: &Rng) {
        self.has_generation = false;
        for _ in 0..2 + rng.below(3) {
            let (at, node) = (SECOND + rng.below(20 * SECOND), rng.below(NODES as u64) as usize);
            self.faults.push((at, Fault::TakeSnapshot { node }));
            self.faults.push((at + SECOND + rng.below(20 * SECOND), Fault::RestoreSnapshot { node }));
        }
        self.draw_migrations(rng, 5);
    }

    /// An owner that reaches the storage again when its watch has just expired.
    fn draw_expired_watch(&mut self, rng: &Rng) {
        self.is_automatic = true;
        let (at, volume) = (2 * SECOND + rng.below(10 * SECOND), rng.below(self.volumes as u64) as usize);
        let until = at + 30 * SECOND + SECOND / 2 + rng.below(3 * SECOND);
        self.faults.push((at, Fault::Isolate { volume, until, cuts_links: false, take_over_after: u64::MAX }));
        let home = rng.below(NODES as u64) as usize;
        self.clients.push(client(rng, volume, home, Work::Mixed));
    }

    /// Owners whose memory goes back to the beginning of a batch of destage.
    fn draw_destage(&mut self, rng: &Rng) {
        for _ in 0..3 {
            let (at, volume) = (SECOND + rng.below(30 * SECOND), rng.below(self.volumes as u64) as usize);
            let after = MILLI + rng.below([20 * MILLI, 2 * SECOND][rng.below(2) as usize]);
            self.faults.push((at, Fault::RewindDestage { volume, after }));
        }
        self.draw_migrations(rng, 3);
    }

    fn draw_released(&mut self, rng: &Rng) {
        for _ in 0..2 {
            let (at, volume) = (SECOND + rng.below(25 * SECOND), rng.below(self.volumes as u64) as usize);
            let after = between(rng, 3 * SECOND, 16 * SECOND);
            self.faults.push((at, Fault::RewindDestage { volume, after }));
            for delay in [rng.below(3 * SECOND), between(rng, 3 * SECOND, 9 * SECOND)] {
                let to = node_id(rng.below(NODES as u64) as usize);
                for node in 0..NODES {
                    self.faults.push((at + delay, Fault::Move { node, volume, to }));
                }
            }
        }
    }

    /// An owner that is blocked, and cannot notice it before the entry has ended.
    fn draw_short_block(&mut self, rng: &Rng) {
        (self.late_percent, self.late_max) = (8, 25 * SECOND);
        let volume = rng.below(self.volumes as u64) as usize;
        let at = 3 * SECOND + rng.below(15 * SECOND);
        let (duration, delay) = (between(rng, SECOND, 10 * SECOND), rng.below(2 * SECOND));
        let until = at + duration + rng.below(8 * SECOND);
        self.faults.push((at, Fault::BlockShortly { volume, duration }));
        let take_over_after = rng.below(2 * SECOND);
        let isolate = Fault::Isolate { volume, until, cuts_links: false, take_over_after };
        self.faults.push((at.saturating_sub(delay), isolate));
        self.draw_migrations(rng, 2);
    }

    fn draw_isolated(&mut self, rng: &Rng) {
        let (at, volume) = (2 * SECOND + rng.below(15 * SECOND), rng.below(self.volumes as u64) as usize);
        let (until, take_over_after) = (at + between(rng, 12 * SECOND, 30 * SECOND), rng.below(6 * SECOND));
        let cuts_links = rng.coin();
        self.faults.push((at, Fault::Isolate { volume, until, cuts_links, take_over_after }));
        for home in 0..NODES {
            self.clients.push(client(rng, volume, home, Work::Mixed));
            self.clients.push(client(rng, volume, home, Work::NoFlushes));
        }
    }

    fn draw_two_processes(&mut self, rng: &Rng) {
        let (at, volume) = (3 * SECOND + rng.below(10 * SECOND), rng.below(self.volumes as u64) as usize);
        let pause = if rng.coin() { 0 } else { rng.below(35 * SECOND) };
        self.faults.push((at, Fault::SecondProcess { volume, pause }));
        for home in 0..NODES {
            self.clients.push(client(rng, volume, home, Work::Mixed));
            self.clients.push(client(rng, volume, home, Work::NoFlushes));
        }
        self.draw_migrations(rng, 3);
    }

    fn draw_same_owner(&mut self, rng: &Rng) {
        (self.has_generation, self.rewinds_same_owner) = (false, true);
        for _ in 0..2 {
            let (at, volume) = (SECOND + rng.below(30 * SECOND), rng.below(self.volumes as u64) as usize);
            let after = if rng.chance(600_000) { rng.below(3 * SECOND) } else { rng.below(12 * SECOND) };
            self.faults.push((at, Fault::RewindOwner { volume, after }));
        }
        self.draw_migrations(rng, 3);
    }

    fn draw_migrations(&mut self, rng: &Rng, rounds_max: u64) {
        for client in 0..self.clients.len() {
            for round in 0..rng.below(rounds_max) {
                let at = (2 + 42 / rounds_max * round) * SECOND + rng.below(3 * SECOND);
                let to = rng.below(NODES as u64) as usize;
                let called_off = rng.chance(300_000);
                self.calm_migrations += usize::from(!called_off);
                let stay = if rng.chance(700_000) { 2 * SECOND } else { rng.below(3 * SECOND) };
                self.faults.push((at, Fault::Migrate { client, to, called_off, stay }));
            }
        }
    }

    fn draw_fault(&mut self, rng: &Rng) {
        let at = SECOND + rng.below(FAULTS_END - 6 * SECOND);
        let node = rng.below(NODES as u64) as usize;
        let volume = rng.below(self.volumes as u64) as usize;
        let until = (at + duration(rng)).min(FAULTS_END);
        match rng.below(17) {
            16 => self.faults.push((at, Fault::CrashHelper { node, volume })),
            0 => self.faults.push((at, Fault::CutStorage { node, until })),
            1 => {
                let b = (node + 1 + rng.below(2) as usize) % NODES;
                self.faults.push((at, Fault::CutLink { a: node, b, until }));
            }
            2 => {
                self.faults.push((at, Fault::CutStorage { node, until }));
                for b in (0..NODES).filter(|b| *b != node) {
                    self.faults.push((at, Fault::CutLink { a: node, b, until }));
                }
            }
            3 | 4 => self.faults.push((at, Fault::Pause { node, until })),
            5 | 6 => {
                self.faults.push((at, Fault::Kill { node }));
                self.faults.push((until, Fault::Start { node }));
            }
            7 => self.faults.push((at, Fault::FenceNode { node })),
            8 => {
                // The time for which all of a node's stops add up is the margin of the lease.
                let has_stop = |fault: &Fault| matches!(fault, Fault::StopClock { node: other, .. } if *other == node);
                if !self.faults.iter().any(|(_, fault)| has_stop(fault)) {
                    let until = at + rng.below(2 * SECOND);
                    self.faults.push((at, Fault::StopClock { node }));
                    self.faults.push((until, Fault::StartClock { node }));
                }
            }
            9 | 10 => {
                self.faults.push((at, Fault::TakeSnapshot { node }));
                let at = at + MILLI + if rng.chance(500_000) { rng.below(3 * SECOND) } else { rng.below(15 * SECOND) };
                self.faults.push((at.min(FAULTS_END), Fault::RestoreSnapshot { node }));
            }
            11..=13 => {
                let long = between(rng, 28 * SECOND, 36 * SECOND);
                let until = if rng.chance(500_000) { until } else { (at + long).min(FAULTS_END + 10 * SECOND) };
                let take_over_after = if rng.chance(600_000) { rng.below(7 * SECOND) } else { u64::MAX };
                let cuts_links = rng.chance(400_000);
                self.faults.push((at, Fault::Isolate { volume, until, cuts_links, take_over_after }));
            }
            14 if rng.coin() => {
                let after = MILLI + rng.below([20 * MILLI, 2 * SECOND][rng.below(2) as usize]);
                self.faults.push((at, Fault::RewindDestage { volume, after }));
            }
            14 => {
                let after = if rng.chance(600_000) { rng.below(3 * SECOND) } else { rng.below(12 * SECOND) };
                self.faults.push((at, Fault::RewindOwner { volume, after }));
            }
            _ => {
                let to = node_id(rng.below(NODES as u64) as usize);
                for node in 0..NODES {
                    self.faults.push((at, Fault::Move { node, volume, to }));
                }
            }
        }
        if rng.chance(400_000) {
            let at = (at + rng.below(8 * SECOND)).min(FAULTS_END - SECOND);
            // Sometimes several nodes at once, and orders that come late.
            let first = rng.below(NODES as u64) as usize;
            for node in 0..if rng.chance(250_000) { NODES } else { 1 } {
                let age = if rng.chance(800_000) { 0 } else { 1 };
                self.faults.push((at, Fault::TakeOver { node: (first + node) % NODES, volume, age }));
            }
        }
    }
}

/// A fault's duration: short ones, and ones beyond each of the lease's limits.
fn duration(rng: &Rng) -> u64 {
    match rng.below(3) {
        0 => rng.below(3 * SECOND),
        1 => between(rng, 3 * SECOND, 12 * SECOND),
        _ => between(rng, 12 * SECOND, 42 * SECOND),
    }
}

fn client(rng: &Rng, volume: usize, home: usize, work: Work) -> Client {
    let request_timeout = if rng.chance(850_000) { 40 * SECOND } else { between(rng, SECOND, 10 * SECOND) };
    let pause_max = [50, 300, 900][rng.below(3) as usize] * MILLI;
    Client {
        volume,
        home,
        work,
        connection: None,
        target: None,
        migrations: 0,
        called_off: false,
        pending: BTreeSet::new(),
        depth: [1, 1, 1, 1, 1, 1, 1, 2][rng.below(8) as usize],
        is_stopping: false,
        pause_max,
        request_timeout,
        flushes_after_faults: 0,
        writes_after_faults: 0,
        reads_after_faults: 0,
        failed_ops: 0,
    }
}
