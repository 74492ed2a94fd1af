//! The alert rules, one for each kind of alert: its condition, its effect, and its remedy.
//!
//! Names and severities are in `messages/report/alert.rs`, in the same order. The table in `docs/admin/alerts.md` is
//! made from the list.

use std::collections::BTreeMap;
use std::time::Duration;

use messages::report::{AlertKind, CertificateReport, PoolReport, StatusProblem, VolumeReport};
use messages::{VolumeState, unix_time};

use super::context::{AlertContext, Problem, ReadCounts, problems_of_kind};

/// The problems found in a sample.
pub type Problems = Vec<Problem>;

/// The rule of a kind of alert.
pub struct AlertRule {
    /// The kind, with its name and severity.
    pub kind: AlertKind,
    /// Condition under which it is raised, for the documentation.
    pub when: &'static str,
    /// Its effect.
    pub effect: &'static str,
    /// Its remedy.
    pub remedy: &'static str,
    /// Time for which the condition has to last before the alert is raised.
    pub(super) delay_ms: u64,
    /// The status itself states this problem.
    pub(super) is_in_status: bool,
    /// Adds the problems that a sample has.
    pub(super) find_problems: fn(&AlertContext<'_>, &mut Problems),
}

/// Remedy for a pool that fills up.
const POOL_REMEDY: &str = "`hotset pool add NAME --tier TIER DEVICE` adds a device while volumes are in service; \
                           `fstrim` in guests and deleted volumes give space back ([pools.md](pools.md)).";
const DAY_SECONDS: u64 = 86_400;
/// Time before its end from which on a certificate has an alert.
const CERTIFICATE_WARNING_SECONDS: u64 = 14 * DAY_SECONDS;
/// Time without an answer after which a disk has an alert.
const HUNG_MS: u64 = 10_000;
/// Time without an answer after which a host has an alert.
const SILENT_MS: u64 = 60_000;

/// All rules, in the order of [`AlertKind::ALL`].
pub const RULES: [AlertRule; AlertKind::ALL.len()] = [
    AlertRule {
        kind: AlertKind::VolumeRefused,
        when: "a volume is not served: its backing cannot be opened or was replaced, or flash may have its data",
        effect: "Clients cannot use the volume.",
        remedy: "Follow the cause; `hotset volume show NAME` repeats it. A reload retries; if the cause is flash or \
                 the state directory, only a restart does.",
        delay_ms: 0,
        is_in_status: true,
        find_problems: |context, problems| {
            for volume in context.status.volumes.iter().filter(|volume| volume.state == VolumeState::Refused) {
                problems.push((Some(volume.name.clone()), StatusProblem::join(&volume.problems)));
            }
        },
    },
    AlertRule {
        kind: AlertKind::CoreSilent,
        when: "a data core has not answered for three seconds",
        effect: "Clients of its volumes may wait. The state of these volumes is unknown.",
        remedy: "Check the load of the machine. If the alert persists, restart the daemon: flushed data is safe.",
        delay_ms: 3_000,
        is_in_status: true,
        find_problems: |context, problems| {
            let answers = |core: &usize| context.status.cores.iter().any(|report| report.core == *core);
            for core in (0..context.limits.cores).filter(|core| !answers(core)) {
                problems.push((Some(format!("core {core}")), "it does not answer".to_owned()));
            }
        },
    },
    AlertRule {
        kind: AlertKind::FlashDataLost,
        when: "dirty blocks have no good copy on any flash device",
        effect: "Reads of these blocks fail until the blocks are written again. Their content is lost.",
        remedy: "`hotset volume show NAME` lists the ranges: restore them from a backup. Replace the failed devices.",
        delay_ms: 0,
        is_in_status: true,
        find_problems: |context, problems| {
            for volume in context.status.volumes.iter().filter(|volume| volume.lost_bytes > 0) {
                let cause = format!("{} KiB have no good copy on flash", volume.lost_bytes / 1024);
                problems.push((Some(volume.name.clone()), cause));
            }
            let lost_blocks = context.flash().map_or(0, |flash| flash.scrub.lost);
            if lost_blocks > 0 {
                let s = plural(lost_blocks as usize);
                let cause = format!("the scrub has found {lost_blocks} block{s} without a good copy since the start");
                problems.push((None, cause));
            }
        },
    },
    AlertRule {
        kind: AlertKind::NoCopy,
        when: "no flash device is left in service",
        effect: "Flushes that need the flash log fail. Reads of data that only flash holds fail.",
        remedy: "Reconnect a device and restart the daemon, or run `hotset stop --destage`, which destages the dirty \
                 data in memory.",
        delay_ms: 0,
        is_in_status: true,
        find_problems: |context, problems| {
            if context.flash().is_some_and(|flash| flash.copies == 0) {
                problems.push((None, "no flash device is in service".to_owned()));
            }
        },
    },
    AlertRule {
        kind: AlertKind::FlashUnused,
        when: "`[flash]` is configured but cannot be used",
        effect: "There is no flash cache; flushes wait for the backing. Volumes that may have dirty data on flash \
                 are not served.",
        remedy: "Follow the cause, then restart the daemon.",
        delay_ms: 0,
        is_in_status: true,
        find_problems: |context, problems| {
            let unused = context.status.flash.as_ref().filter(|flash| !flash.in_use);
            problems.extend(unused.map(|flash| (None, StatusProblem::join(&flash.problems))));
        },
    },
    AlertRule {
        kind: AlertKind::FlashDegraded,
        when: "a flash device is lost, stale, or unusable",
        effect: "Its clean pages are lost. Dirty data may have one copy only.",
        remedy: "Check the device's health and cables, and for a file the free space of its file system; replace it \
                 with `hotset flash replace`.",
        delay_ms: 0,
        is_in_status: true,
        find_problems: |context, problems| {
            let Some(flash) = context.flash() else { return };
            for device in flash.devices.iter().filter(|device| device.state != "in-service") {
                let reason = if device.reason.is_empty() { String::new() } else { format!(": {}", device.reason) };
                problems.push((Some(device.name()), format!("it is {}{reason}", device.state)));
            }
            if !flash.absent.is_empty() {
                problems.push((Some("[flash] devices".to_owned()), flash.absent.join("; ")));
            }
        },
    },
    AlertRule {
        kind: AlertKind::DriveFailing,
        when: "the drive of a flash device reports a critical warning, too few spare blocks, or a failed \
               self-assessment",
        effect: "The drive may fail soon or become read-only. Dirty data then has one copy only.",
        remedy: "Replace the device with `hotset flash replace` while it still works.",
        delay_ms: 0,
        is_in_status: false,
        find_problems: |context, problems| {
            for device in context.flash().into_iter().flat_map(|flash| &flash.devices) {
                if let Some(drive) = device.drive.as_ref().filter(|drive| !drive.warnings.is_empty()) {
                    problems.push((Some(device.name()), format!("{}: {}", drive.drive, drive.warnings.join("; "))));
                }
            }
        },
    },
    AlertRule {
        kind: AlertKind::BackingLost,
        when: "another client has taken the backing of a volume over, or the cluster has blocked this daemon",
        effect: "All requests to the volume fail, cached ones too. Dirty data stays in the flash log.",
        remedy: "Find out which client has the backing now. To serve the volume here again, stop that client and \
                 restart the daemon; dirty data then waits for `hotset volume adopt` if another client may have \
                 written ([rbd.md](rbd.md)).",
        delay_ms: 0,
        is_in_status: true,
        find_problems: |context, problems| {
            problems.extend(problems_of_kind(context.status.volumes.iter(), AlertKind::BackingLost));
        },
    },
    AlertRule {
        kind: AlertKind::DestageFailing,
        when: "destage of a volume fails",
        effect: "Dirty data stays in the cache, and destage is retried. Once the dirty data limit is reached, writes \
                 wait.",
        remedy: "By the error in the cause: free space on the file system or pool of the backing if none is left, \
                 else check the backing and the path to it. The retries succeed afterwards.",
        delay_ms: 0,
        is_in_status: true,
        find_problems: |context, problems| {
            problems.extend(problems_of_kind(context.status.volumes.iter(), AlertKind::DestageFailing));
        },
    },
    AlertRule {
        kind: AlertKind::BackingErrors,
        when: "requests to the backing of a volume have failed within the last five minutes, or destage still repeats \
               one of them",
        effect: "Reads that miss the cache fail. Dirty data stays in the cache, and destage is retried.",
        remedy: "Check the backing and the path to it; the logs of the daemon and of the system name the error.",
        delay_ms: 0,
        is_in_status: false,
        find_problems: |context, problems| {
            for (name, window) in
                context.error_windows().filter(|(_, window)| context.at_unix_ms < window.reported_until_ms)
            {
                let cause = format!(
                    "its backing has failed requests recently, {} since the volume came into service; repetitions of a \
                     request do not count",
                    window.errors
                );
                problems.push((Some(name.to_owned()), cause));
            }
        },
    },
    AlertRule {
        kind: AlertKind::BackingHung,
        when: "the backing of a volume has not answered a request for ten seconds, or does not answer when it is \
               opened",
        effect: "Reads that miss the cache wait, and destage stops; a volume whose backing cannot be opened is not \
                 served. Other volumes are not affected.",
        remedy: "Check the backing and the path to it for a frozen file system, an unreachable server, or a drive in \
                 reset. When the backing responds, outstanding requests complete, and a refused volume is served.",
        delay_ms: 0,
        is_in_status: false,
        find_problems: |context, problems| {
            for volume in context.served().filter(|volume| volume.backing_unanswered_ms >= HUNG_MS) {
                let duration = Duration::from_secs(volume.backing_unanswered_ms / 1000);
                let cause = format!("its backing {} has not answered a request for {duration:?}", volume.backing);
                problems.push((Some(volume.name.clone()), cause));
            }
            // The refusal has the code of the alert.
            let is_hung = |volume: &&VolumeReport| volume.refusal.as_deref() == Some(AlertKind::BackingHung.name());
            for volume in context.status.volumes.iter().filter(is_hung) {
                let cause = format!("its backing {} does not answer, so it cannot be opened", volume.backing);
                problems.push((Some(volume.name.clone()), cause));
            }
        },
    },
    AlertRule {
        kind: AlertKind::FlashHung,
        when: "a flash device has not answered a request for ten seconds, in service or not, or did not answer when \
               the daemon started",
        effect: "With another device in service, it is taken out of service after two seconds. As the last device, it \
                 is taken out of service after thirty seconds: until then flushes wait, afterwards they fail. A device \
                 that does not answer at a start counts as absent until the next start.",
        remedy: "Check the device and its cables. Replace it with `hotset flash replace`, or restart the daemon once \
                 it answers if it did not answer at the start.",
        delay_ms: 0,
        is_in_status: false,
        find_problems: |context, problems| {
            for device in context.flash().into_iter().flat_map(|flash| &flash.devices) {
                if device.unanswered_ms >= HUNG_MS {
                    let duration = Duration::from_secs(device.unanswered_ms / 1000);
                    problems.push((Some(device.name()), format!("it has not answered a request for {duration:?}")));
                }
            }
            for path in context.status.flash.iter().flat_map(|flash| &flash.hung) {
                problems.push((Some(path.clone()), "it did not answer when the daemon started".to_owned()));
            }
        },
    },
    AlertRule {
        kind: AlertKind::CertificateExpired,
        when: "a certificate of `[api]` or `[nbd]`, or an intermediate certificate of its chain, has expired",
        effect: "Clients that verify certificates refuse to connect.",
        remedy: "Replace the certificate and key files with renewed ones, then reload the configuration (`SIGHUP`). \
                 Open connections stay.",
        delay_ms: 0,
        is_in_status: false,
        find_problems: |context, problems| problems.extend(certificates(context, |ends, now| ends <= now)),
    },
    AlertRule {
        kind: AlertKind::StateDisk,
        when: "the state directory cannot be written: its disk hangs, fails, or is full",
        effect: "Volumes stay in service. Operations that need a durable record fail after at most five seconds: \
                 changes by command, adding and removing volumes, and flushes after a flash device has failed. A stop \
                 leaves volumes marked as not cleanly stopped.",
        remedy: "By the cause: free space on the disk of the directory if none is left, else check the disk. When \
                 it can be written again, no further action is needed.",
        delay_ms: 0,
        is_in_status: false,
        find_problems: |context, problems| {
            let directory = context.status.state_directory.as_deref().unwrap_or_default();
            let failed = context.status.state_failed.as_ref();
            problems.extend(failed.map(|reason| (None, format!("{directory} cannot be written: {reason}"))));
        },
    },
    AlertRule {
        kind: AlertKind::PoolFull,
        when: "a pool has less than 5 % free",
        effect: "New slices will soon be refused: writes to new ranges then fail with `ENOSPC` or SCSI 27h/07h. Reads \
                 and overwrites go on.",
        remedy: POOL_REMEDY,
        delay_ms: 0,
        is_in_status: false,
        find_problems: |context, problems| problems.extend(pools_filled(context, 2)),
    },
    AlertRule {
        kind: AlertKind::MemoryNotKept,
        when: "`[memory] keep_in` is in effect, but the file system has no room for the memory cache",
        effect: "A kill or a crash of the daemon loses unflushed writes. The next flush of each client then fails \
                 once.",
        remedy: "Free space in the directory of the cause, then restart the daemon.",
        delay_ms: 0,
        is_in_status: false,
        find_problems: |context, problems| {
            problems.extend(context.status.memory_not_kept.clone().map(|reason| (None, reason)));
        },
    },
    AlertRule {
        kind: AlertKind::UnflushedWritesLost,
        when: "a daemon was killed or crashed, and unflushed writes of a volume may be lost with it",
        effect: "The first flush or durable write of each client that may have written them fails once with an I/O \
                 error. File systems may become read-only then.",
        remedy: "Check the file systems and applications of the volume's clients after that error. The alert lasts \
                 until hotset has been stopped cleanly and started again; `hotset alerts ack` marks it as known.",
        delay_ms: 0,
        is_in_status: true,
        find_problems: |context, problems| {
            problems.extend(problems_of_kind(context.served(), AlertKind::UnflushedWritesLost));
        },
    },
    AlertRule {
        kind: AlertKind::SingleCopy,
        when: "only one flash device is in service",
        effect: "If it fails, flushed data that is not on the backings is lost. Without `allow_single_copy`, volumes \
                 run as write-through instead.",
        remedy: "Add a second device: `hotset flash add PATH`.",
        delay_ms: 0,
        is_in_status: true,
        find_problems: |context, problems| {
            if context.flash().is_some_and(|flash| flash.copies == 1 && !flash.is_log_on_image) {
                problems.push((None, "one flash device is in service".to_owned()));
            }
        },
    },
    AlertRule {
        kind: AlertKind::PolicyReduced,
        when: "a write-back volume runs as write-through because flash has no second copy",
        effect: "Its writes and flushes wait for the backing.",
        remedy: "Add or replace a flash device: the volume then returns to write-back automatically.",
        delay_ms: 3_000,
        is_in_status: true,
        find_problems: |context, problems| {
            problems.extend(problems_of_kind(context.served(), AlertKind::PolicyReduced));
        },
    },
    AlertRule {
        kind: AlertKind::DirtyTooOld,
        when: "the oldest dirty block of a volume is older than `[alerts] dirty_age`",
        effect: "The backing lags: the dirty data is in the cache only. With `[flash]`, data stays in the flash log \
                 for up to eight minutes by design.",
        remedy: "Check whether the backing is slow or fails; `hotset volume flush NAME` destages everything now.",
        delay_ms: 0,
        is_in_status: false,
        find_problems: |context, problems| {
            let limit_ms = u64::try_from(context.limits.dirty_age.as_millis()).unwrap_or(u64::MAX);
            for volume in context.served() {
                let is_active = (context.is_active)(Some(&volume.name));
                // Hysteresis: an active alert ends at nine tenths of the limit.
                let limit_ms = if is_active { limit_ms - limit_ms / 10 } else { limit_ms };
                if volume.dirty_age_ms > limit_ms {
                    let age = Duration::from_secs(volume.dirty_age_ms / 1000);
                    problems.push((Some(volume.name.clone()), format!("its oldest dirty block is {age:?} old")));
                }
            }
        },
    },
    AlertRule {
        kind: AlertKind::BackingSlow,
        when: "more than 1 % of a volume's reads in one minute, and at least three, took longer than one second",
        effect: "Reads that miss the cache are slow.",
        remedy: "`hotset volume slow NAME` shows the slowest requests and the step in which they waited; check the \
                 other load on the disks.",
        delay_ms: 0,
        is_in_status: false,
        find_problems: |context, problems| {
            for (name, window) in context.error_windows() {
                if let Some(ReadCounts { slow, all }) = window.slow_reads {
                    let cause = format!("{slow} of {all} reads of a minute took longer than a second");
                    problems.push((Some(name.to_owned()), cause));
                }
            }
        },
    },
    AlertRule {
        kind: AlertKind::DatastoreCongested,
        when: "a datastore or the flash devices have been congested for a minute: latency exceeds the threshold while \
               several volumes have outstanding requests",
        effect: "Its volumes are throttled to their shares and reservations; excess requests wait.",
        remedy: "`hotset datastore show NAME` lists the usage of each volume and the waiting requests. Limit the \
                 volume that causes the congestion, move a volume, or give important volumes more shares \
                 ([qos.md](qos.md)).",
        delay_ms: 60_000,
        is_in_status: false,
        find_problems: |context, problems| {
            for datastore in context.status.datastores.iter().filter(|datastore| datastore.congested) {
                let last = datastore.episodes.last();
                let cause = last.map_or("", |episode| episode.caused_by.as_str());
                let cause = if cause.is_empty() { String::new() } else { format!(", caused by {cause}") };
                let contenders = last.map_or(0, |episode| episode.contenders.len());
                let cause = format!("it is congested{cause}: {contenders} volume{} in contention", plural(contenders));
                problems.push((Some(datastore.name.clone()), cause));
            }
        },
    },
    AlertRule {
        kind: AlertKind::Endurance,
        when: "at its mean write rate so far, a flash device will reach its rated endurance before `[alerts] \
               endurance_until`",
        effect: "The device may wear out before that date.",
        remedy: "Lower `[flash] endurance_dwpd`, or plan the replacement of the device.",
        delay_ms: 0,
        is_in_status: false,
        find_problems: |context, problems| {
            let Some(until) = context.limits.endurance_until else { return };
            let days_required = until.saturating_sub(context.at_unix_ms / 1000) / DAY_SECONDS;
            for device in context.flash().into_iter().flat_map(|flash| &flash.devices) {
                let name = device.name();
                // Hysteresis: an active alert ends at the limit plus one twentieth.
                let limit =
                    if (context.is_active)(Some(&name)) { days_required + days_required / 20 } else { days_required };
                if let Some(days) = device.endurance_left_days.filter(|days| *days < limit) {
                    let s = plural(days as usize);
                    let cause =
                        format!("rated endurance reached in {days} day{s}; the required time is {days_required} days");
                    problems.push((Some(name), cause));
                }
            }
        },
    },
    AlertRule {
        kind: AlertKind::FlashUnclaimed,
        when: "the flash log holds dirty data of volumes that are not served",
        effect: "The data occupies log space, and the backings of these volumes are not complete without it.",
        remedy: "Serve these volumes again, or discard their data: `hotset volume adopt NAME`.",
        delay_ms: 10_000,
        is_in_status: true,
        find_problems: |context, problems| {
            if let Some(flash) = context.flash().filter(|flash| flash.unclaimed > 0) {
                problems.push((
                    None,
                    format!(
                        "the flash log holds dirty data of {} unserved volume{}",
                        flash.unclaimed,
                        plural(flash.unclaimed)
                    ),
                ));
            }
        },
    },
    AlertRule {
        kind: AlertKind::FlashUnlisted,
        when: "flash devices were added, removed or replaced by command, and `devices` in `[flash]` does not name \
               those in use",
        effect: "Without `[flash]` they cache clean pages alone: flushes wait for the backings. With it, if the \
                 state directory is lost, the next start searches the devices of the file: it may miss dirty data \
                 on those in use.",
        remedy: "Name the devices in use (`hotset flash list`) in `devices` of `[flash]`; then restart the daemon if \
                 the file had no `[flash]`, else reload the configuration.",
        delay_ms: 0,
        is_in_status: true,
        find_problems: |context, problems| {
            let listed = context.status.flash.iter().flat_map(|flash| &flash.problems);
            let unlisted = listed.filter(|problem| problem.kind == AlertKind::FlashUnlisted);
            problems.extend(unlisted.map(|problem| (None, problem.text.clone())));
        },
    },
    AlertRule {
        kind: AlertKind::PoolNearlyFull,
        when: "a pool has less than 15 % free",
        effect: "New slices go where a slot is left, also against the policy of their volume.",
        remedy: POOL_REMEDY,
        delay_ms: 0,
        is_in_status: false,
        find_problems: |context, problems| problems.extend(pools_filled(context, 1)),
    },
    AlertRule {
        kind: AlertKind::CertificateExpires,
        when: "a certificate of `[api]` or `[nbd]`, or an intermediate certificate of its chain, expires within 14 \
               days",
        effect: "After the expiry, clients that verify certificates refuse to connect.",
        remedy: "Replace the certificate and key files with renewed ones, then reload the configuration (`SIGHUP`). \
                 Open connections stay.",
        delay_ms: 0,
        is_in_status: false,
        find_problems: |context, problems| {
            problems.extend(certificates(context, |ends, now| ends > now && ends - now < CERTIFICATE_WARNING_SECONDS));
        },
    },
    AlertRule {
        kind: AlertKind::LoginRefused,
        when: "the iSCSI target refused logins of an initiator within the last minute; of at most 16 initiators at a \
               time",
        effect: "The initiator cannot use its LUNs. Sessions of other initiators are not affected.",
        remedy: "By the cause: compare user and secret of the initiator with `[iscsi] chap` and its secret file, its \
                 name with `acl`, and the target's name with `target`. Initiators retry automatically.",
        delay_ms: 0,
        is_in_status: false,
        find_problems: |context, problems| {
            let mut by_initiator: BTreeMap<&str, Vec<String>> = BTreeMap::new();
            for login in context.status.iscsi.iter().flat_map(|iscsi| &iscsi.refused_logins) {
                let count = login.count;
                let text = format!("{} ({count} login{} refused)", login.reason, plural(count as usize));
                by_initiator.entry(&login.initiator).or_default().push(text);
            }
            let causes = by_initiator.into_iter().map(|(initiator, reasons)| {
                let initiator = if initiator.is_empty() { "initiator without a name" } else { initiator };
                format!("{initiator}: {}", reasons.join("; "))
            });
            let causes: Vec<String> = causes.collect();
            // One alert for all: initiators choose their names freely, and could fill the event log.
            if !causes.is_empty() {
                problems.push((None, causes.join("; ")));
            }
        },
    },
    AlertRule {
        kind: AlertKind::FleetHostSilent,
        when: "another host of `[fleet] hosts` has not answered for a minute",
        effect: "Clients on standby cannot use the volumes that it owns, and no volume moves from it or to it. If it \
                 is off, its volumes are served elsewhere only after a take-over.",
        remedy: "Follow the cause: is the host on, its daemon running, and the network between the hosts whole? If \
                 the host is off: `hotset fleet take-over --host HOST` on another one \
                 ([fleet.md](fleet.md#take-over)).",
        delay_ms: 0,
        is_in_status: false,
        find_problems: |context, problems| {
            for peer in context.status.fleet_hosts.iter().filter(|peer| peer.silent_ms >= SILENT_MS) {
                let cause = peer.error.clone().unwrap_or_else(|| "it has not answered".to_owned());
                problems.push((Some(peer.host.clone()), cause));
            }
        },
    },
    AlertRule {
        kind: AlertKind::HistoryDisk,
        when: "the history cannot be written",
        effect: "The history has a gap if this persists. Volumes stay in service.",
        remedy: "Free space on the disk of the state directory, or make it writable. Buffered data is then written \
                 automatically.",
        delay_ms: 0,
        is_in_status: true,
        find_problems: |context, problems| {
            let failed = context.status.history.as_ref().and_then(|history| history.failed.clone());
            problems.extend(failed.map(|reason| (None, reason)));
        },
    },
    AlertRule {
        kind: AlertKind::EventsDisk,
        when: "the event log cannot be written",
        effect: "Events are still reported; a restart loses them if this persists. Volumes stay in service.",
        remedy: "Free space on the disk of the state directory, or make it writable. Buffered data is then written \
                 automatically.",
        delay_ms: 0,
        is_in_status: false,
        find_problems: |context, problems| {
            let failed = context.status.events.failed.as_ref();
            problems.extend(failed.map(|reason| (None, format!("events cannot be written: {reason}"))));
        },
    },
    AlertRule {
        kind: AlertKind::WebhookFailing,
        when: "alerts could not be delivered to `[alerts] webhook` for 30 seconds",
        effect: "The receiver gets no alerts. The newest 256 messages are kept and sent when it responds again.",
        remedy: "Check the receiver; the cause contains its answer or the error.",
        delay_ms: 30_000,
        is_in_status: false,
        find_problems: |context, problems| {
            if let Some((webhook, reason)) =
                context.status.webhook.as_ref().and_then(|hook| Some((hook, hook.failed.as_ref()?)))
            {
                problems.push((None, format!("alerts cannot be delivered to {}: {reason}", webhook.to)));
            }
        },
    },
    AlertRule {
        kind: AlertKind::MailFailing,
        when: "alerts could not be delivered by `[alerts] mail_server` for 30 seconds",
        effect: "Recipients get no mail about alerts. The newest 256 mails are kept and sent when the server accepts \
                 them.",
        remedy: "Check the mail server and the `mail_` keys of `[alerts]`; the cause contains the server's answer or \
                 the error. `hotset alerts test` repeats the attempt.",
        delay_ms: 30_000,
        is_in_status: false,
        find_problems: |context, problems| {
            if let Some((mail, reason)) =
                context.status.mail.as_ref().and_then(|mail| Some((mail, mail.failed.as_ref()?)))
            {
                problems.push((None, format!("mail cannot be delivered to {}: {reason}", mail.to)));
            }
        },
    },
    AlertRule {
        kind: AlertKind::Other,
        when: "the status states a problem of a volume or of flash that no other kind covers",
        effect: "The cause describes it.",
        remedy: "The cause contains the remedy, if there is one.",
        delay_ms: 0,
        is_in_status: false,
        find_problems: |context, problems| {
            let others = |problems: &[StatusProblem]| {
                StatusProblem::join(problems.iter().filter(|problem| problem.kind == AlertKind::Other))
            };
            let volumes = context.status.volumes.iter().map(|volume| (volume.name.clone(), others(&volume.problems)));
            let flash = context.status.flash.iter().map(|flash| ("flash".to_owned(), others(&flash.problems)));
            let causes = volumes.chain(flash).filter(|(_, cause)| !cause.is_empty());
            problems.extend(causes.map(|(subject, cause)| (Some(subject), cause)));
        },
    },
    AlertRule {
        kind: AlertKind::PoolFilling,
        when: "a pool has less than 30 % free",
        effect: "None yet.",
        remedy: POOL_REMEDY,
        delay_ms: 0,
        is_in_status: false,
        find_problems: |context, problems| problems.extend(pools_filled(context, 0)),
    },
    AlertRule {
        kind: AlertKind::CachePaused,
        when: "a volume is paused or frozen",
        effect: "A paused volume bypasses the cache. A frozen volume serves hits and caches nothing new.",
        remedy: "`hotset volume resume NAME` ends it.",
        delay_ms: 0,
        is_in_status: false,
        find_problems: |context, problems| {
            let is_paused_or_frozen = |state| matches!(state, VolumeState::Paused | VolumeState::Frozen);
            for volume in context.served().filter(|volume| is_paused_or_frozen(volume.state)) {
                problems.push((Some(volume.name.clone()), format!("it is {}", volume.state.name())));
            }
        },
    },
    AlertRule {
        kind: AlertKind::VolatileWrites,
        when: "a volume has the policy `write-back-volatile`",
        effect: "A crash loses the writes of the last `defer` interval, flushed or not.",
        remedy: "If this is not intended: `hotset volume set NAME policy=write-back`.",
        delay_ms: 0,
        is_in_status: true,
        find_problems: |context, problems| {
            problems.extend(problems_of_kind(context.served(), AlertKind::VolatileWrites));
        },
    },
    AlertRule {
        kind: AlertKind::PagesDropped,
        when: "clean pages on flash could not be verified after a start and were dropped",
        effect: "Reads go to the backing until the pages are cached again.",
        remedy: "No action is needed; the cause has the reason. The alert lasts until the next restart.",
        delay_ms: 0,
        is_in_status: true,
        find_problems: |context, problems| {
            problems.extend(context.flash().and_then(|flash| flash.pages.dropped.clone()).map(|reason| (None, reason)));
            problems.extend(problems_of_kind(context.served(), AlertKind::PagesDropped));
        },
    },
    AlertRule {
        kind: AlertKind::FleetVersionsMixed,
        when: "hosts of `[fleet] hosts` have run different versions of Hotset for an hour",
        effect: "None for data: an image has one owner, whatever the versions. Between two hosts, functions that only \
                 one of them has do not work.",
        remedy: "Upgrade the other hosts, one after the other: `hotset fleet drain` moves their volumes away before.",
        delay_ms: 3_600_000,
        is_in_status: false,
        find_problems: |context, problems| {
            let others = context.status.fleet_hosts.iter().filter(|peer| !peer.version.is_empty());
            let versions: Vec<String> = others.map(|peer| format!("host {}: {}", peer.host, peer.version)).collect();
            let own = &context.status.version;
            if context.status.fleet_hosts.iter().any(|peer| !peer.version.is_empty() && peer.version != *own) {
                problems.push((None, format!("this host: {own}; {}", versions.join("; "))));
            }
        },
    },
    AlertRule {
        kind: AlertKind::MetricsLeftOut,
        when: "the number of volumes exceeds `[api] metrics_volumes`",
        effect: "`/metrics` contains only sums by datastore. Alert rules on single volumes do not work.",
        remedy: "Raise `[api] metrics_volumes` if Prometheus can handle 72 series for each volume.",
        delay_ms: 0,
        is_in_status: false,
        find_problems: |context, problems| {
            let volumes = context.status.volumes.len();
            if let Some(limit) = context.limits.metrics_volumes.filter(|limit| volumes > *limit) {
                problems
                    .push((None, format!("{volumes} volumes exceed the limit of {limit} volumes with time series")));
            }
        },
    },
];

/// The alerts of a pool's fill, by the thresholds of [`PoolReport::FILL_THRESHOLDS_PERCENT`].
pub(super) const POOL_FILL_ALERTS: [AlertKind; PoolReport::FILL_THRESHOLDS_PERCENT.len()] =
    [AlertKind::PoolFilling, AlertKind::PoolNearlyFull, AlertKind::PoolFull];

/// The pools that have reached a threshold of their fill and not the next one. Hysteresis: an active alert ends two
/// points below its threshold.
fn pools_filled<'a>(context: &AlertContext<'a>, threshold: usize) -> impl Iterator<Item = Problem> + use<'a> {
    let from = PoolReport::FILL_THRESHOLDS_PERCENT[threshold];
    let below = PoolReport::FILL_THRESHOLDS_PERCENT.get(threshold + 1).copied().unwrap_or(101);
    let is_filled = |pool: &&PoolReport| {
        let (used_bytes, size_bytes) = pool.fill();
        let subject = pool_subject(pool);
        let from = if (context.is_active)(Some(&subject)) { from - 2 } else { from };
        let percent = (u128::from(used_bytes) * 100).checked_div(size_bytes.into()).unwrap_or(0) as u64;
        (from..below).contains(&percent)
    };
    let pools: Vec<_> = context.status.pools.iter().filter(is_filled).collect();
    pools.into_iter().map(|pool| {
        let (used_bytes, size_bytes) = pool.fill();
        let percent = (u128::from(used_bytes) * 100).checked_div(size_bytes.into()).unwrap_or(0);
        let free_mib = (size_bytes - used_bytes) >> 20;
        let full = pool.full_at_unix_seconds.map(|at| format!("; full on {} by its trend", unix_time::date(at)));
        let text = format!("{percent} % of its space is used; {free_mib} MiB are free{}", full.unwrap_or_default());
        (Some(pool_subject(pool)), text)
    })
}

/// The subject of a pool's alerts: a pool may have the name of a volume.
pub(super) fn pool_subject(pool: &PoolReport) -> String {
    format!("pool {}", pool.name)
}

/// The plural suffix for a count.
fn plural(count: usize) -> &'static str {
    if count == 1 { "" } else { "s" }
}

/// The certificates whose end passes the test `condition(end, now)`, both in seconds since 1970.
fn certificates<'a>(
    context: &AlertContext<'a>,
    condition: fn(u64, u64) -> bool,
) -> impl Iterator<Item = Problem> + use<'a> {
    let now = context.at_unix_ms / 1000;
    context.status.certificates.iter().filter_map(move |certificate| {
        let CertificateReport { table, file, ends_unix_seconds } = certificate;
        let ends = ends_unix_seconds.filter(|ends| condition(*ends, now))?;
        let verb = if ends > now { "expires" } else { "expired" };
        let cause = format!("the certificate in {file} {verb} at {}", unix_time::format(Duration::from_secs(ends)));
        Some((Some(format!("[{table}] tls_certificate")), cause))
    })
}
