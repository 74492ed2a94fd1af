//! Space that a cache may count on: it is allocated durably, and no zero-range in progress may free it.

use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;

use pool::{OpenOptions, TierPolicy, VolumeSpec};
use seam::{Disk, Nanos, Seam};

use crate::world::{ALL, DATA_AT, SLICE, SMALL, SimPool, disks, with_pool};

#[test]
fn space_under_a_zero_range_in_progress_is_reserved_after_its_end() {
    let world = with_pool(1, SMALL);
    let seam = world.seam();
    world.block_on(async {
        let pool =
            SimPool::open(&seam, &disks(&seam, &ALL[..3]).await, OpenOptions::default()).await.expect("it opens");
        let volume = pool.create_volume(VolumeSpec::thin("a", 4 * SLICE)).await.expect("the name is free");
        let volume = pool.volume(volume).expect("the volume exists");
        assert!(!volume.has_space_for(0, SLICE), "nothing is allocated");
        volume.reserve(0, SLICE).await.expect("room");
        assert!(volume.has_space_for(0, SLICE) && !volume.has_space_for(0, SLICE + 4096));
        // A zero-range that keeps its space endangers none.
        volume.zero(0, SLICE, false).await.expect("sound disks");
        assert!(volume.has_space_for(0, SLICE));
        let mut zero = pin!(volume.zero(0, SLICE, true));
        let is_pending = poll_fn(|context| Poll::Ready(zero.as_mut().poll(context).is_pending())).await;
        assert!(is_pending && !volume.has_space_for(8192, 4096), "the slice is about to be freed");
        let is_reserved = Rc::new(Cell::new(false));
        let (flag, reserving) = (Rc::clone(&is_reserved), volume.clone());
        seam.spawn(async move {
            reserving.reserve(8192, 4096).await.expect("room");
            assert!(reserving.has_space_for(8192, 4096), "the slice was allocated again");
            flag.set(true);
        });
        zero.await.expect("sound disks");
        while !is_reserved.get() {
            seam.sleep(Nanos::from_micros(10)).await;
        }
        assert_eq!(pool.check_open().findings, []);
    });
}

#[test]
fn reserved_range_keeps_its_space_on_the_storage_below() {
    let world = with_pool(1, SMALL);
    let seam = world.seam();
    world.block_on(async {
        let opened = disks(&seam, &ALL[..3]).await;
        let pool = SimPool::open(&seam, &opened, OpenOptions::default()).await.expect("the pool opens");
        let spec = VolumeSpec { policy: TierPolicy::Lowest, ..VolumeSpec::thin("a", 4 * SLICE) };
        let id = pool.create_volume(spec).await.expect("sound disks");
        let volume = pool.volume(id).expect("the volume exists");
        volume.reserve(0, 4 * SLICE).await.expect("room");
        let has_hole = async || {
            let runs = opened[2].allocation(DATA_AT, 4 * SLICE).await.expect("sound disks");
            runs.iter().any(|run| run.hole)
        };
        assert!(!has_hole().await);
        volume.zero(0, SLICE / 2, false).await.expect("sound disks");
        assert!(!has_hole().await);
        volume.zero(0, SLICE / 2, true).await.expect("sound disks");
        assert!(has_hole().await, "the client has released the range");
    });
}
