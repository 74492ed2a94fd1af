//! The drain of the volumes at a stop: the dirty data of each volume is left in the flash log or destaged.

use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::Duration;

use control::ProgressSender;
use engine::VolumeId;
use messages::Failure;
use tokio::task::JoinSet;

use super::super::cores::{CLIENTS_TIMEOUT, CachedData, ConnectedClients, CoreLocal, Cores};
use super::super::flash::FlashLog;
use super::super::handover::{StoredClient, to_stored_clients};
use super::super::records::Records;
use super::{Clients, PROGRESS_INTERVAL, activity};
use logging::{self as log, DAEMON, VOLUME};
use state::random_number;
use systemd::Notifier;
use units::{show_bytes, show_counted};

/// Pause before a failed destage is retried.
const RETRY_PAUSE: Duration = Duration::from_secs(2);

/// Time after which a stop no longer waits for an unresponsive backing, if its volume has no dirty data or memory
/// survives the daemon.
const HUNG_TIMEOUT_MS: u64 = 10_000;
/// The same time if dirty data would be lost with the daemon: a storage server may take that long to restart.
const HUNG_TIMEOUT_DIRTY_MS: u64 = 600_000;

/// The reason why a drain left a volume incomplete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DrainFault {
    /// A data core had ended.
    CoreEnded,
    /// A backing did not answer, or was lost.
    BackingHung,
}

/// Result of a drain.
pub struct DrainResult {
    /// The fault that left a volume incomplete, if any.
    pub fault: Option<DrainFault>,
    /// All volumes are recorded as they ended.
    pub is_recorded: bool,
    /// Volumes with dirty bytes in the flash log, by name.
    pub left: Vec<(String, u64)>,
    /// Names of volumes that were not served and whose backings may lack data.
    pub unserved: BTreeSet<String>,
}

/// Result of the drain of one volume.
enum DrainOutcome {
    /// Its backing is complete, and its record needs no change.
    Complete,
    /// Its backing is complete, and the volume ID is to be recorded as clean.
    Clean(VolumeId),
    /// The data that its backing lacks is in the flash log.
    LeftOnFlash(LeftOnFlash),
    /// Its backing does not answer, or is lost.
    Hung,
    /// Its data core has ended.
    Failed,
}

/// A volume that was left in the flash log.
struct LeftOnFlash {
    volume_id: VolumeId,
    name: String,
    /// Its dirty bytes in the flash log; `None` if its backing is complete. Discarded ranges count as no bytes.
    bytes: Option<u64>,
    /// Destaged blocks whose content the store has recorded.
    destaged: u64,
}

/// The parts that a drain uses.
pub struct Drain {
    records: Rc<Records>,
    cores: Rc<Cores>,
    flash: Rc<FlashLog>,
    notifier: Rc<Notifier>,
    /// Memory survives the daemon.
    memory_survives: bool,
}

/// Outcomes so far.
#[derive(Default)]
struct DrainTotals {
    fault: Option<DrainFault>,
    /// All volumes in service.
    served: BTreeSet<VolumeId>,
    /// Volumes whose backings are complete and that are not recorded as clean yet.
    clean: Vec<VolumeId>,
    /// Volumes left in the flash log, with their numbers of recorded destaged blocks.
    on_flash: Vec<(VolumeId, u64)>,
    /// Volumes with dirty bytes in the flash log.
    left: Vec<(String, u64)>,
}

impl DrainTotals {
    fn add(&mut self, outcome: DrainOutcome) {
        match outcome {
            DrainOutcome::Complete => {}
            DrainOutcome::Clean(volume_id) => self.clean.push(volume_id),
            DrainOutcome::LeftOnFlash(LeftOnFlash { volume_id, name, bytes, destaged }) => {
                self.on_flash.push((volume_id, destaged));
                self.left.extend(bytes.map(|bytes| (name, bytes)));
            }
            DrainOutcome::Hung => self.fault = Some(DrainFault::BackingHung),
            DrainOutcome::Failed => self.fault = self.fault.or(Some(DrainFault::CoreEnded)),
        }
    }
}

impl Drain {
    /// A drain of all volumes.
    pub fn new(
        records: Rc<Records>,
        cores: Rc<Cores>,
        flash: Rc<FlashLog>,
        notifier: Rc<Notifier>,
        memory_survives: bool,
    ) -> Drain {
        Drain { records, cores, flash, notifier, memory_survives }
    }

    /// Disconnects all clients; returns the connections that the next daemon can continue.
    pub async fn disconnect_clients(&self, clients: Clients) -> Vec<StoredClient> {
        let mut stored = Vec::new();
        for core in self.cores.iter() {
            // A core that has ended has no clients left.
            let disconnected =
                core.call(async move |local: Rc<CoreLocal>| disconnect_clients(&local, clients).await).await;
            stored.extend(disconnected.unwrap_or_default());
        }
        stored
    }

    /// Leaves the dirty data of all volumes in the flash log if `uses_flash_log`, destages it otherwise, and closes the
    /// log.
    pub async fn run(self: &Rc<Self>, uses_flash_log: bool) -> DrainResult {
        let mut totals = DrainTotals::default();
        // Volumes that leave the log are not among the unserved ones.
        let in_log = self.cores.undestaged_blocks().await.unwrap_or_default();
        let in_log = in_log.iter().filter(|(_, blocks)| blocks.in_log > 0).map(|(volume_id, _)| *volume_id);
        let in_log: Vec<VolumeId> = in_log.filter(|id| !self.records.view().is_given_up(*id)).collect();
        let mut unserved: BTreeSet<String> = in_log.iter().map(|id| self.records.show_volume(*id)).collect();
        let mut volumes = self.start(uses_flash_log, &mut totals).await;
        unserved.extend(
            self.records.view().incomplete_outside(|id| totals.served.contains(&id)).map(|record| record.name.clone()),
        );
        let mut tick = tokio::time::interval(PROGRESS_INTERVAL);
        while !volumes.is_empty() {
            tokio::select! {
                outcome = volumes.join_next() => {
                    totals.add(outcome.and_then(Result::ok).unwrap_or(DrainOutcome::Failed));
                }
                _ = tick.tick() => {
                    self.flash.record_drops().await;
                    self.record_outcomes(&mut totals.clean, &totals.on_flash);
                    self.report_progress(uses_flash_log, volumes.len()).await;
                }
            }
        }
        let DrainTotals { fault, served: _, mut clean, on_flash, mut left } = totals;
        // Without this record the next start trusts no checksum in the store, and refuses a volume left in the log.
        self.flash.record_drops().await;
        let is_recorded = self.record_outcomes(&mut clean, &on_flash);
        if self.flash.close().await && fault.is_none() {
            // The log holds no needed data: a recovery would find nothing of these volumes.
            self.records.change_or_log(|state| {
                on_flash.iter().for_each(|(volume_id, _)| state.mark_clean(*volume_id));
            });
        }
        left.sort();
        DrainResult { fault, is_recorded, left, unserved }
    }

    /// Starts to drain the volumes of all cores.
    async fn start(self: &Rc<Self>, uses_flash_log: bool, totals: &mut DrainTotals) -> JoinSet<DrainOutcome> {
        let mut volumes = JoinSet::new();
        for core in self.cores.iter() {
            // The list comes from the engine, so that every volume that it serves is drained.
            let list = |local: &CoreLocal| -> Vec<_> {
                let named = |volume: &engine::Volume<_>| (volume.name().to_owned(), volume.spec().volume_id);
                local.engine.volumes().iter().map(named).collect()
            };
            let Ok(served) = core.call(async move |local: Rc<CoreLocal>| list(&local)).await else {
                totals.add(DrainOutcome::Failed);
                continue;
            };
            for (name, volume_id) in served {
                totals.served.insert(volume_id);
                let (drain, core) = (self.clone(), core.index());
                volumes.spawn_local(async move {
                    let finish = async {
                        match uses_flash_log {
                            true if drain.detach_complete(&name, core).await => DrainOutcome::Clean(volume_id),
                            true => drain.leave_on_flash(&name, core, volume_id).await,
                            false => drain.drain_volume(&name, core, volume_id).await,
                        }
                    };
                    tokio::select! {
                        outcome = finish => outcome,
                        () = drain.wait_for_hang(&name, core) => DrainOutcome::Hung,
                    }
                });
            }
        }
        volumes
    }

    /// Detaches a volume whose backing is complete and answers; false if it is not, or on an error. The volume leaves
    /// the log: otherwise the next start would write records of it to the backing, also if another program has changed
    /// that meanwhile.
    async fn detach_complete(&self, name: &str, core: usize) -> bool {
        let volume = name.to_owned();
        let stats = async move |local: Rc<CoreLocal>| local.engine.find(&volume).map(|volume| volume.stats());
        let Ok(Some(stats)) = self.cores[core].call(stats).await else { return false };
        let ((progress, _), lost_before) = (ProgressSender::new(), self.records.lost_before(name));
        stats.has_complete_backing()
            && stats.backing_unanswered_ms == 0
            && self
                .cores
                .detach(name, core, ConnectedClients::Disconnect, CachedData::Destage, lost_before, &progress)
                .await
                .is_ok()
    }

    /// Returns when a volume's backing has not answered for longer than a stop waits.
    async fn wait_for_hang(&self, name: &str, core: usize) {
        loop {
            tokio::time::sleep(PROGRESS_INTERVAL).await;
            let volume = name.to_owned();
            let stats = async move |local: Rc<CoreLocal>| local.engine.find(&volume).map(|volume| volume.stats());
            let Ok(Some(stats)) = self.cores[core].call(stats).await else { continue };
            let is_safe = self.memory_survives || stats.undestaged_bytes() == 0;
            let timeout_ms = if is_safe { HUNG_TIMEOUT_MS } else { HUNG_TIMEOUT_DIRTY_MS };
            if stats.backing_unanswered_ms >= timeout_ms {
                let age = Duration::from_secs(stats.backing_unanswered_ms / 1000);
                log::error!(
                    target: VOLUME, volume = name,
                    "volume {name}: its backing has not answered for {age:?}; the stop does not wait for it"
                );
                return;
            }
        }
    }

    /// True if a volume's backing is lost for good. Its dirty data stays in persisted memory, if there is any.
    async fn is_lost(&self, name: &str, core: usize) -> bool {
        let Some(bytes) = self.cores.lost_bytes(name, core).await else { return false };
        log::error!(
            target: VOLUME, volume = name,
            "volume {name}: its backing is lost, so {} of dirty data are not destaged",
            show_bytes(bytes)
        );
        true
    }

    async fn report_progress(&self, uses_flash_log: bool, volumes: usize) {
        if let Some(undestaged_bytes) = self.cores.undestaged_bytes().await
            && undestaged_bytes > 0
        {
            let count = show_counted(volumes as u64, "volume");
            let activity = activity(uses_flash_log);
            let text = match uses_flash_log {
                true => format!("{activity}: {count} left"),
                false => format!("{activity}: {} of {count} left", show_bytes(undestaged_bytes)),
            };
            log::info!(target: DAEMON, "{text}");
            self.notifier.status_extending_timeout(&text);
        }
    }

    /// Leaves a volume's dirty data in the flash log.
    async fn leave_on_flash(&self, name: &str, core: usize, volume_id: VolumeId) -> DrainOutcome {
        loop {
            let volume = name.to_owned();
            let leave_in_log = async move |local: Rc<CoreLocal>| {
                let Some(volume) = local.engine.find(&volume) else { return Ok(None) };
                let result = volume.leave_in_log().await;
                let log_failed = local.engine.log().is_none_or(|log| log.copies() == 0);
                let destaged = local.engine.provable_recent_writes(volume_id);
                let bytes = volume.needs_log().then(|| volume.stats().flash_dirty_bytes);
                let result = result.map(|has_records| has_records.then_some((bytes, destaged)));
                result.map_err(|error| (error, log_failed))
            };
            match self.cores[core].call(leave_in_log).await {
                Ok(Ok(Some((bytes, destaged)))) => {
                    return DrainOutcome::LeftOnFlash(LeftOnFlash {
                        volume_id,
                        name: name.to_owned(),
                        bytes,
                        destaged,
                    });
                }
                Ok(Ok(None)) => return DrainOutcome::Clean(volume_id),
                Ok(Err((error, true))) => {
                    log::error!(
                        target: VOLUME, volume = name,
                        "volume {name}: the flash log is out of service ({error}); destaging instead"
                    );
                    return self.drain_without_log(name, core, volume_id).await;
                }
                Ok(Err((_, false))) if self.is_lost(name, core).await => return DrainOutcome::Hung,
                Ok(Err((error, false))) => {
                    self.wait_before_retry(
                        name,
                        &format!("volume {name} could not be left in the flash log ({error})"),
                    )
                    .await;
                }
                Err(_) => return core_has_ended(name),
            }
        }
    }

    /// Destages a volume although the log, which cannot be written any more, holds data of it. The volume gets another
    /// volume ID, so that the old data in the log never comes back. The drain waits until this is recorded: under the
    /// old ID the next start would write the log's data over newer data of the backing, if the devices return.
    async fn drain_without_log(&self, name: &str, core: usize, volume_id: VolumeId) -> DrainOutcome {
        self.flash.abandon_map("no flash device is left in service").await;
        loop {
            let volume = name.to_owned();
            let destage = async move |local: Rc<CoreLocal>| match local.engine.find(&volume) {
                Some(volume) => volume.destage_without_log().await,
                None => Ok(()),
            };
            match (self.cores[core].call(destage).await, random_number()) {
                (Err(_), _) => return core_has_ended(name),
                (Ok(Ok(())), Ok(drawn)) => {
                    let recorded = record_destaged_without_log(&self.records, volume_id, VolumeId(drawn));
                    let Err(failure) = recorded else { return DrainOutcome::Complete };
                    let text = format!(
                        "volume {name} is destaged, but it could not be recorded that its data in the flash log is \
                         obsolete ({})",
                        failure.message
                    );
                    self.wait_before_retry(name, &text).await;
                }
                (Ok(Err(_)), _) if self.is_lost(name, core).await => return DrainOutcome::Hung,
                (Ok(Err(error)), _) => {
                    self.wait_before_retry(name, &format!("volume {name} could not be destaged ({error})")).await
                }
                (_, Err(error)) => {
                    self.wait_before_retry(name, &format!("volume {name}: no identity can be drawn ({error})")).await
                }
            }
        }
    }

    /// Reports a failure and waits before the next attempt.
    async fn wait_before_retry(&self, name: &str, text: &str) {
        let text = format!("{text}; retrying, a second signal ends the daemon at once");
        log::error!(target: VOLUME, volume = name, "{text}");
        self.notifier.status_extending_timeout(&text);
        tokio::time::sleep(RETRY_PAUSE).await;
    }

    /// Records many volumes with one write of the state file: volumes that became clean since the last call, and all
    /// volumes left in the flash log. True when the write succeeded.
    fn record_outcomes(&self, clean: &mut Vec<VolumeId>, on_flash: &[(VolumeId, u64)]) -> bool {
        let recorded = self.records.change_or_log(|state| {
            clean.iter().for_each(|volume_id| state.mark_clean(*volume_id));
            on_flash.iter().for_each(|(volume_id, destaged)| state.mark_left_on_flash(*volume_id, *destaged));
        });
        if recorded {
            clean.clear();
        }
        recorded
    }

    /// Destages and detaches a volume.
    async fn drain_volume(&self, name: &str, core: usize, volume_id: VolumeId) -> DrainOutcome {
        let ((progress, _), lost_before) = (ProgressSender::new(), self.records.lost_before(name));
        loop {
            let result = self
                .cores
                .detach(name, core, ConnectedClients::Disconnect, CachedData::Destage, lost_before, &progress)
                .await;
            let volume = name.to_owned();
            let log_state = async move |local: Rc<CoreLocal>| {
                let log_failed = local.engine.log().is_some_and(|log| log.copies() == 0);
                local.engine.find(&volume).map(|_| log_failed)
            };
            match (result, self.cores[core].call(log_state).await) {
                (Ok(()), _) => break,
                (Err(_), Err(_)) => return core_has_ended(name),
                // The volume was removed meanwhile.
                (Err(_), Ok(None)) => return DrainOutcome::Complete,
                (Err(_), Ok(Some(true))) => return self.drain_without_log(name, core, volume_id).await,
                (Err(_), Ok(Some(false))) if self.is_lost(name, core).await => return DrainOutcome::Hung,
                (Err(failure), Ok(Some(false))) => self.wait_before_retry(name, &failure.message).await,
            }
        }
        DrainOutcome::Clean(volume_id)
    }
}

/// Disconnects the clients of all front ends concurrently; returns the connections that the next daemon can continue.
async fn disconnect_clients(local: &CoreLocal, clients: Clients) -> Vec<StoredClient> {
    local.engine.volumes().iter().for_each(|volume| volume.lift_limits());
    let initiators = async {
        if let Some(iscsi) = &local.iscsi {
            iscsi.stop(CLIENTS_TIMEOUT).await;
        }
    };
    let guests = async {
        if let Some(vhost_user) = &local.vhost_user {
            vhost_user.server.stop(CLIENTS_TIMEOUT).await;
        }
    };
    let nbd = async {
        match clients {
            Clients::HandOver => to_stored_clients(local.nbd_server.hand_over(CLIENTS_TIMEOUT).await),
            Clients::Disconnect => {
                local.nbd_server.stop(CLIENTS_TIMEOUT).await;
                Vec::new()
            }
        }
    };
    futures_util::join!(nbd, initiators, guests).0
}

/// Records durably that a volume's backing is complete and that its data in the flash log is obsolete.
fn record_destaged_without_log(records: &Records, volume_id: VolumeId, new_id: VolumeId) -> Result<(), Failure> {
    records.change(|state| {
        state.discard_flash_data(volume_id, new_id);
        state.mark_clean(new_id);
    })
}

fn core_has_ended(name: &str) -> DrainOutcome {
    log::error!(target: VOLUME, volume = name, "volume {name}: its data core has ended; the volume is not clean");
    DrainOutcome::Failed
}

#[cfg(test)]
mod tests {
    use state::{StateDir, VolumeRecord};

    use super::*;

    #[test]
    fn unrecorded_destage_past_the_log_is_no_success() {
        let (former, new) = (VolumeId(7), VolumeId(8));
        let folder = tempfile::tempdir().expect("a folder for the test");
        let records = Records::new(StateDir::open(folder.path()).expect("a new directory"));
        let record =
            VolumeRecord { volume_id: former, dirty_on_flash: Some("ab".to_owned()), ..VolumeRecord::default() };
        records.change(|state| state.volumes.push(record)).expect("written");
        // A folder in place of the file under which the next state is written.
        let obstacle = folder.path().join("state.new");
        let _ = std::fs::remove_file(&obstacle);
        std::fs::create_dir(&obstacle).expect("the folder can be written");
        record_destaged_without_log(&records, former, new).expect_err("the state cannot be written");
        assert!(records.view().by_id(former).is_some_and(|record| record.dirty_on_flash.is_some() && !record.clean));
        std::fs::remove_dir(&obstacle).expect("the folder is empty");
        record_destaged_without_log(&records, former, new).expect("the state can be written again");
        assert!(records.view().by_id(former).is_none(), "the log's data belongs to no volume");
        assert!(records.view().by_id(new).is_some_and(|record| record.dirty_on_flash.is_none() && record.clean));
    }
}
