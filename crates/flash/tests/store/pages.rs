//! Clean pages: a block can be read if it was put and not invalidated since, also after a restart.

use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::ops::Range;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;

use flash::{
    BlockNo, CompletionNo, Epoch, FormatOptions, OpenOptions, PageNo, PageReadError, Pages, PutError, Sabotage, Store,
    VolumeId,
};
use seam::sim::{CrashMode, Fault, Ops, Rule, SimBlock, SimDiskSpec, SimSeam, StoredContent, When, World, WorldSpec};
use seam::{Block, BlockMut, Nanos, Seam};

use crate::world::{NAMES, PAGED, StoreShape, disks, formatted, open, read_across, world_after_crash};

/// Time after which a change of the map is durable: the delay of its commit, and a second in reserve.
const MAP_COMMIT: Nanos = Nanos::from_secs(2);
/// Time after which a settled region is durably clean: the write-intent log's idle delay of five seconds, which a late
/// write starts anew, and the commit of the map.
const REGION_CLEARING: Nanos = Nanos::from_secs(12);

/// Block `index` of a page.
fn block_of(page: u64, index: u64) -> Range<BlockNo> {
    PageNo(page).first_block().plus(index).single()
}

/// The mask of these blocks of a page.
fn mask_of(blocks: &[u32]) -> u16 {
    blocks.iter().fold(0, |mask, block| mask | 1 << block)
}

/// A block whose sectors all have this tag.
pub fn block_with_tag(seam: &SimSeam, tag: u64) -> SimBlock {
    let mut block = seam.alloc().expect("the pool has a free buffer");
    (0..8).for_each(|sector| block.set_tag(sector, tag));
    block.freeze()
}

/// The blocks of a page; block *n* has tag `first_tag` + *n*.
fn page_with_tags(seam: &SimSeam, first_tag: u64) -> Vec<(u32, SimBlock)> {
    (0..16).map(|number| (number, block_with_tag(seam, first_tag + u64::from(number)))).collect()
}

/// The tags of a page's valid blocks.
pub async fn read_tags(seam: &SimSeam, pages: &Pages<SimSeam>, volume: u64, page: u64) -> Vec<Option<u64>> {
    let buffers = (0..16).map(|_| seam.alloc().expect("the pool has a free buffer")).collect();
    let read = pages.volume(VolumeId(volume)).read(PageNo(page), 0..16, buffers).await;
    read.into_iter().map(|block| block.ok().map(|block| block.tags()[0])).collect()
}

/// The pages of a store, with their map loaded.
pub async fn load_pages(store: &Store<SimSeam>) -> Pages<SimSeam> {
    let pages = store.pages();
    assert_eq!(pages.load().await.drop_reason, None);
    pages
}

/// Puts a page as soon as there is room. Block *n* has tag `first_tag` + *n*.
pub async fn put(seam: &SimSeam, pages: &Pages<SimSeam>, volume: u64, number: u64, first_tag: u64) {
    for _ in 0..1_000 {
        match pages.volume(VolumeId(volume)).put(PageNo(number), page_with_tags(seam, first_tag)).await {
            Ok(mask) => return assert_eq!(mask, u16::MAX),
            Err(PutError::DeviceFailed(error)) => panic!("{error}"),
            Err(_) => seam.sleep(Nanos::from_millis(1)).await,
        }
    }
    panic!("no room for page {number}: {:?}", pages.stats());
}

#[test]
fn put_page_is_readable_until_it_is_invalidated() {
    let world = formatted(1, PAGED);
    let seam = world.seam();
    world.block_on(async {
        let (store, _) = open(&world, &seam, OpenOptions::default()).await.unwrap();
        let volume = store.pages().volume(VolumeId(7));
        assert_eq!(
            volume.put(PageNo(3), page_with_tags(&seam, 1)).await,
            Err(PutError::NoSlot),
            "a put was accepted before the map was loaded"
        );
        let pages = load_pages(&store).await;
        put(&seam, &pages, 7, 3, 100).await;
        let intent = volume.begin_write(block_of(3, 1)).await;
        volume.end_write(intent, CompletionNo(1));
        assert_eq!(
            (
                volume.valid_blocks(PageNo(3)),
                volume.valid_blocks(PageNo(4)),
                pages.volume(VolumeId(8)).valid_blocks(PageNo(3))
            ),
            (!mask_of(&[1]), 0, 0)
        );
        let expected: Vec<_> = (0..16).map(|number| (number != 1).then_some(100 + number)).collect();
        assert_eq!(read_tags(&seam, &pages, 7, 3).await, expected);
        while volume.put(PageNo(3), vec![(1, block_with_tag(&seam, 55))]).await != Ok(mask_of(&[1])) {
            seam.sleep(Nanos::from_millis(1)).await;
        }
        let expected: Vec<_> = (0..16).map(|number| Some(if number == 1 { 55 } else { 100 + number })).collect();
        assert_eq!(read_tags(&seam, &pages, 7, 3).await, expected);
        pages.remove_volume(VolumeId(7)).await.unwrap();
        assert_eq!((volume.valid_blocks(PageNo(3)), volume.recent_writes().len()), (0, 0));
    });
}

#[test]
fn invalidated_block_is_rewritten_in_place_up_to_seven_times() {
    let world = formatted(1, PAGED);
    let seam = world.seam();
    let world = {
        world.block_on(async {
            let (store, _) = open(&world, &seam, OpenOptions::default()).await.unwrap();
            let pages = load_pages(&store).await;
            let volume = pages.volume(VolumeId(7));
            put(&seam, &pages, 7, 3, 100).await;
            let written = || pages.stats().members.iter().map(|member| member.promotion_bytes).sum::<u64>();
            let mut moves = 0;
            for round in 1..=20 {
                let before = written();
                volume.invalidate(block_of(3, 1));
                while volume.put(PageNo(3), vec![(1, block_with_tag(&seam, 1_000 + round))]).await != Ok(mask_of(&[1]))
                {
                    seam.sleep(Nanos::from_millis(1)).await;
                }
                // In place: one block and the sector with its checksums. After seven writes of the block: the page.
                moves += u64::from(written() - before > 4096 + 512);
                let expected: Vec<_> =
                    (0..16).map(|number| Some(if number == 1 { 1_000 + round } else { 100 + number })).collect();
                assert_eq!(read_tags(&seam, &pages, 7, 3).await, expected, "round {round}");
            }
            assert_eq!(moves, 2, "rounds 7 and 14 move the page: six rewrites follow the first write");
            seam.sleep(REGION_CLEARING).await;
        });
        world_after_crash(2, world.crash(CrashMode::LoseAll))
    };
    let seam = world.seam();
    world.block_on(async {
        let (store, _) = open(&world, &seam, OpenOptions::default()).await.unwrap();
        let pages = load_pages(&store).await;
        let expected: Vec<_> = (0..16).map(|number| Some(if number == 1 { 1_020 } else { 100 + number })).collect();
        assert_eq!(read_tags(&seam, &pages, 7, 3).await, expected, "the map lost the number of writes of a block");
        // Nothing is added in place to a page of an earlier opening.
        pages.volume(VolumeId(7)).invalidate(block_of(3, 1));
        let before: u64 = pages.stats().members.iter().map(|member| member.promotion_bytes).sum();
        while pages.volume(VolumeId(7)).put(PageNo(3), vec![(1, block_with_tag(&seam, 7))]).await != Ok(mask_of(&[1])) {
            seam.sleep(Nanos::from_millis(1)).await;
        }
        let after: u64 = pages.stats().members.iter().map(|member| member.promotion_bytes).sum();
        assert!(after - before > 16 * 4096, "{}", after - before);
    });
}

/// The read consists of two runs. After the first run, one of its blocks is invalidated and put again, in place. With
/// the sabotage, the read returns the old block.
#[test]
fn read_returns_no_block_that_was_rewritten_meanwhile() {
    for sabotage in [Sabotage::None, Sabotage::SkipReadRecheck] {
        let world = formatted(1, PAGED);
        let seam = world.seam();
        world.block_on(async {
            let options = OpenOptions { sabotage, ..OpenOptions::default() };
            let (store, _) = open(&world, &seam, options).await.unwrap();
            let pages = load_pages(&store).await;
            let volume = pages.volume(VolumeId(7));
            put(&seam, &pages, 7, 3, 100).await;
            volume.invalidate(block_of(3, 2));
            let stall = Rule::new(Fault::Stall(Nanos::from_millis(1_500)), Ops::READ, When::Nth(1));
            NAMES.iter().for_each(|name| world.disk(name).unwrap().add_fault(stall.clone()));
            let buffers = (0..3).map(|_| seam.alloc().unwrap()).collect();
            let reading = volume.read(PageNo(3), 1..4, buffers);
            let writing = async {
                seam.sleep(Nanos::from_millis(300)).await;
                volume.invalidate(block_of(3, 1));
                assert_eq!(volume.put(PageNo(3), vec![(1, block_with_tag(&seam, 55))]).await, Ok(mask_of(&[1])));
            };
            let read = read_across(reading, writing).await;
            let tags_read: Vec<_> = read.into_iter().map(|block| block.ok().map(|block| block.tags()[0])).collect();
            let old = (sabotage == Sabotage::SkipReadRecheck).then_some(101);
            assert_eq!(tags_read, [old, None, Some(103)]);
        });
    }
}

/// A block is invalidated and put again, in place, while it is read. The copy on flash is intact, although the read
/// returned the new content with the old checksum's seed.
#[test]
fn block_that_was_rewritten_during_its_read_is_not_a_bad_copy() {
    let world = formatted(1, PAGED);
    let seam = world.seam();
    world.block_on(async {
        let (store, _) = open(&world, &seam, OpenOptions::default()).await.unwrap();
        let pages = load_pages(&store).await;
        let volume = pages.volume(VolumeId(7));
        put(&seam, &pages, 7, 3, 100).await;
        let stall = Rule::new(Fault::Stall(Nanos::from_millis(1_500)), Ops::READ, When::Nth(0));
        NAMES.iter().for_each(|name| world.disk(name).unwrap().add_fault(stall.clone()));
        let reading = volume.read(PageNo(3), 1..2, vec![seam.alloc().unwrap()]);
        let writing = async {
            seam.sleep(Nanos::from_millis(300)).await;
            volume.invalidate(block_of(3, 1));
            assert_eq!(volume.put(PageNo(3), vec![(1, block_with_tag(&seam, 55))]).await, Ok(mask_of(&[1])));
        };
        let read = read_across(reading, writing).await;
        assert!(matches!(read[..], [Err(PageReadError::Absent(_))]), "a read across a write was not a miss");
        NAMES.iter().for_each(|name| world.disk(name).unwrap().clear_faults());
        assert_eq!(read_tags(&seam, &pages, 7, 3).await[1], Some(55));
    });
}

/// After a write that the device has acknowledged and lost, the slot has the old content: that must be a miss.
#[test]
fn lost_write_in_place_is_a_miss() {
    let world = formatted(1, PAGED);
    let seam = world.seam();
    world.block_on(async {
        let (store, _) = open(&world, &seam, OpenOptions::default()).await.unwrap();
        let pages = load_pages(&store).await;
        let volume = pages.volume(VolumeId(7));
        put(&seam, &pages, 7, 3, 100).await;
        volume.invalidate(block_of(3, 1));
        seam.sleep(REGION_CLEARING).await;
        let lost = Rule::new(Fault::Lost, Ops::WRITE, When::Always);
        NAMES.iter().for_each(|name| world.disk(name).unwrap().add_fault(lost.clone()));
        assert_eq!(volume.put(PageNo(3), vec![(1, block_with_tag(&seam, 55))]).await, Ok(mask_of(&[1])));
        NAMES.iter().for_each(|name| world.disk(name).unwrap().clear_faults());
        let expected: Vec<_> = (0..16).map(|number| (number != 1).then_some(100 + number)).collect();
        assert_eq!(read_tags(&seam, &pages, 7, 3).await, expected);
    });
}

/// A page that loses all its blocks while others are added stays live without a block.
#[test]
fn page_without_blocks_during_an_addition_is_not_sampled() {
    let world = formatted(1, PAGED);
    let seam = world.seam();
    world.block_on(async {
        let (store, _) = open(&world, &seam, OpenOptions::default()).await.unwrap();
        let volume = load_pages(&store).await.volume(VolumeId(7));
        while volume.put(PageNo(3), vec![(0, block_with_tag(&seam, 100))]).await.is_err() {
            seam.sleep(Nanos::from_millis(1)).await;
        }
        assert_eq!(volume.sample(0, 8), [(PageNo(3), 1)]);
        let mut adding = pin!(volume.put(PageNo(3), vec![(8, block_with_tag(&seam, 108))]));
        let first_poll = poll_fn(|context| Poll::Ready(adding.as_mut().poll(context))).await;
        assert!(first_poll.is_pending());
        volume.invalidate(block_of(3, 0));
        assert_eq!(volume.sample(0, 8), []);
    });
}

#[test]
fn pages_survive_a_clean_stop_and_a_crash() {
    for clean in [true, false] {
        let world = formatted(1, PAGED);
        let seam = world.seam();
        world.block_on(async {
            let (store, _) = open(&world, &seam, OpenOptions::default()).await.unwrap();
            let pages = load_pages(&store).await;
            for number in 0..6 {
                put(&seam, &pages, 1 + number % 2, number, 1_000 * (number + 1)).await;
            }
            pages.volume(VolumeId(1)).record_destaged(BlockNo(77), &block_with_tag(&seam, 5));
            pages.volume(VolumeId(2)).invalidate(BlockNo(16)..BlockNo(18));
            if clean {
                store.close().await.unwrap();
            } else {
                seam.sleep(MAP_COMMIT).await;
            }
        });
        let world = world_after_crash(2, world.crash(CrashMode::LoseAll));
        let seam = world.seam();
        world.block_on(async {
            let (store, _) = open(&world, &seam, OpenOptions::default()).await.unwrap();
            let pages = store.pages();
            let map = pages.load().await;
            assert_eq!((map.pages, map.suspect_pages, map.drop_reason), (6, 0, None));
            for number in 0..6 {
                let expected: Vec<_> =
                    (0..16).map(|block| (number != 1 || block > 1).then_some(1_000 * (number + 1) + block)).collect();
                assert_eq!(read_tags(&seam, &pages, 1 + number % 2, number).await, expected, "page {number}");
            }
            assert_eq!(
                pages.volume(VolumeId(1)).recent_writes(),
                [(BlockNo(77), block_with_tag(&seam, 5).checksum(0))]
            );
        });
    }
}

/// A region that was dirty at a crash is clean again once its destaged blocks have been read from the backing, also
/// without another write or flush: a second crash leaves them proven, and they keep their age.
#[test]
fn region_with_blocks_read_again_becomes_clean_without_a_flush() {
    let world = formatted(1, PAGED);
    let seam = world.seam();
    world.block_on(async {
        let (store, _) = open(&world, &seam, OpenOptions::default()).await.unwrap();
        let volume = load_pages(&store).await.volume(VolumeId(1));
        for number in [77, 78, 90_000] {
            volume.record_destaged(BlockNo(number), &block_with_tag(&seam, number));
        }
        seam.sleep(MAP_COMMIT).await;
        let intent = volume.begin_write(BlockNo(79)..BlockNo(80)).await;
        volume.end_write(intent, CompletionNo(1));
        let intent = volume.begin_write(BlockNo(78)..BlockNo(79)).await;
        volume.end_write(intent, CompletionNo(2));
        seam.sleep(MAP_COMMIT).await;
    });
    let world = world_after_crash(2, world.crash(CrashMode::LoseAll));
    let seam = world.seam();
    world.block_on(async {
        let (store, _) = open(&world, &seam, OpenOptions::default()).await.unwrap();
        store.pages().load().await;
        let volume = store.pages().volume(VolumeId(1));
        assert_eq!(volume.unproven_blocks(), [BlockNo(77)]);
        volume.record_reread(BlockNo(77), &block_with_tag(&seam, 7));
        volume.schedule_clearing();
        seam.sleep(REGION_CLEARING).await;
    });
    let world = world_after_crash(3, world.crash(CrashMode::LoseAll));
    let seam = world.seam();
    world.block_on(async {
        let (store, _) = open(&world, &seam, OpenOptions::default()).await.unwrap();
        store.pages().load().await;
        let volume = store.pages().volume(VolumeId(1));
        assert_eq!(volume.unproven_blocks(), []);
        let listed = [(BlockNo(77), 7), (BlockNo(90_000), 90_000)];
        let expected = listed.map(|(at, content)| (at, block_with_tag(&seam, content).checksum(0)));
        assert_eq!(volume.recent_writes(), expected, "the block that was read again is not the older one");
    });
}

#[test]
fn write_waits_for_lost_devices_until_their_map_is_abandoned_for_good() {
    let world = formatted(1, PAGED);
    let seam = world.seam();
    world.block_on(async {
        let (store, _) = open(&world, &seam, OpenOptions::default()).await.unwrap();
        let pages = load_pages(&store).await;
        put(&seam, &pages, 7, 3, 100).await;
        seam.sleep(MAP_COMMIT).await;
        let failure = || Rule::new(Fault::Error, Ops::CHANGE | Ops::FLUSH, When::Always);
        NAMES.iter().take(2).for_each(|name| world.disk(name).unwrap().add_fault(failure()));
        let (volume, has_ended) = (pages.volume(VolumeId(7)), Rc::new(Cell::new(false)));
        let flag = Rc::clone(&has_ended);
        seam.spawn(async move {
            let intent = volume.begin_write(block_of(3, 1)).await;
            volume.end_write(intent, CompletionNo(1));
            flag.set(true);
        });
        seam.sleep(Nanos::from_secs(5)).await;
        assert!(
            !has_ended.get() && pages.unusable_reason().is_some(),
            "the write went out while the devices still list the page"
        );
        pages.abandon();
        seam.sleep(Nanos::from_millis(1)).await;
        assert!(has_ended.get(), "the write still waits after the map was abandoned");
    });
    // The devices return, with their old map.
    let world = world_after_crash(2, world.crash(CrashMode::LoseAll));
    let seam = world.seam();
    world.block_on(async {
        let (store, _) = open(&world, &seam, OpenOptions::default()).await.unwrap();
        let pages = store.pages();
        pages.ignore_persisted_map();
        let map = pages.load().await;
        assert!(
            map.drop_reason.is_some() && map.pages == 0 && pages.volume(VolumeId(7)).valid_blocks(PageNo(3)) == 0,
            "{map:?}"
        );
    });
    let world = world_after_crash(3, world.crash(CrashMode::LoseAll));
    let seam = world.seam();
    world.block_on(async {
        let (store, _) = open(&world, &seam, OpenOptions::default()).await.unwrap();
        let pages = load_pages(&store).await;
        assert_eq!(
            pages.volume(VolumeId(7)).valid_blocks(PageNo(3)),
            0,
            "the new map was not durable when it was loaded"
        );
    });
}

#[test]
fn region_with_a_write_in_flight_is_suspect_after_a_crash() {
    let world = formatted(1, PAGED);
    let seam = world.seam();
    world.block_on(async {
        let (store, _) = open(&world, &seam, OpenOptions::default()).await.unwrap();
        let pages = load_pages(&store).await;
        put(&seam, &pages, 1, 0, 100).await;
        put(&seam, &pages, 1, 64, 200).await;
        seam.sleep(MAP_COMMIT).await;
        let _intent = pages.volume(VolumeId(1)).begin_write(block_of(0, 3)).await;
        assert_eq!(pages.stats().dirty_regions, 1);
    });
    let world = world_after_crash(2, world.crash(CrashMode::LoseAll));
    let seam = world.seam();
    world.block_on(async {
        let (store, _) = open(&world, &seam, OpenOptions::default()).await.unwrap();
        let pages = store.pages();
        let map = pages.load().await;
        assert_eq!((map.pages, map.suspect_pages), (2, 1));
        let volume = pages.volume(VolumeId(1));
        assert_eq!((volume.valid_blocks(PageNo(0)), volume.valid_blocks(PageNo(64))), (0, u16::MAX));
        let suspect = volume.suspect_blocks(PageNo(0));
        assert_eq!(suspect | mask_of(&[3]), u16::MAX);
        volume.resolve_suspect(PageNo(0), suspect & !mask_of(&[0, 3]));
        assert_eq!((volume.valid_blocks(PageNo(0)), volume.suspect_blocks(PageNo(0))), (!mask_of(&[0, 3]), 0));
        // Without further writes the region becomes clean.
        seam.sleep(REGION_CLEARING).await;
        assert_eq!(pages.stats().dirty_regions, 0);
    });
}

/// Begins a write to a block of a page while `drop_pages` drops it, among others. Crashes when the write may reach the
/// backing, and checks that the page is not trusted. Until then the map on the devices lists it.
fn check_write_beside_dropped_pages<F: Future<Output = ()> + 'static>(
    drop_pages: impl FnOnce(SimSeam, Store<SimSeam>) -> F,
) {
    let world = formatted(1, PAGED);
    let seam = world.seam();
    let dropped_page = world.block_on(async {
        let (store, _) = open(&world, &seam, OpenOptions::default()).await.unwrap();
        let pages = load_pages(&store).await;
        for number in 0..20 {
            put(&seam, &pages, 1, number, 100).await;
        }
        seam.sleep(REGION_CLEARING).await;
        seam.spawn(drop_pages(seam.clone(), store.clone()));
        let volume = pages.volume(VolumeId(1));
        for _ in 0..1_000_000 {
            if let Some(page) = (0..20).map(PageNo).find(|page| volume.valid_blocks(*page) == 0) {
                let block = page.first_block();
                let _intent = volume.begin_write(block..block.next()).await;
                return page;
            }
            seam.sleep(Nanos::from_micros(1)).await;
        }
        panic!("no page was dropped: {:?}", pages.stats());
    });
    let world = world_after_crash(2, world.crash(CrashMode::LoseAll));
    let seam = world.seam();
    world.block_on(async {
        let (store, _) = open(&world, &seam, OpenOptions::default()).await.unwrap();
        let pages = store.pages();
        pages.load().await;
        let trusted = pages.volume(VolumeId(1)).valid_blocks(dropped_page);
        assert_eq!(trusted & mask_of(&[0]), 0, "a block is trusted whose write may have reached the backing");
    });
}

#[test]
fn write_beside_dropped_pages_waits_until_they_are_durably_gone() {
    check_write_beside_dropped_pages(|_, store| async move {
        store.pages().remove_volume(VolumeId(1)).await.expect("the pages are dropped");
    });
}

#[test]
fn write_beside_a_reclaimed_segment_waits_until_it_is_durably_gone() {
    check_write_beside_dropped_pages(|seam, store| async move {
        for number in 0..1_000 {
            let content = flash::Content::Data(block_with_tag(&seam, number));
            let address = flash::BlockAddress { volume_id: VolumeId(9), block: BlockNo(number) };
            if store.append(vec![flash::Record { address, epoch: Epoch(1), content }]).await.is_err() {
                return;
            }
        }
    });
}

#[test]
fn pages_are_evicted_for_pages_and_for_the_log() {
    let world = formatted(1, PAGED);
    let seam = world.seam();
    world.block_on(async {
        let (store, _) = open(&world, &seam, OpenOptions::default()).await.unwrap();
        let pages = load_pages(&store).await;
        for number in 0..100 {
            put(&seam, &pages, 1, number, 1_000 * (number + 1)).await;
        }
        let full = pages.stats();
        assert!(full.evictions > 40 && full.pages > 30, "{full:?}");
        // The log reclaims the segments that it needs.
        let mut positions = Vec::new();
        for number in 0..300 {
            let content = flash::Content::Data(block_with_tag(&seam, number));
            let address = flash::BlockAddress { volume_id: VolumeId(9), block: BlockNo(number) };
            positions.extend(
                store
                    .append(vec![flash::Record { address, epoch: Epoch(1), content }])
                    .await
                    .expect("pages are evicted for the log"),
            );
        }
        let shrunk = pages.stats();
        assert!(shrunk.slots < full.slots && shrunk.pages > 0, "{shrunk:?}");
        for number in 0..100 {
            let expected: Vec<_> = (0..16).map(|block| Some(1_000 * (number + 1) + block)).collect();
            let actual = read_tags(&seam, &pages, 1, number).await;
            assert!(actual == expected || actual == vec![None; 16], "page {number}: {actual:?}");
        }
        store.retire(&positions);
        for number in 0..400 {
            let content = flash::Content::Data(block_with_tag(&seam, number));
            let address = flash::BlockAddress { volume_id: VolumeId(9), block: BlockNo(number) };
            let position = store.append(vec![flash::Record { address, epoch: Epoch(1), content }]).await.unwrap();
            store.retire(&position);
        }
        for number in 0..100 {
            put(&seam, &pages, 2, number, 1_000 * (number + 1)).await;
        }
        assert!(pages.stats().slots > shrunk.slots, "the pages got no segments back: {:?}", pages.stats());
    });
}

/// The header of a page segment is still being written when the log reclaims the segment.
#[test]
fn late_write_to_a_reclaimed_segment_never_overwrites_the_log() {
    for filled in (0..520).step_by(16) {
        let world = formatted(1, StoreShape { devices: 1, ..PAGED });
        let seam = world.seam();
        let acknowledged = world.block_on(async {
            let (store, _) = open(&world, &seam, OpenOptions::default()).await.unwrap();
            let pages = load_pages(&store).await;
            let append = async |first: u64, count: u64| {
                let record = |block: u64| {
                    let address = flash::BlockAddress { volume_id: VolumeId(9), block: BlockNo(block) };
                    flash::Record {
                        address,
                        epoch: Epoch(1),
                        content: flash::Content::Data(block_with_tag(&seam, 1 + block)),
                    }
                };
                store.append((first..first + count).map(record).collect()).await.is_ok()
            };
            let mut acknowledged = 0;
            while acknowledged < filled && append(acknowledged, 16).await {
                acknowledged += 16;
            }
            let stall = Rule::new(Fault::Stall(Nanos::from_millis(5)), Ops::WRITE, When::Nth(0));
            world.disk(NAMES[0]).unwrap().add_fault(stall);
            drop(pages.volume(VolumeId(1)).put(PageNo(3), page_with_tags(&seam, 100)).await);
            seam.sleep(Nanos::from_micros(10)).await;
            while append(acknowledged, 16).await {
                acknowledged += 16;
            }
            seam.sleep(Nanos::from_secs(1)).await;
            acknowledged
        });
        assert!(acknowledged > 400, "the log got too few segments: {acknowledged}");
        let world = world_after_crash(2, world.crash(CrashMode::LoseAll));
        let seam = world.seam();
        world.block_on(async {
            let opened = open(&world, &seam, OpenOptions::default()).await;
            let (_, recovered) = opened.unwrap_or_else(|error| panic!("after {filled} blocks: {error}"));
            assert_eq!(recovered.len() as u64, acknowledged, "after {filled} blocks");
        });
    }
}

#[test]
fn two_devices_of_100_gb_hold_180_gb_of_clean_pages() {
    let world = World::new(WorldSpec { content: StoredContent::MetadataOnly, ..WorldSpec::new(1) });
    let seam = world.seam();
    NAMES.iter().for_each(|name| drop(world.add_disk(name, SimDiskSpec::new(100_000_000_000 / 4096 * 4096))));
    world.block_on(async {
        let disks = disks(&seam, &NAMES).await;
        Store::format(&seam, &disks, FormatOptions { force: true, ..FormatOptions::default() }).await.unwrap();
        let (store, _) = Store::open(&seam, &disks, OpenOptions::default()).await.unwrap();
        let stats = load_pages(&store).await.stats();
        let bytes = stats.slots_max * (64 << 10);
        println!("{:.1} GB of clean pages", bytes as f64 / 1e9);
        assert!(bytes >= 180_000_000_000, "{bytes} bytes");
    });
}
