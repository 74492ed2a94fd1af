//! Bringing volumes into service and out of it: open, identify, note, attach; and back.

use std::cell::Cell;
use std::rc::Rc;

use control::{Answer, ErrorKind, Failure, ProgressSender};
use engine::{CacheMode, VolumeSpec, WritePolicy};

use super::daemon::{Daemon, Known, Placed, Standing, core_gone, state_failed};
use super::data_core::{DataCore, Local};
use super::open::{OpenBacking, OpenFacts, OpenPlan, open_backing};
use super::shares::{memory_share_of, share_of};
use super::stop::CLIENTS_PATIENCE;
use crate::config::{BackingSpec, VolumeConfig, check_name};
use crate::log;
use crate::state::{AddedVolume, IdentityError, draw_incarnation, effective_mode, effective_policy};

impl Daemon {
    /// Brings a volume into service, or notes why it cannot be.
    pub async fn attach(&self, config: VolumeConfig, from_file: bool, adopt: bool) -> Result<(), Failure> {
        let result = self.try_attach(&config, adopt).await;
        let standing = match &result {
            Ok(placed) => Standing::Serving(placed.clone()),
            Err(failure) => Standing::Refused(failure.message.clone()),
        };
        let name = config.name.clone();
        self.volumes.borrow_mut().insert(name.clone(), Known { standing, from_file, config });
        result.map(|_| ()).map_err(|failure| {
            let text = format!("volume {name} is not served: {}", failure.message);
            Failure::new(failure.kind, text)
        })
    }

    async fn try_attach(&self, config: &VolumeConfig, adopt: bool) -> Result<Placed, Failure> {
        let core = self.home_of(config);
        let plan = self.open_plan(config)?;
        let (number, facts) = self.open(core, plan).await?;
        let identified = self.identify(config, &facts, adopt);
        let incarnation = match identified {
            Ok(incarnation) => incarnation,
            Err(failure) => {
                let close = async move |local: Rc<Local>| drop(local.opened.borrow_mut().remove(&number));
                core.call(close).await.map_err(core_gone)?;
                return Err(failure);
            }
        };
        let (policy, mode, memory, flash) = {
            let state = self.state.borrow();
            let record = state.state().by_name(&config.name);
            let memory = memory_share_of(record, config, self.config.borrow().memory_bytes);
            (effective_policy(record, config.policy), effective_mode(record), memory, share_of(record, config))
        };
        let may_log = policy == WritePolicy::WriteBack && !config.read_only;
        let spec = VolumeSpec {
            policy,
            mode,
            read_only: config.read_only,
            datastore: config.datastore.clone(),
            labels: config.labels.clone(),
            memory,
            flash,
            defer: seam::Nanos(u64::try_from(config.defer.as_nanos()).unwrap_or(u64::MAX)),
            ..VolumeSpec::new(&config.name, incarnation)
        };
        let file_policy = config.policy;
        let attached =
            core.call(async move |local: Rc<Local>| attach_here(&local, number, spec, file_policy).await).await;
        let attached = attached.map_err(core_gone)?;
        let may_hold = attached.map_err(|error| Failure::new(ErrorKind::Conflict, error))?;
        let placed = Placed { incarnation, identity: facts.identity, core: core.index(), geometry: facts.geometry };
        if !may_log && !may_hold {
            self.note_policy_on_flash(&placed, policy, config.read_only)?;
        }
        Ok(placed)
    }

    fn open_plan(&self, config: &VolumeConfig) -> Result<OpenPlan, Failure> {
        let content = || {
            let folder = self.state.borrow().path().join("sim");
            let made = std::fs::create_dir_all(&folder);
            made.map_err(|error| Failure::new(ErrorKind::Failed, format!("{}: {error}", folder.display())))?;
            Ok(folder.join(format!("{}.img", config.name)))
        };
        let backing = match &config.backing {
            BackingSpec::Path(path) => OpenBacking::Path(path.clone()),
            BackingSpec::Nbd(target) => OpenBacking::Nbd(target.clone()),
            BackingSpec::Sim(array, _) => OpenBacking::OwnArray { array: *array, content: content()? },
            BackingSpec::SimArray(name) => {
                let arrays = &self.config.borrow().arrays;
                let array = arrays.iter().find(|array| array.name == *name).map(|array| array.spec);
                let none = || {
                    Failure::new(
                        ErrorKind::Invalid,
                        format!("there is no [[array]] named \"{name}\"; add one to the configuration"),
                    )
                };
                OpenBacking::SharedArray { name: name.clone(), array: array.ok_or_else(none)?, content: content()? }
            }
        };
        Ok(OpenPlan { backing, size_bytes: config.size_bytes, read_only: config.read_only })
    }

    /// The core with the fewest volumes; volumes of one array share a core, for they share its spindles.
    fn home_of(&self, config: &VolumeConfig) -> &DataCore {
        let volumes = self.volumes.borrow();
        if matches!(config.backing, BackingSpec::SimArray(_)) {
            let mut neighbours = volumes.values().filter(|known| known.config.backing == config.backing);
            let core = neighbours.find_map(|known| match &known.standing {
                Standing::Serving(placed) | Standing::Removing(placed) => Some(placed.core),
                Standing::Refused(_) => None,
            });
            if let Some(core) = core {
                return &self.cores[core];
            }
        }
        let load = |core: usize| {
            let here = volumes
                .values()
                .filter(|known| matches!(&known.standing, Standing::Serving(placed) if placed.core == core));
            here.count()
        };
        self.cores.iter().min_by_key(|core| load(core.index())).expect("a daemon has a data core")
    }

    /// Opens a backing on a core; the number names it there.
    async fn open(&self, core: &DataCore, plan: OpenPlan) -> Result<(u64, OpenFacts), Failure> {
        let open = async move |local: Rc<Local>| {
            let (backing, facts) = open_backing(&local, &plan).await?;
            let number = local.next_opened.get();
            local.next_opened.set(number + 1);
            local.opened.borrow_mut().insert(number, backing);
            Ok((number, facts))
        };
        let opened: Result<_, seam::DiskError> = core.call(open).await.map_err(core_gone)?;
        opened.map_err(|error| Failure::new(ErrorKind::Failed, error.to_string()))
    }

    /// The incarnation of a volume on its open backing, noted durably before the first write.
    fn identify(&self, config: &VolumeConfig, facts: &OpenFacts, adopt: bool) -> Result<u64, Failure> {
        let drawn = draw_incarnation().map_err(|error| {
            Failure::new(ErrorKind::Failed, format!("cannot draw an identity from /dev/urandom: {error}"))
        })?;
        let (served, store) = (self.served(), self.flash_store());
        let mut state = self.state.borrow_mut();
        let unclean = Cell::new(false);
        let identified = state.change(|state| {
            let known = state.volumes.iter().find(|record| record.backing_identity == facts.identity);
            unclean.set(known.is_some_and(|record| !record.clean));
            let held = state.store_of(&facts.identity).map(str::to_owned).filter(|held| store.as_ref() != Some(held));
            if let Some(held) = held.as_ref().filter(|_| !adopt) {
                return Err(IdentityError::OnFlash { name: config.name.clone(), why: self.why_no_flash(held) });
            }
            let mut incarnation = state.identify(&config.name, &facts.identity, adopt, &served, || drawn)?;
            if held.is_some() {
                state.give_up_flash(incarnation, drawn);
                incarnation = drawn;
            }
            for key in super::actions::LIVE {
                state.expire_override(incarnation, key, &config.setting(key));
            }
            let policy = effective_policy(state.by_name(&config.name), config.policy);
            if store.is_some() && policy == WritePolicy::WriteBack && !config.read_only {
                state.mark_on_flash(incarnation, store.as_deref());
            }
            Ok::<u64, IdentityError>(incarnation)
        });
        let identified = identified.map_err(state_failed)?;
        if unclean.get() && identified.is_ok() {
            log::warn(format!(
                "volume {} was not cleanly stopped: what its clients had flushed is there, what they had not may be lost",
                config.name
            ));
        }
        identified.map_err(|error| Failure::new(ErrorKind::Conflict, error.to_string()))
    }

    /// Takes a volume out of service: clients are sent away, everything is destaged and flushed. On an error it goes on being
    /// served.
    pub async fn detach(&self, name: &str, core: usize, progress: &ProgressSender) -> Result<(), Failure> {
        let core = &self.cores[core];
        let volume = name.to_owned();
        let leave = core.call(async move |local: Rc<Local>| {
            local.server.disconnect(&volume, CLIENTS_PATIENCE).await;
            local.engine.detach(&volume).await?;
            // Whoever came meanwhile holds the backing, too.
            local.server.disconnect(&volume, seam::Nanos(0)).await;
            Ok::<(), engine::RequestError>(())
        });
        let left = self.watched(core, name, &format!("destaging {name}"), progress, leave).await.map_err(core_gone)?;
        left.map_err(|error| {
            let text =
                format!("volume {name} could not be destaged ({error}); it goes on being served, nothing is lost");
            Failure::new(ErrorKind::Failed, text)
        })
    }

    /// `volume add`.
    pub async fn add(
        &self,
        name: &str,
        backing: &str,
        size_bytes: Option<u64>,
        policy: Option<&str>,
        read_only: bool,
    ) -> Result<Answer, Failure> {
        let invalid = |error: String| Failure::new(ErrorKind::Invalid, error);
        check_name(name).map_err(invalid)?;
        let _busy = self.begin(name)?;
        if self.volumes.borrow().contains_key(name) {
            return Err(Failure::new(ErrorKind::Conflict, format!("there is a volume named \"{name}\" already")));
        }
        let spec = BackingSpec::parse(backing, std::path::Path::new("/")).map_err(invalid)?;
        let policy = policy.unwrap_or("write-back").parse::<engine::WritePolicy>().map_err(invalid)?;
        let config = VolumeConfig { policy, size_bytes, read_only, ..VolumeConfig::new(name, spec) };
        let attached = self.attach(config, false, false).await;
        if let Err(failure) = attached {
            self.volumes.borrow_mut().remove(name);
            // What cannot be opened is what was named.
            let kind = if failure.kind == ErrorKind::Failed { ErrorKind::Conflict } else { failure.kind };
            return Err(Failure::new(kind, failure.message));
        }
        let placed = self.placed(name)?;
        let added = AddedVolume { backing: backing.to_owned(), size_bytes, policy: policy.to_string(), read_only };
        let noted = self.state.borrow_mut().change(|state| {
            state.removed.remove(name);
            if let Some(record) = state.by_incarnation_mut(placed.incarnation) {
                record.added = Some(added);
            }
        });
        noted.map_err(state_failed)?;
        log::info(format!("volume {name} added by command"));
        self.show(name).await
    }

    /// `volume remove`: afterwards the backing alone is the complete data.
    pub async fn remove(&self, name: &str, progress: &ProgressSender) -> Result<Answer, Failure> {
        let _busy = self.begin(name)?;
        let known = self.volumes.borrow().get(name).cloned().ok_or_else(|| Failure::no_volume(name))?;
        if matches!(known.standing, Standing::Refused(_)) && self.may_be_on_flash(name) {
            let text = format!(
                "volume {name} is not served, and data of it may lie in the flash log alone; bring the log's devices back and start again, \
                 or give that data up: hotset volume adopt {name}"
            );
            return Err(Failure::new(ErrorKind::Conflict, text));
        }
        if let Standing::Serving(placed) = &known.standing {
            self.stand(name, Standing::Removing(placed.clone()));
            if let Err(failure) = self.detach(name, placed.core, progress).await {
                self.stand(name, Standing::Serving(placed.clone()));
                return Err(failure);
            }
        }
        self.volumes.borrow_mut().remove(name);
        let noted = self.state.borrow_mut().change(|state| {
            let (record, serving) = (state.by_name(name).map(|record| record.incarnation), &known.standing);
            match (serving, record) {
                (Standing::Serving(placed), _) => state.forget(placed.incarnation),
                (_, Some(incarnation)) => state.forget(incarnation),
                _ => {}
            }
            if known.from_file {
                state.removed.insert(name.to_owned(), known.config.entry());
            }
        });
        noted.map_err(state_failed)?;
        log::info(format!("volume {name} removed by command"));
        let mut said = vec![format!("volume {name} is removed; its backing {} is complete", known.config.backing)];
        if known.from_file {
            said.push("it stays removed over a restart until its entry in the configuration changes".to_owned());
        }
        Ok(Answer::Said(said))
    }

    /// True when its backing alone may not be complete.
    pub(super) fn may_be_on_flash(&self, name: &str) -> bool {
        self.state.borrow().state().by_name(name).is_some_and(|record| record.dirty_on_flash.is_some())
    }

    /// `volume adopt`: what the backing is now is the volume's data, said in explicit words.
    pub async fn adopt(&self, name: &str) -> Result<Answer, Failure> {
        let _busy = self.begin(name)?;
        let known = self.volumes.borrow().get(name).cloned().ok_or_else(|| Failure::no_volume(name))?;
        if !matches!(known.standing, Standing::Refused(_)) {
            let text = format!("volume {name} is served; there is nothing to adopt");
            return Err(Failure::new(ErrorKind::Conflict, text));
        }
        self.attach(known.config, known.from_file, true).await?;
        log::warn(format!("volume {name} adopted its backing by command"));
        self.show(name).await
    }

    /// Changes how a volume stands.
    pub fn stand(&self, name: &str, standing: Standing) {
        if let Some(known) = self.volumes.borrow_mut().get_mut(name) {
            known.standing = standing;
        }
    }
}

/// What fails here leaves nothing attached: a volume that is served is one that the daemon knows is served.
/// True when something of it may be in the flash log.
async fn attach_here(local: &Local, number: u64, spec: VolumeSpec, file_policy: WritePolicy) -> Result<bool, String> {
    let backing = local.opened.borrow_mut().remove(&number).ok_or("the backing was closed meanwhile")?;
    if local.engine.log().is_none() {
        return local.engine.attach(spec, backing).map(|_| false).map_err(|error| error.to_string());
    }
    let on_flash = local.engine.unclaimed().contains(&spec.incarnation);
    if on_flash && spec.read_only {
        return Err(
            "the flash log holds data of it that is not on its backing; serve it without read_only, then change that"
                .to_owned(),
        );
    }
    // A change by command that a crash overtook is made again once the volume has what is on flash.
    let (policy, mode) = (spec.policy, spec.mode);
    let again = on_flash && file_policy == WritePolicy::WriteBack;
    let spec = match again {
        true => VolumeSpec { policy: file_policy, mode: CacheMode::Active, ..spec },
        false => spec,
    };
    let volume = local.engine.attach_recovered(spec, backing).await.map_err(|error| error.to_string())?;
    if !again {
        return Ok(false);
    }
    // It is served whatever becomes of this: as it was before the command.
    let mut changed = volume.set_policy(policy).await;
    if changed.is_ok() {
        changed = volume.set_mode(mode).await;
    }
    if let Err(error) = &changed {
        log::warn(format!("volume {}: {policy}, {mode} by command could not be restored: {error}", volume.name()));
    }
    Ok(changed.is_err())
}
