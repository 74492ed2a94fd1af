//! `flash add`, in particular of the first device: the store is opened beside served volumes.
//!
//! 1. The device is in the list of the state directory, then it is formatted.
//! 2. Attaches and changes of volumes are blocked, and write-back volumes are destaged and become write-through. Their
//!    flushes are answered by the backings alone.
//! 3. The store is opened.
//! 4. Each volume without fixed clients is detached and attached again. The attach marks a write-back volume as dirty
//!    on the store before the log answers its flushes. Its NBD clients stay connected.
//!
//! A crash loses nothing at any point. Before step 4 no volume has a mark, and the backings are complete but for
//! unflushed writes. In step 4 each volume has either no mark and no data in the log, or a mark and a store that the
//! list names.

use std::rc::Rc;

use control::ProgressSender;
use engine::{Volume, WritePolicy};
use messages::{ErrorKind, Failure};
use seam::real::RealSeam;

use super::super::cores::{CoreLocal, core_ended};
use super::super::volumes::{ChangeGuard, Placement, VolumeStatus};
use super::Daemon;
use logging::{self as log, FLASH};
use state::Acceptance;

impl Daemon {
    /// `flash add`.
    pub async fn add_flash(self: &Rc<Self>, path: &str, force: bool, progress: &ProgressSender) -> Result<(), Failure> {
        if !self.flash.has_no_device() {
            return self.flash.add(path, force, progress).await;
        }
        let _change = self.flash.begin_change()?;
        let device = self.flash.format_first(path, force).await?;
        let guards = match self.open_beside_volumes(progress).await {
            Ok(guards) => guards,
            Err(failure) => return Err(self.flash.forget_first(failure)),
        };
        let shown = device.display();
        log::info!(target: FLASH, device = %shown, "flash device {shown} was added by command as the first one");
        for (name, _guard) in &guards {
            if let Err(failure) = self.attach_to_flash(name, progress).await {
                log::error!(target: FLASH, volume = name, "volume {name}: {}", failure.message);
            }
        }
        drop(guards);
        tokio::task::spawn_local(self.clone().watch_flash());
        self.flash.save_manifest().await;
        Ok(())
    }

    /// Opens the store on the first device while no volume is write-back and none is attached. Returns the served
    /// volumes, with their guards. On an error the volumes are as before.
    async fn open_beside_volumes(&self, progress: &ProgressSender) -> Result<Vec<(String, ChangeGuard<'_>)>, Failure> {
        let _blocked = self.volumes.block_attaches().await;
        if self.volumes.has_late_attach() {
            let text = "the backing of a volume that is being attached does not answer; try again later";
            return Err(Failure::new(ErrorKind::Conflict, text));
        }
        let lock = |name: String| self.volumes.lock_for_change(&name).map(|guard| (name, guard));
        let guards = self.volumes.served_names().into_iter().map(lock).collect::<Result<Vec<_>, _>>()?;
        let mut held = Vec::new();
        for (name, _guard) in &guards {
            match self.until_stop(self.hold_write_back(name, progress)).await {
                Ok(placement) => held.extend(placement.map(|placement| (name, placement))),
                Err(failure) => {
                    self.release_write_back(&held).await;
                    return Err(failure);
                }
            }
        }
        if let Err(failure) = self.open_without_write_back().await {
            self.release_write_back(&held).await;
            return Err(failure);
        }
        Ok(guards)
    }

    /// Opens the store unless a volume is write-back.
    async fn open_without_write_back(&self) -> Result<(), Failure> {
        // A stop waits for the end of the opening.
        let _attach = self.volumes.begin_attach()?;
        self.check_none_write_back().await?;
        self.flash.open_first().await
    }

    /// Runs `work` to its end, or drops it when a stop is requested: a backing may never answer.
    async fn until_stop<T>(&self, work: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
        tokio::select! {
            result = work => result,
            () = self.stop.requested() => Err(Failure::new(ErrorKind::Unavailable, "the daemon is stopping")),
        }
    }

    /// Destages a write-back volume and makes it write-through, without a record; returns its placement. `None` for
    /// another policy.
    async fn hold_write_back(&self, name: &str, progress: &ProgressSender) -> Result<Option<Placement>, Failure> {
        let placement = self.volumes.placement(name)?;
        let policy = self.cores.with_volume(name, &placement, |volume| volume.policy()).await?;
        if policy != WritePolicy::WriteBack {
            return Ok(None);
        }
        let work = async |volume: Volume<RealSeam>| volume.set_policy(WritePolicy::WriteThrough).await;
        self.cores.on_volume(name, &placement, &format!("destaging {name}"), progress, work).await?;
        Ok(Some(placement))
    }

    /// Makes volumes write-back again, whose store was not opened.
    async fn release_write_back(&self, held: &[(&String, Placement)]) {
        let (progress, _) = ProgressSender::new();
        for (name, placement) in held {
            let work = async |volume: Volume<RealSeam>| volume.set_policy(WritePolicy::WriteBack).await;
            let changed = self.cores.on_volume(name, placement, "changing the policy", &progress, work).await;
            if let Err(failure) = changed {
                log::error!(target: FLASH, volume = name.as_str(), "{}", failure.message);
            }
        }
    }

    /// Fails if a data core has a write-back volume.
    async fn check_none_write_back(&self) -> Result<(), Failure> {
        for core in self.cores.iter() {
            let find = async |local: Rc<CoreLocal>| {
                let volumes = local.engine.volumes();
                let found = volumes.iter().find(|volume| volume.policy() == WritePolicy::WriteBack);
                found.map(|volume| volume.name().to_owned())
            };
            if let Some(name) = core.call(find).await.map_err(core_ended)? {
                let text = format!("another change of volume {name} is in progress; try again when it has ended");
                return Err(Failure::new(ErrorKind::Conflict, text));
            }
        }
        Ok(())
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
        self.until_stop(self.cores.on_volume(name, &placement, &activity, progress, work)).await?;
        self.cores.release_clients(name, core, volume_id).await?;
        let attached = match self.attachments.detach(name, core, progress).await {
            Ok(()) => {
                let text = format!("volume {name} is being attached with flash");
                let refused = Failure::new(ErrorKind::Unavailable, text);
                self.volumes.set_status(name, VolumeStatus::Refused(refused));
                self.records.change_or_log(|state| state.mark_clean(volume_id));
                let attached = self.attachments.attach(known.config, known.from_file, Acceptance::default()).await;
                // One copy must not answer flushes unless that is allowed.
                self.flash.enforce_two_copies().await;
                attached
            }
            Err(failure) => Err(failure),
        };
        self.cores.resume_clients(name, core, volume_id).await;
        attached
    }
}
