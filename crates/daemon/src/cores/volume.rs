//! Calls that run on a volume's core.

use std::rc::Rc;

use control::ProgressSender;
use engine::{RequestError, Volume};
use messages::{ErrorKind, Failure};
use seam::real::RealSeam;

use super::super::progress::report_while;
use super::super::volumes::Placement;
use super::data_core::CoreLocal;
use super::{CORE_TIMEOUT, Cores, core_ended};

impl Cores {
    /// Runs `work` with the volume on its core. `work` is synchronous and must not block.
    pub async fn with_volume<T: Send + 'static>(
        &self,
        name: &str,
        placement: &Placement,
        work: impl FnOnce(Volume<RealSeam>) -> T + Send + 'static,
    ) -> Result<T, Failure> {
        let volume = name.to_owned();
        let called = self[placement.core].call(async move |local: Rc<CoreLocal>| local.engine.find(&volume).map(work));
        called.await.map_err(core_ended)?.ok_or_else(|| Failure::no_volume(name))
    }

    /// Runs `work` with the volume on its core, and meanwhile reports its dirty bytes as progress.
    pub async fn on_volume<T, F>(
        &self,
        name: &str,
        placement: &Placement,
        activity: &str,
        progress: &ProgressSender,
        work: impl FnOnce(Volume<RealSeam>) -> F + Send + 'static,
    ) -> Result<T, Failure>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, RequestError>> + 'static,
    {
        let volume = name.to_owned();
        let called = self[placement.core].call(async move |local: Rc<CoreLocal>| match local.engine.find(&volume) {
            Some(volume) => work(volume).await,
            None => Err(RequestError::ShuttingDown),
        });
        let result = self.report_while(placement.core, name, activity, progress, called).await.map_err(core_ended)?;
        result.map_err(|error| Failure::new(ErrorKind::Failed, format!("volume {name}: {activity} failed: {error}")))
    }

    /// Awaits `action` for the volume `name` on `core`, and meanwhile reports the volume's dirty bytes as progress.
    pub async fn report_while<T>(
        &self,
        core: usize,
        name: &str,
        activity: &str,
        progress: &ProgressSender,
        action: impl Future<Output = T>,
    ) -> T {
        let report = async || {
            let volume = name.to_owned();
            let dirty = async move |local: Rc<CoreLocal>| {
                local.engine.find(&volume).map_or(0, |volume| volume.stats().dirty_bytes)
            };
            if let Ok(dirty_bytes) = self[core].call(dirty).await {
                progress.report(activity, dirty_bytes);
            }
        };
        report_while(action, report).await
    }

    /// Size of a volume in bytes.
    pub async fn size_of(&self, name: &str, placement: &Placement) -> Result<u64, Failure> {
        self.with_volume(name, placement, |volume| volume.size_bytes()).await
    }

    /// Dirty bytes of a volume now; 0 if its core does not answer.
    pub async fn dirty_bytes_of(&self, volume: &str, core: usize) -> u64 {
        let volume = volume.to_owned();
        let dirty =
            async move |local: Rc<CoreLocal>| local.engine.find(&volume).map_or(0, |volume| volume.stats().dirty_bytes);
        let dirty_bytes = tokio::time::timeout(CORE_TIMEOUT, self[core].call(dirty)).await;
        dirty_bytes.ok().and_then(Result::ok).unwrap_or(0)
    }

    /// Bytes of all volumes that their backings do not durably have; `None` once a core has ended.
    pub async fn undestaged_bytes(&self) -> Option<u64> {
        let mut undestaged_bytes = 0;
        for core in self.iter() {
            let sum = async move |local: Rc<CoreLocal>| {
                local.engine.volumes().iter().map(|volume| volume.stats().undestaged_bytes()).sum::<u64>()
            };
            undestaged_bytes += core.call(sum).await.ok()?;
        }
        Some(undestaged_bytes)
    }

    /// Reports a volume's new size to guests.
    pub async fn notify_guests_of_size(&self, name: &str, placement: &Placement) -> Result<(), Failure> {
        let name = name.to_owned();
        let notify = async move |local: Rc<CoreLocal>| {
            if let Some(vhost_user) = &local.vhost_user {
                vhost_user.server.report_capacity_change(&name);
            }
        };
        self[placement.core].call(notify).await.map_err(core_ended)
    }
}
