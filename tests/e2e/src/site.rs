//! A folder with a configuration and backings: what a daemon needs before it starts.

use std::fs::File;
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;

use crate::client::Endpoint;
use crate::daemon::Daemon;
use crate::folder::Folder;
use crate::manager::Manager;

/// The name of every site's iSCSI target.
pub const TARGET: &str = "iqn.2026-11.io.hotset:test";

/// What a test writes into the configuration before it starts the daemon.
pub struct Site {
    /// Where everything lies.
    pub folder: Folder,
    /// `[memory] size`.
    pub memory: String,
    /// `[memory] keep_in`.
    pub keep_in: String,
    /// More addresses in `[nbd] listen`.
    pub listen: Vec<String>,
    /// More lines of `[nbd]`.
    pub nbd: String,
    /// More tables, as they are.
    pub tables: String,
    /// A deliberate fault of the engine, so that a test can show that it notices: builds with assertions obey.
    pub sabotage: Option<&'static str>,
    /// A folder in which the daemon finds programs before it looks elsewhere.
    pub programs: Option<PathBuf>,
    /// A program that becomes the daemon: it is given the binary and its arguments.
    pub under: Option<PathBuf>,
    /// Where a service manager listens that wants to hear something twice a second.
    pub manager: Option<PathBuf>,
    /// A service manager that starts the daemons, and keeps for the next one what a daemon leaves with it.
    pub service: Option<Manager>,
    volumes: Vec<String>,
}

impl Site {
    /// An empty one, with 64 MiB of memory.
    pub fn new() -> Self {
        Site {
            folder: Folder::new(),
            memory: "64 MiB".to_owned(),
            keep_in: "auto".to_owned(),
            listen: Vec::new(),
            nbd: String::new(),
            tables: String::new(),
            sabotage: None,
            programs: None,
            under: None,
            manager: None,
            service: None,
            volumes: Vec::new(),
        }
    }

    /// One with a volume `v` of `bytes` on a sparse file.
    pub fn with_volume(bytes: u64) -> Self {
        let mut site = Site::new();
        site.volume("v", bytes, "");
        site
    }

    /// Adds a volume on a sparse file of its own; `lines` are further keys.
    pub fn volume(&mut self, name: &str, bytes: u64, lines: &str) {
        let path = self.backing(name);
        let file = File::create(&path).expect("the folder can be written");
        file.set_len(bytes).expect("a sparse file can be made");
        self.volume_on(name, &path.to_string_lossy(), lines);
    }

    /// Adds a volume on any backing.
    pub fn volume_on(&mut self, name: &str, backing: &str, lines: &str) {
        self.volumes.push(format!("[[volume]]\nname = \"{name}\"\nbacking = \"{backing}\"\n{lines}\n"));
    }

    /// Takes all volumes out of the configuration; their files stay.
    pub fn forget_volumes(&mut self) {
        self.volumes.clear();
    }

    /// Serves the volumes over iSCSI, too, as [`TARGET`], on a port that is free now; `lines` are further keys.
    pub fn target(&mut self, lines: &str) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
        let address = listener.local_addr().expect("it is bound");
        self.tables += &format!("[iscsi]\nlisten = [\"{address}\"]\ntarget = \"{TARGET}\"\n{lines}\n");
        address
    }

    /// Serves the volumes to virtual machines, too.
    pub fn vhost_user(&mut self) {
        self.tables += &format!("[vhost_user]\ndirectory = \"{}/vhost\"\n", self.folder.path().display());
    }

    /// A volume's socket for virtual machines.
    pub fn vhost_user_socket(&self, volume: &str) -> PathBuf {
        self.folder.join(&format!("vhost/{volume}.sock"))
    }

    /// The file under a volume of [`Site::volume`].
    pub fn backing(&self, name: &str) -> PathBuf {
        self.folder.join(&format!("{name}.img"))
    }

    /// The NBD socket.
    pub fn socket(&self) -> PathBuf {
        self.folder.join("nbd.sock")
    }

    /// The NBD socket, for the tests' own client.
    pub fn endpoint(&self) -> Endpoint {
        Endpoint::Unix(self.socket())
    }

    /// A volume's URI for foreign clients.
    pub fn uri(&self, volume: &str) -> String {
        format!("nbd+unix:///{volume}?socket={}", self.socket().display())
    }

    /// The configuration file.
    pub fn config(&self) -> PathBuf {
        self.folder.join("hotset.toml")
    }

    /// The configuration as text.
    pub fn config_text(&self) -> String {
        let folder = self.folder.path().display();
        let listen = std::iter::once(format!("unix:{}", self.socket().display())).chain(self.listen.iter().cloned());
        let listen: Vec<_> = listen.map(|address| format!("\"{address}\"")).collect();
        format!(
            "[state]\ndirectory = \"{folder}/state\"\n[memory]\nsize = \"{}\"\nkeep_in = \"{}\"\n\
             [control]\nsocket = \"{folder}/control.sock\"\n[nbd]\nlisten = [{}]\n{}\n{}\n{}",
            self.memory,
            self.keep_in,
            listen.join(", "),
            self.nbd,
            self.tables,
            self.volumes.concat()
        )
    }

    /// Writes the configuration and starts the daemon; it serves when this returns.
    pub fn start(&self) -> Daemon {
        Daemon::start(self)
    }
}

/// A killed daemon leaves its memory behind for the next one, of which there is none.
impl Drop for Site {
    fn drop(&mut self) {
        let Ok(state) = std::fs::read_to_string(self.folder.join("state/state.json")) else { return };
        let paths = state.split('"').filter(|part| part.starts_with("/dev/shm/hotset-"));
        paths.for_each(|path| drop(std::fs::remove_file(path)));
    }
}

impl Default for Site {
    fn default() -> Self {
        Site::new()
    }
}
