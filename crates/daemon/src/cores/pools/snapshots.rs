//! Snapshots of the volumes of open pools.

use std::rc::Rc;

use messages::report::{SnapshotReport, SnapshotsReport};
use messages::{ErrorKind, Failure};
use pool::VolumeId;
use seam::Nanos;

use super::super::data_core::CoreLocal;
use super::super::{CORE_TIMEOUT, Cores, core_ended};
use super::OpenPool;
use super::commands::pool_failure;

/// Longest time that requests of a volume wait until its backing is complete.
const HOLD_MAX: Nanos = Nanos::from_secs(10);

impl Cores {
    /// The name of the open pool that has a volume of this name. A core that does not answer is left out.
    pub async fn pool_with_volume(&self, volume: &str) -> Option<String> {
        for core in self.iter() {
            let wanted = volume.to_owned();
            let find = async move |local: Rc<CoreLocal>| {
                let pools = local.pools.borrow();
                let found = pools.values().find(|open| open.pool.volume_named(&wanted).is_some());
                found.map(|open| open.name.clone())
            };
            if let Ok(Ok(Some(name))) = tokio::time::timeout(CORE_TIMEOUT, core.call(find)).await {
                return Some(name);
            }
        }
        None
    }

    /// True if an open pool has a volume of this name.
    pub async fn has_pool_volume(&self, pool: &str, volume: &str) -> Result<bool, Failure> {
        let volume = volume.to_owned();
        self.on_pool(pool, async move |open: Rc<OpenPool>| open.pool.volume_named(&volume).is_some()).await
    }

    /// The snapshots of a volume.
    pub async fn snapshots(&self, pool: &str, volume: &str) -> Result<SnapshotsReport, Failure> {
        let volume = volume.to_owned();
        self.on_pool(pool, async move |open: Rc<OpenPool>| open.snapshots(&volume)).await?
    }

    /// Makes a snapshot of a served volume with everything that was acknowledged before: the cache is destaged while
    /// the volume serves, then requests wait for the rest and for the snapshot.
    pub async fn create_snapshot(
        &self,
        core: usize,
        pool: &str,
        volume: &str,
        (snapshot, created_secs): (&str, u64),
    ) -> Result<SnapshotsReport, Failure> {
        let (pool, name, snapshot) = (pool.to_owned(), volume.to_owned(), snapshot.to_owned());
        let create = async move |local: Rc<CoreLocal>| {
            let open = local.pools.borrow().get(&pool).cloned();
            let (Some(open), Some(volume)) = (open, local.engine.find(&name)) else {
                return Err(Failure::no_volume(&name));
            };
            // A refusal that needs no destage.
            let (number, _) = open.volume_named(&name)?;
            if open.pool.snapshot_named(number, &snapshot).is_some() {
                let text = format!("volume {name} has a snapshot \"{snapshot}\" already");
                return Err(Failure::new(ErrorKind::Conflict, text));
            }
            let create = async || open.pool.create_snapshot(number, &snapshot, created_secs).await;
            let made = volume.run_while_complete(HOLD_MAX, create).await.map_err(|error| {
                let text = format!("volume {name} could not be destaged ({error}); no snapshot was made");
                Failure::new(ErrorKind::Failed, text)
            })?;
            let Some(made) = made else {
                let text = format!(
                    "volume {name} was not destaged in {} s while its requests waited; no snapshot was made: try \
                     again under less load",
                    HOLD_MAX.as_millis() / 1_000
                );
                return Err(Failure::new(ErrorKind::Unavailable, text));
            };
            made.map_err(pool_failure)?;
            open.snapshots(&name)
        };
        self[core].call(create).await.map_err(core_ended)?
    }

    /// Returns a volume that is not served to a snapshot.
    pub async fn roll_back_volume(&self, pool: &str, volume: &str, snapshot: &str) -> Result<SnapshotsReport, Failure> {
        let (volume, snapshot) = (volume.to_owned(), snapshot.to_owned());
        let roll_back = async move |open: Rc<OpenPool>| {
            let number = open.snapshot_named(&volume, &snapshot)?;
            open.pool.roll_back(number).await.map_err(pool_failure)?;
            open.snapshots(&volume)
        };
        self.on_pool(pool, roll_back).await?
    }

    /// Refuses a snapshot that does not exist.
    pub async fn check_snapshot(&self, pool: &str, volume: &str, snapshot: &str) -> Result<(), Failure> {
        let (volume, snapshot) = (volume.to_owned(), snapshot.to_owned());
        self.on_pool(pool, async move |open: Rc<OpenPool>| open.snapshot_named(&volume, &snapshot).map(drop)).await?
    }

    /// Deletes a snapshot.
    pub async fn delete_snapshot(&self, pool: &str, volume: &str, snapshot: &str) -> Result<SnapshotsReport, Failure> {
        let (volume, snapshot) = (volume.to_owned(), snapshot.to_owned());
        let delete = async move |open: Rc<OpenPool>| {
            let number = open.snapshot_named(&volume, &snapshot)?;
            open.pool.delete_snapshot(number).await.map_err(pool_failure)?;
            open.snapshots(&volume)
        };
        self.on_pool(pool, delete).await?
    }

    /// Creates a volume with the content of a snapshot.
    pub async fn clone_snapshot(
        &self,
        pool: &str,
        volume: &str,
        snapshot: &str,
        new_volume: &str,
    ) -> Result<SnapshotsReport, Failure> {
        let (volume, snapshot, new_volume) = (volume.to_owned(), snapshot.to_owned(), new_volume.to_owned());
        let clone = async move |open: Rc<OpenPool>| {
            let number = open.snapshot_named(&volume, &snapshot)?;
            open.pool.clone_snapshot(number, &new_volume).await.map_err(pool_failure)?;
            open.snapshots(&volume)
        };
        self.on_pool(pool, clone).await?
    }
}

impl OpenPool {
    fn snapshot_named(&self, volume: &str, snapshot: &str) -> Result<VolumeId, Failure> {
        let (number, _) = self.volume_named(volume)?;
        self.pool.snapshot_named(number, snapshot).ok_or_else(|| {
            let text =
                format!("volume {volume} has no snapshot \"{snapshot}\"; `hotset snapshot list {volume}` lists them");
            Failure::new(ErrorKind::NotFound, text)
        })
    }

    fn snapshots(&self, volume: &str) -> Result<SnapshotsReport, Failure> {
        let (number, _) = self.volume_named(volume)?;
        let slice_bytes = self.pool.slice_bytes();
        let report = |snapshot: pool::SnapshotReport| SnapshotReport {
            name: snapshot.name,
            created_unix_seconds: snapshot.created_secs,
            size_bytes: snapshot.size_bytes,
            allocated_bytes: u64::from(snapshot.allocated) * slice_bytes,
            own_bytes: u64::from(snapshot.own_slices) * slice_bytes,
        };
        let snapshots = self.pool.snapshots(number).into_iter().map(report).collect();
        Ok(SnapshotsReport { volume: volume.to_owned(), pool: self.name.clone(), snapshots })
    }
}
