//! Keeps one volume attached: creates the device, and gives it a new connection whenever the daemon has been away.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep};

use super::device::{self, Device, Identifier, InUse};
use super::handshake::{self, Link};
use super::kernel::{DEAD_CONNECTION, Events, Export, Kernel, KernelError};
use super::served::{is_served, reach};
use logging::{self as log, ATTACH, Filter, Format};
use systemd::Notifier;
use terminal::Failure;
use units::{show_bytes, show_time};

/// Directory of the locks of attached volumes.
const LOCKS: &str = "/run/hotset-attach";
/// Interval of connection attempts while the daemon is away.
const RETRY_PAUSE: Duration = Duration::from_millis(250);
/// Interval of checks of the volume's size and of the device's existence.
const LOOK_PAUSE: Duration = Duration::from_secs(5);
/// Time for udev to create the link.
const NAMING_PATIENCE: Duration = Duration::from_secs(5);

/// Reason for the end of a keeper.
enum End {
    /// A signal.
    Asked,
    /// The device has been disconnected.
    Detached,
}

/// A volume and its device.
struct Keeper {
    socket: PathBuf,
    kernel: Kernel,
    events: Events,
    device: Device,
    address: String,
    /// The daemon did not answer the last check.
    is_away: bool,
}

/// Attaches `volume` and keeps it attached until a signal; `on_attached` receives the device.
pub fn keep(
    socket: &Path,
    volume: &str,
    on_attached: impl FnOnce(&Device) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let _log = log::start(&Filter::default(), Format::Text)
        .map_err(|error| Failure::failed(format!("the log cannot be started: {error}")))?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| Failure::failed(format!("cannot wait for events: {error}")))?;
    runtime.block_on(async {
        let mut stop = Stop::new()?;
        let kernel = crate::kernel()?;
        let _lock = lock(volume)?;
        let mut keeper = Keeper::attach(socket, volume, kernel)?;
        keeper.wait_for_name().await;
        on_attached(&keeper.device)?;
        Notifier::from_environment().notify(&format!("READY=1\nSTATUS={}", keeper.device.path().display()));
        match keeper.run(&mut stop).await? {
            End::Asked => keeper.let_go(),
            End::Detached => {
                log::info!(target: ATTACH, volume, "{volume}: {} was disconnected", keeper.device.node().display());
                Ok(())
            }
        }
    })
}

impl Keeper {
    fn attach(socket: &Path, volume: &str, mut kernel: Kernel) -> Result<Keeper, Failure> {
        let (identifier, address, link) = reach(socket, volume).map_err(|why| Failure::failed(why.to_string()))?;
        // Events are received from now on, including those of a connection that lives only for an instant.
        let events = kernel.events().map_err(failure)?;
        let found = device::find(volume).map_err(|error| Failure::failed(format!("/sys/block: {error}")))?;
        let socket = socket.to_owned();
        let keeper = match found {
            None => {
                let index = kernel.connect(&export(&link, &identifier.to_text())).map_err(failure)?;
                let device = Device { index, identifier };
                Keeper { socket, kernel, events, device, address, is_away: false }
            }
            // The device of an earlier keeper; only the kernel knows whether its connection is alive.
            Some(device) => {
                let mut keeper = Keeper { socket, kernel, events, device, address, is_away: false };
                keeper.hand_over(&identifier, &link).map_err(|why| Failure::failed(format!("{volume}: {why}")))?;
                keeper
            }
        };
        let set_up = keeper.device.set_up();
        let node = keeper.device.node();
        set_up.map_err(|error| Failure::failed(format!("{} cannot be set up: {error}", node.display())))?;
        Ok(keeper)
    }

    /// Waits for udev's link. Without udev's rule there is no link, and the device is usable nevertheless.
    async fn wait_for_name(&self) {
        let end = Instant::now() + NAMING_PATIENCE;
        while !self.device.is_linked() {
            if Instant::now() > end {
                let (link, node) = (self.device.link(), self.device.node());
                log::warn!(
                    target: ATTACH,
                    "udev makes no {}; use {}, or install 60-hotset.rules",
                    link.display(),
                    node.display()
                );
                return;
            }
            sleep(Duration::from_millis(20)).await;
        }
    }

    async fn run(&mut self, stop: &mut Stop) -> Result<End, Failure> {
        let mut looks = interval(LOOK_PAUSE);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let is_lost = tokio::select! {
                () = stop.asked() => return Ok(End::Asked),
                lost = self.events.lost(self.device.index) => {
                    lost.map_err(|error| Failure::failed(format!("the kernel tells no more of connections: {error}")))?;
                    true
                }
                _ = looks.tick() => self.look(),
            };
            if !self.device.is_there() {
                return Ok(End::Detached);
            }
            if is_lost && let Some(end) = self.reconnect(stop).await {
                return Ok(end);
            }
        }
    }

    /// Follows the volume's size; true if the daemon is back after an absence.
    fn look(&mut self) -> bool {
        match handshake::size_bytes(&self.address, &self.device.identifier.volume) {
            Ok(size_bytes) => {
                self.follow_size(size_bytes);
                std::mem::take(&mut self.is_away)
            }
            Err(_) => {
                self.is_away = true;
                false
            }
        }
    }

    /// Retries until the device has a connection again.
    async fn reconnect(&mut self, stop: &mut Stop) -> Option<End> {
        let began = Instant::now();
        let volume = self.device.identifier.volume.clone();
        let mut told = String::new();
        loop {
            let Err(why) = self.reconnect_once() else {
                self.is_away = false;
                let away = began.elapsed().as_secs_f64();
                log::info!(
                    target: ATTACH, volume,
                    "{volume}: {} is connected again after {away:.1} s",
                    self.device.node().display()
                );
                return None;
            };
            // Each reason is logged once: a starting daemon gives several.
            if why != told {
                let most = show_time(DEAD_CONNECTION);
                log::warn!(target: ATTACH, volume, "{volume}: {why}; requests wait, for {most} at most");
                told = why;
            }
            tokio::select! {
                () = stop.asked() => return Some(End::Asked),
                () = sleep(RETRY_PAUSE) => (),
            }
            if !self.device.is_there() {
                return Some(End::Detached);
            }
        }
    }

    fn reconnect_once(&mut self) -> Result<(), String> {
        let (identifier, address, link) =
            reach(&self.socket, &self.device.identifier.volume).map_err(|why| why.to_string())?;
        self.hand_over(&identifier, &link)?;
        self.address = address;
        Ok(())
    }

    /// Gives the device a connection to its volume, and the volume's size. Another volume of the name, or one that has
    /// shrunk, is refused.
    fn hand_over(&mut self, identifier: &Identifier, link: &Link) -> Result<(), String> {
        let node = self.device.node();
        if *identifier != self.device.identifier {
            let volume = &identifier.volume;
            let what = "is an earlier volume of that name; `hotset detach";
            return Err(format!("{} {what} {volume}`, then attach the new one", node.display()));
        }
        let size_bytes = self.device.size_bytes().map_err(|error| format!("{}: {error}", node.display()))?;
        if link.size_bytes < size_bytes {
            let (less, more) = (show_bytes(link.size_bytes), show_bytes(size_bytes));
            return Err(format!("the volume has {less} now, and {} is {more}", node.display()));
        }
        let text = identifier.to_text();
        self.kernel.reconnect(self.device.index, &export(link, &text)).map_err(|error| error.to_string())?;
        self.follow_size(link.size_bytes);
        Ok(())
    }

    /// Grows the device with its volume. The device of a shrunk volume keeps its size, because shrinking would lose
    /// data.
    fn follow_size(&mut self, size_bytes: u64) {
        let node = self.device.node();
        match self.device.size_bytes() {
            Ok(now) if size_bytes > now => {
                let text = self.device.identifier.to_text();
                match self.kernel.resize(self.device.index, &text, size_bytes) {
                    Ok(()) => log::info!(
                        target: ATTACH, device = %node.display(),
                        "{} has {} now",
                        node.display(),
                        show_bytes(size_bytes)
                    ),
                    Err(error) => log::warn!(
                        target: ATTACH, device = %node.display(),
                        "{} keeps its size: {error}",
                        node.display()
                    ),
                }
            }
            Ok(_) => (),
            Err(error) => log::warn!(target: ATTACH, device = %node.display(), "{}: {error}", node.display()),
        }
    }

    /// Ends the keeper. The device is disconnected if it is unused and the daemon accepts its unflushed writes.
    /// Otherwise it stays, and the next keeper takes it over.
    fn let_go(mut self) -> Result<(), Failure> {
        let claimed = match is_served(&self.socket, &self.device.identifier) {
            Ok(()) => self.device.claim().map_err(|InUse(why)| why),
            Err(why) => Err(format!("it cannot be flushed: {why}")),
        };
        match claimed {
            Ok(file) => crate::disconnect(&mut self.kernel, &self.device, file, true),
            Err(why) => {
                let (node, volume) = (self.device.node(), &self.device.identifier.volume);
                log::warn!(
                    target: ATTACH, volume, device = %node.display(),
                    "{} stays connected: {why}; attach {volume} again to keep it so",
                    node.display()
                );
                Ok(())
            }
        }
    }
}

/// Signals that end the keeper.
struct Stop {
    terminate: Signal,
    interrupt: Signal,
}

impl Stop {
    fn new() -> Result<Stop, Failure> {
        let wrong = |error: std::io::Error| Failure::failed(format!("cannot wait for signals: {error}"));
        let terminate = signal(SignalKind::terminate()).map_err(wrong)?;
        Ok(Stop { terminate, interrupt: signal(SignalKind::interrupt()).map_err(wrong)? })
    }

    async fn asked(&mut self) {
        tokio::select! { _ = self.terminate.recv() => (), _ = self.interrupt.recv() => () }
    }
}

fn export<'a>(link: &'a Link, identifier: &'a str) -> Export<'a> {
    let (size_bytes, block_bytes, flags) = (link.size_bytes, link.block_bytes, link.flags);
    Export { socket: link.socket(), size_bytes, block_bytes, flags, identifier }
}

fn failure(error: KernelError) -> Failure {
    Failure::failed(error.to_string())
}

/// Locks the volume for this process while the returned file is open.
fn lock(volume: &str) -> Result<File, Failure> {
    let path = Path::new(LOCKS).join(volume);
    let open = std::fs::create_dir_all(LOCKS).and_then(|()| File::create(&path));
    let file = open.map_err(|error| Failure::failed(format!("{}: {error}; run it as root", path.display())))?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(file),
        Err(_) => Err(Failure::failed(format!("another process keeps {volume} attached already"))),
    }
}
