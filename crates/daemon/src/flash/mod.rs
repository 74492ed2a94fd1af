//! The flash log in the daemon: opened before volumes are attached, recorded in the state directory before a volume
//! relies on it, closed last.
//!
//! 1. A volume whose flushes the log answers is durably marked as dirty on flash before it is served; the mark names
//!    the store.
//! 2. The mark is removed after the volume was drained: tombstones in the log are durable by then.
//! 3. The log answers no flushes of a volume that was attached before the log was opened, nor of any volume while only
//!    the state directory names the devices (`first.rs`).
//! 4. A volume with the mark of a store that is not open is not served. Accepting the loss gives the volume a new
//!    volume ID, so that a store that returns later never brings back old data.

mod change;
mod devices;
mod drives;
mod first;
mod open;
mod plan;
mod report;
mod smart;
mod watch;
mod wear;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::rc::{Rc, Weak};
use std::time::Duration;

use engine::{BlockNo, VolumeId, WritePolicy};
use flash::{MembershipGeneration, Ownership, Sequence, StoreIdentity};
use messages::report::FlashReport;
use messages::{ErrorKind, Failure};
use tokio::sync::mpsc;

use self::drives::Drives;
use self::open::{OpenParameters, OpenedStore, Search};
pub use self::watch::LastCheck;
use self::wear::Wear;
use super::cores::{CoreLocal, Cores, DataCore, core_ended};
use super::jobs::Jobs;
use super::overlap::OwnVolumes;
use super::rbd_helper::helpers_folder;
use super::records::Records;
use super::settings::{Settings, absolute};
use super::volumes::Placement;
use config::FlashConfig;
use logging::{self as log, FLASH};
use state::{FoundStore, Refusal, State, StoreUse, UnusedStore, show_uuid};
use units::show_counted;

/// State of the flash log.
#[derive(Clone, Debug, Default)]
enum Flash {
    /// Not configured.
    #[default]
    Off,
    /// In use: it answers flushes.
    Open(OpenedStore),
    /// Configured and not in use.
    Unused(UnusedFlash),
}

/// Why the flash log is not in use.
#[derive(Clone, Debug, Default)]
struct UnusedFlash {
    /// The reason as text.
    pub reason: String,
    /// Code of the refusal, if the reason is one.
    pub refusal: Option<&'static str>,
    /// Paths of the devices that did not answer.
    pub hung: Vec<String>,
    /// The faults of the devices that could not be read.
    pub unread: Vec<String>,
    /// The stores of the devices that answer, each with the owner in its superblock.
    pub owners: Vec<(String, Ownership)>,
    /// The log on the present devices, if it is whole. Without it, they may lack data.
    pub whole_log: Option<Box<WholeLog>>,
}

/// The whole log of a store that is not in use, because a member is missing or one device may not be used alone.
#[derive(Clone, Debug)]
struct WholeLog {
    /// The store as found without the missing member.
    pub identity: StoreIdentity,
    /// The membership generation in the superblocks of the present devices.
    pub generation: MembershipGeneration,
    /// False if no member is missing and the log has no dirty data.
    pub holds_data: bool,
    /// The owner that the superblock of each present device names, by the device's path.
    pub devices: Vec<(String, Ownership)>,
    /// The reason why the store is not in use, if the records confirm that this log is the newest.
    pub reason: String,
}

impl From<String> for UnusedFlash {
    fn from(reason: String) -> UnusedFlash {
        UnusedFlash { reason, ..UnusedFlash::default() }
    }
}

impl From<&Refusal> for UnusedFlash {
    fn from(refusal: &Refusal) -> UnusedFlash {
        UnusedFlash { refusal: Some(refusal.code()), ..UnusedFlash::from(refusal.to_string()) }
    }
}

/// The flash log with its devices.
pub struct FlashLog {
    settings: Rc<Settings>,
    records: Rc<Records>,
    cores: Rc<Cores>,
    jobs: Rc<Jobs>,
    state: RefCell<Flash>,
    /// Volume IDs whose old clean pages are being dropped, with the identity of the flash store. An entry is removed
    /// when the state directory has recorded that the pages are dropped.
    pending_drops: RefCell<BTreeMap<VolumeId, String>>,
    wear: Wear,
    drives: Rc<Drives>,
    /// Held during a change of the devices by command, and while the log is opened.
    change: tokio::sync::Mutex<()>,
    /// Held while the manifest is written: its copies must not overlap, and the newest one comes last.
    manifest: tokio::sync::Mutex<()>,
    /// The last report of an open log whose core answered.
    last_report: RefCell<Option<FlashReport>>,
    /// The devices that the file lists, as of its last reload.
    file_devices: RefCell<Vec<PathBuf>>,
    /// The devices that the file does not list, as of the last report outside a change.
    unlisted: RefCell<Option<Vec<PathBuf>>>,
    /// True while the devices are monitored.
    is_watched: Cell<bool>,
    /// True once the start has checked the devices against the records.
    start_checked: tokio::sync::watch::Sender<bool>,
}

impl FlashLog {
    /// A log that is not open yet.
    pub fn new(settings: Rc<Settings>, records: Rc<Records>, cores: Rc<Cores>, jobs: Rc<Jobs>) -> FlashLog {
        let (state, pending_drops, wear, drives) =
            (RefCell::default(), RefCell::default(), Wear::default(), Rc::default());
        let file_devices = RefCell::new(settings.flash_devices());
        FlashLog {
            settings,
            records,
            cores,
            jobs,
            state,
            pending_drops,
            wear,
            drives,
            change: Default::default(),
            manifest: Default::default(),
            last_report: Default::default(),
            file_devices,
            unlisted: Default::default(),
            is_watched: Default::default(),
            start_checked: Default::default(),
        }
    }

    /// The core that has the log. It is the only one, since volumes on another core would not find the log.
    fn core(&self) -> &DataCore {
        self.cores.first()
    }

    /// Opens the log, if one is configured. An unusable log affects only the volumes that need it, and volumes of which
    /// it may hold data that is not in the records. A device that does not answer within `limit` counts as absent.
    pub async fn open(&self, limit: Duration) -> Result<(), Failure> {
        // A command may be adding the first device.
        let _change = self.change.lock().await;
        self.expire_devices()?;
        let Some(config) = self.config().filter(|_| self.store().is_none()) else { return Ok(()) };
        match self.find_and_open(config, limit).await? {
            Ok(opened) => {
                let created = if opened.formatted { ", newly created on empty devices" } else { "" };
                let content = match opened.unclaimed_volumes {
                    0 => String::new(),
                    owners => format!(", with data of {}", show_counted(owners as u64, "volume")),
                };
                log::info!(target: FLASH, "flash log {} is in use{created}{content}", opened.store);
                self.records.rename_devices(&opened.renamed)?;
                opened.absent.iter().for_each(|absent| log::error!(target: FLASH, "flash: {}", absent.reason));
                self.wear.load(&self.records.view());
            }
            Err(unused) => {
                log::error!(target: FLASH, "flash is not used: {}", unused.reason);
                *self.state.borrow_mut() = Flash::Unused(unused);
            }
        }
        Ok(())
    }

    /// Finds the store, checks it against the records, saves its new ownership, and only then opens it. The store is in
    /// use even if the record of its opening cannot be saved.
    async fn find_and_open(
        &self,
        config: FlashConfig,
        limit: Duration,
    ) -> Result<Result<OpenedStore, UnusedFlash>, Failure> {
        let devices = config.devices.clone();
        let search = {
            let state = self.records.view();
            let of_store = |path: &PathBuf| Some((path.clone(), state.store_of_device(path)?));
            let known = devices.iter().filter_map(of_store).collect();
            let (config, own_volumes) = (config.clone(), OwnVolumes::new(&state));
            let (helpers, host) =
                (helpers_folder(&self.records.directory()), self.settings.current().fleet.host.clone());
            Search { config, by_command: self.is_by_command(), known, own_volumes, limit, helpers, host }
        };
        let find = async move |local: Rc<CoreLocal>| local.engine.with_free_buffers(open::find(&local, &search)).await;
        let found_store = self.core().call(find).await;
        let found_store = match found_store.map_err(core_ended)? {
            Ok(found_store) => found_store,
            Err(unused) => {
                self.record_owners(&unused)?;
                return Ok(Err(self.confirm_whole_log(unused)));
            }
        };
        let mut store = FoundStore {
            store: show_uuid(&found_store.identity.store),
            ownership: found_store.identity.ownership,
            devices: found_store.owners(),
            holds_data: true,
        };
        let mut verdict = self.records.view().check_store(&store);
        if matches!(verdict, Err(Refusal::StoreForeign { .. } | Refusal::StoreOlder { .. })) {
            let read = async |local: Rc<CoreLocal>| local.engine.with_free_buffers(open::holds_data(&local)).await;
            store.holds_data = self.core().call(read).await.map_err(core_ended)?;
            verdict = self.records.view().check_store(&store);
        }
        if let (Ok(StoreUse::Known), Some(manifest)) = (&verdict, &found_store.manifest) {
            verdict = self.records.view().check_manifest(&store, manifest).map(|()| StoreUse::Known);
        }
        let store_use = match verdict {
            Ok(store_use) => store_use,
            Err(refusal) => {
                // Closing the devices releases their locks.
                let close = async |local: Rc<CoreLocal>| local.flash_devices.borrow_mut().clear();
                self.core().call(close).await.map_err(core_ended)?;
                self.records.record_refusal(&refusal)?;
                let refusal = refusal.in_directory(&absolute(&self.records.directory()));
                let reason = refusal.text(&self.settings.file());
                return Ok(Err(found_store.name_absent(UnusedFlash { reason, ..UnusedFlash::from(&refusal) })));
            }
        };
        let parameters = self.records.change(|state| {
            state.record_store_use(&store, store_use);
            let record = state.store_mut(&store.store);
            let (generation, sequence_min, map_unusable) = (record.generation, record.sequence, record.map_unusable);
            OpenParameters { ownership: state.ownership(), generation, sequence_min, map_unusable }
        })?;
        let (generations, requests) = mpsc::unbounded_channel();
        let open = async move |local: Rc<CoreLocal>| {
            let open = open::open(&local, config, found_store, parameters, generations);
            local.engine.with_free_buffers(open).await
        };
        match self.core().call(open).await.map_err(core_ended)? {
            Ok(opened) => {
                *self.state.borrow_mut() = Flash::Open(opened.clone());
                tokio::task::spawn_local(record_generations(
                    Rc::downgrade(&self.records),
                    opened.store.clone(),
                    requests,
                ));
                let unclaimed = self.core().call(async |local: Rc<CoreLocal>| local.engine.unclaimed());
                let unclaimed = unclaimed.await.map_err(core_ended)?;
                self.records.change(|state| {
                    state.record_store_opened(&opened.store, opened.generation);
                    state.record_unclaimed(&opened.store, unclaimed);
                    let is_absent = |path: &Path| {
                        let path = path.display().to_string();
                        opened.absent.iter().any(|absent| absent.path == path)
                    };
                    let present: Vec<PathBuf> = devices.iter().filter(|path| !is_absent(path)).cloned().collect();
                    state.record_store_devices(&opened.store, &present, &devices);
                })?;
                self.discard_given_up().await?;
                Ok(Ok(opened))
            }
            Err(unused) => Ok(Err(unused)),
        }
    }

    /// Records that devices which cannot be used prove these records to be older, or may hold data of volumes that the
    /// records lack: such volumes would be served without that data. Devices of another store beside a known one are a
    /// mistake in the list.
    fn record_owners(&self, unused: &UnusedFlash) -> Result<(), Failure> {
        let UnusedFlash { owners, whole_log, .. } = unused;
        let is_empty = |store: &str| {
            let log = whole_log.as_ref().filter(|log| show_uuid(&log.identity.store) == store);
            log.is_some_and(|log| !log.holds_data)
        };
        let knows_one = owners.iter().any(|(store, _)| self.records.view().store(store).is_some());
        for (store, ownership) in owners {
            let holds_data = !is_empty(store);
            let found = FoundStore { store: store.clone(), ownership: *ownership, devices: Vec::new(), holds_data };
            let verdict = self.records.view().check_store(&found);
            match verdict {
                Err(refusal @ Refusal::StateOlder { .. }) => self.records.record_refusal(&refusal)?,
                Err(refusal @ Refusal::StoreForeign { .. }) if !knows_one => self.records.record_refusal(&refusal)?,
                _ => {}
            }
        }
        Ok(())
    }

    /// Keeps the whole log found beside a missing member only if the records confirm it: the state directory knows this
    /// store in this life, and no later membership (R10). Then the reason names the device with the log.
    fn confirm_whole_log(&self, unused: UnusedFlash) -> UnusedFlash {
        let Some(found) = &unused.whole_log else { return unused };
        let state = self.records.view();
        let store = FoundStore {
            store: show_uuid(&found.identity.store),
            ownership: found.identity.ownership,
            devices: found.devices.clone(),
            holds_data: true,
        };
        let is_newest = state.store(&store.store).is_some_and(|record| found.generation >= record.generation);
        if is_newest && state.check_store(&store) == Ok(StoreUse::Known) {
            return UnusedFlash { reason: found.reason.clone(), ..unused };
        }
        UnusedFlash { whole_log: None, ..unused }
    }

    /// Saves whether the store's map of clean pages is unusable. A device that returns may carry the old map, which
    /// must not be trusted; the flag is cleared once a new map is durable.
    pub fn record_map_unusable(&self, map_unusable: bool) -> Result<(), Failure> {
        let Some(store) = self.store() else { return Ok(()) };
        let change = |state: &mut State| state.store_mut(&store).map_unusable = map_unusable;
        self.records.change(change)
    }

    /// Saves which volumes' old clean pages are durably dropped.
    pub async fn record_drops(&self) {
        let pending = self.pending_drops.borrow().clone();
        if pending.is_empty() {
            return;
        }
        let read = async |local: Rc<CoreLocal>| {
            let checked = local.engine.volumes().into_iter().filter(|volume| volume.stats().flash.is_checked);
            checked.map(|volume| volume.spec().volume_id).collect::<Vec<_>>()
        };
        let Ok(checked) = self.core().call(read).await else { return };
        let dropped: Vec<_> = pending.into_iter().filter(|(volume_id, _)| checked.contains(volume_id)).collect();
        let saved = self.records.change(|state| {
            dropped.iter().for_each(|(volume_id, store)| state.record_pages_dropped(*volume_id, store));
        });
        match saved {
            Ok(()) => self
                .pending_drops
                .borrow_mut()
                .retain(|volume_id, _| !dropped.iter().any(|(dropped_id, _)| dropped_id == volume_id)),
            // The next check tries again. A start before that drops the pages once more.
            Err(error) => log::error!(target: FLASH, "{error}"),
        }
    }

    /// Discards the data of volume IDs that was given up from the open log: otherwise it would occupy the log, and a
    /// rebuild of the state directory could bring it back. A full log keeps it until the next start.
    pub async fn discard_given_up(&self) -> Result<(), Failure> {
        if self.store().is_none() {
            return Ok(());
        }
        let unclaimed = self.core().call(async |local: Rc<CoreLocal>| local.engine.unclaimed());
        let mut given_up = unclaimed.await.map_err(core_ended)?;
        given_up.retain(|volume_id| self.records.view().is_given_up(*volume_id));
        for volume_id in given_up {
            let name = self.records.show_volume(volume_id);
            let discard =
                async move |local: Rc<CoreLocal>| local.engine.discard_unclaimed(&name, volume_id, BlockNo::ZERO).await;
            if let Err(error) = self.core().call(discard).await.map_err(core_ended)? {
                log::warn!(target: FLASH, "{error}");
            }
        }
        Ok(())
    }

    /// As [`FlashLog::try_save_manifest`], but logs a failure.
    pub async fn save_manifest(&self) {
        if let Err(failure) = self.try_save_manifest().await {
            log::warn!(target: FLASH, "{failure}");
        }
    }

    /// Copies the records to the flash devices as a manifest, from which `hotset state rebuild` can restore them.
    pub async fn try_save_manifest(&self) -> Result<(), Failure> {
        if self.store().is_none() {
            return Ok(());
        }
        let _saving = self.manifest.lock().await;
        let Some(payload) = self.records.view().manifest(flash::MANIFEST_BYTES_MAX) else {
            let text = "the volume records are too large to be copied to the flash devices: keep a backup of the state \
                        directory";
            return Err(Failure::new(ErrorKind::Failed, text));
        };
        let save = async move |local: Rc<CoreLocal>| match local.engine.log() {
            Some(store) => store.save_manifest(payload).await,
            None => Ok(()),
        };
        self.core().call(save).await.map_err(core_ended)?.map_err(|error| {
            let text = format!("the volume records could not be copied to the flash devices: {error}");
            Failure::new(ErrorKind::Failed, text)
        })
    }

    /// Records that the old clean pages of a volume have to be dropped from a store.
    pub fn plan_drop(&self, volume_id: VolumeId, store: String) {
        self.pending_drops.borrow_mut().insert(volume_id, store);
    }

    /// The identity of the store in use.
    pub fn store(&self) -> Option<String> {
        match &*self.state.borrow() {
            Flash::Open(opened) => Some(opened.store.clone()),
            Flash::Off | Flash::Unused(_) => None,
        }
    }

    /// Permits attaches, after the start has checked the devices and the records against each other.
    pub fn end_start_check(&self) {
        self.start_checked.send_replace(true);
    }

    /// Waits until the start has checked the devices. A volume attached earlier, by command, would be served although
    /// its data in the log is not known yet.
    pub async fn wait_for_start_check(&self) {
        let mut checked = self.start_checked.subscribe();
        checked.wait_for(|is_checked| *is_checked).await.expect("the sender lives as long as this");
    }

    /// True if the configured store was checked against the records and is in use, or none is configured.
    pub fn is_checked(&self) -> bool {
        self.store().is_some() || self.config().is_none()
    }

    /// The faults of the configured devices that could not be read; empty if a store is in use.
    pub fn unread_devices(&self) -> Vec<String> {
        match &*self.state.borrow() {
            Flash::Unused(unused) => unused.unread.clone(),
            Flash::Off | Flash::Open(_) => Vec::new(),
        }
    }

    /// The reason why a store that a volume needs is not in use.
    pub fn unused_reason(&self, store: &str) -> UnusedStore {
        let reason = match &*self.state.borrow() {
            Flash::Off => "[flash] is not configured".to_owned(),
            Flash::Unused(unused) => {
                let whole_log = unused.whole_log.as_ref();
                let has_whole_log = whole_log.is_some_and(|log| show_uuid(&log.identity.store) == store);
                return UnusedStore { reason: unused.reason.clone(), has_whole_log };
            }
            Flash::Open(opened) => format!("the volume needs store {store}, but store {} is in use", opened.store),
        };
        UnusedStore { reason, has_whole_log: false }
    }

    /// Saves whether the log answers the flushes of a volume: before it does so, and after the policy has changed and
    /// the volume was drained.
    pub fn mark_policy_on_flash(
        &self,
        placement: &Placement,
        policy: WritePolicy,
        has_log: bool,
    ) -> Result<(), Failure> {
        let Some(store) = self.store() else { return Ok(()) };
        let store = (policy == WritePolicy::WriteBack && has_log).then_some(store);
        self.records.change(|state| state.mark_on_flash(placement.volume_id, store.as_deref()))
    }

    /// Closes the log; true when the log is intact and holds no needed data.
    pub async fn close(&self) -> bool {
        if self.store().is_none() {
            return false;
        }
        self.save_wear().await;
        let close = async |local: Rc<CoreLocal>| {
            let is_needed = local.engine.needs_log();
            match local.engine.log() {
                Some(store) => store.close().await.map(|sequence| (!is_needed, sequence)),
                None => Ok((false, Sequence(0))),
            }
        };
        match self.core().call(close).await {
            Ok(Ok((is_unneeded, sequence))) => {
                if let Some(store) = self.store() {
                    let saved = self.records.change(|state| {
                        let record = state.store_mut(&store);
                        record.sequence = record.sequence.max(sequence);
                    });
                    // Without the sequence the next start may accept an older copy of the log.
                    if let Err(error) = saved {
                        log::error!(target: FLASH, "{error}");
                    }
                }
                is_unneeded
            }
            Ok(Err(error)) => {
                log::error!(target: FLASH, "the flash log was not cleanly closed: {error}");
                false
            }
            Err(_) => false,
        }
    }
}

/// Saves each membership generation that the log's core announces, and confirms it. No flush is answered before.
async fn record_generations(
    records: Weak<Records>,
    store: String,
    mut requests: mpsc::UnboundedReceiver<open::GenerationToRecord>,
) {
    while let Some((generation, done)) = requests.recv().await {
        let Some(records) = records.upgrade() else { return };
        let saved = records.record_generation(&store, generation).map_err(|failure| failure.message);
        if let Err(reason) = &saved {
            log::error!(target: FLASH, "flushes wait: the loss of a flash device could not be recorded: {reason}");
        }
        // The store may have stopped waiting.
        let _ = done.send(saved);
    }
}

/// Message when write-back volumes run as write-through for lack of a second copy.
const ONE_COPY: &str =
    "one flash device is in service, and allow_single_copy is not set: write-back volumes run as write-through";

/// Problem of devices that the configuration does not name.
const ONLY_BY_COMMAND: &str = "the flash devices were added by command alone, so they cache reads only, and the \
                               backings answer flushes: add [flash] with these devices to the configuration and \
                               restart the daemon, so that flash answers flushes as well";
