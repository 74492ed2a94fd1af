//! An administrator acts between the sessions of a run: devices, state directories and backings are replaced, restored
//! from copies or lost. At each start the daemon's own rules (`crates/state`) decide which volumes may be served.
//!
//! The harness knows which data each action may lose. A refusal is always permitted, except when the administrator
//! has not acted. A served volume must fulfil every promise. A backing that was restored from an older copy while the
//! volume had no data to destage defines the volume's content.

mod actions;
mod start;

use std::collections::BTreeSet;
use std::fmt;
use std::rc::Rc;

use engine::VolumeId;
use seam::sim::{CrashMode, DiskImages, StoredContent, World, WorldSpec};
use seam::{Nanos, SECTOR_BYTES, Seam};
use state::State;

use self::actions::Plan;
use super::Violation;
use super::history::OpKind;
use super::model::Finding;
use super::options::{FaultKind, Options, SessionEnd, pool_blocks_min};
use super::run::{Run, SESSION_TIME_MAX, add_disks, disk_name, operations_of_session};
use super::session::Session;
use crate::content::Tag;
use crate::random::Random;

/// Minimum size of a volume in a run with many pages on flash: several times the memory.
const PAGED_BYTES_MIN: u64 = 3 << 20;
/// Number of snapshots kept for copies.
const SNAPSHOTS_MAX: usize = 3;

/// Drawn options of a deployment.
#[derive(Clone, Debug)]
pub struct DeploymentOptions {
    /// Probability of an action between two sessions, in percent.
    pub action_percent: u32,
    /// True when a backing's identity is stored in the storage itself; otherwise it is derived from its path.
    pub has_stored_identity: bool,
    /// True when clean pages are compared with the backing at a start. Otherwise stale pages are kept out only by
    /// refusing the flash store or dropping its pages, so no backing is restored or replaced in such a run.
    pub checks_pages: bool,
    /// True for a small memory and an early admission to flash, so that many pages are on flash.
    pub has_many_pages: bool,
    /// True when backings are moved to other disks, whose identities are new.
    pub moves_backings: bool,
    /// A rule of the daemon that is violated deliberately.
    pub sabotage: state::Sabotage,
}

impl DeploymentOptions {
    /// Draws all options.
    pub fn draw(seed: u64) -> DeploymentOptions {
        let mut random = Random::new(seed, 9_200);
        DeploymentOptions {
            action_percent: random.pick(&[0, 50, 80, 100]),
            has_stored_identity: random.percent(50),
            checks_pages: random.percent(50),
            has_many_pages: random.percent(50),
            // A stream of its own, which leaves the other options of a seed as they were without moved backings.
            moves_backings: Random::new(seed, 9_203).percent(50),
            sabotage: state::Sabotage::None,
        }
    }

    /// Segment size: large enough for a page, or for records only.
    fn segment_bytes(&self) -> u64 {
        if self.has_many_pages { 256 << 10 } else { 64 << 10 }
    }

    /// Applies this deployment to the options of a run: always with flash, and without injected faults.
    pub fn apply(self, options: Options) -> Options {
        let mut random = Random::new(options.seed, 9_201);
        let flash = super::flash::FlashOptions {
            check_blocks: if self.checks_pages { 1_200 } else { 0 },
            ..super::flash::FlashOptions::plain(2, self.segment_bytes(), random.between(16, 60))
        };
        let sessions = random.between(3, 6);
        let end = |random: &mut Random| match random.below(10) {
            0..2 => SessionEnd::CrashAtIo(random.between(1, 1500)),
            2..4 => SessionEnd::Crash,
            // A stop by the service manager leaves dirty data on flash.
            4..8 => SessionEnd::LeaveInLog,
            _ => SessionEnd::CleanStop,
        };
        let mut options = options;
        if self.has_many_pages {
            options.length_max = options.length_max.min(16 << 10);
            options.pool_blocks = pool_blocks_min(u64::from(options.clients), options.length_max) as usize;
            options.operations *= 2;
            for volume in &mut options.volumes {
                volume.size_bytes = volume.size_bytes.max(PAGED_BYTES_MIN);
                volume.region_percent = 100;
            }
        }
        let sessions: Vec<SessionEnd> = (0..sessions)
            .map(|session| if session + 1 == sessions { SessionEnd::CleanStop } else { end(&mut random) })
            .collect();
        Options {
            sessions,
            faults: Vec::<FaultKind>::new(),
            admin: false,
            resizes: false,
            keeps_memory: false,
            flash: Some(flash),
            deployment: Some(self),
            ..options
        }
    }
}

impl fmt::Display for DeploymentOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let identity = if self.has_stored_identity { "stored" } else { "from paths" };
        write!(
            f,
            "administrator actions between {} % of the sessions, backing identities {identity}",
            self.action_percent
        )?;
        if self.has_many_pages {
            write!(f, ", many pages on flash")?;
        }
        if self.moves_backings {
            write!(f, ", backings move to other disks")?;
        }
        if !self.checks_pages {
            write!(f, ", pages are not compared with the backing")?;
        }
        if self.sabotage != state::Sabotage::None {
            write!(f, ", sabotage {:?}", self.sabotage)?;
        }
        Ok(())
    }
}

/// Copy of the disks and of the state directory at the end of a session.
struct Snapshot {
    images: DiskImages,
    state: State,
    backings: Vec<BackingState>,
}

/// State of a volume's backing after the administrator's actions.
#[derive(Clone, Debug)]
struct BackingState {
    /// Identity that the disk reports.
    identity: String,
    /// True if the content was changed since the daemon last served the volume.
    is_changed: bool,
    /// True if the backing was shrunk since the volume was last served.
    is_shrunk: bool,
    /// End of the sectors whose content was in the flash log alone when the volume was last served.
    unwritten_end: u64,
    /// True while a loss of unflushed writes may not have been reported to clients.
    is_loss_unreported: bool,
    /// True if the last session that served the volume ended in a stop, not in a crash.
    was_stopped: bool,
}

/// State of the administrator's deployment between two starts.
struct Deployment {
    options: DeploymentOptions,
    random: Random,
    /// Draws the moves of backings.
    move_random: Random,
    state: State,
    snapshots: Vec<Snapshot>,
    /// Snapshot from before an action that is undone after one session.
    undo: Option<Snapshot>,
    backings: Vec<BackingState>,
    /// Indexes of the volumes that were attached in the present session.
    served: BTreeSet<usize>,
    /// True once an action may justify a refusal.
    has_acted: bool,
    /// True once the store was absent or stale: it can no longer reveal that the records are old.
    may_miss_old_state: bool,
    /// Number of identities drawn so far.
    identities_drawn: u64,
    /// True when the run must end, because its content can no longer be compared with client writes.
    is_over: bool,
}

/// A volume served in the present session.
struct AttachedVolume {
    volume_id: VolumeId,
    /// [`VolumeSpec::drops_pages`](engine::VolumeSpec::drops_pages).
    drops_pages: bool,
}

/// Runs sessions in succession on the same disks and records.
pub(super) fn run_sessions(run: &mut Run, options: &DeploymentOptions) -> Result<(), Box<Violation>> {
    let (random, move_random) = (Random::new(run.options.seed, 9_202), Random::new(run.options.seed, 9_204));
    let (snapshots, undo) = (Vec::new(), None);
    let state = State { sabotage: options.sabotage, ..State::default() };
    let backing = |index: usize| BackingState {
        identity: format!("disk{}", index + 1),
        is_changed: false,
        is_shrunk: false,
        unwritten_end: 0,
        is_loss_unreported: false,
        was_stopped: true,
    };
    let backings = (0..run.options.volumes.len()).map(backing).collect();
    let options = options.clone();
    let mut deployment = Deployment {
        options,
        random,
        move_random,
        state,
        snapshots,
        undo,
        backings,
        served: BTreeSet::new(),
        has_acted: false,
        may_miss_old_state: false,
        identities_drawn: 0,
        is_over: false,
    };
    let mut images = None;
    for number in 0..run.options.sessions.len() {
        if deployment.is_over {
            break;
        }
        images = Some(deployment.run_session(run, number, images)?);
    }
    Ok(())
}

impl Deployment {
    /// Draws an identity of a volume, a daemon or a state directory.
    fn draw_identity(&mut self) -> u64 {
        self.identities_drawn += 1;
        self.random.draw() | 1
    }

    fn run_session(
        &mut self,
        run: &mut Run,
        number: usize,
        previous: Option<DiskImages>,
    ) -> Result<DiskImages, Box<Violation>> {
        let options = Rc::clone(&run.options);
        let mut random = Random::new(options.seed, 1_000 + number as u64);
        let (plan, images) = match previous {
            Some(mut images) => (self.act_between_sessions(run, number, &mut images), Some(images)),
            None => (Plan::default(), None),
        };
        let world = World::new(WorldSpec {
            seed: random.draw(),
            order: options.order,
            blocks: options.pool_blocks,
            content: StoredContent::Tags,
            trace: run.trace,
            persists_memory: false,
            time_max: SESSION_TIME_MAX,
        });
        let leak_check = world.leak_check();
        match images {
            Some(images) => world.adopt(images),
            None => {
                add_disks(&world, &options);
                options.flash.iter().for_each(|flash| flash.add_named(&world, &actions::OTHER_DEVICES));
            }
        }
        let operations = operations_of_session(options.operations, options.sessions.len(), number);
        let started = world.run_until(start::start_daemon(self, run, &world, &plan, operations));
        let (session, attached) = match started {
            Ok(Ok((session, attached))) => (Rc::new(session), attached),
            Ok(Err(message)) => return Err(run.violation(None, Finding { message, sector: None })),
            Err(stop) => return Err(run.stuck(&world, "the start", &stop)),
        };
        let end = options.sessions[number];
        let mode = match session.test_volumes.is_empty() {
            true => CrashMode::LoseAll,
            false => {
                // Writes of clients in this session would be lost with an undo.
                self.undo = None;
                self.run_until_end(run, &world, &session, &attached, end, &mut random)?
            }
        };
        self.check_refused_backings_unchanged(run, &world)?;
        run.add_to_report(&world, &session);
        let served: Vec<usize> =
            session.test_volumes.iter().map(|test_volume| usize::from(test_volume.number) - 1).collect();
        drop(session);
        let images = world.crash(mode);
        run.check_freed(&leak_check)?;
        served.into_iter().for_each(|index| self.record_unwritten_end(run, index, &images));
        let backings = self.backings.clone();
        self.snapshots.push(Snapshot { images: images.clone(), state: self.state.clone(), backings });
        if self.snapshots.len() > SNAPSHOTS_MAX {
            self.snapshots.remove(0);
        }
        Ok(images)
    }

    /// Records for every served volume whether the session ended in a stop.
    fn record_end(&mut self, session: &Session, was_stopped: bool) {
        for test_volume in &session.test_volumes {
            self.backings[usize::from(test_volume.number) - 1].was_stopped = was_stopped;
        }
    }

    /// Records the end of the sectors whose newest content the backing lacks.
    fn record_unwritten_end(&mut self, run: &Run, index: usize, images: &DiskImages) {
        let model = run.models[index].borrow();
        let backing = actions::content(images, index, model.sectors() * SECTOR_BYTES as u64);
        let is_unwritten = |sector: &u64| !model.is_complete_on(*sector..*sector + 1, |at| Tag(backing[at as usize]));
        self.backings[index].unwritten_end = (0..model.sectors()).rev().find(is_unwritten).map_or(0, |last| last + 1);
    }

    /// Runs clients until the session ends as drawn, and records what the daemon would have recorded by then.
    fn run_until_end(
        &mut self,
        run: &mut Run,
        world: &World,
        session: &Rc<Session>,
        attached: &[AttachedVolume],
        end: SessionEnd,
        random: &mut Random,
    ) -> Result<CrashMode, Box<Violation>> {
        let engine_end = if end == SessionEnd::LeaveInLog { SessionEnd::ClientsEnded } else { end };
        let crashed = run
            .run_until_end(world, session, engine_end, random)
            .map_err(|violation| Box::new(Violation { trace: world.trace().text(), ..*violation }))?;
        self.record_dropped_pages(session, attached);
        if crashed && end != SessionEnd::LeaveInLog {
            for test_volume in &session.test_volumes {
                let defers = test_volume.volume().policy().defers_writes();
                let is_lost = defers && test_volume.model.borrow().has_unflushed();
                self.backings[usize::from(test_volume.number) - 1].is_loss_unreported |= is_lost;
            }
            self.record_end(session, false);
            let mode = random.pick(&CrashMode::ALL);
            run.crash(session, mode, false, world.now());
            return Ok(mode);
        }
        self.record_end(session, true);
        session
            .test_volumes
            .iter()
            .for_each(|test_volume| self.backings[usize::from(test_volume.number) - 1].is_loss_unreported = false);
        let ended = world.run_until(self.stop_cleanly(session, attached, end == SessionEnd::LeaveInLog));
        match ended {
            Ok(Ok(())) => Ok(CrashMode::LoseAll),
            Ok(Err(message)) => Err(run.violation(None, Finding { message, sector: None })),
            Err(stop) => Err(run.stuck(world, "the clean stop", &stop)),
        }
    }

    /// Records which volumes have dropped their pages, as the daemon does. The daemon polls once a second, so a crash
    /// may come first; therefore only 70 % of the drops are recorded.
    fn record_dropped_pages(&mut self, session: &Session, attached: &[AttachedVolume]) {
        let Some(store) = session.core.log().map(|log| state::show_uuid(&log.uuid())) else { return };
        for (test_volume, attached) in session.test_volumes.iter().zip(attached) {
            if attached.drops_pages && test_volume.volume().stats().flash.is_checked && self.random.percent(70) {
                self.state.record_pages_dropped(attached.volume_id, &store);
            }
        }
    }

    async fn stop_cleanly(
        &mut self,
        session: &Rc<Session>,
        attached: &[AttachedVolume],
        leaves_in_log: bool,
    ) -> Result<(), String> {
        let mut on_flash = Vec::new();
        for (test_volume, attached) in session.test_volumes.iter().zip(attached) {
            if !leaves_in_log {
                self.state.mark_clean(attached.volume_id);
                continue;
            }
            let (op, at_start) = session.begin(test_volume, 0, OpKind::Flush, 0..0, false);
            let volume = test_volume.volume();
            // As in the daemon, a volume with a complete backing leaves the log.
            let has_records =
                match volume.stats().has_complete_backing() && session.core.detach(volume.name()).await.is_ok() {
                    true => Ok(false),
                    false => volume.leave_in_log().await,
                };
            let is_clean = matches!(has_records, Ok(false));
            let result = has_records.map(drop);
            session.end(test_volume, op, &at_start, &result);
            match (result.is_ok(), is_clean) {
                (true, true) => self.state.mark_clean(attached.volume_id),
                (true, false) => {
                    let destaged = session.core.provable_recent_writes(attached.volume_id);
                    self.state.mark_left_on_flash(attached.volume_id, destaged);
                    on_flash.push(attached.volume_id);
                }
                (false, _) => {
                    return Err("leaving dirty data in the flash log failed although no fault was injected".to_owned());
                }
            }
        }
        if let Some(store) = session.core.log() {
            let name = state::show_uuid(&store.uuid());
            let is_needed = session.core.needs_log();
            let sequence = store.close().await.map_err(|error| format!("the store cannot be closed: {error}"))?;
            if !is_needed {
                on_flash.iter().for_each(|volume_id| self.state.mark_clean(*volume_id));
            }
            let record = self.state.store_mut(&name);
            record.sequence = record.sequence.max(sequence);
        }
        // Destage I/O in flight continues after the stop until the process ends.
        session.seam.sleep(Nanos::from_millis(self.random.below(20))).await;
        Ok(())
    }

    /// Checks that no write went to the backing of a refused volume.
    fn check_refused_backings_unchanged(&self, run: &Run, world: &World) -> Result<(), Box<Violation>> {
        for index in 0..run.options.volumes.len() {
            let is_served = self.served.contains(&index);
            let writes = world.disk(disk_name(index)).map_or(0, |disk| disk.counts().writes);
            if !is_served && writes > 0 {
                let message = format!("volume {} was refused, but {writes} writes went to its backing", index + 1);
                return Err(run.violation(None, Finding { message, sector: None }));
            }
        }
        Ok(())
    }
}
