//! An engine in a simulated world, put together in one call: for named cases, workloads in virtual time, and measurements.

use engine::{AnyDisk, AttachError, Backing, Core, CoreSpec, RequestError, Volume, VolumeSpec, WriteFlags};
use flash::{FormatOptions, OpenOptions, Store};
use seam::model::{ArraySpec, DiskType, ModelledDisk, SharedArray, SsdSpec};
use seam::sim::{
    CrashMode, DiskControl, DiskImages, SimDisk, SimDiskSpec, SimSeam, Timing, World, WorldSpec, WriteCache,
};
use seam::{Disk, DiskOpen, Nanos, Piece, SECTOR_BYTES, Seam};

use crate::torture::content::Tag;

const SECTOR: u64 = SECTOR_BYTES as u64;

/// A world with an engine in it.
pub struct Rig {
    /// The world.
    pub world: World,
    /// The world as the engine sees it.
    pub seam: SimSeam,
    /// The engine.
    pub core: Core<SimSeam>,
}

/// What a volume of that name is by default, changed by `edit`.
pub fn spec(name: &str, edit: impl FnOnce(&mut VolumeSpec)) -> VolumeSpec {
    let incarnation = name.bytes().fold(1, |hash: u64, byte| hash.wrapping_mul(31) + u64::from(byte));
    let mut spec = VolumeSpec::new(name, incarnation);
    edit(&mut spec);
    spec
}

impl Rig {
    /// A world with an engine and nothing else.
    pub fn new(world: WorldSpec, core: CoreSpec) -> Rig {
        let world = World::new(world);
        let seam = world.seam();
        let core = Core::new(seam.clone(), core);
        Rig { world, seam, core }
    }

    /// A world of `seed` with `memory_bytes` of buffers.
    pub fn with_memory(seed: u64, memory_bytes: u64) -> Rig {
        let blocks = (memory_bytes / seam::BLOCK_BYTES as u64) as usize;
        Rig::new(WorldSpec { blocks, ..WorldSpec::new(seed) }, CoreSpec::default())
    }

    /// Ends the world as `mode` says and begins another on its disks, with an engine of the same kind.
    pub fn crash(self, mode: CrashMode, world: WorldSpec) -> Rig {
        let spec = self.core.spec().clone();
        let images = self.end(mode);
        let rig = Rig::new(world, spec);
        rig.world.adopt(images);
        rig
    }

    /// Ends the world as `mode` says; what is left is its disks.
    pub fn end(self, mode: CrashMode) -> DiskImages {
        let Rig { world, seam, core } = self;
        drop((seam, core));
        world.crash(mode)
    }

    /// Puts a disk into the world.
    pub fn add_disk(&self, name: &str, spec: SimDiskSpec) -> DiskControl {
        self.world.add_disk(name, spec)
    }

    /// Opens a disk that is in the world.
    pub fn open(&self, name: &str) -> SimDisk {
        let open = DiskOpen { path: name.into(), create_bytes: None, read_only: false, lock_wait_ms: 1_000 };
        self.world.block_on(self.seam.open_disk(&open)).unwrap_or_else(|error| panic!("{name}: {error}"))
    }

    /// Serves the disk `name` as a volume of the same name.
    pub fn attach(&self, name: &str, edit: impl FnOnce(&mut VolumeSpec)) -> Result<Volume<SimSeam>, AttachError> {
        self.attach_disk(name, AnyDisk::Plain(self.open(name)), edit)
    }

    /// Serves `disk` as a volume.
    pub fn attach_disk(
        &self,
        name: &str,
        disk: AnyDisk<SimSeam>,
        edit: impl FnOnce(&mut VolumeSpec),
    ) -> Result<Volume<SimSeam>, AttachError> {
        self.core.attach(spec(name, edit), Backing { disk })
    }

    /// Disks of `sizes` bytes side by side on one modelled array, which is just large enough.
    pub fn on_array(&self, spec: ArraySpec, sizes: &[u64]) -> Vec<AnyDisk<SimSeam>> {
        let room = sizes.iter().map(|size| size.next_multiple_of(spec.row_bytes())).sum();
        let array = SharedArray::new(self.seam.clone(), spec.fitted(room)).expect("an array that can be built");
        let windows = sizes.iter().enumerate();
        windows.map(|(number, size)| self.window(&array, &format!("window{number}"), *size)).collect()
    }

    /// The next `bytes` of a modelled array, which has room for them, as a disk of this name.
    pub fn window(&self, array: &SharedArray<SimSeam>, name: &str, bytes: u64) -> AnyDisk<SimSeam> {
        self.add_disk(name, SimDiskSpec { timing: Timing::INSTANT, ..SimDiskSpec::new(bytes) });
        AnyDisk::Modelled(ModelledDisk::new(array, self.open(name)).expect("the array has room for its volumes"))
    }

    /// Formats flash devices and opens them for the engine.
    pub fn open_flash(&self, plan: &FlashPlan) {
        let ssd = plan.ssd();
        let disks: Vec<_> = (0..plan.devices)
            .map(|number| {
                let name = format!("flash{number}");
                let timing = Timing::of_ssd(ssd);
                self.add_disk(
                    &name,
                    SimDiskSpec { timing, cache: WriteCache::Through, ..SimDiskSpec::new(plan.bytes) },
                );
                self.open(&name)
            })
            .collect();
        self.world.block_on(async {
            let format = FormatOptions { force: true, ..FormatOptions::default() };
            Store::format(&self.seam, &disks, format).await.expect("new devices");
            let (store, found) = Store::open(&self.seam, &disks, OpenOptions::default()).await.expect("just formatted");
            self.core.open_log(store, found);
        });
    }

    /// Waits until what flash holds of the volumes, if there is any, was compared with their backings.
    pub fn until_checked(&self, volumes: &[Volume<SimSeam>]) {
        let unchecked = |volume: &Volume<SimSeam>| self.core.pages().is_some() && !volume.stats().flash.checked;
        self.world.block_on(async {
            while volumes.iter().any(unchecked) {
                self.seam.sleep(Nanos::from_millis(100)).await;
            }
        });
    }
}

/// Flash devices, all alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlashPlan {
    /// How many; one alone keeps no dirty data.
    pub devices: usize,
    /// Size of each.
    pub bytes: u64,
    /// Requests a second that each serves.
    pub iops: u64,
}

impl FlashPlan {
    /// What each device is.
    pub fn ssd(&self) -> SsdSpec {
        SsdSpec {
            capacity_bytes: self.bytes,
            read_iops_max: self.iops,
            write_iops_max: self.iops,
            ..DiskType::Ssd.ssd().expect("it is flash")
        }
    }

    /// Two devices, as fast as their kind is, with room for so many bytes of clean pages.
    pub fn for_pages(bytes: u64) -> FlashPlan {
        let ssd = DiskType::Ssd.ssd().expect("it is flash");
        // Beside the pages: checksums, map journal, and a log for what is dirty.
        let each = bytes / 2 / 16 * 18 + (256 << 20);
        FlashPlan { devices: 2, bytes: each.next_multiple_of(1 << 20), iops: ssd.read_iops_max }
    }
}

/// What a workload is played on: a volume, or the bare storage to compare it with.
#[derive(Clone)]
pub enum Target {
    /// Through the engine.
    Volume(Volume<SimSeam>),
    /// Straight to the storage.
    Disk(AnyDisk<SimSeam>),
}

impl Target {
    /// Reads and forgets `len` bytes from `at` on.
    pub async fn read(&self, seam: &SimSeam, at: u64, len: usize) -> Result<(), RequestError> {
        match self {
            Target::Volume(volume) => {
                let mut pieces = Vec::new();
                if volume.read_now(at, len, &mut pieces) {
                    return Ok(());
                }
                volume.read(at, len, &mut pieces).await
            }
            Target::Disk(disk) => Ok(disk.read(at, buffers(seam, at, len)).await.0?),
        }
    }

    /// Writes `len` bytes at `at`.
    pub async fn write(&self, seam: &SimSeam, at: u64, len: usize, tag: u64) -> Result<(), RequestError> {
        match self {
            Target::Volume(volume) => {
                let mut source = Same(tag);
                if volume.write_now(at, len, &mut source) {
                    return Ok(());
                }
                volume.write(at, len, WriteFlags::default(), &mut source).await
            }
            Target::Disk(disk) => {
                let pieces = buffers(seam, at, len).into_iter();
                let frozen = pieces.map(|piece| {
                    let (start, len) = (piece.start(), piece.len());
                    Piece::new(seam::BlockMut::freeze(piece.block), start, len)
                });
                Ok(disk.write(at, frozen.collect()).await?)
            }
        }
    }

    /// Makes durable what was acknowledged.
    pub async fn flush(&self) -> Result<(), RequestError> {
        match self {
            Target::Volume(volume) => volume.flush().await,
            Target::Disk(disk) => Ok(disk.flush().await?),
        }
    }
}

fn buffers(seam: &SimSeam, at: u64, len: usize) -> Vec<seam::PieceMut<seam::sim::SimBlockMut>> {
    let mut pieces = Vec::new();
    let mut done = 0;
    while done < len {
        let start = ((at + done as u64) % seam::BLOCK_BYTES as u64) as usize;
        let count = (seam::BLOCK_BYTES - start).min(len - done);
        let block = seam.alloc().expect("a comparison on bare storage is given memory enough");
        pieces.push(Piece::new(block, start, count));
        done += count;
    }
    pieces
}

/// A write of the same tag in every sector.
pub struct Same(pub u64);

impl engine::WriteSource<SimSeam> for Same {
    fn fill(&mut self, _from: usize, block: &mut seam::sim::SimBlockMut, at: usize, len: usize) {
        (at / SECTOR_BYTES..(at + len) / SECTOR_BYTES).for_each(|sector| block.set_tag(sector, self.0));
    }
}

/// A disk that answers in 50 to 500 us, out of order.
pub fn lively_disk(size_bytes: u64) -> SimDiskSpec {
    let timing = Timing::between(Nanos::from_micros(50), Nanos::from_micros(500));
    SimDiskSpec { timing, ..SimDiskSpec::new(size_bytes) }
}

/// Writes `count` sectors of `tag` at `first`, as a front end does: at once if that can be.
pub async fn write(volume: &Volume<SimSeam>, first: u64, count: u64, tag: u64) -> Result<(), RequestError> {
    let (at, len, source) = (first * SECTOR, (count * SECTOR) as usize, &mut Same(tag));
    if volume.write_now(at, len, source) {
        return Ok(());
    }
    volume.write(at, len, WriteFlags::default(), source).await
}

/// Reads `count` sectors from `first` on, as a front end does: at once if they are in memory.
pub async fn read(volume: &Volume<SimSeam>, first: u64, count: u64) -> Result<Vec<u64>, RequestError> {
    let mut pieces = Vec::new();
    let (at, len) = (first * SECTOR, (count * SECTOR) as usize);
    if !volume.read_now(at, len, &mut pieces) {
        volume.read(at, len, &mut pieces).await?;
    }
    Ok(crate::torture::tags(&pieces).into_iter().map(|Tag(tag)| tag).collect())
}

/// What `count` sectors of a disk hold durably.
pub fn durable(disk: &DiskControl, first: u64, count: u64) -> Vec<u64> {
    (first..first + count).map(|sector| disk.durable_tag(sector)).collect()
}
