//! The model of a pool: for each sector of each volume the versions that a read may return.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use pool::{OpenOptions, PoolDisk, SliceAddress, SliceNo};
use seam::sim::{SimDisk, SimSeam, World};
use seam::{Disk, Piece, Seam};

use crate::world::{SLICE, SimPool, open};

/// Content of all volumes by name, one tag per sector.
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
}

/// The expected content of a pool.
#[derive(Clone, Debug, Default)]
pub struct Model {
    volumes: BTreeMap<String, VolumeModel>,
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
        let volume = VolumeModel { sectors, sizes, reserved: BTreeSet::new(), existence: Existence::Creating };
        self.volumes.insert(name.to_owned(), volume);
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
        if let Some(name) = content.keys().find(|name| !self.volumes.contains_key(*name)) {
            return Err(format!("foreign volume {name}"));
        }
        for (name, volume) in &self.volumes {
            let Some(tags) = content.get(name) else {
                if volume.existence == Existence::Exists {
                    return Err(format!("volume {name} is lost"));
                }
                continue;
            };
            if !volume.sizes.contains(&(tags.len() as u64)) {
                return Err(format!("volume {name} has {} sectors, not one of {:?}", tags.len(), volume.sizes));
            }
            for (number, (tag, sector)) in tags.iter().zip(&volume.sectors).enumerate() {
                if !sector.versions[sector.floor..].contains(tag) {
                    return Err(format!("{name} sector {number}: found {tag:x} of {sector:x?}"));
                }
            }
        }
        Ok(())
    }

    /// Checks that reserved slices are allocated.
    pub fn check_reserved(&self, pool: &SimPool) -> Result<(), String> {
        for (name, volume) in &self.volumes {
            let Some(id) = pool.volume_named(name) else { continue };
            for slice in &volume.reserved {
                let address = SliceAddress { volume: id, slice: SliceNo(*slice) };
                if pool.group_of(address).is_none() && volume.existence == Existence::Exists {
                    return Err(format!("slice {slice} of {name} was reserved and is not allocated"));
                }
            }
        }
        Ok(())
    }

    /// Replaces the model by the recovered content. Recovery has decided which unflushed writes survive.
    pub fn adopt(&mut self, content: &Content) {
        let former = std::mem::take(&mut self.volumes);
        for (name, tags) in content {
            let slices = (tags.len() as u64 * 512).div_ceil(SLICE) as u32;
            let reserved = former.get(name).map(|volume| volume.reserved.range(..slices).copied().collect());
            let volume = VolumeModel {
                sectors: tags.iter().map(|tag| Sector::of(*tag)).collect(),
                sizes: vec![tags.len() as u64],
                reserved: reserved.unwrap_or_default(),
                existence: Existence::Exists,
            };
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

/// Reads all volumes of a pool.
pub async fn read_all(seam: &SimSeam, pool: &SimPool) -> Result<Content, String> {
    let mut content = Content::new();
    for volume in pool.volumes() {
        let disk = pool.volume(volume.volume).map_err(|error| error.to_string())?;
        let sectors = disk.geometry().size_bytes / 512;
        let mut tags = Vec::new();
        for first in (0..sectors).step_by(512) {
            tags.extend(read_sectors(seam, &disk, first, 512.min(sectors - first)).await?);
        }
        content.insert(volume.spec.name, tags);
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
