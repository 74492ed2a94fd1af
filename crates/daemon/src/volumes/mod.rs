//! The volumes that the daemon knows, with their status, the changes under way, and the planned attempts at volumes
//! whose backings cannot be opened.

pub mod absent;

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Instant;

use engine::VolumeId;
use messages::{ErrorKind, Failure};
use seam::Geometry;

use self::absent::Attempts;
use config::volume_qos::VolumeQos;
use config::{BackingSpec, VolumeConfig, is_device};

/// A volume's configuration, and whether it comes from the file.
pub type WantedVolume = (VolumeConfig, bool);

/// Status of a volume.
#[derive(Clone, Debug)]
pub enum Standing {
    /// Served to clients.
    Serving(Placed),
    /// Being destaged before its removal.
    Removing(Placed),
    /// Not served; the failure that says why.
    Refused(Failure),
}

/// The identity and the home core of a served volume.
#[derive(Clone, Debug)]
pub struct Placed {
    /// The persistent identity of the volume.
    pub incarnation: VolumeId,
    /// Identity of its backing, as the backing reports it.
    pub identity: String,
    /// The data core that serves it.
    pub core: usize,
    /// Geometry of the backing when it was opened.
    pub geometry: Geometry,
}

/// A volume that the daemon knows.
#[derive(Clone, Debug)]
pub struct Known {
    /// Its configuration.
    pub config: VolumeConfig,
    /// True if it is in the file; false if it was added by command.
    pub from_file: bool,
    /// Its status.
    pub standing: Standing,
}

impl Known {
    /// The identity and core of a volume that is served or being removed.
    pub fn placed(&self) -> Option<&Placed> {
        match &self.standing {
            Standing::Serving(placed) | Standing::Removing(placed) => Some(placed),
            Standing::Refused(_) => None,
        }
    }

    /// The failure that keeps the volume from being served, if so.
    pub fn refusal(&self) -> Option<&Failure> {
        match &self.standing {
            Standing::Refused(failure) => Some(failure),
            Standing::Serving(_) | Standing::Removing(_) => None,
        }
    }
}

/// All volumes, by name. Nothing in here stays borrowed when a method returns.
#[derive(Default)]
pub struct Volumes {
    known: RefCell<BTreeMap<String, Known>>,
    /// Volumes with a change under way.
    busy: RefCell<BTreeSet<String>>,
    /// Planned attempts at volumes whose backings could not be opened.
    absent: RefCell<Attempts>,
}

/// Guard of a change of one volume: no other change of it can begin while this lives.
pub struct Busy<'a> {
    volumes: &'a Volumes,
    name: String,
}

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        self.volumes.busy.borrow_mut().remove(&self.name);
    }
}

impl Volumes {
    /// Begins a change of a volume; fails while another is under way.
    pub fn begin(&self, name: &str) -> Result<Busy<'_>, Failure> {
        if !self.busy.borrow_mut().insert(name.to_owned()) {
            let text = format!("another change of volume {name} is in progress; try again when it has ended");
            return Err(Failure::new(ErrorKind::Conflict, text));
        }
        Ok(Busy { volumes: self, name: name.to_owned() })
    }

    /// A volume, if it is known.
    pub fn find(&self, name: &str) -> Option<Known> {
        self.known.borrow().get(name).cloned()
    }

    /// A volume; fails if it is not known.
    pub fn known(&self, name: &str) -> Result<Known, Failure> {
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
    pub fn served(&self) -> Vec<String> {
        let known = self.known.borrow();
        known.iter().filter(|(_, known)| known.placed().is_some()).map(|(name, _)| name.clone()).collect()
    }

    /// Results of `of` for each volume, by name.
    pub fn map<T>(&self, of: impl FnMut(&Known) -> T) -> Vec<T> {
        self.known.borrow().values().map(of).collect()
    }

    /// The identity and core of a served volume, or the reason why it is not served.
    pub fn placed(&self, name: &str) -> Result<Placed, Failure> {
        let known = self.known.borrow();
        let known = known.get(name).ok_or_else(|| Failure::no_volume(name))?;
        match &known.standing {
            Standing::Serving(placed) | Standing::Removing(placed) => Ok(placed.clone()),
            Standing::Refused(failure) => {
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
    pub fn name_of(&self, incarnation: VolumeId) -> Option<String> {
        let known = self.known.borrow();
        let is = |known: &Known| known.placed().is_some_and(|placed| placed.incarnation == incarnation);
        known.iter().find(|(_, known)| is(known)).map(|(name, _)| name.clone())
    }

    /// Name of a volume whose backing is that path.
    pub fn at_path(&self, path: &Path) -> Option<String> {
        let known = self.known.borrow();
        let is = |known: &Known| matches!(&known.config.backing, BackingSpec::Path(backing) if backing == path);
        known.iter().find(|(_, known)| is(known)).map(|(name, _)| name.clone())
    }

    /// Chooses each wanted volume's home among `cores` data cores: the one with the fewest volumes. Volumes of one
    /// array share a core because they share its spindles.
    pub fn homes_of(&self, wanted: &[WantedVolume], cores: usize) -> Vec<usize> {
        let known = self.known.borrow();
        let served = known.values().filter_map(|known| Some((&known.config.backing, known.placed()?.core)));
        let (mut load, mut arrays) = (vec![0; cores], Vec::new());
        for (backing, core) in served {
            load[core] += 1;
            arrays.extend(matches!(backing, BackingSpec::SimArray(_)).then_some((backing, core)));
        }
        let mut homes = Vec::with_capacity(wanted.len());
        for (config, _) in wanted {
            let neighbour = arrays.iter().find(|(backing, _)| **backing == config.backing).map(|(_, core)| *core);
            let fewest = || (0..load.len()).min_by_key(|core| load[*core]).expect("a daemon has a data core");
            let core = neighbour.unwrap_or_else(fewest);
            load[core] += 1;
            arrays.extend(matches!(config.backing, BackingSpec::SimArray(_)).then_some((&config.backing, core)));
            homes.push(core);
        }
        homes
    }

    /// Sets a volume's status.
    pub fn stand(&self, name: &str, standing: Standing) {
        if let Some(known) = self.known.borrow_mut().get_mut(name) {
            known.standing = standing;
        }
    }

    /// Records the result of attaching a volume. A volume whose backing cannot be opened is tried again.
    pub fn settle(&self, (config, from_file): WantedVolume, attached: Result<Placed, Failure>) {
        let name = config.name.clone();
        match &attached {
            Err(failure) if matches!(failure.kind, ErrorKind::Unavailable | ErrorKind::Failed) => {
                self.absent.borrow_mut().plan(&name, Instant::now());
            }
            _ => self.absent.borrow_mut().forget(&name),
        }
        let standing = attached.map_or_else(Standing::Refused, Standing::Serving);
        self.known.borrow_mut().insert(name, Known { config, from_file, standing });
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
    pub fn take_due(&self, now: Instant) -> Vec<Known> {
        let mut due = Vec::new();
        let names = self.absent.borrow().names();
        for name in names {
            let known = self.find(&name).filter(|known| known.refusal().is_some());
            let Some(known) = known else {
                self.absent.borrow_mut().forget(&name);
                continue;
            };
            if self.absent.borrow_mut().take_due(&name, path_to_check(&known.config), now) {
                due.push(known);
            }
        }
        due
    }
}

/// The path that has to exist before a volume's backing can be opened.
fn path_to_check(config: &VolumeConfig) -> Option<PathBuf> {
    match &config.backing {
        // A file that the open will create does not exist yet, so its folder is checked instead.
        BackingSpec::Path(path) if config.size_bytes.is_some() && !is_device(path) => {
            path.parent().map(ToOwned::to_owned)
        }
        BackingSpec::Path(path) => Some(path.clone()),
        BackingSpec::Nbd(_) | BackingSpec::Sim(..) | BackingSpec::SimArray(_) => None,
    }
}
