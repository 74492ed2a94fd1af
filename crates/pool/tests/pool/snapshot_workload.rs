//! Snapshots beside the clients of a pool: made under their writes, read, cloned, deleted; and roll back between runs.

use pool::{PoolError, VolumeId};
use seam::sim::Rng;
use seam::{Disk, Nanos, Seam};

use crate::model::read_volume;
use crate::workload::Workload;

const SNAPSHOTS: [&str; 3] = ["s", "t", "u"];

impl Workload {
    fn note_pool_error(&self, what: &str, error: &PoolError) {
        match error {
            PoolError::Full => self.full.set(self.full.get() + 1),
            _ if self.has_faults => {}
            error => self.report(format!("{what}: {error}")),
        }
    }

    /// A random step with a snapshot of a volume.
    pub async fn step_snapshot(&self, volume: &str, clone: &str, rng: &Rng) {
        self.seam.sleep(Nanos::from_micros(rng.below(1_500))).await;
        let Some(id) = self.pool.volume_named(volume) else { return };
        let name = SNAPSHOTS[rng.below(3) as usize];
        match (self.pool.snapshot_named(id, name), rng.below(8)) {
            (None, 0..6) => self.make_snapshot(volume, id, name).await,
            (Some(snapshot), 0..3) => drop(self.read_snapshot(volume, name, snapshot).await),
            (Some(snapshot), 3 | 4) => self.delete_snapshot(volume, name, snapshot).await,
            (Some(snapshot), 5) => self.clone_snapshot(volume, name, snapshot, clone).await,
            _ => {}
        }
    }

    pub async fn make_snapshot(&self, volume: &str, id: VolumeId, name: &str) {
        let disk = self.pool.volume(id).expect("the volume exists");
        let noted = self.epochs.borrow().get(volume).copied();
        if noted.is_some_and(|epoch| epoch != disk.connection_epoch()) {
            self.model.borrow_mut().lose_unflushed(volume);
        }
        if self.model.borrow().has_snapshot(&format!("{volume}@{name}")) {
            // One that may exist after an error.
            return;
        }
        self.model.borrow_mut().create_snapshot(volume, name);
        let made = self.pool.create_snapshot(id, name, 1).await;
        self.model.borrow_mut().created_snapshot(volume, name, made.is_ok());
        if let Err(error) = made {
            self.note_pool_error("snapshot", &error);
        }
    }

    /// Reads a snapshot. Its content is known afterwards.
    async fn read_snapshot(&self, volume: &str, name: &str, snapshot: VolumeId) -> Option<Vec<u64>> {
        let key = format!("{volume}@{name}");
        let read = read_volume(&self.seam, &self.pool, snapshot).await;
        if !self.model.borrow().has_snapshot(&key) || self.pool.volume(snapshot).is_err() {
            return None;
        }
        match read {
            Ok(tags) => {
                if let Err(error) = self.model.borrow().check_snapshot(&key, &tags) {
                    self.report(error);
                }
                self.model.borrow_mut().pin_snapshot(&key, &tags);
                Some(tags)
            }
            Err(error) => {
                if !self.has_faults {
                    self.report(format!("{key}: {error}"));
                }
                None
            }
        }
    }

    pub async fn delete_snapshot(&self, volume: &str, name: &str, snapshot: VolumeId) {
        let key = format!("{volume}@{name}");
        if !self.model.borrow().has_snapshot(&key) {
            return;
        }
        self.model.borrow_mut().delete_snapshot(&key);
        match self.pool.delete_snapshot(snapshot).await {
            Ok(()) => self.model.borrow_mut().deleted_snapshot(&key),
            Err(error) => self.note_pool_error("deletion", &error),
        }
    }

    /// Deletes all snapshots of a volume.
    pub async fn delete_snapshots(&self, volume: &str) {
        let Some(id) = self.pool.volume_named(volume) else { return };
        for snapshot in self.pool.snapshots(id) {
            self.delete_snapshot(volume, &snapshot.name, snapshot.snapshot).await;
        }
    }

    pub async fn clone_snapshot(&self, volume: &str, name: &str, snapshot: VolumeId, clone: &str) {
        if self.pool.volume_named(clone).is_some() {
            return;
        }
        let Some(tags) = self.read_snapshot(volume, name, snapshot).await else { return };
        self.model.borrow_mut().clone_snapshot(clone, &tags);
        match self.pool.clone_snapshot(snapshot, clone).await {
            Ok(_) => self.model.borrow_mut().created(clone),
            Err(error) => self.note_pool_error("clone", &error),
        }
    }

    /// Rolls a volume without clients back to a snapshot, if it has one.
    pub async fn roll_back(&self, volume: &str) {
        let Some(id) = self.pool.volume_named(volume) else { return };
        let Some(snapshot) = self.pool.snapshots(id).pop() else { return };
        let Some(tags) = self.read_snapshot(volume, &snapshot.name, snapshot.snapshot).await else { return };
        self.model.borrow_mut().roll_back(volume, &tags);
        match self.pool.roll_back(snapshot.snapshot).await {
            Ok(()) => self.model.borrow_mut().rolled_back(volume),
            Err(error) => {
                self.note_pool_error("roll back", &error);
                self.model.borrow_mut().roll_back_failed(volume);
            }
        }
    }
}
