//! The end of an attach whose backing hangs after its identification. The volume is refused meanwhile, and no other
//! change of it can begin: a second attach would recover the same dirty data beside the first.

use control::ProgressSender;

use super::super::cores::LateAttach;
use super::super::volumes::{Placement, RequestedVolume};
use super::Attachments;
use logging::{self as log, VOLUME};

impl Attachments {
    /// Waits in the background for the end of an attach, then serves the volume or refuses it for another reason.
    pub(super) fn finish_later(&self, requested: RequestedVolume, placement: Placement, attach: LateAttach) {
        let attachments = self.clone();
        self.volumes.begin_late_attach(&requested.0.name);
        tokio::task::spawn_local(async move {
            let name = requested.0.name.clone();
            match attach.wait_for_end().await {
                // `volume add` has failed meanwhile.
                Err(_) if !attachments.volumes.contains(&name) => {}
                Ok(may_be_logged) => attachments.serve_late(requested, placement, may_be_logged).await,
                Err(failure) => {
                    log::error!(target: VOLUME, volume = name, "volume {name} is not served: {}", failure.message);
                    attachments.volumes.record_attached(requested, Err(failure));
                }
            }
            attachments.volumes.end_late_attach(&name);
        });
    }

    async fn serve_late(&self, requested: RequestedVolume, placement: Placement, may_be_logged: bool) {
        let name = requested.0.name.clone();
        if !self.volumes.contains(&name) {
            // `volume add` has failed meanwhile.
            let (progress, _) = ProgressSender::new();
            if let Err(failure) = self.detach(&name, placement.core, &progress).await {
                log::error!(target: VOLUME, volume = name, "{}", failure.message);
            }
            return;
        }
        if !may_be_logged && !self.records.policy_allows_log(&requested.0) {
            self.clear_flash_marks(&[placement.volume_id]);
        }
        self.volumes.record_attached(requested, Ok(placement));
        log::info!(
            target: VOLUME, volume = name,
            "volume {name}: its backing is available again; the volume is in service"
        );
        if let Err(failure) = self.memory.delete_unneeded_images().await {
            log::error!(target: VOLUME, "{}", failure.message);
        }
    }
}
