//! Retry of volumes whose backing could not be opened.

use std::rc::Rc;
use std::time::{Duration, Instant};

use control::ProgressSender;
use messages::Failure;
use rbd::Claim;
use seam::real::PATH_TIMEOUT;

use super::super::volumes::{RequestedVolume, STANDBY};
use super::Daemon;
use super::fleet::is_undestaged;
use logging::{self as log, VOLUME};

/// Interval at which volumes with a due attempt are collected.
const CHECK_INTERVAL: Duration = Duration::from_millis(250);

impl Daemon {
    /// Retries refused volumes until a stop is requested.
    pub async fn retry_refused(self: Rc<Self>) {
        while !self.stop.is_stopping() {
            tokio::time::sleep(CHECK_INTERVAL).await;
            self.retry_due().await;
            self.claim_due().await;
            self.forward_due();
        }
    }

    /// Serves the volumes on standby whose images this host may claim by now.
    async fn claim_due(self: &Rc<Self>) {
        if self.stop.is_stopping() {
            return self.standbys.end();
        }
        let (mut guards, mut requested, mut formers) = (Vec::new(), Vec::new(), Vec::new());
        for (known, claim) in self.standbys.take_claims(&self.volumes, &self.attachments) {
            // A change of this volume that is in progress supersedes the claim.
            let Ok(guard) = self.volumes.lock_for_change(&known.config.name) else { continue };
            guards.push(guard);
            self.volumes.order_claim(&known.config.name, claim);
            formers.push(known.standby().cloned());
            requested.push((known.config, known.from_file));
        }
        if requested.is_empty() {
            return;
        }
        let results = self.attachments.attach_all(requested.clone(), state::Acceptance::default(), PATH_TIMEOUT).await;
        drop(guards);
        for ((requested, former), result) in requested.into_iter().zip(formers).zip(results) {
            let name = requested.0.name.clone();
            self.read_log_of_absent_owner(requested, &result);
            match result {
                Ok(()) => {
                    self.volumes.end_claim(&name);
                    log::info!(
                        target: VOLUME, volume = name,
                        "volume {name}: this host owns its image now; the volume is in service"
                    );
                    self.start_transfer(&name, former.as_ref());
                }
                Err(failure) if failure.refusal.as_deref() == Some(STANDBY) => {
                    log::debug!(target: VOLUME, volume = name, "{}", failure.message);
                }
                Err(failure) => log::error!(target: VOLUME, volume = name, "{}", failure.message),
            }
            self.standbys.forget(&name);
        }
    }

    /// Takes over a volume by itself whose absent owner had flushed data in a log on an image. Another attempt follows
    /// with the next retry of the volume.
    fn read_log_of_absent_owner(self: &Rc<Self>, requested: RequestedVolume, result: &Result<(), Failure>) {
        let name = requested.0.name.clone();
        let is_absent = matches!(self.volumes.claim_of(&name), Some(Claim::Absent(_)));
        if !is_absent || !result.as_ref().is_err_and(is_undestaged) {
            return;
        }
        let (daemon, of_task) = (Rc::clone(self), name.clone());
        self.volumes.spawn_change(&name, async move {
            // No client watches the progress.
            let (progress, _) = ProgressSender::new();
            let (config, from_file) = requested;
            let attached = match daemon.destage_log_of_owner(&config, false, &progress).await {
                Ok(()) => daemon.attachments.attach(config, from_file, state::Acceptance::default()).await,
                Err(failure) => Err(failure),
            };
            match attached {
                Ok(()) => log::warn!(
                    target: VOLUME, volume = of_task,
                    "volume {of_task}: taken over from its absent owner, with the flushed data in that host's log"
                ),
                Err(failure) if is_undestaged(&failure) => {}
                Err(failure) => log::error!(target: VOLUME, volume = of_task, "{}", failure.message),
            }
        });
    }

    async fn retry_due(self: &Rc<Self>) {
        let due = self.volumes.take_due(Instant::now());
        if due.is_empty() || self.stop.is_stopping() {
            return;
        }
        let (mut guards, mut requested, mut refusals_before) = (Vec::new(), Vec::new(), Vec::new());
        for known in due {
            // A change of this volume that is in progress supersedes the retry.
            let Ok(guard) = self.volumes.lock_for_change(&known.config.name) else { continue };
            guards.push(guard);
            refusals_before.push((known.config.name.clone(), known.refusal().cloned()));
            requested.push((known.config, known.from_file));
        }
        if requested.is_empty() {
            return;
        }
        let results = self.attachments.attach_all(requested.clone(), state::Acceptance::default(), PATH_TIMEOUT).await;
        drop(guards);
        for (((name, refusal), requested), result) in refusals_before.into_iter().zip(requested).zip(results) {
            self.read_log_of_absent_owner(requested, &result);
            match result {
                Ok(()) => log::info!(
                    target: VOLUME, volume = name,
                    "volume {name}: its backing is available again; the volume is in service"
                ),
                // Log a refusal only when it differs from the last one: repeating it every half minute would hide new
                // messages.
                Err(failure) if self.volumes.find(&name).is_none_or(|now| now.refusal() != refusal.as_ref()) => {
                    log::error!(target: VOLUME, volume = name, "{}", failure.message);
                }
                Err(failure) => log::debug!(target: VOLUME, volume = name, "{}", failure.message),
            }
        }
    }
}
