//! What lies on the devices of a store, found without changing a bit of them: for looking, and for getting out what is dirty when the
//! store cannot be opened.

use std::collections::BTreeMap;
use std::ops::Range;

use seam::Seam;

use crate::device::{Device, place};
use crate::error::StoreError;
use crate::format::Uuid;
use crate::format::batch::data_seed;
use crate::format::superblock::{MemberState, Ownership, Role, Superblock};
use crate::record::Recovered;
use crate::recovery::members::{Members, find, read_superblock};
use crate::recovery::{OpenOptions, chain, newest, salvage};
use crate::store::Sabotage;

/// What one device holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceFound {
    /// The device.
    pub device: String,
    /// What its newest superblock says; else why there is none.
    pub superblock: Result<SuperblockFound, String>,
}

/// What a superblock says of its device and the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SuperblockFound {
    /// Identity of the store.
    pub store: Uuid,
    /// The device's number in it.
    pub member: u32,
    /// What it calls itself.
    pub state: MemberState,
    /// What it carries.
    pub role: Role,
    /// How far the membership had come when it was written.
    pub generation: u64,
    /// The owner that opened the store last.
    pub ownership: Ownership,
}

/// A store as it lies there.
pub struct Inspection<S: Seam> {
    /// The devices, in the order in which they were given.
    pub devices: Vec<DeviceFound>,
    /// Identity of the store.
    pub store: Uuid,
    /// Log members that were in service and are not here.
    pub missing: Vec<u32>,
    /// Why it would not be opened as it is, if so.
    pub problem: Option<StoreError>,
    /// Batches that no device has and that may count, by sequence: what they held is not known.
    pub lost_batches: Vec<Range<u64>>,
    /// What is dirty, in the owners' order.
    pub dirty: Vec<Recovered>,
    seam: S,
    log: Vec<Device<S>>,
    segment_bytes: u64,
    /// Boot and first sequence of the batches in each place: of the checksums' seeds.
    lives: BTreeMap<(u32, u32), (u64, u64)>,
}

/// Which store lies on devices, and who used it last.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreIdentity {
    /// Identity of the store.
    pub store: Uuid,
    /// How far the membership had come.
    pub generation: u64,
    /// The owner that opened it last.
    pub ownership: Ownership,
    /// The owner that each device in service names: an older one where a device was put back from a copy, or where an opening was cut short.
    pub devices: Vec<(String, Ownership)>,
}

/// Says which store [`Store::open`](crate::Store::open) would open with these options, and fails as that would for its members. Nothing is
/// written.
pub async fn identify<S: Seam>(seam: &S, disks: &[S::Disk], options: OpenOptions) -> Result<StoreIdentity, StoreError> {
    let members = find(seam, disks, options).await?;
    let mut devices = Vec::new();
    for device in &members.devices {
        devices.push((device.name(), read_superblock(seam, device).await?.0.ownership));
    }
    let Superblock { store, generation, ownership, .. } = members.superblock;
    Ok(StoreIdentity { store, generation, ownership, devices })
}

/// Looks at what is on `disks`, without writing anything. What cannot be read or does not fit is left out and named; the error says why
/// there is no store to look at.
pub async fn inspect<S: Seam>(seam: &S, disks: &[S::Disk]) -> (Vec<DeviceFound>, Result<Inspection<S>, StoreError>) {
    let mut devices = Vec::new();
    for disk in disks {
        let device = Device::new(0, disk.clone());
        let superblock = read_superblock(seam, &device).await.map(|(superblock, _)| found(&superblock));
        devices.push(DeviceFound {
            device: device.name(),
            superblock: superblock.map_err(|error| match error {
                StoreError::NoStore { why, .. } => why,
                other => other.to_string(),
            }),
        });
    }
    let as_it_is = find(seam, disks, OpenOptions::default()).await.map(drop).err();
    let options = OpenOptions { accept_missing: true, ..OpenOptions::default() };
    let looked = match find(seam, disks, options).await {
        Ok(members) => Ok(look(seam, members, devices.clone(), as_it_is).await),
        Err(error) => Err(error),
    };
    (devices, looked)
}

fn found(superblock: &Superblock) -> SuperblockFound {
    let own = &superblock.members[superblock.member as usize];
    SuperblockFound {
        store: superblock.store,
        member: superblock.member,
        state: own.state,
        role: own.role,
        generation: superblock.generation,
        ownership: superblock.ownership,
    }
}

async fn look<S: Seam>(
    seam: &S,
    members: Members<S>,
    devices: Vec<DeviceFound>,
    as_it_is: Option<StoreError>,
) -> Inspection<S> {
    let superblock = members.superblock;
    let log: Vec<_> = members.devices.into_iter().filter(|device| superblock.carries_log(device.member)).collect();
    let since = |entry: &crate::format::superblock::MemberEntry| {
        entry.state == MemberState::Lost && entry.role == Role::Log && entry.since == superblock.generation as u32
    };
    // Who is lost since this very look was in service before it.
    let missing = match &as_it_is {
        Some(_) => (0..).zip(&superblock.members).filter(|(_, entry)| since(entry)).map(|(member, _)| member).collect(),
        None => Vec::new(),
    };
    let (chain, lost_batches, problem) = match chain::follow(seam, &log, &superblock, Sabotage::None).await {
        Ok(chain) => (chain, Vec::new(), as_it_is),
        Err(error) => {
            let (chain, lost) = salvage::salvage(seam, &log, &superblock).await;
            (chain, lost, Some(as_it_is.unwrap_or(error)))
        }
    };
    let mut lives = BTreeMap::new();
    for link in &chain.links {
        let header = &link.header;
        lives.extend(header.data().map(|(_, index, _)| ((header.segment, index), (header.boot, header.first))));
    }
    let (dirty, _) = newest::newest(&chain);
    let (store, segment_bytes) = (superblock.store, superblock.segment_bytes);
    Inspection { devices, store, missing, problem, lost_batches, dirty, seam: seam.clone(), log, segment_bytes, lives }
}

impl<S: Seam> Inspection<S> {
    /// The content of a dirty block, from whichever device has it; `None` when no copy is good.
    pub async fn read(&self, dirty: &Recovered) -> Option<S::Block> {
        let position = dirty.position;
        let (boot, first) = self.lives.get(&(position.segment, position.index))?;
        let seed = data_seed(dirty.owner.incarnation, dirty.owner.block, *boot, *first);
        let at = place(self.segment_bytes, position.segment, position.index);
        for device in &self.log {
            if let Ok(mut blocks) = device.read_blocks(&self.seam, at, 1).await
                && let Some(block) = blocks.pop()
                && seam::Block::checksum(&block, seed) == position.checksum
            {
                return Some(block);
            }
        }
        None
    }

    /// Copies of the log that are here.
    pub fn copies(&self) -> usize {
        self.log.len()
    }
}
