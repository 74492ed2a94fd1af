//! Actions on a served volume: set, pause, freeze, resume, invalidate, slow, resize.

use std::collections::BTreeMap;
use std::rc::Rc;

use control::report::SlowReport;
use control::{Answer, ErrorKind, Failure, ProgressSender};
use engine::pages::slow::Slow;
use engine::{CacheMode, Volume, WritePolicy};
use seam::real::RealSeam;
use seam::{Nanos, Seam};

use super::cores::Local;
use super::cores::core_gone;
use super::daemon::Daemon;
use super::volumes::{Known, Placed};
use config::keys::{KEYS, find_key, nearest, set_by_command};
use state::{Acceptance, BACKING_SHRANK, DECLARED_LOST, MODE, POLICY};
use terminal::log;
use units::show_bytes;

impl Daemon {
    /// `volume set`.
    pub async fn set(
        &self,
        name: &str,
        settings: &BTreeMap<String, String>,
        progress: &ProgressSender,
    ) -> Result<Answer, Failure> {
        let invalid = |text| Failure::new(ErrorKind::Invalid, text);
        if let Some(key) = settings.keys().find(|key| !set_by_command().any(|known| known == *key)) {
            return Err(invalid(refuse_key(key)));
        }
        if settings.is_empty() {
            let known: Vec<_> = set_by_command().collect();
            return Err(invalid(format!("nothing to set; write KEY=VALUE, where KEY is {}", known.join(" or "))));
        }
        let policy = settings.get(POLICY).map(|policy| policy.parse::<WritePolicy>()).transpose().map_err(invalid)?;
        let lost = settings.get(DECLARED_LOST).map(|lost| lost.parse::<bool>()).transpose();
        let lost =
            lost.map_err(|_| invalid(format!("{DECLARED_LOST} is true or false; write {DECLARED_LOST}=true")))?;
        let _busy = self.volumes.begin(name)?;
        let placed = self.volumes.placed(name)?;
        self.set_qos(name, &placed, settings).await?;
        self.set_share(name, &placed, settings).await?;
        if let Some(lost) = lost {
            let file = self.volumes.setting(name, DECLARED_LOST).unwrap_or_default();
            self.units.set_lost(name, &placed, lost, &file).await?;
        }
        match policy {
            Some(policy) => self.set_policy(name, &placed, policy, progress).await,
            None => self.show(name).await,
        }
    }

    async fn set_policy(
        &self,
        name: &str,
        placed: &Placed,
        policy: WritePolicy,
        progress: &ProgressSender,
    ) -> Result<Answer, Failure> {
        if policy == WritePolicy::WriteBack && self.flash.wants_two_copies().await {
            let text = format!(
                "volume {name} stays as it is: fewer than two flash devices are in service, and allow_single_copy is \
                 not set"
            );
            return Err(Failure::new(ErrorKind::Conflict, text));
        }
        let file = self.volumes.setting(name, POLICY).unwrap_or_default();
        let before = self.records.view().clone();
        let note = self.records.change(|state| {
            state.set_override(placed.incarnation, POLICY, &policy.to_string(), &file);
        });
        note?;
        if let Err(failure) = self.change_policy(name, placed, policy, progress).await {
            let undone = self.records.change(|state| {
                let held = before.by_name(name).and_then(|record| record.overrides.get(POLICY).cloned());
                let value = held.map_or_else(|| file.clone(), |held| held.value);
                state.set_override(placed.incarnation, POLICY, &value, &file);
            });
            undone?;
            return Err(failure);
        }
        log::info(format!("volume {name}: policy {policy} by command"));
        self.show(name).await
    }

    /// Changes the policy. The mark "dirty on flash" in the state directory is true before, during and after the
    /// change.
    pub(super) async fn change_policy(
        &self,
        name: &str,
        placed: &Placed,
        policy: WritePolicy,
        progress: &ProgressSender,
    ) -> Result<(), Failure> {
        let read_only = self.volumes.find(name).is_some_and(|known| known.config.read_only);
        if policy == WritePolicy::WriteBack {
            self.flash.note_policy_on_flash(placed, policy, read_only)?;
        }
        if policy.defers_writes() && !read_only {
            self.records.note_deferring(placed)?;
        }
        let work = async move |volume: Volume<RealSeam>| volume.set_policy(policy).await;
        self.cores.on_volume(name, placed, "changing the policy", progress, work).await?;
        self.flash.note_policy_on_flash(placed, policy, read_only)
    }

    /// `volume pause`, `freeze` and `resume`.
    pub async fn set_mode(&self, name: &str, mode: CacheMode, progress: &ProgressSender) -> Result<Answer, Failure> {
        let _busy = self.volumes.begin(name)?;
        let placed = self.volumes.placed(name)?;
        let work = async move |volume: Volume<RealSeam>| volume.set_mode(mode).await;
        self.cores.on_volume(name, &placed, "changing the mode", progress, work).await?;
        let noted = self.records.change(|state| {
            state.set_override(placed.incarnation, MODE, &mode.to_string(), &CacheMode::Active.to_string());
        });
        noted?;
        log::info(format!("volume {name}: {mode} by command"));
        self.show(name).await
    }

    /// `volume invalidate`.
    pub async fn invalidate(&self, name: &str, discard_dirty: bool) -> Result<Answer, Failure> {
        let _busy = self.volumes.begin(name)?;
        let placed = self.volumes.placed(name)?;
        let (progress, _) = ProgressSender::new();
        let work = async move |volume: Volume<RealSeam>| volume.start_anew(discard_dirty).await;
        let dropped = self.cores.on_volume(name, &placed, "invalidating", &progress, work).await?;
        let what = if discard_dirty { "cached data, dirty or not," } else { "clean data" };
        let text = format!(
            "volume {name}: {} of {what} dropped from memory, and all that flash had of it",
            show_bytes(dropped)
        );
        log::info(&text);
        Ok(Answer::Said(vec![text]))
    }

    /// `volume slow`.
    pub async fn slow(&self, name: &str) -> Result<Answer, Failure> {
        let placed = self.volumes.placed(name)?;
        let volume = name.to_owned();
        let called = self.cores[placed.core].call(async move |local: Rc<Local>| {
            let now = local.seam.now();
            let found = local.engine.find(&volume);
            found.map(|volume| volume.slow_requests().iter().map(|slow| slow_report(slow, now)).collect())
        });
        let found: Option<Vec<SlowReport>> = called.await.map_err(core_gone)?;
        found.map(Answer::Slow).ok_or_else(|| Failure::no_volume(name))
    }

    /// `volume resize`.
    pub async fn resize(
        &self,
        name: &str,
        size_bytes: Option<u64>,
        discard_dirty: bool,
        progress: &ProgressSender,
    ) -> Result<Answer, Failure> {
        if size_bytes.is_some_and(|size| size == 0 || !size.is_multiple_of(512)) {
            return Err(Failure::new(ErrorKind::Invalid, "a volume's size is a multiple of 512 bytes, above 0"));
        }
        let _busy = self.volumes.begin(name)?;
        if discard_dirty && size_bytes.is_none() {
            self.accept_shrunk(name).await?;
        }
        let placed = self.volumes.placed(name)?;
        let work = async move |volume: Volume<RealSeam>| volume.resize(size_bytes, discard_dirty).await;
        let size = self.cores.on_volume(name, &placed, "resizing", progress, work).await?;
        let noted = self.records.change(|state| state.note_size(placed.incarnation, size));
        noted?;
        self.units.tell_size(name, &placed).await?;
        self.cores.tell_guests_size(name, &placed).await?;
        log::info(format!("volume {name}: {} by command", show_bytes(size)));
        self.show(name).await
    }

    /// Serves a volume that is refused because its backing shrank. Dirty data past the backing's new end may be lost.
    async fn accept_shrunk(&self, name: &str) -> Result<(), Failure> {
        let has_shrunk =
            |known: &Known| known.refusal().is_some_and(|failure| failure.refusal.as_deref() == Some(BACKING_SHRANK));
        let Some(known) = self.volumes.find(name).filter(has_shrunk) else { return Ok(()) };
        let accept = Acceptance { discard_past_end: true, ..Acceptance::default() };
        self.attach(known.config, known.from_file, accept).await?;
        log::warn(format!(
            "volume {name}: its backing is smaller than it was; dirty data past its end was given up by command"
        ));
        Ok(())
    }
}

fn refuse_key(key: &str) -> String {
    match find_key("volume", key) {
        Some(_) => {
            format!(
                "\"{key}\" cannot be changed while the volume is served; change it in the configuration and restart"
            )
        }
        None => match nearest(key, KEYS.iter().filter(|known| known.table == "volume").map(|known| known.name)) {
            Some(near) => format!("a volume has no setting \"{key}\"; did you mean \"{near}\"?"),
            None => {
                let known: Vec<_> = set_by_command().collect();
                format!("a volume has no setting \"{key}\"; `volume set` knows {}", known.join(", "))
            }
        },
    }
}

fn slow_report(slow: &Slow, now: Nanos) -> SlowReport {
    SlowReport {
        ago_ms: now.since(slow.ended).as_millis(),
        asked: slow.asked.name().to_owned(),
        offset_bytes: slow.at,
        length_bytes: slow.len,
        took_us: slow.took.as_micros(),
        step: slow.step.name().to_owned(),
        waited_us: slow.waited.as_micros(),
    }
}
