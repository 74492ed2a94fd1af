//! The daemon of a demo, in this process, with two identical modelled arrays, one behind memory and flash.

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use control::Client;
use engine::WritePolicy;
use messages::token::LoginLink;
use messages::{Answer, Request, Role, StatusReport, VolumeReport};
use seam::model::ArraySpec;
use tempfile::TempDir;

use config::{BackingSpec, Config, default_array};
use daemon::Background;
use terminal::Failure;
use units::exact_bytes;

/// The volume with the cache.
pub const CACHED: &str = "with-cache";
/// The volume without the cache.
pub const UNCACHED: &str = "without-cache";
/// Bytes of each volume.
pub const VOLUME_BYTES: u64 = 4 << 30;
/// Bytes of memory for the cache.
pub const MEMORY_BYTES: u64 = 32 << 20;
/// Bytes of each of its two flash devices.
pub const FLASH_BYTES: u64 = 512 << 20;

/// The configuration of the demo's daemon as text. Paths are relative to the demo's folder, and the web console gets a
/// free port.
fn configuration() -> String {
    let volume = |name: &str, policy: WritePolicy| {
        let backing = BackingSpec::Sim(DemoDaemon::array(), Some(VOLUME_BYTES));
        format!("[[volume]]\nname = \"{name}\"\nbacking = \"{backing}\"\npolicy = \"{policy}\"\n")
    };
    format!(
        "[state]\ndirectory = \"state\"\n[memory]\nsize = \"{}\"\nkeep_in = \"none\"\n\
         [flash]\ndevices = [\"flash-0\", \"flash-1\"]\nsize = \"{}\"\n[control]\nsocket = \"control.sock\"\n\
         [api]\nlisten = \"127.0.0.1:0\"\n[nbd]\nlisten = [\"unix:nbd.sock\"]\nsocket_mode = \"0600\"\n{}{}",
        exact_bytes(MEMORY_BYTES),
        exact_bytes(FLASH_BYTES),
        volume(CACHED, WritePolicy::WriteBack),
        volume(UNCACHED, WritePolicy::None),
    )
}

/// The configuration of a demo in `folder`.
pub fn parse_configuration(folder: &Path) -> Result<Config, Failure> {
    parse(folder, &configuration())
}

/// Parses a configuration whose paths are relative to `folder`.
pub fn parse(folder: &Path, text: &str) -> Result<Config, Failure> {
    Config::parse(&folder.join("hotset.toml"), text).map_err(|problems| Failure::failed(problems.to_string()))
}

/// A daemon with its volumes, in a temporary directory.
pub struct DemoDaemon {
    daemon: Background,
    folder: TempDir,
}

impl DemoDaemon {
    /// Starts a daemon with the configuration for the folder; returns when clients can connect.
    pub fn start(configure: impl FnOnce(&Path) -> Result<Config, Failure>) -> Result<DemoDaemon, Failure> {
        let folder = tempfile::Builder::new().prefix("hotset-demo-").tempdir();
        let folder = folder.map_err(|error| {
            Failure::failed(format!("the temporary directory of the demo cannot be created: {error}"))
        })?;
        let daemon = Background::start(configure(folder.path())?)?;
        Ok(DemoDaemon { daemon, folder })
    }

    /// The model of both arrays.
    pub fn array() -> ArraySpec {
        default_array()
    }

    /// Socket of NBD clients.
    pub fn socket(&self) -> PathBuf {
        self.folder.path().join("nbd.sock")
    }

    /// A connection to the daemon's control socket.
    pub fn control(&self) -> Result<Control, Failure> {
        Control::connect(&self.folder.path().join("control.sock"))
    }

    /// Stops the daemon and removes the folder.
    pub fn stop(self) -> Result<(), Failure> {
        self.control()?.request(&Request::Stop { destage: false })?;
        let stopped = self.daemon.join();
        remove_in_background(self.folder);
        stopped
    }

    /// Removes the folder, even while the daemon runs, because the daemon ends with this process. Returns the error of
    /// a daemon that has ended.
    pub fn abandon(self) -> Result<(), Failure> {
        remove_in_background(self.folder);
        if self.daemon.has_ended() { self.daemon.join() } else { Ok(()) }
    }
}

/// Removes the folder in another process: freeing the scattered blocks of sparse files takes the kernel seconds.
#[allow(clippy::zombie_processes, reason = "this process ends now, and init reaps the child")]
fn remove_in_background(folder: TempDir) {
    let path = folder.keep();
    let mut remove = Command::new("rm");
    remove.args(["-rf", "--"]).arg(&path);
    // Detached, so that a pipe that waits for the demo's end and a Ctrl-C at its end do not affect it.
    remove.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
    if remove.spawn().is_err() {
        // Files that cannot be removed stay in the system's temporary directory.
        let _ = std::fs::remove_dir_all(path);
    }
}

/// The demo's connection to the daemon.
pub struct Control(Client);

impl Control {
    fn connect(path: &Path) -> Result<Control, Failure> {
        Client::connect(path).map(Control).map_err(|error| Failure::failed(error.to_string()))
    }

    fn request(&mut self, request: &Request) -> Result<Answer, Failure> {
        self.0.request(request, |_| ()).map_err(|error| Failure::failed(error.to_string()))
    }

    /// The daemon's report of a volume.
    pub fn volume(&mut self, name: &str) -> Result<VolumeReport, Failure> {
        match self.request(&Request::VolumeShow { name: name.to_owned() })? {
            Answer::Volume(report) => Ok(*report),
            _ => Err(Failure::failed("the daemon sent an unexpected response")),
        }
    }

    /// The daemon's status with all volumes.
    pub fn status(&mut self) -> Result<StatusReport, Failure> {
        match self.request(&Request::Status {})? {
            Answer::Status(report) => Ok(*report),
            _ => Err(Failure::failed("the daemon sent an unexpected response")),
        }
    }

    /// Discards all cached content of a volume, dirty or not.
    pub fn discard(&mut self, name: &str) -> Result<(), Failure> {
        self.request(&Request::VolumeInvalidate { name: name.to_owned(), discard_dirty: true }).map(|_| ())
    }

    /// The web console's address, with a link that logs a browser in once.
    pub fn link(&mut self) -> Result<LoginLink, Failure> {
        match self.request(&Request::TokenLink { role: Role::Administer })? {
            Answer::Link(link) => Ok(link),
            _ => Err(Failure::failed("the daemon sent an unexpected response")),
        }
    }

    /// Destages all dirty data of a volume.
    pub fn flush(&mut self, name: &str) -> Result<(), Failure> {
        self.request(&Request::VolumeFlush { name: name.to_owned(), in_background: false }).map(|_| ())
    }
}
