//! What the cases share: a world, a disk, a volume, and content that names who wrote it.

use engine::{Backing, Core, CoreSpec, Volume, VolumeSpec, WriteFlags, WritePolicy, WriteSource};
use seam::sim::{SimBlockMut, SimDiskSpec, SimSeam, Timing, World, WorldSpec};
use seam::{Block, BlockMut, DiskOpen, Nanos, Piece, Seam};

/// A source whose every sector holds the same tag.
pub struct Tag(pub u64);

impl WriteSource<SimSeam> for Tag {
    fn fill(&mut self, _from: usize, block: &mut SimBlockMut, at: usize, len: usize) {
        let mut bytes = [0; 512];
        bytes.chunks_mut(8).for_each(|word| word.copy_from_slice(&self.0.to_le_bytes()));
        (at..at + len).step_by(512).for_each(|at| block.write_bytes(at, &bytes));
    }
}

/// A world with `blocks` buffers that gives up after an hour.
pub fn world(blocks: usize) -> World {
    let mut spec = WorldSpec::new(1);
    (spec.blocks, spec.time_max) = (blocks, Nanos::from_secs(3600));
    World::new(spec)
}

/// A disk that answers in 50 to 500 us, out of order.
pub fn disk(size_bytes: u64) -> SimDiskSpec {
    let mut spec = SimDiskSpec::new(size_bytes);
    spec.timing = Timing::between(Nanos::from_micros(50), Nanos::from_micros(500));
    spec
}

/// A core with one volume on the disk of that name.
pub async fn attach(seam: &SimSeam, name: &str, id: u64, policy: WritePolicy) -> (Core<SimSeam>, Volume<SimSeam>) {
    let core = Core::new(seam.clone(), CoreSpec::default());
    let volume = attach_to(&core, name, id, policy).await;
    (core, volume)
}

/// One more volume.
pub async fn attach_to(core: &Core<SimSeam>, name: &str, id: u64, policy: WritePolicy) -> Volume<SimSeam> {
    let open = DiskOpen { path: name.into(), create_bytes: None, read_only: false, lock_wait_ms: 0 };
    let disk = core.seam().open_disk(&open).await.expect("the disk was added");
    let mut spec = VolumeSpec::new(name, id);
    spec.policy = policy;
    core.attach(spec, Backing::plain(disk)).expect("names and identities differ")
}

/// The tags of `len` bytes from `at` on.
pub async fn read(volume: &Volume<SimSeam>, at: u64, len: usize) -> Vec<u64> {
    let mut out = Vec::new();
    if !volume.read_now(at, len, &mut out) {
        volume.read(at, len, &mut out).await.expect("the disk is whole");
    }
    tags(&out)
}

/// Writes the same tag over `len` bytes.
pub async fn write(volume: &Volume<SimSeam>, at: u64, len: usize, tag: u64) {
    if !volume.write_now(at, len, &mut Tag(tag)) {
        volume.write(at, len, WriteFlags::default(), &mut Tag(tag)).await.expect("the disk is whole");
    }
}

fn tags(pieces: &[Piece<<SimSeam as Seam>::Block>]) -> Vec<u64> {
    let mut tags = Vec::new();
    for piece in pieces {
        for at in (piece.start()..piece.start() + piece.len()).step_by(512) {
            let mut word = [0; 8];
            piece.block.read_bytes(at, &mut word);
            tags.push(u64::from_le_bytes(word));
        }
    }
    tags
}

/// Numbers that look random, the same each time.
pub struct Numbers(pub u64);

impl Numbers {
    /// The next one, below `bound`.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}
