//! A folder with a configuration and backings: everything that a daemon needs before it starts.

use std::fs::File;
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;

use crate::client::{Client, Endpoint};
use crate::daemon::{Daemon, hotset, text_of};
use crate::folder::Folder;
use crate::manager::Manager;

/// Name of every fixture's iSCSI target.
pub const TARGET: &str = "iqn.2026-11.io.hotset:test";

/// Configuration and files of a daemon under test.
pub struct Fixture {
    /// Folder of all files.
    pub folder: Folder,
    /// `[memory] size`.
    pub memory: String,
    /// `[memory] keep_in`.
    pub keep_in: String,
    /// Additional addresses in `[nbd] listen`.
    pub listen: Vec<String>,
    /// Additional lines of `[nbd]`.
    pub nbd: String,
    /// Additional tables, verbatim.
    pub tables: String,
    /// A deliberate fault of the engine, which proves that a test can fail; only builds with assertions obey it.
    pub sabotage: Option<&'static str>,
    /// Folder at the front of the daemon's `PATH`.
    pub programs: Option<PathBuf>,
    /// Program under test instead of [`crate::daemon::binary`].
    pub binary: Option<PathBuf>,
    /// Program that wraps the daemon; its arguments are the binary and the binary's arguments.
    pub wrapper: Option<PathBuf>,
    /// Notification socket of a service manager that expects a watchdog notification twice a second.
    pub watchdog_socket: Option<PathBuf>,
    /// Service manager that starts the daemons and stores descriptors between them.
    pub service_manager: Option<Manager>,
    volumes: Vec<String>,
}

impl Fixture {
    /// An empty fixture with 64 MiB of memory.
    pub fn new() -> Self {
        Fixture {
            folder: Folder::new(),
            memory: "64 MiB".to_owned(),
            keep_in: "auto".to_owned(),
            listen: Vec::new(),
            nbd: String::new(),
            tables: String::new(),
            sabotage: None,
            programs: None,
            binary: None,
            wrapper: None,
            watchdog_socket: None,
            service_manager: None,
            volumes: Vec::new(),
        }
    }

    /// A fixture with a volume `v` of `bytes` on a sparse file.
    pub fn with_volume(bytes: u64) -> Self {
        let mut fixture = Fixture::new();
        fixture.add_volume("v", bytes, "");
        fixture
    }

    /// Adds a volume on a sparse file; `lines` are further keys.
    pub fn add_volume(&mut self, name: &str, bytes: u64, lines: &str) {
        let path = self.backing(name);
        let file = File::create(&path).expect("the folder can be written");
        file.set_len(bytes).expect("a sparse file can be created");
        self.add_volume_on(name, &path.to_string_lossy(), lines);
    }

    /// Adds a volume on any backing.
    pub fn add_volume_on(&mut self, name: &str, backing: &str, lines: &str) {
        self.volumes.push(format!("[[volume]]\nname = \"{name}\"\nbacking = \"{backing}\"\n{lines}\n"));
    }

    /// Removes all volumes from the configuration; their files stay.
    pub fn clear_volumes(&mut self) {
        self.volumes.clear();
    }

    /// Also serves the volumes over iSCSI, as [`TARGET`] on a free port, and returns the address. `lines` are further
    /// keys.
    pub fn add_iscsi_target(&mut self, lines: &str) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
        let address = listener.local_addr().expect("the socket is bound");
        self.tables += &format!("[iscsi]\nlisten = [\"{address}\"]\ntarget = \"{TARGET}\"\n{lines}\n");
        address
    }

    /// Also serves the volumes over vhost-user.
    pub fn enable_vhost_user(&mut self) {
        self.tables += &format!("[vhost_user]\ndirectory = \"{}/vhost\"\n", self.folder.path().display());
    }

    /// vhost-user socket of a volume.
    pub fn vhost_user_socket(&self, volume: &str) -> PathBuf {
        self.folder.join(&format!("vhost/{volume}.sock"))
    }

    /// Backing file of a volume added by [`Fixture::add_volume`].
    pub fn backing(&self, name: &str) -> PathBuf {
        self.folder.join(&format!("{name}.img"))
    }

    /// Path of the NBD socket.
    pub fn socket(&self) -> PathBuf {
        self.folder.join("nbd.sock")
    }

    /// The NBD socket as an endpoint.
    pub fn endpoint(&self) -> Endpoint {
        Endpoint::Unix(self.socket())
    }

    /// NBD URI of a volume.
    pub fn uri(&self, volume: &str) -> String {
        format!("nbd+unix:///{volume}?socket={}", self.socket().display())
    }

    /// Path of the configuration file.
    pub fn config(&self) -> PathBuf {
        self.folder.join("hotset.toml")
    }

    /// Text of the configuration.
    pub fn config_text(&self) -> String {
        let folder = self.folder.path().display();
        let listen = std::iter::once(format!("unix:{}", self.socket().display())).chain(self.listen.iter().cloned());
        let listen: Vec<_> = listen.map(|address| format!("\"{address}\"")).collect();
        // Tests run concurrently, so only one daemon could listen at the default address.
        let api = if self.tables.contains("[api]") { "" } else { "[api]\nlisten = \"none\"" };
        format!(
            "[state]\ndirectory = \"{folder}/state\"\n[memory]\nsize = \"{}\"\nkeep_in = \"{}\"\n\
             [control]\nsocket = \"{folder}/control.sock\"\n[nbd]\nlisten = [{}]\n{}\n{api}\n{}\n{}",
            self.memory,
            self.keep_in,
            listen.join(", "),
            self.nbd,
            self.tables,
            self.volumes.concat()
        )
    }

    /// Writes the configuration and starts the daemon; the daemon is ready on return.
    pub fn start(&self) -> Daemon {
        Daemon::start(self)
    }

    /// Creates a pool of the configuration, before a daemon starts.
    pub fn create_pool(&self, name: &str) {
        std::fs::write(self.config(), self.config_text()).expect("the folder can be written");
        let output = hotset(&["pool", "create", name, "--config", &self.config().display().to_string()]);
        assert!(output.status.success(), "{}", text_of(&output));
    }

    /// Connects to a volume.
    pub fn connect(&self, volume: &str) -> Client {
        Client::connect(&self.endpoint(), volume).expect("the volume is served")
    }
}

/// Removes the memory image that a killed daemon leaves for its successor.
impl Drop for Fixture {
    fn drop(&mut self) {
        let Ok(state) = std::fs::read_to_string(self.folder.join("state/state.json")) else { return };
        let paths = state.split('"').filter(|part| part.starts_with("/dev/shm/hotset-"));
        paths.for_each(|path| drop(std::fs::remove_file(path)));
    }
}

impl Default for Fixture {
    fn default() -> Self {
        Fixture::new()
    }
}
