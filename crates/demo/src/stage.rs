//! The demo's stage: a daemon in this process with two identical modelled arrays, one behind memory and flash, one not.

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use control::token::LoginLink;
use control::{Answer, Client, Request, Role, StatusReport, VolumeReport};
use engine::WritePolicy;
use seam::model::ArraySpec;
use tempfile::TempDir;

use config::{BackingSpec, Config, default_array};
use daemon::Background;
use terminal::Failure;
use units::exact_bytes;

/// The volume with the cache.
pub const CACHED: &str = "with-cache";
/// The volume without.
pub const UNCACHED: &str = "without-cache";
/// Bytes of each volume.
pub const VOLUME_BYTES: u64 = 4 << 30;
/// Bytes of memory for the cache.
pub const MEMORY_BYTES: u64 = 32 << 20;
/// Bytes of each of its two flash devices.
pub const FLASH_BYTES: u64 = 512 << 20;

/// What the demo's daemon would find in its file. Paths count from the demo's folder, and the page is on whatever port is free.
fn configuration() -> String {
    let volume = |name: &str, policy: WritePolicy| {
        let backing = BackingSpec::Sim(Stage::array(), Some(VOLUME_BYTES));
        format!("[[volume]]\nname = \"{name}\"\nbacking = \"{backing}\"\npolicy = \"{policy}\"\n")
    };
    format!(
        "[state]\ndirectory = \"state\"\n[memory]\nsize = \"{}\"\nkeep_in = \"none\"\n[flash]\ndevices = [\"flash-0\", \"flash-1\"]\nsize = \"{}\"\n[control]\nsocket = \"control.sock\"\n\
         [api]\nlisten = \"127.0.0.1:0\"\n[nbd]\nlisten = [\"unix:nbd.sock\"]\nsocket_mode = \"0600\"\n{}{}",
        exact_bytes(MEMORY_BYTES),
        exact_bytes(FLASH_BYTES),
        volume(CACHED, WritePolicy::WriteBack),
        volume(UNCACHED, WritePolicy::None),
    )
}

/// The same, read, for a demo in `folder`.
pub fn parse_configuration(folder: &Path) -> Result<Config, Failure> {
    parse(folder, &configuration())
}

/// Reads a configuration whose paths count from `folder`.
pub fn parse(folder: &Path, text: &str) -> Result<Config, Failure> {
    Config::parse(&folder.join("hotset.toml"), text).map_err(|problems| Failure::failed(problems.to_string()))
}

/// A daemon with its volumes, in a folder that goes away with it.
pub struct Stage {
    daemon: Background,
    folder: TempDir,
}

impl Stage {
    /// Sets up what is configured for the folder; returns when clients can connect.
    pub fn set(configure: impl FnOnce(&Path) -> Result<Config, Failure>) -> Result<Stage, Failure> {
        let folder = tempfile::Builder::new().prefix("hotset-demo-").tempdir();
        let folder = folder.map_err(|error| Failure::failed(format!("no folder for the demo: {error}")))?;
        let daemon = Background::start(configure(folder.path())?)?;
        Ok(Stage { daemon, folder })
    }

    /// What both arrays are.
    pub fn array() -> ArraySpec {
        default_array()
    }

    /// Where NBD clients connect.
    pub fn socket(&self) -> PathBuf {
        self.folder.path().join("nbd.sock")
    }

    /// A connection to the daemon's control socket.
    pub fn control(&self) -> Result<Control, Failure> {
        Control::connect(&self.folder.path().join("control.sock"))
    }

    /// Stops the daemon and has everything removed.
    pub fn strike(self) -> Result<(), Failure> {
        self.control()?.ask(&Request::Stop { destage: false })?;
        let stopped = self.daemon.join();
        remove_behind(self.folder);
        stopped
    }

    /// Has everything removed, from under the daemon if it is still at work: it ends with this process. The error is one that it has ended with.
    pub fn leave(self) -> Result<(), Failure> {
        remove_behind(self.folder);
        if self.daemon.has_ended() { self.daemon.join() } else { Ok(()) }
    }
}

/// Has another process remove the folder: to free the scattered blocks of sparse files takes the kernel seconds, and nobody
/// has to wait for it.
#[allow(clippy::zombie_processes, reason = "this process ends now; who inherits the child reaps it")]
fn remove_behind(folder: TempDir) {
    let path = folder.keep();
    let mut remove = Command::new("rm");
    remove.args(["-rf", "--"]).arg(&path);
    // Neither a pipe that waits for the demo's end nor a Ctrl-C at its end may notice.
    remove.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
    if remove.spawn().is_err() {
        // What cannot be removed lies in the system's folder for such things.
        let _ = std::fs::remove_dir_all(path);
    }
}

/// The demo's way to ask the daemon.
pub struct Control(Client);

impl Control {
    fn connect(path: &Path) -> Result<Control, Failure> {
        Client::connect(path).map(Control).map_err(|error| Failure::failed(error.to_string()))
    }

    fn ask(&mut self, request: &Request) -> Result<Answer, Failure> {
        self.0.ask(request, |_| ()).map_err(|error| Failure::failed(error.to_string()))
    }

    /// What the daemon tells of a volume.
    pub fn volume(&mut self, name: &str) -> Result<VolumeReport, Failure> {
        match self.ask(&Request::VolumeShow { name: name.to_owned() })? {
            Answer::Volume(report) => Ok(*report),
            _ => Err(Failure::failed("the daemon answered something unexpected")),
        }
    }

    /// What the daemon tells of itself and all volumes.
    pub fn status(&mut self) -> Result<StatusReport, Failure> {
        match self.ask(&Request::Status {})? {
            Answer::Status(report) => Ok(*report),
            _ => Err(Failure::failed("the daemon answered something unexpected")),
        }
    }

    /// Gives up what is cached of a volume, dirty or not.
    pub fn discard(&mut self, name: &str) -> Result<(), Failure> {
        self.ask(&Request::VolumeInvalidate { name: name.to_owned(), discard_dirty: true }).map(|_| ())
    }

    /// Where the page is, with a link that logs a browser in once.
    pub fn link(&mut self) -> Result<LoginLink, Failure> {
        match self.ask(&Request::TokenLink { role: Role::Administer })? {
            Answer::Link(link) => Ok(link),
            _ => Err(Failure::failed("the daemon answered something unexpected")),
        }
    }

    /// Has everything dirty destaged.
    pub fn flush(&mut self, name: &str) -> Result<(), Failure> {
        self.ask(&Request::VolumeFlush { name: name.to_owned(), aside: false }).map(|_| ())
    }
}
