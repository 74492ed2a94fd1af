//! Actions on a served volume: set, pause, freeze, resume, invalidate, slow, resize.

use std::collections::BTreeMap;
use std::rc::Rc;

use control::report::SlowReport;
use control::{Answer, ErrorKind, Failure, ProgressSender};
use engine::pages::slow::Slow;
use engine::{CacheMode, RequestError, Volume, WritePolicy};
use seam::real::RealSeam;
use seam::{Nanos, Seam};

use super::daemon::{Daemon, Placed, core_gone, state_failed};
use super::data_core::Local;
use config::keys::{KEYS, find_key, nearest, set_by_command};
use logging::{self as log, VOLUME};
use state::{Acceptance, BACKING_SHRANK, DECLARED_LOST, MODE, POLICY};
use units::show_bytes;

impl Daemon {
    /// Runs `work` with the volume on its core, and meanwhile reports its dirty bytes as progress.
    pub(super) async fn on_volume<T, F>(
        &self,
        name: &str,
        placed: &Placed,
        what: &str,
        progress: &ProgressSender,
        work: impl FnOnce(Volume<RealSeam>) -> F + Send + 'static,
    ) -> Result<T, Failure>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, RequestError>> + 'static,
    {
        let core = &self.cores[placed.core];
        let volume = name.to_owned();
        let called = core.call(async move |local: Rc<Local>| match local.engine.find(&volume) {
            Some(volume) => work(volume).await,
            None => Err(RequestError::ShuttingDown),
        });
        let result = self.watched(core, name, what, progress, called).await.map_err(core_gone)?;
        result.map_err(|error| Failure::new(ErrorKind::Failed, format!("volume {name}: {what} failed: {error}")))
    }

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
        let _busy = self.begin(name)?;
        let placed = self.placed(name)?;
        self.set_qos(name, &placed, settings).await?;
        self.set_share(name, &placed, settings).await?;
        if let Some(lost) = lost {
            self.set_lost(name, &placed, lost).await?;
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
        if policy == WritePolicy::WriteBack && self.wants_two_copies().await {
            let text = format!(
                "volume {name} stays as it is: fewer than two flash devices are in service, and allow_single_copy is \
                 not set"
            );
            return Err(Failure::new(ErrorKind::Conflict, text));
        }
        let file = self.file_policy(name);
        let before = self.state.borrow().state().clone();
        let note = self.state.borrow_mut().change(|state| {
            state.set_override(placed.incarnation, POLICY, &policy.to_string(), &file);
        });
        note.map_err(state_failed)?;
        if let Err(failure) = self.change_policy(name, placed, policy, progress).await {
            let undone = self.state.borrow_mut().change(|state| {
                let held = before.by_name(name).and_then(|record| record.overrides.get(POLICY).cloned());
                let value = held.map_or_else(|| file.clone(), |held| held.value);
                state.set_override(placed.incarnation, POLICY, &value, &file);
            });
            undone.map_err(state_failed)?;
            return Err(failure);
        }
        log::info!(target: VOLUME, volume = name, "volume {name}: policy {policy} by command");
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
        let read_only = self.volumes.borrow().get(name).is_some_and(|known| known.config.read_only);
        if policy == WritePolicy::WriteBack {
            self.note_policy_on_flash(placed, policy, read_only)?;
        }
        if policy.defers_writes() && !read_only {
            self.note_deferring(placed)?;
        }
        let work = async move |volume: Volume<RealSeam>| volume.set_policy(policy).await;
        self.on_volume(name, placed, "changing the policy", progress, work).await?;
        self.note_policy_on_flash(placed, policy, read_only)
    }

    /// The policy that the volume's own entry asks for.
    pub fn file_policy(&self, name: &str) -> String {
        self.volumes.borrow().get(name).map(|known| known.config.policy.to_string()).unwrap_or_default()
    }

    /// `volume pause`, `freeze` and `resume`.
    pub async fn set_mode(&self, name: &str, mode: CacheMode, progress: &ProgressSender) -> Result<Answer, Failure> {
        let _busy = self.begin(name)?;
        let placed = self.placed(name)?;
        let work = async move |volume: Volume<RealSeam>| volume.set_mode(mode).await;
        self.on_volume(name, &placed, "changing the mode", progress, work).await?;
        let noted = self.state.borrow_mut().change(|state| {
            state.set_override(placed.incarnation, MODE, &mode.to_string(), &CacheMode::Active.to_string());
        });
        noted.map_err(state_failed)?;
        log::info!(target: VOLUME, volume = name, "volume {name}: {mode} by command");
        self.show(name).await
    }

    /// `volume invalidate`.
    pub async fn invalidate(&self, name: &str, discard_dirty: bool) -> Result<Answer, Failure> {
        let _busy = self.begin(name)?;
        let placed = self.placed(name)?;
        let (progress, _) = ProgressSender::new();
        let work = async move |volume: Volume<RealSeam>| volume.start_anew(discard_dirty).await;
        let dropped = self.on_volume(name, &placed, "invalidating", &progress, work).await?;
        let what = if discard_dirty { "cached data, dirty or not," } else { "clean data" };
        let text = format!(
            "volume {name}: {} of {what} dropped from memory, and all that flash had of it",
            show_bytes(dropped)
        );
        log::info!(target: VOLUME, volume = name, "{text}");
        Ok(Answer::Said(vec![text]))
    }

    /// `volume slow`.
    pub async fn slow(&self, name: &str) -> Result<Answer, Failure> {
        let placed = self.placed(name)?;
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
        let _busy = self.begin(name)?;
        if discard_dirty && size_bytes.is_none() {
            self.accept_shrunk(name).await?;
        }
        let placed = self.placed(name)?;
        let work = async move |volume: Volume<RealSeam>| volume.resize(size_bytes, discard_dirty).await;
        let size = self.on_volume(name, &placed, "resizing", progress, work).await?;
        let noted = self.state.borrow_mut().change(|state| state.note_size(placed.incarnation, size));
        noted.map_err(state_failed)?;
        self.tell_size(name, &placed).await?;
        self.tell_guests_size(name, &placed).await?;
        log::info!(target: VOLUME, volume = name, "volume {name}: {} by command", show_bytes(size));
        self.show(name).await
    }

    /// Serves a volume that is refused because its backing shrank. Dirty data past the backing's new end may be lost.
    async fn accept_shrunk(&self, name: &str) -> Result<(), Failure> {
        let known = self.volumes.borrow().get(name).cloned();
        let Some(known) = known.filter(|known| known.refusal.as_deref() == Some(BACKING_SHRANK)) else { return Ok(()) };
        let accept = Acceptance { discard_past_end: true, ..Acceptance::default() };
        self.attach(known.config, known.from_file, accept).await?;
        log::warn!(
            target: VOLUME, volume = name,
            "volume {name}: its backing is smaller than it was; dirty data past its end was given up by command"
        );
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
