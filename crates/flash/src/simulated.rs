//! The store in the simulated world, compiled once. The store is generic over the seam, so that every crate and test
//! binary would compile it again; at a low level of optimisation the compiler takes instances from the crates below.

use std::pin::Pin;

use seam::sim::SimSeam;
use seam::{DiskOpen, Seam};

use crate::{BlockNo, CompletionNo, FormatOptions, OpenOptions, PageNo, Store, StoreError, VolumeId};

/// Never run: the calls make the compiler generate the instances.
pub fn instances(seam: SimSeam) -> Pin<Box<dyn Future<Output = Result<(), StoreError>>>> {
    Box::pin(use_store(seam))
}

async fn use_store(seam: SimSeam) -> Result<(), StoreError> {
    let open = DiskOpen { path: "flash".into(), create_bytes: None, read_only: false, lock_wait_ms: 0 };
    let disks = [seam.open_disk(&open).await.expect("the disk exists")];
    Store::format(&seam, &disks, FormatOptions::default()).await?;
    let (store, records) = Store::<SimSeam>::open(&seam, &disks, OpenOptions::default()).await?;
    let records = records.into_iter().map(|record| record.owner);
    for owner in records {
        store.append_tombstones(Vec::new()).await?;
        let buffer = seam.alloc().expect("the pool has a buffer");
        let positions = store.append(Vec::new()).await?;
        store.read(owner, positions[0], buffer).await?;
        store.read_all(Vec::new()).await;
        store.retire(&positions);
    }
    let [disk] = disks;
    let member = store.add(disk.clone(), false).await?;
    store.replace(member, disk, false).await?;
    store.remove(member, false).await?;
    store.set_scrub(None);
    let pages = store.pages();
    pages.load().await;
    pages.remove_volume(VolumeId(0)).await?;
    pages.abandon();
    let volume = pages.volume(VolumeId(0));
    volume.read(PageNo(0), 0..1, Vec::new()).await;
    volume.read_suspect(PageNo(0), 0..1, Vec::new()).await;
    let _ = volume.put(PageNo(0), Vec::new()).await;
    let intent = volume.begin_write(BlockNo(0)..BlockNo(1)).await;
    volume.end_write(intent, CompletionNo(0));
    volume.record_flush(CompletionNo(0));
    volume.resolve_suspect(PageNo(0), 0);
    store.close().await?;
    Ok(())
}
