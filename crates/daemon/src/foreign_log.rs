//! Destage of a volume's undestaged data from the log of another host, which lies on an image. A take-over begins with
//! it: nothing is served before the data is durable in the volume's image and the mark of undestaged data is gone.
//!
//! Both images are claimed first, so that the other host can write to neither. The log is only read, so the destage can
//! be interrupted at any point and repeated. It runs on a thread with memory of its own: the data cores serve other
//! volumes meanwhile.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::rc::Rc;
use std::sync::Arc;

use control::ProgressSender;
use flash::{MemberDisk, ReplayProgress, ReplayStats};
use messages::{ErrorKind, Failure};
use nbd_client::NbdDisk;
use rbd::{Claim, ImageSpec, Mark, Release, show_mark_id};
use seam::real::{PATH_TIMEOUT, RealCoreSpec, RealSeam, run_core};
use seam::{Disk, DiskError, Nanos, Seam};
use state::{show_uuid, show_volume_id, volume_in_copy};
use tokio::sync::{Mutex, OwnedMutexGuard, oneshot};

use super::cores::{connect_image, image_options};
use super::rbd_helper::{HeldHelper, HelperPlan, RbdHelper, hold};
use logging::{self as log, VOLUME};

/// Memory for reading the log.
const POOL_BYTES: usize = 16 << 20;
/// Time for which other clients of an image are waited for: the cluster takes 30 s to notice that one is dead.
const CLIENT_WAIT: Nanos = Nanos::from_secs(60);
/// Pause between two attempts.
const CLIENT_PAUSE: Nanos = Nanos::from_secs(1);

/// Gets the progress, and decides whether the destage goes on.
type Observer = dyn Fn(ReplayProgress) -> ControlFlow<()>;

/// A volume whose undestaged data is in the log of another host.
#[derive(Clone)]
pub struct ForeignData {
    /// The volume.
    pub volume: String,
    /// The helper that claims its image.
    pub plan: HelperPlan,
    /// The mark of the data in its image.
    pub mark: Mark,
    /// An administrator has ordered it: the log is taken from its host even if that is alive. Otherwise the volume is
    /// claimed only if the log can be.
    pub is_ordered: bool,
}

/// Logs that are being read. Take-overs of several volumes read the same one in turn.
#[derive(Default)]
pub struct LogTurns(RefCell<BTreeMap<String, Arc<Mutex<()>>>>);

impl LogTurns {
    /// Held while the log is read.
    fn of(&self, log_image: &ImageSpec) -> Arc<Mutex<()>> {
        let mut turns = self.0.borrow_mut();
        turns.retain(|_, turn| Arc::strong_count(turn) > 1);
        turns.entry(log_image.to_string()).or_default().clone()
    }
}

/// The log, held by this process.
struct OpenLog {
    disk: NbdDisk<RealSeam>,
    /// Kept until the log is released for its host.
    turn: OwnedMutexGuard<()>,
}

/// Destages the data from the log. Returns its amount, or `None` if there is no log to read. The destage ends early if
/// this future is dropped.
pub async fn destage_foreign_log(
    data: ForeignData,
    turns: &LogTurns,
    progress: ProgressSender,
) -> Result<Option<ReplayStats>, Failure> {
    let Some(log_image) = log_image(&data.plan.image, &data.mark) else { return Ok(None) };
    let turn = turns.of(&log_image);
    let (volume, host) = (data.volume.clone(), data.mark.host.clone());
    let failed = |text: String| Failure::new(ErrorKind::Failed, format!("volume {volume}: {text}"));
    let activity = format!("destaging {volume} from the log of host {host}");
    let (sender, ended) = oneshot::channel();
    // The thread ends early once this is dropped.
    let caller = Arc::new(());
    let waiting = Arc::downgrade(&caller);
    let observe = move |ReplayProgress { done_blocks, total_blocks }: ReplayProgress| {
        let [done_bytes, total_bytes] = [done_blocks, total_blocks].map(|blocks| blocks * seam::BLOCK_BYTES as u64);
        progress.report_copied(activity.clone(), done_bytes, total_bytes);
        if waiting.strong_count() == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    };
    let body = move || {
        let destaged = run_core(RealCoreSpec::new(POOL_BYTES), |seam| async move {
            destage(&seam, &data, (&log_image, turn), &observe).await
        });
        // The receiver has given up if this fails.
        let (Ok(()) | Err(_)) = sender.send(destaged);
    };
    let spawned = std::thread::Builder::new().name("foreign log".to_owned()).spawn(body);
    spawned.map_err(|error| failed(format!("cannot start a thread for the log of its owner: {error}")))?;
    let ended = ended.await.map_err(|_| failed("the thread for the log of its owner has ended".to_owned()))?;
    let (destaged, held) = ended.map_err(|error| failed(error.to_string()))?;
    // That host goes on with its log, which has the data of its other volumes, when it returns.
    if let Some((held, _turn)) = held
        && let Err(reason) = held.release(&Release::To(host.clone())).await
    {
        log::warn!(
            target: VOLUME, volume = volume,
            "volume {volume}: the log of host {host} was not released ({reason}); that host's next start waits for the \
             end of this one's client"
        );
    }
    destaged.map_err(failed)
}

/// Destages, and keeps a hold on the process of the log's image, if that was claimed.
async fn destage(
    seam: &RealSeam,
    data: &ForeignData,
    (log_image, turn): (&ImageSpec, Arc<Mutex<()>>),
    observe: &Observer,
) -> (Result<Option<ReplayStats>, String>, Option<(HeldHelper, OwnedMutexGuard<()>)>) {
    let mut log = None;
    let destaged = claim_and_destage(seam, data, (log_image, turn), &mut log, observe).await;
    (destaged, log.and_then(|OpenLog { turn, disk: _disk }| Some((hold(log_image)?, turn))))
}

/// Claims both images, destages the data, and removes the mark.
async fn claim_and_destage(
    seam: &RealSeam,
    ForeignData { volume, plan, mark, is_ordered }: &ForeignData,
    (log_image, turn): (&ImageSpec, Arc<Mutex<()>>),
    log: &mut Option<OpenLog>,
    observe: &Observer,
) -> Result<Option<ReplayStats>, String> {
    let remedy = |reason: String| {
        format!(
            "the log of host {}, on {log_image}, has flushed data of it that cannot be read: {reason}. Once that is \
             mended, repeat the command; or serve the volume without the data: hotset fleet take-over {volume} \
             --give-up {}",
            mark.host,
            show_mark_id(mark.id)
        )
    };
    let claim = if *is_ordered { Claim::LogOf(mark.host.clone()) } else { Claim::Log };
    let log_plan =
        HelperPlan { image: log_image.clone(), claim, reads_log: false, log: None, gives_up: None, ..plan.clone() };
    let open_log = async |turn| -> Result<OpenLog, String> {
        let helper = start_patiently(seam, &log_plan).await.map_err(|error| remedy(error.to_string()))?;
        let opened = connect_image(seam, log_image, helper, image_options()).await;
        Ok(OpenLog { disk: opened.map_err(|error| remedy(error.to_string()))?, turn })
    };
    // The volume is not claimed in vain: without an order, the log's owner may be alive.
    if !is_ordered {
        // Another attempt follows.
        let Ok(turn) = turn.clone().try_lock_owned() else { return Ok(None) };
        *log = Some(open_log(turn).await?);
    }
    let helper = match start_patiently(seam, plan).await {
        Ok(helper) => helper,
        // Nothing proves that the data is newer than the image.
        Err(DiskError::Undestaged { .. }) => return Ok(None),
        Err(error) => return Err(format!("its image cannot be claimed: {error}")),
    };
    if helper.log_to_read().is_none_or(|found| found != *mark) {
        return Err("its mark of undestaged data has changed meanwhile; repeat the command".to_owned());
    }
    let backing = connect_image(seam, &plan.image, helper, image_options()).await;
    let backing = backing.map_err(|error| format!("its image does not answer: {error}"))?;
    log::info!(
        target: VOLUME, volume = volume,
        "volume {volume}: flushed data of host {} is being destaged from its log on {log_image}", mark.host
    );
    let opened = match log {
        Some(opened) => opened,
        None => log.insert(open_log(turn.lock_owned().await).await?),
    };
    let replayed = replay(seam, opened.disk.clone(), &backing, observe).await.map_err(remedy)?;
    backing.mark_undestaged(false).await.map_err(|error| format!("its mark cannot be removed: {error}"))?;
    Ok(Some(replayed))
}

/// The image with the log that a mark names, in the cluster of the volume's image.
fn log_image(volume_image: &ImageSpec, mark: &Mark) -> Option<ImageSpec> {
    let named: ImageSpec = format!("rbd:{}", mark.log.as_ref()?).parse().ok()?;
    let ImageSpec { ceph_conf, ceph_user, .. } = volume_image.clone();
    Some(ImageSpec { ceph_conf, ceph_user, ..named })
}

/// Starts a helper. The client of a dead process, or of another host that reads the same log, is waited for.
async fn start_patiently(seam: &RealSeam, plan: &HelperPlan) -> Result<RbdHelper, DiskError> {
    let began = seam.now();
    loop {
        match RbdHelper::start(plan, PATH_TIMEOUT).await {
            Err(DiskError::Busy(_)) if seam.now().since(began) < CLIENT_WAIT => seam.sleep(CLIENT_PAUSE).await,
            Err(DiskError::Standby { .. }) if is_of_log(&plan.claim) && seam.now().since(began) < CLIENT_WAIT => {
                seam.sleep(CLIENT_PAUSE).await;
            }
            started => return started,
        }
    }
}

fn is_of_log(claim: &Claim) -> bool {
    matches!(claim, Claim::Log | Claim::LogOf(_))
}

/// Writes the data to the backing, after the log has proven that it belongs to it.
async fn replay(
    seam: &RealSeam,
    log_disk: NbdDisk<RealSeam>,
    backing: &NbdDisk<RealSeam>,
    observe: &Observer,
) -> Result<ReplayStats, String> {
    let disks = [MemberDisk::Image(log_disk)];
    let (_, inspection) = flash::inspect(seam, &disks).await;
    let inspection = Rc::new(inspection.map_err(|error| error.to_string())?);
    let manifest = flash::read_manifest(seam, &disks, inspection.store).await.map_err(|error| error.to_string())?;
    let manifest = manifest.ok_or("it has no copy of that host's records")?;
    let (store, identity) = (show_uuid(&inspection.store), backing.identity());
    let in_log = inspection.dirty_blocks.iter().map(|record| record.address.volume_id).collect();
    let volume_id = volume_in_copy(&manifest.payload, &store, &identity, &in_log);
    let unknown = || format!("its copy of that host's records does not name {identity}, or is older than its data");
    let volume_id = volume_id.ok_or_else(unknown)?;
    let replayed = inspection.replay(volume_id, backing, observe).await;
    replayed.map_err(|error| format!("{error} (data {})", show_volume_id(volume_id)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log_is_in_the_cluster_of_the_volume() {
        let image: ImageSpec = "rbd:vms/web?ceph_conf=/c&ceph_user=u".parse().expect("an image");
        let log = |place: Option<&str>| {
            let mark = Mark { id: 1, host: "alpha".to_owned(), log: place.map(str::to_owned) };
            log_image(&image, &mark).map(|image| image.to_string())
        };
        assert_eq!(log(Some("logs/ns/alpha")).as_deref(), Some("rbd:logs/ns/alpha?ceph_conf=/c&ceph_user=u"));
        assert_eq!((log(None), log(Some("no image"))), (None, None));
    }
}
