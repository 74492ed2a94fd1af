//! Reports: the counters of the cores, combined with the control thread's state.

use std::collections::BTreeMap;
use std::rc::Rc;

use engine::{BlockNo, CacheMode, DatastoreStats, UnflushedLoss, VolumeStats, WritePolicy};
use messages::report::{
    AlertKind, CoreReport, DatastoreReport, LostRange, MissRatioCurve, OverrideReport, StatusProblem,
};
use messages::{Answer, Failure, StatusReport, VolumeReport, VolumeState};
use seam::{Nanos, Seam};

use super::super::cores::{CORE_TIMEOUT, CoreLocal};
use super::super::engine_reports::{add_qos, add_volume_stats, miss_ratio_curve};
use super::super::settings::absolute;
use super::super::volume_settings::qos_of;
use super::super::volumes::{KnownVolume, VolumeStatus};
use super::Daemon;
use super::pools::drain_jobs;
use config::keys::set_by_command;
use state::{FLASH_MAX, FLASH_MIN, MEMORY_MAX, MEMORY_MIN, VolumeRecord, effective, effective_policy};
use units::show_time;

/// Time for which a core collects counters before it serves requests again; enough for about twenty volumes. A report
/// takes longer by the time of the requests that are served in between.
const COUNT_SLICE: Nanos = Nanos::from_micros(100);

/// A core's counters of a volume.
struct VolumeCounters {
    stats: VolumeStats,
    policy: String,
    mode: CacheMode,
    size_bytes: u64,
    /// Blocks without a good copy on any flash device, in order.
    lost: Vec<BlockNo>,
}

/// A core's counters.
struct CoreCounters {
    report: CoreReport,
    volumes: Vec<(String, VolumeCounters)>,
    datastores: Vec<DatastoreStats>,
    /// Time of the count by the core's clock.
    now: Nanos,
}

impl Daemon {
    /// `volume show`.
    pub async fn show(&self, name: &str) -> Result<Answer, Failure> {
        let reports = self.volume_reports().await;
        let report = reports.into_iter().find(|report| report.name == name);
        let mut report = report.ok_or_else(|| Failure::no_volume(name))?;
        report.miss_ratio_curve = self.curve(name).await;
        Ok(Answer::Volume(Box::new(report)))
    }

    /// The miss-ratio curve of a volume; `None` for a refused volume, or if its core does not answer.
    pub(super) async fn curve(&self, name: &str) -> Option<MissRatioCurve> {
        let curve = self.on_core_of(name, |volume| miss_ratio_curve(&volume.curves(), volume.age().as_millis()));
        tokio::time::timeout(CORE_TIMEOUT, curve).await.ok().and_then(Result::ok)
    }

    /// `volume list`.
    pub async fn volume_reports(&self) -> Vec<VolumeReport> {
        self.reports().await.1
    }

    /// `datastore list`.
    pub async fn datastores(&self) -> Vec<DatastoreReport> {
        self.reports().await.2
    }

    /// `status`.
    pub async fn status(&self) -> StatusReport {
        let mut status = self.collect_status().await;
        self.journal.add_alerts(&mut status);
        // No alert reports an HTTP interface or a link that does not listen.
        status.problems_without_alert.extend(self.http.problem());
        status.problems_without_alert.extend(self.fleet_link.problem());
        status
    }

    /// The status now, before alerts are evaluated.
    pub async fn collect_status(&self) -> StatusReport {
        // Read before the volumes: a start that ends meanwhile may have left some out.
        let starting = !self.journal.is_serving();
        let (cores, volumes, datastores) = self.reports().await;
        // The uptime belongs to the counters, so it is taken before the rest of the report is collected.
        let uptime = self.telemetry.uptime();
        let (flash, changed_devices) = (self.flash.report(&self.volumes).await, self.flash.changed_devices().await);
        let pools = self.pool_trends.add_to(self.cores.pools(false).await);
        let mut jobs = self.jobs.running_jobs(flash.as_ref(), &volumes);
        jobs.extend(drain_jobs(&pools));
        let iscsi = self.units.report(self.listeners.portals()).await;
        let config = self.settings.current();
        let mut alerts: Vec<String> = Vec::new();
        for report in &volumes {
            alerts.extend(report.problems.iter().map(|alert| format!("{}: {alert}", report.name)));
        }
        alerts.extend(flash.iter().flat_map(|flash| flash.problems.iter().map(|alert| alert.text.clone())));
        let history = self.telemetry.history_health();
        let failed = history.as_ref().and_then(|history| history.failed.as_ref());
        alerts.extend(failed.map(|reason| format!("history cannot be written: {reason}")));
        alerts.extend(self.http.problem());
        alerts.extend(self.fleet_link.problem());
        let unresponsive = self.cores.iter().filter(|core| !cores.iter().any(|report| report.core == core.index()));
        alerts.extend(unresponsive.map(|core| format!("data core {} does not answer", core.index())));
        let state_failed = self.records.write_error();
        let mut status = StatusReport {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            uptime_seconds: uptime.as_secs(),
            uptime_ms: uptime.as_millis() as u64,
            stopping: self.stop.is_stopping(),
            starting: starting && !self.stop.is_stopping(),
            configuration: config.file.display().to_string(),
            state_directory: Some(absolute(&self.records.directory()).display().to_string()),
            state_failed,
            memory_not_kept: self.memory.unavailable_reason(),
            listen: self.listeners.addresses(),
            api: self.http.address().map_or(String::new(), |address| address.to_string()),
            memory_bytes: config.memory_bytes,
            jobs,
            pools,
            certificates: self.certificates.reports(),
            fleet_hosts: self.fleet_peers.reports(),
            ended_jobs: self.jobs.ended(),
            flash,
            iscsi,
            cores,
            datastores,
            volumes,
            overrides: self.overrides(),
            flash_devices_by_command: changed_devices
                .map(|devices| devices.iter().map(|device| device.display().to_string()).collect()),
            history,
            alerts,
            ..StatusReport::default()
        };
        self.journal.add_health(&mut status);
        status
    }

    /// Changes made by command that differ from the file.
    pub fn overrides(&self) -> Vec<OverrideReport> {
        override_reports(&self.records.view(), |name, key| self.volumes.setting(name, key))
    }

    pub(super) async fn reports(&self) -> (Vec<CoreReport>, Vec<VolumeReport>, Vec<DatastoreReport>) {
        let (mut cores, mut datastores) = (Vec::new(), Vec::new());
        let mut volume_counters = BTreeMap::new();
        for core in self.cores.iter() {
            let counters = tokio::time::timeout(
                CORE_TIMEOUT,
                core.call(async |local: Rc<CoreLocal>| collect_counters(&local).await),
            )
            .await;
            if let Ok(Ok(CoreCounters { mut report, volumes, datastores: datastore_stats, now })) = counters {
                report.core = core.index();
                cores.push(report);
                volume_counters.extend(volumes);
                datastores.extend(self.telemetry.datastore_reports(datastore_stats, now));
            }
        }
        let state = self.records.view();
        let (records, has_store) = (state.by_names(), self.flash.store().is_some());
        let reports = self.volumes.map(|known| {
            let name = known.config.name.as_str();
            let mut report = report(known, volume_counters.remove(name));
            let record = records.get(name).copied();
            report.fleet = self.fleet_report(known, record);
            report_quotas(known, record, &mut report);
            report.unit = self.units.report_of(known, record, state.host_id);
            if report.unit.as_ref().is_some_and(|unit| unit.declared_lost) {
                report.problems.push(StatusProblem::new(
                    AlertKind::Other,
                    "declared lost: initiators see its LUN as permanently lost",
                ));
            }
            add_loss_problem(record, state.generation, &mut report);
            if has_store {
                add_policy_problem(known, record, &mut report);
            }
            report
        });
        (cores, reports, datastores)
    }
}

fn report_quotas(known: &KnownVolume, record: Option<&VolumeRecord>, report: &mut VolumeReport) {
    let config = &known.config;
    report.memory.min = effective(record, MEMORY_MIN, config.memory_min).to_string();
    report.memory.max = effective(record, MEMORY_MAX, config.memory_max).to_string();
    report.flash.min = effective(record, FLASH_MIN, config.flash_min).to_string();
    report.flash.max = effective(record, FLASH_MAX, config.flash_max).to_string();
    add_qos(&mut report.qos, qos_of(record, config.qos).of_engine());
}

/// Adds an alert to a volume that runs as write-through for lack of a second copy on flash.
fn add_policy_problem(known: &KnownVolume, record: Option<&VolumeRecord>, report: &mut VolumeReport) {
    let policy = effective_policy(record, known.config.policy);
    let is_write_through = report.policy == WritePolicy::WriteThrough.to_string();
    if is_write_through && policy == WritePolicy::WriteBack {
        report.problems.push(StatusProblem::new(
            AlertKind::PolicyReduced,
            "runs as write-through: fewer than two flash devices are in service",
        ));
    }
}

/// Adds an alert to a served volume whose clients get an error at their first flush in this generation.
fn add_loss_problem(record: Option<&VolumeRecord>, generation: u64, report: &mut VolumeReport) {
    let is_lost = state::unflushed_loss(record, generation) != UnflushedLoss::None;
    if is_lost && !matches!(report.state, VolumeState::Refused | VolumeState::Standby) {
        report.problems.push(StatusProblem::new(
            AlertKind::UnflushedWritesLost,
            "unflushed writes of its last daemon may be lost: the first flush of each client that may have written \
             them fails once with an I/O error",
        ));
    }
}

/// Changes made by command, where `file_value` returns the file's value of a volume's key. A change has expired if the
/// file's value is no longer the one at the time of the command.
pub fn override_reports(
    state: &state::State,
    file_value: impl Fn(&str, &str) -> Option<String>,
) -> Vec<OverrideReport> {
    let mut reports = Vec::new();
    for record in &state.volumes {
        for (key, entry) in &record.overrides {
            let is_settable = set_by_command().any(|settable| settable == key);
            let is_expired = is_settable && file_value(&record.name, key).is_some_and(|file| file != entry.file);
            if !is_expired {
                reports.push(OverrideReport {
                    volume: record.name.clone(),
                    key: key.clone(),
                    value: entry.value.clone(),
                    file: entry.file.clone(),
                });
            }
        }
        if record.added.is_some() {
            // An entry of that name in the file was removed by command before.
            let in_file = if state.removed.contains_key(&record.name) { "present" } else { "absent" };
            reports.push(difference(&record.name, "volume", "added", in_file));
        }
    }
    let is_added = |name: &str| state.by_name(name).is_some_and(|record| record.added.is_some());
    let removed = state.removed.keys().filter(|name| !is_added(name));
    reports.extend(removed.map(|name| difference(name, "volume", "removed", "present")));
    reports
}

fn difference(volume: &str, key: &str, value: &str, file: &str) -> OverrideReport {
    OverrideReport { volume: volume.to_owned(), key: key.to_owned(), value: value.to_owned(), file: file.to_owned() }
}

/// Collects the counters in short slices, and serves requests in between.
async fn collect_counters(local: &CoreLocal) -> CoreCounters {
    let stats = local.engine.stats();
    let volumes = local.engine.volumes();
    let report = CoreReport {
        core: 0,
        volumes: volumes.len(),
        connections: local.nbd_server.stats().connections,
        pool_bytes: stats.pool_bytes,
        pool_used_bytes: stats.pool_used_bytes,
        index_bytes: stats.index_bytes,
    };
    let lost = local.engine.log().map(|log| log.lost_blocks()).unwrap_or_default();
    let mut counted = Vec::with_capacity(volumes.len());
    let mut slice_start = local.seam.now();
    for volume in &volumes {
        if local.seam.now().since(slice_start) >= COUNT_SLICE {
            local.seam.yield_now().await;
            slice_start = local.seam.now();
        }
        volume.advance_heat();
        let of_volume = lost.iter().filter(|address| address.volume_id == volume.spec().volume_id);
        let mut lost: Vec<BlockNo> = of_volume.map(|address| address.block).collect();
        lost.sort_unstable();
        let (policy, mode, size_bytes) = (volume.policy().to_string(), volume.mode(), volume.size_bytes());
        counted
            .push((volume.name().to_owned(), VolumeCounters { stats: volume.stats(), policy, mode, size_bytes, lost }));
    }
    CoreCounters { report, volumes: counted, datastores: local.engine.datastores(), now: local.seam.now() }
}

/// The report of a volume from its core's counters, `None` if the core does not answer.
fn report(known: &KnownVolume, counters: Option<VolumeCounters>) -> VolumeReport {
    let config = &known.config;
    let backing = config.backing.to_string();
    let mut report = VolumeReport::idle(&config.name, VolumeState::Refused, &config.policy.to_string(), &backing);
    report.datastore = config.datastore.clone();
    report.labels = config.labels.clone();
    report.read_only = config.read_only;
    let (placement, removing) = match &known.status {
        VolumeStatus::Serving(placement) => (placement, false),
        VolumeStatus::Removing(placement) => (placement, true),
        VolumeStatus::Standby(..) => {
            report.state = VolumeState::Standby;
            report.size_bytes = config.size_bytes.unwrap_or(0);
            return report;
        }
        VolumeStatus::Refused(failure) => {
            report.size_bytes = config.size_bytes.unwrap_or(0);
            report
                .problems
                .push(StatusProblem::new(AlertKind::VolumeRefused, format!("not served: {}", failure.message)));
            report.refusal = failure.refusal.clone();
            return report;
        }
    };
    report.volume_id = format!("{:016x}", placement.volume_id);
    report.backing_identity = placement.identity.clone();
    report.core = placement.core;
    report.size_bytes = placement.geometry.size_bytes;
    report.logical_block_bytes = placement.geometry.logical_block;
    report.physical_block_bytes = placement.geometry.physical_block;
    report.state = if removing { VolumeState::Removing } else { VolumeState::Active };
    let Some(counters) = counters else {
        report.problems.push(StatusProblem::new(AlertKind::CoreSilent, "its data core does not answer"));
        return report;
    };
    if !removing {
        report.state = match counters.mode {
            CacheMode::Active => VolumeState::Active,
            CacheMode::Paused => VolumeState::Paused,
            CacheMode::Frozen => VolumeState::Frozen,
        };
    }
    report.policy = counters.policy;
    if report.policy == engine::WritePolicy::WriteBackVolatile.to_string() {
        let age = show_time(config.defer);
        let text = format!("flushes are answered from memory: a crash may lose up to {age} of writes");
        report.problems.push(StatusProblem::new(AlertKind::VolatileWrites, text));
    }
    report.size_bytes = counters.size_bytes;
    report.flash_dirty_bytes = counters.stats.flash_dirty_bytes;
    report.lost_bytes = counters.lost.len() as u64 * seam::BLOCK_BYTES as u64;
    report.lost = lost_ranges(&counters.lost);
    add_volume_stats(&mut report, counters.stats);
    report
}

/// Maximum of lost ranges in a report.
const LOST_RANGES_MAX: usize = 100;

/// Merges adjacent blocks into ranges.
fn lost_ranges(blocks: &[BlockNo]) -> Vec<LostRange> {
    let block = seam::BLOCK_BYTES as u64;
    let runs = blocks.chunk_by(|block, next| block.next() == *next);
    let range = |run: &[BlockNo]| LostRange { at_bytes: run[0].offset(), length_bytes: run.len() as u64 * block };
    runs.take(LOST_RANGES_MAX).map(range).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lost_blocks_are_listed_as_exact_ranges() {
        let range = |at_bytes, length_bytes| LostRange { at_bytes, length_bytes };
        assert_eq!(lost_ranges(&[1, 2, 3, 7].map(BlockNo)), [range(4096, 12_288), range(28_672, 4096)]);
        assert_eq!(lost_ranges(&(0..1_000).map(|block| BlockNo(block * 2)).collect::<Vec<_>>()).len(), LOST_RANGES_MAX);
    }
}
