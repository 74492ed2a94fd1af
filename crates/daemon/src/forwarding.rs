//! Volumes on standby that clients can use: reads are forwarded to the owner's host over the link between hosts.
//!
//! The disk of such a volume is an NBD client of a socket in the state directory. Behind the socket a task opens a
//! tunnel to the owner for each connection.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::PathBuf;
use std::rc::Rc;
use std::time::{Duration, Instant};

use config::VolumeConfig;
use engine::{FlashQuota, UnflushedLoss, VolumeId, VolumeSpec, WritePolicy};
use fleet_link::Peer;
use futures_util::future::join_all;
use messages::{Answer, ErrorKind, Failure, Request};
use nbd_client::NbdTarget;
use rbd::StandbyReport;
use seam::Address;
use tokio::io::copy_bidirectional;
use tokio::net::UnixListener;
use tokio::task::{JoinHandle, JoinSet};

use super::cores::Cores;
use super::fleet_link::FleetLink;
use super::records::Records;
use logging::{self as log, FLEET};
use state::random_number;

/// Folder of the sockets in the state directory.
const FOLDER: &str = "link";
/// Time for the owner to name its export.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// Pause after an accept that failed.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Pauses between two attempts to reach the owner of a volume: the first, and the longest.
const PAUSES: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(5));

/// A connection to the owner of a volume on standby, before the volume is attached.
pub struct ConnectedForward {
    forward: Forward,
    /// The key of the open backing.
    key: u64,
    /// The volume's specification.
    spec: VolumeSpec,
}

/// A volume on standby whose reads are forwarded.
struct Forward {
    /// The host that answers, and the number of its ownership.
    owner: (String, u64),
    number: u64,
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
    records: Rc<Records>,
    link: Rc<FleetLink>,
    /// Folder of the sockets.
    folder: PathBuf,
    forwards: RefCell<BTreeMap<String, Forward>>,
    /// When the next attempt is due after a failed one, and the pause before it, by volume.
    due: RefCell<BTreeMap<String, (Instant, Duration)>>,
    /// Volumes that are being connected.
    connecting: RefCell<BTreeSet<String>>,
    next_number: Cell<u64>,
}

impl Forwarding {
    /// Nothing is forwarded yet.
    pub fn new(cores: Rc<Cores>, records: Rc<Records>, link: Rc<FleetLink>) -> Forwarding {
        let folder = records.directory().join(FOLDER);
        Forwarding {
            cores,
            records,
            link,
            folder,
            forwards: RefCell::default(),
            due: RefCell::default(),
            connecting: RefCell::default(),
            next_number: Cell::default(),
        }
    }

    /// True if forwarding to this owner should begin now.
    pub fn is_due(&self, name: &str, report: &StandbyReport) -> bool {
        let owner = (report.owner.clone(), report.epoch);
        let is_forwarded = self.forwards.borrow().get(name).is_some_and(|forward| forward.owner == owner);
        let is_early = self.due.borrow().get(name).is_some_and(|(due, _)| Instant::now() < *due);
        !is_forwarded && !is_early && !self.connecting.borrow().contains(name)
    }

    /// Connects a volume on standby to its owner. It changes nothing, so that no change of the volume waits for the
    /// owner's host; [`Forwarding::attach`] follows.
    pub async fn connect(
        &self,
        config: &VolumeConfig,
        report: &StandbyReport,
        peer: Peer,
    ) -> Result<ConnectedForward, Failure> {
        if !self.connecting.borrow_mut().insert(config.name.clone()) {
            return Err(Failure::new(ErrorKind::Conflict, "another attempt is in progress"));
        }
        let connected = self.try_connect(config, report, peer).await;
        self.connecting.borrow_mut().remove(&config.name);
        match &connected {
            Ok(_) => drop(self.due.borrow_mut().remove(&config.name)),
            Err(_) => self.delay(&config.name),
        }
        connected
    }

    /// Delays the next attempt to forward a volume, longer each time.
    pub fn delay(&self, name: &str) {
        let mut due = self.due.borrow_mut();
        let pause = due.get(name).map_or(PAUSES.0, |(_, pause)| (*pause * 2).min(PAUSES.1));
        due.insert(name.to_owned(), (Instant::now() + pause, pause));
    }

    async fn try_connect(
        &self,
        config: &VolumeConfig,
        report: &StandbyReport,
        peer: Peer,
    ) -> Result<ConnectedForward, Failure> {
        let request = Request::FleetForward { image: report.image.clone(), ownership: report.epoch };
        let export = match self.link.ask_within(ANSWER_TIMEOUT, &peer, &request).await? {
            Answer::Said(mut said) if said.len() == 1 => said.remove(0),
            _ => return Err(Failure::new(ErrorKind::Failed, format!("host {} names no export", peer.host))),
        };
        let failed = |error: io::Error| {
            let text = format!("{}: no socket can be created: {error}", self.folder.display());
            Failure::new(ErrorKind::Failed, text)
        };
        let (listener, socket, number) = self.listen().map_err(failed)?;
        let volume_id = VolumeId(random_number().map_err(failed)?);
        let core = self.cores.first().index();
        let acceptor = tokio::task::spawn_local(accept(listener, Rc::clone(&self.link), peer, request));
        let target = NbdTarget { address: Address::Unix(socket.clone()), export };
        let spec = VolumeSpec {
            policy: WritePolicy::None,
            read_only: config.read_only,
            labels: config.labels.clone(),
            flash: FlashQuota { is_enabled: false, ..FlashQuota::default() },
            allows_log: false,
            unflushed_loss: self.unflushed_loss(&config.name),
            is_standby: true,
            ..VolumeSpec::new(&config.name, volume_id)
        };
        let owner = (report.owner.clone(), report.epoch);
        let forward = Forward { owner, number, core, acceptor, socket };
        let key = self.cores.open_standby(core, target).await?;
        Ok(ConnectedForward { forward, key, spec })
    }

    /// Writes that clients may still rely on if an earlier daemon of this host was killed while it served the volume.
    fn unflushed_loss(&self, name: &str) -> UnflushedLoss {
        let records = self.records.view();
        match records.by_name(name).is_some_and(|record| !record.clean && !record.durable_writes) {
            true => UnflushedLoss::AllClients,
            false => UnflushedLoss::None,
        }
    }

    /// Serves a connected volume on standby, in place of a former one. The volume is locked for a change. Returns the
    /// number of this forwarding.
    pub async fn attach(&self, name: &str, connected: ConnectedForward) -> Result<u64, Failure> {
        self.end(name).await?;
        let ConnectedForward { forward, key, spec } = connected;
        self.cores.attach_standby(forward.core, key, spec).await?;
        log::info!(target: FLEET, volume = name, "volume {name}: reads are forwarded to host {}", forward.owner.0);
        let number = forward.number;
        self.forwards.borrow_mut().insert(name.to_owned(), forward);
        Ok(number)
    }

    /// Closes a connection that is not used.
    pub async fn close(&self, connected: ConnectedForward) {
        self.cores.close_standby(connected.forward.core, connected.key).await;
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
        // A core that has ended forwards nothing.
        join_all(names.iter().map(async |name| drop(self.end(name).await))).await;
        self.cores.cancel_successions(self.cores.first().index()).await;
    }

    /// Waits until a client wants to change the volume of the forwarding `number`; false if that ends before.
    pub async fn wait_until_change_wanted(&self, name: &str, number: u64) -> bool {
        let of_number = |forward: &Forward| (forward.number == number).then_some(forward.core);
        let core = self.forwards.borrow().get(name).and_then(of_number);
        match core {
            Some(core) => self.cores.wait_until_change_wanted(core, name).await,
            None => false,
        }
    }

    fn listen(&self) -> io::Result<(UnixListener, PathBuf, u64)> {
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&self.folder)?;
        let number = self.next_number.get();
        self.next_number.set(number + 1);
        let path = self.folder.join(format!("{number}.sock"));
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let listener = UnixListener::bind(&path)?;
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600))?;
        Ok((listener, path, number))
    }
}

/// Opens a tunnel for each connection of a disk. The tunnels end with this task.
async fn accept(listener: UnixListener, link: Rc<FleetLink>, peer: Peer, request: Request) {
    let mut tunnels = JoinSet::new();
    loop {
        let Ok((mut connection, _)) = listener.accept().await else {
            // Descriptors may become free meanwhile.
            tokio::time::sleep(ACCEPT_PAUSE).await;
            continue;
        };
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
