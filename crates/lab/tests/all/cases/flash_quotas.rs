//! Flash quotas: a minimum holds beside a greedy neighbour, and a maximum is never exceeded.

use engine::{CoreSpec, FlashQuota, PageAmount, PageNo, QuotaError, Volume};
use lab::fixture::{Fixture, Target, out_of_order_disk, read, write};
use lab::torture::flash::FlashOptions;
use lab::workload::{Load, Pattern, run_load};
use seam::Nanos;
use seam::sim::{SimSeam, WorldSpec};

const MIB: u64 = 1 << 20;

/// Creates a world with flash for at least 150 pages, and two volumes.
fn two_volumes(seed: u64, quotas: [FlashQuota; 2]) -> (Fixture, [Volume<SimSeam>; 2]) {
    let spec = WorldSpec { blocks: 128, time_max: Nanos::from_secs(100_000), ..WorldSpec::new(seed) };
    let fixture = Fixture::new(spec, CoreSpec { readahead_max_bytes: 0, ..CoreSpec::default() });
    let devices = FlashOptions::plain(2, MIB, 8);
    devices.add_disks(&fixture.world);
    let opened = fixture.world.block_on(devices.open(&fixture.seam, &fixture.core, true, true));
    opened.expect("the devices are empty");
    let volumes = ["small", "greedy"].map(|name| {
        fixture.add_disk(name, out_of_order_disk(64 * MIB));
        let quota = quotas[usize::from(name == "greedy")].clone();
        fixture.attach(name, |spec| spec.flash = quota).expect("the log has no data of the volume")
    });
    fixture.world.run_for(Nanos::from_secs(1)).expect("no task is stuck");
    (fixture, volumes)
}

/// Runs rounds of random reads within `bytes`, calling `after_round` after each.
fn read_rounds(fixture: &Fixture, volume: &Volume<SimSeam>, bytes: u64, rounds: u64, mut after_round: impl FnMut()) {
    for seed in 0..rounds {
        let load = Load { pattern: Pattern::random(bytes, 4096, 100), depth: 4, time: Nanos::from_millis(150), seed };
        fixture.world.block_on(run_load(&fixture.seam, &Target::Volume(volume.clone()), &load));
        fixture.world.run_for(Nanos::from_millis(500)).expect("no task is stuck");
        after_round();
    }
}

fn quota_with_min(pages: u64) -> FlashQuota {
    FlashQuota { min: PageAmount::Pages(pages), ..FlashQuota::default() }
}

#[test]
fn case_24_minimum_quota_holds_beside_a_greedy_neighbour() {
    // Without a minimum the neighbour takes the pages, so the test can fail.
    for (reserved, quota) in [(40, quota_with_min(40)), (0, FlashQuota::default())] {
        let (fixture, [small, greedy]) = two_volumes(1, [quota, FlashQuota::default()]);
        read_rounds(&fixture, &small, 3 * MIB, 20, || ());
        let before = small.stats().flash.page_count;
        assert!(before >= 40, "{before} pages of its hot set were promoted");
        read_rounds(&fixture, &greedy, 16 * MIB, 30, || {
            let pages_on_flash = small.stats().flash.page_count;
            assert!(pages_on_flash >= reserved, "{pages_on_flash} of {reserved} pages are left");
        });
        let pages_on_flash = small.stats().flash.page_count;
        println!(
            "reserved {reserved}: {before} pages before, {pages_on_flash} after, greedy {}",
            greedy.stats().flash.page_count
        );
        assert!(
            reserved > 0 || pages_on_flash < 40,
            "the neighbour evicted too few pages: {pages_on_flash} pages are left"
        );
    }
}

#[test]
fn case_24_pinned_pages_are_loaded_kept_and_updated() {
    // Without a pin none of the pages would be there, so the test can fail.
    for pinned in [vec![PageNo(8)..PageNo(20), PageNo(40)..PageNo(48)], Vec::new()] {
        let quota = FlashQuota { pinned: pinned.clone(), ..FlashQuota::default() };
        let (fixture, [small, greedy]) = two_volumes(4, [quota.clone(), FlashQuota::default()]);
        fixture.world.run_for(Nanos::from_secs(10)).expect("no task is stuck");
        let flash = small.stats().flash;
        let count = pinned.iter().map(PageNo::count).sum::<u64>();
        assert_eq!((flash.page_count, flash.complete_pinned_pages, flash.pin_wait_reason), (count, count, None));
        read_rounds(&fixture, &greedy, 16 * MIB, 25, || ());
        assert_eq!(small.stats().flash.page_count, count);
        if pinned.is_empty() {
            continue;
        }
        fixture.world.block_on(async {
            write(&small, 8 * 128, 128, 77).await.expect("memory has space");
            small.destage_all().await.expect("a disk without faults does not fail");
        });
        fixture.world.run_for(Nanos::from_secs(60)).expect("no task is stuck");
        assert_eq!(small.stats().flash.complete_pinned_pages, count, "{:?}", small.stats().flash);
        // The neighbour's reads evict the pages from memory.
        read_rounds(&fixture, &greedy, 16 * MIB, 3, || ());
        let before = small.stats().backing_reads;
        let content = fixture.world.block_on(read(&small, 8 * 128, 128)).expect("the page is on flash");
        assert_eq!((content, small.stats().backing_reads), (vec![77; 128], before));
        let counts = || ["small", "greedy", "flash1", "flash2"].map(|disk| fixture.world.disk(disk).unwrap().counts());
        fixture.world.run_for(Nanos::from_secs(60)).expect("no task is stuck");
        let before = counts();
        fixture.world.run_for(Nanos::from_secs(3_600)).expect("no task is stuck");
        assert_eq!(counts(), before, "case 21: an hour without clients");
        small.set_flash_quota(FlashQuota::default()).expect("a smaller quota is always accepted");
        read_rounds(&fixture, &greedy, 16 * MIB, 25, || ());
        assert!(small.stats().flash.page_count < count, "unpinned pages are evicted like others");
    }
}

#[test]
fn pinning_more_than_fits_is_refused() {
    let (fixture, [small, greedy]) = two_volumes(5, [quota_with_min(60), FlashQuota::default()]);
    let slots = fixture.core.pages().expect("the engine has a flash store").slots_max();
    let pin = |pages: u64| FlashQuota {
        pinned: std::iter::once(PageNo(0)..PageNo(pages)).collect(),
        ..FlashQuota::default()
    };
    let error = greedy.set_flash_quota(pin(slots - 50)).expect_err("60 pages are reserved for the other volume");
    assert!(error.to_string().contains("can still be reserved"), "{error}");
    let few = FlashQuota { max: Some(PageAmount::Pages(10)), ..pin(11) };
    assert!(matches!(greedy.set_flash_quota(few), Err(QuotaError::PinnedAboveMax { .. })));
    drop(small);
}

#[test]
fn maximum_quota_holds_and_admits_a_new_hot_set() {
    let quota = FlashQuota { max: Some(PageAmount::Pages(50)), ..FlashQuota::default() };
    let (fixture, [small, _]) = two_volumes(2, [quota, FlashQuota::default()]);
    let check_max = || assert!(small.stats().flash.page_count <= 50, "{} pages", small.stats().flash.page_count);
    read_rounds(&fixture, &small, 6 * MIB, 20, check_max);
    assert!(small.stats().flash.page_count >= 45, "{:?}", small.stats().flash);
    let promotions = small.stats().flash.promotions;
    read_rounds(&fixture, &small, 2 * MIB, 20, check_max);
    let more = small.stats().flash.promotions - promotions;
    assert!(more >= 10, "{more} pages replaced others");
}

#[test]
fn overcommitted_minimum_is_refused_and_live_changes_hold() {
    let (fixture, [small, greedy]) = two_volumes(3, [quota_with_min(60), FlashQuota::default()]);
    let slots = fixture.core.pages().expect("the engine has a flash store").slots_max();
    let error = greedy.set_flash_quota(quota_with_min(slots - 50)).expect_err("60 pages are reserved");
    assert!(matches!(error, QuotaError::NoRoom { .. }), "{error}");
    assert_eq!(greedy.flash_quota(), FlashQuota::default());
    let backwards = FlashQuota { max: Some(PageAmount::Pages(3)), ..quota_with_min(4) };
    assert!(matches!(greedy.set_flash_quota(backwards), Err(QuotaError::MinAboveMax { .. })));
    small.set_flash_quota(FlashQuota::default()).expect("a smaller quota is always accepted");
    greedy.set_flash_quota(quota_with_min(slots - 50)).expect("nothing is reserved for others");
    read_rounds(&fixture, &greedy, 16 * MIB, 30, || ());
    greedy
        .set_flash_quota(FlashQuota { max: Some(PageAmount::PerMille(100)), ..FlashQuota::default() })
        .expect("a smaller quota is always accepted");
    read_rounds(&fixture, &small, 9 * MIB, 30, || ());
    let pages_on_flash = greedy.stats().flash.page_count;
    assert!(pages_on_flash < slots / 2, "pages above its maximum are evicted first: {pages_on_flash} of {slots}");
}
