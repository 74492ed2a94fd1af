//! Random scenarios with pages: random shapes, faults on one device, several boots, each ended by a crash. Deliberate
//! violations of a rule must be detected.

use std::cell::RefCell;
use std::rc::Rc;

use flash::format::FIRST_SEGMENT_BYTES;
use flash::format::journal::{JOURNAL_AT, JournalHeader};
use flash::{
    BlockAddress, BlockNo, CommitNo, CompletionNo, Content, Epoch, OpenOptions, PageNo, Record, Sabotage, StoreError,
    VolumeId,
};
use seam::sim::{CrashMode, Fault, Ops, Rng, Rule, Stop, When, World};
use seam::{Block, BlockMut, Disk, Nanos, Piece, Seam};

use crate::page_crash_points;
use crate::paged::{Backing, PagedWorkload, check_all};
use crate::pages::block_with_tag;
use crate::world::{ALL, NAMES, PAGED, StoreShape, disks, formatted, open, world_after_crash};

/// Regression seeds. 1731: a page segment's header was written after the log had reclaimed the segment.
const REGRESSION_SEEDS: [u64; 1] = [1731];

/// Counts of the scenarios.
#[derive(Clone, Copy, Debug, Default)]
pub struct ScenarioCounts {
    pub served: u64,
    pub suspect: u64,
    pub evictions: u64,
    pub dropped: u64,
}

/// Runs the scenario of `seed`.
pub fn run_scenario(seed: u64, sabotage: Sabotage, counts: &mut ScenarioCounts) -> Result<(), String> {
    let rng = Rng::new(seed, 51);
    let devices = 1 + rng.below(3) as usize;
    let segment_bytes = (128 << 10) << rng.below(3);
    let journal_bytes = Some((10 + rng.below(20)) * 4096);
    let shape = StoreShape { devices, segment_bytes, segments: 5 + rng.below(6), journal_bytes };
    let victim = ALL[rng.below(devices as u64) as usize];
    let mut world = formatted(seed, StoreShape { ..shape });
    let backing = Rc::<RefCell<Backing>>::default();
    let options = OpenOptions { sabotage, accept_missing: true, ..OpenOptions::default() };
    let mut is_undamaged = true;
    for boot in 0..2 + rng.below(4) {
        is_undamaged &= devices == 1 || !plan_faults(&world, &rng, victim);
        let first_error = Rc::<RefCell<Option<String>>>::default();
        let (seam, cut_short) = (world.seam(), rng.coin());
        if cut_short {
            world.crash_at_io(world.io_count() + 1 + rng.below(600));
        }
        let ended = world.run_until(async {
            let Ok((store, recovered)) = open(&world, &seam, options).await else { return Ok(()) };
            let pages = store.pages();
            let map = pages.load().await;
            counts.dropped += u64::from(map.drop_reason.is_some());
            let backing_before = backing.borrow().clone();
            let (served, suspect) =
                check_all(&seam, &pages, &backing_before, &Rng::new(seed, boot), is_undamaged).await?;
            counts.served += served;
            counts.suspect += suspect;
            // The owner flushes its backing, which decides its content.
            backing.borrow_mut().decide_contents(&Rng::new(seed, boot));
            let logged = Rc::new(RefCell::new(recovered.iter().map(|record| record.position).collect()));
            let (seam, backing, first_error) = (seam.clone(), Rc::clone(&backing), Rc::clone(&first_error));
            let workload = PagedWorkload { seam, store: store.clone(), pages, backing, first_error, logged };
            workload.run(rng.next(), 1 + rng.below(3), 1 + rng.below(60)).await;
            counts.evictions += workload.pages.stats().evictions;
            drop(workload);
            match store.close().await {
                Ok(_) | Err(StoreError::Failed(_)) => Ok(()),
                Err(error) => Err(error.to_string()),
            }
        });
        match ended {
            Ok(ended) => ended.map_err(|error| format!("boot {boot}: {error}"))?,
            Err(Stop::CrashPoint) => {}
            Err(stop) => return Err(format!("boot {boot}: {stop}")),
        }
        if let Some(error) = first_error.take() {
            return Err(format!("boot {boot}: {error}"));
        }
        world = world_after_crash(rng.next(), world.crash(CrashMode::Any));
    }
    let seam = world.seam();
    let last = world.run_until(async {
        let (store, _) = open(&world, &seam, options).await.map_err(|error| error.to_string())?;
        let pages = store.pages();
        pages.load().await;
        check_all(&seam, &pages, &backing.take(), &rng, is_undamaged).await.map(drop)
    });
    last.map_err(|stop| stop.to_string())?
}

/// Adds a random fault to one of several devices. Returns false if it adds none.
fn plan_faults(world: &World, rng: &Rng, victim: &str) -> bool {
    let Some(control) = world.disk(victim) else { return false };
    let probability = When::PerMillion(1 + rng.below(30_000) as u32);
    let rule = match rng.below(16) {
        0 => Rule::new(Fault::Error, Ops::WRITE, probability),
        1 => Rule::new(Fault::Error, Ops::FLUSH, probability),
        2 => Rule::new(Fault::Vanish, Ops::ALL, When::Nth(rng.below(300))),
        3 => Rule::new(Fault::Reconnect, Ops::ALL, probability),
        4 => Rule::new(Fault::Stall(Nanos::from_millis(20)), Ops::ALL, probability),
        5 => Rule::new(Fault::BitFlip, Ops::READ, probability),
        6 => Rule::new(Fault::Error, Ops::READ, probability),
        7 => Rule::new(Fault::Lost, Ops::WRITE, probability),
        8 => Rule::new(Fault::Torn, Ops::WRITE, probability),
        9 => Rule::new(Fault::BitFlip, Ops::WRITE, probability),
        10 => Rule::new(Fault::Misdirected, Ops::WRITE, probability),
        11 => Rule::new(Fault::FlushLies, Ops::FLUSH, When::PerMillion(300_000)),
        _ => return false,
    };
    control.add_fault(rule);
    true
}

#[test]
fn thousand_random_scenarios_with_page_faults_serve_nothing_stale() {
    let seeds = std::env::var("HOTSET_FLASH_SEEDS").map_or(1_000, |seeds| seeds.parse().expect("a number of seeds"));
    let mut counts = ScenarioCounts::default();
    for seed in REGRESSION_SEEDS.into_iter().chain(0..seeds) {
        run_scenario(seed, Sabotage::None, &mut counts).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    }
    println!("{counts:?}");
    assert!(counts.served > 10 * seeds && counts.suspect > seeds && counts.evictions > seeds, "{counts:?}");
}

/// Damages the commit that marks a region dirty on every device, although the log records that it was durable. Checks
/// that the map is dropped.
fn check_short_map_is_dropped(sabotage: Sabotage) -> Result<(), String> {
    let world = formatted(3, PAGED);
    let seam = world.seam();
    let options = OpenOptions { sabotage, ..OpenOptions::default() };
    world.block_on(async {
        let (store, _) = open(&world, &seam, options).await.unwrap();
        let pages = store.pages();
        pages.load().await;
        let volume = pages.volume(VolumeId(1));
        while volume.put(PageNo(0), vec![(0, block_with_tag(&seam, 7))]).await != Ok(1) {
            seam.sleep(Nanos::from_millis(1)).await;
        }
        seam.sleep(Nanos::from_secs(2)).await;
        let intent = volume.begin_write(BlockNo(0)..BlockNo(1)).await;
        volume.end_write(intent, CompletionNo(1));
        let (address, content) =
            (BlockAddress { volume_id: VolumeId(9), block: BlockNo(1) }, Content::Data(block_with_tag(&seam, 1)));
        store.append(vec![Record { address, epoch: Epoch(1), content }]).await.unwrap();
    });
    let world = world_after_crash(4, world.crash(CrashMode::LoseAll));
    let seam = world.seam();
    world.block_on(async {
        for (disk, name) in disks(&seam, &NAMES).await.into_iter().zip(NAMES) {
            let mut newest = (CommitNo(0), 0);
            for at in (JOURNAL_AT..FIRST_SEGMENT_BYTES).step_by(4096) {
                let (_, mut read) = disk.read(at, vec![Piece::whole(seam.alloc().unwrap())]).await;
                let mut raw = [0; 4096];
                read.pop().unwrap().block.freeze().read_bytes(0, &mut raw);
                let commit_no = JournalHeader::decode(&raw).map_or(CommitNo(0), |(header, _)| header.commit_no);
                newest = newest.max((commit_no, at));
            }
            world.disk(name).unwrap().flip_bit(newest.1 / 512, 40);
        }
        let (store, _) = open(&world, &seam, options).await.unwrap();
        let pages = store.pages();
        let loaded = pages.load().await;
        let valid = pages.volume(VolumeId(1)).valid_blocks(PageNo(0));
        if loaded.drop_reason.is_none() || valid != 0 {
            return Err(format!("{valid:x} of the page is served: {loaded:?}"));
        }
        Ok(())
    })
}

/// Checks that a random scenario with faults detects the sabotage, and passes without it.
fn assert_caught_by_a_seed(sabotage: Sabotage) {
    let caught =
        (0..2_000).find_map(|seed| Some((seed, run_scenario(seed, sabotage, &mut ScenarioCounts::default()).err()?)));
    let (seed, error) = caught.unwrap_or_else(|| panic!("{sabotage:?} was not detected"));
    println!("{sabotage:?}: seed {seed}, {error}");
    run_scenario(seed, Sabotage::None, &mut ScenarioCounts::default()).expect("the same seed passes without it");
}

/// Checks that a crash of a scenario without faults detects the sabotage.
fn assert_caught_by_a_crash(sabotage: Sabotage) {
    let caught =
        (0..6).find_map(|seed| Some((seed, page_crash_points::crash_at_every_io(seed, 8, sabotage, u64::MAX).err()?)));
    let (seed, error) = caught.unwrap_or_else(|| panic!("{sabotage:?} was not detected"));
    println!("{sabotage:?}: seed {seed}, {error}");
}

#[test]
fn write_before_its_region_is_durably_marked_is_caught() {
    assert_caught_by_a_crash(Sabotage::WriteBeforeMark);
}

#[test]
fn region_unmarked_before_its_invalidations_are_durable_is_caught() {
    assert_caught_by_a_seed(Sabotage::UnmarkEarly);
}

#[test]
fn slot_reused_before_its_release_is_durable_is_caught() {
    assert_caught_by_a_seed(Sabotage::ReuseSlotEarly);
}

#[test]
fn skipped_checksum_of_a_page_is_caught() {
    assert_caught_by_a_seed(Sabotage::SkipPageChecksum);
}

#[test]
fn pages_kept_from_a_short_map_journal_are_caught() {
    for sabotage in [Sabotage::None, Sabotage::KeepShortMap] {
        let result = check_short_map_is_dropped(sabotage);
        assert_eq!(result.is_err(), sabotage == Sabotage::KeepShortMap, "{sabotage:?}: {result:?}");
    }
}

#[test]
fn put_that_ignores_an_invalidation_is_caught() {
    assert_caught_by_a_seed(Sabotage::PutOverInvalidate);
}
