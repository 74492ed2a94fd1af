//! A run: sessions in successive worlds on the same disks, each ended as drawn, all checked against one model per
//! volume.

use std::cell::RefCell;
use std::path::PathBuf;
use std::rc::Rc;

use engine::spec::Sabotage;
use engine::{
    AdmissionRule, Backing, Core, CoreSpec, DatastoreSpec, Threshold, VolumeId, VolumeProblem, VolumeSpec, WritePolicy,
    WriteSource,
};
use seam::sim::{
    CrashMode, DiskControl, DiskImages, LeakCheck, PersistedPool, SimBlockMut, SimDisk, SimDiskSpec, SimSeam, Stop,
    StoredContent, Timing, TraceMode, World, WorldSpec, WriteCache,
};
use seam::{BLOCK_BYTES, Disk, DiskOpen, Geometry, Nanos, SECTOR_BYTES, SECTORS_PER_BLOCK, Seam};

use super::model::{Finding, Model};
use super::options::{Options, SessionEnd, VolumeOptions};
use super::session::{Session, TestVolume, TestVolumeParts};
use super::{Report, Violation, admin, client, faults};
use crate::content::Tag;
use crate::random::Random;

const SECTOR: u64 = SECTOR_BYTES as u64;
/// Time after which a hung flash device is removed at the latest.
const FLASH_HANG_MAX: Nanos = Nanos::from_secs(3);
/// Virtual time after which a session that has not ended is stuck.
pub(super) const SESSION_TIME_MAX: Nanos = Nanos::from_secs(300);
/// Lines of a sector's history in a violation.
const HISTORY_LINES: usize = 60;
/// Lines of the volume's last operations in a violation.
const LAST_LINES: usize = 15;

/// State that survives a session.
pub(super) struct Run {
    pub(super) options: Rc<Options>,
    pub(super) sabotage: Sabotage,
    pub(super) trace: TraceMode,
    pub(super) models: Vec<Rc<RefCell<Model>>>,
    pub(super) report: Report,
}

/// Runs the options until the end or the first violated promise.
pub fn run(options: &Options, sabotage: Sabotage, trace: TraceMode) -> Result<Report, Box<Violation>> {
    let models =
        options.volumes.iter().zip(1..).map(|(volume, number)| {
            Rc::new(RefCell::new(Model::new(number, volume.size_bytes / SECTOR, volume.filled)))
        });
    let models = models.collect();
    let mut run = Run { options: Rc::new(options.clone()), sabotage, trace, models, report: Report::default() };
    let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        if let Some(deployment) = options.deployment.clone() {
            return super::deployment::run_sessions(&mut run, &deployment);
        }
        let mut disks_and_memory = None;
        for session in 0..options.sessions.len() {
            disks_and_memory = Some(run.run_session(session, disks_and_memory)?);
        }
        let hang_result = options.hang.as_ref().map_or(Ok(()), super::hang::run);
        hang_result.map_err(|message| run.violation(None, Finding { message, sector: None }))
    }));
    match outcome {
        Ok(Ok(())) => {
            run.report.seeds = 1;
            Ok(run.report)
        }
        Ok(Err(violation)) => Err(violation),
        // Promise 7: an assertion in the engine is a violation like any other.
        Err(panic) => {
            let text = panic.downcast_ref::<String>().cloned();
            let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
            let message = format!("panic: {}", text.unwrap_or_else(|| "without a message".into()));
            Err(run.violation(None, Finding { message, sector: None }))
        }
    }
}

impl Run {
    /// Runs one session on the disks of the previous one.
    fn run_session(
        &mut self,
        number: usize,
        previous: Option<(DiskImages, PersistedPool)>,
    ) -> Result<(DiskImages, PersistedPool), Box<Violation>> {
        let options = Rc::clone(&self.options);
        let mut random = Random::new(options.seed, 1_000 + number as u64);
        let world = World::new(WorldSpec {
            seed: random.draw(),
            order: options.order,
            blocks: options.pool_blocks,
            content: StoredContent::Tags,
            trace: self.trace,
            persists_memory: options.keeps_memory,
            time_max: SESSION_TIME_MAX,
        });
        let leak_check = world.leak_check();
        let memory = match previous {
            Some((images, memory)) => {
                world.adopt(images);
                memory
            }
            None => {
                add_disks(&world, &options);
                PersistedPool::default()
            }
        };
        let operations = operations_of_session(options.operations, options.sessions.len(), number);
        let started = world.run_until(start(&world, self, (number, &memory), operations));
        let session = match started {
            Ok(Ok(session)) => Rc::new(session),
            Ok(Err(message)) => return Err(self.violation(None, Finding { message, sector: None })),
            Err(stop) => return Err(self.stuck(&world, "the start", &stop)),
        };
        let end = options.sessions[number];
        let crashed = self
            .run_until_end(&world, &session, end, &mut random)
            .map_err(|violation| Box::new(Violation { trace: world.trace().text(), ..*violation }))?;
        self.add_to_report(&world, &session);
        if crashed {
            let drawn = random.pick(&CrashMode::ALL);
            // With surviving memory most crashes are kills.
            let kills = options.keeps_memory && Random::new(options.seed, 9_100 + number as u64).percent(70);
            let mode = options.crash_mode.unwrap_or(if kills { CrashMode::Kill } else { drawn });
            let memory = if mode == CrashMode::Kill { world.persisted_pool() } else { PersistedPool::default() };
            self.crash(&session, mode, memory.is_complete(), world.now());
            if !memory.is_complete() {
                self.check_unmarked(&session)?;
            }
            drop(session);
            let images = world.crash(mode);
            return self.check_freed(&leak_check).map(|()| (images, memory));
        }
        self.check_unmarked(&session)?;
        drop(session);
        // Readahead may still be in flight.
        let idle_result = world.run_for(Nanos::from_secs(10));
        idle_result.map_err(|stop| self.stuck(&world, "idling", &stop))?;
        let buffers = world.blocks_out();
        if buffers > 0 {
            let message = format!("{buffers} buffers were never freed after all volumes were detached");
            return Err(self.violation(None, Finding { message, sector: None }));
        }
        let images = world.crash(CrashMode::LoseAll);
        self.check_freed(&leak_check).map(|()| (images, PersistedPool::default()))
    }

    /// The specification of every engine of the run.
    pub(super) fn core_spec(&self) -> CoreSpec {
        let options = &self.options;
        CoreSpec {
            dirty_max_percent: options.dirty_max_percent,
            dirty_age_max: options.dirty_age_max,
            readahead_max_bytes: options.readahead_max_bytes,
            spill_percent: options.flash.as_ref().map_or(50, |flash| flash.spill_percent),
            sabotage: self.sabotage,
            admission: match &options.deployment {
                Some(deployment) if deployment.has_many_pages => AdmissionRule::ThirdTouch,
                _ => CoreSpec::default().admission,
            },
            flash_check_blocks: options.flash.as_ref().map_or(0, |flash| flash.check_blocks),
            repartition_interval: Nanos::from_millis(20),
            flash_threshold: if options.contends() { CONGESTED } else { CoreSpec::default().flash_threshold },
            ..CoreSpec::default()
        }
    }

    /// Checks that the end of a world has freed all its buffers, including those of the engine in it.
    pub(super) fn check_freed(&self, leak_check: &LeakCheck) -> Result<(), Box<Violation>> {
        let held = leak_check.buffers();
        if held == 0 {
            return Ok(());
        }
        let message = format!("the session is over, but {held} of its buffers and handles are still held");
        Err(self.violation(None, Finding { message, sector: None }))
    }

    /// Runs clients, administrators and faults until the session ends; true when it ended in a crash.
    pub(super) fn run_until_end(
        &self,
        world: &World,
        session: &Rc<Session>,
        end: SessionEnd,
        random: &mut Random,
    ) -> Result<bool, Box<Violation>> {
        if let SessionEnd::CrashAtIo(count) = end {
            world.crash_at_io(world.io_count() + count);
        }
        session.test_volumes.iter().for_each(|test_volume| faults::add_canary(session, test_volume));
        session.options.flash.iter().for_each(|flash| flash.inject_faults(world));
        spawn_tasks(session, random);
        let crash_when_spent = matches!(end, SessionEnd::CrashAtIo(_) | SessionEnd::Crash);
        let work_result = world
            .run_until(session.wait_until(|session| {
                session.is_exhausted() && (crash_when_spent || session.running_tasks.get() == 0)
            }));
        self.check_findings(world, session)?;
        match work_result {
            Ok(()) if crash_when_spent || end == SessionEnd::ClientsEnded => return Ok(true),
            Ok(()) => {}
            Err(Stop::CrashPoint) => return Ok(true),
            Err(stop) => return Err(self.stuck(world, "the work of clients", &stop)),
        }
        session.test_volumes.iter().for_each(|test_volume| faults::end_faults(session, test_volume));
        session.options.flash.iter().for_each(|flash| flash.end_hang(world));
        if let SessionEnd::CrashInStop(count) = end {
            world.crash_at_io(world.io_count() + count);
        }
        let stopped = world.run_until(stop(session));
        self.check_findings(world, session)?;
        match stopped {
            // The stop ended before the crash point; readahead may continue after it.
            Ok(()) => {
                world.crash_at_io(u64::MAX);
                Ok(false)
            }
            Err(Stop::CrashPoint) => Ok(true),
            Err(stop) => Err(self.stuck(world, "a clean stop", &stop)),
        }
    }

    /// Records the end of the session in the models. With `memory_survives` the next session recovers the memory.
    pub(super) fn crash(&self, session: &Session, mode: CrashMode, memory_survives: bool, now: Nanos) {
        for test_volume in &session.test_volumes {
            let mut model = test_volume.model.borrow_mut();
            let is_fault_free = session.options.faults.is_empty() && test_volume.always_volatile.get();
            let age = test_volume.options.defer;
            // Destage starts at the deferral time and cycles over all dirty blocks: a fill and a write of each block,
            // few at once.
            let dirty = session.options.pool_blocks as u64 * u64::from(session.options.dirty_max_percent) / 100;
            // Under contention each volume waits for the slowest one, once per additional request.
            let slowest = session
                .options
                .volumes
                .iter()
                .map(|volume| volume.latency.1)
                .max()
                .filter(|_| session.options.contends());
            let request_time = slowest.map_or(test_volume.options.latency.1.0, |slowest| slowest.0 * 3);
            let cycle_time = Nanos(dirty * 2 * request_time / 4);
            // A write that needs a mark in the write-intent log waits until a hung flash device is removed.
            let hangs = session.options.flash.as_ref().is_some_and(|flash| flash.hangs_at.is_some());
            let hang = if hangs { FLASH_HANG_MAX } else { Nanos::ZERO };
            let age_max = Nanos(age.0 * 2) + Nanos::from_millis(200) + cycle_time + hang;
            match memory_survives {
                true => model.kill(now),
                false => model.crash(is_fault_free.then_some(age_max), now),
            }
            let memory = if memory_survives { ", memory is kept" } else { "" };
            model.event(format!("crash: {mode:?}{memory}"), now);
            if let Some(sectors) = test_volume.resizing.get() {
                let true_sectors = test_volume.disk.geometry().size_bytes / SECTOR;
                assert!([sectors, model.sectors()].contains(&true_sectors), "a disk has the old size or the new");
                model.resize(true_sectors, now);
            }
        }
    }

    /// Returns the first violated promise, if any.
    fn check_findings(&self, world: &World, session: &Session) -> Result<(), Box<Violation>> {
        for test_volume in &session.test_volumes {
            // After an administrator's action the alert may be correct.
            let problems =
                if self.options.deployment.is_some() { Vec::new() } else { test_volume.volume().stats().problems };
            let is_dropped = |problem: &VolumeProblem| matches!(problem, VolumeProblem::PagesDropped(_));
            if let Some(message) = problems.into_iter().find(is_dropped).map(|problem| problem.to_string()) {
                return Err(self.violation(Some(test_volume.number), Finding { message, sector: None }));
            }
        }
        if let Some((volume, finding)) = session.finding.borrow_mut().take() {
            return Err(self.violation(Some(volume), finding));
        }
        match world.violations().first() {
            Some(message) => Err(self.violation(None, Finding { message: message.clone(), sector: None })),
            None => Ok(()),
        }
    }

    /// Checks that a backing without a mark has all flushed data: another machine may use it from now on.
    fn check_unmarked(&self, session: &Session) -> Result<(), Box<Violation>> {
        for test_volume in session.test_volumes.iter().filter(|test_volume| !test_volume.control.is_marked()) {
            let model = test_volume.model.borrow();
            let lacks = |sector: &u64| {
                let durable = |sector| Tag(test_volume.control.durable_tag(sector));
                !model.is_complete_on(*sector..sector + 1, durable)
            };
            if let Some(sector) = (0..model.sectors()).find(lacks) {
                let message = format!("sector {sector}: the backing lacks flushed data, and has no mark that says so");
                drop(model);
                return Err(self.violation(Some(test_volume.number), Finding { message, sector: Some(sector) }));
            }
        }
        Ok(())
    }

    /// Adds the counters of a session and of its world to the report.
    pub(super) fn add_to_report(&mut self, world: &World, session: &Session) {
        let trace = world.trace();
        self.report.trace_hash = self.report.trace_hash.rotate_left(1) ^ trace.hash();
        self.report.trace.extend_from_slice(trace.bytes());
        self.report.sessions += 1;
        self.report.backing_requests += world.io_count() / 2;
        self.report.virtual_time += world.now();
        self.report.recovered_from_memory += session.recovered_from_memory;
        self.report.operations += session.operations - session.operations_left.get();
        for stats in session.test_volumes.iter().map(|test_volume| test_volume.volume().stats()) {
            self.report.flash_blocks_read += stats.flash.read_bytes / seam::BLOCK_BYTES as u64;
            self.report.kept_blocks_read += stats.flash.kept_read_bytes / seam::BLOCK_BYTES as u64;
            self.report.promotions += stats.flash.promotions;
            self.report.share_waits += stats.qos.share_waits;
            self.report.limit_waits += stats.qos.limit_waits;
        }
    }

    /// The violation of a session that has not ended in time.
    pub(super) fn stuck(&self, world: &World, during: &str, reason: &Stop) -> Box<Violation> {
        let message = format!("stuck during {during} at {}: {reason}", world.now());
        self.violation(None, Finding { message, sector: None })
    }

    /// A violation with the histories of all volumes, or of `volume` alone.
    pub(super) fn violation(&self, volume: Option<u16>, finding: Finding) -> Box<Violation> {
        let models = self.models.iter().zip(1..).filter(|(_, number)| volume.is_none_or(|chosen| chosen == *number));
        let histories = models.map(|(model, number)| {
            // A panic may have left the model borrowed.
            let Ok(model) = model.try_borrow() else { return format!("volume {number}: no history\n") };
            match finding.sector {
                Some(sector) => {
                    let (history, last) = (model.history(sector, HISTORY_LINES), model.last_operations(LAST_LINES));
                    format!("sector {sector} of volume {number}:\n{history}last operations:\n{last}")
                }
                None => format!("volume {number}, last operations:\n{}", model.last_operations(HISTORY_LINES)),
            }
        });
        let history = histories.collect();
        let options = (*self.options).clone();
        Box::new(Violation {
            options,
            sabotage: self.sabotage,
            message: finding.message,
            history,
            trace: String::new(),
        })
    }
}

/// Operations of session `number`; the first session takes the remainder.
pub(super) fn operations_of_session(operations: u64, sessions: usize, number: usize) -> u64 {
    let per_session = operations / sessions as u64;
    if number == 0 { operations - per_session * (sessions as u64 - 1) } else { per_session }
}

/// Name of the disk of volume `number`, counted from 0.
pub(super) fn disk_name(number: usize) -> PathBuf {
    PathBuf::from(format!("disk{}", number + 1))
}

/// Adds the disks of the volumes and of flash to the first world.
pub(super) fn add_disks(world: &World, options: &Options) {
    options.flash.iter().for_each(|flash| flash.add_disks(world));
    for (index, volume) in options.volumes.iter().enumerate() {
        let geometry = Geometry {
            size_bytes: volume.size_bytes,
            logical_block: volume.logical_block,
            physical_block: volume.logical_block,
            stripe_bytes: 64 << 10,
            queue_depth: 8,
            fast_zero: true,
        };
        let cache = if volume.volatile_cache { WriteCache::Volatile } else { WriteCache::Through };
        let timing = Timing::between(volume.latency.0, volume.latency.1);
        let disk = world.add_disk(disk_name(index), SimDiskSpec { geometry, timing, cache });
        if volume.filled {
            fill(&disk, index as u16 + 1, volume);
        }
    }
}

/// Fills a disk with the model's initial content; the first session flushes it.
fn fill(disk: &DiskControl, number: u16, volume: &VolumeOptions) {
    let tags: Vec<u64> = (0..volume.size_bytes / SECTOR).map(|sector| Tag::new(number, 0, sector).0).collect();
    disk.set_tags(0, &tags);
}

/// A threshold that every request exceeds, so that the datastore always counts as congested.
const CONGESTED: Threshold = Threshold::Latency(Nanos::ZERO);
/// Name of the shared datastore.
const DATASTORE: &str = "shared";

/// Opens the disks and attaches the volumes with their recovered data.
async fn start(
    world: &World,
    run: &Run,
    (number, memory): (usize, &PersistedPool),
    operations: u64,
) -> Result<Session, String> {
    let options = &run.options;
    let seam = world.seam();
    let contends = options.contends();
    let spec = run.core_spec();
    let core = Core::new(seam.clone(), spec);
    if contends {
        core.set_datastore(&DatastoreSpec { threshold: CONGESTED, ..DatastoreSpec::new(DATASTORE) });
    }
    if let Some(flash) = &options.flash {
        let previous_end = number.checked_sub(1).map(|previous| options.sessions[previous]);
        flash.open(&seam, &core, number == 0, previous_end == Some(SessionEnd::CleanStop)).await?;
    }
    let recovered = memory.images_by_owner();
    let (mut attached, mut recovered_from_memory) = (Vec::new(), 0);
    for (index, (volume, model)) in options.volumes.iter().zip(&run.models).enumerate() {
        let path = disk_name(index);
        let open = DiskOpen { path: path.clone(), create_bytes: None, read_only: false, lock_wait_ms: 1_000 };
        let disk: SimDisk = seam.open_disk(&open).await.map_err(|error| format!("disk {}: {error}", index + 1))?;
        disk.flush().await.map_err(|error| format!("disk {}: {error}", index + 1))?;
        if disk.geometry().size_bytes != model.borrow().sectors() * SECTOR {
            return Err(format!("disk {} changed its size in a crash", index + 1));
        }
        let mut spec = VolumeSpec::new(&format!("volume{}", index + 1), VolumeId(index as u64 + 1));
        (spec.policy, spec.deferral_age) = (volume.policy, volume.defer);
        if contends {
            spec.datastore = DATASTORE.to_owned();
            spec.qos.shares = 100 * (index as u32 + 1);
            spec.qos.limits.iops = if index == 0 { 20_000 } else { 0 };
        }
        // The first volume has a minimum memory quota, the second a maximum.
        let half = (options.pool_blocks * BLOCK_BYTES / 2) as u64;
        match index {
            0 => spec.memory.min_bytes = half / 2,
            1 => spec.memory.max_bytes = Some(half),
            _ => {}
        }
        // The log may hold data that was written under another policy, set by an administrator.
        if core.unclaimed().contains(&spec.volume_id) {
            spec.policy = WritePolicy::WriteBack;
        }
        let backing = Backing::plain(disk.clone());
        let served = match recovered.get(&spec.volume_id.0) {
            Some(recovered) => {
                core.attach_with_memory(spec, backing, recovered, |block| BlockTags(memory.tags(block))).await
            }
            None => core.attach_recovered(spec, backing).await.map(|volume| (volume, 0)),
        };
        let (served, recovered_count) = served.map_err(|error| format!("disk {}: {error}", index + 1))?;
        recovered_from_memory += recovered_count;
        let control = world.disk(&path).expect("added to the first world");
        let parts = TestVolumeParts { number: index as u16 + 1, volume: served, disk, control };
        attached.push((parts, volume, model));
    }
    // A volume that leaves a small log needs space that other volumes may have to free first.
    let mut test_volumes = Vec::new();
    for (parts, volume, model) in attached {
        if parts.volume.policy() != volume.policy {
            parts.volume.set_policy(volume.policy).await.map_err(|error| error.to_string())?;
        }
        test_volumes.push(TestVolume::new(parts, volume.clone(), Rc::clone(model)));
    }
    let mut session = Session::new(core, test_volumes, Rc::clone(options), operations);
    session.recovered_from_memory = recovered_from_memory;
    Ok(session)
}

/// Content of a block: a tag per sector.
struct BlockTags([u64; SECTORS_PER_BLOCK]);

impl WriteSource<SimSeam> for BlockTags {
    fn fill(&mut self, _: usize, block: &mut SimBlockMut, at: usize, len: usize) {
        (at / SECTOR_BYTES..(at + len) / SECTOR_BYTES).for_each(|sector| block.set_tag(sector, self.0[sector]));
    }
}

/// Spawns the tasks of clients, administrators and fault injection.
fn spawn_tasks(session: &Rc<Session>, random: &mut Random) {
    let spawn = |task: std::pin::Pin<Box<dyn Future<Output = ()>>>| {
        session.running_tasks.set(session.running_tasks.get() + 1);
        session.seam.spawn(task);
    };
    // In some runs the volumes are read back before the clients start, in others concurrently.
    let verify_alone = random.percent(70);
    let mut random_stream = |number: u64| Random::new(random.draw(), number);
    for index in 0..session.test_volumes.len() {
        spawn(Box::pin(client::verify_first(Rc::clone(session), index, verify_alone)));
    }
    for number in 0..session.options.clients {
        spawn(Box::pin(client::run(Rc::clone(session), number + 1, random_stream(1))));
    }
    for index in 0..session.test_volumes.len() {
        if session.options.admin {
            spawn(Box::pin(admin::run(Rc::clone(session), index, random_stream(2))));
        }
        if !session.options.faults.is_empty() {
            spawn(Box::pin(faults::run(Rc::clone(session), index, random_stream(3))));
        }
    }
}

/// Drains and detaches all volumes. The backing is healthy, so both succeed eventually.
async fn stop(session: &Rc<Session>) {
    for test_volume in &session.test_volumes {
        while session.finding.borrow().is_none() && !admin::destage_all(session, test_volume).await {
            session.seam.sleep(Nanos::from_millis(200)).await;
        }
        client::verify(session, test_volume, false).await;
        admin::check_nothing_dirty(session, test_volume);
        while session.finding.borrow().is_none() && !admin::detach(session, test_volume).await {
            session.seam.sleep(Nanos::from_millis(200)).await;
        }
    }
}
