//! A simulated world with an engine, for named cases, workloads in virtual time and measurements.

use engine::{
    AnyDisk, AttachError, Backing, ByteOffset, Core, CoreSpec, RequestError, Volume, VolumeId, VolumeSpec, WriteFlags,
};
use flash::{FormatOptions, MemberDisk, OpenOptions, Store};
use seam::model::{ArraySpec, DiskType, ModelledDisk, SharedArray, SsdSpec};
use seam::sim::{
    CrashMode, DiskControl, DiskImages, SimDisk, SimDiskSpec, SimSeam, Timing, World, WorldSpec, WriteCache,
};
use seam::{Disk, DiskOpen, Nanos, Piece, SECTOR_BYTES, Seam};

use crate::content::{Tag, tags};

const SECTOR: u64 = SECTOR_BYTES as u64;

/// A simulated world and an engine in it.
pub struct Fixture {
    /// The world.
    pub world: World,
    /// The world's seam, which the engine runs on.
    pub seam: SimSeam,
    /// The engine.
    pub core: Core<SimSeam>,
}

/// The default specification of the volume `name`, changed by `edit`.
pub fn spec(name: &str, edit: impl FnOnce(&mut VolumeSpec)) -> VolumeSpec {
    let volume_id = name.bytes().fold(1, |hash: u64, byte| hash.wrapping_mul(31) + u64::from(byte));
    let mut spec = VolumeSpec::new(name, VolumeId(volume_id));
    edit(&mut spec);
    spec
}

impl Fixture {
    /// Creates a world and an engine without disks.
    pub fn new(world: WorldSpec, core: CoreSpec) -> Fixture {
        let world = World::new(world);
        let seam = world.seam();
        let core = Core::new(seam.clone(), core);
        Fixture { world, seam, core }
    }

    /// Creates a world of `seed` with `memory_bytes` of buffers.
    pub fn with_memory(seed: u64, memory_bytes: u64) -> Fixture {
        let blocks = (memory_bytes / seam::BLOCK_BYTES as u64) as usize;
        Fixture::new(WorldSpec { blocks, ..WorldSpec::new(seed) }, CoreSpec::default())
    }

    /// Crashes the world in `mode` and creates a new one on its disks, with an engine of the same specification.
    pub fn crash(self, mode: CrashMode, world: WorldSpec) -> Fixture {
        let spec = self.core.spec().clone();
        let images = self.crash_disks(mode);
        let fixture = Fixture::new(world, spec);
        fixture.world.adopt(images);
        fixture
    }

    /// Crashes the world in `mode` and returns its disks.
    pub fn crash_disks(self, mode: CrashMode) -> DiskImages {
        let Fixture { world, seam, core } = self;
        drop((seam, core));
        world.crash(mode)
    }

    /// Adds a disk to the world.
    pub fn add_disk(&self, name: &str, spec: SimDiskSpec) -> DiskControl {
        self.world.add_disk(name, spec)
    }

    /// Opens a disk of the world.
    pub fn open(&self, name: &str) -> SimDisk {
        let open = DiskOpen { path: name.into(), create_bytes: None, read_only: false, lock_wait_ms: 1_000 };
        self.world.block_on(self.seam.open_disk(&open)).unwrap_or_else(|error| panic!("{name}: {error}"))
    }

    /// Attaches the disk `name` as a volume of the same name.
    pub fn attach(&self, name: &str, edit: impl FnOnce(&mut VolumeSpec)) -> Result<Volume<SimSeam>, AttachError> {
        self.attach_disk(name, AnyDisk::Plain(self.open(name)), edit)
    }

    /// Attaches `disk` as a volume.
    pub fn attach_disk(
        &self,
        name: &str,
        disk: AnyDisk<SimSeam>,
        edit: impl FnOnce(&mut VolumeSpec),
    ) -> Result<Volume<SimSeam>, AttachError> {
        self.core.attach(spec(name, edit), Backing { disk })
    }

    /// Adds disks of `sizes` bytes side by side on one modelled array that is just large enough.
    pub fn add_disks_on_array(&self, spec: ArraySpec, sizes: &[u64]) -> Vec<AnyDisk<SimSeam>> {
        let room = sizes.iter().map(|size| size.next_multiple_of(spec.stripe_bytes())).sum();
        let array = SharedArray::new(self.seam.clone(), spec.fitted(room)).expect("a fitted array can be built");
        let disks = sizes.iter().enumerate();
        disks.map(|(number, size)| self.add_array_disk(&array, &format!("window{number}"), *size)).collect()
    }

    /// Adds a disk `name` on the next `bytes` of a modelled array, which must have room for them.
    pub fn add_array_disk(&self, array: &SharedArray<SimSeam>, name: &str, bytes: u64) -> AnyDisk<SimSeam> {
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
                MemberDisk::Local(self.open(&name))
            })
            .collect();
        self.world.block_on(async {
            let format = FormatOptions { force: true, ..FormatOptions::default() };
            Store::format(&self.seam, &disks, format).await.expect("healthy devices can be formatted");
            let (store, recovered) =
                Store::open(&self.seam, &disks, OpenOptions::default()).await.expect("a formatted store can be opened");
            self.core.open_log(store, recovered);
        });
    }

    /// Waits until the flash contents of the volumes, if any, have been compared with their backings.
    pub fn wait_until_checked(&self, volumes: &[Volume<SimSeam>]) {
        let unchecked = |volume: &Volume<SimSeam>| self.core.pages().is_some() && !volume.stats().flash.is_checked;
        self.world.block_on(async {
            while volumes.iter().any(unchecked) {
                self.seam.sleep(Nanos::from_millis(100)).await;
            }
        });
    }
}

/// The flash devices of a world, all alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlashPlan {
    /// Number of devices; a single device keeps no dirty data.
    pub devices: usize,
    /// Size of each device.
    pub bytes: u64,
    /// Requests per second that each device serves.
    pub iops: u64,
}

impl FlashPlan {
    /// Specification of each device.
    pub fn ssd(&self) -> SsdSpec {
        SsdSpec {
            capacity_bytes: self.bytes,
            read_iops_max: self.iops,
            write_iops_max: self.iops,
            ..DiskType::Ssd.ssd().expect("the type Ssd has an SSD specification")
        }
    }

    /// Two devices of their type's usual speed, with room for `bytes` of clean pages.
    pub fn for_pages(bytes: u64) -> FlashPlan {
        let ssd = DiskType::Ssd.ssd().expect("the type Ssd has an SSD specification");
        // Each device also holds checksums, the map journal and a log for dirty data.
        let device_bytes = bytes / 2 / 16 * 18 + (256 << 20);
        FlashPlan { devices: 2, bytes: device_bytes.next_multiple_of(1 << 20), iops: ssd.read_iops_max }
    }
}

/// Target of a workload: a volume, or the bare storage for comparison.
#[derive(Clone)]
pub enum Target {
    /// Through the engine.
    Volume(Volume<SimSeam>),
    /// Directly on the storage.
    Disk(AnyDisk<SimSeam>),
}

impl Target {
    /// Reads `len` bytes from `at` and discards them.
    pub async fn read(&self, seam: &SimSeam, at: u64, len: usize) -> Result<(), RequestError> {
        match self {
            Target::Volume(volume) => {
                let mut pieces = Vec::new();
                if volume.try_read(ByteOffset(at), len, &mut pieces) {
                    return Ok(());
                }
                volume.read(ByteOffset(at), len, &mut pieces).await
            }
            Target::Disk(disk) => Ok(disk.read(at, buffers(seam, at, len)).await.0?),
        }
    }

    /// Writes `len` bytes at `at`.
    pub async fn write(&self, seam: &SimSeam, at: u64, len: usize, tag: u64) -> Result<(), RequestError> {
        match self {
            Target::Volume(volume) => {
                let mut source = SameTag(tag);
                if volume.try_write(ByteOffset(at), len, &mut source) {
                    return Ok(());
                }
                volume.write(ByteOffset(at), len, WriteFlags::default(), &mut source).await
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

    /// Makes all acknowledged writes durable.
    pub async fn flush(&self) -> Result<(), RequestError> {
        match self {
            Target::Volume(volume) => volume.flush().await,
            Target::Disk(disk) => Ok(disk.flush().await?),
        }
    }
}

fn buffers(seam: &SimSeam, at: u64, len: usize) -> Vec<seam::PieceMut<seam::sim::SimBlockMut>> {
    let mut pieces = Vec::new();
    let mut allocated = 0;
    while allocated < len {
        let start = ((at + allocated as u64) % seam::BLOCK_BYTES as u64) as usize;
        let count = (seam::BLOCK_BYTES - start).min(len - allocated);
        let block = seam.alloc().expect("a comparison on bare storage has enough memory");
        pieces.push(Piece::new(block, start, count));
        allocated += count;
    }
    pieces
}

/// A write source with the same tag in every sector.
pub struct SameTag(pub u64);

impl engine::WriteSource<SimSeam> for SameTag {
    fn fill(&mut self, _from: usize, block: &mut seam::sim::SimBlockMut, at: usize, len: usize) {
        (at / SECTOR_BYTES..(at + len) / SECTOR_BYTES).for_each(|sector| block.set_tag(sector, self.0));
    }
}

/// A disk that completes requests after 50 to 500 us, out of order.
pub fn out_of_order_disk(size_bytes: u64) -> SimDiskSpec {
    let timing = Timing::between(Nanos::from_micros(50), Nanos::from_micros(500));
    SimDiskSpec { timing, ..SimDiskSpec::new(size_bytes) }
}

/// Writes `count` sectors of `tag` at `first` as a front end does: synchronously if possible.
pub async fn write(volume: &Volume<SimSeam>, first: u64, count: u64, tag: u64) -> Result<(), RequestError> {
    let (at, len, source) = (ByteOffset(first * SECTOR), (count * SECTOR) as usize, &mut SameTag(tag));
    if volume.try_write(at, len, source) {
        return Ok(());
    }
    volume.write(at, len, WriteFlags::default(), source).await
}

/// Writes and destages a block, so that the ring of recent writes has content: no later flush destages blocks as
/// evidence of the backing.
pub async fn write_evidence(seam: &SimSeam, volume: &Volume<SimSeam>, block: u64) {
    // The map of clean pages is read before, and records the write after it.
    seam.sleep(Nanos::from_secs(1)).await;
    let sectors = seam::BLOCK_BYTES as u64 / SECTOR;
    write(volume, block * sectors, sectors, 3).await.expect("the disks are healthy");
    volume.destage_all().await.expect("the disks are healthy");
    seam.sleep(Nanos::from_secs(2)).await;
}

/// Reads `count` sectors from `first` on as a front end does: synchronously if they are in memory.
pub async fn read(volume: &Volume<SimSeam>, first: u64, count: u64) -> Result<Vec<u64>, RequestError> {
    let mut pieces = Vec::new();
    let (at, len) = (ByteOffset(first * SECTOR), (count * SECTOR) as usize);
    if !volume.try_read(at, len, &mut pieces) {
        volume.read(at, len, &mut pieces).await?;
    }
    Ok(tags(&pieces).into_iter().map(|Tag(tag)| tag).collect())
}

/// Durable tags of `count` sectors of a disk.
pub fn durable_tags(disk: &DiskControl, first: u64, count: u64) -> Vec<u64> {
    (first..first + count).map(|sector| disk.durable_tag(sector)).collect()
}
