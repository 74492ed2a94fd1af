//! The data path in the simulated world, compiled once. The engine is generic over the seam, so that every crate and
//! test binary would compile it again; at a low level of optimisation the compiler takes instances from the crates
//! below.

use std::error::Error;
use std::pin::Pin;

use flash::Store;
use seam::persist::ShmImage;
use seam::sim::SimSeam;
use seam::{DiskOpen, Seam};

use crate::{
    Backing, CacheMode, Core, CoreSpec, DatastoreSpec, FlashQuota, MemoryQuota, OwnedBlocks, Qos, Volume, VolumeId,
    VolumeSpec, WriteFlags, WritePolicy, ZeroFlags,
};

/// Never run: the calls make the compiler generate the instances.
pub fn instances(seam: SimSeam, store: Store<SimSeam>) -> Pin<Box<dyn Future<Output = Result<(), Box<dyn Error>>>>> {
    Box::pin(use_core(seam, store))
}

async fn use_core(seam: SimSeam, store: Store<SimSeam>) -> Result<(), Box<dyn Error>> {
    let open = DiskOpen { path: "backing".into(), create_bytes: None, read_only: false, lock_wait_ms: 0 };
    let disk = seam.open_disk(&open).await?;
    let core = Core::new(seam, CoreSpec::default());
    core.open_log(store, Vec::new());
    core.set_datastore(&DatastoreSpec::new("disks"));
    let spec = |number| VolumeSpec::new("volume", VolumeId(number));
    core.attach(spec(1), Backing::plain(disk.clone()))?;
    core.attach_recovered(spec(2), Backing::plain(disk.clone())).await?;
    let source = |_| OwnedBlocks::new([]);
    let (volume, _) = core.attach_with_memory(spec(3), Backing::plain(disk), &ShmImage::default(), source).await?;
    use_volume(&volume).await?;
    core.detach("volume").await?;
    core.remove_datastore("disks");
    drop((core.stats(), core.datastores(), volume.stats(), volume.curves()));
    Ok(())
}

async fn use_volume(volume: &Volume<SimSeam>) -> Result<(), Box<dyn Error>> {
    let (write_flags, zero_flags) = (WriteFlags::default(), ZeroFlags::default());
    let mut pieces = Vec::new();
    volume.read_now(0, 0, &mut pieces);
    volume.read(0, 0, &mut pieces).await?;
    volume.read_once(0, 0, &mut pieces).await?;
    volume.read_bytes_now(0, 0, &mut pieces);
    volume.read_bytes(0, 0, &mut pieces).await?;
    volume.write_now(0, 0, &mut OwnedBlocks::new([]));
    volume.write(0, 0, write_flags, &mut OwnedBlocks::new([])).await?;
    volume.write_bytes(0, &[], write_flags).await?;
    volume.zero(0, 0, zero_flags).await?;
    volume.zero_bytes(0, 0, zero_flags).await?;
    volume.discard(0, 0, write_flags).await?;
    volume.discard_bytes(0, 0, write_flags).await?;
    volume.prefetch(0, 0).await?;
    volume.prefetch_bytes(0, 0).await?;
    volume.allocation(0, 0).await?;
    volume.allocation_bytes(0, 0).await?;
    volume.flush().await?;
    volume.set_policy(WritePolicy::default()).await?;
    volume.set_mode(CacheMode::default()).await?;
    volume.set_qos(Qos::default())?;
    volume.set_memory_quota(MemoryQuota::default());
    volume.set_flash_quota(FlashQuota::default())?;
    volume.drop_cached_data(false).await?;
    volume.invalidate();
    volume.destage_all().await?;
    volume.destage_without_log().await?;
    volume.resize(None, false).await?;
    volume.park().await?;
    volume.drain().await?;
    Ok(())
}
