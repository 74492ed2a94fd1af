//! `snapshot create`, `list`, `rollback`, `clone` and `delete`, for volumes of pools.

use std::time::{SystemTime, UNIX_EPOCH};

use control::ProgressSender;
use engine::VolumeId;
use messages::report::SnapshotsReport;
use messages::{Answer, ErrorKind, Failure};

use super::super::cores::{CachedData, ConnectedClients};
use super::super::volumes::VolumeStatus;
use super::Daemon;
use config::check_name;
use logging::{self as log, VOLUME};
use state::{Acceptance, random_number};

/// The snapshots of a volume, as the answer to a request.
fn answer(report: SnapshotsReport) -> Answer {
    Answer::Snapshots(Box::new(report))
}

/// The failure to copy the records to the flash devices, which refuses a roll back.
fn not_rolled_back(name: &str, failure: Failure) -> Failure {
    let message = format!("volume {name} was not rolled back, and has its content: {}", failure.message);
    Failure { message, ..failure }
}

impl Daemon {
    /// `snapshot list`.
    pub async fn list_snapshots(&self, name: &str) -> Result<Answer, Failure> {
        let pool = self.pool_of(name).await?;
        self.cores.snapshots(&pool, name).await.map(answer)
    }

    /// `snapshot create`.
    pub async fn create_snapshot(
        &self,
        name: &str,
        snapshot: &str,
        progress: &ProgressSender,
    ) -> Result<Answer, Failure> {
        check_name(snapshot).map_err(|error| Failure::new(ErrorKind::Invalid, error))?;
        let _guard = self.volumes.lock_for_change(name)?;
        let pool = self.pool_of(name).await?;
        let placement = self.volumes.placement(name)?;
        let created_secs = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        let create = self.cores.create_snapshot(placement.core, &pool, name, (snapshot, created_secs));
        let activity = format!("destaging {name}");
        let report = self.cores.report_while(placement.core, name, &activity, progress, create).await?;
        log::info!(target: VOLUME, volume = name, "volume {name}: snapshot {snapshot} created by command");
        Ok(answer(report))
    }

    /// `snapshot rollback`. The volume gets a new ID before its map changes: after a crash at any point it has its
    /// former content, or that of the snapshot with an empty cache.
    pub async fn roll_back_volume(
        &self,
        name: &str,
        snapshot: &str,
        force: bool,
        progress: &ProgressSender,
    ) -> Result<Answer, Failure> {
        let _guard = self.volumes.lock_for_change(name)?;
        let pool = self.pool_of(name).await?;
        let (known, placement) = (self.volumes.get(name)?, self.volumes.placement(name)?);
        self.cores.check_snapshot(&pool, name, snapshot).await?;
        let clients = match force {
            true => ConnectedClients::Disconnect,
            false => {
                let text = format!(
                    "volume {name} has clients, whose caches would mix the two contents: disconnect them, or let \
                     `hotset snapshot rollback {name} {snapshot} --force` do that"
                );
                ConnectedClients::Refuse(Failure::new(ErrorKind::Conflict, text))
            }
        };
        // The detach counts them again, because clients may connect meanwhile.
        if let ConnectedClients::Refuse(failure) = &clients
            && self.cores.clients_of(name, placement.core).await? > 0
        {
            return Err(failure.clone());
        }
        // Proves that the devices take the new ID, before clients are disconnected.
        self.flash.try_save_manifest().await.map_err(|failure| not_rolled_back(name, failure))?;
        let drawn = random_number().map_err(|error| {
            Failure::new(ErrorKind::Failed, format!("cannot read a random volume ID from /dev/urandom: {error}"))
        })?;
        self.volumes.set_status(name, VolumeStatus::Removing(placement.clone()));
        if let Err(failure) =
            self.attachments.detach_from(clients, CachedData::Destage, name, placement.core, progress).await
        {
            self.volumes.set_status(name, VolumeStatus::Serving(placement));
            return Err(failure);
        }
        let rolled_back = self.drop_cache_and_roll_back(placement.volume_id, VolumeId(drawn), (&pool, name, snapshot));
        let rolled_back = rolled_back.await;
        let attached = self.attachments.attach(known.config, known.from_file, Acceptance::default()).await;
        if let Err(failure) = self.flash.discard_given_up().await {
            log::warn!(target: VOLUME, volume = name, "{failure}");
        }
        let report = rolled_back?;
        log::warn!(target: VOLUME, volume = name, "volume {name} was rolled back to snapshot {snapshot} by command");
        attached?;
        Ok(answer(report))
    }

    /// Gives up all that the cache holds of a detached volume, durably, and only then changes its content.
    async fn drop_cache_and_roll_back(
        &self,
        volume_id: VolumeId,
        drawn: VolumeId,
        (pool, name, snapshot): (&str, &str, &str),
    ) -> Result<SnapshotsReport, Failure> {
        self.records.change(|state| {
            state.mark_clean(volume_id);
            state.discard_flash_data(volume_id, drawn);
        })?;
        // A rebuild from the flash devices must not bring the former ID back.
        self.flash.try_save_manifest().await.map_err(|failure| not_rolled_back(name, failure))?;
        self.cores.roll_back_volume(pool, name, snapshot).await
    }

    /// `snapshot delete`.
    pub async fn delete_snapshot(&self, name: &str, snapshot: &str) -> Result<Answer, Failure> {
        let _guard = self.volumes.lock_for_change(name)?;
        let pool = self.pool_of(name).await?;
        let report = self.cores.delete_snapshot(&pool, name, snapshot).await?;
        log::info!(target: VOLUME, volume = name, "volume {name}: snapshot {snapshot} deleted by command");
        Ok(answer(report))
    }

    /// `snapshot clone`.
    pub async fn clone_snapshot(&self, name: &str, snapshot: &str, new_volume: &str) -> Result<Answer, Failure> {
        check_name(new_volume).map_err(|error| Failure::new(ErrorKind::Invalid, error))?;
        let _guard = self.volumes.lock_for_change(new_volume)?;
        let pool = self.pool_of(name).await?;
        if self.volumes.contains(new_volume) {
            let text = format!("a volume named \"{new_volume}\" already exists");
            return Err(Failure::new(ErrorKind::Conflict, text));
        }
        let report = self.cores.clone_snapshot(&pool, name, snapshot, new_volume).await?;
        log::info!(
            target: VOLUME, volume = name,
            "volume {name}: snapshot {snapshot} cloned as volume {new_volume} of pool {pool} by command"
        );
        Ok(answer(report))
    }

    /// The pool of a volume, which need not be served.
    async fn pool_of(&self, name: &str) -> Result<String, Failure> {
        match self.volumes.find(name) {
            Some(known) => match known.config.backing.pool() {
                Some(pool) => Ok(pool.to_owned()),
                None => {
                    let text = format!(
                        "volume {name} lies on {}: snapshots are made of volumes on pools alone",
                        known.config.backing
                    );
                    Err(Failure::new(ErrorKind::Conflict, text))
                }
            },
            None => self.cores.pool_with_volume(name).await.ok_or_else(|| Failure::no_volume(name)),
        }
    }
}
