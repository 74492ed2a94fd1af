//! The state matrix with flash, checked against a list of tags. States: absent, clean in memory, clean on flash, dirty,
//! spilled, for four blocks on both sides of a page boundary × starts and ends × policies, with racing eviction,
//! discard and destage.

use engine::{ByteOffset, CoreSpec, FlashQuota, PageNo, Volume, VolumeId, VolumeSpec, WriteFlags, WritePolicy};
use lab::fixture::{Fixture, durable_tags, out_of_order_disk, read, write};
use lab::random::Random;
use lab::torture::flash::FlashOptions;
use seam::sim::{CrashMode, SimSeam, WorldSpec};
use seam::{DiskOpen, Nanos, Seam};

const MIB: u64 = 1 << 20;
/// The first of the blocks that take each state: two on each side of a page boundary.
const FIRST_BLOCK: u64 = 14;
const BLOCKS: u64 = 4;
const SECTORS: u64 = 32 * 8;

/// Initial state of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BlockState {
    Absent,
    InMemory,
    OnFlash,
    Dirty,
    Spilled,
}

const STATES: [BlockState; 5] =
    [BlockState::Absent, BlockState::InMemory, BlockState::OnFlash, BlockState::Dirty, BlockState::Spilled];

fn states_of(pattern: u64) -> [BlockState; BLOCKS as usize] {
    std::array::from_fn(|position| STATES[(pattern / 5_u64.pow(position as u32) % 5) as usize])
}

struct Volumes {
    fixture: Fixture,
    volume: Volume<SimSeam>,
    scan: Volume<SimSeam>,
}

fn devices() -> FlashOptions {
    FlashOptions { spill_percent: 0, ..FlashOptions::plain(2, 256 << 10, 24) }
}

fn world(seed: u64) -> WorldSpec {
    WorldSpec { blocks: 160, time_max: Nanos::from_secs(1_000_000), ..WorldSpec::new(seed) }
}

/// Attaches the volumes. The first volume's two pages are pinned, so that clean data is promoted within a second or
/// two.
fn attach(fixture: Fixture, policy: WritePolicy, first: bool) -> Volumes {
    let (volume, scan) = fixture.world.block_on(async {
        devices().open(&fixture.seam, &fixture.core, first, false).await.expect("the devices are intact");
        let mut attached = Vec::new();
        for (name, number) in [("disk", 1), ("scan", 2)] {
            let open = DiskOpen { path: name.into(), create_bytes: None, read_only: false, lock_wait_ms: 1_000 };
            let disk = engine::Backing::plain(fixture.seam.open_disk(&open).await.expect("the disk exists"));
            let pinned = if number == 1 { std::iter::once(PageNo(0)..PageNo(2)).collect() } else { Vec::new() };
            let flash = FlashQuota { is_enabled: number == 1, pinned, ..FlashQuota::default() };
            let spec = VolumeSpec { flash, ..VolumeSpec::new(name, VolumeId(number)) };
            attached.push(fixture.core.attach_recovered(spec, disk).await.expect("an intact log is readable"));
        }
        let (scan, volume) =
            (attached.pop().expect("two volumes were attached"), attached.pop().expect("two volumes were attached"));
        volume.set_policy(policy).await.expect("a clean volume accepts the change");
        (volume, scan)
    });
    Volumes { fixture, volume, scan }
}

fn first_session(seed: u64, policy: WritePolicy, expected: &[u64]) -> Volumes {
    let core = CoreSpec { readahead_max_bytes: 0, spill_percent: devices().spill_percent, ..CoreSpec::default() };
    let fixture = Fixture::new(world(seed), core);
    fixture.add_disk("disk", out_of_order_disk(SECTORS * 512)).set_tags(0, expected);
    fixture.add_disk("scan", out_of_order_disk(4 * MIB));
    devices().add_disks(&fixture.world);
    attach(fixture, policy, true)
}

impl Volumes {
    /// Evicts all clean blocks from memory.
    async fn evict(&self) {
        for block in 0..320 {
            let position = block * 3 % 1_000;
            read(&self.scan, position * 8, 8).await.expect("a disk without faults does not fail");
        }
    }

    /// Brings the blocks into the states of a pattern, and the others to flash. Returns the number of blocks found in
    /// each state.
    async fn prepare(&self, states: &[BlockState], expected: &mut [u64], tag: u64) -> [u64; 5] {
        let volume = &self.volume;
        volume.destage_all().await.expect("a disk without faults does not fail");
        self.fixture.seam.sleep(Nanos::from_secs(5)).await;
        let positions_in = |state: BlockState| {
            let positions = (FIRST_BLOCK..).zip(states).filter(move |(_, other)| **other == state);
            positions.map(|(block, _)| block).collect::<Vec<u64>>()
        };
        let mut put = async |block: u64| {
            write(volume, block * 8, 8, tag).await.expect("memory has space");
            expected[block as usize * 8..][..8].fill(tag);
        };
        for block in positions_in(BlockState::Absent) {
            put(block).await;
        }
        volume.destage_all().await.expect("a disk without faults does not fail");
        self.evict().await;
        for block in positions_in(BlockState::Spilled) {
            put(block).await;
        }
        volume.flush().await.expect("the log has space");
        let spilled = volume.stats().spilled_bytes / 4096;
        let before = volume.stats();
        for block in positions_in(BlockState::InMemory) {
            read(volume, block * 8, 8).await.expect("a disk without faults does not fail");
        }
        let from_flash = volume.stats().flash_hits - before.flash_hits;
        for block in positions_in(BlockState::Dirty) {
            put(block).await;
        }
        let dirty = volume.stats().dirty_bytes / 4096 - spilled.min(volume.stats().dirty_bytes / 4096);
        let on_flash = volume.stats().flash.cached_bytes / 4096;
        [32 - on_flash, from_flash, on_flash, dirty, spilled]
    }
}

#[test]
fn case_22_every_flash_state_reads_back_under_races() {
    for (number, (name, policy)) in (0..).zip(WritePolicy::ALL) {
        let mut expected: Vec<u64> = (1_000..1_000 + SECTORS).collect();
        let mut volumes = first_session(number, policy, &expected);
        let (mut random, mut tag, mut seen) = (Random::new(22, number), 10_000, [0; 5]);
        // All 625 under write-back. The other policies spill nothing, so a sample suffices.
        let step = if policy == WritePolicy::WriteBack { 1 } else { 7 };
        for pattern in (0..625).step_by(step) {
            let states = states_of(pattern);
            tag += 100;
            let reached = volumes.fixture.world.block_on(volumes.prepare(&states, &mut expected, tag));
            seen.iter_mut().zip(reached).for_each(|(seen, reached)| *seen += reached);
            let volume = &volumes.volume;
            if pattern % 3 == 1 {
                let racing = volume.clone();
                volumes
                    .fixture
                    .seam
                    .spawn(async move { racing.destage_all().await.expect("a disk without faults does not fail") });
            }
            if pattern % 5 == 2 {
                volume.invalidate();
            }
            for round in 0..6 {
                // Block edges, one sector beside them, and the middle.
                let edges = [0, 1, 7, 8, 9, 12, 15, 16, 17, 23, 24, 25, 31, 32];
                let (left, right) = (random.pick(&edges), random.pick(&edges));
                let (first, end) = (FIRST_BLOCK * 8 + left.min(right), FIRST_BLOCK * 8 + left.max(right));
                let inside = first as usize..end as usize;
                if first == end {
                    continue;
                }
                let context = format!("{name}, {states:?}, round {round}, {first}..{end}");
                volumes.fixture.world.block_on(async {
                    match random.below(4) {
                        0 => {
                            write(volume, first, end - first, tag + round).await.expect(&context);
                            expected[inside].fill(tag + round);
                        }
                        1 => {
                            let discard = volume
                                .discard(ByteOffset(first * 512), (end - first) * 512, WriteFlags::default())
                                .await;
                            discard.expect(&context);
                            expected[inside].fill(0);
                        }
                        2 => volumes.evict().await,
                        _ => {
                            assert_eq!(
                                read(volume, first, end - first).await.expect(&context),
                                expected[inside],
                                "{context}"
                            )
                        }
                    }
                });
            }
            let content =
                volumes.fixture.world.block_on(read(volume, 0, SECTORS)).expect("a disk without faults does not fail");
            assert_eq!(content, expected, "{name}, {states:?}");
            if pattern % 125 == 77 {
                // Flushed data is there after a crash, whatever lay on flash.
                volumes.fixture.world.block_on(volume.flush()).expect("the log has space");
                if policy == WritePolicy::WriteBackVolatile {
                    volumes.fixture.world.block_on(volume.destage_all()).expect("a disk without faults does not fail");
                }
                let Volumes { fixture, volume, scan } = volumes;
                drop((volume, scan));
                let fixture = fixture.crash(CrashMode::LoseAll, world(1_000 + pattern));
                volumes = attach(fixture, policy, false);
                let content = volumes
                    .fixture
                    .world
                    .block_on(read(&volumes.volume, 0, SECTORS))
                    .expect("flushed data is readable");
                assert_eq!(content, expected, "{name}, {states:?}: after a crash");
            }
        }
        println!(
            "{name}: absent from flash {}, read from it {}, on it {}, dirty {}, spilled {}",
            seen[0], seen[1], seen[2], seen[3], seen[4]
        );
        let reaches_every_state = policy == WritePolicy::WriteBack;
        assert!(
            !reaches_every_state || seen.iter().all(|seen| *seen > 100),
            "a state was hardly ever reached: {seen:?}"
        );
        volumes.fixture.world.block_on(volumes.volume.destage_all()).expect("a disk without faults does not fail");
        let disk = volumes.fixture.world.disk("disk").expect("the disk belongs to the world");
        assert_eq!(durable_tags(&disk, 0, SECTORS), expected, "{name}: the backing afterwards");
    }
}
