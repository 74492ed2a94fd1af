//! The volumes as units of the iSCSI target: LUN numbers, access lists, persistent reservations and session reports.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;

use engine::VolumeId;
use iscsi::Server;
use messages::report::{IscsiReport, IscsiSessionReport, RefusedLoginReport, SlowCommandReport, UnitReport};
use messages::{ErrorKind, Failure};
use scsi::{AbsentUnit, AccessList, Identity, Lun, PoolSpace, SoftThreshold, Target};
use seam::real::RealSeam;
use seam::{Nanos, Seam};

use super::cores::{CORE_TIMEOUT, CoreLocal, Cores, core_ended};
use super::iscsi::{ReservationQueue, UnitPlan};
use super::records::{Records, state_failed};
use super::settings::Settings;
use super::volumes::{KnownVolume, Placement, RequestedVolume};
use config::VolumeConfig;
use logging::{self as log, ISCSI};
use state::{DECLARED_LOST, State, StateError, UnitRecord, VolumeRecord, effective, random_number};

/// The saved reservations of a unit, checked for readability.
fn read_reservations(unit: &UnitRecord) -> Result<Vec<u8>, scsi::RecordError> {
    let record = unit.reservation_bytes().ok_or(scsi::RecordError::Damaged)?;
    scsi::check_record(&record).map(|()| record)
}

/// The space of a pool in a sample.
pub struct PoolSpaceUpdate {
    /// The pool's name.
    pub pool: String,
    /// Its space.
    pub space: PoolSpace,
    /// Thresholds that it has reached since the last sample.
    pub newly_reached: &'static [SoftThreshold],
}

/// The volumes as units of the iSCSI target: their numbers, access lists and reservations.
pub struct Units {
    settings: Rc<Settings>,
    records: Rc<Records>,
    cores: Rc<Cores>,
    /// LUN numbers that the configuration file assigns.
    fixed_luns: RefCell<BTreeSet<u16>>,
}

impl Units {
    /// The units of a daemon that serves nothing yet.
    pub fn new(settings: Rc<Settings>, records: Rc<Records>, cores: Rc<Cores>) -> Units {
        let units = Units { settings, records, cores, fixed_luns: RefCell::default() };
        units.set_fixed_luns(&units.settings.current().volumes);
        units
    }

    /// Saves reservations until the daemon ends; records that are queued at the same time share one write.
    pub async fn save_reservations(self: Rc<Self>, mut queue: ReservationQueue) {
        while let Some(first) = queue.recv().await {
            let mut records = vec![first];
            while let Ok(next) = queue.try_recv() {
                records.push(next);
            }
            let are_known = self.records.change(|state| {
                let are_known =
                    records.iter().map(|record| state.record_reservations(record.volume_id, &record.record));
                are_known.collect::<Vec<bool>>()
            });
            if let Err(error) = &are_known {
                log::error!(target: ISCSI, "reservations of a LUN cannot be saved: {error}");
            }
            for (index, record) in records.into_iter().enumerate() {
                let result = match &are_known {
                    Ok(are_known) if are_known[index] => Ok(()),
                    Ok(_) => Err("the volume was removed".to_owned()),
                    Err(error) => Err(error.to_string()),
                };
                // The receiver is gone if the initiator has disconnected.
                let _ = record.done.send(result);
            }
        }
    }

    /// Sets the LUN numbers that the configuration file assigns. `volumes` are the volumes of the file.
    pub fn set_fixed_luns(&self, volumes: &[VolumeConfig]) {
        *self.fixed_luns.borrow_mut() = volumes.iter().filter_map(|volume| volume.lun).collect();
    }

    /// Assigns a LUN to each identified volume, if there is a target. `known_names` are the names of the volumes that
    /// the daemon knows already. Adopting a backing discards damaged reservations.
    pub fn assign_luns(
        &self,
        state: &mut State,
        known_names: &[String],
        requested: &[RequestedVolume],
        identified: &mut [Result<VolumeId, Failure>],
        adopt: bool,
    ) {
        if !self.settings.has_target() {
            return;
        }
        let names: BTreeSet<&str> = known_names
            .iter()
            .map(String::as_str)
            .chain(requested.iter().map(|(config, _)| config.name.as_str()))
            .collect();
        let new_serial = || {
            random_number().map_err(|error| format!("cannot read a random serial number from /dev/urandom: {error}"))
        };
        let mut requests = Vec::new();
        for (index, (config, _)) in requested.iter().enumerate() {
            let Ok(volume_id) = identified[index] else { continue };
            match new_serial() {
                Ok(serial) => requests.push((index, (volume_id, config.lun, serial))),
                Err(error) => identified[index] = Err(Failure::new(ErrorKind::Failed, error)),
            }
            let unit = state.by_id_mut(volume_id).and_then(|record| record.unit.as_mut()).filter(|_| adopt);
            if let Some(unit) = unit.filter(|unit| read_reservations(unit).is_err()) {
                unit.reservations.clear();
            }
        }
        if state.host_id == 0 {
            // Without a random number no volume has a serial number either, and the error was reported above.
            state.host_id = random_number().unwrap_or_default();
        }
        let (indices, requests): (Vec<usize>, Vec<_>) = requests.into_iter().unzip();
        let assigned = state.assign_luns(&requests, &self.fixed_luns.borrow(), &names);
        for (index, result) in indices.into_iter().zip(assigned) {
            if let Err(error) = result {
                identified[index] = Err(Failure::new(ErrorKind::Conflict, error.to_string()));
            }
        }
    }

    /// Makes initiators retry known volumes that are not served. The status "no such LUN" would make them remove the
    /// paths.
    pub async fn report_absent(&self, refused: impl Iterator<Item = &VolumeConfig>) {
        let absent: Vec<AbsentUnit> = {
            let state = self.records.view();
            let absent = refused.filter_map(|config| {
                let unit = state.by_name(&config.name)?.unit.as_ref()?;
                let (lun, identity) = (Lun::new(unit.lun)?, Identity::of(state.host_id, unit.serial));
                Some(AbsentUnit { lun, identity, access: AccessList::new(&config.acl) })
            });
            absent.collect()
        };
        if absent.is_empty() {
            return;
        }
        let set_absent = async move |local: Rc<CoreLocal>| {
            if let Some(iscsi) = &local.iscsi {
                absent.into_iter().for_each(|absent| iscsi.target().set_absent(absent));
            }
        };
        if let Err(error) = self.cores.first().call(set_absent).await {
            log::error!(target: ISCSI, "{error}");
        }
    }

    /// Removes the absent LUN of a volume that is removed.
    pub async fn remove_absent(&self, name: &str) -> Result<(), Failure> {
        let lun = self.records.view().by_name(name).and_then(|record| Lun::new(record.unit.as_ref()?.lun));
        let Some(lun) = lun else { return Ok(()) };
        let remove = async move |local: Rc<CoreLocal>| {
            if let Some(iscsi) = &local.iscsi {
                iscsi.target().remove_absent(lun);
            }
        };
        self.cores.first().call(remove).await.map_err(core_ended)
    }

    /// The unit for a volume; `None` without a target.
    pub fn plan(&self, config: &VolumeConfig, volume_id: VolumeId) -> Result<Option<UnitPlan>, Failure> {
        if !self.settings.has_target() {
            return Ok(None);
        }
        let state = self.records.view();
        let record = state.volumes.iter().find(|record| record.volume_id == volume_id);
        let unit = record.and_then(|record| record.unit.as_ref()).ok_or_else(|| no_lun(&config.name))?;
        let reservation_record = read_reservations(unit).map_err(|error| {
            let text =
                format!("{error}; if no cluster relies on them, discard them: hotset volume adopt {}", config.name);
            Failure::new(ErrorKind::Conflict, text)
        })?;
        Ok(Some(UnitPlan {
            lun: Lun::new(unit.lun).ok_or_else(|| no_lun(&config.name))?,
            identity: Identity::of(state.host_id, unit.serial),
            access: AccessList::new(&config.acl),
            read_only: config.read_only,
            declared_lost: effective(record, DECLARED_LOST, config.declared_lost),
            reservation_record,
            thin_pool: config.backing.pool().map(str::to_owned),
        }))
    }

    /// `volume set declared_lost=…`, where `file` is the value in the file.
    pub async fn set_declared_lost(
        &self,
        name: &str,
        placement: &Placement,
        lost: bool,
        file: &str,
    ) -> Result<(), Failure> {
        self.records.change(|state| {
            state.set_override(placement.volume_id, DECLARED_LOST, &lost.to_string(), file);
        })?;
        self.apply_declared_lost(name, placement, lost).await?;
        log::info!(target: ISCSI, volume = name, "volume {name}: {DECLARED_LOST}={lost} by command");
        Ok(())
    }

    /// Applies the access list, the write protection and `declared_lost` of the file to the LUN.
    pub async fn reload(&self, placement: &Placement, fresh: &VolumeConfig) -> Result<(), Failure> {
        self.records.change(|state| {
            state.expire_override(placement.volume_id, DECLARED_LOST, &fresh.setting(DECLARED_LOST));
        })?;
        let lost = effective(self.records.view().by_name(&fresh.name), DECLARED_LOST, fresh.declared_lost);
        self.apply_declared_lost(&fresh.name, placement, lost).await?;
        let (access, read_only) = (AccessList::new(&fresh.acl), fresh.read_only);
        self.with_target(&fresh.name, placement, move |target, lun| target.set_access(lun, access, read_only)).await
    }

    async fn apply_declared_lost(&self, name: &str, placement: &Placement, lost: bool) -> Result<(), Failure> {
        self.with_target(name, placement, move |target, lun| target.set_declared_lost(lun, lost)).await
    }

    /// Reports a volume's new size to initiators.
    pub async fn notify_size(&self, name: &str, placement: &Placement) -> Result<(), Failure> {
        self.with_target(name, placement, |target, lun| target.report_capacity_change(lun)).await
    }

    /// Passes the space of pools to the target, and their newly reached thresholds to initiators.
    pub async fn update_pool_spaces(&self, updates: Vec<PoolSpaceUpdate>) {
        let update = async move |local: Rc<CoreLocal>| {
            let Some(target) = local.iscsi.as_ref().map(Server::target) else { return };
            for PoolSpaceUpdate { pool, space, newly_reached } in updates {
                target.set_pool_space(&pool, space);
                newly_reached.iter().for_each(|threshold| target.report_soft_threshold(&pool, *threshold));
            }
        };
        // A core that does not answer in time still runs the update. One that has ended serves no initiator.
        let _ = tokio::time::timeout(CORE_TIMEOUT, self.cores.first().call(update)).await;
    }

    /// Runs `work` at the target with a volume's LUN, if it has one.
    async fn with_target(
        &self,
        name: &str,
        placement: &Placement,
        work: impl FnOnce(&Target<RealSeam>, Lun) + Send + 'static,
    ) -> Result<(), Failure> {
        let name = name.to_owned();
        let call = async move |local: Rc<CoreLocal>| {
            let target = local.iscsi.as_ref().map(Server::target);
            if let Some((target, lun)) = target.and_then(|target| Some((target, target.lun_of_volume(&name)?))) {
                work(target, lun);
            }
        };
        self.cores[placement.core].call(call).await.map_err(core_ended)
    }

    /// Report of the target, which listens at `portals`; `None` if there is none or its core does not answer.
    pub async fn report(&self, portals: Vec<String>) -> Option<IscsiReport> {
        let target = self.settings.current().iscsi.as_ref()?.target.clone();
        let sessions = self.cores.first().call(async |local: Rc<CoreLocal>| {
            let server = local.iscsi.as_ref()?;
            let (stats, now) = (server.stats(), local.seam.now());
            let sessions = server.sessions().iter().map(|session| session_report(session, now)).collect();
            let refused = server.refused_logins().iter().map(|login| refused_report(login, now)).collect();
            Some((stats, sessions, refused))
        });
        let (stats, sessions, refused_logins): (_, Vec<IscsiSessionReport>, Vec<RefusedLoginReport>) =
            tokio::time::timeout(CORE_TIMEOUT, sessions).await.ok().and_then(Result::ok).flatten()?;
        Some(IscsiReport {
            target,
            portals,
            connections: stats.accepted,
            half_open: stats.half_open,
            failed_logins: stats.failed_logins,
            refused_logins,
            sessions,
        })
    }

    /// Report of a served volume's LUN.
    pub fn report_of(&self, known: &KnownVolume, record: Option<&VolumeRecord>, host_id: u64) -> Option<UnitReport> {
        known.placement().filter(|_| self.settings.has_target())?;
        let unit = record?.unit.as_ref()?;
        Some(UnitReport {
            lun: unit.lun,
            naa: Identity::of(host_id, unit.serial).naa_hex(),
            declared_lost: effective(record, DECLARED_LOST, known.config.declared_lost),
        })
    }
}

fn no_lun(name: &str) -> Failure {
    let error = StateError::Damaged { path: "state.json".into(), detail: format!("volume {name} has no LUN") };
    state_failed(error)
}

fn refused_report(login: &iscsi::RefusedLogin, now: Nanos) -> RefusedLoginReport {
    RefusedLoginReport {
        initiator: login.initiator.clone(),
        reason: login.refusal.to_string(),
        count: login.count,
        ago_ms: now.since(login.last).as_millis(),
    }
}

fn session_report(session: &iscsi::SessionStats, now: Nanos) -> IscsiSessionReport {
    let slow_command_report = |command: &iscsi::SlowCommand| SlowCommandReport {
        ago_ms: now.since(command.ended_at).as_millis(),
        command: command.name.to_owned(),
        lun: command.lun,
        took_us: command.latency.as_micros(),
    };
    IscsiSessionReport {
        session: session.tsih,
        initiator: session.initiator.clone(),
        alias: session.alias.clone(),
        portal: session.portal.clone(),
        discovery: session.discovery,
        authenticated: session.authenticated,
        header_digest: session.digests.0,
        data_digest: session.digests.1,
        commands: session.commands,
        commands_in_flight: session.commands_in_flight,
        aborted: session.aborted,
        read_bytes: session.read_bytes,
        write_bytes: session.write_bytes,
        slowest: session.slowest.iter().map(slow_command_report).collect(),
    }
}
