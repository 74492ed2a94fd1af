//! Attaching and detaching volumes: open the backing, identify the volume, save its record, attach it; and the reverse.

use std::collections::BTreeMap;
use std::pin::pin;
use std::rc::Rc;

use control::{Answer, ErrorKind, Failure, ProgressSender};
use engine::{CacheMode, Volume, VolumeSpec, WritePolicy};
use futures_util::future::{Either, select};
use futures_util::stream::{self, StreamExt};
use scsi::{Lun, Removed};
use seam::real::RealSeam;
use seam::{DiskError, Nanos, Seam};

use super::absent::remedy;
use super::daemon::{Daemon, Known, Placed, Standing, core_gone, state_failed};
use super::data_core::Local;
use super::evidence::Subject;
use super::iscsi::UnitPlan;
use super::kept::{self, is_left};
use super::open::{OpenBacking, OpenFacts, OpenPlan, open_backing};
use super::qos::qos_of;
use super::shares::{memory_share_of, share_of};
use super::stop::CLIENTS_PATIENCE;
use config::keys::set_by_command;
use config::{BackingSpec, VolumeConfig, check_name, is_device};
use logging::{self as log, VOLUME};
use state::{
    Acceptance, AddedVolume, Admission, Claim, Evidence, LossRecord, State, VolumeRecord, Waiting, draw_incarnation,
    effective_mode, effective_policy,
};

/// Backings that a core opens concurrently.
const OPENS_AT_ONCE: usize = 32;
/// Time-out for opening a backing. It is longer than the waits for a file lock and for an NBD server, since disks may
/// have to spin up.
const OPEN_PATIENCE: Nanos = Nanos::from_secs(60);

/// An open backing that is not attached to a volume yet.
struct Opened {
    /// The core that opened it and will serve it.
    core: usize,
    /// Its key in the core's map of open backings.
    number: u64,
    facts: OpenFacts,
}

/// A volume that is to be attached to its open backing.
struct Attaching {
    number: u64,
    spec: VolumeSpec,
    file_policy: WritePolicy,
    unit: Option<UnitPlan>,
    /// Writes acknowledged by daemons before this generation may be lost.
    lost_before: u64,
}

/// Findings about the volumes that are to be served.
struct Found {
    /// Blocks that wait to be destaged, by incarnation.
    waiting: BTreeMap<u64, Waiting>,
    /// Content of each backing; `None` for one that is not open.
    evidence: Vec<Option<Result<Evidence, Failure>>>,
}

/// A volume's configuration, and whether it comes from the file.
type WantedVolume = (VolumeConfig, bool);

impl Daemon {
    /// Attaches a volume, or records why it cannot be served.
    pub async fn attach(&self, config: VolumeConfig, from_file: bool, accept: Acceptance) -> Result<(), Failure> {
        self.attach_all(vec![(config, from_file)], accept).await.pop().expect("one answer a volume")
    }

    /// As [`Daemon::attach`] for many volumes, with one call per core and one write of the state directory for all of
    /// them. Attaching a thousand volumes one by one takes a minute on a busy processor.
    pub async fn attach_all(&self, wanted: Vec<WantedVolume>, accept: Acceptance) -> Vec<Result<(), Failure>> {
        let opened = self.open_all(&wanted, accept.adopt).await;
        let found = self.find_all(&opened).await;
        let identified = self.identify_all(&wanted, &opened, found, &accept);
        // Before any volume relies on its new record.
        self.save_manifest().await;
        let placed = self.serve_all(&wanted, opened, identified).await;
        if let Err(failure) = self.drop_left_behind().await {
            log::error!(target: VOLUME, "{}", failure.message);
        }
        let refused = placed.iter().zip(&wanted).filter(|(result, _)| result.is_err()).map(|(_, (config, _))| config);
        self.tell_absent(refused).await;
        let results = wanted.into_iter().zip(placed).map(|((config, from_file), result)| {
            let standing = match &result {
                Ok(placed) => Standing::Serving(placed.clone()),
                Err(failure) => Standing::Refused(failure.message.clone()),
            };
            let name = config.name.clone();
            match &result {
                Err(failure) if matches!(failure.kind, ErrorKind::Unavailable | ErrorKind::Failed) => {
                    self.absent.borrow_mut().plan(&name, std::time::Instant::now());
                }
                _ => self.absent.borrow_mut().forget(&name),
            }
            let refusal = result.as_ref().err().and_then(|failure| failure.refusal.clone());
            self.volumes.borrow_mut().insert(name.clone(), Known { standing, from_file, config, refusal });
            result.map(|_| ()).map_err(|failure| {
                let message = format!("volume {name} is not served: {}", failure.message);
                Failure { message, ..failure }
            })
        });
        results.collect()
    }

    /// Opens all backings, each on its volume's home core.
    async fn open_all(&self, wanted: &[WantedVolume], adopt: bool) -> Vec<Result<Opened, Failure>> {
        let homes = self.homes_of(wanted);
        let mut opened: Vec<_> = wanted.iter().map(|(config, _)| self.open_plan(config, adopt).map(Some)).collect();
        let mut results: BTreeMap<usize, Result<Opened, Failure>> = BTreeMap::new();
        for core in &self.cores {
            let mine = opened.iter_mut().enumerate().filter(|(at, _)| homes[*at] == core.index());
            let (places, plans): (Vec<usize>, Vec<OpenPlan>) =
                mine.filter_map(|(at, plan)| Some((at, plan.as_mut().ok()?.take()?))).unzip();
            let called = core.call(async move |local: Rc<Local>| open_here(&local, plans).await).await;
            match called {
                Ok(each) => results.extend(places.into_iter().zip(each).map(|(at, found)| {
                    let found = found.map_err(|error| self.open_failure(&wanted[at].0, &error, wanted));
                    (at, found.map(|(number, facts)| Opened { core: core.index(), number, facts }))
                })),
                Err(gone) => {
                    let failure = core_gone(gone);
                    results.extend(places.into_iter().map(|at| (at, Err(failure.clone()))));
                }
            }
        }
        let own = self.own_volumes();
        let mut each = Vec::with_capacity(wanted.len());
        for (at, plan) in opened.into_iter().enumerate() {
            let found = plan.and_then(|_| results.remove(&at).expect("every volume has a core"));
            each.push(match found {
                Ok(opened) => match own.check(&wanted[at].0.backing, &opened.facts.nbd_under) {
                    Err(text) => Err(self.close(&opened, Failure::new(ErrorKind::Conflict, text)).await),
                    Ok(()) => Ok(opened),
                },
                Err(failure) => Err(failure),
            });
        }
        each
    }

    /// Attaches identified volumes to their open backings, and closes the other backings.
    async fn serve_all(
        &self,
        wanted: &[WantedVolume],
        opened: Vec<Result<Opened, Failure>>,
        identified: Vec<Result<Admission, Failure>>,
    ) -> Vec<Result<Placed, Failure>> {
        let mut jobs: BTreeMap<usize, Vec<(usize, Attaching)>> = BTreeMap::new();
        let mut results = Vec::with_capacity(wanted.len());
        let mut not_on_flash = Vec::new();
        for (at, ((config, _), (opened, identified))) in
            wanted.iter().zip(opened.into_iter().zip(identified)).enumerate()
        {
            results.push(match (opened, identified) {
                (Ok(opened), Ok(Admission { incarnation, drops_pages })) => match self.unit_plan(config, incarnation) {
                    Err(failure) => Err(self.close(&opened, failure).await),
                    Ok(unit) => {
                        let Opened { core, number, facts } = opened;
                        let spec = VolumeSpec { drops_pages, ..self.spec_of(config, incarnation) };
                        let record = self.state.borrow();
                        let lost_before = record.state().by_incarnation(incarnation).map_or(0, |one| one.lost_before);
                        drop(record);
                        let attaching = Attaching { number, spec, file_policy: config.policy, unit, lost_before };
                        jobs.entry(core).or_default().push((at, attaching));
                        Ok(Placed { incarnation, identity: facts.identity, core, geometry: facts.geometry })
                    }
                },
                (Ok(opened), Err(failure)) => Err(self.close(&opened, failure).await),
                (Err(failure), _) => Err(failure),
            });
        }
        for (core, jobs) in jobs {
            let (places, jobs): (Vec<usize>, Vec<Attaching>) = jobs.into_iter().unzip();
            let attach = async move |local: Rc<Local>| {
                let mut each = Vec::with_capacity(jobs.len());
                for Attaching { number, spec, file_policy, unit, lost_before } in jobs {
                    let name = spec.name.clone();
                    let attached = attach_here(&local, number, spec, file_policy).await;
                    if let (Ok(_), Some(volume)) = (&attached, local.engine.find(&name)) {
                        if let Some(unit) = unit {
                            unit.add(&local, volume.clone());
                        }
                        add_socket(&local, volume, lost_before).await;
                    }
                    each.push(attached);
                }
                each
            };
            let called = self.cores[core].call(attach).await;
            let count = places.len();
            let each = match called {
                Ok(each) => {
                    each.into_iter().map(|one| one.map_err(|text| Failure::new(ErrorKind::Conflict, text))).collect()
                }
                Err(gone) => vec![Err(core_gone(gone)); count],
            };
            for (at, attached) in places.into_iter().zip(each) {
                match (attached, &results[at]) {
                    (Ok(false), Ok(placed)) if !self.may_log(&wanted[at].0) => not_on_flash.push(placed.incarnation),
                    (Ok(_), _) => {}
                    (Err(failure), _) => results[at] = Err(failure),
                }
            }
        }
        self.note_not_on_flash(&not_on_flash);
        results
    }

    fn may_log(&self, config: &VolumeConfig) -> bool {
        let policy = effective_policy(self.state.borrow().state().by_name(&config.name), config.policy);
        policy == WritePolicy::WriteBack && !config.read_only
    }

    /// Clears the "dirty on flash" mark of volumes that have nothing in the flash log. A failure does not affect
    /// service: a stale mark only costs one more check at the next start.
    fn note_not_on_flash(&self, incarnations: &[u64]) {
        if self.flash_store().is_none() {
            return;
        }
        let noted = self.state.borrow_mut().change(|state| {
            incarnations.iter().for_each(|incarnation| state.mark_on_flash(*incarnation, None));
        });
        if let Err(error) = noted {
            log::error!(target: VOLUME, "{error}");
        }
    }

    fn spec_of(&self, config: &VolumeConfig, incarnation: u64) -> VolumeSpec {
        let state = self.state.borrow();
        let record = state.state().by_name(&config.name);
        VolumeSpec {
            policy: effective_policy(record, config.policy),
            mode: effective_mode(record),
            read_only: config.read_only,
            datastore: config.datastore.clone(),
            labels: config.labels.clone(),
            memory: memory_share_of(record, config, self.config.borrow().memory_bytes),
            flash: share_of(record, config),
            qos: qos_of(record, config.qos).of_engine(),
            unflushed_loss: state::unflushed_loss(record, state.state().generation),
            defer: seam::Nanos(u64::try_from(config.defer.as_nanos()).unwrap_or(u64::MAX)),
            ..VolumeSpec::new(&config.name, incarnation)
        }
    }

    /// Closes the backing of a volume that is not attached; returns the failure.
    async fn close(&self, opened: &Opened, why: Failure) -> Failure {
        let number = opened.number;
        let close = async move |local: Rc<Local>| drop(local.opened.borrow_mut().remove(&number));
        self.cores[opened.core].call(close).await.map_or_else(core_gone, |()| why)
    }

    /// The reason why a backing could not be opened, and the remedy.
    pub(super) fn unopened(&self, config: &VolumeConfig, error: &DiskError) -> Failure {
        let is_known = self.state.borrow().state().by_name(&config.name).is_some();
        let text = match error {
            // The error itself names the remedy: the holder of the lock has to close the disk.
            DiskError::Busy(_) => error.to_string(),
            _ => format!("{error}; {}", remedy(&config.backing, config.size_bytes.is_some(), is_known)),
        };
        Failure::new(ErrorKind::Unavailable, text)
    }

    /// The plan for opening a volume's backing. A missing file is created only if a size is given and no volume of that
    /// name was ever served. Otherwise the file may be on a file system that is not mounted, and an empty file would be
    /// served in its place.
    fn open_plan(&self, config: &VolumeConfig, adopt: bool) -> Result<OpenPlan, Failure> {
        let content = || {
            let folder = self.state.borrow().path().join("sim");
            let made = std::fs::create_dir_all(&folder);
            made.map_err(|error| Failure::new(ErrorKind::Failed, format!("{}: {error}", folder.display())))?;
            Ok(folder.join(format!("{}.img", config.name)))
        };
        let backing = match &config.backing {
            BackingSpec::Path(path) => OpenBacking::Path(path.clone()),
            BackingSpec::Nbd(target) => {
                self.check_target(target)?;
                OpenBacking::Nbd(target.clone())
            }
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
        let may_make = match &config.backing {
            BackingSpec::Path(path) => {
                !is_device(path) && (adopt || self.state.borrow().state().by_name(&config.name).is_none())
            }
            _ => true,
        };
        let size_bytes = config.size_bytes.filter(|_| may_make);
        Ok(OpenPlan { backing, size_bytes, read_only: config.read_only })
    }

    /// Chooses each volume's home core: the one with the fewest volumes. Volumes of one array share a core because they
    /// share its spindles.
    fn homes_of(&self, wanted: &[WantedVolume]) -> Vec<usize> {
        let volumes = self.volumes.borrow();
        let served = volumes.values().filter_map(|known| match &known.standing {
            Standing::Serving(placed) | Standing::Removing(placed) => Some((&known.config.backing, placed.core)),
            Standing::Refused(_) => None,
        });
        let (mut load, mut arrays) = (vec![0; self.cores.len()], Vec::new());
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

    /// The blocks that wait for each open backing, and the backing's content; `None` for one that is not open.
    async fn find_all(&self, opened: &[Result<Opened, Failure>]) -> Result<Found, Failure> {
        let waiting = self.waiting().await?;
        let subjects: Vec<_> = {
            let (state, store) = (self.state.borrow(), self.flash_store());
            let subject = |opened: &Result<Opened, Failure>| {
                let Opened { core, number, facts } = opened.as_ref().ok()?;
                let is_it =
                    |identity: &String| *identity == facts.identity || facts.former_identities.contains(identity);
                let record = state.state().volumes.iter().find(|record| is_it(&record.backing_identity));
                let cached_on = record.and_then(|record| record.cached_on.as_ref());
                Some(Subject {
                    core: *core,
                    number: *number,
                    incarnation: record.map(|record| record.incarnation),
                    size_before: record.and_then(|record| record.content.as_ref()).map(|content| content.size_bytes),
                    trusts_store: cached_on
                        .is_some_and(|stores| store.as_ref().is_some_and(|store| stores.contains(store))),
                })
            };
            opened.iter().map(subject).collect()
        };
        let evidence = self.evidence(&subjects).await;
        Ok(Found { waiting, evidence })
    }

    /// Determines the incarnation of each volume on its open backing, saved durably before the volume's first write.
    fn identify_all(
        &self,
        wanted: &[WantedVolume],
        opened: &[Result<Opened, Failure>],
        found: Result<Found, Failure>,
        accept: &Acceptance,
    ) -> Vec<Result<Admission, Failure>> {
        let found = match found {
            Ok(found) => found,
            Err(failure) => return wanted.iter().map(|_| Err(failure.clone())).collect(),
        };
        let mut served = self.served();
        let mut unclean = Vec::new();
        let identified = self.state.borrow_mut().change(|state| {
            let each = wanted.iter().zip(opened).zip(&found.evidence).map(|(((config, _), opened), evidence)| {
                let facts = &opened.as_ref().map_err(Failure::clone)?.facts;
                let evidence = evidence.as_ref().map(Result::as_ref).transpose().map_err(Failure::clone)?;
                state.rename_backing(&facts.former_identities, &facts.identity);
                let known = state.volumes.iter().find(|record| record.backing_identity == facts.identity);
                let whole = self.whole.borrow();
                // This daemon has lost nothing that it acknowledged, however often it attached the volume.
                let generation = state.generation;
                let is_known_whole = |of: u64| of == generation || whole.contains(&of);
                let is_unclean = known.is_some_and(|record| !record.clean && !is_known_whole(record.generation));
                // Clients identify the volume by name: a loss under that name counts, whatever the backing is now.
                let former = [known, state.by_name(&config.name)];
                let is_lost = |record: &VolumeRecord| !record.clean && !is_known_whole(record.generation);
                let loss = former.into_iter().flatten().find_map(|one| state::owed_loss(state, one, is_lost(one)));
                if let Some(refused) =
                    known.filter(|_| is_unclean && !accept.adopt).and_then(|one| self.withheld_in(one))
                {
                    return Err(refused);
                }
                let in_memory = |record: &VolumeRecord| found.waiting.get(&record.incarnation).map(|one| one.in_memory);
                let drops_memory = accept.give_up.is_some()
                    && former.into_iter().flatten().filter_map(in_memory).any(|blocks| blocks > 0);
                let admission = self.identify(state, config, facts, (&found, evidence), accept, &served)?;
                // The blocks given up were acknowledged by a killed daemon to clients that may still be running.
                let given_up = LossRecord { generation, remote_clients: false };
                let loss = if drops_memory { Some(given_up) } else { loss };
                served.push(config.name.clone());
                let policy = effective_policy(state.by_incarnation(admission.incarnation), config.policy);
                let record = state.by_incarnation_mut(admission.incarnation).expect("it was just noted");
                (record.loss, record.durable_writes) = (loss, config.read_only || !policy.defers_writes());
                if is_unclean {
                    unclean.push(&config.name);
                    record.lost_before = generation;
                }
                Ok(admission)
            });
            let each = each.collect::<Vec<Result<Admission, Failure>>>();
            let incarnation =
                |one: &Result<Admission, Failure>| one.as_ref().map(|one| one.incarnation).map_err(Failure::clone);
            let mut units: Vec<Result<u64, Failure>> = each.iter().map(incarnation).collect();
            self.give_luns(state, wanted, &mut units, accept.adopt);
            each.into_iter().zip(units).map(|(one, unit)| unit.and(one)).collect::<Vec<_>>()
        });
        for name in unclean.iter().filter(|_| identified.is_ok()) {
            log::warn!(
                target: VOLUME, volume = name,
                "volume {name} was not cleanly stopped: what its clients had flushed is there, what they had not may \
                 be lost"
            );
        }
        identified.unwrap_or_else(|error| {
            let failure = state_failed(error);
            wanted.iter().map(|_| Err(failure.clone())).collect()
        })
    }

    fn identify(
        &self,
        state: &mut State,
        config: &VolumeConfig,
        facts: &OpenFacts,
        (found, evidence): (&Found, Option<&Evidence>),
        accept: &Acceptance,
        served: &[String],
    ) -> Result<Admission, Failure> {
        let drawn = draw_incarnation().map_err(|error| {
            Failure::new(ErrorKind::Failed, format!("cannot draw an identity from /dev/urandom: {error}"))
        })?;
        let store = self.flash_store();
        let claim = Claim {
            name: &config.name,
            identity: &facts.identity,
            aliases: &facts.former_identities,
            served,
            store: store.as_deref(),
            why_unused: &|store| self.why_no_flash(store),
            waiting: &found.waiting,
            evidence,
            writes: !config.read_only,
            accept,
        };
        let admission = state.identify(&claim, || drawn);
        let admission = admission.map_err(|refusal| Failure::refused(refusal.code(), refusal.to_string()))?;
        let incarnation = admission.incarnation;
        for key in set_by_command() {
            state.expire_override(incarnation, key, &config.setting(key));
        }
        let policy = effective_policy(state.by_name(&config.name), config.policy);
        if store.is_some() && policy == WritePolicy::WriteBack && !config.read_only {
            state.mark_on_flash(incarnation, store.as_deref());
        }
        if admission.drops_pages
            && let Some(store) = store
        {
            self.drops.borrow_mut().insert(incarnation, store);
        }
        Ok(admission)
    }

    /// Detaches a volume: its clients are disconnected, then it is destaged and flushed. On an error it stays in
    /// service.
    pub async fn detach(&self, name: &str, core: usize, progress: &ProgressSender) -> Result<(), Failure> {
        let core = &self.cores[core];
        let volume = name.to_owned();
        let lost_before = self.state.borrow().state().by_name(name).map_or(0, |record| record.lost_before);
        let leave = core.call(async move |local: Rc<Local>| {
            let unit = leave_target(&local, &volume);
            let lun = unit.as_ref().map(|(lun, _)| *lun);
            let guests = async {
                if let Some(vhost_user) = &local.vhost_user {
                    vhost_user.server.remove(&volume, CLIENTS_PATIENCE).await;
                }
            };
            let initiators = release(&local, unit.as_ref());
            futures_util::join!(local.server.disconnect(&volume, CLIENTS_PATIENCE), initiators, guests);
            if let Err(error) = local.engine.detach(&volume).await {
                if let Some(served) = local.engine.find(&volume) {
                    add_socket(&local, served, lost_before).await;
                }
                if let (Some(iscsi), Some((_, unit))) = (&local.iscsi, unit) {
                    iscsi.target().put_back(unit);
                }
                return Err(error);
            }
            // A client that connected meanwhile also holds the backing.
            local.server.disconnect(&volume, seam::Nanos(0)).await;
            if let (Some(iscsi), Some(lun)) = (&local.iscsi, lun) {
                iscsi.target().forget_absent(lun);
            }
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
        let config = config.by_rules(&self.config.borrow().qos);
        Daemon::warn_of_qos(&config);
        let attached = self.attach(config, false, Acceptance::default()).await;
        if let Err(failure) = attached {
            self.volumes.borrow_mut().remove(name);
            // A backing that cannot be opened is an error in the request.
            let is_of_backing = matches!(failure.kind, ErrorKind::Failed | ErrorKind::Unavailable);
            let kind = if is_of_backing { ErrorKind::Conflict } else { failure.kind };
            return Err(Failure { kind, ..failure });
        }
        let placed = self.placed(name)?;
        let added = AddedVolume { backing: backing.to_owned(), size_bytes, policy: policy.to_string(), read_only };
        // The "removed" mark of an entry in the file stays: the added volume keeps the name over a restart.
        let in_file = self.config.borrow().volumes.iter().any(|volume| volume.name == name);
        let noted = self.state.borrow_mut().change(|state| {
            if !in_file {
                state.removed.remove(name);
            }
            if let Some(record) = state.by_incarnation_mut(placed.incarnation) {
                record.added = Some(added);
            }
        });
        noted.map_err(state_failed)?;
        log::info!(target: VOLUME, volume = name, "volume {name} added by command");
        self.show(name).await
    }

    /// `volume remove`: afterwards the backing alone holds the complete data.
    pub async fn remove(&self, name: &str, progress: &ProgressSender) -> Result<Answer, Failure> {
        let _busy = self.begin(name)?;
        let known = self.volumes.borrow().get(name).cloned().ok_or_else(|| Failure::no_volume(name))?;
        if matches!(known.standing, Standing::Refused(_)) && self.may_be_on_flash(name) {
            let text = format!(
                "volume {name} is not served, and data of it may lie in the flash log alone; bring the log's devices \
                 back and start again, \
                 or give that data up: hotset volume adopt {name} names it"
            );
            return Err(Failure::new(ErrorKind::Conflict, text));
        }
        if matches!(known.standing, Standing::Refused(_)) && self.waits_in_log(name).await? {
            let text = format!(
                "volume {name} is not served, and the flash log holds data of it; resolve why it is refused (hotset \
                 volume show {name}), or give \
                 that data up: hotset volume adopt {name} names it"
            );
            return Err(Failure::new(ErrorKind::Conflict, text));
        }
        let left = self.left_in_memory(name).await?;
        if !left.is_empty() {
            let text = format!(
                "volume {name} is not served, and a daemon that was killed left data of it in memory that is not on \
                 its backing; bring that \
                 back, or give the data up: stop hotset, remove {} and start it again",
                left.join(" and ")
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
        self.forget_absent(name).await?;
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
        log::info!(target: VOLUME, volume = name, "volume {name} removed by command");
        let backing = &known.config.backing;
        let mut said = vec![match known.standing {
            Standing::Refused(_) => {
                format!("volume {name} is removed; it was not served, and its backing {backing} is as it was")
            }
            _ => format!("volume {name} is removed; its backing {backing} is complete"),
        }];
        if known.from_file {
            said.push("it stays removed over a restart until its entry in the configuration changes".to_owned());
        }
        Ok(Answer::Said(said))
    }

    /// True when the flash log in use holds data of a volume that is not served.
    async fn waits_in_log(&self, name: &str) -> Result<bool, Failure> {
        let waiting = self.waiting().await?;
        let incarnation = self.state.borrow().state().by_name(name).map(|record| record.incarnation);
        Ok(incarnation.and_then(|one| waiting.get(&one)).is_some_and(|waiting| waiting.in_log > 0))
    }

    /// True when the volume's backing may be incomplete because of dirty data on flash.
    pub(super) fn may_be_on_flash(&self, name: &str) -> bool {
        self.state.borrow().state().by_name(name).is_some_and(|record| record.dirty_on_flash.is_some())
    }

    /// `volume adopt`: declares the backing's present content to be the volume's data. Data that this may lose must be
    /// named in `give_up`.
    pub async fn adopt(&self, name: &str, give_up: Option<String>) -> Result<Answer, Failure> {
        let _busy = self.begin(name)?;
        let known = self.volumes.borrow().get(name).cloned().ok_or_else(|| Failure::no_volume(name))?;
        if !matches!(known.standing, Standing::Refused(_)) {
            let text = format!("volume {name} is served; there is nothing to adopt");
            return Err(Failure::new(ErrorKind::Conflict, text));
        }
        let given_up = give_up.as_ref().map(|data| format!(", and data {data} was given up")).unwrap_or_default();
        self.attach(known.config, known.from_file, Acceptance { adopt: true, give_up, ..Acceptance::default() })
            .await?;
        log::warn!(target: VOLUME, volume = name, "volume {name} adopted its backing by command{given_up}");
        self.show(name).await
    }

    /// Sets a volume's status.
    pub fn stand(&self, name: &str, standing: Standing) {
        if let Some(known) = self.volumes.borrow_mut().get_mut(name) {
            known.standing = standing;
        }
    }
}

/// Creates the volume's vhost-user socket, where vhost-user is configured.
async fn add_socket(local: &Local, volume: Volume<RealSeam>, lost_before: u64) {
    if let Some(vhost_user) = &local.vhost_user {
        vhost_user.add(&local.seam, volume, lost_before).await;
    }
}

/// Removes a volume's unit from the iSCSI target, if there is one.
fn leave_target(local: &Local, volume: &str) -> Option<(Lun, Removed<RealSeam>)> {
    let target = local.iscsi.as_ref()?.target();
    let lun = target.find(volume)?;
    let removed = target.remove(lun)?;
    // The detach may still fail: until then initiators are told to wait.
    target.set_absent(removed.absent());
    Some((lun, removed))
}

/// Waits for the outstanding commands of a removed unit.
async fn release(local: &Local, unit: Option<&(Lun, Removed<RealSeam>)>) {
    if let (Some(iscsi), Some((lun, _))) = (&local.iscsi, unit) {
        iscsi.release(*lun, CLIENTS_PATIENCE).await;
    }
}

/// Opens backings concurrently, so that an unresponsive one delays no other; returns each one's key and facts. Of two
/// volumes on the same storage the first gets it.
async fn open_here(local: &Local, plans: Vec<OpenPlan>) -> Vec<Result<(u64, OpenFacts), DiskError>> {
    let mut of_one_place: BTreeMap<String, Vec<(usize, OpenPlan)>> = BTreeMap::new();
    for (at, plan) in plans.iter().cloned().enumerate() {
        of_one_place.entry(plan.backing.to_string()).or_default().push((at, plan));
    }
    let open = async |plans: Vec<(usize, OpenPlan)>| {
        let mut opened = Vec::with_capacity(plans.len());
        for (at, plan) in plans {
            opened.push((at, open_in_time(local, &plan).await));
        }
        opened
    };
    let opening = stream::iter(of_one_place.into_values()).map(open).buffer_unordered(OPENS_AT_ONCE);
    let mut opened: Vec<_> = opening.collect::<Vec<_>>().await.into_iter().flatten().collect();
    opened.sort_by_key(|(at, _)| *at);
    let mut opened: Vec<_> = opened.into_iter().map(|(_, result)| result).collect();
    first_has_it(local, &plans, &mut opened).await;
    opened
}

/// Gives storage that two volumes share to the first of them. The later volume's path may have been opened sooner; it
/// is closed again, so that every start decides the same way.
async fn first_has_it(local: &Local, plans: &[OpenPlan], opened: &mut [Result<(u64, OpenFacts), DiskError>]) {
    for at in 0..plans.len() {
        let Err(DiskError::Shared { path, other, on }) = &opened[at] else { continue };
        let is_holder = |later: &usize| matches!(&plans[*later].backing, OpenBacking::Path(path) if path == other);
        let Some(later) = (at + 1..plans.len()).find(|later| opened[*later].is_ok() && is_holder(later)) else {
            continue;
        };
        let refused = DiskError::Shared { path: other.clone(), other: path.clone(), on: on.clone() };
        if let Ok((number, _)) = std::mem::replace(&mut opened[later], Err(refused)) {
            drop(local.opened.borrow_mut().remove(&number));
        }
        opened[at] = open_in_time(local, &plans[at]).await;
    }
}

async fn open_in_time(local: &Local, plan: &OpenPlan) -> Result<(u64, OpenFacts), DiskError> {
    let opening = pin!(open_backing(local, plan));
    let patience = pin!(local.seam.sleep(OPEN_PATIENCE));
    let (backing, facts) = match select(opening, patience).await {
        Either::Left((opened, _)) => opened?,
        Either::Right(_) => {
            let text = format!("{} does not answer: it was not open after {OPEN_PATIENCE}", plan.backing);
            return Err(DiskError::Open(text));
        }
    };
    let number = local.next_opened.get();
    local.next_opened.set(number + 1);
    local.opened.borrow_mut().insert(number, backing);
    Ok((number, facts))
}

/// Attaches a volume; on an error nothing stays attached. Returns true when data of the volume may be in the flash log
/// because the policy set by command could not be restored.
async fn attach_here(local: &Local, number: u64, spec: VolumeSpec, file_policy: WritePolicy) -> Result<bool, String> {
    let backing = local.opened.borrow_mut().remove(&number).ok_or("the backing was closed meanwhile")?;
    if spec.read_only && is_left(local, spec.incarnation) {
        let text = "a daemon that was killed left data of it in memory that is not on its backing; serve it without \
                    read_only, then change that";
        return Err(text.to_owned());
    }
    let on_flash = local.engine.unclaimed().contains(&spec.incarnation);
    if on_flash && spec.read_only {
        return Err(
            "the flash log holds data of it that is not on its backing; serve it without read_only, then change that"
                .to_owned(),
        );
    }
    // A change by command that a crash interrupted is repeated once the volume has recovered its data from flash.
    let (policy, mode) = (spec.policy, spec.mode);
    let again = on_flash && file_policy == WritePolicy::WriteBack;
    let spec = match again {
        true => VolumeSpec { policy: file_policy, mode: CacheMode::Active, ..spec },
        false => spec,
    };
    let volume = kept::attach(local, spec, backing).await.map_err(|error| error.to_string())?;
    if !again {
        return Ok(false);
    }
    // A failure here does not prevent service: the volume runs with the settings from before the command.
    let mut changed = volume.set_policy(policy).await;
    if changed.is_ok() {
        changed = volume.set_mode(mode).await;
    }
    if let Err(error) = &changed {
        log::warn!(
            target: VOLUME, volume = volume.name(),
            "volume {}: {policy}, {mode} by command could not be restored: {error}",
            volume.name()
        );
    }
    Ok(changed.is_err())
}
