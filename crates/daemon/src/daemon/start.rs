//! The start and the end of the daemon.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use engine::CoreSpec;
use messages::ErrorKind;
use seam::real::{PATH_TIMEOUT, PersistFile, RealCoreSpec};
use tokio::sync::{mpsc, oneshot, watch};

use super::super::certificates::ListenerCertificate;
use super::super::cores::{DataCore, DataCoreSpec};
#[cfg(feature = "sabotage")]
use super::super::sabotage;
use super::super::settings::absolute;
use super::super::stop::Clients;
use super::super::volumes::{ChangeGuard, STANDBY};
use super::super::{handover, iscsi, loss, persisted_memory, vhost_user};
use super::Daemon;
use super::link_requests::LinkHandler;
use super::signal_handling::handle_signals;
use config::{BackingSpec, Config, Cores, TlsConfig, VolumeConfig};
use logging::{self as log, DAEMON, VOLUME};
use state::{Acceptance, StateDir, random_identity, random_number};
use systemd::Notifier;
use terminal::{EXIT_FAILED, Failure};

/// Time-out for a predecessor to end and release the state directory.
const PREDECESSOR_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum number of waits for another process that are logged.
const LOGGED_WAITS_MAX: usize = 1_024;
/// Time-out for writing the last log lines: standard error may be stuck.
const LOG_FLUSH_TIMEOUT: Duration = Duration::from_secs(1);
/// Time without an answer after which the start continues without a backing or a flash device. The first retry of a
/// backing follows a second later, so a disk that still spins up is served soon after the others.
const START_LIMIT: Duration = Duration::from_secs(2);
/// Time for the last replies to leave the control socket.
const REPLY_GRACE: Duration = Duration::from_millis(50);

/// Serves a configuration until stopped; `ready` is called when clients can connect.
pub async fn serve(config: Config, clients: Vec<handover::StoredClient>, ready: impl FnOnce()) -> Result<(), Failure> {
    let failed = |error: &dyn std::fmt::Display| Failure::failed(error.to_string());
    seam::real::report_lock_waits(|path, holder, timeout| {
        // A refused volume is retried every 30 s: the same wait is logged once.
        static LOGGED: Mutex<BTreeSet<(PathBuf, Option<u32>)>> = Mutex::new(BTreeSet::new());
        let mut logged = LOGGED.lock().unwrap_or_else(PoisonError::into_inner);
        if logged.len() >= LOGGED_WAITS_MAX || !logged.insert((path.to_owned(), holder)) {
            return;
        }
        let holder = holder.map_or_else(|| "another process".to_owned(), |process| format!("process {process}"));
        let (path, seconds) = (path.display(), timeout.as_secs());
        log::info!(target: DAEMON, "waiting up to {seconds} s for {holder} to release {path}");
    });
    let on_wait = |holder: &str| {
        let (path, seconds) = (config.state_directory.display(), PREDECESSOR_TIMEOUT.as_secs());
        log::info!(
            target: DAEMON,
            "waiting up to {seconds} s for process {holder} to release the state directory {path}"
        );
    };
    let file = absolute(&config.file);
    let mut state = StateDir::open_within(&config.state_directory, PREDECESSOR_TIMEOUT, on_wait)
        .await
        .map_err(|error| Failure::failed(error.describe(&file)))?;
    let (identity, run_id) = random_identity()
        .and_then(|identity| Ok((identity, random_number()?)))
        .map_err(|error| Failure::failed(format!("cannot read a random identity from /dev/urandom: {error}")))?;
    state
        .change(|state| {
            state.begin_life(identity, run_id);
            loss::record_boot(state);
        })
        .map_err(|error| Failure::failed(error.describe(&file)))?;
    let (core_ended, mut ended_cores) = mpsc::unbounded_channel();
    let tls = config.nbd.tls.as_ref().map(load_tls).transpose()?;
    let (tls, certificate) = tls.unzip();
    let (target, reservations) = iscsi::plan(config.iscsi.as_ref())?;
    let vhost_user = vhost_user::plan(config.vhost_user.as_ref(), state.state().generation).map_err(Failure::failed)?;
    let plan = persisted_memory::plan(&config, &mut state).map_err(Failure::failed)?;
    let cores = start_cores(&config, tls, (target, vhost_user), plan.image.clone(), core_ended).await?;
    let socket = config.control_socket.clone();
    let daemon = Rc::new(Daemon::new(config, state, cores, plan, Notifier::from_environment()));
    // Memory images are opened before the control socket listens: a volume added earlier would be attached without its
    // persisted memory.
    daemon.memory.open().await.map_err(|failure| Failure::failed(failure.message))?;
    if let Some(certificate) = certificate {
        daemon.certificates.set_nbd(certificate);
    }
    tokio::task::spawn_local(daemon.units.clone().save_reservations(reservations));
    let requested = requested_volumes(&daemon);
    // Volumes are locked before the control socket listens: a reload would open them a second time.
    let change_guards: Vec<_> =
        requested.iter().filter_map(|(config, _)| daemon.volumes.lock_for_change(&config.name).ok()).collect();
    tokio::task::spawn_local(handle_signals(daemon.clone()));
    let (quit, quitting) = watch::channel(false);
    let (http_quitting, link_quitting) = (quitting.clone(), quitting.clone());
    let (listening_sender, listening_receiver) = oneshot::channel();
    let control = tokio::task::spawn_local({
        let daemon = daemon.clone();
        // The start awaits the receiver below.
        let on_listening = move || listening_sender.send(()).expect("the start waits for the control socket");
        async move { control::serve(&socket, daemon, control::Limits::default(), on_listening, quitting).await }
    });
    if listening_receiver.await.is_err() {
        let ended = control.await.map_err(|error| failed(&error))?;
        return Err(ended.map_or_else(|error| failed(&error), |()| failed(&"the control socket closed immediately")));
    }
    daemon.telemetry.start_history(daemon.records.directory(), daemon.settings.current().history.size_bytes);
    tokio::task::spawn_local(daemon.clone().sample());
    tokio::task::spawn_local(daemon.clone().keep_pool_heat());
    daemon.http.clone().start(daemon.clone(), daemon.telemetry.subscribe(), http_quitting);
    daemon.fleet_link.clone().start(Rc::new(LinkHandler(daemon.clone())), link_quitting.clone());
    tokio::task::spawn_local(daemon.fleet_peers.clone().ask(daemon.fleet_link.clone(), link_quitting));
    let started = daemon
        .cores
        .extending_start_timeout(&daemon.notifier, start_serving(&daemon, requested, change_guards, clients))
        .await;
    if started.is_ok() {
        ready();
        daemon.cores.feed_watchdog().await;
        tokio::task::spawn_local(daemon.clone().watch_flash());
        tokio::task::spawn_local({
            let (flash, daemon) = (daemon.flash.clone(), daemon.clone());
            async move { flash.watch_drives(|| daemon.stop.is_stopping()).await }
        });
        tokio::task::spawn_local(daemon.clone().retry_refused());
        tokio::task::spawn_local(daemon.clone().open_pools());
        tokio::task::spawn_local(daemon.clone().follow_pool_trends());
        tokio::select! {
            () = daemon.stop.requested() => {}
            Some(core) = ended_cores.recv() => {
                let text = format!("data core {core} has ended unexpectedly; flushed data is safe; restart the daemon");
                log::error!(target: DAEMON, "{text}");
                daemon.journal.record_daemon_event(&text);
                daemon.journal.flush();
                log::flush(LOG_FLUSH_TIMEOUT);
                std::process::exit(i32::from(EXIT_FAILED));
            }
        }
    }
    daemon.stop.request(false, Clients::Disconnect);
    let is_complete = daemon.drain().await;
    daemon.telemetry.end_history().await;
    daemon.end_events();
    tokio::time::sleep(REPLY_GRACE).await;
    // The receivers are gone if the control socket's server has failed.
    let _ = quit.send(true);
    let _ = control.await;
    started?;
    if !is_complete {
        return Err(Failure::failed(daemon.stop.message()));
    }
    log::info!(target: DAEMON, "{}", daemon.stop.message());
    Ok(())
}

/// Starts the data cores. The memory image `persist_file` and the servers of the front ends go to the first core.
async fn start_cores(
    config: &Config,
    tls: Option<nbd::Tls>,
    (mut target, mut vhost_user): (Option<iscsi::IscsiSpec>, Option<vhost_user::VhostUserSpec>),
    mut persist_file: Option<PersistFile>,
    ended: mpsc::UnboundedSender<usize>,
) -> Result<Vec<DataCore>, Failure> {
    // One data core: a connection cannot move to another core yet, and would not find the volumes there.
    let processors: Vec<Option<usize>> = match &config.cores {
        Cores::Auto => vec![None],
        Cores::List(list) => list.iter().take(1).map(|core| Some(*core as usize)).collect(),
    };
    if matches!(&config.cores, Cores::List(list) if list.len() > 1) {
        log::warn!(target: DAEMON, "cores lists several CPUs; this version serves data on the first one");
    }
    let pool_bytes = engine::pool_bytes_for(config.memory_bytes / processors.len() as u64);
    let defaults = CoreSpec::default();
    let flash_threshold = config.flash.as_ref().map_or(defaults.flash_threshold, |flash| flash.threshold);
    let engine = CoreSpec {
        #[cfg(feature = "sabotage")]
        sabotage: sabotage::from_environment(),
        flash_threshold,
        ..defaults
    };
    let mut cores = Vec::new();
    for (index, cpu) in processors.into_iter().enumerate() {
        let real = RealCoreSpec { cpu, persist_file: persist_file.take(), ..RealCoreSpec::new(pool_bytes as usize) };
        let nbd = nbd::Options { tls: tls.clone(), ..Default::default() };
        let (iscsi, vhost_user) = (target.take(), vhost_user.take());
        let spec = DataCoreSpec { index, real, engine: engine.clone(), nbd, iscsi, vhost_user };
        let core = DataCore::start(spec, ended.clone()).await;
        cores.push(core.map_err(|error| Failure::failed(error.to_string()))?);
    }
    Ok(cores)
}

/// The TLS configuration of the NBD server, and its certificate for reports and renewal.
fn load_tls(config: &TlsConfig) -> Result<(nbd::Tls, ListenerCertificate), Failure> {
    let identity = config.files.read().map_err(|error| Failure::failed(format!("[nbd] TLS: {error}")))?;
    let tls = nbd::Tls::new(identity.config, config.required);
    let shared = tls.clone();
    Ok((tls, ListenerCertificate::new(&config.files, identity.chain, move |config| shared.renew(config))))
}

/// Attaches the volumes and starts the listeners. A volume that cannot be served does not prevent the others from being
/// served.
async fn start_serving(
    daemon: &Rc<Daemon>,
    requested: Vec<(VolumeConfig, bool)>,
    change_guards: Vec<ChangeGuard<'_>>,
    clients: Vec<handover::StoredClient>,
) -> Result<(), Failure> {
    if daemon.flash.config().is_some() {
        daemon.notifier.status("replaying the flash log");
    }
    // With dirty data on flash the devices get more time: without them its volumes would be refused until the next
    // start.
    // A directory that knows no store may be one in place of a lost one.
    let may_hold_dirty = {
        let records = daemon.records.view();
        records.stores.is_empty() || records.volumes.iter().any(|record| record.dirty_on_flash.is_some())
    };
    let flash_limit = if may_hold_dirty { PATH_TIMEOUT } else { START_LIMIT };
    daemon.flash.open(flash_limit).await.map_err(|failure| Failure::failed(failure.message))?;
    let erased = daemon.memory.erase_unneeded_content(daemon.flash.is_checked()).await;
    erased.map_err(|failure| Failure::failed(failure.message))?;
    daemon.flash.end_start_check();
    let datastores = daemon.settings.current().datastores.clone();
    daemon.cores.set_datastores(&datastores).await.map_err(|failure| Failure::failed(failure.message))?;
    daemon.notifier.status(&format!("opening volumes: {}", requested.len()));
    let names: Vec<String> = requested.iter().map(|(config, _)| config.name.clone()).collect();
    let attached = daemon.attachments.attach_all(requested, Acceptance::default(), START_LIMIT).await;
    drop(change_guards);
    let mut failed_count = 0;
    for (name, failure) in names.into_iter().zip(attached).filter_map(|(name, result)| Some((name, result.err()?))) {
        if failure.refusal.as_deref() == Some(STANDBY) {
            log::info!(target: VOLUME, volume = name, "{}", failure.message);
            continue;
        }
        log::error!(target: VOLUME, volume = name, "{}", failure.message);
        // Absent backings are retried, and conflicts need an administrator: both require a running daemon.
        failed_count += usize::from(failure.kind == ErrorKind::Failed);
    }
    if failed_count > 0 && daemon.volumes.count() == failed_count {
        return Err(Failure::failed("no volume can be served"));
    }
    daemon.flash.enforce_two_copies().await;
    let mut listening = daemon.listeners.listen_nbd().await.map_err(Failure::failed)?;
    listening.extend(daemon.listeners.listen_iscsi().await.map_err(Failure::failed)?);
    // Clients are taken over after the last step of the start that can fail: a failure would disconnect them.
    handover::take_over_clients(&daemon.notifier, &daemon.cores, clients).await;
    daemon.listeners.announce(listening);
    let count = daemon.volumes.served_names().len();
    let plural = if count == 1 { "" } else { "s" };
    let text = format!("serving {count} volume{plural} on {}", daemon.listeners.addresses().join(", "));
    log::info!(target: DAEMON, "{text}");
    daemon.journal.begin_serving(&text, &daemon.collect_status().await);
    daemon.notifier.notify(&format!("READY=1\nSTATUS={text}"));
    Ok(())
}

/// The volumes to serve: those in the file that were not removed by command, and those added by command. An added
/// volume supersedes an entry of the same name with another backing, because clients have written to the added volume.
fn requested_volumes(daemon: &Daemon) -> Vec<(VolumeConfig, bool)> {
    let (config, state) = (daemon.settings.current(), daemon.records.view());
    let removed = |volume: &VolumeConfig| state.removed.get(&volume.name) == Some(&volume.entry());
    let mut requested: Vec<_> =
        config.volumes.iter().filter(|volume| !removed(volume)).map(|volume| (volume.clone(), true)).collect();
    let mut in_file = Vec::new();
    for record in &state.volumes {
        let Some(added) = &record.added else { continue };
        let backing = BackingSpec::parse(&added.backing, Path::new("/"));
        let same_name = requested.iter().position(|(volume, _)| volume.name == record.name);
        if let Some(index) = same_name {
            let entry = &requested[index].0.backing;
            if backing.as_ref().is_ok_and(|backing| backing == entry) {
                in_file.push(record.volume_id);
                log::warn!(
                    target: VOLUME, volume = record.name,
                    "volume {}: added by command, and now also in the file; the file's entry is served",
                    record.name
                );
                continue;
            }
            log::warn!(
                target: VOLUME, volume = record.name,
                "volume {}: the backing {} added by command is served; the file's entry of the same name has another \
                 backing ({entry}) and is ignored. To serve the file's entry: hotset volume remove {}, then reload \
                 (SIGHUP)",
                record.name,
                added.backing,
                record.name
            );
            requested.remove(index);
        }
        match (backing, added.policy.parse()) {
            (Ok(backing), Ok(policy)) => {
                let (size_bytes, read_only) = (added.size_bytes, added.read_only);
                let volume = VolumeConfig { policy, size_bytes, read_only, ..VolumeConfig::new(&record.name, backing) };
                let volume = volume.with_rules(&config.qos);
                requested.push((volume, false));
            }
            (Err(error), _) | (_, Err(error)) => log::error!(
                target: VOLUME, volume = record.name,
                "volume {}: {error}",
                record.name
            ),
        }
    }
    drop(state);
    // Without its entry, such a volume must not return.
    daemon.records.change_or_log(|state| {
        state
            .volumes
            .iter_mut()
            .filter(|record| in_file.contains(&record.volume_id))
            .for_each(|record| record.added = None);
    });
    requested
}
