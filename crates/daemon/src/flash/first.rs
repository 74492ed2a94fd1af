//! The first flash device: a command adds it while the file has no `[flash]`, and the list in the state directory names
//! it from then on. Keys of `[flash]` have their defaults. The devices cache clean pages alone: no volume logs to them
//! before the file names them ([`engine::VolumeSpec::allows_log`]).
//!
//! A volume that was attached before the store was opened uses flash from its next attach on.

use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::slice;

use flash::{FormatOptions, MemberDisk, OpenOptions, Store, StoreError};
use messages::{ErrorKind, Failure};
use seam::real::PATH_TIMEOUT;

use super::super::cores::{CoreLocal, core_ended, unless_hung};
use super::super::overlap::OwnVolumes;
use super::change::{absolute, kind_of};
use super::devices::{AbsentDevice, open_device};
use super::{Flash, FlashLog};
use config::FlashConfig;
use logging::{self as log, FLASH};
use state::show_uuid;

impl FlashLog {
    /// The configuration of the flash devices: that of the file, or the defaults for devices that commands added
    /// without `[flash]`. `None` without a device.
    pub fn config(&self) -> Option<FlashConfig> {
        let devices = self.devices();
        match self.settings.current().flash.clone() {
            Some(config) => Some(FlashConfig { devices, ..config }),
            None => (!devices.is_empty()).then(|| FlashConfig::of_devices(devices)),
        }
    }

    /// True if commands, and not the file, name the devices.
    pub fn is_by_command(&self) -> bool {
        self.settings.current().flash.is_none()
    }

    /// True while no flash device is configured or in use, so that the next one is the first.
    pub fn has_no_device(&self) -> bool {
        matches!(&*self.state.borrow(), Flash::Off) && self.config().is_none()
    }

    /// Adds the first device to the list and formats it as a store. On an error the list is empty again.
    ///
    /// The list is saved first. After a crash before the format, the next start formats the device if it is empty, and
    /// otherwise reports its content and works without flash.
    pub async fn format_first(&self, path: &str, force: bool) -> Result<PathBuf, Failure> {
        let path = absolute(path)?;
        self.save_devices(vec![path.clone()])?;
        match self.format(&path, force).await {
            Ok(()) => Ok(path),
            Err(failure) => Err(self.forget_first(failure)),
        }
    }

    /// Removes the first device from the list again; returns the failure to report.
    pub fn forget_first(&self, failure: Failure) -> Failure {
        self.save_devices(Vec::new()).err().unwrap_or(failure)
    }

    async fn format(&self, path: &Path, force: bool) -> Result<(), Failure> {
        let (config, device) = (FlashConfig::of_devices(vec![path.to_owned()]), path.to_owned());
        let (own_volumes, shown) = (OwnVolumes::new(&self.records.view()), path.display().to_string());
        let marks: Vec<String> =
            self.records.view().volumes.iter().filter_map(|record| record.dirty_on_flash.clone()).collect();
        let format = async move |local: Rc<CoreLocal>| {
            let refused = |absent: AbsentDevice| StoreError::Refused(absent.reason);
            let disk = open_device(&local, &config, &device, &own_volumes).await.map_err(refused)?;
            let disk = MemberDisk::Local(disk);
            let (disks, options) = (slice::from_ref(&disk), FormatOptions { force, ..FormatOptions::default() });
            let format = async {
                let any = OpenOptions { accept_missing: true, ..OpenOptions::default() };
                let found = flash::identify(&local.seam, disks, any).await;
                // Dirty data that a volume is refused for is given up by its adoption alone.
                if found.as_ref().is_ok_and(|found| marks.contains(&show_uuid(&found.store))) {
                    let text = "it may hold the only copy of flushed data of a volume: name the devices of its store \
                                in [flash] and restart";
                    return Err(StoreError::Refused(text.to_owned()));
                }
                // An earlier attempt was interrupted, or failed, after the format.
                if found.is_ok_and(|found| found.ownership.is_none())
                    && let (_, Ok(found)) = flash::inspect(&local.seam, disks).await
                    && found.dirty_blocks.is_empty()
                    && found.lost_batches.is_empty()
                {
                    return Ok(());
                }
                Store::format(&local.seam, disks, options).await
            };
            let hung = || StoreError::Refused(AbsentDevice::hung(&device.display().to_string()).reason);
            let format = local.engine.with_free_buffers(format);
            unless_hung(&local, disks, PATH_TIMEOUT, format).await.unwrap_or_else(|_| Err(hung()))
        };
        let formatted = self.core().call(format).await.map_err(core_ended)?;
        formatted.map_err(|error| Failure::new(kind_of(&error), format!("flash device {shown}: {error}")))
    }

    /// Opens the store on the first device beside the volumes that are attached now.
    pub async fn open_first(&self) -> Result<(), Failure> {
        let config = self.config().ok_or_else(|| Failure::new(ErrorKind::Conflict, "no flash device is configured"))?;
        let opened = self.find_and_open(config, PATH_TIMEOUT).await;
        match (opened, self.store()) {
            // The store is open, although its record could not be saved: it cannot be closed beside served volumes.
            (Err(failure), Some(_)) => log::error!(target: FLASH, "{}", failure.message),
            (Ok(Ok(_)), _) => {}
            (result, _) => {
                let conflict = |reason| Failure::new(ErrorKind::Conflict, format!("flash is not used: {reason}"));
                return Err(result.map_or_else(
                    |failure| failure,
                    |unused| conflict(unused.err().map(|unused| unused.reason).unwrap_or_default()),
                ));
            }
        }
        self.wear.load(&self.records.view());
        Ok(())
    }

    /// Removes a device from the list while flash is not in use and commands alone name its devices; true if it did.
    /// Refused while the records need the store.
    pub(super) async fn remove_unused(&self, device: &str) -> Result<bool, Failure> {
        if !self.is_by_command() || !matches!(&*self.state.borrow(), Flash::Unused(_)) {
            return Ok(false);
        }
        let path = absolute(device)?;
        let marked = {
            let state = self.records.view();
            let marked = state.volumes.iter().filter(|record| record.dirty_on_flash.is_some());
            marked.map(|record| record.name.clone()).collect::<Vec<_>>()
        };
        if !marked.is_empty() {
            let text = format!(
                "flash may hold the only copy of flushed data of {}: reconnect its devices and restart, or discard \
                 that data: `hotset volume adopt NAME` names it",
                marked.join(", ")
            );
            return Err(Failure::new(ErrorKind::Conflict, text));
        }
        if self.devices_at(&path).await.is_empty() {
            let text = format!("{device} is not in the list of flash devices");
            return Err(Failure::new(ErrorKind::NotFound, text));
        }
        self.remove_from_list(&path).await?;
        if self.devices().is_empty() {
            *self.state.borrow_mut() = Flash::Off;
        }
        log::info!(target: FLASH, device, "flash device {device}, which was not in use, was removed by command");
        Ok(true)
    }
}
