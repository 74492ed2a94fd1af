//! Detaching volumes on their cores.

use std::rc::Rc;

use control::ProgressSender;
use messages::{ErrorKind, Failure};
use scsi::{Lun, RemovedUnit};
use seam::Nanos;
use seam::real::RealSeam;

use super::attach::add_socket;
use super::data_core::CoreLocal;
use super::{Cores, core_ended};

/// Time-out for answering the outstanding requests of clients at a stop or a removal.
pub const CLIENTS_TIMEOUT: Nanos = Nanos::from_secs(5);

impl Cores {
    /// Detaches a volume: its clients are disconnected, then it is destaged and flushed. On an error it stays in
    /// service. Writes acknowledged by daemons before the generation `lost_before` may be lost.
    pub async fn detach(
        &self,
        name: &str,
        core: usize,
        lost_before: u64,
        progress: &ProgressSender,
    ) -> Result<(), Failure> {
        let volume = name.to_owned();
        let detach = self[core].call(async move |local: Rc<CoreLocal>| {
            let unit = remove_unit(&local, &volume);
            let lun = unit.as_ref().map(|(lun, _)| *lun);
            let guests = async {
                if let Some(vhost_user) = &local.vhost_user {
                    vhost_user.server.remove(&volume, CLIENTS_TIMEOUT).await;
                }
            };
            let initiators = wait_for_commands(&local, unit.as_ref());
            futures_util::join!(local.nbd_server.disconnect(&volume, CLIENTS_TIMEOUT), initiators, guests);
            if let Err(error) = local.engine.detach(&volume).await {
                if let Some(served) = local.engine.find(&volume) {
                    add_socket(&local, served, lost_before).await;
                }
                if let (Some(iscsi), Some((_, unit))) = (&local.iscsi, unit) {
                    iscsi.target().reinsert(unit);
                }
                return Err(error);
            }
            // A client that connected meanwhile also holds the backing.
            local.nbd_server.disconnect(&volume, Nanos(0)).await;
            if let (Some(iscsi), Some(lun)) = (&local.iscsi, lun) {
                iscsi.target().remove_absent(lun);
            }
            Ok::<(), engine::RequestError>(())
        });
        let detached =
            self.report_while(core, name, &format!("destaging {name}"), progress, detach).await.map_err(core_ended)?;
        detached.map_err(|error| {
            let text =
                format!("volume {name} could not be destaged ({error}); it stays in service, and no data is lost");
            Failure::new(ErrorKind::Failed, text)
        })
    }
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
