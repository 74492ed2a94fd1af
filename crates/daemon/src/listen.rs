//! The listeners of the front ends.

use std::cell::RefCell;
use std::fmt;
use std::path::Path;
use std::rc::Rc;

use seam::real::RealSeam;
use seam::{Address, Seam};

use super::cores::{CoreLocal, Cores};
use super::listen_retry::listen_with_retry;
use super::settings::Settings;
use super::socket_access::SocketAccess;

/// The address at which clients reach a front end.
#[derive(Clone, Debug)]
pub enum Listener {
    /// The address of an NBD server.
    Nbd(String),
    /// A portal of the iSCSI target.
    Iscsi(String),
    /// The directory of the vhost-user sockets.
    VhostUser(String),
}

impl fmt::Display for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Listener::Nbd(address) => f.write_str(address),
            Listener::Iscsi(portal) => write!(f, "iscsi:{portal}"),
            Listener::VhostUser(directory) => write!(f, "vhost-user:{directory}"),
        }
    }
}

/// The listeners of the front ends.
pub struct Listeners {
    settings: Rc<Settings>,
    cores: Rc<Cores>,
    /// The published listeners.
    announced: RefCell<Vec<Listener>>,
}

impl Listeners {
    /// No listeners yet.
    pub fn new(settings: Rc<Settings>, cores: Rc<Cores>) -> Listeners {
        Listeners { settings, cores, announced: RefCell::default() }
    }

    /// Publishes the listeners in reports.
    pub fn announce(&self, mut listening: Vec<Listener>) {
        let socket_directory =
            self.settings.current().vhost_user.as_ref().map(|config| config.directory.display().to_string());
        listening.extend(socket_directory.map(Listener::VhostUser));
        *self.announced.borrow_mut() = listening;
    }

    /// The addresses of the listeners, for reports.
    pub fn addresses(&self) -> Vec<String> {
        self.announced.borrow().iter().map(Listener::to_string).collect()
    }

    /// Addresses of the iSCSI target.
    pub fn portals(&self) -> Vec<String> {
        let announced = self.announced.borrow();
        let portal = |listener: &Listener| match listener {
            Listener::Iscsi(portal) => Some(portal.clone()),
            Listener::Nbd(_) | Listener::VhostUser(_) => None,
        };
        announced.iter().filter_map(portal).collect()
    }

    /// Starts the NBD listeners at all configured addresses; returns the addresses.
    pub async fn listen_nbd(&self) -> Result<Vec<Listener>, String> {
        let config = self.settings.current().nbd.clone();
        let (owner, group) = (config.socket_owner.as_deref(), config.socket_group.as_deref());
        let access =
            SocketAccess::resolve(owner, group, config.socket_mode).map_err(|error| format!("[nbd] {error}"))?;
        let mut listening = Vec::new();
        for address in &config.listen {
            let failed = |error: &dyn std::fmt::Display| format!("cannot listen on {address}: {error}");
            if let Address::Unix(path) = address {
                create_parent(path).map_err(|error| failed(&error))?;
            }
            let shown = self.listen_nbd_at(address.clone(), access).await.map_err(|error| failed(&error))?;
            listening.push(Listener::Nbd(shown));
        }
        Ok(listening)
    }

    /// Starts the iSCSI listeners at all configured portals; returns the portals.
    pub async fn listen_iscsi(&self) -> Result<Vec<Listener>, String> {
        let Some(config) = self.settings.current().iscsi.clone() else { return Ok(Vec::new()) };
        let mut listening = Vec::new();
        for address in config.listen {
            let failed = format!("cannot listen for iSCSI on {address}");
            let listen = async move |local: Rc<CoreLocal>| {
                let listener = listen_with_retry(&local.seam, &address).await.map_err(|error| error.to_string())?;
                let shown = effective_address(&address, &listener);
                let server = local.iscsi.clone().expect("an iSCSI server exists if it is configured");
                local.seam.spawn(async move { server.accept(listener).await });
                Ok::<Address, String>(shown)
            };
            let shown = self.cores.first().call(listen).await.map_err(|error| error.to_string())?;
            let shown = shown.map_err(|error| format!("{failed}: {error}"))?.to_string();
            listening.push(Listener::Iscsi(shown.strip_prefix("tcp:").unwrap_or(&shown).to_owned()));
        }
        Ok(listening)
    }

    /// Starts one NBD listener; returns its address as clients see it.
    async fn listen_nbd_at(&self, address: Address, access: SocketAccess) -> Result<String, String> {
        let listen = async move |local: Rc<CoreLocal>| {
            let listener = listen_with_retry(&local.seam, &address).await.map_err(|error| error.to_string())?;
            let shown = effective_address(&address, &listener).to_string();
            if let Address::Unix(path) = &address {
                access.apply_to(path)?;
            }
            let server = local.nbd_server.clone();
            let is_local = matches!(address, Address::Unix(_));
            local.seam.spawn(async move {
                match is_local {
                    true => server.accept_local(listener).await,
                    false => server.accept(listener).await,
                }
            });
            Ok(shown)
        };
        self.cores.first().call(listen).await.map_err(|error| error.to_string())?
    }
}

/// The address under which clients reach the listener, with the port that the system chose.
fn effective_address(address: &Address, listener: &<RealSeam as Seam>::Listener) -> Address {
    match (address, listener.port()) {
        (Address::Tcp(host, 0), Some(port)) => Address::Tcp(host.clone(), port),
        _ => address.clone(),
    }
}

fn create_parent(path: &Path) -> std::io::Result<()> {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => std::fs::create_dir_all(folder),
        _ => Ok(()),
    }
}
