//! Clients that stay connected while their volume is detached and attached again.

use std::rc::Rc;

use engine::VolumeId;
use messages::Failure;

use super::data_core::CoreLocal;
use super::detach::CLIENTS_TIMEOUT;
use super::{Cores, core_ended};
use logging::{self as log, NBD};

impl Cores {
    /// True if a detach would disconnect clients of the volume or fail commands of initiators: NBD clients with TLS,
    /// iSCSI initiators that see its unit, and guests on its socket.
    pub async fn has_fixed_clients(&self, name: &str, core: usize) -> Result<bool, Failure> {
        let volume = name.to_owned();
        let has_fixed = async move |local: Rc<CoreLocal>| {
            let has_initiators = local.iscsi.as_ref().is_some_and(|iscsi| {
                let target = iscsi.target();
                target.lun_of_volume(&volume).is_some_and(|lun| target.has_initiators(lun))
            });
            let has_guests = local.vhost_user.as_ref().is_some_and(|guests| guests.server.clients_of(&volume) > 0);
            local.nbd_server.fixed_clients_of(&volume) > 0 || has_initiators || has_guests
        };
        self[core].call(has_fixed).await.map_err(core_ended)
    }

    /// Releases the NBD clients of a volume: their connections stay open, and their next requests wait for
    /// [`Cores::resume_clients`].
    pub async fn release_clients(&self, name: &str, core: usize, volume_id: VolumeId) -> Result<(), Failure> {
        let volume = name.to_owned();
        let release = async move |local: Rc<CoreLocal>| {
            let released = local.nbd_server.release(&volume, volume_id, CLIENTS_TIMEOUT).await;
            local.released_clients.borrow_mut().extend(released);
        };
        self[core].call(release).await.map_err(core_ended)
    }

    /// Serves the released clients of a volume again. Clients whose volume is not served are disconnected.
    pub async fn resume_clients(&self, name: &str, core: usize, volume_id: VolumeId) {
        let resume = async move |local: Rc<CoreLocal>| {
            let released = local.released_clients.take();
            let (own, others): (Vec<_>, Vec<_>) =
                released.into_iter().partition(|client| client.terms.volume_id == volume_id);
            local.released_clients.borrow_mut().extend(others);
            own.into_iter().filter_map(|client| local.nbd_server.take_over(client).err()).collect::<Vec<_>>()
        };
        // If the core has ended, its connections have ended, too.
        for reason in self[core].call(resume).await.unwrap_or_default() {
            log::warn!(target: NBD, volume = name, "an NBD client of volume {name} is disconnected: {reason}");
        }
    }
}
