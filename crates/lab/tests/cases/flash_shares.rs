//! Shares of the flash: what a volume was promised stays there beside a greedy neighbour, and nobody has more than he may.

use engine::{Amount, CoreSpec, FlashShare, ShareError, Volume};
use lab::rig::{Rig, Target, lively_disk, read, write};
use lab::torture::flash::FlashOptions;
use lab::workload::{Load, Pattern, play};
use seam::Nanos;
use seam::sim::{SimSeam, WorldSpec};

const MIB: u64 = 1 << 20;

/// A world with flash for 150 pages and more, and two volumes.
fn life(seed: u64, shares: [FlashShare; 2]) -> (Rig, [Volume<SimSeam>; 2]) {
    let spec = WorldSpec { blocks: 128, time_max: Nanos::from_secs(100_000), ..WorldSpec::new(seed) };
    let rig = Rig::new(spec, CoreSpec { readahead_max_bytes: 0, ..CoreSpec::default() });
    let devices = FlashOptions::plain(2, MIB, 8);
    devices.add_disks(&rig.world);
    let opened = rig.world.block_on(devices.open(&rig.seam, &rig.core, true, true));
    opened.expect("the devices are empty");
    let volumes = ["small", "greedy"].map(|name| {
        rig.add_disk(name, lively_disk(64 * MIB));
        let share = shares[usize::from(name == "greedy")].clone();
        rig.attach(name, |spec| spec.flash = share).expect("the log holds nothing of it")
    });
    rig.world.run_for(Nanos::from_secs(1)).expect("the map is read");
    (rig, volumes)
}

/// Reads `bytes` at random for so long, again and again.
fn use_it(rig: &Rig, volume: &Volume<SimSeam>, bytes: u64, rounds: u64, mut look: impl FnMut()) {
    for seed in 0..rounds {
        let load = Load { pattern: Pattern::random(bytes, 4096, 100), depth: 4, time: Nanos::from_millis(150), seed };
        rig.world.block_on(play(&rig.seam, &Target::Volume(volume.clone()), &load));
        rig.world.run_for(Nanos::from_millis(500)).expect("nothing is stuck");
        look();
    }
}

fn min(pages: u64) -> FlashShare {
    FlashShare { min: Amount::Pages(pages), ..FlashShare::default() }
}

#[test]
fn case_24_a_minimum_share_holds_beside_a_neighbour_that_takes_all_it_can_get() {
    // Without a minimum the neighbour takes it, so the test can fail.
    for (promised, share) in [(40, min(40)), (0, FlashShare::default())] {
        let (rig, [small, greedy]) = life(1, [share, FlashShare::default()]);
        use_it(&rig, &small, 3 * MIB, 20, || ());
        let before = small.stats().flash.pages;
        assert!(before >= 40, "{before} pages of its hot set came to flash");
        use_it(&rig, &greedy, 16 * MIB, 30, || {
            let left = small.stats().flash.pages;
            assert!(left >= promised, "{left} of {promised} pages are left");
        });
        let left = small.stats().flash.pages;
        println!("promised {promised}: {before} pages before, {left} after, greedy {}", greedy.stats().flash.pages);
        assert!(promised > 0 || left < 40, "the neighbour was not greedy: {left} pages are left");
    }
}

#[test]
fn case_24_pinned_pages_come_to_flash_unasked_and_stay_there_and_a_write_brings_their_new_content() {
    // Without a pin none of it would be there, so the test can fail.
    for pinned in [vec![8..20, 40..48], Vec::new()] {
        let share = FlashShare { pinned: pinned.clone(), ..FlashShare::default() };
        let (rig, [small, greedy]) = life(4, [share.clone(), FlashShare::default()]);
        rig.world.run_for(Nanos::from_secs(10)).expect("nothing is stuck");
        let flash = small.stats().flash;
        let count = pinned.iter().map(|range| range.end - range.start).sum::<u64>();
        assert_eq!((flash.pages, flash.pinned_whole, flash.pin_waits), (count, count, None));
        use_it(&rig, &greedy, 16 * MIB, 25, || ());
        assert_eq!(small.stats().flash.pages, count);
        if pinned.is_empty() {
            continue;
        }
        rig.world.block_on(async {
            write(&small, 8 * 128, 128, 77).await.expect("memory takes it");
            small.destage_all().await.expect("the disk is whole");
        });
        rig.world.run_for(Nanos::from_secs(60)).expect("nothing is stuck");
        assert_eq!(small.stats().flash.pinned_whole, count, "{:?}", small.stats().flash);
        // What the neighbour reads pushes it out of memory.
        use_it(&rig, &greedy, 16 * MIB, 3, || ());
        let before = small.stats().backing_reads;
        let content = rig.world.block_on(read(&small, 8 * 128, 128)).expect("it is there");
        assert_eq!((content, small.stats().backing_reads), (vec![77; 128], before));
        let counts = || ["small", "greedy", "flash1", "flash2"].map(|disk| rig.world.disk(disk).unwrap().counts());
        rig.world.run_for(Nanos::from_secs(60)).expect("nothing is stuck");
        let before = counts();
        rig.world.run_for(Nanos::from_secs(3_600)).expect("nothing is stuck");
        assert_eq!(counts(), before, "case 21: an hour without clients");
        small.set_flash_share(FlashShare::default()).expect("less is always possible");
        use_it(&rig, &greedy, 16 * MIB, 25, || ());
        assert!(small.stats().flash.pages < count, "unpinned pages go like others");
    }
}

#[test]
fn more_than_fits_cannot_be_pinned() {
    let (rig, [small, greedy]) = life(5, [min(60), FlashShare::default()]);
    let slots = rig.core.pages().expect("there is flash").slots_max();
    let pin = |pages: u64| FlashShare { pinned: std::iter::once(0..pages).collect(), ..FlashShare::default() };
    let refused = greedy.set_flash_share(pin(slots - 50)).expect_err("60 pages are promised to another");
    assert!(refused.to_string().contains("can still be promised"), "{refused}");
    let few = FlashShare { max: Some(Amount::Pages(10)), ..pin(11) };
    assert!(matches!(greedy.set_flash_share(few), Err(ShareError::PinnedAboveMax { .. })));
    drop(small);
}

#[test]
fn a_maximum_share_is_never_passed_and_the_newest_hot_set_still_comes_in() {
    let share = FlashShare { max: Some(Amount::Pages(50)), ..FlashShare::default() };
    let (rig, [small, _]) = life(2, [share, FlashShare::default()]);
    let most = || assert!(small.stats().flash.pages <= 50, "{} pages", small.stats().flash.pages);
    use_it(&rig, &small, 6 * MIB, 20, most);
    assert!(small.stats().flash.pages >= 45, "{:?}", small.stats().flash);
    let promotions = small.stats().flash.promotions;
    use_it(&rig, &small, 2 * MIB, 20, most);
    let more = small.stats().flash.promotions - promotions;
    assert!(more >= 10, "{more} pages took the place of others");
}

#[test]
fn a_minimum_below_what_was_promised_to_others_is_refused_and_a_live_change_holds() {
    let (rig, [small, greedy]) = life(3, [min(60), FlashShare::default()]);
    let slots = rig.core.pages().expect("there is flash").slots_max();
    let refused = greedy.set_flash_share(min(slots - 50)).expect_err("60 pages are promised");
    assert!(matches!(refused, ShareError::NoRoom { .. }), "{refused}");
    assert_eq!(greedy.flash_share(), FlashShare::default());
    let backwards = FlashShare { max: Some(Amount::Pages(3)), ..min(4) };
    assert!(matches!(greedy.set_flash_share(backwards), Err(ShareError::MinAboveMax { .. })));
    small.set_flash_share(FlashShare::default()).expect("less is always possible");
    greedy.set_flash_share(min(slots - 50)).expect("nothing is promised to others");
    use_it(&rig, &greedy, 16 * MIB, 30, || ());
    greedy.set_flash_share(FlashShare { max: Some(Amount::PerMille(100)), ..FlashShare::default() }).expect("less");
    use_it(&rig, &small, 9 * MIB, 30, || ());
    let left = greedy.stats().flash.pages;
    assert!(left < slots / 2, "what it has too much of goes first: {left} of {slots}");
}
