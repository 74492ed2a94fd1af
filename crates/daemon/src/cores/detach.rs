//! Detaching volumes on their cores.

use std::rc::Rc;

use control::ProgressSender;
use engine::VolumeProblem;
use messages::{ErrorKind, Failure};
use scsi::{Lun, RemovedUnit};
use seam::Nanos;
use seam::real::RealSeam;

use super::attach::add_socket;
use super::data_core::CoreLocal;
use super::{Cores, core_ended};

/// Time-out for answering the outstanding requests of clients at a stop or a removal.
pub const CLIENTS_TIMEOUT: Nanos = Nanos::from_secs(5);

/// Treatment of a volume's clients by a detach.
#[derive(Clone, Debug)]
pub enum ConnectedClients {
    /// Disconnects them.
    Disconnect,
    /// NBD clients stay connected, and wait for the volume's successor; others are disconnected.
    Keep,
    /// Fails with this, before any change, if there are any.
    Refuse(Failure),
}

/// Treatment of a volume's cached data by a detach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CachedData {
    /// Destages what is dirty, and drops all.
    Destage,
    /// Destages what is dirty, and keeps the rest in memory for the next owner of the image.
    Retain,
    /// Discards all: the backing is lost.
    Discard,
}

/// The reason why a volume was not detached.
enum DetachError {
    HasClients(Failure),
    NotDestaged(engine::RequestError),
}

impl Cores {
    /// Detaches a volume: its clients are disconnected, no client is admitted, then its dirty data is destaged. On an
    /// error it stays in service. Writes acknowledged by daemons before the generation `lost_before` may be lost.
    pub async fn detach(
        &self,
        name: &str,
        core: usize,
        clients: ConnectedClients,
        cached: CachedData,
        lost_before: u64,
        progress: &ProgressSender,
    ) -> Result<(), Failure> {
        let volume = name.to_owned();
        let detach = self[core].call(async move |local: Rc<CoreLocal>| {
            // From the count of the clients until no front end admits one, nothing is awaited: none connects unseen.
            let keeps_clients = matches!(clients, ConnectedClients::Keep);
            if let ConnectedClients::Refuse(failure) = clients
                && clients_of(&local, &volume) > 0
            {
                return Err(DetachError::HasClients(failure));
            }
            if keeps_clients && clients_of(&local, &volume) > local.nbd_server.clients_of(&volume) {
                let text = format!("volume {volume} has clients of iSCSI or vhost-user, which cannot stay connected");
                return Err(DetachError::HasClients(Failure::new(ErrorKind::Conflict, text)));
            }
            let _closed = (!keeps_clients).then(|| local.nbd_server.close_export(&volume));
            let _closed_link = local.link_server.close_export(&volume);
            local.link_exports.remove(&volume);
            let unit = remove_unit(&local, &volume);
            let lun = unit.as_ref().map(|(lun, _)| *lun);
            let guests = async {
                if let Some(vhost_user) = &local.vhost_user {
                    vhost_user.server.remove(&volume, CLIENTS_TIMEOUT).await;
                }
            };
            let initiators = wait_for_commands(&local, unit.as_ref());
            let nbd_clients = async {
                if !keeps_clients {
                    local.nbd_server.disconnect(&volume, CLIENTS_TIMEOUT).await;
                }
            };
            let other_hosts = local.link_server.disconnect(&volume, CLIENTS_TIMEOUT);
            futures_util::join!(nbd_clients, other_hosts, initiators, guests);
            let detached = match cached {
                CachedData::Retain if keeps_clients => {
                    let detached = local.engine.detach_for_successor(&volume).await;
                    detached.map(|(predecessor, blocks)| {
                        local.add_predecessor(predecessor);
                        local.retained.add(&volume, blocks);
                    })
                }
                CachedData::Retain => {
                    let detached = local.engine.detach_retaining(&volume).await;
                    detached.map(|blocks| local.retained.add(&volume, blocks))
                }
                CachedData::Destage => {
                    debug_assert!(!keeps_clients, "clients stay connected only if another host will own the image");
                    local.engine.detach(&volume).await
                }
                CachedData::Discard => local.engine.detach_lost(&volume).await,
            };
            if let Err(error) = detached {
                if let Some(served) = local.engine.find(&volume) {
                    add_socket(&local, served, lost_before).await;
                }
                if let (Some(iscsi), Some((_, unit))) = (&local.iscsi, unit) {
                    iscsi.target().reinsert(unit);
                }
                return Err(DetachError::NotDestaged(error));
            }
            if let (Some(iscsi), Some(lun)) = (&local.iscsi, lun) {
                iscsi.target().remove_absent(lun);
            }
            Ok(())
        });
        let detached =
            self.report_while(core, name, &format!("destaging {name}"), progress, detach).await.map_err(core_ended)?;
        detached.map_err(|error| match error {
            DetachError::HasClients(failure) => failure,
            DetachError::NotDestaged(error) => {
                let text =
                    format!("volume {name} could not be destaged ({error}); it stays in service, and no data is lost");
                Failure::new(ErrorKind::Failed, text)
            }
        })
    }

    /// The undestaged bytes of a volume whose backing is lost; `None` if it is not lost.
    pub async fn lost_bytes(&self, name: &str, core: usize) -> Option<u64> {
        let volume = name.to_owned();
        let stats = async move |local: Rc<CoreLocal>| local.engine.find(&volume).map(|volume| volume.stats());
        let stats = self[core].call(stats).await.ok().flatten()?;
        let is_lost = stats.problems.iter().any(|problem| matches!(problem, VolumeProblem::BackingLost(_)));
        is_lost.then(|| stats.undestaged_bytes())
    }

    /// Number of clients of a volume.
    pub async fn clients_of(&self, name: &str, core: usize) -> Result<usize, Failure> {
        let volume = name.to_owned();
        let count = async move |local: Rc<CoreLocal>| clients_of(&local, &volume);
        self[core].call(count).await.map_err(core_ended)
    }
}

/// Number of clients of a volume: of NBD, of iSCSI initiators that see its unit as one, and of guests.
fn clients_of(local: &CoreLocal, volume: &str) -> usize {
    let has_initiators = local.iscsi.as_ref().is_some_and(|iscsi| {
        let target = iscsi.target();
        target.lun_of_volume(volume).is_some_and(|lun| target.has_initiators(lun))
    });
    let guests = local.vhost_user.as_ref().map_or(0, |guests| guests.server.clients_of(volume));
    local.nbd_server.clients_of(volume) + usize::from(has_initiators) + guests
}

/// Removes a volume's unit from the iSCSI target, if there is one.
fn remove_unit(local: &CoreLocal, volume: &str) -> Option<(Lun, RemovedUnit<RealSeam>)> {
    let target = local.iscsi.as_ref()?.target();
    let lun = target.lun_of_volume(volume)?;
    let removed = target.remove(lun)?;
    // The detach may still fail: until then initiators have to wait.
    target.set_absent(removed.absent());
    Some((lun, removed))
}

/// Waits for the outstanding commands of a removed unit.
async fn wait_for_commands(local: &CoreLocal, unit: Option<&(Lun, RemovedUnit<RealSeam>)>) {
    if let (Some(iscsi), Some((lun, _))) = (&local.iscsi, unit) {
        iscsi.release(*lun, CLIENTS_TIMEOUT).await;
    }
}
