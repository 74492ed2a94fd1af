//! The list of alert kinds: how each is found, its effect, and its remedy.
//!
//! Names and severities are in `control/report/alert.rs`, in the same order. The table in `docs/admin/alerts.md` is
//! made from the list.

use std::time::Duration;

use control::report::{AlertKind, CertificateReport, Notice};
use control::{VolumeState, moment};

use super::context::{AlertContext, notices};

/// The subject, `None` for the daemon as a whole, and the cause of the alert.
pub type Cause = (Option<String>, String);
/// The causes found in a sample.
pub type Found = Vec<Cause>;

/// A kind of alert.
pub struct Kind {
    /// Its name and severity.
    pub kind: AlertKind,
    /// Condition under which it is raised, for the documentation.
    pub when: &'static str,
    /// Its effect.
    pub effect: &'static str,
    /// Its remedy.
    pub remedy: &'static str,
    /// Time for which the condition has to last before the alert is raised.
    pub(super) delay_ms: u64,
    /// The status states this problem in a notice of its own.
    pub(super) has_notice: bool,
    pub(super) find: fn(&AlertContext<'_>, &mut Found),
}

const DAY_SECONDS: u64 = 86_400;
/// Time before its end from which on a certificate has an alert.
const CERTIFICATE_SECONDS: u64 = 14 * DAY_SECONDS;
/// Time without an answer after which a disk has an alert.
const HUNG_MS: u64 = 10_000;

/// All kinds, in the order of [`AlertKind::ALL`].
pub const KINDS: [Kind; AlertKind::ALL.len()] = [
    Kind {
        kind: AlertKind::VolumeRefused,
        when: "a volume is not served: its backing cannot be opened, or is another one than before",
        effect: "Clients cannot use the volume.",
        remedy: "Do what the cause says; `hotset volume show NAME` repeats it. A reload or a restart tries again.",
        delay_ms: 0,
        has_notice: true,
        find: |context, found| {
            for volume in context.status.volumes.iter().filter(|volume| volume.state == VolumeState::Refused) {
                found.push((Some(volume.name.clone()), Notice::join(&volume.alerts)));
            }
        },
    },
    Kind {
        kind: AlertKind::CoreSilent,
        when: "a data core has not answered for three seconds",
        effect: "Clients of its volumes may wait; nothing is known of what it does.",
        remedy: "See whether the machine is overloaded; where it stays so, restart the daemon: what was flushed is \
                 safe.",
        delay_ms: 3_000,
        has_notice: true,
        find: |context, found| {
            let answers = |core: &usize| context.status.cores.iter().any(|report| report.core == *core);
            for core in (0..context.limits.cores).filter(|core| !answers(core)) {
                found.push((Some(format!("core {core}")), "it does not answer".to_owned()));
            }
        },
    },
    Kind {
        kind: AlertKind::FlashDataLost,
        when: "dirty blocks have no good copy on any flash device",
        effect: "Reading these blocks fails until they are written again; what they held is lost.",
        remedy: "`hotset volume show NAME` lists them: restore them from a backup. Replace the devices that lost them.",
        delay_ms: 0,
        has_notice: true,
        find: |context, found| {
            for volume in context.status.volumes.iter().filter(|volume| volume.lost_bytes > 0) {
                let cause = format!("{} KiB of it have no good copy on flash", volume.lost_bytes / 1024);
                found.push((Some(volume.name.clone()), cause));
            }
            let scrubbed = context.flash().map_or(0, |flash| flash.scrub.lost);
            if scrubbed > 0 {
                let cause = format!("the scrub has found {scrubbed} blocks without a good copy since the start");
                found.push((None, cause));
            }
        },
    },
    Kind {
        kind: AlertKind::NoCopy,
        when: "no flash device is left in service",
        effect: "Flushes that need the log fail, and so do reads of what lies on flash alone.",
        remedy: "Bring a device back and restart, or `hotset stop --destage`: what is in memory goes to the backings.",
        delay_ms: 0,
        has_notice: true,
        find: |context, found| {
            if context.flash().is_some_and(|flash| flash.copies == 0) {
                found.push((None, "no flash device is in service".to_owned()));
            }
        },
    },
    Kind {
        kind: AlertKind::FlashUnused,
        when: "`[flash]` is configured and cannot be used",
        effect: "There is no flash cache; a flush waits for the backing. Volumes with data there are not served.",
        remedy: "Do what the cause says, then restart.",
        delay_ms: 0,
        has_notice: true,
        find: |context, found| {
            let unused = context.status.flash.as_ref().filter(|flash| !flash.in_use);
            found.extend(unused.map(|flash| (None, Notice::join(&flash.alerts))));
        },
    },
    Kind {
        kind: AlertKind::FlashDegraded,
        when: "a flash device is lost, stale, or cannot be used",
        effect: "Its clean pages are gone, and what is dirty may lie in one copy alone.",
        remedy: "Look at the device's health and cables; put another one into its place with `hotset flash replace`.",
        delay_ms: 0,
        has_notice: true,
        find: |context, found| {
            let Some(flash) = context.flash() else { return };
            for device in flash.devices.iter().filter(|device| device.state != "in-service") {
                let reason = if device.reason.is_empty() { String::new() } else { format!(": {}", device.reason) };
                found.push((Some(device.name()), format!("it is {}{reason}", device.state)));
            }
            if !flash.absent.is_empty() {
                found.push((Some("[flash] devices".to_owned()), flash.absent.join("; ")));
            }
        },
    },
    Kind {
        kind: AlertKind::DriveFailing,
        when: "the drive under a flash device warns of its own state: a critical warning, too few spare blocks, a \
               self-assessment that fails",
        effect: "It may fail soon, or take no more writes: what is dirty is then in one copy.",
        remedy: "Put another one into its place with `hotset flash replace` while it still works.",
        delay_ms: 0,
        has_notice: false,
        find: |context, found| {
            for device in context.flash().into_iter().flat_map(|flash| &flash.devices) {
                if let Some(drive) = device.drive.as_ref().filter(|drive| !drive.warnings.is_empty()) {
                    found.push((Some(device.name()), format!("{}: {}", drive.drive, drive.warnings.join("; "))));
                }
            }
        },
    },
    Kind {
        kind: AlertKind::DestageFailing,
        when: "dirty data of a volume does not get to its backing",
        effect: "It is kept and tried again; once the cache is full of it, writers wait.",
        remedy: "Look at the backing and at the way there; the cause names its error.",
        delay_ms: 0,
        has_notice: true,
        find: |context, found| {
            found.extend(notices(context.status.volumes.iter(), AlertKind::DestageFailing));
        },
    },
    Kind {
        kind: AlertKind::BackingErrors,
        when: "the backing of a volume has failed requests within the last five minutes",
        effect: "Reads that are not cached fail; what is dirty is kept and tried again.",
        remedy: "Look at the backing and at the way there; the daemon's log and the system's name the error.",
        delay_ms: 0,
        has_notice: false,
        find: |context, found| {
            for (name, window) in
                context.error_windows().filter(|(_, window)| context.at_unix_ms < window.reported_until_ms)
            {
                let cause = format!("its backing has failed requests lately, {} since it is served", window.errors);
                found.push((Some(name.to_owned()), cause));
            }
        },
    },
    Kind {
        kind: AlertKind::BackingHung,
        when: "the backing of a volume has not answered a request for ten seconds",
        effect: "What is not cached is not read, and dirty data stays where it is; other volumes go on.",
        remedy: "Look at the backing and at the way there: a frozen file system, a server that is gone, a drive that \
                 resets. What was asked is answered when it is back.",
        delay_ms: 0,
        has_notice: false,
        find: |context, found| {
            for volume in context.served().filter(|volume| volume.backing_unanswered_ms >= HUNG_MS) {
                let since = Duration::from_secs(volume.backing_unanswered_ms / 1000);
                let cause = format!("its backing {} has not answered a request for {since:?}", volume.backing);
                found.push((Some(volume.name.clone()), cause));
            }
        },
    },
    Kind {
        kind: AlertKind::FlashHung,
        when: "a flash device has not answered a request for ten seconds, in service or not",
        effect: "Beside one that answers it is taken out of service after two seconds. Alone it is after thirty: \
                 until then flushes wait, from then on they fail.",
        remedy: "Look at the device and its cables; put another one into its place with `hotset flash replace`.",
        delay_ms: 0,
        has_notice: false,
        find: |context, found| {
            for device in context.flash().into_iter().flat_map(|flash| &flash.devices) {
                if device.unanswered_ms >= HUNG_MS {
                    let since = Duration::from_secs(device.unanswered_ms / 1000);
                    found.push((Some(device.name()), format!("it has not answered a request for {since:?}")));
                }
            }
        },
    },
    Kind {
        kind: AlertKind::CertificateExpired,
        when: "a certificate of `[api]` or `[nbd]`, or one that leads from it to its authority, is over",
        effect: "Clients that check it, as all should, refuse to connect.",
        remedy: "Put a renewed certificate and its key into their files, then have the configuration read again \
                 (`SIGHUP`); connections that are open go on.",
        delay_ms: 0,
        has_notice: false,
        find: |context, found| found.extend(certificates(context, |ends, now| ends <= now)),
    },
    Kind {
        kind: AlertKind::StateDisk,
        when: "nothing can be written to the state directory: its disk hangs, fails, or is full",
        effect: "Volumes are served as they are. What has to be noted first fails after five seconds at most: \
                 changes by command, volumes that come or go, and flushes after a flash device has failed. A stop \
                 leaves volumes marked as not cleanly stopped.",
        remedy: "Look at the disk of the directory that the cause names; when it answers again nothing else has to \
                 be done.",
        delay_ms: 0,
        has_notice: false,
        find: |context, found| {
            let directory = context.status.state_directory.as_deref().unwrap_or_default();
            let failed = context.status.state_failed.as_ref();
            found.extend(failed.map(|why| (None, format!("{directory} cannot be written: {why}"))));
        },
    },
    Kind {
        kind: AlertKind::MemoryNotKept,
        when: "memory was to outlive the daemon, and there is no room for that",
        effect: "A kill or a crash of this daemon loses what clients wrote and did not flush; the next flush of each \
                 fails once then.",
        remedy: "Make room where the cause says, then restart.",
        delay_ms: 0,
        has_notice: false,
        find: |context, found| {
            found.extend(context.status.memory_not_kept.clone().map(|why| (None, why)));
        },
    },
    Kind {
        kind: AlertKind::SingleCopy,
        when: "one flash device alone is in service",
        effect: "If it fails, what was flushed and is not on its backing is lost; without `allow_single_copy` \
                 volumes run as write-through instead.",
        remedy: "Add a second device: `hotset flash add PATH`.",
        delay_ms: 0,
        has_notice: true,
        find: |context, found| {
            if context.flash().is_some_and(|flash| flash.copies == 1) {
                found.push((None, "one flash device is in service".to_owned()));
            }
        },
    },
    Kind {
        kind: AlertKind::PolicyReduced,
        when: "a write-back volume runs as write-through for want of a second copy on flash",
        effect: "Its writes and flushes wait for the backing.",
        remedy: "Add or replace a flash device: the volume becomes write-back again by itself.",
        delay_ms: 3_000,
        has_notice: true,
        find: |context, found| {
            found.extend(notices(context.served(), AlertKind::PolicyReduced));
        },
    },
    Kind {
        kind: AlertKind::DirtyTooOld,
        when: "the oldest dirty block of a volume is older than `[alerts] dirty_age`",
        effect: "The backing is that far behind: what is dirty is in the cache alone.",
        remedy: "See whether the backing is slow or fails; `hotset volume flush NAME` brings everything there now.",
        delay_ms: 0,
        has_notice: false,
        find: |context, found| {
            let limit_ms = u64::try_from(context.limits.dirty_age.as_millis()).unwrap_or(u64::MAX);
            for volume in context.served() {
                let is_active = (context.is_active)(Some(&volume.name));
                // Hysteresis: an active alert ends at nine tenths of the limit.
                let limit_ms = if is_active { limit_ms - limit_ms / 10 } else { limit_ms };
                if volume.dirty_age_ms > limit_ms {
                    let age = Duration::from_secs(volume.dirty_age_ms / 1000);
                    found.push((Some(volume.name.clone()), format!("its oldest dirty block is {age:?} old")));
                }
            }
        },
    },
    Kind {
        kind: AlertKind::BackingSlow,
        when: "of a volume's reads in a minute more than one in a hundred, and three at least, took longer than a \
               second",
        effect: "Reads that are not cached wait.",
        remedy: "`hotset volume slow NAME` shows what the slowest requests waited for; see what else keeps the disks \
                 busy.",
        delay_ms: 0,
        has_notice: false,
        find: |context, found| {
            for (name, window) in context.error_windows() {
                if let Some((slow, all)) = window.slow {
                    let cause = format!("{slow} of {all} reads of a minute took longer than a second");
                    found.push((Some(name.to_owned()), cause));
                }
            }
        },
    },
    Kind {
        kind: AlertKind::DatastoreCongested,
        when: "a datastore, or the flash devices, have been congested for a minute: latency stays past the threshold \
               while several volumes ask for something",
        effect: "Its volumes get what their shares and reservations entitle them to, and wait for the rest.",
        remedy: "`hotset datastore show NAME` lists the share of each volume and which volumes wait: limit the \
                 volume that caused it, move a volume, or give important volumes more shares ([qos.md](qos.md)).",
        delay_ms: 60_000,
        has_notice: false,
        find: |context, found| {
            for datastore in context.status.datastores.iter().filter(|datastore| datastore.congested) {
                let last = datastore.episodes.last();
                let cause = last.map_or("", |episode| episode.caused_by.as_str());
                let cause = if cause.is_empty() { String::new() } else { format!(", caused by {cause}") };
                let others = last.map_or(0, |episode| episode.contenders.len());
                let cause = format!("it is congested{cause}: {others} volumes contend");
                found.push((Some(datastore.name.clone()), cause));
            }
        },
    },
    Kind {
        kind: AlertKind::Endurance,
        when: "at its mean pace so far, a flash device will have been written as much as it is rated for before \
               `[alerts] endurance_until`",
        effect: "The device may wear out before its time.",
        remedy: "Lower `[flash] endurance_dwpd`, or plan its replacement.",
        delay_ms: 0,
        has_notice: false,
        find: |context, found| {
            let Some(until) = context.limits.endurance_until else { return };
            let wanted = until.saturating_sub(context.at_unix_ms / 1000) / DAY_SECONDS;
            for device in context.flash().into_iter().flat_map(|flash| &flash.devices) {
                let name = device.name();
                // Hysteresis: an active alert ends at the limit plus one twentieth.
                let limit = if (context.is_active)(Some(&name)) { wanted + wanted / 20 } else { wanted };
                if let Some(days) = device.endurance_left_days.filter(|days| *days < limit) {
                    let cause = format!("it will be worn out in {days} days, and is to last for {wanted}");
                    found.push((Some(name), cause));
                }
            }
        },
    },
    Kind {
        kind: AlertKind::FlashUnclaimed,
        when: "the flash log holds dirty data of volumes that are not served",
        effect: "It takes room in the log, and their backings are not complete without it.",
        remedy: "Serve these volumes again, or give their data up: `hotset volume adopt NAME`.",
        delay_ms: 10_000,
        has_notice: true,
        find: |context, found| {
            if let Some(flash) = context.flash().filter(|flash| flash.unclaimed > 0) {
                found.push((None, format!("the flash log holds data of {} such volumes", flash.unclaimed)));
            }
        },
    },
    Kind {
        kind: AlertKind::CertificateExpires,
        when: "a certificate of `[api]` or `[nbd]`, or one that leads from it to its authority, ends within 14 days",
        effect: "From then on clients that check it, as all should, refuse to connect.",
        remedy: "Put a renewed certificate and its key into their files, then have the configuration read again \
                 (`SIGHUP`); connections that are open go on.",
        delay_ms: 0,
        has_notice: false,
        find: |context, found| {
            found.extend(certificates(context, |ends, now| ends > now && ends - now < CERTIFICATE_SECONDS));
        },
    },
    Kind {
        kind: AlertKind::HistoryDisk,
        when: "the history cannot be written",
        effect: "Figures over time will have a gap if that lasts; volumes are served all the same.",
        remedy: "Make room on the disk of the state directory, or make it writable: what waits is then written by \
                 itself.",
        delay_ms: 0,
        has_notice: true,
        find: |context, found| {
            let failed = context.status.history.as_ref().and_then(|history| history.failed.clone());
            found.extend(failed.map(|why| (None, why)));
        },
    },
    Kind {
        kind: AlertKind::EventsDisk,
        when: "the log of events cannot be written",
        effect: "Events are told, and a restart will have forgotten them if that lasts; volumes are served all the \
                 same.",
        remedy: "Make room on the disk of the state directory, or make it writable: what waits is then written by \
                 itself.",
        delay_ms: 0,
        has_notice: false,
        find: |context, found| {
            let failed = context.status.events.failed.as_ref();
            found.extend(failed.map(|why| (None, format!("events cannot be written: {why}"))));
        },
    },
    Kind {
        kind: AlertKind::WebhookFailing,
        when: "for 30 seconds no alert could be delivered to `[alerts] webhook`",
        effect: "The receiver gets no alerts; the newest 256 that wait are sent when it answers again.",
        remedy: "See whether it listens and what it answers; the cause says so.",
        delay_ms: 30_000,
        has_notice: false,
        find: |context, found| {
            if let Some((webhook, why)) =
                context.status.webhook.as_ref().and_then(|hook| Some((hook, hook.failed.as_ref()?)))
            {
                found.push((None, format!("alerts cannot be delivered to {}: {why}", webhook.to)));
            }
        },
    },
    Kind {
        kind: AlertKind::Other,
        when: "the status says something of a volume or of flash that no other kind tells",
        effect: "The cause says so.",
        remedy: "The cause says what to do, where something can be done.",
        delay_ms: 0,
        has_notice: false,
        find: |context, found| {
            let others =
                |alerts: &[Notice]| Notice::join(alerts.iter().filter(|notice| notice.kind == AlertKind::Other));
            let volumes = context.status.volumes.iter().map(|volume| (volume.name.clone(), others(&volume.alerts)));
            let flash = context.status.flash.iter().map(|flash| ("flash".to_owned(), others(&flash.alerts)));
            let all = volumes.chain(flash).filter(|(_, cause)| !cause.is_empty());
            found.extend(all.map(|(subject, cause)| (Some(subject), cause)));
        },
    },
    Kind {
        kind: AlertKind::CachePaused,
        when: "a volume is paused or frozen",
        effect: "Paused, everything is served by the backing; frozen, nothing new is cached.",
        remedy: "`hotset volume resume NAME` when it is no longer wanted.",
        delay_ms: 0,
        has_notice: false,
        find: |context, found| {
            let is_held = |state| matches!(state, VolumeState::Paused | VolumeState::Frozen);
            for volume in context.served().filter(|volume| is_held(volume.state)) {
                found.push((Some(volume.name.clone()), format!("it is {}", volume.state.name())));
            }
        },
    },
    Kind {
        kind: AlertKind::VolatileWrites,
        when: "a volume has the policy `write-back-volatile`",
        effect: "A crash loses what was written within that time, flushed or not.",
        remedy: "Where that is not wanted: `hotset volume set NAME policy=write-back`.",
        delay_ms: 0,
        has_notice: true,
        find: |context, found| {
            found.extend(notices(context.served(), AlertKind::VolatileWrites));
        },
    },
    Kind {
        kind: AlertKind::PagesDropped,
        when: "clean pages on flash could not be trusted after a start and were dropped",
        effect: "Reads go to the backing until the pages are there again.",
        remedy: "Nothing has to be done; the cause says why. It is told until the next restart.",
        delay_ms: 0,
        has_notice: true,
        find: |context, found| {
            found.extend(context.flash().and_then(|flash| flash.pages.dropped.clone()).map(|why| (None, why)));
            found.extend(notices(context.served(), AlertKind::PagesDropped));
        },
    },
    Kind {
        kind: AlertKind::MetricsLeftOut,
        when: "there are more volumes than `[api] metrics_volumes`",
        effect: "`/metrics` tells sums of datastores alone: rules about single volumes see nothing.",
        remedy: "Raise `[api] metrics_volumes`, if Prometheus can bear 64 series a volume.",
        delay_ms: 0,
        has_notice: false,
        find: |context, found| {
            let volumes = context.status.volumes.len();
            if let Some(most) = context.limits.metrics_volumes.filter(|most| volumes > *most) {
                found.push((None, format!("{volumes} volumes are served, and {most} may have metrics of their own")));
            }
        },
    },
];

/// The certificates whose end passes the test `is_so(end, now)`, both in seconds since 1970.
fn certificates<'a>(context: &AlertContext<'a>, is_so: fn(u64, u64) -> bool) -> impl Iterator<Item = Cause> + use<'a> {
    let now = context.at_unix_ms / 1000;
    context.status.certificates.iter().filter_map(move |certificate| {
        let CertificateReport { table, file, ends_unix_seconds } = certificate;
        let ends = ends_unix_seconds.filter(|ends| is_so(*ends, now))?;
        let word = if ends > now { "ends" } else { "ended" };
        let cause = format!("the certificate in {file} {word} at {}", moment::show(Duration::from_secs(ends)));
        Some((Some(format!("[{table}] tls_certificate")), cause))
    })
}
