//! The iSCSI server of a data core: its specification, its units, and the queue of reservations to be saved.

use std::rc::Rc;

use engine::{Volume, VolumeId};
use iscsi::{Options, Server};
use scsi::{AccessList, Identity, Lun, ReservationStore, StoreFuture, Target, UnitSpec};
use seam::real::RealSeam;
use tokio::sync::{mpsc, oneshot};

use config::{IscsiConfig, read_chap};
use logging::{self as log, ISCSI};

/// The target has one port, whatever the number of its portals.
const PORTS: u16 = 1;
/// Physical block size in bytes from which a unit reports 4 KiB physical blocks to initiators.
const PHYSICAL_4K_BYTES: u32 = 4096;

/// Specification of a core's target.
pub struct IscsiSpec {
    target: String,
    options: Options,
    reservations: mpsc::UnboundedSender<ReservationRecord>,
}

/// A record of reservations to be saved, and the channel for the result.
pub struct ReservationRecord {
    /// The volume ID.
    pub volume_id: VolumeId,
    /// The record.
    pub record: Vec<u8>,
    /// The channel for the result.
    pub done: oneshot::Sender<Result<(), String>>,
}

/// Queue of records for the state directory. A unit has at most one record in it: its next one waits for the result.
pub type ReservationQueue = mpsc::UnboundedReceiver<ReservationRecord>;

/// Saves reservations through the control thread, which owns the state directory.
struct ControlThreadStore(mpsc::UnboundedSender<ReservationRecord>);

impl ReservationStore for ControlThreadStore {
    fn store(&self, volume_id: VolumeId, record: Vec<u8>) -> StoreFuture {
        let (done, receiver) = oneshot::channel();
        let sent = self.0.send(ReservationRecord { volume_id, record, done });
        Box::pin(async move {
            let stopping = || "the daemon is stopping".to_owned();
            sent.map_err(|_| stopping())?;
            receiver.await.map_err(|_| stopping())?
        })
    }
}

/// A volume as a unit of the target.
pub struct UnitPlan {
    /// Its number.
    pub lun: Lun,
    /// Its identity for initiators.
    pub identity: Identity,
    /// The initiators that may use it.
    pub access: AccessList,
    /// Writes are rejected.
    pub read_only: bool,
    /// The volume is declared lost.
    pub declared_lost: bool,
    /// The saved record of its reservations.
    pub reservation_record: Vec<u8>,
    /// The pool that gives the volume space at its first writes.
    pub thin_pool: Option<String>,
}

impl UnitPlan {
    /// Adds the unit to its core's target.
    pub fn add(self, target: &Target<RealSeam>, volume: Volume<RealSeam>) {
        let UnitPlan { lun, identity, access, read_only, declared_lost, reservation_record, thin_pool } = self;
        let physical_4k = volume.geometry().physical_block >= PHYSICAL_4K_BYTES;
        let spec = UnitSpec { lun, volume, identity, access, read_only, physical_4k, reservation_record, thin_pool };
        target.add(spec).expect("the state directory assigns each LUN once, and the reservations were checked");
        target.set_declared_lost(lun, declared_lost);
    }
}

/// The specification of the iSCSI target, `None` without `[iscsi]`, and the queue of reservation records.
pub fn plan(config: Option<&IscsiConfig>) -> Result<(Option<IscsiSpec>, ReservationQueue), terminal::Failure> {
    let (reservations, queue) = mpsc::unbounded_channel();
    let Some(config) = config else { return Ok((None, queue)) };
    let chap_users = read_chap(&config.chap).map_err(|error| terminal::Failure::failed(format!("[iscsi] {error}")))?;
    for warning in config.chap.iter().flat_map(|chap| chap.warnings()) {
        log::warn!(target: ISCSI, "{warning}");
    }
    let options = Options {
        announce: config.announce.clone(),
        access: AccessList::new(&config.acl),
        chap_users,
        ..Options::default()
    };
    Ok((Some(IscsiSpec { target: config.target.clone(), options, reservations }), queue))
}

/// Creates the iSCSI server of a core.
pub fn create_server(seam: &RealSeam, spec: IscsiSpec) -> Server<RealSeam> {
    let target = Target::new(seam.clone(), &spec.target, PORTS, Rc::new(ControlThreadStore(spec.reservations)));
    Server::new(seam.clone(), target, spec.options)
}
