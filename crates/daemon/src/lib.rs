//! `hotset serve`: the start and the end of the daemon, with its data cores, volumes, listeners and control thread.
//!
//! The calling thread becomes the control thread: it owns files, signals and the control socket. Data cores are threads
//! of their own that never wait for it; every action reaches them as a message.

mod absent;
mod actions;
mod advice;
mod api;
mod attach;
mod certificates;
mod configuration;
mod daemon;
mod data_core;
mod events;
mod evidence;
mod flash;
mod handover;
mod heat;
mod iscsi;
mod jobs;
mod kept;
mod listen;
mod loss;
mod open;
mod overlap;
mod qos;
mod reload;
mod sabotage;
mod sample;
mod shares;
mod shortage;
mod signals;
mod socket_access;
mod status;
mod stop;
mod tokens;
mod traces;
mod vhost_user;
mod watchdog;

use std::path::Path;
use std::rc::Rc;
use std::thread::JoinHandle;
use std::time::Duration;

use control::ErrorKind;
use engine::CoreSpec;
use rustix::process::{Resource, Rlimit};
use seam::real::{KeptFile, RealCoreSpec, Signal};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::LocalSet;

use self::certificates::Shown;
use self::daemon::{Busy, Daemon};
use self::data_core::{DataCore, DataCoreSpec};
pub use self::events::FOLDER as EVENTS_FOLDER;
pub use self::status::override_reports;
use self::stop::Clients;
use config::{BackingSpec, Config, Cores, TlsConfig, VolumeConfig};
use logging::{self as log, CONFIG, DAEMON, VOLUME};
use state::{Acceptance, StateDir, draw_identity, draw_incarnation};
use systemd::Notifier;
use terminal::{EXIT_FAILED, Failure};

/// Time-out for a predecessor to end and release the state directory.
const PREDECESSOR_PATIENCE: Duration = Duration::from_secs(10);
/// Umask: new files are accessible to the daemon's user and group alone.
const UMASK: u32 = 0o027;
/// Time for the last log lines of a daemon that gives up: standard error may be stuck.
const LAST_LINES_PATIENCE: Duration = Duration::from_secs(1);
/// Time for the last answers to leave the control socket.
const LAST_WORDS: Duration = Duration::from_millis(50);

/// Serves the configuration in `file` until stopped.
pub fn run(file: &Path) -> Result<(), Failure> {
    let inherited = handover::inherited();
    signals::take()?;
    let config = Config::load(file).map_err(|problems| Failure::usage(problems.to_string()))?;
    // After the signals are taken: the log has a thread.
    let _log = log::start(&config.log.filter, config.log.format)
        .map_err(|error| Failure::failed(format!("the log cannot be started: {error}")))?;
    config.exposed_secrets().iter().for_each(|text| log::warn!(target: CONFIG, "{text}"));
    raise_open_files();
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(UMASK));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| Failure::failed(format!("the control thread cannot run: {error}")))?;
    LocalSet::new().block_on(&runtime, serve(config, inherited, || ()))
}

/// Raises the limit of open files to the hard limit: every client takes one.
fn raise_open_files() {
    let limits = rustix::process::getrlimit(Resource::Nofile);
    // If the limit cannot be raised, the present one stays.
    let _ = rustix::process::setrlimit(Resource::Nofile, Rlimit { current: limits.maximum, ..limits });
}

/// A daemon on a thread of its own in this process.
pub struct Background(JoinHandle<Result<(), Failure>>);

impl Background {
    /// Starts one; returns when clients can connect.
    pub fn start(config: Config) -> Result<Background, Failure> {
        signals::take()?;
        let (ready, is_ready) = std::sync::mpsc::channel();
        let body = move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            let runtime =
                runtime.map_err(|error| Failure::failed(format!("the control thread cannot run: {error}")))?;
            // The receiver is gone if the starting thread has given up.
            let ready = move || ready.send(()).unwrap_or_default();
            LocalSet::new().block_on(&runtime, serve(config, Vec::new(), ready))
        };
        let thread = std::thread::Builder::new().name("control".to_owned()).spawn(body);
        let daemon = Background(thread.map_err(|error| Failure::failed(format!("no control thread: {error}")))?);
        match is_ready.recv() {
            Ok(()) => Ok(daemon),
            Err(_) => Err(daemon.join().err().unwrap_or_else(|| Failure::failed("the daemon ended at once"))),
        }
    }

    /// True when its thread has ended.
    pub fn has_ended(&self) -> bool {
        self.0.is_finished()
    }

    /// Waits for its end.
    pub fn join(self) -> Result<(), Failure> {
        self.0.join().unwrap_or_else(|_| Err(Failure::failed("the control thread panicked")))
    }
}

async fn serve(config: Config, clients: Vec<handover::Kept>, ready: impl FnOnce()) -> Result<(), Failure> {
    let failed = |error: &dyn std::fmt::Display| Failure::failed(error.to_string());
    let mut state =
        StateDir::open_within(&config.state_directory, PREDECESSOR_PATIENCE).await.map_err(|error| failed(&error))?;
    let (identity, life) = draw_identity()
        .and_then(|identity| Ok((identity, draw_incarnation()?)))
        .map_err(|error| Failure::failed(format!("cannot draw an identity from /dev/urandom: {error}")))?;
    state
        .change(|state| {
            state.begin_life(identity, life);
            loss::note_boot(state);
        })
        .map_err(|error| failed(&error))?;
    let (ended, mut has_ended) = mpsc::unbounded_channel();
    let tls = config.nbd.tls.as_ref().map(load_tls).transpose()?;
    let (tls, shown) = tls.unzip();
    let (target, keeping) = iscsi::plan(config.iscsi.as_ref())?;
    let vhost_user = vhost_user::plan(config.vhost_user.as_ref(), state.state().generation).map_err(Failure::failed)?;
    let kept::Plan { kept, not_kept } = kept::plan(&config, &mut state).map_err(Failure::failed)?;
    let cores = start_cores(&config, tls, (target, vhost_user), kept.clone(), ended).await?;
    let socket = config.control_socket.clone();
    let daemon = Rc::new(Daemon::new(config, state, (cores, kept), Notifier::from_environment()));
    daemon.not_kept.set(not_kept).expect("it is set once");
    // Before the control socket listens: a volume added earlier would be attached without its persisted memory.
    *daemon.whole.borrow_mut() = daemon.open_left_behind().await.map_err(|failure| Failure::failed(failure.message))?;
    if let Some(shown) = shown {
        assert!(daemon.certificates.nbd.set(shown).is_ok(), "it is set once");
    }
    tokio::task::spawn_local(daemon.clone().keep_reservations(keeping));
    let wanted = wanted_volumes(&daemon);
    // Before the control socket listens: a reload would open the volumes a second time.
    let starting: Vec<_> = wanted.iter().filter_map(|(config, _)| daemon.begin(&config.name).ok()).collect();
    tokio::task::spawn_local(obey_signals(daemon.clone()));
    let (quit, quitting) = watch::channel(false);
    let stopped = quitting.clone();
    let (listens, is_listening) = oneshot::channel();
    let control = tokio::task::spawn_local({
        let daemon = daemon.clone();
        // The start awaits the receiver below.
        let listens = move || listens.send(()).expect("the start waits for the control socket");
        async move { control::serve(&socket, daemon, control::Limits::default(), listens, quitting).await }
    });
    if is_listening.await.is_err() {
        let error = control.await.map_err(|error| failed(&error))?;
        return Err(error.map_or_else(|error| failed(&error), |()| failed(&"the control socket closed at once")));
    }
    daemon.start_history();
    tokio::task::spawn_local(daemon.clone().sample());
    daemon.start_api(stopped);
    let started = daemon.patiently(start_serving(&daemon, wanted, starting, clients)).await;
    if started.is_ok() {
        ready();
        daemon.feed_watchdog().await;
        tokio::task::spawn_local(daemon.clone().watch_flash());
        tokio::task::spawn_local(daemon.clone().watch_drives());
        tokio::task::spawn_local(daemon.clone().retry_absent());
        tokio::select! {
            () = daemon.stop.asked() => {}
            Some(core) = has_ended.recv() => {
                let text = format!("data core {core} has ended unexpectedly; what was flushed is safe, a restart is \
                                    needed");
                log::error!(target: DAEMON, "{text}");
                daemon.journal.note_daemon(&text);
                daemon.journal.events.flush();
                log::flush(LAST_LINES_PATIENCE);
                std::process::exit(i32::from(EXIT_FAILED));
            }
        }
    }
    daemon.stop.ask(false, Clients::SendAway);
    let complete = daemon.drain().await;
    daemon.end_history().await;
    daemon.end_events();
    tokio::time::sleep(LAST_WORDS).await;
    // The receiver is gone if the server has failed.
    let _ = quit.send(true);
    let _ = control.await;
    started?;
    if !complete {
        return Err(Failure::failed(daemon.stop.said()));
    }
    log::info!(target: DAEMON, "{}", daemon.stop.said());
    Ok(())
}

async fn start_cores(
    config: &Config,
    tls: Option<nbd::Tls>,
    (mut target, mut vhost_user): (Option<iscsi::IscsiSpec>, Option<vhost_user::VhostUserSpec>),
    mut kept: Option<KeptFile>,
    ended: mpsc::UnboundedSender<usize>,
) -> Result<Vec<DataCore>, Failure> {
    // One data core: a connection cannot move to another core yet, and would not find the volumes there.
    let processors: Vec<Option<usize>> = match &config.cores {
        Cores::Auto => vec![None],
        Cores::List(list) => list.iter().take(1).map(|core| Some(*core as usize)).collect(),
    };
    if matches!(&config.cores, Cores::List(list) if list.len() > 1) {
        log::warn!(target: DAEMON, "cores names several processors; this version serves data on the first one");
    }
    let pool_bytes = engine::pool_bytes_for(config.memory_bytes / processors.len() as u64);
    let of_spec = CoreSpec::default();
    let flash_threshold = config.flash.as_ref().map_or(of_spec.flash_threshold, |flash| flash.threshold);
    let engine = CoreSpec { sabotage: sabotage::from_environment(), flash_threshold, ..of_spec };
    let mut cores = Vec::new();
    for (index, cpu) in processors.into_iter().enumerate() {
        let real = RealCoreSpec { cpu, kept: kept.take(), ..RealCoreSpec::new(pool_bytes as usize) };
        let nbd = nbd::Options { tls: tls.clone(), ..Default::default() };
        let (iscsi, vhost_user) = (target.take(), vhost_user.take());
        let spec = DataCoreSpec { index, real, engine: engine.clone(), nbd, iscsi, vhost_user };
        let core = DataCore::start(spec, ended.clone()).await;
        cores.push(core.map_err(|error| Failure::failed(error.to_string()))?);
    }
    Ok(cores)
}

/// The TLS configuration of the NBD server, and its certificate for reports and renewal.
fn load_tls(config: &TlsConfig) -> Result<(nbd::Tls, Shown), Failure> {
    let identity = config.files.read().map_err(|error| Failure::failed(format!("[nbd] TLS: {error}")))?;
    let tls = nbd::Tls::new(identity.config, config.required);
    let shared = tls.clone();
    Ok((tls, Shown::new(&config.files, identity.chain, move |config| shared.renew(config))))
}

/// Attaches the volumes and starts the listeners. A volume that cannot be served does not prevent the others from being
/// served.
async fn start_serving(
    daemon: &Rc<Daemon>,
    wanted: Vec<(VolumeConfig, bool)>,
    starting: Vec<Busy<'_>>,
    clients: Vec<handover::Kept>,
) -> Result<(), Failure> {
    if daemon.config.borrow().flash.is_some() {
        daemon.notifier.status("replaying the flash log");
    }
    daemon.open_flash().await.map_err(|failure| Failure::failed(failure.message))?;
    let datastores = daemon.config.borrow().datastores.clone();
    daemon.tell_datastores(&datastores).await.map_err(|failure| Failure::failed(failure.message))?;
    daemon.notifier.status(&format!("opening volumes: {}", wanted.len()));
    let names: Vec<String> = wanted.iter().map(|(config, _)| config.name.clone()).collect();
    let attached = daemon.attach_all(wanted, Acceptance::default()).await;
    drop(starting);
    let mut unnoted = 0;
    for (name, failure) in names.into_iter().zip(attached).filter_map(|(name, result)| Some((name, result.err()?))) {
        log::error!(target: VOLUME, volume = name, "{}", failure.message);
        // Absent backings are retried, and conflicts need an administrator: both require a running daemon.
        unnoted += usize::from(failure.kind == ErrorKind::Failed);
    }
    if unnoted > 0 && daemon.volumes.borrow().len() == unnoted {
        return Err(Failure::failed("none of the volumes can be served"));
    }
    daemon.keep_two_copies().await;
    let mut listening = daemon.listen_nbd().await.map_err(Failure::failed)?;
    listening.extend(daemon.listen_iscsi().await.map_err(Failure::failed)?);
    // Only after the last step of the start that can fail.
    daemon.take_over_clients(clients).await;
    let guests = daemon.config.borrow().vhost_user.as_ref().map(|config| config.directory.display().to_string());
    listening.extend(guests.map(|directory| format!("vhost-user:{directory}")));
    *daemon.listen.borrow_mut() = listening.clone();
    let count = daemon.served().len();
    let plural = if count == 1 { "" } else { "s" };
    let text = format!("serving {count} volume{plural} on {}", listening.join(", "));
    log::info!(target: DAEMON, "{text}");
    daemon.journal.begin_serving(&text, &daemon.look().await);
    daemon.notifier.say(&format!("READY=1\nSTATUS={text}"));
    Ok(())
}

/// The volumes to serve: the file's without the ones removed by command, and the ones added by command. An added volume
/// supersedes an entry of the same name with another backing, because clients have written to the added one.
fn wanted_volumes(daemon: &Daemon) -> Vec<(VolumeConfig, bool)> {
    let (config, state) = (daemon.config.borrow(), daemon.state.borrow());
    let removed = |volume: &VolumeConfig| state.state().removed.get(&volume.name) == Some(&volume.entry());
    let mut wanted: Vec<_> =
        config.volumes.iter().filter(|volume| !removed(volume)).map(|volume| (volume.clone(), true)).collect();
    for record in &state.state().volumes {
        let Some(added) = &record.added else { continue };
        let backing = BackingSpec::parse(&added.backing, Path::new("/"));
        let named = wanted.iter().position(|(volume, _)| volume.name == record.name);
        if let Some(named) = named {
            let entry = &wanted[named].0.backing;
            if backing.as_ref().is_ok_and(|backing| backing == entry) {
                log::warn!(
                    target: VOLUME, volume = record.name,
                    "volume {}: added by command and in the file now; the file's entry is served",
                    record.name
                );
                continue;
            }
            log::warn!(
                target: VOLUME, volume = record.name,
                "volume {}: added by command on {}, which is served; the file's entry of that name has another \
                 backing ({entry}) and is left out. To serve that one: hotset volume remove {}, then read the \
                 configuration again (SIGHUP)",
                record.name,
                added.backing,
                record.name
            );
            wanted.remove(named);
        }
        match (backing, added.policy.parse()) {
            (Ok(backing), Ok(policy)) => {
                let (size_bytes, read_only) = (added.size_bytes, added.read_only);
                let volume = VolumeConfig { policy, size_bytes, read_only, ..VolumeConfig::new(&record.name, backing) };
                let volume = volume.by_rules(&config.qos);
                wanted.push((volume, false));
            }
            (Err(error), _) | (_, Err(error)) => log::error!(
                target: VOLUME, volume = record.name,
                "volume {}: {error}",
                record.name
            ),
        }
    }
    wanted
}

/// Handles signals: SIGTERM and SIGINT stop the daemon, a second one ends it at once, SIGHUP reloads the configuration.
async fn obey_signals(daemon: Rc<Daemon>) {
    let mut signals = signals::obey(match daemon.kept {
        Some(_) => "what was acknowledged waits in memory for the next start",
        None => "what was flushed is safe, what was not is lost",
    });
    while let Some(signal) = signals.recv().await {
        match signal {
            Signal::Terminate | Signal::Interrupt => stop_by_signal(&daemon, signal),
            Signal::Hangup => {
                let daemon = daemon.clone();
                tokio::task::spawn_local(async move { reload_by_signal(&daemon).await });
            }
        }
    }
}

fn stop_by_signal(daemon: &Daemon, signal: Signal) {
    let how = match daemon.flash_store() {
        Some(_) => "leaving what is dirty in the flash log",
        None => "destaging what is dirty",
    };
    let name = signal.name();
    log::info!(target: DAEMON, "{name}: stopping; {how}, a second signal ends at once");
    daemon.journal.note_change(Some(name.to_owned()), None, "stop".to_owned());
    // A stop by the service manager may be followed by a start, so clients are handed over. Without a start the service
    // manager closes their connections.
    let hands_over = signal == Signal::Terminate && daemon.notifier.is_there();
    daemon.stop.ask(false, if hands_over { Clients::HandOver } else { Clients::SendAway });
}

async fn reload_by_signal(daemon: &Daemon) {
    if daemon.stop.is_stopping() {
        return log::warn!(target: DAEMON, "SIGHUP: not obeyed, the daemon is stopping");
    }
    log::info!(target: CONFIG, "SIGHUP: reading the configuration again");
    match daemon.reload_for("SIGHUP").await {
        Ok(said) => said.iter().for_each(|text| log::info!(target: CONFIG, "{text}")),
        Err(failure) => {
            log::error!(target: CONFIG, "{}", failure.message);
            daemon.notifier.status("the changed configuration has errors; the old one is in force");
        }
    }
}
