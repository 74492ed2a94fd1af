//! The iSCSI front end in the daemon: LUN numbers, access lists, persistent reservations and session reports.

use std::collections::BTreeSet;
use std::rc::Rc;

use control::report::{IscsiReport, IscsiSessionReport, SlowCommandReport, UnitReport};
use control::{ErrorKind, Failure};
use engine::Volume;
use iscsi::{Options, Server};
use scsi::{Absent, AccessList, Identity, Keep, Keeper, Lun, Target, UnitSpec};
use seam::real::RealSeam;
use seam::{Address, Nanos, Seam};
use tokio::sync::{mpsc, oneshot};

use super::daemon::{Daemon, Known, Placed, Standing, core_gone, state_failed};
use super::data_core::Local;
use super::status::CORE_PATIENCE;
use config::{IscsiConfig, VolumeConfig, read_chap};
use logging::{self as log, ISCSI};
use state::{DECLARED_LOST, State, StateError, UnitRecord, VolumeRecord, draw_incarnation, effective};

/// The target has one port, whatever the number of its portals.
const PORTS: u16 = 1;
/// Physical block size in bytes that initiators are told to align to.
const PHYSICAL_4K: u32 = 4096;

/// Specification of a core's target.
pub struct IscsiSpec {
    target: String,
    options: Options,
    keeper: mpsc::UnboundedSender<Kept>,
}

/// A record of reservations to be saved, and the channel for the result.
pub struct Kept {
    incarnation: u64,
    record: Vec<u8>,
    done: oneshot::Sender<Result<(), String>>,
}

/// Queue of records for the state directory. A unit has at most one record in it: its next one waits for the result.
pub type Keeping = mpsc::UnboundedReceiver<Kept>;

/// Saves reservations through the control thread, which owns the state directory.
struct ByControl(mpsc::UnboundedSender<Kept>);

impl Keeper for ByControl {
    fn keep(&self, incarnation: u64, record: Vec<u8>) -> Keep {
        let (done, is_done) = oneshot::channel();
        let sent = self.0.send(Kept { incarnation, record, done });
        Box::pin(async move {
            let ending = || "the daemon is ending".to_owned();
            sent.map_err(|_| ending())?;
            is_done.await.map_err(|_| ending())?
        })
    }
}

/// A volume as a unit of the target.
pub struct UnitPlan {
    lun: Lun,
    identity: Identity,
    access: AccessList,
    read_only: bool,
    declared_lost: bool,
    kept: Vec<u8>,
}

impl UnitPlan {
    /// Adds the unit to the target of this core.
    pub fn add(self, local: &Local, volume: Volume<RealSeam>) {
        let Some(iscsi) = &local.iscsi else { return };
        let UnitPlan { lun, identity, access, read_only, declared_lost, kept } = self;
        let physical_4k = volume.geometry().physical_block >= PHYSICAL_4K;
        let target = iscsi.target();
        let added = target.add(UnitSpec { lun, volume, identity, access, read_only, physical_4k, kept });
        added.expect("the state directory gives no number twice, and what was kept was read");
        target.set_lost(lun, declared_lost);
    }
}

/// The specification of the iSCSI target, `None` without `[iscsi]`, and the queue of reservation records.
pub fn plan(config: Option<&IscsiConfig>) -> Result<(Option<IscsiSpec>, Keeping), terminal::Failure> {
    let (keeper, keeping) = mpsc::unbounded_channel();
    let Some(config) = config else { return Ok((None, keeping)) };
    let chap_users = read_chap(&config.chap).map_err(|error| terminal::Failure::failed(format!("[iscsi] {error}")))?;
    for warning in config.chap.iter().flat_map(|chap| chap.warnings()) {
        log::warn!(target: ISCSI, "{warning}");
    }
    let options = Options {
        announce: config.announce.clone(),
        access: AccessList::new(&config.acl),
        chap_users,
        ..Options::default()
    };
    Ok((Some(IscsiSpec { target: config.target.clone(), options, keeper }), keeping))
}

/// The iSCSI server of a core.
pub fn server(seam: &RealSeam, spec: IscsiSpec) -> Server<RealSeam> {
    let target = Target::new(seam.clone(), &spec.target, PORTS, Rc::new(ByControl(spec.keeper)));
    Server::new(seam.clone(), target, spec.options)
}

/// The saved reservations of a unit, checked for readability.
fn read_kept(unit: &UnitRecord) -> Result<Vec<u8>, scsi::RecordError> {
    let kept = unit.kept().ok_or(scsi::RecordError::Damaged)?;
    scsi::check_kept(&kept).map(|()| kept)
}

impl Daemon {
    /// Saves reservations until the daemon ends; records that arrive together share one write.
    pub async fn keep_reservations(self: Rc<Self>, mut keeping: Keeping) {
        while let Some(first) = keeping.recv().await {
            let mut kept = vec![first];
            while let Ok(next) = keeping.try_recv() {
                kept.push(next);
            }
            let known = self.state.borrow_mut().change(|state| {
                let known = kept.iter().map(|kept| state.keep_reservations(kept.incarnation, &kept.record));
                known.collect::<Vec<bool>>()
            });
            if let Err(error) = &known {
                log::error!(target: ISCSI, "reservations of a LUN cannot be kept: {error}");
            }
            for (at, kept) in kept.into_iter().enumerate() {
                let result = match &known {
                    Ok(known) if known[at] => Ok(()),
                    Ok(_) => Err("the volume is not known any more".to_owned()),
                    Err(error) => Err(error.to_string()),
                };
                // The receiver is gone if the initiator has disconnected.
                let _ = kept.done.send(result);
            }
        }
    }

    /// Records the LUN numbers that the file assigns, as it was read now.
    pub(super) fn fix_luns(&self, volumes: &[VolumeConfig]) {
        *self.fixed_luns.borrow_mut() = volumes.iter().filter_map(|volume| volume.lun).collect();
    }

    /// Assigns a LUN to each identified volume, where there is a target. Adopting a backing discards damaged
    /// reservations.
    pub(super) fn give_luns(
        &self,
        state: &mut State,
        wanted: &[(VolumeConfig, bool)],
        identified: &mut [Result<u64, Failure>],
        adopt: bool,
    ) {
        if self.config.borrow().iscsi.is_none() {
            return;
        }
        let volumes = self.volumes.borrow();
        let known: BTreeSet<&str> =
            volumes.keys().map(String::as_str).chain(wanted.iter().map(|(config, _)| config.name.as_str())).collect();
        let drawn =
            || draw_incarnation().map_err(|error| format!("cannot draw an identity from /dev/urandom: {error}"));
        let mut asking = Vec::new();
        for (at, (config, _)) in wanted.iter().enumerate() {
            let Ok(incarnation) = identified[at] else { continue };
            match drawn() {
                Ok(serial) => asking.push((at, (incarnation, config.lun, serial))),
                Err(error) => identified[at] = Err(Failure::new(ErrorKind::Failed, error)),
            }
            let unit = state.by_incarnation_mut(incarnation).and_then(|record| record.unit.as_mut()).filter(|_| adopt);
            if let Some(unit) = unit.filter(|unit| read_kept(unit).is_err()) {
                unit.reservations.clear();
            }
        }
        if state.host == 0 {
            // Without a random number no volume has an identity either, and the error was reported above.
            state.host = drawn().unwrap_or_default();
        }
        let (places, asking): (Vec<usize>, Vec<_>) = asking.into_iter().unzip();
        for (at, given) in places.into_iter().zip(state.give_units(&asking, &self.fixed_luns.borrow(), &known)) {
            if let Err(error) = given {
                identified[at] = Err(Failure::new(ErrorKind::Conflict, error.to_string()));
            }
        }
    }

    /// Makes initiators wait for known volumes that are not served. The answer "no such LUN" would make them remove its
    /// paths.
    pub(super) async fn tell_absent(&self, refused: impl Iterator<Item = &VolumeConfig>) {
        let absent: Vec<Absent> = {
            let state = self.state.borrow();
            let absent = refused.filter_map(|config| {
                let unit = state.state().by_name(&config.name)?.unit.as_ref()?;
                let (lun, identity) = (Lun::new(unit.lun)?, Identity::of(state.state().host, unit.serial));
                Some(Absent { lun, identity, access: AccessList::new(&config.acl) })
            });
            absent.collect()
        };
        if absent.is_empty() {
            return;
        }
        let tell = async move |local: Rc<Local>| {
            if let Some(iscsi) = &local.iscsi {
                absent.into_iter().for_each(|absent| iscsi.target().set_absent(absent));
            }
        };
        if let Err(gone) = self.cores[0].call(tell).await {
            log::error!(target: ISCSI, "{gone}");
        }
    }

    /// Removes the absent LUN of a volume that is removed.
    pub(super) async fn forget_absent(&self, name: &str) -> Result<(), Failure> {
        let lun = self.state.borrow().state().by_name(name).and_then(|record| Lun::new(record.unit.as_ref()?.lun));
        let Some(lun) = lun else { return Ok(()) };
        let forget = async move |local: Rc<Local>| {
            if let Some(iscsi) = &local.iscsi {
                iscsi.target().forget_absent(lun);
            }
        };
        self.cores[0].call(forget).await.map_err(core_gone)
    }

    /// The unit for a volume; `None` without a target.
    pub(super) fn unit_plan(&self, config: &VolumeConfig, incarnation: u64) -> Result<Option<UnitPlan>, Failure> {
        if self.config.borrow().iscsi.is_none() {
            return Ok(None);
        }
        let state = self.state.borrow();
        let record = state.state().volumes.iter().find(|record| record.incarnation == incarnation);
        let unit = record.and_then(|record| record.unit.as_ref()).ok_or_else(|| no_lun(&config.name))?;
        let kept = read_kept(unit).map_err(|error| {
            let text =
                format!("{error}; if no cluster relies on them, give them up: hotset volume adopt {}", config.name);
            Failure::new(ErrorKind::Conflict, text)
        })?;
        Ok(Some(UnitPlan {
            lun: Lun::new(unit.lun).ok_or_else(|| no_lun(&config.name))?,
            identity: Identity::of(state.state().host, unit.serial),
            access: AccessList::new(&config.acl),
            read_only: config.read_only,
            declared_lost: effective(record, DECLARED_LOST, config.declared_lost),
            kept,
        }))
    }

    /// Listens at all portals; returns their addresses.
    pub async fn listen_iscsi(&self) -> Result<Vec<String>, String> {
        let Some(config) = self.config.borrow().iscsi.clone() else { return Ok(Vec::new()) };
        let mut listening = Vec::new();
        for address in config.listen {
            let wrong = format!("cannot listen for iSCSI on {address}");
            let listen = async move |local: Rc<Local>| {
                let listener =
                    super::listen::patiently(&local.seam, &address).await.map_err(|error| error.to_string())?;
                let shown = super::listen::shown(&address, &listener);
                let server = local.iscsi.clone().expect("a core serves what the configuration says");
                local.seam.spawn(async move { server.accept(listener).await });
                Ok::<Address, String>(shown)
            };
            let shown = self.cores[0].call(listen).await.map_err(|error| error.to_string())?;
            listening.push(
                shown
                    .map(|shown| format!("iscsi:{shown}").replace("iscsi:tcp:", "iscsi:"))
                    .map_err(|error| format!("{wrong}: {error}"))?,
            );
        }
        Ok(listening)
    }

    /// `volume set declared_lost=…`.
    pub(super) async fn set_lost(&self, name: &str, placed: &Placed, lost: bool) -> Result<(), Failure> {
        let file = self.volumes.borrow().get(name).map(|known| known.config.setting(DECLARED_LOST)).unwrap_or_default();
        let noted = self.state.borrow_mut().change(|state| {
            state.set_override(placed.incarnation, DECLARED_LOST, &lost.to_string(), &file);
        });
        noted.map_err(state_failed)?;
        self.tell_lost(name, placed, lost).await?;
        log::info!(target: ISCSI, volume = name, "volume {name}: {DECLARED_LOST}={lost} by command");
        Ok(())
    }

    /// Applies the LUN's access list and `declared_lost` from the file.
    pub(super) async fn reload_unit(&self, placed: &Placed, now: &VolumeConfig) -> Result<(), Failure> {
        let noted = self.state.borrow_mut().change(|state| {
            state.expire_override(placed.incarnation, DECLARED_LOST, &now.setting(DECLARED_LOST));
        });
        noted.map_err(state_failed)?;
        let lost = effective(self.state.borrow().state().by_name(&now.name), DECLARED_LOST, now.declared_lost);
        self.tell_lost(&now.name, placed, lost).await?;
        let (access, read_only) = (AccessList::new(&now.acl), now.read_only);
        self.at_target(&now.name, placed, move |target, lun| target.change(lun, access, read_only)).await
    }

    async fn tell_lost(&self, name: &str, placed: &Placed, lost: bool) -> Result<(), Failure> {
        self.at_target(name, placed, move |target, lun| target.set_lost(lun, lost)).await
    }

    /// Reports a volume's new size to initiators.
    pub(super) async fn tell_size(&self, name: &str, placed: &Placed) -> Result<(), Failure> {
        self.at_target(name, placed, |target, lun| target.resized(lun)).await
    }

    /// Runs `work` at the target with a volume's LUN, if it has one.
    async fn at_target(
        &self,
        name: &str,
        placed: &Placed,
        work: impl FnOnce(&Target<RealSeam>, Lun) + Send + 'static,
    ) -> Result<(), Failure> {
        let name = name.to_owned();
        let call = async move |local: Rc<Local>| {
            let target = local.iscsi.as_ref().map(Server::target);
            if let Some((target, lun)) = target.and_then(|target| Some((target, target.find(&name)?))) {
                work(target, lun);
            }
        };
        self.cores[placed.core].call(call).await.map_err(core_gone)
    }

    /// Report of the target; `None` if there is none or its core does not answer.
    pub(super) async fn iscsi_report(&self) -> Option<IscsiReport> {
        let target = self.config.borrow().iscsi.as_ref()?.target.clone();
        let portals =
            self.listen.borrow().iter().filter_map(|listen| listen.strip_prefix("iscsi:")).map(str::to_owned).collect();
        let look = self.cores[0].call(async |local: Rc<Local>| {
            let server = local.iscsi.as_ref()?;
            let (stats, now) = (server.stats(), local.seam.now());
            let sessions = server.sessions().iter().map(|session| session_report(session, now)).collect();
            Some((stats, sessions))
        });
        let (stats, sessions): (_, Vec<IscsiSessionReport>) =
            tokio::time::timeout(CORE_PATIENCE, look).await.ok().and_then(Result::ok).flatten()?;
        Some(IscsiReport {
            target,
            portals,
            connections: stats.accepted,
            half_open: stats.half_open,
            failed_logins: stats.failed_logins,
            sessions,
        })
    }

    /// Report of a served volume's LUN.
    pub(super) fn unit_report(&self, known: &Known, record: Option<&VolumeRecord>, host: u64) -> Option<UnitReport> {
        self.config.borrow().iscsi.as_ref()?;
        let is_served = !matches!(known.standing, Standing::Refused(_));
        let unit = record.filter(|_| is_served)?.unit.as_ref()?;
        Some(UnitReport {
            lun: unit.lun,
            naa: Identity::of(host, unit.serial).serial(),
            declared_lost: effective(record, DECLARED_LOST, known.config.declared_lost),
        })
    }
}

fn no_lun(name: &str) -> Failure {
    let error = StateError::Damaged { path: "state.json".into(), detail: format!("volume {name} has no LUN") };
    state_failed(error)
}

fn session_report(session: &iscsi::SessionStats, now: Nanos) -> IscsiSessionReport {
    let slow = |slow: &iscsi::SlowCommand| SlowCommandReport {
        ago_ms: now.since(slow.ended).as_millis(),
        command: slow.name.to_owned(),
        lun: slow.lun,
        took_us: slow.took.as_micros(),
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
        under_way: session.under_way,
        aborted: session.aborted,
        read_bytes: session.read_bytes,
        write_bytes: session.write_bytes,
        slowest: session.slowest.iter().map(slow).collect(),
    }
}
