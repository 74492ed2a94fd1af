//! Devices of an open pool: one joins a tier, the slices of one move away before it leaves.

use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use flash::{DeviceContent, MemberDisk};
use messages::report::{PoolDrainReport, PoolReport};
use messages::{ErrorKind, Failure};
use pool::{DrainReport, GroupNo, GroupReport, MemberState, PoolDisk, PoolError, TierNo, VolumeId};
use seam::real::{PATH_TIMEOUT, RealDisk, RealSeam};
use seam::{Disk, DiskError, DiskOpen, Nanos, Seam};

use super::super::Cores;
use super::OpenPool;
use super::commands::pool_failure;
use config::{TierChoice, name_devices};
use units::show_bytes;

/// Time in milliseconds for which an addition waits for the lock of a device.
const LOCK_WAIT_MS: u64 = 1_000;
/// Pause of a drain after slices that could not be moved.
const RETRY_PAUSE: Nanos = Nanos::from_secs(10);
/// Time between two looks at the state of a drain that waits.
const STEP: Nanos = Nanos::from_millis(500);

/// A drain since its start, or since the start of the daemon.
pub struct Drain {
    began: Nanos,
    total_bytes: u64,
    /// The reason why slices stay for now.
    problem: Option<String>,
}

/// A device that a command adds to a pool.
pub struct NewDevice {
    /// The device.
    pub path: PathBuf,
    /// Accept a device that is in use or has content, which is destroyed; for an import, a member of another storage
    /// stack.
    pub force: bool,
}

impl Cores {
    /// Adds a device to a tier of a pool.
    pub async fn add_pool_device(&self, name: &str, tier: &str, device: NewDevice) -> Result<PoolReport, Failure> {
        let tier = tier.to_owned();
        self.on_pool(name, async move |open: Rc<OpenPool>| open.add_device(&tier, &device).await).await?
    }

    /// Makes a volume of a device full of data.
    pub async fn import_pool_device(
        &self,
        name: &str,
        tier: &str,
        device: NewDevice,
        volume: &str,
    ) -> Result<PoolReport, Failure> {
        let (tier, volume) = (tier.to_owned(), volume.to_owned());
        self.on_pool(name, async move |open: Rc<OpenPool>| open.import_device(&tier, &device, &volume).await).await?
    }

    /// The identity of a device that is no group of a pool, and its identities in earlier versions.
    pub async fn identities_of_device(&self, name: &str, path: &Path) -> Result<Vec<String>, Failure> {
        let path = path.to_owned();
        let identities = async move |open: Rc<OpenPool>| {
            let disk = open.open_device(&path).await?;
            Ok([vec![disk.identity()], disk.former_identities()].concat())
        };
        self.on_pool(name, identities).await?
    }

    /// Begins the drain of a device of a pool, or cancels it.
    pub async fn drain_pool_device(&self, name: &str, device: &str, cancel: bool) -> Result<PoolReport, Failure> {
        let device = device.to_owned();
        self.on_pool(name, async move |open: Rc<OpenPool>| open.drain(&device, cancel).await).await?
    }

    /// The identity of a volume of a pool as a backing.
    pub async fn pool_volume_identity(&self, name: &str, volume: &str) -> Result<String, Failure> {
        let volume = volume.to_owned();
        let identity = async move |open: Rc<OpenPool>| open.volume_named(&volume).map(|(_, disk)| disk.identity());
        self.on_pool(name, identity).await?
    }

    /// Changes the tier policy of a volume of a pool.
    pub async fn set_pool_policy(&self, name: &str, volume: &str, policy: &str) -> Result<PoolReport, Failure> {
        let (volume, choice) = (volume.to_owned(), TierChoice::named(policy));
        let change = async move |open: Rc<OpenPool>| {
            let (number, _) = open.volume_named(&volume)?;
            let tiers = open.pool.tiers();
            let policy = choice.policy(tiers.iter().map(String::as_str)).ok_or_else(|| {
                let tiers = tiers.join(", ");
                let text =
                    format!("\"{choice}\" is no tier policy: use auto, start-high, highest, lowest or a tier: {tiers}");
                Failure::new(ErrorKind::Invalid, text)
            })?;
            open.pool.set_policy(number, policy).await.map_err(pool_failure)?;
            logging::info!("pool {}: the tier policy of volume {volume} is {choice} by command", open.name);
            Ok(open.report(true))
        };
        self.on_pool(name, change).await?
    }

    /// Deletes a volume of a pool with its data.
    pub async fn delete_pool_volume(&self, name: &str, volume: &str) -> Result<PoolReport, Failure> {
        let volume = volume.to_owned();
        let delete = async move |open: Rc<OpenPool>| {
            let (number, _) = open.volume_named(&volume)?;
            open.pool.remove_volume(number).await.map_err(pool_failure)?;
            Ok(open.report(true))
        };
        self.on_pool(name, delete).await?
    }
}

impl OpenPool {
    pub(super) fn volume_named(&self, volume: &str) -> Result<(VolumeId, PoolDisk<RealSeam, RealDisk>), Failure> {
        let Some(number) = self.pool.volume_named(volume) else {
            let text = format!("pool {} has no volume \"{volume}\"; `hotset pool show {}`", self.name, self.name);
            return Err(Failure::new(ErrorKind::NotFound, text));
        };
        Ok((number, self.pool.volume(number).map_err(pool_failure)?))
    }

    pub(super) async fn add_device(&self, tier: &str, device: &NewDevice) -> Result<PoolReport, Failure> {
        let (path, force) = (&device.path, device.force);
        let number = self.tier_named(tier)?;
        let disk = self.open_device(path).await?;
        let identity = disk.identity();
        self.paths.borrow_mut().insert(identity.clone(), path.into());
        let added = self.pool.add_group(number, disk, force).await;
        if let Err(error) = added {
            let text = name_devices(&error.to_string(), &self.paths.borrow());
            self.paths.borrow_mut().remove(&identity);
            let text = match error {
                PoolError::NotEmpty { .. } => format!("{text} with --force"),
                _ => text,
            };
            return Err(Failure { message: text, ..pool_failure(error) });
        }
        logging::info!("pool {}: {} was added to tier {tier} by command", self.name, path.display());
        Ok(self.report(true))
    }

    async fn import_device(&self, tier: &str, device: &NewDevice, volume: &str) -> Result<PoolReport, Failure> {
        let (path, force) = (&device.path, device.force);
        let number = self.tier_named(tier)?;
        let disk = self.open_device(path).await?;
        match flash::read_device_content(&self.seam, &MemberDisk::Local(disk.clone())).await {
            DeviceContent::NoStore => {}
            DeviceContent::Store(..) => {
                let text = format!("{} holds a flash store of Hotset; specify a device with data", path.display());
                return Err(Failure::new(ErrorKind::Conflict, text));
            }
            DeviceContent::Unknown(reason) => {
                return Err(Failure::new(ErrorKind::Conflict, format!("{}: {reason}", path.display())));
            }
        }
        let identity = disk.identity();
        self.paths.borrow_mut().insert(identity.clone(), path.into());
        let imported = self.pool.import(number, disk, volume, force).await;
        let report = imported.map_err(|error| {
            let text = name_devices(&error.to_string(), &self.paths.borrow());
            let is_pending = self.pool.groups().iter().any(|group| group.state.is_import());
            if !is_pending {
                self.paths.borrow_mut().remove(&identity);
            }
            Failure { message: text, ..pool_failure(error) }
        })?;
        logging::info!(
            "pool {}: {} was imported to tier {tier} as volume {volume} by command: {} slices in place, {} copied",
            self.name,
            path.display(),
            report.slices_in_place,
            report.slices_copied
        );
        Ok(self.report(true))
    }

    fn tier_named(&self, tier: &str) -> Result<TierNo, Failure> {
        let tiers = self.pool.tiers();
        let number = tiers.iter().position(|known| known == tier);
        number.map(|number| TierNo(number as u8)).ok_or_else(|| {
            let text = format!("pool {} has no tier \"{tier}\"; use {}", self.name, tiers.join(", "));
            Failure::new(ErrorKind::Invalid, text)
        })
    }

    /// Opens a device that is no group of a pool.
    async fn open_device(&self, path: &Path) -> Result<RealDisk, Failure> {
        let options = DiskOpen { path: path.into(), create_bytes: None, read_only: false, lock_wait_ms: LOCK_WAIT_MS };
        RealDisk::open_within(&self.seam, &options, PATH_TIMEOUT).await.map_err(|error| {
            let text = match error {
                DiskError::Shared { other, on, .. } => {
                    format!("{} is in use: it lies on the same storage as {} ({on})", path.display(), other.display())
                }
                error => format!("{}: {error}", path.display()),
            };
            Failure::new(ErrorKind::Conflict, text)
        })
    }

    pub(super) async fn drain(self: Rc<Self>, device: &str, cancel: bool) -> Result<PoolReport, Failure> {
        let group = self.member(device)?;
        let (number, shown) = (group.group, self.device(&group));
        let conflict = |text: String| Err(Failure::new(ErrorKind::Conflict, text));
        match (group.state, cancel) {
            (MemberState::Draining, true) => self.pool.cancel_drain(number).await.map_err(pool_failure)?,
            (_, true) => return conflict(format!("{shown} is not being drained")),
            (MemberState::Draining, false) => return conflict(format!("{shown} is being drained already")),
            (_, false) => {
                self.pool.begin_drain(number).await.map_err(|error| drain_failure(&shown, error))?;
                logging::info!("pool {}: {shown} is drained by command", self.name);
                self.start_drain(number);
            }
        }
        Ok(self.report(true))
    }

    /// The member with this path or number.
    pub(super) fn member(&self, device: &str) -> Result<GroupReport, Failure> {
        let number = device.parse().ok().map(GroupNo);
        let is_wanted = |group: &GroupReport| self.device(group) == device || number == Some(group.group);
        let is_listed = |state: MemberState| state.is_member() || state.is_import();
        let mut members = self.pool.groups().into_iter().filter(|group| is_listed(group.state));
        members.find(is_wanted).ok_or_else(|| {
            let name = &self.name;
            let text = format!("{device} is no device of pool {name}; `hotset pool show {name}` lists them");
            Failure::new(ErrorKind::NotFound, text)
        })
    }

    /// Goes on with the drains that an earlier daemon has begun.
    pub(super) fn continue_drains(self: &Rc<Self>) {
        let groups = self.pool.groups().into_iter();
        groups.filter(|group| group.state == MemberState::Draining).for_each(|group| self.start_drain(group.group));
    }

    fn start_drain(self: &Rc<Self>, number: GroupNo) {
        let (began, total_bytes) = (self.seam.now(), self.used_bytes(number));
        let drain = Drain { began, total_bytes, problem: None };
        // A task that a cancel has not ended yet goes on.
        if self.drains.borrow_mut().insert(number, drain).is_none() {
            let open = Rc::clone(self);
            self.seam.spawn(async move {
                open.run_drain(number).await;
                open.drains.borrow_mut().remove(&number);
            });
        }
    }

    async fn run_drain(&self, number: GroupNo) {
        while self.state_of(number) == MemberState::Draining {
            if self.relocation.is_stopped() {
                if !self.relocation.is_paused() {
                    return;
                }
                self.seam.sleep(STEP).await;
                continue;
            }
            let pace = self.pool.pace(&self.relocation.settings_of_command());
            let problem = match self.pool.continue_drain(number, pace).await {
                Ok(DrainReport { left: 0, .. }) => None,
                Ok(DrainReport { left, .. }) => Some(format!("{left} slices could not be moved yet")),
                Err(error) => Some(name_devices(&error.to_string(), &self.paths.borrow())),
            };
            let is_pending = problem.is_some() && !self.relocation.is_stopped();
            if let Some(drain) = self.drains.borrow_mut().get_mut(&number) {
                drain.problem = problem.filter(|_| is_pending);
            }
            let retry_at = self.seam.now() + RETRY_PAUSE;
            while self.has_problem(number) && self.seam.now() < retry_at && !self.relocation.is_stopped() {
                self.seam.sleep(STEP).await;
            }
        }
        let name = &self.name;
        match self.state_of(number) {
            MemberState::Removed => logging::info!("pool {name}: group {number} is empty and was removed"),
            _ => logging::info!("pool {name}: the drain of group {number} was cancelled"),
        }
    }

    /// True while slices of a draining group stay for now. A drain that begins again has no problem.
    fn has_problem(&self, number: GroupNo) -> bool {
        let has_problem = self.drains.borrow().get(&number).is_some_and(|drain| drain.problem.is_some());
        has_problem && self.state_of(number) == MemberState::Draining
    }

    fn state_of(&self, number: GroupNo) -> MemberState {
        self.pool.groups()[usize::from(number.0)].state
    }

    fn used_bytes(&self, number: GroupNo) -> u64 {
        let group = &self.pool.groups()[usize::from(number.0)];
        u64::from(group.slots - group.free) * self.pool.slice_bytes()
    }

    /// Progress of a draining group.
    pub(super) fn drain_report(&self, group: &GroupReport) -> PoolDrainReport {
        let left_bytes = u64::from(group.slots - group.free) * self.pool.slice_bytes();
        let paused = self.relocation.is_paused();
        let drains = self.drains.borrow();
        let Some(drain) = drains.get(&group.group) else {
            return PoolDrainReport { total_bytes: left_bytes, paused, ..PoolDrainReport::default() };
        };
        let done_bytes = drain.total_bytes.saturating_sub(left_bytes);
        let elapsed = Duration::from_nanos(self.seam.now().since(drain.began).0).as_secs_f64();
        PoolDrainReport {
            done_bytes,
            total_bytes: drain.total_bytes,
            left_seconds: (done_bytes > 0).then(|| (elapsed * left_bytes as f64 / done_bytes as f64) as u64),
            paused,
            problem: drain.problem.clone(),
        }
    }
}

/// The failure of a drain that has not begun.
fn drain_failure(device: &str, error: PoolError) -> Failure {
    let text = match error {
        PoolError::LastGroup(_) => format!("{device} is the last device that takes slices; add another one first"),
        PoolError::NoRoomToDrain { needed_bytes, free_bytes, .. } => format!(
            "{device} holds {}, and the other devices have {} free: {} are missing; add a device, or free space",
            show_bytes(needed_bytes),
            show_bytes(free_bytes),
            show_bytes(needed_bytes - free_bytes)
        ),
        error => return pool_failure(error),
    };
    Failure::new(ErrorKind::Conflict, text)
}
