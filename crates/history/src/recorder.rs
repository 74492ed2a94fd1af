//! What the thread does: samples become points, points become rows, rows are written in batches. Trouble with the disk costs rows, and is
//! told; the next batch tries again.

use std::path::PathBuf;
use std::rc::Rc;

use control::report::{HistoryHealth, HistoryReport, TierReport};
use control::{Failure, StatusReport};

use super::Options;
use super::clock::TrimClock;
use super::file::{File, Trouble};
use super::point::Point;
use super::question::{self, Question};
use super::rollup::{Key, RollUp};
use super::row::{Row, points};
use super::tiers::TIERS;
use super::track::Tracker;

/// Seconds between two batches: so much is missing after a kill at most.
const BATCH: u64 = 5;
/// Seconds between two looks at what is past its time.
const TRIM: u64 = 60;

/// All that the thread has.
pub struct Keeper {
    folder: PathBuf,
    limit_bytes: u64,
    file: Option<File>,
    /// What a kill left out of the coarser tiers was made up.
    is_whole: bool,
    tracker: Tracker,
    rollup: RollUp,
    sampled_ms: Option<u64>,
    trim_clock: TrimClock,
    written: u64,
    /// By the clock for that.
    trimmed: u64,
    failed: Option<String>,
}

impl Keeper {
    /// One that has not looked at its file yet.
    pub fn new(options: &Options) -> Keeper {
        Keeper {
            folder: options.folder.clone(),
            limit_bytes: options.size_bytes,
            file: None,
            is_whole: false,
            tracker: Tracker::default(),
            rollup: RollUp::default(),
            sampled_ms: None,
            trim_clock: TrimClock::default(),
            written: 0,
            trimmed: 0,
            failed: None,
        }
    }

    /// Opens the file for the first time.
    pub fn open(&mut self) {
        match self.take_up() {
            Ok(from) => self.rollup = RollUp::new(from),
            Err(trouble) => self.fail(&trouble),
        }
    }

    /// Opens the file and makes up what a kill left out of the coarser tiers; up to which second it has everything.
    fn take_up(&mut self) -> Result<u64, Trouble> {
        let mut file = File::open(&self.folder, self.limit_bytes)?;
        let until = file.until()?;
        if !self.is_whole {
            make_up(&mut file, until)?;
            self.is_whole = true;
        }
        self.file = Some(file);
        Ok(until[0])
    }

    /// Takes a sample; true where its health may have changed.
    pub fn sample(&mut self, at_unix_ms: u64, status: &StatusReport) -> bool {
        // The first one covers a second: counters began to grow when the daemon started.
        let seconds = self.sampled_ms.map_or(1, |before| (at_unix_ms.saturating_sub(before) + 500) / 1000);
        self.sampled_ms = Some(at_unix_ms);
        self.trim_clock.see(at_unix_ms, status.uptime_ms, self.rollup.until());
        let second = at_unix_ms / 1000;
        let second = match self.rollup.second(second) {
            Some(second) => second,
            None => {
                self.rollup.close();
                self.written = 0;
                second
            }
        };
        let seen = self.tracker.see(second, seconds, status);
        self.rollup.see(second, seen);
        let is_due = second >= self.written + BATCH;
        if is_due {
            self.written = second;
            self.write();
        }
        is_due
    }

    fn write(&mut self) {
        let result = self.try_write();
        match result {
            Ok(()) => self.failed = None,
            Err(trouble) => self.fail(&trouble),
        }
    }

    fn try_write(&mut self) -> Result<(), Trouble> {
        if self.file.is_none() {
            self.take_up()?;
        }
        let file = self.file.as_mut().expect("it was just opened");
        let (rows, until) = self.rollup.unwritten();
        file.write(&rows, &until)?;
        self.rollup.written();
        let now = self.trim_clock.trusted();
        // It goes back where the time of day does.
        if now.abs_diff(self.trimmed) >= TRIM {
            self.trimmed = now;
            file.trim(now)?;
        }
        Ok(())
    }

    fn fail(&mut self, trouble: &Trouble) {
        // A disk that was read-only, or gone, is looked at with fresh eyes.
        self.file = None;
        self.failed = Some(format!("{}: {trouble}", self.folder.display()));
    }

    /// How it stands.
    pub fn health(&self) -> HistoryHealth {
        let now = self.sampled_ms.unwrap_or(0) / 1000;
        let tier = |at: usize| {
            let cut = self.file.as_ref().map_or(0, |file| file.cut(at));
            let shortened_seconds = Some(now.saturating_sub(cut)).filter(|kept| *kept < TIERS[at].keep);
            TierReport { step_seconds: TIERS[at].step, keep_seconds: TIERS[at].keep, shortened_seconds }
        };
        HistoryHealth {
            bytes: self.file.as_ref().map_or(0, File::bytes),
            limit_bytes: self.limit_bytes,
            tiers: (0..TIERS.len()).map(tier).collect(),
            failed: self.failed.clone(),
            lost_rows: self.rollup.lost_rows,
        }
    }

    /// Answers a question.
    pub fn answer(&self, question: &Question, now: u64) -> Result<HistoryReport, Failure> {
        question::answer(question, now, self.file.as_ref(), &self.rollup)
    }

    /// Writes what is left.
    pub fn close(&mut self) {
        self.rollup.close();
        self.write();
        self.file = None;
    }
}

/// After a kill the coarser tiers lack what was under way: it is made up of the finer ones, up to where the finest ends.
fn make_up(file: &mut File, until: [u64; TIERS.len()]) -> Result<(), Trouble> {
    if until[1..].iter().all(|until_there| *until_there >= until[0]) {
        return Ok(());
    }
    for tier in 1..TIERS.len() {
        let finer = &TIERS[tier - 1];
        let mut rows: Vec<(Key, Vec<u8>)> = Vec::new();
        let mut under_way: Option<(Rc<str>, Row, Point)> = None;
        for ((_, start, name), data) in file.all_rows(tier - 1, until[tier].saturating_sub(finer.row))? {
            // What cannot be read is missed, and nothing else.
            for point in points(start, finer.step, &data).unwrap_or_default() {
                if point.start < until[tier] {
                    continue;
                }
                let bucket = |second| TIERS[tier].bucket(second);
                match &mut under_way {
                    Some((of, _, last)) if *of == name && bucket(last.start) == bucket(point.start) => {
                        last.merge(&point)
                    }
                    Some((of, row, last)) if *of == name => row.push(std::mem::replace(last, point)),
                    _ => {
                        let row = Row::new(point.start, TIERS[tier].step);
                        let before = under_way.replace((name.clone(), row, point));
                        rows.extend(before.map(finish(tier)));
                    }
                }
            }
        }
        rows.extend(under_way.map(finish(tier)));
        let mut made_up = until;
        made_up[1..=tier].fill(until[0]);
        file.write(&rows, &made_up)?;
    }
    Ok(())
}

fn finish(tier: usize) -> impl Fn((Rc<str>, Row, Point)) -> (Key, Vec<u8>) {
    move |(name, mut row, last)| {
        row.push(last);
        ((tier, row.start, name), row.bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::super::subject::Subject;
    use super::super::track::tests::{status, volume};
    use super::*;

    /// One that has seen a volume read `step` more times each second, for so many seconds, and was killed or closed.
    fn life(folder: &std::path::Path, begin: u64, seconds: u64, is_killed: bool) {
        let mut keeper = keeper(folder);
        for at in 0..seconds {
            keeper.sample((begin + at) * 1000 + 500, &status(vec![volume("v", (at + 1) * 3)]));
        }
        if !is_killed {
            keeper.close();
        }
    }

    fn keeper(folder: &std::path::Path) -> Keeper {
        let mut keeper = Keeper::new(&Options { folder: folder.to_owned(), size_bytes: 1 << 30 });
        keeper.open();
        keeper
    }

    fn sums(keeper: &Keeper, step: u64, now: u64) -> (u64, u64) {
        let question = Question {
            subject: Subject::Volume("v".to_owned()),
            is_known: false,
            from: Some(now - 3 * 3600),
            to: Some(now),
            step: Some(step),
            series: vec!["reads".to_owned(), "read_latency".to_owned()],
        };
        let report = keeper.answer(&question, now).expect("an answer");
        (report.series["reads"].sum.iter().sum(), report.latency["read"].count.iter().sum())
    }

    #[test]
    fn after_kills_and_stops_every_tier_has_every_second_that_was_written_once() {
        let folder = tempfile::tempdir().expect("a folder");
        let (mut at, mut all) = (50_000_000, 0);
        for (seconds, is_killed) in
            [(61, true), (7, false), (1234, true), (3, true), (600, false), (4000, true), (12, false)]
        {
            life(folder.path(), at, seconds, is_killed);
            // The last batch of a life that is killed holds all up to a second that the batch's length divides.
            let written = if is_killed { (seconds - 1) / BATCH * BATCH + 1 } else { seconds };
            all += written * 3;
            at += seconds + 2;
        }
        let keeper = keeper(folder.path());
        for tier in &TIERS[1..] {
            assert_eq!(sums(&keeper, tier.step, at), (all, all), "{} s", tier.step);
        }
    }

    #[test]
    fn a_clock_that_jumps_forward_wipes_nothing() {
        const YEARS: u64 = 20 * 365 * 24 * 3600;
        let folder = tempfile::tempdir().expect("a folder");
        let mut keeper = keeper(folder.path());
        let begin = 1_700_000_000;
        let see = |keeper: &mut Keeper, at: u64, now: u64| {
            let status = StatusReport { uptime_ms: at * 1000, ..status(vec![volume("v", at + 1)]) };
            keeper.sample(now * 1000, &status);
        };
        (0..600).for_each(|at| see(&mut keeper, at, begin + at));
        let before = TIERS.map(|tier| sums(&keeper, tier.step, begin + 600));
        (600..900).for_each(|at| see(&mut keeper, at, begin + at + YEARS));
        (900..1000).for_each(|at| see(&mut keeper, at, begin + at));
        keeper.close();
        drop(keeper);
        let keeper = self::keeper(folder.path());
        for (tier, before) in TIERS.iter().zip(before) {
            let after = sums(&keeper, tier.step, begin + 1000);
            assert!(before.0 > 500 && after.0 >= before.0 + 99, "{} s: {before:?}, then {after:?}", tier.step);
        }
    }

    #[test]
    fn what_cannot_be_written_is_told_and_written_when_it_can_be() {
        let folder = tempfile::tempdir().expect("a folder");
        // A file stands where the folder should be.
        let place = folder.path().join("history");
        std::fs::write(&place, "").expect("it is written");
        let mut keeper = keeper(&place);
        let begin = 1_000_000;
        let see = |keeper: &mut Keeper, at: u64| keeper.sample((begin + at) * 1000, &status(vec![volume("v", at)]));
        (0..100).for_each(|at| assert_eq!(see(&mut keeper, at), at % BATCH == 0));
        assert!(keeper.health().failed.is_some_and(|why| why.contains("history")));
        assert_eq!(sums(&keeper, 60, begin + 100).0, 99);
        std::fs::remove_file(&place).expect("it was there");
        (100..110).for_each(|at| assert_eq!(see(&mut keeper, at), at % BATCH == 0));
        assert_eq!((keeper.health().failed, keeper.health().lost_rows), (None, 0));
        drop(keeper);
        let keeper = self::keeper(&place);
        assert_eq!(sums(&keeper, 60, begin + 110).0, 105);
    }
}
