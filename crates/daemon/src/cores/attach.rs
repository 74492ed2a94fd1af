//! Opening backings and attaching volumes on their cores.

use std::collections::BTreeMap;
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

use engine::{AttachError, Backing, CacheMode, Volume, VolumeSpec, WritePolicy};
use futures_util::future::{Either, FutureExt, join, join_all, select};
use futures_util::stream::{self, StreamExt};
use messages::{ErrorKind, Failure};
use seam::real::RealSeam;
use seam::{Disk, DiskError, Nanos, Seam};
use tokio::sync::oneshot;

use super::super::iscsi::UnitPlan;
use super::data_core::{CoreEnded, CoreLocal};
use super::hang::wait_for_hang;
use super::open::{BackingTarget, OpenFacts, OpenPlan, open_backing};
use super::{Cores, core_ended};
use logging::{self as log, VOLUME};

/// Maximum of NBD backings that a core opens concurrently. Paths need no maximum: their helper threads are bounded.
const NBD_OPENS_MAX: usize = 32;
/// Time-out for connecting an NBD backing. It is longer than the wait for its server. Calls on paths have limits of
/// their own.
const OPEN_TIMEOUT: Nanos = Nanos::from_secs(60);

/// An open backing that is not attached to a volume yet.
pub struct OpenedBacking {
    /// The core that opened it and will serve it.
    pub core: usize,
    /// Its key in the core's map of open backings.
    pub backing_key: u64,
    /// Facts about it.
    pub facts: OpenFacts,
}

/// A volume that is to be attached to its open backing.
pub struct AttachRequest {
    /// Key of its backing in the core's map of open backings.
    pub backing_key: u64,
    /// Its specification.
    pub spec: VolumeSpec,
    /// The policy that the file gives it.
    pub file_policy: WritePolicy,
    /// Its unit of the iSCSI target, if there is one.
    pub unit: Option<UnitPlan>,
    /// Writes acknowledged by daemons before this generation may be lost.
    pub lost_before: u64,
}

/// Result of an attach: true when data of the volume may be in the flash log; on an error the volume is not attached.
type AttachResult = Result<bool, Failure>;

/// Outcome of an attach within a limit.
pub enum AttachOutcome {
    /// It has ended.
    Ended(AttachResult),
    /// Its backing does not answer; the attach continues.
    Hung(LateAttach),
}

/// An attach that continues after its caller has stopped waiting. It cannot be abandoned: it may have moved the
/// volume's dirty data from the memory of an earlier daemon into this one's.
pub struct LateAttach {
    core: usize,
    outcome: oneshot::Receiver<AttachResult>,
}

impl LateAttach {
    /// Waits for the end of the attach.
    pub async fn wait_for_end(self) -> AttachResult {
        result_of(self.outcome.await.map_err(|_| CoreEnded(self.core)))
    }
}

fn result_of(outcome: Result<AttachResult, CoreEnded>) -> AttachResult {
    outcome.map_err(core_ended)?
}

/// The failure of a volume that the engine has not attached. Only the storage of the backing can refuse a mark, and the
/// attach is retried as for a backing that cannot be opened.
pub(super) fn failure_of(error: &AttachError) -> Failure {
    let kind = if matches!(error, AttachError::Mark(..)) { ErrorKind::Unavailable } else { ErrorKind::Conflict };
    Failure::new(kind, error.to_string())
}

/// A backing's key in its core's map of open backings and the facts about it, or why it could not be opened.
type OpenResult = Result<(u64, OpenFacts), DiskError>;

impl Cores {
    /// Opens backings on a core; returns the results in the order of the plans.
    pub async fn open(&self, core: usize, plans: Vec<OpenPlan>) -> Result<Vec<OpenResult>, Failure> {
        let open = async move |local: Rc<CoreLocal>| open_on_core(&local, plans).await;
        self[core].call(open).await.map_err(core_ended)
    }

    /// Attaches volumes to backings that the core has open, with their units and sockets. An attach continues if its
    /// backing leaves a request unanswered for `limit`, and its outcome is then [`AttachOutcome::Hung`].
    pub async fn attach(&self, core: usize, requests: Vec<AttachRequest>, limit: Duration) -> Vec<AttachOutcome> {
        let (count, limit) = (requests.len(), Nanos(limit.as_nanos() as u64));
        let attach = async move |local: Rc<CoreLocal>| {
            join_all(requests.into_iter().map(|request| attach_within(local.clone(), core, request, limit))).await
        };
        let attached = self[core].call(attach).await;
        attached.unwrap_or_else(|error| (0..count).map(|_| AttachOutcome::Ended(Err(core_ended(error)))).collect())
    }

    /// Closes the backing of a volume that is not attached; returns `reason`, or a failure if the core has ended.
    pub async fn close(&self, opened: &OpenedBacking, reason: Failure) -> Failure {
        let backing_key = opened.backing_key;
        let close = async move |local: Rc<CoreLocal>| {
            // An examination that hangs keeps a handle to the backing.
            local.opened.borrow_mut().remove(&backing_key).iter().for_each(|backing| backing.disk.abandon());
        };
        self[opened.core].call(close).await.map_or_else(core_ended, |()| reason)
    }
}

/// Creates the volume's vhost-user socket, where vhost-user is configured.
pub(super) async fn add_socket(local: &CoreLocal, volume: Volume<RealSeam>, lost_before: u64) {
    if let Some(vhost_user) = &local.vhost_user {
        vhost_user.add(&local.seam, volume, lost_before).await;
    }
}

/// Opens backings concurrently, so that an unresponsive backing delays no other; returns the key and the facts of each.
/// Of two volumes on the same storage the first gets it.
async fn open_on_core(local: &CoreLocal, plans: Vec<OpenPlan>) -> Vec<OpenResult> {
    let mut by_storage: BTreeMap<String, Vec<(usize, OpenPlan)>> = BTreeMap::new();
    for (index, plan) in plans.iter().cloned().enumerate() {
        by_storage.entry(plan.backing.storage_key()).or_default().push((index, plan));
    }
    let is_nbd =
        |plans: &Vec<(usize, OpenPlan)>| matches!(plans[0].1.backing, BackingTarget::Nbd(_) | BackingTarget::Rbd(_));
    let (exports, others): (Vec<_>, Vec<_>) = by_storage.into_values().partition(is_nbd);
    let exports = stream::iter(exports)
        .map(|plans| open_in_turn(local, plans))
        .buffer_unordered(NBD_OPENS_MAX)
        .collect::<Vec<_>>();
    let (exports, others) = join(exports, join_all(others.into_iter().map(|plans| open_in_turn(local, plans)))).await;
    let mut opened: Vec<_> = exports.into_iter().chain(others).flatten().collect();
    opened.sort_by_key(|(index, _)| *index);
    let mut opened: Vec<_> = opened.into_iter().map(|(_, result)| result).collect();
    resolve_shared_storage(local, &plans, &mut opened).await;
    opened
}

/// Opens plans for the same storage one after the other.
async fn open_in_turn(local: &CoreLocal, plans: Vec<(usize, OpenPlan)>) -> Vec<(usize, OpenResult)> {
    let mut opened = Vec::with_capacity(plans.len());
    for (index, plan) in plans {
        opened.push((index, open_with_timeout(local, &plan).await));
    }
    opened
}

/// Gives storage that two volumes share to the first of them. If the later volume has opened it sooner, that path is
/// closed again, so that every start decides the same way.
async fn resolve_shared_storage(local: &CoreLocal, plans: &[OpenPlan], opened: &mut [OpenResult]) {
    for first in 0..plans.len() {
        let Err(DiskError::Shared { path, other, on }) = &opened[first] else { continue };
        let is_holder = |later: &usize| matches!(&plans[*later].backing, BackingTarget::Path(path) if path == other);
        let Some(later) = (first + 1..plans.len()).find(|later| opened[*later].is_ok() && is_holder(later)) else {
            continue;
        };
        let refused = DiskError::Shared { path: other.clone(), other: path.clone(), on: on.clone() };
        if let Ok((backing_key, _)) = std::mem::replace(&mut opened[later], Err(refused)) {
            drop(local.opened.borrow_mut().remove(&backing_key));
        }
        opened[first] = open_with_timeout(local, &plans[first]).await;
    }
}

async fn open_with_timeout(local: &CoreLocal, plan: &OpenPlan) -> OpenResult {
    let has_limit = matches!(plan.backing, BackingTarget::Nbd(_) | BackingTarget::Rbd(_));
    let limit = if has_limit { OPEN_TIMEOUT } else { Nanos::MAX };
    let opening = pin!(open_backing(local, plan));
    let timeout = pin!(local.seam.sleep(limit));
    let (backing, facts) = match select(opening, timeout).await {
        Either::Left((opened, _)) => opened?,
        Either::Right(_) => {
            let text = format!("{} was not open within {limit}", plan.backing);
            return Err(DiskError::Open(text));
        }
    };
    Ok((local.add_opened(backing), facts))
}

/// Attaches a volume on a task of its own, which survives a hang of its backing.
async fn attach_within(local: Rc<CoreLocal>, core: usize, request: AttachRequest, limit: Nanos) -> AttachOutcome {
    let backing = local.opened.borrow_mut().remove(&request.backing_key);
    let Some(backing) = backing else {
        return AttachOutcome::Ended(Err(Failure::new(ErrorKind::Conflict, "the backing was closed meanwhile")));
    };
    let (disk, seam) = (backing.disk.clone(), local.seam.clone());
    let (sender, outcome) = oneshot::channel();
    seam.spawn(async move {
        // The receiver is gone once the control thread has ended.
        let _ = sender.send(attach_with_front_ends(&local, backing, request).await);
    });
    let hang = pin!(wait_for_hang(&seam, &disk, limit));
    match select(outcome, hang).await {
        Either::Left((outcome, _)) => AttachOutcome::Ended(result_of(outcome.map_err(|_| CoreEnded(core)))),
        Either::Right((_, outcome)) => AttachOutcome::Hung(LateAttach { core, outcome }),
    }
}

/// Attaches a volume, with its iSCSI unit and its vhost-user socket.
async fn attach_with_front_ends(local: &CoreLocal, backing: Backing<RealSeam>, request: AttachRequest) -> AttachResult {
    let AttachRequest { backing_key: _, spec, file_policy, unit, lost_before } = request;
    let name = spec.name.clone();
    local.retained.drop_blocks(&name);
    // Boxed, because the compiler limits the depth of nested futures.
    let attached = attach_on_core(local, backing, spec, file_policy).boxed_local().await;
    if let (Ok(_), Some(volume)) = (&attached, local.engine.find(&name)) {
        if let (Some(mut unit), Some(iscsi)) = (unit, &local.iscsi) {
            // A thick volume has its space, however full the pool is.
            let pools = local.pools.borrow();
            unit.thin_pool.take_if(|pool| !pools.get(pool).is_some_and(|open| open.is_thin(&name)));
            unit.add(iscsi.target(), volume.clone());
        }
        local.succeed(&volume);
        add_socket(local, volume, lost_before).await;
    }
    attached
}

/// Attaches a volume; on an error nothing stays attached. Returns true when data of the volume may be in the flash log
/// because the policy set by command could not be restored.
async fn attach_on_core(
    local: &CoreLocal,
    backing: Backing<RealSeam>,
    spec: VolumeSpec,
    file_policy: WritePolicy,
) -> AttachResult {
    if spec.read_only && !local.images_with_content_of(spec.volume_id).is_empty() {
        let text =
            "a killed daemon left data of it in memory that is not on its backing; serve it without read_only first";
        return Err(Failure::new(ErrorKind::Conflict, text));
    }
    let on_flash = local.engine.unclaimed().contains(&spec.volume_id);
    if on_flash && spec.read_only {
        let text = "the flash log holds data of it that is not on its backing; serve it without read_only first";
        return Err(Failure::new(ErrorKind::Conflict, text));
    }
    // A crash may have interrupted a change by command of the policy or the mode, which is repeated afterwards.
    let (policy, mode) = (spec.policy, spec.mode);
    let recovers_first = state::recovers_under_file_policy(file_policy, on_flash);
    let spec = match recovers_first {
        true => VolumeSpec { policy: file_policy, mode: CacheMode::Active, ..spec },
        false => spec,
    };
    let volume = local.attach_recovered(spec, backing).await.map_err(|error| failure_of(&error))?;
    if !recovers_first {
        return Ok(false);
    }
    // A failure here does not prevent service: the volume runs with the settings from before the command.
    let mut changed = volume.set_policy(policy).await;
    if changed.is_ok() {
        changed = volume.set_mode(mode).await;
    }
    if let Err(error) = &changed {
        log::warn!(
            target: VOLUME, volume = volume.name(),
            "volume {}: policy {policy} and mode {mode} set by command could not be restored: {error}",
            volume.name()
        );
    }
    Ok(changed.is_err())
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use config::{BackingSpec, VolumeConfig};

    use super::super::super::volumes::Volumes;
    use super::*;

    fn is_retried(error: &AttachError) -> bool {
        let volumes = Volumes::default();
        let image = "rbd:vms/web".parse().expect("it is an address");
        let config = VolumeConfig::new("web", BackingSpec::Rbd(image));
        volumes.record_attached((config, true), Err(failure_of(error)));
        !volumes.take_due(Instant::now() + Duration::from_secs(60)).is_empty()
    }

    #[test]
    fn attach_whose_mark_failed_is_retried() {
        let refused = DiskError::Open("the cluster does not answer".to_owned());
        assert!(is_retried(&AttachError::Mark("web".to_owned(), refused)));
        assert!(!is_retried(&AttachError::Exists("web".to_owned())), "only a change of the configuration helps");
    }
}
