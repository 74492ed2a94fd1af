//! The volumes that the daemon knows, with their status, the changes under way, and the planned attempts to open
//! backings that could not be opened.

pub mod open_attempts;
mod standby;

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::{Duration, Instant};

use engine::VolumeId;
use messages::{ErrorKind, Failure};
use rbd::StandbyReport;
use seam::Geometry;
use tokio::sync::Notify;

use self::open_attempts::OpenAttempts;
use self::standby::StandbyNotes;
pub use self::standby::{STANDBY, standby_text};
use config::volume_qos::VolumeQos;
use config::{BackingSpec, VolumeConfig, is_device};

/// Time for which a command waits for an attempt of the daemon to attach its volume.
const ATTEMPT_WAIT: Duration = Duration::from_secs(20);
/// Pause between two checks for its end.
const ATTEMPT_POLL: Duration = Duration::from_millis(50);

/// A volume's configuration, and whether it comes from the file.
pub type RequestedVolume = (VolumeConfig, bool);

/// Status of a volume.
#[derive(Clone, Debug)]
pub enum VolumeStatus {
    /// Served to clients.
    Serving(Placement),
    /// Being destaged before its removal.
    Removing(Placement),
    /// Not served, with the failure that prevents it.
    Refused(Failure),
    /// Not served, because another host owns its image. The failure says so to requests.
    Standby(Failure, Box<StandbyReport>),
}

/// The identity and the home core of a served volume.
#[derive(Clone, Debug)]
pub struct Placement {
    /// The persistent identity of the volume.
    pub volume_id: VolumeId,
    /// Identity of its backing, as the backing reports it.
    pub identity: String,
    /// The data core that serves it.
    pub core: usize,
    /// Geometry of the backing when it was opened.
    pub geometry: Geometry,
    /// Number of the ownership of its image, if several hosts reach that.
    pub ownership: Option<u64>,
    /// Version of the image's header when this host claimed it after a release, if no other client can have written
    /// between.
    pub released_version: Option<u64>,
}

/// A volume that the daemon knows.
#[derive(Clone, Debug)]
pub struct KnownVolume {
    /// Its configuration.
    pub config: VolumeConfig,
    /// True if it is in the file; false if it was added by command.
    pub from_file: bool,
    /// Its status.
    pub status: VolumeStatus,
}

impl KnownVolume {
    /// The identity and core of a volume that is served or being removed.
    pub fn placement(&self) -> Option<&Placement> {
        match &self.status {
            VolumeStatus::Serving(placement) | VolumeStatus::Removing(placement) => Some(placement),
            VolumeStatus::Refused(_) | VolumeStatus::Standby(..) => None,
        }
    }

    /// The last report of the owner of its image, if that is another host.
    pub fn standby(&self) -> Option<&StandbyReport> {
        match &self.status {
            VolumeStatus::Standby(_, report) => Some(report),
            VolumeStatus::Serving(_) | VolumeStatus::Removing(_) | VolumeStatus::Refused(_) => None,
        }
    }

    /// The failure that prevents service of the volume, if any.
    pub fn refusal(&self) -> Option<&Failure> {
        match &self.status {
            VolumeStatus::Refused(failure) | VolumeStatus::Standby(failure, _) => Some(failure),
            VolumeStatus::Serving(_) | VolumeStatus::Removing(_) => None,
        }
    }
}

/// All volumes, by name. No method returns a borrow of the cells, so callers may await between calls.
#[derive(Default)]
pub struct Volumes {
    known: RefCell<BTreeMap<String, KnownVolume>>,
    /// Volumes with a change under way.
    changing: RefCell<BTreeSet<String>>,
    /// Volumes whose attach continues after its caller has stopped waiting.
    late_attaches: RefCell<BTreeSet<String>>,
    /// Number of attaches that a caller waits for.
    attaches: Cell<usize>,
    attach_ended: Notify,
    /// True once a stop has begun: no attach begins any more.
    is_stopping: Cell<bool>,
    /// Planned attempts to open backings that could not be opened.
    attempts: RefCell<OpenAttempts>,
    /// Claims and owners of images.
    standby: StandbyNotes,
}

/// Guard of a change of one volume: no other change of it can begin while this lives.
pub struct ChangeGuard<'a> {
    volumes: &'a Volumes,
    name: String,
}

impl Drop for ChangeGuard<'_> {
    fn drop(&mut self) {
        self.volumes.changing.borrow_mut().remove(&self.name);
    }
}

/// Guard of an attach: a stop waits while this lives.
pub struct AttachGuard<'a>(&'a Volumes);

impl Drop for AttachGuard<'_> {
    fn drop(&mut self) {
        self.0.attaches.set(self.0.attaches.get() - 1);
        self.0.attach_ended.notify_one();
    }
}

impl Volumes {
    /// Begins an attach; fails once a stop has begun, because the stop's drain would not see the volume.
    pub fn begin_attach(&self) -> Result<AttachGuard<'_>, Failure> {
        if self.is_stopping.get() {
            return Err(Failure::new(ErrorKind::Unavailable, "the daemon is stopping"));
        }
        self.attaches.set(self.attaches.get() + 1);
        Ok(AttachGuard(self))
    }

    /// Permits no further attach, and waits until those that have begun have ended or continue as late attaches.
    pub async fn end_attaches(&self) {
        self.is_stopping.set(true);
        while self.attaches.get() > 0 {
            self.attach_ended.notified().await;
        }
    }

    /// Volumes other than `requested` that are served, or whose attach or other change is under way: their backings
    /// belong to them.
    pub fn occupied_names(&self, requested: &[RequestedVolume]) -> Vec<String> {
        let mut names: BTreeSet<String> = self.served_names().into_iter().collect();
        let in_progress = self.changing.borrow().union(&self.late_attaches.borrow()).cloned().collect::<BTreeSet<_>>();
        let is_requested = |name: &String| requested.iter().any(|(config, _)| config.name == *name);
        names.extend(in_progress.into_iter().filter(|name| !is_requested(name)));
        names.into_iter().collect()
    }

    /// Begins a change of a volume; fails while another is under way.
    pub fn lock_for_change(&self, name: &str) -> Result<ChangeGuard<'_>, Failure> {
        if self.late_attaches.borrow().contains(name) || !self.changing.borrow_mut().insert(name.to_owned()) {
            let text = format!("another change of volume {name} is in progress; try again when it has ended");
            return Err(Failure::new(ErrorKind::Conflict, text));
        }
        Ok(ChangeGuard { volumes: self, name: name.to_owned() })
    }

    /// True while a change of the volume is in progress.
    pub fn is_changing(&self, name: &str) -> bool {
        self.changing.borrow().contains(name)
    }

    /// As [`Volumes::lock_for_change`], but waits for the end of an attempt to attach the volume that the daemon makes
    /// by itself.
    pub async fn wait_for_change(&self, name: &str) -> Result<ChangeGuard<'_>, Failure> {
        let deadline = Instant::now() + ATTEMPT_WAIT;
        loop {
            match self.lock_for_change(name) {
                Err(_) if Instant::now() < deadline => tokio::time::sleep(ATTEMPT_POLL).await,
                locked => return locked,
            }
        }
    }

    /// Makes a change of a volume in a task of its own, so that nothing waits for it; does nothing while another change
    /// of the volume is under way.
    pub fn spawn_change(self: &Rc<Self>, name: &str, change: impl Future<Output = ()> + 'static) {
        let (volumes, name) = (self.clone(), name.to_owned());
        tokio::task::spawn_local(async move {
            if let Ok(_guard) = volumes.lock_for_change(&name) {
                change.await;
            }
        });
    }

    /// Prevents changes of a refused volume, and further attempts to attach it, until its late attach has ended.
    pub fn begin_late_attach(&self, name: &str) {
        self.late_attaches.borrow_mut().insert(name.to_owned());
        self.attempts.borrow_mut().cancel(name);
    }

    /// Ends a late attach: changes of the volume are permitted again.
    pub fn end_late_attach(&self, name: &str) {
        self.late_attaches.borrow_mut().remove(name);
    }

    /// True while the attach of a refused volume continues.
    pub fn has_late_attach(&self) -> bool {
        !self.late_attaches.borrow().is_empty()
    }

    /// A volume, if it is known.
    pub fn find(&self, name: &str) -> Option<KnownVolume> {
        self.known.borrow().get(name).cloned()
    }

    /// A volume; fails if it is not known.
    pub fn get(&self, name: &str) -> Result<KnownVolume, Failure> {
        self.find(name).ok_or_else(|| Failure::no_volume(name))
    }

    /// True when the volume is known.
    pub fn contains(&self, name: &str) -> bool {
        self.known.borrow().contains_key(name)
    }

    /// Number of volumes.
    pub fn count(&self) -> usize {
        self.known.borrow().len()
    }

    /// Names of all volumes.
    pub fn names(&self) -> Vec<String> {
        self.known.borrow().keys().cloned().collect()
    }

    /// Names of the volumes that are served.
    pub fn served_names(&self) -> Vec<String> {
        let known = self.known.borrow();
        known.iter().filter(|(_, known)| known.placement().is_some()).map(|(name, _)| name.clone()).collect()
    }

    /// Results of `read` for each volume, by name.
    pub fn map<T>(&self, read: impl FnMut(&KnownVolume) -> T) -> Vec<T> {
        self.known.borrow().values().map(read).collect()
    }

    /// The identity and core of a served volume, or the reason why it is not served.
    pub fn placement(&self, name: &str) -> Result<Placement, Failure> {
        let known = self.known.borrow();
        let known = known.get(name).ok_or_else(|| Failure::no_volume(name))?;
        match &known.status {
            VolumeStatus::Serving(placement) | VolumeStatus::Removing(placement) => Ok(placement.clone()),
            VolumeStatus::Standby(failure, _) => {
                Err(Failure { message: format!("volume {name} is on standby: {}", failure.message), ..failure.clone() })
            }
            VolumeStatus::Refused(failure) => {
                let text = format!("volume {name} is not served: {}", failure.message);
                Err(Failure::new(ErrorKind::Conflict, text))
            }
        }
    }

    /// A volume's configuration, from the file or from the command that added it.
    pub fn config_of(&self, name: &str) -> Result<VolumeConfig, Failure> {
        let known = self.known.borrow().get(name).map(|known| known.config.clone());
        known.ok_or_else(|| Failure::no_volume(name))
    }

    /// The value that a volume's own entry gives a key; `None` for an unknown volume.
    pub fn setting(&self, name: &str, key: &str) -> Option<String> {
        self.known.borrow().get(name).map(|known| known.config.setting(key))
    }

    /// Name of the served volume with that identity.
    pub fn name_of(&self, volume_id: VolumeId) -> Option<String> {
        let known = self.known.borrow();
        let is_match =
            |known: &KnownVolume| known.placement().is_some_and(|placement| placement.volume_id == volume_id);
        known.iter().find(|(_, known)| is_match(known)).map(|(name, _)| name.clone())
    }

    /// Name of a volume whose backing is that path.
    pub fn name_at_path(&self, path: &Path) -> Option<String> {
        let known = self.known.borrow();
        let is_match =
            |known: &KnownVolume| matches!(&known.config.backing, BackingSpec::Path(backing) if backing == path);
        known.iter().find(|(_, known)| is_match(known)).map(|(name, _)| name.clone())
    }

    /// Chooses the home core of each requested volume among `cores` data cores: the core with the fewest volumes.
    /// Volumes of one modelled array share a core because they share its state; pools are on the first core.
    pub fn choose_cores(&self, requested: &[RequestedVolume], cores: usize) -> Vec<usize> {
        let known = self.known.borrow();
        let served = known.values().filter_map(|known| Some((&known.config.backing, known.placement()?.core)));
        let (mut load, mut arrays) = (vec![0; cores], Vec::new());
        for (backing, core) in served {
            load[core] += 1;
            arrays.extend(is_shared(backing).then_some((backing, core)));
        }
        let mut home_cores = Vec::with_capacity(requested.len());
        for (config, _) in requested {
            let array_core = arrays.iter().find(|(backing, _)| **backing == config.backing).map(|(_, core)| *core);
            let fewest = || (0..load.len()).min_by_key(|core| load[*core]).expect("a daemon has a data core");
            let core = match &config.backing {
                BackingSpec::Pool(_) => 0,
                _ => array_core.unwrap_or_else(fewest),
            };
            load[core] += 1;
            arrays.extend(is_shared(&config.backing).then_some((&config.backing, core)));
            home_cores.push(core);
        }
        home_cores
    }

    /// Sets a volume's status.
    pub fn set_status(&self, name: &str, status: VolumeStatus) {
        if let Some(known) = self.known.borrow_mut().get_mut(name) {
            known.status = status;
        }
    }

    /// Records the result of attaching a volume. A volume whose backing cannot be opened is tried again.
    pub fn record_attached(&self, (config, from_file): RequestedVolume, attached: Result<Placement, Failure>) {
        let name = config.name.clone();
        match &attached {
            Err(failure) if matches!(failure.kind, ErrorKind::Unavailable | ErrorKind::Failed) => {
                self.attempts.borrow_mut().plan(&name, Instant::now());
            }
            _ => self.attempts.borrow_mut().cancel(&name),
        }
        let status = match attached {
            Ok(placement) => {
                self.standby.forget_mark(&name);
                VolumeStatus::Serving(placement)
            }
            Err(failure) => self.standby.status_of(&name, failure),
        };
        self.known.borrow_mut().insert(name, KnownVolume { config, from_file, status });
    }

    /// Removes a volume.
    pub fn remove(&self, name: &str) {
        self.known.borrow_mut().remove(name);
    }

    /// Replaces the configuration of the known volume of its name.
    pub fn reconfigure(&self, config: VolumeConfig) {
        if let Some(known) = self.known.borrow_mut().get_mut(&config.name) {
            known.config = config;
        }
    }

    /// Replaces the quality of service in a volume's configuration.
    pub fn set_qos(&self, name: &str, qos: VolumeQos) {
        if let Some(known) = self.known.borrow_mut().get_mut(name) {
            known.config.qos = qos;
        }
    }

    /// The refused volumes whose next attempt is due, and whose path exists if they have one.
    pub fn take_due(&self, now: Instant) -> Vec<KnownVolume> {
        let mut due = Vec::new();
        let names = self.attempts.borrow().names();
        for name in names {
            let known = self.find(&name).filter(|known| known.refusal().is_some());
            let Some(known) = known else {
                self.attempts.borrow_mut().cancel(&name);
                continue;
            };
            if self.attempts.borrow_mut().take_due(&name, path_to_check(&known.config), now) {
                due.push(known);
            }
        }
        due
    }
}

/// The path that has to exist before a volume's backing can be opened.
fn path_to_check(config: &VolumeConfig) -> Option<PathBuf> {
    match &config.backing {
        // A file that the open will create does not exist yet, so its directory is checked instead.
        BackingSpec::Path(path) if config.size_bytes.is_some() && !is_device(path) => {
            path.parent().map(ToOwned::to_owned)
        }
        BackingSpec::Path(path) => Some(path.clone()),
        BackingSpec::Nbd(_)
        | BackingSpec::Rbd(_)
        | BackingSpec::Sim(..)
        | BackingSpec::SimArray(_)
        | BackingSpec::Pool(_) => None,
    }
}

/// True if several volumes may have this backing, on one core.
fn is_shared(backing: &BackingSpec) -> bool {
    matches!(backing, BackingSpec::SimArray(_))
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use futures_util::FutureExt;
    use tokio::task::LocalSet;

    use super::*;

    #[tokio::test]
    async fn stop_waits_for_attaches_and_permits_no_further_one() {
        let volumes = Volumes::default();
        let attach = volumes.begin_attach().expect("no stop has begun");
        let mut end = std::pin::pin!(volumes.end_attaches());
        assert!(end.as_mut().now_or_never().is_none(), "an attach has not ended");
        assert!(volumes.begin_attach().is_err());
        drop(attach);
        end.await;
    }

    #[tokio::test]
    async fn hung_change_of_a_volume_delays_no_other_volume() {
        let (volumes, hung_is_over) = (Rc::new(Volumes::default()), Rc::new(Notify::new()));
        let begun = Rc::new(RefCell::new(Vec::new()));
        let change_both = async || {
            for name in ["hung", "works"] {
                let (begun, hung_is_over) = (begun.clone(), hung_is_over.clone());
                volumes.spawn_change(name, async move {
                    begun.borrow_mut().push(name);
                    if name == "hung" {
                        hung_is_over.notified().await;
                    }
                });
            }
            tokio::task::yield_now().await;
            begun.take()
        };
        let tasks = LocalSet::new();
        tasks
            .run_until(async {
                assert_eq!(change_both().await, ["hung", "works"]);
                assert!(volumes.lock_for_change("hung").is_err() && volumes.lock_for_change("works").is_ok());
                assert_eq!(change_both().await, ["works"], "one change of a volume at a time");
                hung_is_over.notify_one();
                tokio::task::yield_now().await;
                assert_eq!(change_both().await, ["hung", "works"]);
            })
            .await;
    }

    #[test]
    fn volume_names_with_a_change_in_progress_are_occupied() {
        let volumes = Volumes::default();
        let changing = volumes.lock_for_change("web").expect("no other change");
        volumes.begin_late_attach("db");
        assert_eq!(volumes.occupied_names(&[]), ["db", "web"]);
        let requested = (VolumeConfig::new("web", BackingSpec::Path(PathBuf::from("/w.img"))), true);
        assert_eq!(volumes.occupied_names(&[requested]), ["db"], "a volume does not occupy its own backing");
        drop(changing);
        volumes.end_late_attach("db");
        assert!(volumes.occupied_names(&[]).is_empty());
    }

    #[test]
    fn mark_of_a_refusal_is_forgotten_once_the_volume_is_served() {
        let volumes = Volumes::default();
        let requested = (VolumeConfig::new("web", BackingSpec::Path(PathBuf::from("/w.img"))), true);
        let mark = rbd::Mark { id: 7, host: "alpha".to_owned(), log: None };
        volumes.note_mark("web", mark.clone());
        volumes.record_attached(requested.clone(), Err(Failure::new(ErrorKind::Unavailable, "no answer")));
        assert_eq!(volumes.mark_of("web"), Some(mark), "the data is not in the backing yet");
        let geometry = Geometry {
            size_bytes: 4096,
            logical_block: 512,
            physical_block: 512,
            stripe_bytes: 0,
            queue_depth: 1,
            fast_zero: false,
        };
        let placement = Placement {
            volume_id: VolumeId(1),
            identity: "i".to_owned(),
            core: 0,
            geometry,
            ownership: None,
            released_version: None,
        };
        volumes.record_attached(requested, Ok(placement));
        assert_eq!(volumes.mark_of("web"), None);
    }
}
