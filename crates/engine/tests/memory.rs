//! A volume in the simulated world: what is read is what was written, whatever moves underneath.

use std::rc::Rc;

use engine::{Backing, Core, CoreSpec, Volume, VolumeSpec, WriteFlags, WritePolicy, WriteSource, ZeroFlags};
use seam::sim::{SimBlockMut, SimDiskSpec, SimSeam, Timing, World, WorldSpec};
use seam::{Block, BlockMut, DiskOpen, Nanos, Piece, Seam};

/// A source whose every sector holds the same tag.
struct Tag(u64);

impl WriteSource<SimSeam> for Tag {
    fn fill(&mut self, _from: usize, block: &mut SimBlockMut, at: usize, len: usize) {
        let mut bytes = [0; 512];
        bytes.chunks_mut(8).for_each(|word| word.copy_from_slice(&self.0.to_le_bytes()));
        (at..at + len).step_by(512).for_each(|at| block.write_bytes(at, &bytes));
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

async fn read(volume: &Volume<SimSeam>, at: u64, len: usize) -> Vec<u64> {
    let mut out = Vec::new();
    if !volume.read_now(at, len, &mut out) {
        volume.read(at, len, &mut out).await.expect("the disk is whole");
    }
    tags(&out)
}

fn world(blocks: usize) -> World {
    let mut spec = WorldSpec::new(1);
    spec.blocks = blocks;
    spec.time_max = Nanos::from_secs(3600);
    World::new(spec)
}

fn spec(size: u64) -> SimDiskSpec {
    let mut spec = SimDiskSpec::new(size);
    spec.timing = Timing::between(Nanos::from_micros(50), Nanos::from_micros(500));
    spec
}

async fn volume(seam: &SimSeam, policy: WritePolicy) -> (Core<SimSeam>, Volume<SimSeam>) {
    let open = DiskOpen { path: "disk".into(), create_bytes: None, read_only: false, lock_wait_ms: 0 };
    let disk = seam.open_disk(&open).await.expect("the disk was added");
    let core = Core::new(seam.clone(), CoreSpec::default());
    let mut spec = VolumeSpec::new("v", 1);
    spec.policy = policy;
    let volume = core.attach(spec, Backing::plain(disk)).expect("the only volume");
    (core, volume)
}

#[test]
fn what_is_written_is_read_under_every_policy_and_the_dirty_data_drains() {
    for (_, policy) in WritePolicy::ALL {
        let world = world(256);
        world.add_disk("disk", spec(8 << 20));
        let seam = world.seam();
        let done = world.block_on(async move {
            let (core, volume) = volume(&seam, policy).await;
            let mut expected = vec![0u64; (8 << 20) / 512];
            let mut state = 7u64;
            for turn in 1..3000u64 {
                state = state.wrapping_mul(6364136223846793005).wrapping_add(turn);
                let first = (state >> 33) as usize % (expected.len() - 64);
                let count = 1 + (state >> 20) as usize % 64;
                let (at, len) = (first as u64 * 512, count * 512);
                match turn % 10 {
                    0..=4 => {
                        if !volume.write_now(at, len, &mut Tag(turn)) {
                            volume
                                .write(at, len, WriteFlags { fua: turn % 7 == 0 }, &mut Tag(turn))
                                .await
                                .expect("whole");
                        }
                        expected[first..first + count].fill(turn);
                    }
                    5 => {
                        let flags = ZeroFlags { fua: turn % 3 == 0, may_unmap: true, fast_only: false };
                        volume.zero(at, len as u64, flags).await.expect("whole");
                        expected[first..first + count].fill(0);
                    }
                    6 if turn % 60 == 6 => volume.flush().await.expect("whole"),
                    _ => {
                        assert_eq!(read(&volume, at, len).await, expected[first..first + count], "turn {turn} {policy}")
                    }
                }
            }
            volume.destage_all().await.expect("whole");
            assert_eq!(volume.stats().dirty_bytes, 0);
            seam.sleep(Nanos::from_secs(60)).await;
            assert_eq!(volume.stats().written_bytes, 0);
            for first in (0..expected.len()).step_by(128) {
                assert_eq!(read(&volume, first as u64 * 512, 65536).await, expected[first..first + 128]);
            }
            core.detach("v").await.expect("whole");
            Rc::new(())
        });
        drop(done);
        assert_eq!(world.blocks_out(), 0, "every buffer came back");
    }
}
