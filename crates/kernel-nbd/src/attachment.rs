//! The attach process of one volume: creates the device, and reconnects it after each restart of the daemon.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep};

use super::daemon::{check_served, connect_to_volume};
use super::device::{self, Device, InUse, VolumeIdentity};
use super::handshake::{self, Connection};
use super::kernel::{DEAD_CONNECTION_TIMEOUT, Events, Export, KernelError, NbdNetlink};
use logging::{self as log, ATTACH, Filter, Format};
use systemd::Notifier;
use terminal::Failure;
use units::{show_bytes, show_time};

/// Directory of the locks of attached volumes.
const LOCK_DIRECTORY: &str = "/run/hotset-attach";
/// Interval of connection attempts while the daemon is away.
const RETRY_INTERVAL: Duration = Duration::from_millis(250);
/// Interval of checks of the volume's size and of the device's existence.
const CHECK_INTERVAL: Duration = Duration::from_secs(5);
/// Time for udev to create the link `/dev/hotset/NAME`.
const UDEV_TIMEOUT: Duration = Duration::from_secs(5);

/// Reason for the end of an attach process.
enum End {
    /// A signal.
    Signalled,
    /// The device has been disconnected.
    Detached,
}

/// A volume and its kernel device.
struct Attachment {
    socket: PathBuf,
    kernel: NbdNetlink,
    events: Events,
    device: Device,
    address: String,
    /// True if the daemon did not answer the last check.
    is_daemon_unreachable: bool,
}

/// Attaches `volume` and maintains the device until a signal; `on_attached` receives the device.
pub fn run(
    socket: &Path,
    volume: &str,
    on_attached: impl FnOnce(&Device) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let _log = log::start(&Filter::default(), Format::Text)
        .map_err(|error| Failure::failed(format!("cannot start the log: {error}")))?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| Failure::failed(format!("cannot wait for events: {error}")))?;
    runtime.block_on(async {
        let mut stop = Stop::new()?;
        let kernel = crate::kernel()?;
        let _lock = lock(volume)?;
        let mut attachment = Attachment::attach(socket, volume, kernel)?;
        attachment.wait_for_symlink().await;
        on_attached(&attachment.device)?;
        Notifier::from_environment().notify(&format!("READY=1\nSTATUS={}", attachment.device.path().display()));
        match attachment.run(&mut stop).await? {
            End::Signalled => attachment.shut_down(),
            End::Detached => {
                log::info!(target: ATTACH, volume, "{volume}: {} was disconnected", attachment.device.node().display());
                Ok(())
            }
        }
    })
}

impl Attachment {
    fn attach(socket: &Path, volume: &str, mut kernel: NbdNetlink) -> Result<Attachment, Failure> {
        let (identity, address, connection) =
            connect_to_volume(socket, volume).map_err(|reason| Failure::failed(reason.to_string()))?;
        // Events are received from now on, including those of a connection that lives only for an instant.
        let events = kernel.events().map_err(failure)?;
        let device = device::find(volume).map_err(|error| Failure::failed(format!("/sys/block: {error}")))?;
        let socket = socket.to_owned();
        let attachment = match device {
            None => {
                let index = kernel.connect(&export(&connection, &identity.to_text())).map_err(failure)?;
                let device = Device { index, identity };
                Attachment { socket, kernel, events, device, address, is_daemon_unreachable: false }
            }
            // The device of an earlier attach process; only the kernel knows whether its connection is alive.
            Some(device) => {
                let mut attachment =
                    Attachment { socket, kernel, events, device, address, is_daemon_unreachable: false };
                let reconnected = attachment.reconnect_device(&identity, &connection);
                reconnected.map_err(|reason| Failure::failed(format!("{volume}: {reason}")))?;
                attachment
            }
        };
        let configured = attachment.device.configure();
        let node = attachment.device.node();
        configured.map_err(|error| Failure::failed(format!("cannot configure {}: {error}", node.display())))?;
        Ok(attachment)
    }

    /// Waits for udev's symbolic link. Without udev's rule there is none, and the device is usable nevertheless.
    async fn wait_for_symlink(&self) {
        let deadline = Instant::now() + UDEV_TIMEOUT;
        while !self.device.is_linked() {
            if Instant::now() > deadline {
                let (link, node) = (self.device.link(), self.device.node());
                log::warn!(
                    target: ATTACH,
                    "udev did not create {}; use {}, or install 60-hotset.rules",
                    link.display(),
                    node.display()
                );
                return;
            }
            sleep(Duration::from_millis(20)).await;
        }
    }

    async fn run(&mut self, stop: &mut Stop) -> Result<End, Failure> {
        let mut checks = interval(CHECK_INTERVAL);
        checks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let must_reconnect = tokio::select! {
                () = stop.signalled() => return Ok(End::Signalled),
                lost = self.events.wait_for_link_dead(self.device.index) => {
                    lost.map_err(|error| Failure::failed(format!("lost the kernel's NBD event socket: {error}")))?;
                    true
                }
                _ = checks.tick() => self.poll_daemon(),
            };
            if !self.device.exists() {
                return Ok(End::Detached);
            }
            if must_reconnect && let Some(end) = self.reconnect(stop).await {
                return Ok(end);
            }
        }
    }

    /// Grows the device to the volume's current size. Returns true if the daemon is back after an absence.
    fn poll_daemon(&mut self) -> bool {
        match handshake::query_size_bytes(&self.address, &self.device.identity.volume) {
            Ok(size_bytes) => {
                self.update_size(size_bytes);
                std::mem::take(&mut self.is_daemon_unreachable)
            }
            Err(_) => {
                self.is_daemon_unreachable = true;
                false
            }
        }
    }

    /// Retries until the device has a connection again.
    async fn reconnect(&mut self, stop: &mut Stop) -> Option<End> {
        let start = Instant::now();
        let volume = self.device.identity.volume.clone();
        let mut last_logged = String::new();
        loop {
            let Err(reason) = self.reconnect_once() else {
                self.is_daemon_unreachable = false;
                let away_seconds = start.elapsed().as_secs_f64();
                log::info!(
                    target: ATTACH, volume,
                    "{volume}: {} is reconnected after {away_seconds:.1} s",
                    self.device.node().display()
                );
                return None;
            };
            // Each reason is logged once: a starting daemon reports several.
            if reason != last_logged {
                let timeout = show_time(DEAD_CONNECTION_TIMEOUT);
                log::warn!(target: ATTACH, volume, "{volume}: {reason}; requests are queued for up to {timeout}");
                last_logged = reason;
            }
            tokio::select! {
                () = stop.signalled() => return Some(End::Signalled),
                () = sleep(RETRY_INTERVAL) => (),
            }
            if !self.device.exists() {
                return Some(End::Detached);
            }
        }
    }

    fn reconnect_once(&mut self) -> Result<(), String> {
        let (identity, address, connection) =
            connect_to_volume(&self.socket, &self.device.identity.volume).map_err(|reason| reason.to_string())?;
        self.reconnect_device(&identity, &connection)?;
        self.address = address;
        Ok(())
    }

    /// Gives the device a connection to its volume, and the volume's size. Refuses another volume of the same name, and
    /// a volume that has shrunk.
    fn reconnect_device(&mut self, identity: &VolumeIdentity, connection: &Connection) -> Result<(), String> {
        let node = self.device.node();
        if *identity != self.device.identity {
            let volume = &identity.volume;
            let reason = "is attached to a removed volume of the same name; run `hotset detach";
            return Err(format!("{} {reason} {volume}`, then attach again", node.display()));
        }
        let size_bytes = self.device.size_bytes().map_err(|error| format!("{}: {error}", node.display()))?;
        if connection.size_bytes < size_bytes {
            let (new, old) = (show_bytes(connection.size_bytes), show_bytes(size_bytes));
            return Err(format!("the volume shrank to {new}, but {} needs {old}", node.display()));
        }
        let text = identity.to_text();
        self.kernel.reconnect(self.device.index, &export(connection, &text)).map_err(|error| error.to_string())?;
        self.update_size(connection.size_bytes);
        Ok(())
    }

    /// Grows the device with its volume. The device of a shrunk volume keeps its size, because shrinking would lose
    /// data.
    fn update_size(&mut self, size_bytes: u64) {
        let node = self.device.node();
        match self.device.size_bytes() {
            Ok(old_size_bytes) if size_bytes > old_size_bytes => {
                let text = self.device.identity.to_text();
                match self.kernel.resize(self.device.index, &text, size_bytes) {
                    Ok(()) => log::info!(
                        target: ATTACH, device = %node.display(),
                        "{} has grown to {}",
                        node.display(),
                        show_bytes(size_bytes)
                    ),
                    Err(error) => log::warn!(
                        target: ATTACH, device = %node.display(),
                        "cannot resize {}: {error}",
                        node.display()
                    ),
                }
            }
            Ok(_) => (),
            Err(error) => log::warn!(target: ATTACH, device = %node.display(), "{}: {error}", node.display()),
        }
    }

    /// Ends the attach process. The device is disconnected if it is unused and the daemon accepts its unflushed writes.
    /// Otherwise it stays connected, and the next attach process takes it over.
    fn shut_down(mut self) -> Result<(), Failure> {
        let claimed = match check_served(&self.socket, &self.device.identity) {
            Ok(()) => self.device.claim().map_err(|InUse(reason)| reason),
            Err(reason) => Err(format!("it cannot be flushed: {reason}")),
        };
        match claimed {
            Ok(file) => crate::disconnect(&mut self.kernel, &self.device, file, true),
            Err(reason) => {
                let (node, volume) = (self.device.node(), &self.device.identity.volume);
                log::warn!(
                    target: ATTACH, volume, device = %node.display(),
                    "{} is left connected: {reason}; run `hotset attach {volume}` to resume, or \
                     `hotset detach {volume}`",
                    node.display()
                );
                Ok(())
            }
        }
    }
}

/// Signals that end the attach process.
struct Stop {
    terminate: Signal,
    interrupt: Signal,
}

impl Stop {
    fn new() -> Result<Stop, Failure> {
        let signal_error = |error: std::io::Error| Failure::failed(format!("cannot wait for signals: {error}"));
        let terminate = signal(SignalKind::terminate()).map_err(signal_error)?;
        Ok(Stop { terminate, interrupt: signal(SignalKind::interrupt()).map_err(signal_error)? })
    }

    async fn signalled(&mut self) {
        tokio::select! { _ = self.terminate.recv() => (), _ = self.interrupt.recv() => () }
    }
}

fn export<'a>(connection: &'a Connection, identifier: &'a str) -> Export<'a> {
    let (size_bytes, block_bytes, flags) = (connection.size_bytes, connection.block_bytes, connection.flags);
    Export { socket: connection.socket(), size_bytes, block_bytes, flags, identifier }
}

fn failure(error: KernelError) -> Failure {
    Failure::failed(error.to_string())
}

/// Locks the volume for this process while the returned file is open.
fn lock(volume: &str) -> Result<File, Failure> {
    let path = Path::new(LOCK_DIRECTORY).join(volume);
    let open = std::fs::create_dir_all(LOCK_DIRECTORY).and_then(|()| File::create(&path));
    let file =
        open.map_err(|error| Failure::failed(format!("{}: {error}; run the command as root", path.display())))?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(file),
        Err(_) => Err(Failure::failed(format!("{volume} is already attached by another process"))),
    }
}
