//! A store records its last owner and the end of its log. It refuses to open if its owner has recorded a later end, and
//! it keeps the owner's manifest.

use flash::{
    BlockAddress, BlockNo, Content, Epoch, OpenOptions, Ownership, Record, Store, StoreError, VolumeId, identify,
    read_manifest,
};
use seam::Seam;
use seam::sim::{CrashMode, SimSeam, Survival};

use crate::world::*;

const FIRST: Ownership = Ownership { owner: [1; 16], epoch: 5, life: 50 };
const SECOND: Ownership = Ownership { owner: [1; 16], epoch: 6, life: 60 };

fn owned(ownership: Ownership) -> OpenOptions {
    OpenOptions { ownership: Some(ownership), ..OpenOptions::default() }
}

async fn append(seam: &SimSeam, store: &Store<SimSeam>, block: u64) {
    let address = BlockAddress { volume_id: VolumeId(7), block: BlockNo(block) };
    let data = seam::BlockMut::freeze(seam.alloc().expect("the pool has a free buffer"));
    store
        .append(vec![Record { address, epoch: Epoch(1), content: Content::Data(data) }])
        .await
        .expect("the append succeeds");
}

#[test]
fn every_member_records_the_owner_of_the_last_opening() {
    let world = formatted(1, SMALL);
    let seam = world.seam();
    world.block_on(async {
        let disks = disks(&seam, &NAMES).await;
        let owner_of = async |options| identify(&seam, &disks, options).await.expect("a store exists").ownership;
        assert!(owner_of(OpenOptions::default()).await.is_none());
        drop(Store::open(&seam, &disks, owned(FIRST)).await.expect("the store opens"));
        assert_eq!(owner_of(OpenOptions::default()).await, FIRST);
        // An opening without an owner keeps the last one.
        drop(Store::open(&seam, &disks, OpenOptions::default()).await.expect("the store opens"));
        assert_eq!(owner_of(OpenOptions::default()).await, FIRST);
        drop(Store::open(&seam, &disks, owned(SECOND)).await.expect("the store opens"));
    });
    let world = world_after_crash(2, world.crash(CrashMode::LoseAll));
    let seam = world.seam();
    world.block_on(async {
        for name in NAMES {
            let disks = disks(&seam, &[name]).await;
            let options = OpenOptions { accept_missing: true, ..OpenOptions::default() };
            assert_eq!(identify(&seam, &disks, options).await.expect("a store exists").ownership, SECOND, "{name}");
        }
    });
}

#[test]
fn copy_taken_before_the_last_close_is_refused() {
    let world = formatted(1, SMALL);
    let seam = world.seam();
    let (copy, sequence) = world.block_on(async {
        let (store, _) = open(&world, &seam, owned(FIRST)).await.expect("the store opens");
        append(&seam, &store, 1).await;
        let copy = world.snapshot();
        append(&seam, &store, 2).await;
        (copy, store.close().await.expect("nothing fails"))
    });
    let options = OpenOptions { sequence_min: sequence, ..owned(SECOND) };
    let old = world_after_crash(2, copy.images(|_| Survival::Whole));
    let seam = old.seam();
    old.block_on(async {
        let refused = open(&old, &seam, options).await.err();
        assert!(matches!(refused, Some(StoreError::Behind { recorded, .. }) if recorded == sequence), "{refused:?}");
        let disks = disks(&seam, &NAMES).await;
        let identity = identify(&seam, &disks, OpenOptions::default()).await.expect("a store exists");
        assert_eq!(identity.ownership, FIRST, "the refusal has written nothing");
    });
    let world = world_after_crash(3, world.crash(CrashMode::LoseAll));
    let seam = world.seam();
    assert!(world.block_on(open(&world, &seam, options)).is_ok());
}

#[test]
fn manifest_survives_a_crash_at_any_step_of_the_next_write() {
    let world = formatted(1, SMALL);
    let seam = world.seam();
    world.block_on(async {
        let (store, _) = open(&world, &seam, owned(FIRST)).await.expect("the store opens");
        store.save_manifest(b"one".to_vec()).await.expect("nothing fails");
    });
    let start = world.snapshot();
    let mut outcomes = std::collections::BTreeSet::new();
    for step in 1.. {
        let world = world_after_crash(10 + step, start.images(|_| Survival::Whole));
        let seam = world.seam();
        let (store, _) = world.block_on(open(&world, &seam, owned(SECOND))).expect("the store opens");
        world.crash_at_io(world.io_count() + step);
        let payload = vec![step as u8; 20_000];
        let ended = world.run_until(async { store.save_manifest(payload.clone()).await.expect("nothing fails") });
        drop(store);
        let world = world_after_crash(1_000 + step, world.crash(CrashMode::Torn));
        let seam = world.seam();
        let manifest = world.block_on(async {
            let disks = disks(&seam, &NAMES).await;
            let store = identify(&seam, &disks, OpenOptions::default()).await.expect("a store exists").store;
            read_manifest(&seam, &disks, store).await.expect("the manifest has this format")
        });
        let manifest = manifest.expect("one of the two manifests is intact").payload;
        assert!(manifest == b"one" || manifest == payload, "after {step} steps");
        outcomes.insert(manifest == payload);
        if ended.is_ok() {
            assert_eq!(manifest, payload, "it was saved");
            break;
        }
    }
    assert_eq!(outcomes.len(), 2, "both outcomes occur");
}
