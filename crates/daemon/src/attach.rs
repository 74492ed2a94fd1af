//! Attaching and detaching volumes: open the backing, identify the volume, save its record, attach it; and the reverse.

use std::collections::BTreeMap;

use control::{Answer, ErrorKind, Failure, ProgressSender};
use engine::{VolumeSpec, WritePolicy};
use seam::DiskError;

use super::cores::{Attaching, OpenBacking, OpenFacts, OpenPlan, Opened, Subject};
use super::daemon::Daemon;
use super::overlap::OwnVolumes;
use super::qos::{qos_of, warn_of};
use super::shares::{memory_share_of, share_of};
use super::volumes::absent::remedy;
use super::volumes::{Placed, Standing, WantedVolume};
use config::keys::set_by_command;
use config::{BackingSpec, VolumeConfig, check_name, is_device};
use state::{
    Acceptance, AddedVolume, Admission, Claim, Evidence, LossRecord, State, VolumeRecord, Waiting, draw_incarnation,
    effective_mode, effective_policy,
};
use terminal::log;

/// Findings about the volumes that are to be served.
struct Found {
    /// Blocks that wait to be destaged, by incarnation.
    waiting: BTreeMap<u64, Waiting>,
    /// Content of each backing; `None` for one that is not open.
    evidence: Vec<Option<Result<Evidence, Failure>>>,
}

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
        self.flash.save_manifest().await;
        let placed = self.serve_all(&wanted, opened, identified).await;
        if let Err(failure) = self.memory.drop_unneeded().await {
            log::error(&failure.message);
        }
        let refused = placed.iter().zip(&wanted).filter(|(result, _)| result.is_err()).map(|(_, (config, _))| config);
        self.units.tell_absent(refused).await;
        let results = wanted.into_iter().zip(placed).map(|((config, from_file), result)| {
            let name = config.name.clone();
            self.volumes.settle((config, from_file), result.clone());
            result.map(|_| ()).map_err(|failure| {
                let message = format!("volume {name} is not served: {}", failure.message);
                Failure { message, ..failure }
            })
        });
        results.collect()
    }

    /// Opens all backings, each on its volume's home core.
    async fn open_all(&self, wanted: &[WantedVolume], adopt: bool) -> Vec<Result<Opened, Failure>> {
        let homes = self.volumes.homes_of(wanted, self.cores.count());
        let mut opened: Vec<_> = wanted.iter().map(|(config, _)| self.open_plan(config, adopt).map(Some)).collect();
        let mut results: BTreeMap<usize, Result<Opened, Failure>> = BTreeMap::new();
        for core in self.cores.iter() {
            let mine = opened.iter_mut().enumerate().filter(|(at, _)| homes[*at] == core.index());
            let (places, plans): (Vec<usize>, Vec<OpenPlan>) =
                mine.filter_map(|(at, plan)| Some((at, plan.as_mut().ok()?.take()?))).unzip();
            match self.cores.open(core.index(), plans).await {
                Ok(each) => results.extend(places.into_iter().zip(each).map(|(at, found)| {
                    let found = found.map_err(|error| self.open_failure(&wanted[at].0, &error, wanted));
                    (at, found.map(|(number, facts)| Opened { core: core.index(), number, facts }))
                })),
                Err(failure) => results.extend(places.into_iter().map(|at| (at, Err(failure.clone())))),
            }
        }
        let own = OwnVolumes::new(&self.records.view());
        let mut each = Vec::with_capacity(wanted.len());
        for (at, plan) in opened.into_iter().enumerate() {
            let found = plan.and_then(|_| results.remove(&at).expect("every volume has a core"));
            each.push(match found {
                Ok(opened) => match own.check(&wanted[at].0.backing, &opened.facts.nbd_under) {
                    Err(text) => Err(self.cores.close(&opened, Failure::new(ErrorKind::Conflict, text)).await),
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
                (Ok(opened), Ok(Admission { incarnation, drops_pages })) => {
                    match self.units.plan(config, incarnation) {
                        Err(failure) => Err(self.cores.close(&opened, failure).await),
                        Ok(unit) => {
                            let Opened { core, number, facts } = opened;
                            let spec = VolumeSpec { drops_pages, ..self.spec_of(config, incarnation) };
                            let record = self.records.view().by_incarnation(incarnation).map(|one| one.lost_before);
                            let lost_before = record.unwrap_or(0);
                            let attaching = Attaching { number, spec, file_policy: config.policy, unit, lost_before };
                            jobs.entry(core).or_default().push((at, attaching));
                            Ok(Placed { incarnation, identity: facts.identity, core, geometry: facts.geometry })
                        }
                    }
                }
                (Ok(opened), Err(failure)) => Err(self.cores.close(&opened, failure).await),
                (Err(failure), _) => Err(failure),
            });
        }
        for (core, jobs) in jobs {
            let (places, jobs): (Vec<usize>, Vec<Attaching>) = jobs.into_iter().unzip();
            let each = self.cores.attach(core, jobs).await;
            for (at, attached) in places.into_iter().zip(each) {
                match (attached, &results[at]) {
                    (Ok(false), Ok(placed)) if !self.records.may_log(&wanted[at].0) => {
                        not_on_flash.push(placed.incarnation)
                    }
                    (Ok(_), _) => {}
                    (Err(failure), _) => results[at] = Err(failure),
                }
            }
        }
        self.note_not_on_flash(&not_on_flash);
        results
    }

    /// Clears the "dirty on flash" mark of volumes that have nothing in the flash log. A failure does not affect
    /// service: a stale mark only costs one more check at the next start.
    fn note_not_on_flash(&self, incarnations: &[u64]) {
        if self.flash.store().is_none() {
            return;
        }
        let noted = self.records.change(|state| {
            incarnations.iter().for_each(|incarnation| state.mark_on_flash(*incarnation, None));
        });
        if let Err(error) = noted {
            log::error(error.to_string());
        }
    }

    fn spec_of(&self, config: &VolumeConfig, incarnation: u64) -> VolumeSpec {
        let state = self.records.view();
        let record = state.by_name(&config.name);
        VolumeSpec {
            policy: effective_policy(record, config.policy),
            mode: effective_mode(record),
            read_only: config.read_only,
            datastore: config.datastore.clone(),
            labels: config.labels.clone(),
            memory: memory_share_of(record, config, self.settings.current().memory_bytes),
            flash: share_of(record, config),
            qos: qos_of(record, config.qos).of_engine(),
            unflushed_loss: state::unflushed_loss(record, state.generation),
            defer: seam::Nanos(u64::try_from(config.defer.as_nanos()).unwrap_or(u64::MAX)),
            ..VolumeSpec::new(&config.name, incarnation)
        }
    }

    /// The reason why a backing could not be opened, and the remedy.
    pub(super) fn unopened(&self, config: &VolumeConfig, error: &DiskError) -> Failure {
        let is_known = self.records.view().by_name(&config.name).is_some();
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
            let folder = self.records.folder().join("sim");
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
                let arrays = &self.settings.current().arrays;
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
                !is_device(path) && (adopt || self.records.view().by_name(&config.name).is_none())
            }
            _ => true,
        };
        let size_bytes = config.size_bytes.filter(|_| may_make);
        Ok(OpenPlan { backing, size_bytes, read_only: config.read_only })
    }

    /// The blocks that wait for each open backing, and the backing's content; `None` for one that is not open.
    async fn find_all(&self, opened: &[Result<Opened, Failure>]) -> Result<Found, Failure> {
        let waiting = self.cores.waiting().await?;
        let subjects: Vec<_> = {
            let (state, store) = (self.records.view(), self.flash.store());
            let subject = |opened: &Result<Opened, Failure>| {
                let Opened { core, number, facts } = opened.as_ref().ok()?;
                let is_it =
                    |identity: &String| *identity == facts.identity || facts.former_identities.contains(identity);
                let record = state.volumes.iter().find(|record| is_it(&record.backing_identity));
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
        let evidence = self.cores.evidence(&subjects).await;
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
        let mut served = self.volumes.served();
        let mut unclean = Vec::new();
        let identified = self.records.change(|state| {
            let each = wanted.iter().zip(opened).zip(&found.evidence).map(|(((config, _), opened), evidence)| {
                let facts = &opened.as_ref().map_err(Failure::clone)?.facts;
                let evidence = evidence.as_ref().map(Result::as_ref).transpose().map_err(Failure::clone)?;
                state.rename_backing(&facts.former_identities, &facts.identity);
                let known = state.volumes.iter().find(|record| record.backing_identity == facts.identity);
                // This daemon has lost nothing that it acknowledged, however often it attached the volume.
                let generation = state.generation;
                let is_known_whole = |of: u64| of == generation || self.memory.is_intact(of);
                let is_unclean = known.is_some_and(|record| !record.clean && !is_known_whole(record.generation));
                // Clients identify the volume by name: a loss under that name counts, whatever the backing is now.
                let former = [known, state.by_name(&config.name)];
                let is_lost = |record: &VolumeRecord| !record.clean && !is_known_whole(record.generation);
                let loss = former.into_iter().flatten().find_map(|one| state::owed_loss(state, one, is_lost(one)));
                if let Some(refused) =
                    known.filter(|_| is_unclean && !accept.adopt).and_then(|one| self.memory.withheld_in(one))
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
            self.units.give_luns(state, &self.volumes.names(), wanted, &mut units, accept.adopt);
            each.into_iter().zip(units).map(|(one, unit)| unit.and(one)).collect::<Vec<_>>()
        });
        for name in unclean.iter().filter(|_| identified.is_ok()) {
            log::warn(format!(
                "volume {name} was not cleanly stopped: what its clients had flushed is there, what they had not may \
                 be lost"
            ));
        }
        identified.unwrap_or_else(|failure| wanted.iter().map(|_| Err(failure.clone())).collect())
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
        let store = self.flash.store();
        let claim = Claim {
            name: &config.name,
            identity: &facts.identity,
            aliases: &facts.former_identities,
            served,
            store: store.as_deref(),
            why_unused: &|store| self.flash.why_unused(store),
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
            self.flash.plan_drop(incarnation, store);
        }
        Ok(admission)
    }

    /// Detaches a volume ([`Cores::detach`](super::cores::Cores::detach)).
    pub async fn detach(&self, name: &str, core: usize, progress: &ProgressSender) -> Result<(), Failure> {
        self.cores.detach(name, core, self.records.lost_before(name), progress).await
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
        let _busy = self.volumes.begin(name)?;
        if self.volumes.contains(name) {
            return Err(Failure::new(ErrorKind::Conflict, format!("there is a volume named \"{name}\" already")));
        }
        let spec = BackingSpec::parse(backing, std::path::Path::new("/")).map_err(invalid)?;
        let policy = policy.unwrap_or("write-back").parse::<engine::WritePolicy>().map_err(invalid)?;
        let config = VolumeConfig { policy, size_bytes, read_only, ..VolumeConfig::new(name, spec) };
        let config = config.by_rules(&self.settings.current().qos);
        warn_of(&config);
        let attached = self.attach(config, false, Acceptance::default()).await;
        if let Err(failure) = attached {
            self.volumes.remove(name);
            // A backing that cannot be opened is an error in the request.
            let is_of_backing = matches!(failure.kind, ErrorKind::Failed | ErrorKind::Unavailable);
            let kind = if is_of_backing { ErrorKind::Conflict } else { failure.kind };
            return Err(Failure { kind, ..failure });
        }
        let placed = self.volumes.placed(name)?;
        let added = AddedVolume { backing: backing.to_owned(), size_bytes, policy: policy.to_string(), read_only };
        // The "removed" mark of an entry in the file stays: the added volume keeps the name over a restart.
        let in_file = self.settings.current().volumes.iter().any(|volume| volume.name == name);
        let noted = self.records.change(|state| {
            if !in_file {
                state.removed.remove(name);
            }
            if let Some(record) = state.by_incarnation_mut(placed.incarnation) {
                record.added = Some(added);
            }
        });
        noted?;
        log::info(format!("volume {name} added by command"));
        self.show(name).await
    }

    /// `volume remove`: afterwards the backing alone holds the complete data.
    pub async fn remove(&self, name: &str, progress: &ProgressSender) -> Result<Answer, Failure> {
        let _busy = self.volumes.begin(name)?;
        let known = self.volumes.known(name)?;
        if known.refusal().is_some() && self.records.may_be_on_flash(name) {
            let text = format!(
                "volume {name} is not served, and data of it may lie in the flash log alone; bring the log's devices \
                 back and start again, \
                 or give that data up: hotset volume adopt {name} names it"
            );
            return Err(Failure::new(ErrorKind::Conflict, text));
        }
        if known.refusal().is_some() && self.waits_in_log(name).await? {
            let text = format!(
                "volume {name} is not served, and the flash log holds data of it; resolve why it is refused (hotset \
                 volume show {name}), or give \
                 that data up: hotset volume adopt {name} names it"
            );
            return Err(Failure::new(ErrorKind::Conflict, text));
        }
        let left = self.memory.left_of(name).await?;
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
            self.volumes.stand(name, Standing::Removing(placed.clone()));
            if let Err(failure) = self.detach(name, placed.core, progress).await {
                self.volumes.stand(name, Standing::Serving(placed.clone()));
                return Err(failure);
            }
        }
        self.units.forget_absent(name).await?;
        self.volumes.remove(name);
        let noted = self.records.change(|state| {
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
        noted?;
        log::info(format!("volume {name} removed by command"));
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
        let waiting = self.cores.waiting().await?;
        let incarnation = self.records.view().by_name(name).map(|record| record.incarnation);
        Ok(incarnation.and_then(|one| waiting.get(&one)).is_some_and(|waiting| waiting.in_log > 0))
    }

    /// `volume adopt`: declares the backing's present content to be the volume's data. Data that this may lose must be
    /// named in `give_up`.
    pub async fn adopt(&self, name: &str, give_up: Option<String>) -> Result<Answer, Failure> {
        let _busy = self.volumes.begin(name)?;
        let known = self.volumes.known(name)?;
        if known.refusal().is_none() {
            let text = format!("volume {name} is served; there is nothing to adopt");
            return Err(Failure::new(ErrorKind::Conflict, text));
        }
        let given_up = give_up.as_ref().map(|data| format!(", and data {data} was given up")).unwrap_or_default();
        self.attach(known.config, known.from_file, Acceptance { adopt: true, give_up, ..Acceptance::default() })
            .await?;
        log::warn(format!("volume {name} adopted its backing by command{given_up}"));
        self.show(name).await
    }
}
