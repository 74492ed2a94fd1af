//! The model of a pool: for each sector of each volume and snapshot the versions that a read may return.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use pool::{OpenOptions, PoolDisk, SliceAddress, SliceNo, VolumeId};
use seam::sim::{CrashMode, SimDisk, SimSeam, World};
use seam::{Disk, Piece, Seam};

use crate::world::{SLICE, SimPool, open, world_after_crash};

/// Content of all volumes by name, and of snapshots by the name of the volume, `@` and the snapshot's; one tag per
/// sector.
pub type Content = BTreeMap<String, Vec<u64>>;

#[derive(Clone, Debug)]
struct Sector {
    versions: Vec<u64>,
    /// The newest version that a flush made durable.
    floor: usize,
    /// The newest version that was acknowledged.
    acked: usize,
}

impl Sector {
    fn of(tag: u64) -> Sector {
        Sector { versions: vec![tag], floor: 0, acked: 0 }
    }
}

/// Whether a volume must exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Existence {
    Creating,
    Exists,
    Removing,
}

#[derive(Clone, Debug)]
struct VolumeModel {
    sectors: Vec<Sector>,
    /// Sizes in sectors that the volume may have.
    sizes: Vec<u64>,
    /// Slices that were reserved and not freed since.
    reserved: BTreeSet<u32>,
    existence: Existence,
    /// A snapshot is being made: reserved slices become shared.
    is_copied: bool,
    /// Number of snapshots that were begun.
    copies: u64,
    /// The content to which the volume is being rolled back.
    rolling_back: Option<Vec<u64>>,
}

#[derive(Clone, Debug)]
struct SnapshotModel {
    /// Tags that each sector may have; `None` while the snapshot is being made.
    tags: Option<Vec<Vec<u64>>>,
    /// The volume, with the version of each sector that was acknowledged when the making began.
    volume: String,
    acked: Vec<usize>,
    /// Sizes in sectors that it may have.
    sizes: Vec<u64>,
    existence: Existence,
}

impl VolumeModel {
    fn new(sectors: Vec<Sector>, sizes: Vec<u64>, existence: Existence) -> VolumeModel {
        VolumeModel {
            sectors,
            sizes,
            reserved: BTreeSet::new(),
            existence,
            is_copied: false,
            copies: 0,
            rolling_back: None,
        }
    }
}

/// The expected content of a pool.
#[derive(Clone, Debug, Default)]
pub struct Model {
    volumes: BTreeMap<String, VolumeModel>,
    snapshots: BTreeMap<String, SnapshotModel>,
    tags: u64,
}

/// Versions that a flush makes durable.
pub struct FlushMark(Vec<(u64, usize)>);

impl Model {
    /// An unused tag.
    pub fn tag(&mut self) -> u64 {
        self.tags += 1;
        self.tags << 20 | 0x9001
    }

    fn volume(&mut self, name: &str) -> &mut VolumeModel {
        self.volumes.get_mut(name).expect("the volume is in the model")
    }

    /// A volume of this many sectors is about to be created.
    pub fn create(&mut self, name: &str, sectors: u64) {
        let sizes = vec![sectors];
        let sectors = (0..sectors).map(|_| Sector::of(0)).collect();
        self.volumes.insert(name.to_owned(), VolumeModel::new(sectors, sizes, Existence::Creating));
    }

    /// The volume was created.
    pub fn created(&mut self, name: &str) {
        self.volume(name).existence = Existence::Exists;
    }

    /// The volume is about to be removed.
    pub fn remove(&mut self, name: &str) {
        self.volume(name).existence = Existence::Removing;
    }

    /// The volume was removed, or never created.
    pub fn removed(&mut self, name: &str) {
        self.volumes.remove(name);
    }

    /// The volume is about to get another size.
    pub fn resize(&mut self, name: &str, sectors: u64) {
        let volume = self.volume(name);
        volume.sizes.push(sectors);
        let slices = (sectors * 512).div_ceil(SLICE) as u32;
        volume.reserved.retain(|slice| *slice < slices);
        // A larger volume may be there already.
        while (volume.sectors.len() as u64) < sectors {
            volume.sectors.push(Sector::of(0));
        }
    }

    /// The resizing failed: the volume may have the new size, and a larger one later shows zeroes past it.
    pub fn resize_failed(&mut self, name: &str, sectors: u64) {
        let volume = self.volume(name);
        volume.sectors.iter_mut().skip(sectors as usize).for_each(|sector| {
            sector.versions.push(0);
        });
    }

    /// The volume has this size.
    pub fn resized(&mut self, name: &str, sectors: u64) {
        let volume = self.volume(name);
        volume.sizes = vec![sectors];
        volume.sectors.truncate(sectors as usize);
    }

    /// Sectors are about to be written with one tag; 0 for a zero-range.
    pub fn write(&mut self, name: &str, range: Range<u64>, tag: u64) {
        let volume = self.volume(name);
        if tag == 0 {
            let per_slice = SLICE / 512;
            volume.reserved.retain(|slice| {
                let slice = u64::from(*slice) * per_slice;
                range.end <= slice || slice + per_slice <= range.start
            });
        }
        range.for_each(|sector| volume.sectors[sector as usize].versions.push(tag));
    }

    /// The write of these sectors was acknowledged.
    pub fn wrote(&mut self, name: &str, range: Range<u64>) {
        for sector in &mut self.volume(name).sectors[range.start as usize..range.end as usize] {
            sector.acked = sector.versions.len() - 1;
        }
    }

    /// Number of snapshots of a volume that were begun; `None` while one is being made.
    pub fn copies(&self, name: &str) -> Option<u64> {
        let volume = &self.volumes[name];
        (!volume.is_copied).then_some(volume.copies)
    }

    /// The slice was reserved.
    pub fn reserved(&mut self, name: &str, slice: u32) {
        self.volume(name).reserved.insert(slice);
    }

    /// A flush of the volume begins.
    pub fn mark(&self, name: &str) -> FlushMark {
        let sectors = (0..).zip(&self.volumes[name].sectors);
        FlushMark(sectors.filter(|(_, s)| s.acked > s.floor).map(|(number, s)| (number, s.acked)).collect())
    }

    /// The flush was acknowledged.
    pub fn flushed(&mut self, name: &str, mark: FlushMark) {
        let volume = self.volume(name);
        for (number, acked) in mark.0 {
            let sector = &mut volume.sectors[number as usize];
            sector.floor = sector.floor.max(acked);
        }
    }

    /// The volume's connection epoch has changed: unflushed writes may be lost.
    pub fn lose_unflushed(&mut self, name: &str) {
        self.volume(name).sectors.iter_mut().for_each(|sector| sector.acked = sector.floor);
    }

    /// Checks what a client of the running pool reads. `first` is the first sector.
    pub fn check_read(&self, name: &str, first: u64, tags: &[u64]) -> Result<(), String> {
        for (number, tag) in (first..).zip(tags) {
            let sector = &self.volumes[name].sectors[number as usize];
            if !sector.versions[sector.acked..].contains(tag) {
                return Err(format!("{name} sector {number}: read {tag:x} of {sector:x?}"));
            }
        }
        Ok(())
    }

    /// Checks the content after a recovery.
    pub fn check(&self, content: &Content) -> Result<(), String> {
        let is_known = |name: &String| self.volumes.contains_key(name) || self.snapshots.contains_key(name);
        if let Some(name) = content.keys().find(|name| !is_known(name)) {
            return Err(format!("foreign volume {name}"));
        }
        for (name, volume) in &self.volumes {
            let Some(tags) = content.get(name) else {
                if volume.existence == Existence::Exists {
                    return Err(format!("volume {name} is lost"));
                }
                continue;
            };
            if volume.rolling_back.as_ref() == Some(tags) {
                continue;
            }
            if !volume.sizes.contains(&(tags.len() as u64)) {
                return Err(format!("volume {name} has {} sectors, not one of {:?}", tags.len(), volume.sizes));
            }
            for (number, (tag, sector)) in tags.iter().zip(&volume.sectors).enumerate() {
                if !sector.versions[sector.floor..].contains(tag) {
                    return Err(format!("{name} sector {number}: found {tag:x} of {sector:x?}"));
                }
            }
        }
        for (name, snapshot) in &self.snapshots {
            match content.get(name) {
                Some(tags) => self.check_snapshot(name, tags)?,
                None if snapshot.existence == Existence::Exists => return Err(format!("snapshot {name} is lost")),
                None => {}
            }
        }
        Ok(())
    }

    /// Checks what a client reads from a snapshot.
    pub fn check_snapshot(&self, name: &str, tags: &[u64]) -> Result<(), String> {
        let snapshot = &self.snapshots[name];
        let expected = snapshot.tags.clone().unwrap_or_else(|| self.tags_of(snapshot));
        if !snapshot.sizes.contains(&(tags.len() as u64)) {
            return Err(format!("snapshot {name} has {} sectors, not one of {:?}", tags.len(), snapshot.sizes));
        }
        for (number, (tag, allowed)) in tags.iter().zip(&expected).enumerate() {
            if !allowed.contains(tag) {
                return Err(format!("{name} sector {number}: found {tag:x} of {allowed:x?}"));
            }
        }
        Ok(())
    }

    /// Tags that the sectors of a snapshot may have if it is made now.
    fn tags_of(&self, snapshot: &SnapshotModel) -> Vec<Vec<u64>> {
        let sectors = &self.volumes[&snapshot.volume].sectors;
        sectors.iter().zip(&snapshot.acked).map(|(sector, acked)| sector.versions[*acked..].to_vec()).collect()
    }

    /// A snapshot of a volume is about to be made.
    pub fn create_snapshot(&mut self, volume: &str, name: &str) {
        let of = self.volume(volume);
        (of.is_copied, of.copies, of.reserved) = (true, of.copies + 1, BTreeSet::new());
        let acked = of.sectors.iter().map(|sector| sector.acked).collect();
        let (sizes, existence) = (of.sizes.clone(), Existence::Creating);
        let snapshot = SnapshotModel { tags: None, volume: volume.to_owned(), acked, sizes, existence };
        self.snapshots.insert(format!("{volume}@{name}"), snapshot);
    }

    /// The making of a snapshot has ended. After an error it may exist.
    pub fn created_snapshot(&mut self, volume: &str, name: &str, is_made: bool) {
        let name = format!("{volume}@{name}");
        let tags = self.tags_of(&self.snapshots[&name]);
        let snapshot = self.snapshots.get_mut(&name).expect("it is in the model");
        snapshot.tags = Some(tags);
        if is_made {
            snapshot.existence = Existence::Exists;
        }
        let of = self.volume(volume);
        (of.is_copied, of.reserved) = (false, BTreeSet::new());
    }

    /// Notes what was read of a snapshot: from now on each read returns the same.
    pub fn pin_snapshot(&mut self, name: &str, tags: &[u64]) {
        let snapshot = self.snapshots.get_mut(name).expect("it is in the model");
        snapshot.tags = Some(tags.iter().map(|tag| vec![*tag]).collect());
        snapshot.sizes = vec![tags.len() as u64];
    }

    /// True if a snapshot's content is known.
    pub fn has_snapshot(&self, name: &str) -> bool {
        self.snapshots.get(name).is_some_and(|snapshot| snapshot.tags.is_some())
    }

    /// A snapshot is about to be deleted.
    pub fn delete_snapshot(&mut self, name: &str) {
        self.snapshots.get_mut(name).expect("it is in the model").existence = Existence::Removing;
    }

    /// A snapshot was deleted.
    pub fn deleted_snapshot(&mut self, name: &str) {
        self.snapshots.remove(name);
    }

    /// A clone with this content is about to be created.
    pub fn clone_snapshot(&mut self, name: &str, tags: &[u64]) {
        let sectors = tags.iter().map(|tag| Sector::of(*tag)).collect();
        self.volumes.insert(name.to_owned(), VolumeModel::new(sectors, vec![tags.len() as u64], Existence::Creating));
    }

    /// A volume is about to return to this content.
    pub fn roll_back(&mut self, name: &str, tags: &[u64]) {
        let volume = self.volume(name);
        (volume.rolling_back, volume.reserved) = (Some(tags.to_vec()), BTreeSet::new());
    }

    /// The volume has returned to its former content.
    pub fn rolled_back(&mut self, name: &str) {
        let volume = self.volume(name);
        let tags = volume.rolling_back.take().expect("a roll back began");
        volume.sizes = vec![tags.len() as u64];
        volume.sectors = tags.into_iter().map(Sector::of).collect();
    }

    /// The roll back has failed: the volume has its former content or, if the metadata has failed, either.
    pub fn roll_back_failed(&mut self, name: &str) {
        let volume = self.volume(name);
        let tags = volume.rolling_back.clone().expect("a roll back began");
        volume.sizes.push(tags.len() as u64);
        while volume.sectors.len() < tags.len() {
            volume.sectors.push(Sector::of(0));
        }
    }

    /// Checks that reserved slices are allocated, and shared with no other volume.
    pub fn check_reserved(&self, pool: &SimPool) -> Result<(), String> {
        for (name, volume) in &self.volumes {
            let Some(id) = pool.volume_named(name) else { continue };
            for slice in &volume.reserved {
                let address = SliceAddress { volume: id, slice: SliceNo(*slice) };
                let is_due =
                    volume.existence == Existence::Exists && !volume.is_copied && volume.rolling_back.is_none();
                let disk = pool.volume(id).map_err(|error| error.to_string())?;
                let at = u64::from(*slice) * SLICE;
                let len = SLICE.min(disk.geometry().size_bytes.saturating_sub(at));
                if is_due && (pool.group_of(address).is_none() || !disk.has_space_for(at, len)) {
                    return Err(format!("slice {slice} of {name} was reserved and has no place of its own"));
                }
            }
        }
        Ok(())
    }

    /// Replaces the model by the recovered content. Recovery has decided which unflushed writes survive.
    pub fn adopt(&mut self, content: &Content) {
        let former = std::mem::take(&mut self.volumes);
        self.snapshots.clear();
        for (name, tags) in content.iter().filter(|(name, _)| name.contains('@')) {
            let tags = Some(tags.iter().map(|tag| vec![*tag]).collect());
            let (volume, acked, existence) = (String::new(), Vec::new(), Existence::Exists);
            let sizes = vec![content[name].len() as u64];
            self.snapshots.insert(name.clone(), SnapshotModel { tags, volume, acked, sizes, existence });
        }
        for (name, tags) in content.iter().filter(|(name, _)| !name.contains('@')) {
            let slices = (tags.len() as u64 * 512).div_ceil(SLICE) as u32;
            let kept = former.get(name).filter(|volume| !volume.is_copied && volume.rolling_back.is_none());
            let reserved = kept.map(|volume| volume.reserved.range(..slices).copied().collect());
            let sectors = tags.iter().map(|tag| Sector::of(*tag)).collect();
            let mut volume = VolumeModel::new(sectors, vec![tags.len() as u64], Existence::Exists);
            volume.reserved = reserved.unwrap_or_default();
            self.volumes.insert(name.clone(), volume);
        }
    }
}

/// Reads sectors of a volume.
pub async fn read_sectors(
    seam: &SimSeam,
    disk: &PoolDisk<SimSeam, SimDisk>,
    first: u64,
    count: u64,
) -> Result<Vec<u64>, String> {
    let mut pieces = Vec::new();
    let mut left = count as usize;
    while left > 0 {
        let sectors = left.min(8);
        pieces.push(Piece::new(seam.alloc().ok_or("the pool of buffers is empty")?, 0, sectors * 512));
        left -= sectors;
    }
    let (result, pieces) = disk.read(first * 512, pieces).await;
    result.map_err(|error| error.to_string())?;
    Ok(pieces.iter().flat_map(|piece| piece.block.tags()[..piece.len() / 512].to_vec()).collect())
}

/// Reads a volume or a snapshot.
pub async fn read_volume(seam: &SimSeam, pool: &SimPool, volume: VolumeId) -> Result<Vec<u64>, String> {
    let disk = pool.volume(volume).map_err(|error| error.to_string())?;
    let sectors = disk.geometry().size_bytes / 512;
    let mut tags = Vec::new();
    for first in (0..sectors).step_by(512) {
        tags.extend(read_sectors(seam, &disk, first, 512.min(sectors - first)).await?);
    }
    Ok(tags)
}

/// Reads all volumes and snapshots of a pool.
pub async fn read_all(seam: &SimSeam, pool: &SimPool) -> Result<Content, String> {
    let mut content = Content::new();
    for volume in pool.volumes() {
        let tags = read_volume(seam, pool, volume.volume).await?;
        content.insert(volume.spec.name.clone(), tags);
        for snapshot in pool.snapshots(volume.volume) {
            let tags = read_volume(seam, pool, snapshot.snapshot).await?;
            content.insert(format!("{}@{}", volume.spec.name, snapshot.name), tags);
        }
    }
    Ok(content)
}

/// Recovers, and checks maps, slots and content against the model.
pub fn recover(world: &World, model: &Model, options: OpenOptions) -> Result<Content, String> {
    let seam = world.seam();
    let content = world.run_until(async {
        let pool = open(world, &seam, options).await.map_err(|error| error.to_string())?;
        let report = pool.check_open();
        if !report.findings.is_empty() {
            return Err(format!("{:?}", report.findings));
        }
        let content = read_all(&seam, &pool).await?;
        model.check_reserved(&pool)?;
        model.check(&content).map(|()| content)
    });
    content.map_err(|stop| stop.to_string())?
}

/// Content of a pool after a crash of a world.
pub fn content_after_crash(world: World, mode: CrashMode) -> Content {
    let world = world_after_crash(2, world.crash(mode));
    let seam = world.seam();
    world.block_on(async {
        let pool = open(&world, &seam, OpenOptions::default()).await.expect("the pool opens");
        read_all(&seam, &pool).await.expect("sound disks")
    })
}
