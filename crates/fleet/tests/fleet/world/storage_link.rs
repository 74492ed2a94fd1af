//! Messages between nodes and the storage: late, held back by partitions, repeated after a restored snapshot.

use fleet::{Event, Sabotage, StorageAnswer, StorageClient, StorageError};
use seam::Nanos;

use super::{MILLI, SECOND, World, between};
use crate::events::WorldEvent;
use crate::node::{Node, Purpose};
use crate::storage::{Sender, StorageOp, StorageResult};

impl World {
    /// Sends a new operation.
    pub fn send_op(&mut self, node: usize, volume: usize, purpose: Purpose, op: StorageOp) {
        let instance = &mut self.nodes[node].instances[volume];
        instance.last_number += 1;
        let number = instance.last_number;
        instance.outstanding.insert(number, (purpose, op.clone()));
        self.transmit(node, volume, number, op);
    }

    /// Sends an operation, also once more under its old number.
    pub fn transmit(&mut self, node: usize, volume: usize, number: u64, op: StorageOp) {
        let (instance, session) = (&self.nodes[node].instances[volume], self.nodes[node].session);
        let sender = Sender { client: instance.client, map: instance.map, number };
        // The monitors take their time to publish a map.
        let base = if matches!(op, StorageOp::Fence(_)) { between(&self.rng, 700 * MILLI, 2_400 * MILLI) } else { 0 };
        let delay = base + self.storage_delay(node);
        self.after(delay, WorldEvent::AtStorage { node, session, volume, sender, op });
    }

    fn storage_delay(&mut self, node: usize) -> u64 {
        let held = self.nodes[node].storage_cut_until.saturating_sub(self.now);
        let late = self.plan.late_percent > 0
            && self.now < super::FAULTS_END
            && self.rng.chance(10_000 * self.plan.late_percent);
        let late = if late { self.rng.below(self.plan.late_max) } else { 0 };
        held + late + between(&self.rng, MILLI / 10, 3 * MILLI)
    }

    pub fn at_storage(&mut self, node: usize, session: u64, volume: usize, sender: Sender, op: &StorageOp) {
        let now = Nanos(self.now);
        if self.hangs(now, volume, sender, op) {
            if self.nodes[node].session != session {
                // The call has ended with its process.
                return;
            }
            self.after(SECOND / 2, WorldEvent::AtStorage { node, session, volume, sender, op: op.clone() });
            return;
        }
        let old_map = self.storage.map();
        let (result, map) = self.storage.execute(now, self.event, volume, sender, op);
        if self.storage.map() > old_map {
            self.spread_new_map();
        }
        if self.trace.is_some() {
            self.note(format!("  storage: {result:?}"));
        }
        let sender = Sender { map, ..sender };
        let delay = self.storage_delay(node);
        self.after(delay, WorldEvent::StorageReply { node, session, volume, sender, result });
    }

    /// True for a call that does not return: the lock of an owner that has its watch, but does not answer; a fence of
    /// a session that is blocked for a short time, which is done anew after the end of that entry.
    fn hangs(&self, now: Nanos, volume: usize, sender: Sender, op: &StorageOp) -> bool {
        match op {
            StorageOp::AcquireLock { is_automatic: false } => {
                let owner = self.storage.living_lock_owner(now, volume, sender.client);
                owner.is_some_and(|owner| !self.answers(volume, owner))
            }
            StorageOp::Fence(client) => {
                self.sabotage != Sabotage::BelieveShortFence && self.storage.is_blocked_shortly(now, *client)
            }
            _ => false,
        }
    }

    /// True if the process of a session runs and reaches the storage.
    fn answers(&self, volume: usize, client: StorageClient) -> bool {
        let runs = |node: &Node| node.is_running && node.paused_until <= self.now && node.storage_cut_until <= self.now;
        self.nodes.iter().any(|node| node.instances[volume].client == client && runs(node))
    }

    /// Each OSD learns the newest map some time later.
    pub fn spread_new_map(&mut self) {
        let map = self.storage.map();
        for osd in 0..3 {
            let delay = self.rng.below(20 * SECOND);
            self.after(delay, WorldEvent::SpreadMap { osd, map });
        }
    }

    pub fn storage_reply(
        &mut self,
        node: usize,
        session: u64,
        volume: usize,
        sender: Sender,
        result: Result<StorageResult, StorageError>,
    ) {
        if !self.nodes[node].is_running || self.nodes[node].session != session {
            return;
        }
        if self.nodes[node].instances[volume].generation != self.nodes[node].generation {
            // The data path looks at the generation, too, before it acts on a result.
            self.deliver(node, volume, Event::Tick);
        }
        let instance = &mut self.nodes[node].instances[volume];
        let purpose = if instance.client == sender.client {
            instance.map = instance.map.max(sender.map);
            instance.outstanding.remove(&sender.number).map(|(purpose, _)| purpose)
        } else {
            instance.abandoned.remove(&(sender.client, sender.number))
        };
        let Some(purpose) = purpose else { return };
        // The helper loses an answer, or reports that it has none.
        let is_lost = self.plan.has_lossy_helper && self.now < super::FAULTS_END && self.rng.chance(30_000);
        if let (true, Purpose::Ownership(op) | Purpose::Look(op, _)) = (is_lost, &purpose) {
            let op = *op;
            if self.rng.chance(500_000) {
                self.deliver(node, volume, Event::Storage { op, result: Err(StorageError::TimedOut) });
            }
            return;
        }
        let instance = &mut self.nodes[node].instances[volume];
        match purpose {
            Purpose::Ownership(op) => {
                let result = result.map(|result| match result {
                    StorageResult::Header(header) => StorageAnswer::Header(header),
                    StorageResult::Record(..) => unreachable!("only a look reads the record"),
                    StorageResult::Written => StorageAnswer::RecordWritten,
                    StorageResult::Done => StorageAnswer::Done,
                    StorageResult::Log(log) => {
                        let (epoch, last_append) = (log.epoch, log.last_append);
                        if instance.replay_op == Some(op) || self.sabotage == Sabotage::BelieveLateResults {
                            instance.replayed = log;
                        }
                        StorageAnswer::LogReplayed { epoch, last_append }
                    }
                    StorageResult::Value(_) => unreachable!("a value is for the data path"),
                });
                self.deliver(node, volume, Event::Storage { op, result });
            }
            Purpose::Look(op, log_end) => {
                let (_, log_end_max) = instance.log_end();
                let ignores_log = self.sabotage == Sabotage::IgnoreLogEnd
                    || self.sabotage == Sabotage::BelieveLateResults && instance.data.is_none();
                let result = match result {
                    Ok(StorageResult::Record(record, end)) if ignores_log || (log_end..=log_end_max).contains(&end) => {
                        Ok(StorageAnswer::Record(record))
                    }
                    Ok(_) => Err(StorageError::Stale),
                    Err(error) => Err(error),
                };
                self.deliver(node, volume, Event::Storage { op, result });
            }
            Purpose::Data(op) => match result {
                Ok(result) => {
                    let value = if let StorageResult::Value(value) = result { value } else { 0 };
                    let data = instance.data.as_mut().expect("the data path has sent an operation");
                    let outputs = data.completed(op, value);
                    self.act_for_data_path(node, volume, outputs);
                }
                Err(error) => {
                    self.deliver(node, volume, Event::DataPathRefused { client: sender.client, error });
                }
            },
        }
    }
}
