//! Actions on a served volume: set, pause, freeze, resume, pin, invalidate, slow, resize.

use std::collections::BTreeMap;
use std::rc::Rc;

use control::ProgressSender;
use engine::telemetry::SlowRequest;
use engine::{CacheMode, Volume};
use messages::report::SlowReport;
use messages::{Answer, ErrorKind, Failure};
use seam::real::RealSeam;
use seam::{Nanos, Seam};

use super::super::cores::CoreLocal;
use super::super::cores::core_ended;
use super::super::volume_settings::Changes;
use super::super::volumes::KnownVolume;
use super::Daemon;
use logging::{self as log, VOLUME};
use state::{Acceptance, BACKING_SHRANK};
use units::show_bytes;

impl Daemon {
    /// `volume set`.
    pub async fn set(
        &self,
        name: &str,
        settings: &BTreeMap<String, String>,
        progress: &ProgressSender,
    ) -> Result<Answer, Failure> {
        let changes = Changes::parse(settings)?;
        let _guard = self.volumes.lock_for_change(name)?;
        self.volume_settings.apply(name, &self.volumes.placement(name)?, &changes, progress).await?;
        self.show(name).await
    }

    /// `volume pause`, `freeze` and `resume`.
    pub async fn set_mode(&self, name: &str, mode: CacheMode, progress: &ProgressSender) -> Result<Answer, Failure> {
        let _guard = self.volumes.lock_for_change(name)?;
        self.volume_settings.set_mode(name, &self.volumes.placement(name)?, mode, progress).await?;
        self.show(name).await
    }

    /// `volume pin` and `unpin`.
    pub async fn pin(&self, name: &str, from_bytes: u64, to_bytes: Option<u64>, pins: bool) -> Result<Answer, Failure> {
        let _guard = self.volumes.lock_for_change(name)?;
        self.volume_settings.pin(name, &self.volumes.placement(name)?, from_bytes, to_bytes, pins).await?;
        self.show(name).await
    }

    /// `volume invalidate`.
    pub async fn invalidate(&self, name: &str, discard_dirty: bool) -> Result<Answer, Failure> {
        let _guard = self.volumes.lock_for_change(name)?;
        let placement = self.volumes.placement(name)?;
        let (progress, _) = ProgressSender::new();
        let work = async move |volume: Volume<RealSeam>| volume.drop_cached_data(discard_dirty).await;
        let dropped = self.cores.on_volume(name, &placement, "invalidating", &progress, work).await?;
        let content = if discard_dirty { "cached data, dirty or not," } else { "clean data" };
        let text = format!(
            "volume {name}: {} of {content} dropped from memory, and its pages from flash",
            show_bytes(dropped)
        );
        log::info!(target: VOLUME, volume = name, "{text}");
        Ok(Answer::Said(vec![text]))
    }

    /// `volume slow`.
    pub async fn slow(&self, name: &str) -> Result<Answer, Failure> {
        let placement = self.volumes.placement(name)?;
        let volume = name.to_owned();
        let called = self.cores[placement.core].call(async move |local: Rc<CoreLocal>| {
            let now = local.seam.now();
            let volume = local.engine.find(&volume);
            volume.map(|volume| volume.slow_requests().iter().map(|slow| slow_report(slow, now)).collect())
        });
        let slow_requests: Option<Vec<SlowReport>> = called.await.map_err(core_ended)?;
        slow_requests.map(Answer::Slow).ok_or_else(|| Failure::no_volume(name))
    }

    /// `volume resize`.
    pub async fn resize(
        &self,
        name: &str,
        size_bytes: Option<u64>,
        discard_dirty: bool,
        progress: &ProgressSender,
    ) -> Result<Answer, Failure> {
        if size_bytes.is_some_and(|size| size == 0 || !size.is_multiple_of(seam::SECTOR_BYTES as u64)) {
            return Err(Failure::new(ErrorKind::Invalid, "a volume's size is a multiple of 512 bytes, above 0"));
        }
        let _guard = self.volumes.lock_for_change(name)?;
        if discard_dirty && size_bytes.is_none() {
            self.accept_shrunk(name).await?;
        }
        let placement = self.volumes.placement(name)?;
        let work = async move |volume: Volume<RealSeam>| {
            let size = volume.resize(size_bytes, discard_dirty).await?;
            // A full log takes the tombstones of discarded blocks with a flush.
            let are_discarded = !discard_dirty || volume.flush().await.is_ok();
            Ok((size, are_discarded))
        };
        let (size, are_discarded) = self.cores.on_volume(name, &placement, "resizing", progress, work).await?;
        self.records.change(|state| {
            let known = state.by_id(placement.volume_id).and_then(|record| record.content.as_ref());
            // Discarded blocks that are still in the log would return after a kill and a growth, if the smaller size
            // were recorded.
            if are_discarded || known.is_none_or(|content| content.size_bytes <= size) {
                state.record_size(placement.volume_id, size);
            }
        })?;
        self.units.notify_size(name, &placement).await?;
        self.cores.notify_guests_of_size(name, &placement).await?;
        log::info!(target: VOLUME, volume = name, "volume {name}: {} by command", show_bytes(size));
        self.show(name).await
    }

    /// Serves a volume that is refused because its backing shrank. Dirty data past the backing's new end may be lost.
    async fn accept_shrunk(&self, name: &str) -> Result<(), Failure> {
        let has_shrunk = |known: &KnownVolume| {
            known.refusal().is_some_and(|failure| failure.refusal.as_deref() == Some(BACKING_SHRANK))
        };
        let Some(known) = self.volumes.find(name).filter(has_shrunk) else { return Ok(()) };
        let accept = Acceptance { discard_past_end: true, ..Acceptance::default() };
        self.attachments.attach(known.config, known.from_file, accept).await?;
        log::warn!(
            target: VOLUME, volume = name,
            "volume {name}: its backing shrank; dirty data past its end was discarded by command"
        );
        Ok(())
    }
}

fn slow_report(slow: &SlowRequest, now: Nanos) -> SlowReport {
    SlowReport {
        ago_ms: now.since(slow.ended_at).as_millis(),
        operation: slow.op.name().to_owned(),
        offset_bytes: slow.at.0,
        length_bytes: slow.len_bytes,
        took_us: slow.latency.as_micros(),
        step: slow.step.name().to_owned(),
        waited_us: slow.step_wait.as_micros(),
    }
}
