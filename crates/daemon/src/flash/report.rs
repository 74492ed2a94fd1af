//! The report of the flash log, with its alerts.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use engine::VolumeId;
use flash::{BlockAddress, JobReport, MemberNo, MemberReport, MemberStatus, MemberWrites, Role, ScrubStats};
use messages::report::{
    AlertKind, FlashDeviceReport, FlashReport, LostBlockReport, PagesReport, ScrubReport, StatusProblem,
};
use seam::Nanos;

use super::super::cores::CORE_TIMEOUT;
use super::super::cores::CoreLocal;
use super::super::volumes::Volumes;
use super::open::{OpenedStore, hung_devices};
use super::{Flash, FlashLog, ONE_COPY, ONLY_BY_COMMAND, change, wear};
use config::FlashConfig;
use units::show_counted;

/// Maximum of lost blocks that raise an alert; the report lists all of them.
const LOST_ALERTS_MAX: usize = 10;

/// The open log as its core sees it.
struct LogView {
    members: Vec<MemberReport>,
    /// Members in service that have the log.
    copies: usize,
    free_segments: usize,
    segments: usize,
    /// Volumes with dirty data in the log, and its bytes.
    holders: Vec<(String, u64)>,
    /// Names of volumes that were attached before the store was opened.
    without_flash: Vec<String>,
    /// Volumes with data in the log that are not served.
    unclaimed: BTreeSet<VolumeId>,
    pages: PagesReport,
    /// Bytes written to each member.
    written: Vec<MemberWrites>,
    /// Clean pages on each member, and those that its removal drops.
    member_pages: BTreeMap<MemberNo, (u64, u64)>,
    /// The member that takes over the log if a member is removed.
    log_successors: BTreeMap<MemberNo, MemberNo>,
    /// Bytes of client data that were written to flash.
    content_bytes: u64,
    job: Option<JobReport>,
    scrub: ScrubStats,
    /// Blocks without a good copy.
    lost: Vec<BlockAddress>,
    /// The reason why a membership generation could not be saved, if any.
    unrecorded_reason: Option<String>,
    /// Age of the oldest unanswered request, by member.
    unanswered: BTreeMap<MemberNo, Nanos>,
}

impl FlashLog {
    /// Report of the flash log, with the names of `volumes`; `None` when no log is configured.
    pub async fn report(&self, volumes: &Volumes) -> Option<FlashReport> {
        let flash = self.state.borrow().clone();
        let config = self.config()?;
        let (is_log_on_image, allow_single_copy) = (config.log_image().is_some(), config.allow_single_copy);
        let mut report = FlashReport { is_log_on_image, allow_single_copy, ..FlashReport::default() };
        let opened = match flash {
            Flash::Off => return None,
            Flash::Unused(unused) => {
                report.problems =
                    vec![StatusProblem::new(AlertKind::FlashUnused, format!("flash is not used: {}", unused.reason))];
                report.refusal = unused.refusal.map(str::to_owned);
                report.hung = unused.hung;
                return Some(report);
            }
            Flash::Open(opened) => opened,
        };
        (report.in_use, report.store) = (true, opened.store.clone());
        let view = self.core().call(async |local: Rc<CoreLocal>| log_view(&local));
        match tokio::time::timeout(CORE_TIMEOUT, view).await {
            Ok(Ok(Some(view))) => {
                let unlisted = self.unlisted_devices().await;
                self.fill_report(&mut report, view, &opened, &config, volumes, unlisted);
                self.last_report.replace(Some(report.clone()));
            }
            _ => {
                let is_same_store = |last: &FlashReport| last.store == report.store;
                report = self.last_report.borrow().clone().filter(is_same_store).unwrap_or(report);
                report.silent = true;
                report.problems.push(StatusProblem::new(AlertKind::CoreSilent, "its data core does not answer"));
            }
        }
        Some(report)
    }

    /// Adds the state of the open log to its report. `unlisted` are the devices in use that the file does not name.
    fn fill_report(
        &self,
        report: &mut FlashReport,
        view: LogView,
        opened: &OpenedStore,
        config: &FlashConfig,
        volumes: &Volumes,
        unlisted: Option<Vec<PathBuf>>,
    ) {
        report.problems.extend(without_flash_problem(view.without_flash));
        report.problems.extend(unrecorded_problem(view.unrecorded_reason.as_deref()));
        report.problems.extend(dropped_problem(&view.pages));
        let written_bytes = |member: &MemberWrites| member.promotion_bytes + member.journal_bytes + member.log_bytes;
        let written_bytes: u64 = view.written.iter().map(written_bytes).sum();
        report.write_amplification = (view.content_bytes > 0).then(|| written_bytes as f64 / view.content_bytes as f64);
        report.pages = view.pages;
        report.copies = view.copies;
        report.drive_health_error = self.drives.missing();
        (report.free_segments, report.segments) = (view.free_segments, view.segments);
        report.dirty_bytes = view.holders.iter().map(|(_, bytes)| bytes).sum();
        report.volumes = view.holders.into_iter().map(|(name, _)| name).collect();
        let mut unclaimed = view.unclaimed;
        unclaimed.retain(|volume_id| !self.records.view().is_given_up(*volume_id));
        report.unclaimed = unclaimed.len();
        report.job = view.job.map(|job| change::job_report(job, &view.members, opened));
        report.scrub = scrub_report(&view.scrub);
        report.problems.extend(scrub_problem(&view.scrub));
        report.lost = view.lost.into_iter().map(|address| lost_block(address, volumes)).collect();
        report.problems.extend(report.lost.iter().take(LOST_ALERTS_MAX).map(lost_problem));
        for member in view.members {
            let written = view.written.iter().find(|written| written.member == member.member).copied();
            let unanswered = view.unanswered.get(&member.member).copied();
            let pages = view.member_pages.get(&member.member).copied().unwrap_or_default();
            let mut device = self.device_report(member, written.unwrap_or_default(), unanswered, opened, config);
            (device.pages, device.pages_lost_if_removed) = pages;
            device.log_successor = view.log_successors.get(&MemberNo(device.number)).map(|successor| successor.0);
            report.problems.extend(device_problem(&device));
            report.devices.push(device);
        }
        report
            .problems
            .extend(opened.absent.iter().map(|absent| StatusProblem::new(AlertKind::FlashDegraded, &absent.reason)));
        report.hung = hung_devices(&opened.absent);
        report.absent = opened.absent.iter().map(|absent| absent.reason.clone()).collect();
        report.problems.extend(match self.is_by_command() {
            true => Some(StatusProblem::new(AlertKind::FlashUnlisted, ONLY_BY_COMMAND)),
            // The cluster keeps the copies of an image.
            false if report.is_log_on_image && report.copies == 1 => None,
            false => copies_problem(report.copies, report.allow_single_copy),
        });
        // The line to write would name a device that is absent, perhaps for good.
        let is_complete = opened.absent.is_empty();
        if let Some(devices) = unlisted.filter(|_| !self.is_by_command() && is_complete) {
            let listed = self.file_devices.borrow();
            report.problems.push(unlisted_problem(&self.settings.file(), &listed, &devices));
        }
        if !unclaimed.is_empty() {
            let mut names: Vec<String> = unclaimed.iter().map(|id| self.records.show_volume(*id)).collect();
            names.sort_unstable();
            let text = format!(
                "the flash log holds data of {}, not served: `hotset volume show NAME` gives the reason and choices",
                names.join(", ")
            );
            report.problems.push(StatusProblem::new(AlertKind::FlashUnclaimed, text));
        }
    }

    fn device_report(
        &self,
        member: MemberReport,
        written: MemberWrites,
        unanswered: Option<Nanos>,
        opened: &OpenedStore,
        config: &FlashConfig,
    ) -> FlashDeviceReport {
        let device = opened.path_of(&member).unwrap_or_default();
        let (state, reason) = match &member.status {
            MemberStatus::InService => (IN_SERVICE, ""),
            MemberStatus::Lost(reason) => ("lost", reason.as_str()),
            MemberStatus::Stale => ("stale", "it was removed from service earlier; its data is outdated"),
        };
        let role = match member.role {
            Role::Log => "log",
            Role::Pages => "pages",
        };
        let earlier_wear = member.device.as_ref().and_then(|device| self.wear.wear_of(device));
        let mut report = FlashDeviceReport {
            number: member.member.0,
            drive: self.drives.report_of(&device),
            device,
            size_bytes: member.size_bytes.unwrap_or(0),
            role: role.to_owned(),
            promotion_bytes: written.promotion_bytes,
            journal_bytes: written.journal_bytes,
            log_bytes: written.log_bytes,
            unanswered_ms: unanswered.map_or(0, Nanos::as_millis),
            state: state.to_owned(),
            reason: opened.reason_of(&member, reason),
            ..FlashDeviceReport::default()
        };
        wear::report(&mut report, earlier_wear.as_ref(), &written, config.endurance_milli_dwpd);
        report
    }
}

/// State of a device in service, as reports name it.
const IN_SERVICE: &str = "in-service";

/// Reads the state of the log on its core; `None` when it is closed.
fn log_view(local: &CoreLocal) -> Option<LogView> {
    let log = local.engine.log()?;
    let volumes = local.engine.volumes();
    let stats: Vec<_> = volumes.iter().map(|volume| (volume.name(), volume.stats())).collect();
    let holders = stats.iter().filter(|(_, stats)| stats.flash_dirty_bytes > 0);
    let holders = holders.map(|(name, stats)| ((*name).to_owned(), stats.flash_dirty_bytes)).collect();
    let without_flash = volumes.iter().filter(|volume| !volume.has_flash_cache());
    let content_bytes = stats.iter().map(|(_, stats)| stats.flash.promoted_bytes + stats.flash.logged_bytes).sum();
    let (pages, written) = pages_report(local);
    let (free_segments, segments) = log.room();
    let members = log.members();
    let pages_of = |member: MemberNo| {
        let pages = local.engine.pages()?;
        Some((member, (pages.pages_on(member), pages.pages_lost_without(member))))
    };
    let member_pages = members.iter().filter_map(|report| pages_of(report.member));
    let successors = members.iter().filter_map(|report| Some((report.member, log.log_successor(report.member)?)));
    Some(LogView {
        log_successors: successors.collect(),
        member_pages: member_pages.collect(),
        members,
        copies: log.copies(),
        free_segments,
        segments,
        holders,
        without_flash: without_flash.map(|volume| volume.name().to_owned()).collect(),
        unclaimed: local.engine.unclaimed(),
        pages,
        written,
        content_bytes,
        job: log.job(),
        scrub: log.scrub_stats(),
        lost: log.lost_blocks(),
        unrecorded_reason: log.unrecorded_reason(),
        unanswered: log.unanswered(),
    })
}

/// Report of the clean pages, and the bytes written to each member.
fn pages_report(local: &CoreLocal) -> (PagesReport, Vec<MemberWrites>) {
    let Some(stats) = local.engine.pages().map(|pages| pages.stats()) else {
        return (PagesReport::default(), Vec::new());
    };
    let promotion = local.engine.stats().promotion;
    let report = PagesReport {
        loaded: stats.is_loaded,
        dropped: local.engine.map_loaded().and_then(|loaded| loaded.drop_reason),
        slots: stats.slots_max,
        unmapped_slots: stats.unmapped_slots,
        pages: stats.pages,
        valid_bytes: stats.valid_blocks * seam::BLOCK_BYTES as u64,
        suspect: stats.suspect_pages,
        evictions: stats.evictions,
        dirty_regions: stats.dirty_regions,
        memory_bytes: stats.memory_bytes + promotion.history_bytes,
        endurance_left_bytes: promotion.left_bytes,
        promote_one_in: promotion.promote_one_in,
    };
    (report, stats.members)
}

fn scrub_report(scrub: &ScrubStats) -> ScrubReport {
    ScrubReport {
        rounds: scrub.rounds,
        read_bytes: scrub.read_bytes,
        found: scrub.damaged_blocks,
        repaired: scrub.repaired_copies,
        lost: scrub.lost_blocks,
    }
}

/// Report of a lost block, with its volume's name.
fn lost_block(address: BlockAddress, volumes: &Volumes) -> LostBlockReport {
    LostBlockReport {
        volume: volumes.name_of(address.volume_id).unwrap_or_default(),
        volume_id: format!("{:016x}", address.volume_id),
        at_bytes: address.block.offset(),
    }
}

/// The problem of volumes that use flash only after their next attach.
fn without_flash_problem(mut names: Vec<String>) -> Option<StatusProblem> {
    if names.is_empty() {
        return None;
    }
    names.sort_unstable();
    let count = show_counted(names.len() as u64, "volume");
    let text = format!(
        "{count} could not be attached again when the first flash device was added (clients over iSCSI, vhost-user or \
         TLS, or another change), and will use flash after a restart of the daemon: {}",
        names.join(", ")
    );
    Some(StatusProblem::new(AlertKind::Other, text))
}

/// The problem of devices that commands have changed, while `file` lists others.
fn unlisted_problem(file: &Path, listed: &[PathBuf], devices: &[PathBuf]) -> StatusProblem {
    let show = |devices: &[PathBuf], quote: &str| {
        let devices = devices.iter().map(|device| format!("{quote}{}{quote}", device.display()));
        devices.collect::<Vec<_>>().join(", ")
    };
    let listed = if listed.is_empty() { "no devices".to_owned() } else { show(listed, "") };
    let text = format!(
        "{} names {listed} in [flash], and the devices in use are {}, by command: set devices = [{}] there and reload \
         the configuration; until then, if the state directory is lost, the next start searches the devices of the \
         file, and may miss dirty data on those in use",
        file.display(),
        show(devices, ""),
        show(devices, "\""),
    );
    StatusProblem::new(AlertKind::FlashUnlisted, text)
}

fn unrecorded_problem(reason: Option<&str>) -> Option<StatusProblem> {
    let text = format!(
        "flushes fail: a flash device is out of service, and the state directory could not record this ({}); make the \
         state directory writable",
        reason?
    );
    Some(StatusProblem::new(AlertKind::Other, text))
}

fn dropped_problem(pages: &PagesReport) -> Option<StatusProblem> {
    let text = format!("the clean pages from before the start were dropped: {}", pages.dropped.as_ref()?);
    Some(StatusProblem::new(AlertKind::PagesDropped, text))
}

fn scrub_problem(scrub: &ScrubStats) -> Option<StatusProblem> {
    let text = format!(
        "the scrub found {} without a good copy on flash; reads of such a block fail until it is overwritten",
        show_counted(scrub.lost_blocks, "block")
    );
    (scrub.lost_blocks > 0).then(|| StatusProblem::new(AlertKind::FlashDataLost, text))
}

fn lost_problem(lost: &LostBlockReport) -> StatusProblem {
    let text = format!(
        "volume {} ({}): no flash device has a good copy of the 4 KiB at byte {}; reads fail until they are written \
         again",
        lost.volume, lost.volume_id, lost.at_bytes
    );
    StatusProblem::new(AlertKind::FlashDataLost, text)
}

fn device_problem(device: &FlashDeviceReport) -> Option<StatusProblem> {
    let FlashDeviceReport { device: path, number, state, reason, .. } = device;
    let name = if path.is_empty() { format!("number {number}") } else { path.clone() };
    let text = format!("flash device {name} is {state}: {reason}");
    (state != IN_SERVICE).then(|| StatusProblem::new(AlertKind::FlashDegraded, text))
}

fn copies_problem(copies: usize, allow_single_copy: bool) -> Option<StatusProblem> {
    let (kind, text) = match (copies, allow_single_copy) {
        (0, _) => (AlertKind::NoCopy, "no flash device is left in service: flushes that need the log fail"),
        (1, true) => (
            AlertKind::SingleCopy,
            "flushes are acknowledged with a single copy: the next device failure loses flushed data",
        ),
        (1, false) => (AlertKind::SingleCopy, ONE_COPY),
        _ => return None,
    };
    Some(StatusProblem::new(kind, text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_that_lists_other_devices_is_named_with_the_line_to_write() {
        let paths = |paths: &[&str]| paths.iter().map(PathBuf::from).collect::<Vec<_>>();
        let file = Path::new("/etc/hotset.toml");
        let problem = unlisted_problem(file, &paths(&["/f0", "/f1"]), &paths(&["/f1", "/f2"]));
        assert_eq!(
            problem.text,
            "/etc/hotset.toml names /f0, /f1 in [flash], and the devices in use are /f1, /f2, by command: set devices \
             = [\"/f1\", \"/f2\"] there and reload the configuration; until then, if the state directory is lost, the \
             next start searches the devices of the file, and may miss dirty data on those in use"
        );
        let problem = unlisted_problem(file, &[], &paths(&["/f1"]));
        assert!(problem.text.starts_with("/etc/hotset.toml names no devices in [flash]"), "{}", problem.text);
    }
}
