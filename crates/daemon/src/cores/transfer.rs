//! Cached blocks of volumes that have moved between hosts, on their cores: the former owner keeps and sends them, the
//! next one receives them.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::rc::Rc;

use cache_transfer::{Received, receive, send};
use engine::{RetainedBlocks, Volume, VolumeId};
use messages::{ErrorKind, Failure};
use seam::real::{RealSeam, RealStream};
use seam::{Nanos, Seam};

use super::data_core::CoreLocal;
use super::{Cores, core_ended};
use logging::{self as log, FLEET};
use task_sync::within;

/// Time for which the former owner keeps blocks, and the next one receives them.
pub const TRANSFER_TIME: Nanos = Nanos::from_secs(600);

/// The hand-over of an image, as both hosts know it. It proves that the blocks of the former owner are the image's
/// content at the time when the next ownership began: no other client has changed the header between the release and
/// the claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Handover {
    /// Identity of the image.
    pub image: String,
    /// Number of the former ownership.
    pub ownership: u64,
    /// Version of the image's header after the release.
    pub header_version: u64,
}

/// The volume that a transfer is for. One of the same name that was attached later, under another ownership or on
/// another image, is another one: the blocks would be older than its content.
#[derive(Clone, Debug)]
pub struct TransferTarget {
    /// Its name.
    pub name: String,
    /// Its persistent identity.
    pub volume_id: VolumeId,
    /// Number of the ownership under which it was attached.
    pub ownership: u64,
    /// Its core.
    pub core: usize,
}

impl TransferTarget {
    fn find(&self, local: &CoreLocal) -> Option<Volume<RealSeam>> {
        local.engine.find(&self.name).filter(|volume| {
            let spec = volume.spec();
            spec.volume_id == self.volume_id && spec.awaits_transfer == Some(self.ownership)
        })
    }
}

/// Blocks of a detached volume.
struct Retained {
    blocks: RetainedBlocks<RealSeam>,
    /// Its hand-over; `None` until its image is released.
    handover: Option<Handover>,
    number: u64,
}

/// The blocks of detached volumes on a core, by the volume's name.
#[derive(Default)]
pub struct RetainedVolumes {
    volumes: RefCell<BTreeMap<String, Retained>>,
    next_number: Cell<u64>,
}

impl RetainedVolumes {
    /// Keeps the blocks of a volume whose image is about to be released.
    pub(super) fn add(&self, name: &str, blocks: RetainedBlocks<RealSeam>) {
        let number = self.next_number.get();
        self.next_number.set(number + 1);
        self.volumes.borrow_mut().insert(name.to_owned(), Retained { blocks, handover: None, number });
    }

    /// Drops the blocks of a volume, which is served again or was not released.
    pub(super) fn drop_blocks(&self, name: &str) {
        let dropped = self.volumes.borrow_mut().remove(name);
        drop(dropped);
    }

    /// Sets the hand-over of a volume; returns the number of its blocks' entry.
    fn set_handover(&self, name: &str, handover: Handover) -> Option<u64> {
        let mut volumes = self.volumes.borrow_mut();
        let retained = volumes.get_mut(name)?;
        retained.handover = Some(handover);
        Some(retained.number)
    }

    /// Drops the blocks of an entry that is still there.
    fn expire(&self, name: &str, number: u64) {
        if self.volumes.borrow().get(name).is_some_and(|retained| retained.number == number) {
            self.drop_blocks(name);
        }
    }

    /// Takes the blocks of a hand-over.
    fn take(&self, handover: &Handover) -> Option<(String, RetainedBlocks<RealSeam>)> {
        let mut volumes = self.volumes.borrow_mut();
        let (name, _) = volumes.iter().find(|(_, retained)| retained.handover.as_ref() == Some(handover))?;
        let name = name.clone();
        let retained = volumes.remove(&name)?;
        Some((name, retained.blocks))
    }
}

impl Cores {
    /// Keeps the blocks of a volume whose image was released for the next owner, for [`TRANSFER_TIME`].
    pub async fn keep_for_next_owner(&self, name: &str, core: usize, handover: Handover) {
        let name = name.to_owned();
        let keep = async move |local: Rc<CoreLocal>| {
            let Some(number) = local.retained.set_handover(&name, handover) else { return };
            let (seam, local) = (local.seam.clone(), Rc::downgrade(&local));
            seam.clone().spawn(async move {
                seam.sleep(TRANSFER_TIME).await;
                if let Some(local) = local.upgrade() {
                    local.retained.expire(&name, number);
                }
            });
        };
        // A core that has ended keeps nothing.
        let (Ok(()) | Err(_)) = self[core].call(keep).await;
    }

    /// Drops the blocks of a volume that were retained.
    pub async fn drop_retained(&self, name: &str, core: usize) {
        let name = name.to_owned();
        let drop_blocks = async move |local: Rc<CoreLocal>| local.retained.drop_blocks(&name);
        let (Ok(()) | Err(_)) = self[core].call(drop_blocks).await;
    }

    /// Sends the blocks of a hand-over, once. Returns the name of the volume.
    pub async fn send_retained(&self, handover: &Handover, stream: OwnedFd) -> Result<String, Failure> {
        // Each core gets a descriptor of its own, and the one that has the blocks uses it.
        for core in self.iter() {
            let (handover, stream) = (handover.clone(), stream.try_clone());
            let stream = stream.map_err(|error| Failure::new(ErrorKind::Failed, error.to_string()))?;
            let send = async move |local: Rc<CoreLocal>| {
                let (name, blocks) = local.retained.take(&handover)?;
                let (seam, volume) = (local.seam.clone(), name.clone());
                local.seam.spawn(async move {
                    let sending = send(&seam, RealStream::from_fd(stream), &blocks);
                    match within(seam.sleep(TRANSFER_TIME), sending).await {
                        Some(Ok(bytes)) => log::info!(
                            target: FLEET, volume,
                            "volume {volume}: {} of cached data were sent to its next owner", units::show_bytes(bytes)
                        ),
                        Some(Err(error)) => log::debug!(
                            target: FLEET, volume,
                            "volume {volume}: its next owner has ended the transfer of cached data: {error}"
                        ),
                        None => log::debug!(
                            target: FLEET, volume,
                            "volume {volume}: its next owner has not taken all cached data within {TRANSFER_TIME}"
                        ),
                    }
                });
                Some(name)
            };
            if let Some(name) = core.call(send).await.map_err(core_ended)? {
                return Ok(name);
            }
        }
        let Handover { image, ownership, header_version } = handover;
        let text = format!(
            "this host has no cached data of image {image} that ownership {ownership} has left: it was evicted or \
             taken already, or another client has changed the image since (its header had version {header_version})"
        );
        Err(Failure::new(ErrorKind::NotFound, text))
    }

    /// Receives cached blocks of the former owner for a volume that is served, until there are no more. An error leaves
    /// the blocks received before.
    pub async fn receive_retained(&self, to: &TransferTarget, stream: OwnedFd) -> Result<Received, Failure> {
        let (core, target) = (to.core, to.clone());
        let receive = async move |local: Rc<CoreLocal>| match target.find(&local) {
            Some(volume) => receive(&local.seam, RealStream::from_fd(stream), &volume).await.map_err(|error| {
                Failure::new(ErrorKind::Failed, format!("cached data could not be transferred: {error}"))
            }),
            None => {
                let text = format!("volume {} has moved on, or is no longer served", target.name);
                Err(Failure::new(ErrorKind::NotFound, text))
            }
        };
        self[core].call(receive).await.map_err(core_ended)?
    }

    /// Ends the transfer to a volume: nothing of its former owner is admitted any more.
    pub async fn end_transfer(&self, to: &TransferTarget) {
        let target = to.clone();
        let end = async move |local: Rc<CoreLocal>| target.find(&local).iter().for_each(Volume::end_transfer);
        let (Ok(()) | Err(_)) = self[to.core].call(end).await;
    }
}
