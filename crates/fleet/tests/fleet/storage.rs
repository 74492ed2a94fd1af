//! A model of RBD: header with lock, watches and record; log; image; blocklist with a map that spreads lazily.
//!
//! Axioms are listed in `docs/design/fleet.md`.

use std::collections::{BTreeMap, BTreeSet};

use fleet::{Epoch, Expected, Header, ImageId, Owner, OwnerRecord, StorageClient, StorageError};
use seam::Nanos;

use crate::failure::Check;

pub const BLOCKS: usize = 5;
const OSDS: usize = 3;
/// A session that lives all the time, and has nothing to do with the volumes.
pub const BYSTANDER: StorageClient = StorageClient(0);
/// Time after its last ping after which a watch expires.
const WATCH_TIMEOUT: Nanos = Nanos::from_secs(30);

/// An operation.
#[derive(Clone, Debug)]
pub enum StorageOp {
    ReadHeader,
    ReadRecord,
    Fence(StorageClient),
    /// The automatic lock passes from a living owner without its knowledge.
    AcquireLock {
        is_automatic: bool,
    },
    ReleaseLock,
    ReplayLog(Epoch),
    WriteRecord {
        expected: Box<Expected>,
        new: Box<OwnerRecord>,
    },
    Append {
        epoch: Epoch,
        first_seq: u64,
        records: Vec<(usize, u32)>,
    },
    Trim {
        epoch: Epoch,
        seqs: Vec<u64>,
    },
    ReadBlock(usize),
    WriteBlock {
        epoch: Epoch,
        block: usize,
        value: u32,
    },
}

impl StorageOp {
    fn is_read(&self) -> bool {
        matches!(self, StorageOp::ReadHeader | StorageOp::ReadRecord | StorageOp::ReadBlock(_))
    }
}

/// A successful result.
#[derive(Clone, Debug)]
pub enum StorageResult {
    Header(Header),
    /// The record, and the end of the log.
    Record(OwnerRecord, u64),
    Written,
    Done,
    Log(Log),
    Value(u32),
}

/// The log of a volume.
#[derive(Clone, Debug, Default)]
pub struct Log {
    pub epoch: Epoch,
    pub last_append: Epoch,
    pub next_seq: u64,
    /// Value and block of each record.
    pub records: BTreeMap<u64, (usize, u32)>,
}

/// An image with its log.
#[derive(Clone, Debug, Default)]
pub struct Image {
    id: ImageId,
    pub record: OwnerRecord,
    lock_owner: Option<StorageClient>,
    pub log: Log,
    blocks: [u32; BLOCKS],
    block_epochs: [Epoch; BLOCKS],
    /// The client of each epoch with effect.
    writers: BTreeMap<Epoch, StorageClient>,
    /// The owner of each epoch.
    owners: BTreeMap<Epoch, Owner>,
    /// Epochs that ended with a release.
    pub released: BTreeSet<Epoch>,
    /// Number of the history's event after which each epoch was the log's.
    pub sealed_at: BTreeMap<Epoch, u64>,
    /// Number of the history's event at which the record of each epoch was written.
    pub recorded_at: BTreeMap<Epoch, u64>,
}

impl Image {
    /// A copy of an image: with the record of its parent, whose owner lives.
    pub fn copy_record(&mut self, record: OwnerRecord) {
        self.record = record;
        // No writes of this image were lost.
        self.released.insert(record.epoch);
    }

    /// The owner of so many epochs ago, which may have released the volume.
    pub fn owner_before(&self, age: u64) -> Option<(Epoch, Owner)> {
        self.owners.iter().rev().nth(age as usize).map(|(epoch, owner)| (*epoch, *owner))
    }
}

/// Sender of an operation.
#[derive(Clone, Copy, Debug)]
pub struct Sender {
    pub client: StorageClient,
    /// The map that it knows.
    pub map: u64,
    /// Number of the operation. The storage answers a number that it has seen from its memory.
    pub number: u64,
}

/// An executed write: its OSD and its result.
type Seen = (usize, Result<(), StorageError>);

/// The cluster.
#[derive(Default)]
pub struct Storage {
    pub images: Vec<Image>,
    /// The map that says so, and the end of the entry.
    blocked: BTreeMap<StorageClient, (u64, Nanos)>,
    map: u64,
    osd_maps: [u64; OSDS],
    pings: BTreeMap<StorageClient, Nanos>,
    /// Result codes of executed writes. An operation under a known number gets its code and is not executed, whatever
    /// it is: a client whose memory went back in time reuses numbers. The memory has a bound: at an OSD where a later
    /// owner has written to the image, those of earlier owners may be forgotten.
    seen: BTreeMap<(StorageClient, u64), Seen>,
    forgets: bool,
    pub violation: Option<(Check, String)>,
}

impl Storage {
    pub fn new(volumes: usize, forgets: bool) -> Storage {
        let image = |volume| Image { id: ImageId(volume as u128 + 1), ..Image::default() };
        let pings = BTreeMap::from([(BYSTANDER, Nanos::MAX)]);
        Storage { images: (0..volumes).map(image).collect(), pings, forgets, ..Storage::default() }
    }

    /// Blocks a client until `end`, unless an entry for it exists: that one stays, also if it ends earlier.
    pub fn block(&mut self, now: Nanos, client: StorageClient, end: Nanos) {
        if client == BYSTANDER {
            let text = "the owner of another image was blocked".to_owned();
            self.violation.get_or_insert((Check::Bystander, text));
        }
        self.map += 1;
        let entry = self.blocked.entry(client).or_insert((self.map, end));
        if entry.1 <= now {
            *entry = (self.map, end);
        }
    }

    /// True if a client is blocked for a limited time.
    pub fn is_blocked_shortly(&self, now: Nanos, client: StorageClient) -> bool {
        self.blocked.get(&client).is_some_and(|(_, end)| now < *end && *end < Nanos::MAX)
    }

    /// Another client that has the lock of an image, and its watch.
    pub fn living_lock_owner(&self, now: Nanos, volume: usize, client: StorageClient) -> Option<StorageClient> {
        self.images[volume].lock_owner.filter(|owner| *owner != client && self.is_alive(now, *owner))
    }

    pub fn ping(&mut self, now: Nanos, client: StorageClient) {
        self.pings.insert(client, now);
    }

    pub fn close_watch(&mut self, client: StorageClient) {
        self.pings.remove(&client);
    }

    /// The newest map, and the OSDs.
    pub fn map(&self) -> u64 {
        self.map
    }

    pub fn spread_map(&mut self, osd: usize, map: u64) {
        self.osd_maps[osd % OSDS] = self.osd_maps[osd % OSDS].max(map);
    }

    fn is_alive(&self, now: Nanos, client: StorageClient) -> bool {
        self.pings.get(&client).is_some_and(|pinged_at| now.since(*pinged_at) < WATCH_TIMEOUT)
    }

    /// Executes an operation; returns its result and the map that its sender knows afterwards.
    pub fn execute(
        &mut self,
        now: Nanos,
        event: u64,
        volume: usize,
        sender: Sender,
        op: &StorageOp,
    ) -> (Result<StorageResult, StorageError>, u64) {
        let (client, mut map) = (sender.client, sender.map);
        let fenced = match op {
            StorageOp::Fence(fenced) => Some(*fenced),
            // Acquisition of a dead owner's lock blocks that owner first.
            StorageOp::AcquireLock { is_automatic: false } => {
                let owner = self.images[volume].lock_owner.filter(|owner| *owner != client);
                owner.filter(|owner| !self.is_alive(now, *owner))
            }
            _ => None,
        };
        if let Some(fenced) = fenced {
            self.block(now, fenced, Nanos::MAX);
            map = self.map;
        }
        let osd = match op {
            StorageOp::ReplayLog(_) | StorageOp::Append { .. } | StorageOp::Trim { .. } => Some(volume + 1),
            StorageOp::ReadBlock(block) | StorageOp::WriteBlock { block, .. } => Some(volume + block),
            // The lock is broken only if the fenced client has it.
            StorageOp::Fence(fenced) if self.images[volume].lock_owner != Some(*fenced) => None,
            _ => Some(volume),
        };
        if let Some(osd) = osd {
            self.spread_map(osd, map);
            if self.is_refused(now, client, osd) {
                return (Err(StorageError::Blocked), self.map);
            }
        }
        if op.is_read() {
            return (self.apply(now, event, volume, client, op), map);
        }
        if let Some((_, result)) = self.seen.get(&(client, sender.number)) {
            return (result.map(|()| self.success(volume, op)), map);
        }
        let result = self.apply(now, event, volume, client, op);
        // Blocking is a command to the monitors, which may be repeated.
        if !matches!(op, StorageOp::Fence(_)) {
            let code = result.as_ref().map(|_| ()).map_err(|error| *error);
            self.seen.insert((client, sender.number), (osd.unwrap_or(volume) % OSDS, code));
        }
        if let (StorageOp::WriteBlock { epoch, block, .. }, true) = (op, self.forgets) {
            self.forget_before(volume, *epoch, (volume + block) % OSDS);
        }
        (result, map)
    }

    fn is_refused(&self, now: Nanos, client: StorageClient, osd: usize) -> bool {
        self.blocked.get(&client).is_some_and(|(map, end)| now < *end && *map <= self.osd_maps[osd % OSDS])
    }

    /// Forgets the numbers of earlier owners at an OSD.
    fn forget_before(&mut self, volume: usize, epoch: Epoch, osd: usize) {
        let owners = &self.images[volume].owners;
        let is_earlier = |client: &StorageClient| owners.range(..epoch).any(|(_, owner)| owner.client == *client);
        self.seen.retain(|(client, _), (at, _)| *at != osd || !is_earlier(client));
    }

    /// The answer to a successful write. Reads that belong to it are always executed.
    fn success(&self, volume: usize, op: &StorageOp) -> StorageResult {
        match op {
            StorageOp::WriteRecord { .. } => StorageResult::Written,
            StorageOp::ReplayLog(_) => StorageResult::Log(self.images[volume].log.clone()),
            _ => StorageResult::Done,
        }
    }

    fn apply(
        &mut self,
        now: Nanos,
        event: u64,
        volume: usize,
        client: StorageClient,
        op: &StorageOp,
    ) -> Result<StorageResult, StorageError> {
        match op {
            StorageOp::ReadHeader => {
                let image = &self.images[volume];
                let clients = image.record.owner.map(|owner| owner.client).into_iter().chain(image.lock_owner);
                let watchers = clients.filter(|client| self.is_alive(now, *client)).collect();
                Ok(StorageResult::Header(Header {
                    image: image.id,
                    record: image.record,
                    lock_owner: image.lock_owner,
                    watchers,
                }))
            }
            StorageOp::ReadRecord => {
                Ok(StorageResult::Record(self.images[volume].record, self.images[volume].log.next_seq))
            }
            StorageOp::Fence(fenced) => {
                let image = &mut self.images[volume];
                if image.lock_owner == Some(*fenced) {
                    image.lock_owner = None;
                }
                Ok(StorageResult::Done)
            }
            StorageOp::AcquireLock { is_automatic } => {
                let owner = self.images[volume].lock_owner.filter(|owner| *owner != client);
                if owner.is_some_and(|owner| !is_automatic && self.is_alive(now, owner)) {
                    return Err(StorageError::LockedByOther);
                }
                self.images[volume].lock_owner = Some(client);
                Ok(StorageResult::Done)
            }
            StorageOp::ReleaseLock => {
                let image = &mut self.images[volume];
                if image.lock_owner == Some(client) {
                    image.lock_owner = None;
                }
                Ok(StorageResult::Done)
            }
            StorageOp::ReplayLog(epoch) => {
                let image = &mut self.images[volume];
                if *epoch < image.log.epoch {
                    return Err(StorageError::Stale);
                }
                image.log.epoch = *epoch;
                image.sealed_at.insert(*epoch, event);
                Ok(StorageResult::Log(image.log.clone()))
            }
            StorageOp::WriteRecord { expected, new } => {
                let image = &mut self.images[volume];
                if !expected.matches(&image.record) {
                    return Err(StorageError::Stale);
                }
                image.record = **new;
                image.owners.extend(new.owner.map(|owner| (new.epoch, owner)));
                image.recorded_at.entry(new.epoch).or_insert(event);
                if new.is_released {
                    image.released.insert(new.epoch);
                }
                Ok(StorageResult::Written)
            }
            StorageOp::Append { epoch, first_seq, records } => {
                let image = &mut self.images[volume];
                if *epoch != image.log.epoch || *first_seq != image.log.next_seq {
                    return Err(StorageError::Stale);
                }
                let monotone = std::mem::replace(&mut image.log.last_append, *epoch) <= *epoch;
                for record in records {
                    image.log.records.insert(image.log.next_seq, *record);
                    image.log.next_seq += 1;
                }
                self.check_writer(volume, *epoch, client, monotone, "log");
                Ok(StorageResult::Done)
            }
            StorageOp::Trim { epoch, seqs } => {
                let log = &mut self.images[volume].log;
                if *epoch != log.epoch {
                    return Err(StorageError::Stale);
                }
                for seq in seqs {
                    log.records.remove(seq);
                }
                Ok(StorageResult::Done)
            }
            StorageOp::ReadBlock(block) => Ok(StorageResult::Value(self.images[volume].blocks[*block])),
            StorageOp::WriteBlock { epoch, block, value } => {
                let image = &mut self.images[volume];
                image.blocks[*block] = *value;
                let monotone = std::mem::replace(&mut image.block_epochs[*block], *epoch) <= *epoch;
                self.check_writer(volume, *epoch, client, monotone, "image");
                Ok(StorageResult::Done)
            }
        }
    }

    /// An epoch has one writer, and epochs with effect only rise.
    fn check_writer(&mut self, volume: usize, epoch: Epoch, client: StorageClient, monotone: bool, place: &str) {
        let writer = *self.images[volume].writers.entry(epoch).or_insert(client);
        if writer != client {
            let text = format!("volume {volume}: {writer:?} and {client:?} both wrote to the {place} in {epoch:?}");
            self.violation.get_or_insert((Check::Writers, text));
        }
        if !monotone {
            let text = format!("volume {volume}: {client:?} wrote to the {place} in {epoch:?} after a later epoch");
            self.violation.get_or_insert((Check::Writers, text));
        }
    }
}
