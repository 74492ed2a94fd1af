//! The flash log in the daemon: opened before volumes are attached, recorded in the state directory before a volume
//! relies on it, closed last.
//!
//! 1. A volume whose flushes the log answers is durably marked as dirty on flash before it is served; the mark names
//!    the store.
//! 2. The mark is removed after the volume was drained: tombstones in the log are durable by then.
//! 3. A volume with the mark of a store that is not open is not served. Accepting the loss gives the volume a new
//!    incarnation, so that a store that returns later never brings back old data.

mod change;
mod drives;
mod open;
mod smart;
mod watch;
mod wear;

pub use drives::Drives;
pub use wear::Before;

use std::rc::{Rc, Weak};

use control::Failure;
use control::report::{AlertKind, FlashDeviceReport, FlashReport, LostBlockReport, Notice, PagesReport, ScrubReport};
use engine::WritePolicy;
use tokio::sync::mpsc;

use self::open::{Grant, Opened};
use super::daemon::{Daemon, Known, Placed, Standing, core_gone, state_failed};
use super::data_core::{DataCore, Local};
use super::status::CORE_PATIENCE;
use config::FlashConfig;
use logging::{self as log, FLASH};
use state::{Refusal, State, StoreFound, StoreUse, show_uuid};
use units::show_bytes;

/// State of the flash log.
#[derive(Clone, Debug, Default)]
pub enum Flash {
    /// Not configured.
    #[default]
    Off,
    /// In use: it answers flushes.
    Open(Opened),
    /// Configured and not in use.
    Unused(Unused),
}

/// Why the flash log is not in use.
#[derive(Clone, Debug, Default)]
pub struct Unused {
    /// The reason as text.
    pub why: String,
    /// Code of the refusal, if the reason is one.
    pub refusal: Option<&'static str>,
}

impl From<String> for Unused {
    fn from(why: String) -> Unused {
        Unused { why, refusal: None }
    }
}

impl From<&Refusal> for Unused {
    fn from(refusal: &Refusal) -> Unused {
        Unused { why: refusal.to_string(), refusal: Some(refusal.code()) }
    }
}

impl Daemon {
    /// The core that has the log. It is the only one, since volumes on another core would not find the log.
    fn flash_core(&self) -> &DataCore {
        self.cores.first().expect("a daemon has a data core")
    }

    /// Opens the log, if one is configured. An unusable log only affects volumes that need it, and volumes whose data
    /// it may hold unknown to the records.
    pub async fn open_flash(self: &Rc<Self>) -> Result<(), Failure> {
        let Some(mut config) = self.config.borrow().flash.clone() else { return Ok(()) };
        config.devices = self.flash_devices();
        let flash = match self.find_and_open(config).await? {
            Ok(opened) => {
                let made = if opened.formatted { ", made now: its devices were empty" } else { "" };
                let of = match opened.owners {
                    0 => String::new(),
                    1 => ", with data of 1 volume".to_owned(),
                    owners => format!(", with data of {owners} volumes"),
                };
                log::info!(target: FLASH, "flash log {} is in use{made}{of}", opened.store);
                self.rename_devices(&opened.renamed)?;
                opened.absent.iter().for_each(|absent| log::error!(target: FLASH, "flash: {absent}"));
                self.begin_wear();
                Flash::Open(opened)
            }
            Err(unused) => {
                log::error!(target: FLASH, "flash is not used: {}", unused.why);
                Flash::Unused(unused)
            }
        };
        *self.flash.borrow_mut() = flash;
        Ok(())
    }

    /// Finds the store, checks it against the records, saves its new ownership, and only then opens it.
    async fn find_and_open(self: &Rc<Self>, config: FlashConfig) -> Result<Result<Opened, Unused>, Failure> {
        let (of_devices, own) = (config.clone(), self.own_volumes());
        let find = async move |local: Rc<Local>| open::find(&local, of_devices, &own).await;
        let found = self.flash_core().call(find).await;
        let found = match found.map_err(core_gone)? {
            Ok(found) => found,
            Err(unused) => return Ok(Err(unused)),
        };
        let mut store = StoreFound {
            store: show_uuid(&found.identity.store),
            ownership: found.identity.ownership,
            devices: found.owners(),
            holds_data: true,
        };
        let mut judged = self.state.borrow().state().judge_store(&store);
        if matches!(judged, Err(Refusal::StoreForeign { .. } | Refusal::StoreOlder { .. })) {
            let ask = async |local: Rc<Local>| open::holds_data(&local).await;
            store.holds_data = self.flash_core().call(ask).await.map_err(core_gone)?;
            judged = self.state.borrow().state().judge_store(&store);
        }
        if let (Ok(StoreUse::Known), Some(manifest)) = (&judged, &found.manifest) {
            judged = self.state.borrow().state().judge_manifest(&store, manifest).map(|()| StoreUse::Known);
        }
        let used = match judged {
            Ok(used) => used,
            Err(refusal) => {
                // Closing the devices releases their locks.
                let close = async |local: Rc<Local>| local.flash_devices.borrow_mut().clear();
                self.flash_core().call(close).await.map_err(core_gone)?;
                return self.note_refusal(&refusal).map(Err);
            }
        };
        let grant = self.state.borrow_mut().change(|state| {
            state.begin_store(&store, used);
            let record = state.store_mut(&store.store);
            let (generation, sequence_min, map_void) = (record.generation, record.sequence, record.map_void);
            Grant { ownership: state.ownership(), generation, sequence_min, map_void }
        });
        let grant = grant.map_err(state_failed)?;
        let (noter, notes) = mpsc::unbounded_channel();
        let open = async move |local: Rc<Local>| open::open(&local, config, found, grant, noter).await;
        match self.flash_core().call(open).await.map_err(core_gone)? {
            Ok(opened) => {
                let held = self.flash_core().call(async |local: Rc<Local>| local.engine.unclaimed());
                let held = held.await.map_err(core_gone)?;
                let noted = self.state.borrow_mut().change(|state| {
                    state.store_opened(&opened.store, opened.generation);
                    state.note_held(&opened.store, held);
                });
                noted.map_err(state_failed)?;
                tokio::task::spawn_local(note_generations(Rc::downgrade(self), opened.store.clone(), notes));
                Ok(Ok(opened))
            }
            Err(unused) => Ok(Err(unused)),
        }
    }

    /// Saves a refusal. Once found to be an older copy, the state directory counts as one until its records are
    /// rebuilt, even if the store that revealed it is gone.
    fn note_refusal(&self, refusal: &Refusal) -> Result<Unused, Failure> {
        let unused = refusal.into();
        self.state.borrow_mut().change(|state| state.note_store_refusal(refusal)).map_err(state_failed)?;
        Ok(unused)
    }

    /// Saves the membership generation, so that a removed member is never taken for the last one in service.
    fn note_generation(&self, store: &str, generation: u64) -> Result<(), Failure> {
        let change = |state: &mut State| state.store_mut(store).generation = generation;
        self.state.borrow_mut().change(change).map_err(state_failed)
    }

    /// Moves wear records from the names that earlier versions gave devices to their present names.
    fn rename_devices(&self, renamed: &[(String, String)]) -> Result<(), Failure> {
        let known = |former: &String| self.state.borrow().state().wear.contains_key(former);
        if !renamed.iter().any(|(former, _)| known(former)) {
            return Ok(());
        }
        let change = |state: &mut State| {
            for (former, now) in renamed {
                if let Some(written) = state.wear.remove(former) {
                    state.wear.entry(now.clone()).or_insert(written);
                }
            }
        };
        self.state.borrow_mut().change(change).map_err(state_failed)
    }

    /// Saves whether the store's map of clean pages is void. A device that returns may carry the old map, which must
    /// not be trusted; the flag is cleared once a new map is durable.
    pub(super) fn note_map(&self, map_void: bool) -> Result<(), Failure> {
        let Some(store) = self.flash_store() else { return Ok(()) };
        let change = |state: &mut State| state.store_mut(&store).map_void = map_void;
        self.state.borrow_mut().change(change).map_err(state_failed)
    }

    /// Saves which volumes' old clean pages are durably dropped.
    async fn note_drops(&self) {
        let waiting = self.drops.borrow().clone();
        if waiting.is_empty() {
            return;
        }
        let ask = async |local: Rc<Local>| {
            let checked = local.engine.volumes().into_iter().filter(|volume| volume.stats().flash.checked);
            checked.map(|volume| volume.spec().incarnation).collect::<Vec<_>>()
        };
        let Ok(checked) = self.flash_core().call(ask).await else { return };
        let dropped: Vec<_> = waiting.into_iter().filter(|(incarnation, _)| checked.contains(incarnation)).collect();
        let noted = self.state.borrow_mut().change(|state| {
            dropped.iter().for_each(|(incarnation, store)| state.note_pages_dropped(*incarnation, store));
        });
        match noted {
            Ok(()) => {
                self.drops.borrow_mut().retain(|incarnation, _| !dropped.iter().any(|(one, _)| one == incarnation))
            }
            // The next round tries again. A start before that drops the pages once more.
            Err(error) => log::error!(target: FLASH, "{error}"),
        }
    }

    /// Copies the records to the flash devices as a manifest, from which `hotset state rebuild` can restore them.
    pub(crate) async fn save_manifest(&self) {
        if self.flash_store().is_none() {
            return;
        }
        let Some(payload) = self.state.borrow().state().manifest(flash::MANIFEST_BYTES_MAX) else {
            return log::warn!(
                target: FLASH,
                "the records of the volumes are too many to be copied to the flash devices: keep a backup of the \
                 state directory"
            );
        };
        let save = async move |local: Rc<Local>| match local.engine.log() {
            Some(store) => store.save_manifest(payload).await,
            None => Ok(()),
        };
        if let Ok(Err(error)) = self.flash_core().call(save).await {
            log::warn!(target: FLASH, "the records of the volumes could not be copied to the flash devices: {error}");
        }
    }

    /// The identity of the store in use.
    pub fn flash_store(&self) -> Option<String> {
        match &*self.flash.borrow() {
            Flash::Open(opened) => Some(opened.store.clone()),
            Flash::Off | Flash::Unused(_) => None,
        }
    }

    /// The reason why a store that a volume needs is not in use.
    pub fn why_no_flash(&self, store: &str) -> String {
        match &*self.flash.borrow() {
            Flash::Off => "the configuration has no [flash]".to_owned(),
            Flash::Unused(unused) => unused.why.clone(),
            Flash::Open(opened) => format!("that is store {store}, and the one in use is {}", opened.store),
        }
    }

    /// Saves whether the log answers the flushes of a volume: before it does so, and after the policy has changed and
    /// the volume was drained.
    pub fn note_policy_on_flash(&self, placed: &Placed, policy: WritePolicy, read_only: bool) -> Result<(), Failure> {
        let Some(store) = self.flash_store() else { return Ok(()) };
        let store = (policy == WritePolicy::WriteBack && !read_only).then_some(store);
        let noted = self.state.borrow_mut().change(|state| state.mark_on_flash(placed.incarnation, store.as_deref()));
        noted.map_err(state_failed)
    }

    /// Closes the log; true when the log is sound and holds no needed data.
    pub async fn close_flash(&self) -> bool {
        if self.flash_store().is_none() {
            return false;
        }
        self.save_wear().await;
        let close = async |local: Rc<Local>| {
            let unclaimed = local.engine.unclaimed().is_empty();
            let left = local.engine.volumes().iter().any(|volume| volume.stats().flash_dirty_bytes > 0);
            match local.engine.log() {
                Some(store) => store.close().await.map(|sequence| (unclaimed && !left, sequence)),
                None => Ok((false, 0)),
            }
        };
        match self.flash_core().call(close).await {
            Ok(Ok((empty, sequence))) => {
                if let Some(store) = self.flash_store() {
                    let noted = self.state.borrow_mut().change(|state| {
                        let record = state.store_mut(&store);
                        record.sequence = record.sequence.max(sequence);
                    });
                    // Without the sequence the next start may accept an older copy of the log.
                    if let Err(error) = noted {
                        log::error!(target: FLASH, "{error}");
                    }
                }
                empty
            }
            Ok(Err(error)) => {
                log::error!(target: FLASH, "the flash log was not cleanly closed: {error}");
                false
            }
            Err(_) => false,
        }
    }

    /// Report of the flash log; `None` when none is configured.
    pub async fn flash_report(&self) -> Option<FlashReport> {
        let flash = self.flash.borrow().clone();
        let (allow_single_copy, milli_dwpd) = {
            let config = self.config.borrow();
            let flash = config.flash.as_ref()?;
            (flash.allow_single_copy, flash.endurance_milli_dwpd)
        };
        let opened = match flash {
            Flash::Off => return None,
            Flash::Unused(unused) => {
                return Some(FlashReport {
                    allow_single_copy,
                    alerts: vec![Notice::new(AlertKind::FlashUnused, format!("flash is not used: {}", unused.why))],
                    refusal: unused.refusal.map(str::to_owned),
                    ..FlashReport::default()
                });
            }
            Flash::Open(opened) => opened,
        };
        let mut report =
            FlashReport { in_use: true, allow_single_copy, store: opened.store.clone(), ..FlashReport::default() };
        let ask = async |local: Rc<Local>| {
            let log = local.engine.log()?;
            let holders = local.engine.volumes().into_iter().filter(|volume| volume.stats().flash_dirty_bytes > 0);
            let holders: Vec<_> =
                holders.map(|volume| (volume.name().to_owned(), volume.stats().flash_dirty_bytes)).collect();
            let (pages, members) = pages_report(&local);
            let unclaimed = local.engine.unclaimed().len();
            let under_way = (log.job(), log.scrub_stats(), log.lost(), log.unnoted(), log.unanswered());
            let volumes = local.engine.volumes();
            let content = volumes
                .iter()
                .map(|volume| volume.stats().flash)
                .map(|flash| flash.promoted_bytes + flash.logged_bytes);
            let content: u64 = content.sum();
            Some((log.members(), log.copies(), log.room(), holders, unclaimed, pages, (members, content), under_way))
        };
        let asked = tokio::time::timeout(CORE_PATIENCE, self.flash_core().call(ask)).await;
        let Ok(Ok(Some((
            members,
            copies,
            (free, all),
            holders,
            unclaimed,
            pages,
            (written, content),
            (job, scrub, lost, unnoted, unanswered),
        )))) = asked
        else {
            report.alerts.push(Notice::new(AlertKind::CoreSilent, "its data core does not answer"));
            return Some(report);
        };
        if let Some(why) = unnoted {
            report.alerts.push(Notice::new(AlertKind::Other, format!(
                "flushes fail: a flash device is out of service, and the state directory could not note that ({why}); \
                 make it writable, and \
                 they are answered again"
            )));
        }
        if let Some(why) = &pages.dropped {
            report.alerts.push(Notice::new(
                AlertKind::PagesDropped,
                format!("the clean pages from before the start were dropped: {why}"),
            ));
        }
        report.pages = pages;
        let bytes: u64 =
            written.iter().map(|member| member.promotion_bytes + member.journal_bytes + member.log_bytes).sum();
        report.write_amplification = (content > 0).then(|| bytes as f64 / content as f64);
        report.copies = copies;
        report.drives_unread = self.drives.missing();
        (report.free_segments, report.segments) = (free, all);
        report.dirty_bytes = holders.iter().map(|(_, bytes)| bytes).sum();
        report.volumes = holders.into_iter().map(|(name, _)| name).collect();
        report.unclaimed = unclaimed;
        report.job = job.map(|job| change::job_report(job, &members, &opened));
        report.scrub = ScrubReport {
            rounds: scrub.rounds,
            read_bytes: scrub.bytes,
            found: scrub.found,
            repaired: scrub.repaired,
            lost: scrub.lost,
        };
        if scrub.lost > 0 {
            report.alerts.push(Notice::new(AlertKind::FlashDataLost, format!(
                "the scrub found {} blocks of which no copy on flash is good; those that were not overwritten since \
                 cannot be read",
                scrub.lost
            )));
        }
        let lost: Vec<_> = lost.into_iter().map(|owner| self.lost_block(owner)).collect();
        for lost in lost.iter().take(LOST_SHOWN) {
            report.alerts.push(Notice::new(
                AlertKind::FlashDataLost,
                format!(
                    "volume {} ({}): no flash device has a good copy of the 4 KiB at byte {}: reading them fails until \
                 they are written again",
                    lost.volume, lost.incarnation, lost.at_bytes
                ),
            ));
        }
        report.lost = lost;
        for member in members {
            let (state, reason) = match member.status {
                flash::MemberStatus::InService => ("in-service", String::new()),
                flash::MemberStatus::Lost(why) => ("lost", why),
                flash::MemberStatus::Stale => {
                    ("stale", "it was taken out of service earlier; what it holds is old".to_owned())
                }
            };
            let before = member.device.as_ref().and_then(|device| self.wear.borrow().get(device).cloned());
            let device = member.device.map(|device| opened.names.show(&device)).unwrap_or_default();
            if state != "in-service" {
                let named = if device.is_empty() { format!("number {}", member.member) } else { device.clone() };
                report
                    .alerts
                    .push(Notice::new(AlertKind::FlashDegraded, format!("flash device {named} is {state}: {reason}")));
            }
            let (number, size_bytes, state) = (member.member, member.size_bytes.unwrap_or(0), state.to_owned());
            let bytes = written.iter().find(|written| written.member == number).copied().unwrap_or_default();
            let flash::PageMember { promotion_bytes, journal_bytes, log_bytes, .. } = bytes;
            let role = match member.role {
                flash::Role::Log => "log".to_owned(),
                flash::Role::Pages => "pages".to_owned(),
            };
            let mut device = FlashDeviceReport {
                number,
                device,
                size_bytes,
                role,
                promotion_bytes,
                journal_bytes,
                log_bytes,
                unanswered_ms: unanswered.get(&number).map_or(0, |age| age.as_millis()),
                state,
                reason,
                ..FlashDeviceReport::default()
            };
            device.drive = self.drives.of(&device.device);
            wear::report(&mut device, before.as_ref(), &bytes, milli_dwpd);
            report.devices.push(device);
        }
        report.alerts.extend(opened.absent.iter().map(|why| Notice::new(AlertKind::FlashDegraded, why)));
        report.absent = opened.absent.clone();
        let few = match (copies, allow_single_copy) {
            (0, _) => Some((AlertKind::NoCopy, "no flash device is left in service: flushes that need the log fail")),
            (1, true) => Some((
                AlertKind::SingleCopy,
                "flushes are answered from one copy: the next failure loses what it holds",
            )),
            (1, false) => Some((AlertKind::SingleCopy, ONE_COPY)),
            _ => None,
        };
        report.alerts.extend(few.map(|(kind, text)| Notice::new(kind, text)));
        if unclaimed > 0 {
            report.alerts.push(Notice::new(
                AlertKind::FlashUnclaimed,
                format!("the flash log holds data of {unclaimed} volumes that are not served"),
            ));
        }
        Some(report)
    }

    /// Report of a lost block, with its volume's name.
    fn lost_block(&self, owner: flash::Owner) -> LostBlockReport {
        let volumes = self.volumes.borrow();
        let is = |known: &Known| match &known.standing {
            Standing::Serving(placed) | Standing::Removing(placed) => placed.incarnation == owner.incarnation,
            Standing::Refused(_) => false,
        };
        let volume = volumes.iter().find(|(_, known)| is(known)).map(|(name, _)| name.clone());
        LostBlockReport {
            volume: volume.unwrap_or_default(),
            incarnation: format!("{:016x}", owner.incarnation),
            at_bytes: owner.block * seam::BLOCK_BYTES as u64,
        }
    }

    /// Message of a stop that leaves data in the flash log.
    pub fn left_on_flash(left: &[(String, u64)]) -> String {
        let bytes = left.iter().map(|(_, bytes)| bytes).sum();
        let names: Vec<_> = left.iter().map(|(name, _)| name.as_str()).collect();
        format!(
            "stopped; {} of {} are in the flash log and not on the backing: the next start takes them over; `hotset \
             stop --destage` would \
             have brought them there",
            show_bytes(bytes),
            names.join(", ")
        )
    }
}

/// Saves each membership generation that the log's core announces, and confirms it. No flush is answered before.
async fn note_generations(daemon: Weak<Daemon>, store: String, mut notes: mpsc::UnboundedReceiver<open::NoteThis>) {
    while let Some((generation, done)) = notes.recv().await {
        let Some(daemon) = daemon.upgrade() else { return };
        let noted = daemon.note_generation(&store, generation).map_err(|failure| failure.message);
        if let Err(why) = &noted {
            log::error!(target: FLASH, "flushes are not answered: a flash device is out of service, and {why}");
        }
        // The store may have stopped waiting.
        let _ = done.send(noted);
    }
}

/// Report of the clean pages, and the bytes written to each member.
fn pages_report(local: &Local) -> (PagesReport, Vec<flash::PageMember>) {
    let Some(stats) = local.engine.pages().map(|pages| pages.stats()) else { return Default::default() };
    let promotion = local.engine.stats().promotion;
    let report = PagesReport {
        loaded: stats.loaded,
        dropped: local.engine.map_loaded().and_then(|loaded| loaded.dropped),
        slots: stats.slots_max,
        pages: stats.pages,
        valid_bytes: stats.valid_blocks * seam::BLOCK_BYTES as u64,
        suspect: stats.suspect,
        evictions: stats.evictions,
        regions_in_flux: stats.regions_in_flux,
        memory_bytes: stats.memory_bytes + promotion.history_bytes,
        endurance_left_bytes: promotion.left_bytes,
        promotes_one_of: promotion.one_of,
    };
    (report, stats.members)
}

/// Lost blocks that get an alert; the report lists them all.
const LOST_SHOWN: usize = 10;

/// Message when write-back volumes run as write-through for lack of a second copy.
const ONE_COPY: &str =
    "one flash device is in service, and allow_single_copy is not set: write-back volumes run as write-through";
