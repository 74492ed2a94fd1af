//! `flash add`, in particular of the first device: the store is opened beside served volumes.
//!
//! 1. The device is in the list of the state directory, then it is formatted.
//! 2. The store is opened.
//! 3. Each volume without fixed clients is detached and attached again, so that it caches clean pages on flash. Its NBD
//!    clients stay connected.
//!
//! No volume logs to devices that only the state directory names: if that directory is lost, nothing would prove that
//! the backings lack data. Flushes are therefore answered by the backings until the configuration names the devices.

use std::rc::Rc;

use control::ProgressSender;
use engine::Volume;
use messages::{ErrorKind, Failure};
use seam::real::RealSeam;

use super::super::volumes::VolumeStatus;
use super::Daemon;
use logging::{self as log, FLASH};
use state::Acceptance;

impl Daemon {
    /// `flash add`.
    pub async fn add_flash(self: &Rc<Self>, path: &str, force: bool, progress: &ProgressSender) -> Result<(), Failure> {
        if !self.flash.has_no_device() {
            return self.flash.add(path, force, progress).await;
        }
        let change = self.flash.begin_change()?;
        let device = self.flash.format_first(path, force).await?;
        if let Err(failure) = self.open_first_flash().await {
            return Err(self.flash.forget_first(failure));
        }
        let shown = device.display();
        log::info!(target: FLASH, device = %shown, "flash device {shown} was added by command as the first one");
        tokio::task::spawn_local(self.clone().watch_flash());
        drop(change);
        for name in self.volumes.served_names() {
            // A volume with another change in progress stays attached without flash.
            let Ok(_guard) = self.volumes.lock_for_change(&name) else { continue };
            if let Err(failure) = self.attach_to_flash(&name, progress).await {
                log::error!(target: FLASH, volume = name, "volume {name}: {}", failure.message);
            }
        }
        self.flash.save_manifest().await;
        Ok(())
    }

    async fn open_first_flash(&self) -> Result<(), Failure> {
        // A stop waits for the end of the opening.
        let _attach = self.volumes.begin_attach()?;
        self.flash.open_first().await
    }

    /// Detaches a served volume and attaches it again, so that it uses flash. A volume with fixed clients, or without
    /// a record that could be saved, stays attached without flash.
    async fn attach_to_flash(&self, name: &str, progress: &ProgressSender) -> Result<(), Failure> {
        let known = self.volumes.get(name)?;
        let VolumeStatus::Serving(placement) = known.status else { return Ok(()) };
        let (core, volume_id) = (placement.core, placement.volume_id);
        let cannot_be_recorded = self.records.write_error().is_some();
        if self.stop.is_stopping() || cannot_be_recorded || self.cores.has_fixed_clients(name, core).await? {
            return Ok(());
        }
        // Only little is left to destage while the clients wait.
        let work = async |volume: Volume<RealSeam>| volume.destage_all().await;
        let activity = format!("destaging {name}");
        self.stop.interrupt(self.cores.on_volume(name, &placement, &activity, progress, work)).await?;
        self.cores.release_clients(name, core, volume_id).await?;
        let attached = match self.attachments.detach(name, core, progress).await {
            Ok(()) => {
                let text = format!("volume {name} is being attached with flash");
                let refused = Failure::new(ErrorKind::Unavailable, text);
                self.volumes.set_status(name, VolumeStatus::Refused(refused));
                self.records.change_or_log(|state| state.mark_clean(volume_id));
                self.attachments.attach(known.config, known.from_file, Acceptance::default()).await
            }
            Err(failure) => Err(failure),
        };
        self.cores.resume_clients(name, core, volume_id).await;
        attached
    }
}
