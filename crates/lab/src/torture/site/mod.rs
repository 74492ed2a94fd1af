//! An administrator between the lives of a world: exchanges, copies and loses devices, state directories and backings, while the daemon's own
//! rules (`crates/state`) decide at each start what may be served.
//!
//! What each act may cost is known here: a volume that is refused is always right, unless nothing was done; a volume that is served keeps every promise. A
//! backing that was put back to an older content while nothing of the volume waited to be destaged is that older content.

mod mischief;
mod start;

use std::fmt;
use std::rc::Rc;

use seam::sim::{Content, CrashMode, DiskImages, World, WorldSpec};
use seam::{Nanos, SECTOR_BYTES, Seam};
use state::State;

use self::mischief::Plan;
use super::Violation;
use super::bench::Life;
use super::content::Tag;
use super::history::OpKind;
use super::model::Finding;
use super::options::{End, Options, Trouble, pool_blocks_min};
use super::run::{LIFE_MAX, Run, add_disks, disk_name, share};
use crate::random::Random;

/// Least size of a volume of which pages are to be on flash: several times the memory.
const PAGED_BYTES_MIN: u64 = 3 << 20;
/// Moments of the past that copies may be taken from.
const PAST_MAX: usize = 3;

/// What is drawn for a site.
#[derive(Clone, Debug)]
pub struct SiteOptions {
    /// How often something is done between two lives.
    pub mischief_percent: u32,
    /// A backing's identity lies in the storage itself; else it is the name of its place.
    pub is_unique: bool,
    /// At a start clean pages are compared with the backing. Where they are not, nothing but a flash store that is refused, or whose pages are
    /// dropped, keeps old ones away: no backing is put back or exchanged then.
    pub checks_pages: bool,
    /// Memory is so small, and pages earn their place on flash so soon, that many are there.
    pub has_pages: bool,
    /// A rule of the daemon's that is broken on purpose.
    pub sabotage: state::Sabotage,
}

impl SiteOptions {
    /// Draws one.
    pub fn draw(seed: u64) -> SiteOptions {
        let mut random = Random::new(seed, 9_200);
        SiteOptions {
            mischief_percent: random.pick(&[0, 50, 80, 100]),
            is_unique: random.percent(50),
            checks_pages: random.percent(50),
            has_pages: random.percent(50),
            sabotage: state::Sabotage::None,
        }
    }

    /// A segment has room for a page, or for records alone.
    fn segment_bytes(&self) -> u64 {
        if self.has_pages { 256 << 10 } else { 64 << 10 }
    }

    /// The options of a run with such a site: always with flash, and with nothing that fails by itself.
    pub fn apply(self, options: Options) -> Options {
        let mut random = Random::new(options.seed, 9_201);
        let flash = super::flash::FlashOptions {
            check_blocks: if self.checks_pages { 1_200 } else { 0 },
            ..super::flash::FlashOptions::plain(2, self.segment_bytes(), random.between(16, 60))
        };
        let lives = random.between(3, 6);
        let end = |random: &mut Random| match random.below(10) {
            0..2 => End::CrashAtIo(random.between(1, 1500)),
            2..4 => End::Crash,
            // The stop of a service: what is dirty stays on flash.
            4..8 => End::Park,
            _ => End::Orderly,
        };
        let mut options = options;
        if self.has_pages {
            options.length_max = options.length_max.min(16 << 10);
            options.pool_blocks = pool_blocks_min(u64::from(options.clients), options.length_max) as usize;
            options.operations *= 2;
            for volume in &mut options.volumes {
                volume.size_bytes = volume.size_bytes.max(PAGED_BYTES_MIN);
                volume.region_percent = 100;
            }
        }
        let lives: Vec<End> =
            (0..lives).map(|life| if life + 1 == lives { End::Orderly } else { end(&mut random) }).collect();
        Options {
            lives,
            troubles: Vec::<Trouble>::new(),
            admin: false,
            resizes: false,
            keeps: false,
            flash: Some(flash),
            site: Some(self),
            ..options
        }
    }
}

impl fmt::Display for SiteOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let identity = if self.is_unique { "unique" } else { "of places" };
        write!(f, "an administrator between {} % of the lives, identities {identity}", self.mischief_percent)?;
        if self.has_pages {
            write!(f, ", many pages on flash")?;
        }
        if !self.checks_pages {
            write!(f, ", pages are believed")?;
        }
        if self.sabotage != state::Sabotage::None {
            write!(f, ", sabotage {:?}", self.sabotage)?;
        }
        Ok(())
    }
}

/// Disks and records at the end of a life.
struct Moment {
    images: DiskImages,
    state: State,
    backings: Vec<BackingNow>,
}

/// What the administrator has made of a volume's backing.
#[derive(Clone, Debug)]
struct BackingNow {
    /// What the disk says it is.
    identity: String,
    /// It holds something else than the daemon left there, and the volume was not served since.
    is_changed: bool,
    /// It was cut short, and the volume was not served since.
    is_cut: bool,
    /// The first sector after all of those whose content was not on the backing when the volume was served last: the flash log owes it.
    owed_end: u64,
    /// Clients may not know yet that writes which they had not flushed are lost.
    is_loss_untold: bool,
    /// The last life in which the volume was served ended in a stop, not in a crash.
    was_stopped: bool,
}

/// What the administrator has before the next start.
struct Site {
    options: SiteOptions,
    random: Random,
    state: State,
    past: Vec<Moment>,
    /// What was there before something was done for one life alone.
    undo: Option<Moment>,
    backings: Vec<BackingNow>,
    /// Something was ever done that may be a reason to refuse.
    is_touched: bool,
    /// The store was away, or is not the newest: it cannot tell any more that the records are older than something.
    blind: bool,
    /// Identities drawn so far.
    drawn: u64,
    /// The run is over: what is there cannot be told from what clients wrote.
    is_over: bool,
}

/// A volume of the life that was begun.
struct Attached {
    incarnation: u64,
    drops_pages: bool,
}

/// Lives one after the other on the same disks and records.
pub(super) fn play(run: &mut Run, options: &SiteOptions) -> Result<(), Box<Violation>> {
    let random = Random::new(run.options.seed, 9_202);
    let (past, undo) = (Vec::new(), None);
    let state = State { sabotage: options.sabotage, ..State::default() };
    let backing = |index: usize| BackingNow {
        identity: format!("disk{}", index + 1),
        is_changed: false,
        is_cut: false,
        owed_end: 0,
        is_loss_untold: false,
        was_stopped: true,
    };
    let backings = (0..run.options.volumes.len()).map(backing).collect();
    let options = options.clone();
    let mut site = Site {
        options,
        random,
        state,
        past,
        undo,
        backings,
        is_touched: false,
        blind: false,
        drawn: 0,
        is_over: false,
    };
    let mut images = None;
    for number in 0..run.options.lives.len() {
        if site.is_over {
            break;
        }
        images = Some(site.live(run, number, images)?);
    }
    Ok(())
}

impl Site {
    fn draw_number(&mut self) -> u64 {
        self.drawn += 1;
        self.random.draw() | 1
    }

    fn live(&mut self, run: &mut Run, number: usize, left: Option<DiskImages>) -> Result<DiskImages, Box<Violation>> {
        let options = Rc::clone(&run.options);
        let mut random = Random::new(options.seed, 1_000 + number as u64);
        let (plan, images) = match left {
            Some(mut images) => (self.between(run, number, &mut images), Some(images)),
            None => (Plan::default(), None),
        };
        let world = World::new(WorldSpec {
            seed: random.draw(),
            order: options.order,
            blocks: options.pool_blocks,
            keep: Content::Tags,
            trace: run.trace,
            keeps: false,
            time_max: LIFE_MAX,
        });
        let remains = world.remains();
        match images {
            Some(images) => world.adopt(images),
            None => {
                add_disks(&world, &options);
                options.flash.iter().for_each(|flash| flash.add_named(&world, &mischief::OTHERS));
            }
        }
        let operations = share(options.operations, options.lives.len(), number);
        let begun = world.run_until(start::begin(self, run, &world, &plan, operations));
        let (life, attached) = match begun {
            Ok(Ok((life, attached))) => (Rc::new(life), attached),
            Ok(Err(what)) => return Err(run.violation(None, Finding { what, sector: None })),
            Err(stop) => return Err(run.stuck(&world, "the start", &stop)),
        };
        let end = options.lives[number];
        let mode = match life.subjects.is_empty() {
            true => CrashMode::LoseAll,
            false => {
                // What clients have written since would be lost with it.
                self.undo = None;
                self.pass(run, &world, &life, &attached, end, &mut random)?
            }
        };
        self.refused_are_untouched(run, &world, &life)?;
        run.account(&world, &life);
        let served: Vec<usize> = life.subjects.iter().map(|subject| usize::from(subject.number) - 1).collect();
        drop(life);
        let images = world.crash(mode);
        run.freed(&remains)?;
        served.into_iter().for_each(|index| self.note_owed(run, index, &images));
        let backings = self.backings.clone();
        self.past.push(Moment { images: images.clone(), state: self.state.clone(), backings });
        if self.past.len() > PAST_MAX {
            self.past.remove(0);
        }
        Ok(images)
    }

    fn note_end(&mut self, life: &Life, was_stopped: bool) {
        for subject in &life.subjects {
            self.backings[usize::from(subject.number) - 1].was_stopped = was_stopped;
        }
    }

    /// Notes what the backing does not have of what must be there.
    fn note_owed(&mut self, run: &Run, index: usize, images: &DiskImages) {
        let model = run.models[index].borrow();
        let held = mischief::content(images, index, model.sectors() * SECTOR_BYTES as u64);
        let is_owed = |sector: &u64| !model.is_held_by(*sector..*sector + 1, |at| Tag(held[at as usize]));
        self.backings[index].owed_end = (0..model.sectors()).rev().find(is_owed).map_or(0, |last| last + 1);
    }

    /// Clients at work until the life ends as drawn; what the daemon would have noted by then is noted.
    fn pass(
        &mut self,
        run: &mut Run,
        world: &World,
        life: &Rc<Life>,
        attached: &[Attached],
        end: End,
        random: &mut Random,
    ) -> Result<CrashMode, Box<Violation>> {
        let engine_end = if end == End::Park { End::Work } else { end };
        let crashed = run
            .pass(world, life, engine_end, random)
            .map_err(|violation| Box::new(Violation { trace: world.trace().text(), ..*violation }))?;
        self.note_drops(life, attached);
        if crashed && end != End::Park {
            for subject in &life.subjects {
                let defers = subject.volume().policy().defers_writes();
                let is_lost = defers && subject.model.borrow().has_unflushed();
                self.backings[usize::from(subject.number) - 1].is_loss_untold |= is_lost;
            }
            self.note_end(life, false);
            let mode = random.pick(&CrashMode::ALL);
            run.crash(life, mode, false, world.now());
            return Ok(mode);
        }
        self.note_end(life, true);
        life.subjects.iter().for_each(|subject| self.backings[usize::from(subject.number) - 1].is_loss_untold = false);
        let ended = world.run_until(self.end_in_order(life, attached, end == End::Park));
        match ended {
            Ok(Ok(())) => Ok(CrashMode::LoseAll),
            Ok(Err(what)) => Err(run.violation(None, Finding { what, sector: None })),
            Err(stop) => Err(run.stuck(world, "the end in order", &stop)),
        }
    }

    /// The daemon looks once a second; a crash may come first.
    fn note_drops(&mut self, life: &Life, attached: &[Attached]) {
        let Some(store) = life.core.log().map(|log| state::show_uuid(&log.uuid())) else { return };
        for (subject, attached) in life.subjects.iter().zip(attached) {
            if attached.drops_pages && subject.volume().stats().flash.checked && self.random.percent(70) {
                self.state.note_pages_dropped(attached.incarnation, &store);
            }
        }
    }

    async fn end_in_order(&mut self, life: &Rc<Life>, attached: &[Attached], parks: bool) -> Result<(), String> {
        for (subject, attached) in life.subjects.iter().zip(attached) {
            if !parks {
                self.state.mark_clean(attached.incarnation);
                continue;
            }
            let (op, marks) = life.begin(subject, 0, OpKind::Flush, 0..0, false);
            let volume = subject.volume();
            let parked = volume.park().await;
            let is_clean = matches!(parked, Ok(false));
            let result = parked.map(drop);
            life.end(subject, op, &marks, &result);
            match (result.is_ok(), is_clean) {
                (true, true) => self.state.mark_clean(attached.incarnation),
                (true, false) => {
                    let destaged = life.core.destaged_noted(attached.incarnation);
                    self.state.mark_parked(attached.incarnation, destaged);
                }
                (false, _) => return Err("a volume cannot be left in the flash log though nothing is wrong".to_owned()),
            }
        }
        if let Some(store) = life.core.log() {
            let name = state::show_uuid(&store.uuid());
            let sequence = store.close().await.map_err(|error| format!("the store cannot be closed: {error}"))?;
            let record = self.state.store_mut(&name);
            record.sequence = record.sequence.max(sequence);
        }
        // What destage had begun goes on after the stop and ends with the process.
        life.seam.sleep(Nanos::from_millis(self.random.below(20))).await;
        Ok(())
    }

    /// Nothing is written to the backing of a volume that is refused.
    fn refused_are_untouched(&self, run: &Run, world: &World, life: &Life) -> Result<(), Box<Violation>> {
        for index in 0..run.options.volumes.len() {
            let is_served = life.subjects.iter().any(|subject| usize::from(subject.number) == index + 1);
            let writes = world.disk(disk_name(index)).map_or(0, |disk| disk.counts().writes);
            if !is_served && writes > 0 {
                let what = format!("volume {} was refused, and {writes} writes went to its backing", index + 1);
                return Err(run.violation(None, Finding { what, sector: None }));
            }
        }
        Ok(())
    }
}
