//! Destage of a volume's undestaged data from the log of another host, which lies on an image. A take-over begins with
//! it: nothing is served before the data is durable in the volume's image and the mark of undestaged data is gone.
//!
//! Both images are claimed first, so that the other host can write to neither. The log is only read, so the destage can
//! be interrupted at any point and repeated. It runs on a thread with memory of its own: the data cores serve other
//! volumes meanwhile.

use std::rc::Rc;

use flash::{MemberDisk, Replayed};
use messages::{ErrorKind, Failure};
use nbd_client::NbdDisk;
use rbd::{Claim, ImageSpec, Mark, Release, show_mark_id};
use seam::real::{PATH_TIMEOUT, RealCoreSpec, RealSeam, run_core};
use seam::{Disk, DiskError, Nanos, Seam};
use state::{show_uuid, show_volume_id, volume_in_copy};
use tokio::sync::oneshot;

use super::cores::{connect_image, image_options};
use super::rbd_helper::{HeldHelper, HelperPlan, RbdHelper, hold};
use logging::{self as log, VOLUME};

/// Memory for reading the log.
const POOL_BYTES: usize = 16 << 20;
/// Time for which the image with the log is waited for: another host may be reading it, or its dead client is known to
/// the cluster still.
const LOG_WAIT: Nanos = Nanos::from_secs(60);
/// Pause between two attempts.
const LOG_PAUSE: Nanos = Nanos::from_secs(1);

/// A destage that has ended.
pub struct DestagedLog {
    /// The mark of the data, which the volume's image has no more.
    pub mark: Mark,
    /// The amount of data.
    pub replayed: Replayed,
}

/// Destages the data of the volume whose image `plan` claims. `None` if the image has no mark of data in a log that can
/// be read. With `is_ordered`, the log is taken from its host even if that is alive.
pub async fn destage_foreign_log(
    plan: HelperPlan,
    volume: &str,
    is_ordered: bool,
) -> Result<Option<DestagedLog>, Failure> {
    let (sender, ended) = oneshot::channel();
    let name = volume.to_owned();
    let body =
        move || {
            let destaged = run_core(RealCoreSpec::new(POOL_BYTES), |seam| async move {
                destage(&seam, &plan, &name, is_ordered).await
            });
            // The receiver has given up if this fails.
            let (Ok(()) | Err(_)) = sender.send(destaged);
        };
    let failed = |text: String| Failure::new(ErrorKind::Failed, format!("volume {volume}: {text}"));
    let spawned = std::thread::Builder::new().name("foreign log".to_owned()).spawn(body);
    spawned.map_err(|error| failed(format!("cannot start a thread for the log of its owner: {error}")))?;
    let ended = ended.await.map_err(|_| failed("the thread for the log of its owner has ended".to_owned()))?;
    let (destaged, held) = match ended.map_err(|error| failed(error.to_string()))?.map_err(failed)? {
        Some(destaged) => destaged,
        None => return Ok(None),
    };
    // That host goes on with its log, which has the data of its other volumes, when it returns.
    let Some(held) = held else { return Ok(Some(destaged)) };
    if let Err(reason) = held.release(&Release::To(destaged.mark.host.clone())).await {
        log::warn!(
            target: VOLUME, volume = volume,
            "volume {volume}: the log of host {} was not released ({reason}); its next start waits for the end of this \
             host's client", destaged.mark.host
        );
    }
    Ok(Some(destaged))
}

/// Claims both images, destages the data, and removes the mark. The hold is on the process of the log's image.
async fn destage(
    seam: &RealSeam,
    plan: &HelperPlan,
    volume: &str,
    is_ordered: bool,
) -> Result<Option<(DestagedLog, Option<HeldHelper>)>, String> {
    let helper = match RbdHelper::start(plan, PATH_TIMEOUT).await {
        Ok(helper) => helper,
        // The data is not in a log on an image.
        Err(DiskError::Undestaged { .. }) => return Ok(None),
        Err(error) => return Err(format!("its image cannot be claimed: {error}")),
    };
    let Some(mark) = helper.log_to_read() else { return Ok(None) };
    let log_image = log_image(&plan.image, &mark).ok_or("the mark of undestaged data names no log")?;
    let backing = connect_image(seam, &plan.image, helper, image_options()).await;
    let backing = backing.map_err(|error| format!("its image does not answer: {error}"))?;
    log::info!(
        target: VOLUME, volume = volume,
        "volume {volume}: flushed data of host {} is being read from its log on {log_image}", mark.host
    );
    let remedy = |reason: String| {
        format!(
            "the log of host {}, on {log_image}, has flushed data of it that cannot be read: {reason}. Once that is \
             mended, repeat the command; or serve the volume without the data: hotset fleet take-over {volume} \
             --give-up {}",
            mark.host,
            show_mark_id(mark.id)
        )
    };
    let claim = if is_ordered { Claim::LogOf(mark.host.clone()) } else { Claim::Log };
    let log_plan =
        HelperPlan { image: log_image.clone(), claim, reads_log: false, log: None, gives_up: None, ..plan.clone() };
    let log_disk = open_log(seam, &log_plan).await.map_err(|error| remedy(error.to_string()))?;
    let replayed = replay(seam, log_disk.clone(), &backing).await.map_err(remedy)?;
    backing.mark_undestaged(false).await.map_err(|error| format!("its mark cannot be removed: {error}"))?;
    let held = hold(&log_image);
    drop(log_disk);
    Ok(Some((DestagedLog { mark, replayed }, held)))
}

/// The image with the log that a mark names, in the cluster of the volume's image.
fn log_image(volume_image: &ImageSpec, mark: &Mark) -> Option<ImageSpec> {
    let named: ImageSpec = format!("rbd:{}", mark.log.as_ref()?).parse().ok()?;
    let ImageSpec { ceph_conf, ceph_user, .. } = volume_image.clone();
    Some(ImageSpec { ceph_conf, ceph_user, ..named })
}

/// Claims and opens the image with the log.
async fn open_log(seam: &RealSeam, plan: &HelperPlan) -> Result<NbdDisk<RealSeam>, DiskError> {
    let began = seam.now();
    let helper = loop {
        match RbdHelper::start(plan, PATH_TIMEOUT).await {
            Err(DiskError::Busy(_) | DiskError::Standby { .. }) if seam.now().since(began) < LOG_WAIT => {
                seam.sleep(LOG_PAUSE).await;
            }
            started => break started?,
        }
    };
    connect_image(seam, &plan.image, helper, image_options()).await
}

/// Writes the data to the backing, after the log has proven that it belongs to it.
async fn replay(seam: &RealSeam, log_disk: NbdDisk<RealSeam>, backing: &NbdDisk<RealSeam>) -> Result<Replayed, String> {
    let disks = [MemberDisk::Image(log_disk)];
    let (_, inspection) = flash::inspect(seam, &disks).await;
    let inspection = Rc::new(inspection.map_err(|error| error.to_string())?);
    let manifest = flash::read_manifest(seam, &disks, inspection.store).await.map_err(|error| error.to_string())?;
    let manifest = manifest.ok_or("it has no copy of that host's records")?;
    let (store, identity) = (show_uuid(&inspection.store), backing.identity());
    let volume_id = volume_in_copy(&manifest.payload, &store, &identity);
    let volume_id = volume_id.ok_or_else(|| format!("its records have no data of {identity}"))?;
    let replayed = inspection.replay(volume_id, backing).await;
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
