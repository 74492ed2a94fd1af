//! Volumes on standby on their cores: reads are forwarded to the owner's host, and clients stay connected while the
//! ownership moves. Streams of other hosts to the volumes that are owned here.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::os::fd::OwnedFd;
use std::rc::Rc;

use engine::{Backing, Core, Volume, VolumeId, VolumeSpec};
use messages::{ErrorKind, Failure};
use nbd::{Export, ExportEntry, Exports};
use nbd_client::{NbdDisk, NbdOptions, NbdTarget};
use seam::Seam;
use seam::real::{RealSeam, RealStream};

use super::attach::failure_of;
use super::data_core::CoreLocal;
use super::{Cores, core_ended};

impl Cores {
    /// Opens the backing of a volume on standby; returns its key.
    pub async fn open_standby(&self, core: usize, target: NbdTarget) -> Result<u64, Failure> {
        let open = async move |local: Rc<CoreLocal>| {
            // The target is a tunnel of this process.
            let options = NbdOptions { refuses_own_exports: false, read_only: true, ..NbdOptions::default() };
            let opened = NbdDisk::open(&local.seam, target, options).await;
            let disk = opened.map_err(|error| Failure::new(ErrorKind::Unavailable, error.to_string()))?;
            Ok(local.add_opened(Backing::nbd(disk)))
        };
        self[core].call(open).await.map_err(core_ended)?
    }

    /// Closes a backing that is not used.
    pub async fn close_standby(&self, core: usize, key: u64) {
        let close = async move |local: Rc<CoreLocal>| drop(local.opened.borrow_mut().remove(&key));
        // A core that has ended has closed it.
        let (Ok(()) | Err(_)) = self[core].call(close).await;
    }

    /// Attaches a volume on standby.
    pub async fn attach_standby(&self, core: usize, key: u64, spec: VolumeSpec) -> Result<(), Failure> {
        let attach = async move |local: Rc<CoreLocal>| {
            let backing = local.opened.borrow_mut().remove(&key).expect("it is open until it is attached");
            let volume = local.engine.attach(spec, backing).map_err(|error| failure_of(&error))?;
            local.succeed(&volume);
            Ok(())
        };
        self[core].call(attach).await.map_err(core_ended)?
    }

    /// Ends a volume on standby, whose clients wait for its successor.
    pub async fn end_standby(&self, core: usize, name: &str) -> Result<(), Failure> {
        let name = name.to_owned();
        let end = async move |local: Rc<CoreLocal>| {
            if let Some(volume) = local.engine.end_standby(&name).await {
                local.add_predecessor(volume);
            }
        };
        self[core].call(end).await.map_err(core_ended)
    }

    /// Waits until a client wants to change a volume on standby; false if the volume ends before.
    pub async fn wait_until_change_wanted(&self, core: usize, name: &str) -> bool {
        let name = name.to_owned();
        let wait = async move |local: Rc<CoreLocal>| match local.engine.find(&name) {
            Some(volume) if volume.spec().is_standby => volume.wait_until_change_wanted().await,
            _ => false,
        };
        self[core].call(wait).await.unwrap_or(false)
    }

    /// Ends the wait of clients whose volume gets no successor: their requests fail.
    pub async fn cancel_succession(&self, core: usize, name: &str) {
        let name = name.to_owned();
        let cancel = async move |local: Rc<CoreLocal>| {
            if let Some(volume) = local.predecessors.borrow_mut().remove(&name) {
                volume.cancel_succession();
            }
        };
        // On a core that has ended no request waits.
        let (Ok(()) | Err(_)) = self[core].call(cancel).await;
    }

    /// As [`Cores::cancel_succession`], for all volumes.
    pub async fn cancel_successions(&self, core: usize) {
        let cancel = async move |local: Rc<CoreLocal>| {
            local.predecessors.take().into_values().for_each(|volume| volume.cancel_succession());
        };
        let (Ok(()) | Err(_)) = self[core].call(cancel).await;
    }

    /// Serves a stream of another host: an NBD connection that reads the volume.
    pub async fn serve_tunnel(&self, core: usize, name: &str, stream: OwnedFd) -> Result<(), Failure> {
        let name = name.to_owned();
        let serve = async move |local: Rc<CoreLocal>| {
            local.link_exports.admit(name);
            let server = local.link_server.clone();
            local.seam.spawn(async move { server.serve(RealStream::from_fd(stream)).await });
        };
        self[core].call(serve).await.map_err(core_ended)
    }
}

/// The volumes that other hosts may read: those for which they have opened tunnels. A clone is another handle.
#[derive(Clone)]
pub struct LinkExports {
    engine: Core<RealSeam>,
    names: Rc<RefCell<BTreeSet<String>>>,
}

impl LinkExports {
    /// No volume yet.
    pub(super) fn new(engine: Core<RealSeam>) -> LinkExports {
        LinkExports { engine, names: Rc::default() }
    }

    fn admit(&self, name: String) {
        self.names.borrow_mut().insert(name);
    }

    /// Removes a volume that is detached.
    pub(super) fn remove(&self, name: &str) {
        self.names.borrow_mut().remove(name);
    }

    fn export(&self, volume: Volume<RealSeam>) -> Option<Export<RealSeam>> {
        let is_admitted = self.names.borrow().contains(volume.name()) && !volume.spec().is_standby;
        let name = volume.name().to_owned();
        is_admitted.then(|| Export { name, description: String::new(), volume, is_read_only: true })
    }
}

impl Exports<RealSeam> for LinkExports {
    fn list(&self) -> Vec<ExportEntry> {
        Vec::new()
    }

    fn find(&self, name: &str) -> Option<Export<RealSeam>> {
        self.export(self.engine.find(name)?)
    }

    fn find_by_id(&self, volume_id: VolumeId) -> Option<Export<RealSeam>> {
        let volume = self.engine.volumes().into_iter().find(|volume| volume.spec().volume_id == volume_id)?;
        self.export(volume)
    }
}

impl CoreLocal {
    /// Keeps an open backing until it is attached; returns its key.
    pub(super) fn add_opened(&self, backing: Backing<RealSeam>) -> u64 {
        let key = self.next_backing_key.get();
        self.next_backing_key.set(key + 1);
        self.opened.borrow_mut().insert(key, backing);
        key
    }

    /// Keeps a detached volume until its successor is attached.
    pub(super) fn add_predecessor(&self, volume: Volume<RealSeam>) {
        let name = volume.name().to_owned();
        // Clients of a former one wait no longer than those of this one.
        if let Some(former) = self.predecessors.borrow_mut().insert(name, volume.clone()) {
            former.set_successor(volume);
        }
    }

    /// Passes the clients of the volume's predecessor to it.
    pub(super) fn succeed(&self, volume: &Volume<RealSeam>) {
        if let Some(predecessor) = self.predecessors.borrow_mut().remove(volume.name()) {
            predecessor.set_successor(volume.clone());
        }
    }
}
