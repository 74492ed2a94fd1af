//! Volumes on standby that clients can use: reads are forwarded to the owner's host over the link between hosts.
//!
//! The disk of such a volume is an NBD client of a socket in the state directory. Behind the socket a task opens a
//! tunnel to the owner for each connection.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::io;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::{Duration, Instant};

use config::VolumeConfig;
use engine::{FlashQuota, VolumeId, VolumeSpec, WritePolicy};
use fleet_link::Peer;
use messages::{Answer, ErrorKind, Failure, Request};
use nbd_client::NbdTarget;
use rbd::StandbyReport;
use seam::Address;
use tokio::io::copy_bidirectional;
use tokio::net::UnixListener;
use tokio::task::{JoinHandle, JoinSet};

use super::cores::Cores;
use super::fleet_link::FleetLink;
use logging::{self as log, FLEET};
use state::random_number;

/// Folder of the sockets in the state directory.
const FOLDER: &str = "link";
/// Pauses between two attempts to reach the owner of a volume: the first, and the longest.
const PAUSES: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(5));

/// A volume on standby whose reads are forwarded.
struct Forward {
    /// The host that answers, and the number of its ownership.
    owner: (String, u64),
    core: usize,
    /// Accepts the connections of the disk.
    acceptor: JoinHandle<()>,
    socket: PathBuf,
}

impl Drop for Forward {
    fn drop(&mut self) {
        self.acceptor.abort();
        // A socket that stays is replaced by the next one of its number.
        let (Ok(()) | Err(_)) = std::fs::remove_file(&self.socket);
    }
}

/// The volumes on standby whose reads are forwarded.
pub struct Forwarding {
    cores: Rc<Cores>,
    link: Rc<FleetLink>,
    /// Folder of the sockets.
    folder: PathBuf,
    forwards: RefCell<BTreeMap<String, Forward>>,
    /// When the next attempt is due after a failed one, and the pause before it, by volume.
    due: RefCell<BTreeMap<String, (Instant, Duration)>>,
    next_socket: Cell<u64>,
}

impl Forwarding {
    /// Nothing is forwarded yet.
    pub fn new(cores: Rc<Cores>, link: Rc<FleetLink>, state_directory: &Path) -> Forwarding {
        Forwarding {
            cores,
            link,
            folder: state_directory.join(FOLDER),
            forwards: RefCell::default(),
            due: RefCell::default(),
            next_socket: Cell::default(),
        }
    }

    /// True if forwarding to this owner should begin now.
    pub fn is_due(&self, name: &str, report: &StandbyReport) -> bool {
        let owner = (report.owner.clone(), report.epoch);
        let is_forwarded = self.forwards.borrow().get(name).is_some_and(|forward| forward.owner == owner);
        let is_early = self.due.borrow().get(name).is_some_and(|(due, _)| Instant::now() < *due);
        !is_forwarded && !is_early
    }

    /// Forwards the reads of a volume on standby to its owner, in place of a former one.
    pub async fn start(
        &self,
        config: &VolumeConfig,
        image: &str,
        report: &StandbyReport,
        peer: Peer,
    ) -> Result<(), Failure> {
        let name = config.name.as_str();
        let started = self.try_start(config, image, report, peer).await;
        match &started {
            Ok(()) => drop(self.due.borrow_mut().remove(name)),
            Err(_) => {
                let mut due = self.due.borrow_mut();
                let pause = due.get(name).map_or(PAUSES.0, |(_, pause)| (*pause * 2).min(PAUSES.1));
                due.insert(name.to_owned(), (Instant::now() + pause, pause));
            }
        }
        started
    }

    async fn try_start(
        &self,
        config: &VolumeConfig,
        image: &str,
        report: &StandbyReport,
        peer: Peer,
    ) -> Result<(), Failure> {
        let name = config.name.as_str();
        let request = Request::FleetForward { image: image.to_owned(), ownership: report.epoch };
        let export = match self.link.ask(&peer, &request, &control::ProgressSender::new().0).await? {
            Answer::Said(mut said) if said.len() == 1 => said.remove(0),
            _ => return Err(Failure::new(ErrorKind::Failed, format!("host {} names no export", peer.host))),
        };
        self.end(name).await?;
        let failed = |error: io::Error| {
            let text = format!("{}: no socket can be created: {error}", self.folder.display());
            Failure::new(ErrorKind::Failed, text)
        };
        let (listener, socket) = self.listen().map_err(failed)?;
        let volume_id = random_number().map_err(failed)?;
        let core = self.cores.first().index();
        let acceptor = tokio::task::spawn_local(accept(listener, Rc::clone(&self.link), peer, request));
        let owner = (report.owner.clone(), report.epoch);
        let forward = Forward { owner, core, acceptor, socket: socket.clone() };
        let spec = VolumeSpec {
            policy: WritePolicy::None,
            read_only: config.read_only,
            labels: config.labels.clone(),
            flash: FlashQuota { is_enabled: false, ..FlashQuota::default() },
            allows_log: false,
            is_standby: true,
            ..VolumeSpec::new(name, VolumeId(volume_id))
        };
        self.cores.attach_standby(core, spec, NbdTarget { address: Address::Unix(socket), export }).await?;
        self.forwards.borrow_mut().insert(name.to_owned(), forward);
        log::info!(target: FLEET, volume = name, "volume {name}: reads are forwarded to host {}", report.owner);
        Ok(())
    }

    /// Ends the forwarding of a volume, whose clients wait for its successor.
    pub async fn end(&self, name: &str) -> Result<(), Failure> {
        let Some(forward) = self.forwards.borrow_mut().remove(name) else { return Ok(()) };
        // Its reads in progress end before the tunnel does.
        self.cores.end_standby(forward.core, name).await
    }

    /// Ends the forwarding of a volume, whose requests fail from now on.
    pub async fn remove(&self, name: &str) -> Result<(), Failure> {
        self.due.borrow_mut().remove(name);
        let ended = self.end(name).await;
        self.cores.cancel_succession(self.cores.first().index(), name).await;
        ended
    }

    /// Ends the forwarding of all volumes before a stop.
    pub async fn remove_all(&self) {
        let names: Vec<String> = self.forwards.borrow().keys().cloned().collect();
        for name in names {
            // A core that has ended forwards nothing.
            let (Ok(()) | Err(_)) = self.end(&name).await;
        }
        self.cores.cancel_successions(self.cores.first().index()).await;
    }

    /// Waits until a client wants to change a volume on standby; false if the forwarding ends before.
    pub async fn wait_for_change(&self, name: &str) -> bool {
        let core = self.forwards.borrow().get(name).map(|forward| forward.core);
        match core {
            Some(core) => self.cores.wait_for_change(core, name).await,
            None => false,
        }
    }

    fn listen(&self) -> io::Result<(UnixListener, PathBuf)> {
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&self.folder)?;
        let number = self.next_socket.get();
        self.next_socket.set(number + 1);
        let path = self.folder.join(format!("{number}.sock"));
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let listener = UnixListener::bind(&path)?;
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600))?;
        Ok((listener, path))
    }
}

/// Opens a tunnel for each connection of a disk. The tunnels end with this task.
async fn accept(listener: UnixListener, link: Rc<FleetLink>, peer: Peer, request: Request) {
    let mut tunnels = JoinSet::new();
    while let Ok((mut connection, _)) = listener.accept().await {
        while tunnels.try_join_next().is_some() {}
        match link.open_tunnel(&peer, &request).await {
            Ok(mut tunnel) => drop(tunnels.spawn_local(async move {
                // An end of the connection ends the tunnel: the disk connects again.
                let (Ok(_) | Err(_)) = copy_bidirectional(&mut connection, &mut tunnel).await;
            })),
            // The disk finds its connection closed, and tries again after a pause.
            Err(failure) => log::debug!(target: FLEET, "{}", failure.message),
        }
    }
}
