//! `flash add`, `remove`, `replace`: changes of the flash devices while volumes are served. The state directory keeps
//! the list of devices. A new device is in the list before it becomes a member, and a removed device stays in it until
//! it is no longer a member.

use std::path::{Path, PathBuf};
use std::rc::Rc;

use control::ProgressSender;
use flash::{JobKind, JobReport, MemberDisk, MemberNo, MemberReport, MemberStatus, Store, StoreError};
use messages::report::{self, FlashJobReport, JobOutcome};
use messages::{ErrorKind, Failure};
use seam::Disk;
use seam::real::RealSeam;

use super::super::cores::{CoreLocal, core_ended};
use super::super::overlap::OwnVolumes;
use super::super::progress::report_while;
use super::devices::open_device;
use super::open::OpenedStore;
use super::{Flash, FlashLog};
use crate::device_paths::{REPORT_TIMEOUT, are_same, name_same_devices};
use config::FlashConfig;
use logging::{self as log, FLASH};
use state::FlashDevices;

/// The kind of failure: `Conflict` for a change that was refused or cancelled, `Failed` for a change that has failed.
pub(super) fn kind_of(error: &StoreError) -> ErrorKind {
    match error {
        StoreError::Refused(_) | StoreError::NotEmpty { .. } | StoreError::TooSmall { .. } | StoreError::Cancelled => {
            ErrorKind::Conflict
        }
        _ => ErrorKind::Failed,
    }
}

/// A path as commands name it: absolute, symbolic links not resolved.
pub(super) fn absolute(path: &str) -> Result<PathBuf, Failure> {
    if rbd::is_image_address(path) {
        let text = format!(
            "{path} is an image, which carries the log of a new store only: name it in [flash] before the first start"
        );
        return Err(Failure::new(ErrorKind::Invalid, text));
    }
    let path = Path::new(path);
    match path.is_absolute() {
        true => Ok(path.to_owned()),
        false => Err(Failure::new(
            ErrorKind::Invalid,
            format!("{} is not an absolute path; give the full path", path.display()),
        )),
    }
}

/// The list changed by commands, if it names other devices than `listed`.
async fn differing(by_command: Option<Vec<PathBuf>>, listed: &[PathBuf]) -> Option<Vec<PathBuf>> {
    let devices = by_command?;
    let is_same = name_same_devices(&devices, listed, REPORT_TIMEOUT).await;
    (!is_same).then_some(devices)
}

impl FlashLog {
    /// The devices in force: the list in the file, or the list as changed by commands since.
    pub fn devices(&self) -> Vec<PathBuf> {
        self.devices_by_command().unwrap_or_else(|| self.settings.flash_devices())
    }

    /// The list as changed by commands; `None` while the list in the file is in force.
    pub fn devices_by_command(&self) -> Option<Vec<PathBuf>> {
        let file = self.settings.flash_devices();
        self.records.view().flash_devices_by_command(&file).map(<[PathBuf]>::to_vec)
    }

    /// Sets the devices that the file lists now, as of its last reload. They take effect at the next start.
    pub fn set_file_devices(&self, devices: Vec<PathBuf>) {
        *self.file_devices.borrow_mut() = devices;
    }

    /// The devices in force, if commands have changed them and the file, as of its last reload, does not name the same
    /// ones. During a change, when the list has the joining and the leaving device, those before the change.
    pub(super) async fn unlisted_devices(&self) -> Option<Vec<PathBuf>> {
        if self.change.try_lock().is_err() {
            return self.unlisted.borrow().clone();
        }
        let listed = self.file_devices.borrow().clone();
        let unlisted = differing(self.devices_by_command(), &listed).await;
        *self.unlisted.borrow_mut() = unlisted.clone();
        unlisted
    }

    /// The list as changed by commands, if it is in force and names other devices than the file that was read at the
    /// start.
    pub async fn changed_devices(&self) -> Option<Vec<PathBuf>> {
        differing(self.devices_by_command(), &self.settings.flash_devices()).await
    }

    /// Removes the list that commands made, if the file's list has changed since: it must not apply again when the
    /// file gets its former list.
    pub(super) fn expire_devices(&self) -> Result<(), Failure> {
        let file = self.settings.flash_devices();
        let is_outdated = self.records.view().flash_devices.as_ref().is_some_and(|saved| !saved.is_valid_for(&file));
        if is_outdated { self.records.change(|state| state.flash_devices = None) } else { Ok(()) }
    }

    /// Saves a new list of devices.
    pub(super) fn save_devices(&self, devices: Vec<PathBuf>) -> Result<(), Failure> {
        let file = self.settings.flash_devices();
        let reloaded = Some(self.file_devices.borrow().clone()).filter(|reloaded| *reloaded != file);
        let saved = (file != devices || reloaded.is_some()).then_some(FlashDevices { file, reloaded, devices });
        self.records.change(|state| state.flash_devices = saved)
    }

    async fn add_to_list(&self, path: &Path) -> Result<(), Failure> {
        let same = self.devices_at(path).await;
        let mut devices = self.devices();
        if !devices.iter().any(|device| device == path || same.contains(device)) {
            devices.push(path.to_owned());
        }
        self.save_devices(devices)
    }

    pub(super) async fn remove_from_list(&self, path: &Path) -> Result<(), Failure> {
        let same = self.devices_at(path).await;
        let devices = self.devices().into_iter().filter(|device| !same.contains(device)).collect();
        self.save_devices(devices)
    }

    /// The devices in the list that are at `path`. The list may change meanwhile.
    pub(super) async fn devices_at(&self, path: &Path) -> Vec<PathBuf> {
        let devices = self.devices();
        let is_same = are_same(&devices, path).await;
        devices.into_iter().zip(is_same).filter(|(_, is_same)| *is_same).map(|(device, _)| device).collect()
    }

    /// The open store and its configuration; fails if flash is not in use.
    pub(super) fn opened_flash(&self) -> Result<(OpenedStore, FlashConfig), Failure> {
        let flash = self.state.borrow();
        match (&*flash, self.config()) {
            (Flash::Open(opened), Some(config)) => Ok((opened.clone(), config)),
            (Flash::Unused(unused), _) => {
                Err(Failure::new(ErrorKind::Conflict, format!("flash is not used: {}", unused.reason)))
            }
            (Flash::Off, Some(_)) => Err(Failure::new(ErrorKind::Conflict, "the flash log is not open yet")),
            _ => Err(Failure::new(ErrorKind::Conflict, "no flash device is in use; `hotset flash add` adds one")),
        }
    }

    /// Begins a change of the devices and of their list. A second one would save a list without the first one's device.
    pub fn begin_change(&self) -> Result<tokio::sync::MutexGuard<'_, ()>, Failure> {
        let reason = "another flash device is being added, removed or replaced: wait for that, or cancel it";
        self.change.try_lock().map_err(|_| Failure::new(ErrorKind::Conflict, reason))
    }

    /// Restores the list of devices after a failed change, unless the new device is in service all the same: the next
    /// start would miss it.
    fn restore_devices(&self, before: Vec<PathBuf>, failed: ChangeFailure) -> Failure {
        let ChangeFailure { failure, is_in_service } = failed;
        match if is_in_service { Ok(()) } else { self.save_devices(before) } {
            Ok(()) => failure,
            Err(not_saved) => not_saved,
        }
    }

    /// `flash add`.
    pub async fn add(&self, path: &str, force: bool, progress: &ProgressSender) -> Result<(), Failure> {
        let path = absolute(path)?;
        let _change = self.begin_change()?;
        let before = self.devices();
        let text = format!("adding {}", path.display());
        let change = async move |store: Store<RealSeam>, disk| store.add(disk, force).await;
        self.require_no_member(&path).await?;
        self.add_to_list(&path).await?;
        let changed = self.change_with_device(&path, JobKind::Add, &text, change, progress).await;
        changed.map_err(|failed| self.restore_devices(before, failed))?;
        self.record_devices(std::slice::from_ref(&path)).await?;
        log::info!(target: FLASH, device = %path.display(), "flash device {} was added by command", path.display());
        self.save_generation().await
    }

    /// `flash replace`.
    pub async fn replace(&self, old: &str, new: &str, force: bool, progress: &ProgressSender) -> Result<(), Failure> {
        let new = absolute(new)?;
        let _change = self.begin_change()?;
        let before = self.devices();
        let (member, old_path) = self.member_of(old).await?;
        let text = format!("replacing {old} by {}", new.display());
        let change = async move |store: Store<RealSeam>, disk| store.replace(member, disk, force).await;
        self.require_no_member(&new).await?;
        self.add_to_list(&new).await?;
        let changed = self.change_with_device(&new, JobKind::Replace, &text, change, progress).await;
        changed.map_err(|failed| self.restore_devices(before, failed))?;
        // A device that is absent may be replaced by itself.
        if let Some(path) = old_path
            && !are_same(std::slice::from_ref(&path), &new).await[0]
        {
            self.remove_from_list(&path).await?;
        }
        self.record_devices(std::slice::from_ref(&new)).await?;
        log::info!(
            target: FLASH, device = old, by = %new.display(),
            "flash device {old} was replaced by {} by command",
            new.display()
        );
        self.save_generation().await
    }

    /// `flash remove`.
    pub async fn remove(&self, device: &str, progress: &ProgressSender) -> Result<(), Failure> {
        let _change = self.begin_change()?;
        if self.remove_unused(device).await? {
            return Ok(());
        }
        let (opened, config) = self.opened_flash()?;
        let (member, path) = self.member_of(device).await?;
        let allow = config.allow_single_copy;
        let remove = async move |local: Rc<CoreLocal>| match local.engine.log() {
            Some(store) => store.remove(member, allow).await,
            None => Err(StoreError::Closed),
        };
        let called = self.core().call(remove);
        let result =
            self.report_job_while(&format!("removing {device}"), progress, called).await.map_err(core_ended)?;
        let shown = path.as_ref().map_or_else(|| device.to_owned(), |path| path.display().to_string());
        self.record_end(JobKind::Remove, &shown, result, |text| opened.names.show(text))?;
        if let Some(path) = path {
            self.remove_from_list(&path).await?;
        }
        self.record_devices(&[]).await?;
        log::info!(target: FLASH, device, "flash device {device} was removed by command");
        self.save_generation().await
    }

    /// `flash pause`, `resume`, `cancel`.
    pub async fn control_job(&self, action: fn(&Store<RealSeam>) -> bool) -> Result<(), Failure> {
        self.opened_flash()?;
        let call = async move |local: Rc<CoreLocal>| local.engine.log().is_some_and(|store| action(&store));
        match self.core().call(call).await.map_err(core_ended)? {
            true => self.save_generation().await,
            false => Err(Failure::new(ErrorKind::Conflict, "no change of the flash devices is in progress")),
        }
    }

    /// Saves the paths of the store's devices, of which `added` are new: a start never creates such a file again. The
    /// devices get the paths, too: if the state directory is lost, they tell which devices the store has now.
    async fn record_devices(&self, added: &[PathBuf]) -> Result<(), Failure> {
        let Some(store) = self.store() else { return Ok(()) };
        let listed = self.devices();
        self.records.change(|state| state.record_store_devices(&store, added, &listed))?;
        self.save_manifest().await;
        Ok(())
    }

    /// Saves the membership generation that the log has now.
    async fn save_generation(&self) -> Result<(), Failure> {
        let generation = async |local: Rc<CoreLocal>| local.engine.log().map(|log| log.generation());
        match (self.store(), self.core().call(generation).await) {
            (Some(store), Ok(Some(generation))) => self.records.record_generation(&store, generation),
            _ => Ok(()),
        }
    }

    /// The members with their paths. Of an absent device the path may not be known.
    async fn members_with_paths(&self) -> Result<Vec<(MemberReport, Option<PathBuf>)>, Failure> {
        let (opened, _) = self.opened_flash()?;
        let read = async |local: Rc<CoreLocal>| local.engine.log().map(|log| log.members()).unwrap_or_default();
        let members = self.core().call(read).await.map_err(core_ended)?;
        let with_path = |member: MemberReport| {
            let path = opened.path_of(&member).map(PathBuf::from);
            (member, path)
        };
        Ok(members.into_iter().map(with_path).collect())
    }

    /// Refuses a new device that is a member in service.
    async fn require_no_member(&self, path: &Path) -> Result<(), Failure> {
        let mut in_service = self.members_with_paths().await?;
        in_service.retain(|(member, path)| member.status == MemberStatus::InService && path.is_some());
        let paths: Vec<PathBuf> = in_service.iter().filter_map(|(_, path)| path.clone()).collect();
        let is_same = are_same(&paths, path).await;
        match in_service.iter().zip(is_same).find(|(_, is_same)| *is_same) {
            None => Ok(()),
            Some(((member, _), _)) => {
                let text = format!(
                    "{} is flash device {} already, in service; name another device (`hotset flash list` shows those \
                     in use)",
                    path.display(),
                    member.member
                );
                Err(Failure::new(ErrorKind::Conflict, text))
            }
        }
    }

    /// Finds a member by its path or its number.
    pub(super) async fn member_of(&self, device: &str) -> Result<(MemberNo, Option<PathBuf>), Failure> {
        let (members, paths): (Vec<_>, Vec<_>) = self.members_with_paths().await?.into_iter().unzip();
        // An empty path stands for an absent device whose path is not known.
        let searched: Vec<PathBuf> = paths.iter().map(|path| path.clone().unwrap_or_default()).collect();
        let is_same = are_same(&searched, Path::new(device)).await;
        for ((member, path), is_same) in members.into_iter().zip(paths).zip(is_same) {
            if is_same && path.is_some() || device.parse() == Ok(member.member.0) {
                return Ok((member.member, path));
            }
        }
        Err(Failure::new(
            ErrorKind::NotFound,
            format!("{device} is not a flash device in use; `hotset flash list` shows them"),
        ))
    }

    /// Opens a device and runs `change` with it.
    async fn change_with_device<F>(
        &self,
        path: &Path,
        kind: JobKind,
        activity: &str,
        change: impl FnOnce(Store<RealSeam>, MemberDisk<RealSeam>) -> F + Send + 'static,
        progress: &ProgressSender,
    ) -> Result<(), ChangeFailure>
    where
        F: Future<Output = Result<MemberNo, StoreError>> + 'static,
    {
        let (opened, config) = self.opened_flash().map_err(ChangeFailure::before)?;
        let (device, own) = (path.to_owned(), OwnVolumes::new(&self.records.view()));
        let call = async move |local: Rc<CoreLocal>| {
            // A device that cannot be opened is an error in the request.
            let opened = open_device(&local, &config, &device, &own).await;
            let disk = match opened {
                Ok(disk) => disk,
                Err(absent) => return (None, false, Err(StoreError::Refused(absent.reason))),
            };
            let identity = disk.identity();
            let Some(store) = local.engine.log() else {
                return (None, false, Err(StoreError::Closed));
            };
            let changed = change(store.clone(), MemberDisk::Local(disk)).await;
            let is_new = |member: &MemberReport| member.device.as_ref() == Some(&identity);
            let serves = |member: &MemberReport| member.status == MemberStatus::InService;
            let is_in_service = store.members().iter().any(|member| is_new(member) && serves(member));
            (Some(identity), is_in_service, changed)
        };
        let called = self.core().call(call);
        let called = self.report_job_while(activity, progress, called).await;
        let (identity, is_in_service, result) =
            called.map_err(|ended| ChangeFailure { failure: core_ended(ended), is_in_service: true })?;
        let (mut names, shown) = (opened.names, path.display().to_string());
        identity.iter().for_each(|identity| names.add(identity.clone(), path));
        let ended = self.record_end(kind, &shown, result, |text| names.show(text));
        if let Flash::Open(opened) = &mut *self.state.borrow_mut()
            && is_in_service
        {
            identity.into_iter().for_each(|identity| opened.admit(identity, path));
        }
        ended.map(drop).map_err(|failure| ChangeFailure { failure, is_in_service })
    }

    /// Records the end of a change of the members and returns its result to the caller. `show` replaces device
    /// identities by names. A refused change has not begun, so it is not recorded.
    fn record_end<T>(
        &self,
        kind: JobKind,
        device: &str,
        result: Result<T, StoreError>,
        show: impl Fn(&str) -> String,
    ) -> Result<T, Failure> {
        let end = |outcome, reason: &str| self.jobs.end_flash(reported_kind(kind), device, outcome, reason);
        let error = match result {
            Ok(done) => {
                end(JobOutcome::Done, "");
                return Ok(done);
            }
            Err(error) => error,
        };
        let failure = Failure::new(kind_of(&error), show(&error.to_string()));
        match error {
            StoreError::Cancelled => end(JobOutcome::Cancelled, &failure.message),
            _ if failure.kind == ErrorKind::Failed => end(JobOutcome::Failed, &failure.message),
            _ => {}
        }
        Err(failure)
    }

    /// Awaits `action`, and meanwhile reports the progress of the change.
    async fn report_job_while<T>(
        &self,
        activity: &str,
        progress: &ProgressSender,
        action: impl Future<Output = T>,
    ) -> T {
        let report = async || {
            let read = async |local: Rc<CoreLocal>| local.engine.log().and_then(|log| log.job());
            if let Ok(Some(job)) = self.core().call(read).await {
                progress.report_copied(activity, job.done_bytes, job.total_bytes);
            }
        };
        report_while(action, report).await
    }
}

/// A change of the devices that failed.
struct ChangeFailure {
    failure: Failure,
    /// The new device is in service, or may be.
    is_in_service: bool,
}

impl ChangeFailure {
    /// The change has not begun.
    fn before(failure: Failure) -> ChangeFailure {
        ChangeFailure { failure, is_in_service: false }
    }
}

/// A kind of change, as jobs report it.
fn reported_kind(kind: JobKind) -> report::JobKind {
    match kind {
        JobKind::Add => report::JobKind::FlashAdd,
        JobKind::Remove => report::JobKind::FlashRemove,
        JobKind::Replace => report::JobKind::FlashReplace,
        JobKind::TakeOver => report::JobKind::TakeOver,
    }
}

/// Report of a change that is under way.
pub fn job_report(job: JobReport, members: &[MemberReport], opened: &OpenedStore) -> FlashJobReport {
    let member = members.iter().find(|member| Some(member.member) == job.member);
    let device = match member.and_then(|member| opened.path_of(member)) {
        Some(path) => path,
        None => job.member.map(|member| format!("device {member}")).unwrap_or_default(),
    };
    let remaining_bytes = job.total_bytes.saturating_sub(job.done_bytes);
    // The age is in nanoseconds.
    let left_seconds = (job.done_bytes > 0).then(|| {
        let seconds = u128::from(job.age.0) * u128::from(remaining_bytes) / u128::from(job.done_bytes) / 1_000_000_000;
        seconds as u64
    });
    FlashJobReport {
        kind: reported_kind(job.kind),
        device,
        done_bytes: job.done_bytes,
        total_bytes: job.total_bytes,
        left_seconds,
        paused: job.is_paused,
    }
}
