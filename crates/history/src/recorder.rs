//! The work of the history thread: samples become points, points become rows, and rows are written in batches. A disk
//! error is reported, and the next batch tries again; rows beyond a limit are lost.

use std::path::PathBuf;
use std::rc::Rc;

use messages::report::{HistoryHealth, HistoryReport, TierReport};
use messages::{Failure, StatusReport};

use super::Options;
use super::clock::TrimClock;
use super::file::{File, FileError};
use super::point::Point;
use super::query::{self, Query};
use super::rollup::{Key, RollUp};
use super::row::{Row, decode_points};
use super::tiers::TIERS;
use super::track::Tracker;

/// Seconds between two batches, and so the most that a kill loses.
const BATCH_SECONDS: u64 = 5;
/// Seconds between two deletions of expired rows.
const TRIM_SECONDS: u64 = 60;

/// State of the history thread.
pub struct Recorder {
    folder: PathBuf,
    limit_bytes: u64,
    file: Option<File>,
    /// True once the coarser tiers are rebuilt after a kill.
    is_rebuilt: bool,
    tracker: Tracker,
    rollup: RollUp,
    /// Time of the last sample, in milliseconds since 1970.
    last_sample_ms: Option<u64>,
    trim_clock: TrimClock,
    /// Second of the last batch.
    written_at: u64,
    /// Second of the last deletion, by `trim_clock`.
    trimmed_at: u64,
    failed: Option<String>,
}

impl Recorder {
    /// A recorder that has not opened its file yet.
    pub fn new(options: &Options) -> Recorder {
        Recorder {
            folder: options.folder.clone(),
            limit_bytes: options.size_bytes,
            file: None,
            is_rebuilt: false,
            tracker: Tracker::default(),
            rollup: RollUp::default(),
            last_sample_ms: None,
            trim_clock: TrimClock::default(),
            written_at: 0,
            trimmed_at: 0,
            failed: None,
        }
    }

    /// Opens the file for the first time.
    pub fn open(&mut self) {
        match self.open_file() {
            Ok(from) => self.rollup = RollUp::new(from),
            Err(error) => self.fail(&error),
        }
    }

    /// Opens the file and rebuilds the coarser tiers after a kill; returns the second up to which the file is complete.
    fn open_file(&mut self) -> Result<u64, FileError> {
        let mut file = File::open(&self.folder, self.limit_bytes)?;
        let until = file.until()?;
        if !self.is_rebuilt {
            rebuild_coarser_tiers(&mut file, until)?;
            self.is_rebuilt = true;
        }
        self.file = Some(file);
        Ok(until[0])
    }

    /// Records a sample; returns true if the health may have changed.
    pub fn sample(&mut self, at_unix_ms: u64, status: &StatusReport) -> bool {
        // The first sample covers one second, because counters begin at the start of the daemon.
        let seconds = self.last_sample_ms.map_or(1, |before| (at_unix_ms.saturating_sub(before) + 500) / 1000);
        self.last_sample_ms = Some(at_unix_ms);
        self.trim_clock.add_sample(at_unix_ms, status.uptime_ms, self.rollup.until());
        let second = at_unix_ms / 1000;
        let second = match self.rollup.second(second) {
            Some(second) => second,
            None => {
                self.rollup.close();
                self.written_at = 0;
                second
            }
        };
        let points = self.tracker.add_sample(second, seconds, status);
        self.rollup.add_sample(second, points);
        let is_due = second >= self.written_at + BATCH_SECONDS;
        if is_due {
            self.written_at = second;
            self.write();
        }
        is_due
    }

    fn write(&mut self) {
        let result = self.try_write();
        match result {
            Ok(()) => self.failed = None,
            Err(error) => self.fail(&error),
        }
    }

    fn try_write(&mut self) -> Result<(), FileError> {
        if self.file.is_none() {
            self.open_file()?;
        }
        let file = self.file.as_mut().expect("the file is open");
        let (rows, until) = self.rollup.unwritten();
        file.write(&rows, &until)?;
        self.rollup.mark_written();
        let now = self.trim_clock.trusted();
        // The trim clock goes back with the wall clock.
        if now.abs_diff(self.trimmed_at) >= TRIM_SECONDS {
            self.trimmed_at = now;
            file.trim(now)?;
        }
        Ok(())
    }

    fn fail(&mut self, error: &FileError) {
        // The file is opened again at the next batch, since the disk may have been read-only or absent.
        self.file = None;
        self.failed = Some(format!("{}: {error}", self.folder.display()));
    }

    /// The current health.
    pub fn health(&self) -> HistoryHealth {
        let now = self.last_sample_ms.unwrap_or(0) / 1000;
        let tier = |index: usize| {
            let shortened_until = self.file.as_ref().map_or(0, |file| file.shortened_until(index));
            let shortened_seconds = Some(now.saturating_sub(shortened_until)).filter(|kept| *kept < TIERS[index].keep);
            TierReport { step_seconds: TIERS[index].step, keep_seconds: TIERS[index].keep, shortened_seconds }
        };
        HistoryHealth {
            bytes: self.file.as_ref().map_or(0, File::bytes),
            limit_bytes: self.limit_bytes,
            tiers: (0..TIERS.len()).map(tier).collect(),
            failed: self.failed.clone(),
            lost_rows: self.rollup.lost_rows,
        }
    }

    /// Answers a query.
    pub fn answer(&self, query: &Query, now: u64) -> Result<HistoryReport, Failure> {
        query::answer(query, now, self.file.as_ref(), &self.rollup)
    }

    /// Writes all remaining rows.
    pub fn close(&mut self) {
        self.rollup.close();
        self.write();
        self.file = None;
    }
}

/// Rebuilds points of the coarser tiers that a kill left incomplete from the finer tiers, up to the end of the finest.
fn rebuild_coarser_tiers(file: &mut File, until: [u64; TIERS.len()]) -> Result<(), FileError> {
    if until[1..].iter().all(|tier_until| *tier_until >= until[0]) {
        return Ok(());
    }
    for tier in 1..TIERS.len() {
        let finer = &TIERS[tier - 1];
        let mut rows: Vec<(Key, Vec<u8>)> = Vec::new();
        let mut growing: Option<(Rc<str>, Row, Point)> = None;
        for ((_, start, name), data) in file.all_rows(tier - 1, until[tier].saturating_sub(finer.row))? {
            // A row that cannot be decoded is skipped.
            for point in decode_points(start, finer.step, &data).unwrap_or_default() {
                if point.start < until[tier] {
                    continue;
                }
                let point_start = |second| TIERS[tier].point_start(second);
                match &mut growing {
                    Some((subject, _, last))
                        if *subject == name && point_start(last.start) == point_start(point.start) =>
                    {
                        last.merge(&point)
                    }
                    Some((subject, row, last)) if *subject == name => row.push(std::mem::replace(last, point)),
                    _ => {
                        let row = Row::new(point.start, TIERS[tier].step);
                        let before = growing.replace((name.clone(), row, point));
                        rows.extend(before.map(finish_row(tier)));
                    }
                }
            }
        }
        rows.extend(growing.map(finish_row(tier)));
        let mut rebuilt_until = until;
        rebuilt_until[1..=tier].fill(until[0]);
        file.write(&rows, &rebuilt_until)?;
    }
    Ok(())
}

fn finish_row(tier: usize) -> impl Fn((Rc<str>, Row, Point)) -> (Key, Vec<u8>) {
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

    /// A recorder that sees a volume with three more reads each second, and is then killed or closed.
    fn record(folder: &std::path::Path, begin: u64, seconds: u64, is_killed: bool) {
        let mut recorder = recorder(folder);
        for second in 0..seconds {
            recorder.sample((begin + second) * 1000 + 500, &status(vec![volume("v", (second + 1) * 3)]));
        }
        if !is_killed {
            recorder.close();
        }
    }

    fn recorder(folder: &std::path::Path) -> Recorder {
        let mut recorder = Recorder::new(&Options { folder: folder.to_owned(), size_bytes: 1 << 30 });
        recorder.open();
        recorder
    }

    fn sums(recorder: &Recorder, step: u64, now: u64) -> (u64, u64) {
        let query = Query {
            subject: Subject::Volume("v".to_owned()),
            is_known: false,
            from: Some(now - 3 * 3600),
            to: Some(now),
            step: Some(step),
            series: vec!["reads".to_owned(), "read_latency".to_owned()],
        };
        let report = recorder.answer(&query, now).expect("a report");
        (report.series["reads"].sum.iter().sum(), report.latency["read"].count.iter().sum())
    }

    #[test]
    fn every_tier_has_every_written_second_once_after_kills_and_stops() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let (mut begin, mut total) = (50_000_000, 0);
        for (seconds, is_killed) in
            [(61, true), (7, false), (1234, true), (3, true), (600, false), (4000, true), (12, false)]
        {
            record(folder.path(), begin, seconds, is_killed);
            // The last batch before a kill ends at a second that is a multiple of the batch interval.
            let written = if is_killed { (seconds - 1) / BATCH_SECONDS * BATCH_SECONDS + 1 } else { seconds };
            total += written * 3;
            begin += seconds + 2;
        }
        let recorder = recorder(folder.path());
        for tier in &TIERS[1..] {
            assert_eq!(sums(&recorder, tier.step, begin), (total, total), "{} s", tier.step);
        }
    }

    const GOLDEN_BEGIN: u64 = 1_700_000_000;

    /// A file of two hours, with a volume that reads and one that is idle for an hour.
    fn write_golden() -> Vec<u8> {
        let folder = tempfile::tempdir().expect("a folder");
        let mut history = recorder(folder.path());
        for second in 0..7_200 {
            let volumes = vec![volume("v", (second + 1) * 3), volume("idle", second.min(3_600))];
            history.sample((GOLDEN_BEGIN + second) * 1000 + 500, &status(volumes));
        }
        history.close();
        std::fs::read(folder.path().join("history.db")).expect("the file is readable")
    }

    #[test]
    fn golden_files_return_their_figures() {
        for golden in golden::files("history.db.zst", write_golden) {
            let folder = tempfile::tempdir().expect("a folder");
            std::fs::write(folder.path().join("history.db"), &golden.bytes).expect("written");
            let history = recorder(folder.path());
            assert_eq!(history.health().failed, None, "written by {}", golden.release);
            for tier in &TIERS {
                for (name, reads) in [("v", 21_600), ("idle", 3_600)] {
                    let query = Query {
                        subject: Subject::Volume(name.to_owned()),
                        is_known: false,
                        from: Some(GOLDEN_BEGIN - 86_400),
                        to: Some(GOLDEN_BEGIN + 7_200),
                        step: Some(tier.step),
                        series: Vec::new(),
                    };
                    let report = history.answer(&query, GOLDEN_BEGIN + 7_200).expect("a report");
                    let context = format!("{name}, {} s, written by {}", tier.step, golden.release);
                    let sum = |series: &str| report.series[series].sum.iter().sum::<u64>();
                    assert_eq!((sum("reads"), sum("read_bytes"), sum("writes")), (reads, reads * 4096, 0), "{context}");
                    assert_eq!(report.series["dirty_bytes"].max.iter().max(), Some(&7), "{context}");
                    assert_eq!(report.covered_seconds.iter().sum::<u64>(), 7_200, "{context}");
                    let latency = &report.latency["read"];
                    assert_eq!(latency.count.iter().sum::<u64>(), reads, "{context}");
                    // The reads of 0.1.0 are in one bucket of version 1, those of later releases took 100 us.
                    let medians = latency.p50_us.iter().flatten();
                    let within = if golden.release == "0.1.0" { 262.144..=1_048.576 } else { 98.304..=106.496 };
                    assert!(medians.clone().count() > 0 && medians.clone().all(|us| within.contains(us)), "{context}");
                }
            }
        }
    }

    #[test]
    fn first_write_raises_the_version_and_older_rows_stay_readable() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("history.db");
        let golden = golden::files("history.db.zst", write_golden).remove(0);
        std::fs::write(&path, golden.bytes).expect("written");
        let version = || {
            let db = rusqlite::Connection::open(&path).expect("the file opens");
            db.query_row("PRAGMA user_version", [], |row| row.get::<_, i64>(0)).expect("a version")
        };
        drop(recorder(folder.path()));
        assert_eq!(version(), 1, "reading alone converts nothing");
        record(folder.path(), GOLDEN_BEGIN + 7_200, 120, false);
        assert_eq!(version(), 2);
        let recorder = recorder(folder.path());
        let now = GOLDEN_BEGIN + 7_320;
        for tier in &TIERS[1..3] {
            assert_eq!(sums(&recorder, tier.step, now), (21_600 + 360, 21_600 + 360), "{} s", tier.step);
        }
    }

    #[test]
    fn newer_file_disables_the_history_and_is_named() {
        let folder = tempfile::tempdir().expect("a folder");
        record(folder.path(), 50_000_000, 60, false);
        let path = folder.path().join("history.db");
        let db = rusqlite::Connection::open(&path).expect("the file opens");
        db.pragma_update(None, "user_version", 3).expect("the setting is accepted");
        drop(db);
        let before = std::fs::read(&path).expect("the file is readable");
        record(folder.path(), 50_000_100, 60, false);
        assert!(std::fs::read(&path).expect("the file is readable") == before, "the file was changed");
        let failed = recorder(folder.path()).health().failed.expect("the history has failed");
        assert!(failed.contains("history.db was written by a newer version of Hotset (format 3"), "{failed}");
    }

    #[test]
    fn clock_jump_forward_deletes_nothing() {
        const YEARS: u64 = 20 * 365 * 24 * 3600;
        let folder = tempfile::tempdir().expect("a temporary folder");
        let mut recorder = recorder(folder.path());
        let begin = 1_700_000_000;
        let add_sample = |recorder: &mut Recorder, uptime: u64, now: u64| {
            let status = StatusReport { uptime_ms: uptime * 1000, ..status(vec![volume("v", uptime + 1)]) };
            recorder.sample(now * 1000, &status);
        };
        (0..600).for_each(|second| add_sample(&mut recorder, second, begin + second));
        let before = TIERS.map(|tier| sums(&recorder, tier.step, begin + 600));
        (600..900).for_each(|second| add_sample(&mut recorder, second, begin + second + YEARS));
        (900..1000).for_each(|second| add_sample(&mut recorder, second, begin + second));
        recorder.close();
        drop(recorder);
        let recorder = self::recorder(folder.path());
        for (tier, before) in TIERS.iter().zip(before) {
            let after = sums(&recorder, tier.step, begin + 1000);
            assert!(before.0 > 500 && after.0 >= before.0 + 99, "{} s: {before:?}, then {after:?}", tier.step);
        }
    }

    #[test]
    fn write_error_is_reported_and_rows_are_written_later() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        // A file blocks the path of the history folder.
        let history_path = folder.path().join("history");
        std::fs::write(&history_path, "").expect("the file is written");
        let mut recorder = recorder(&history_path);
        let begin = 1_000_000;
        let add_sample = |recorder: &mut Recorder, second: u64| {
            recorder.sample((begin + second) * 1000, &status(vec![volume("v", second)]))
        };
        (0..100).for_each(|second| assert_eq!(add_sample(&mut recorder, second), second % BATCH_SECONDS == 0));
        assert!(recorder.health().failed.is_some_and(|reason| reason.contains("history")));
        assert_eq!(sums(&recorder, 60, begin + 100).0, 99);
        std::fs::remove_file(&history_path).expect("the file exists");
        (100..110).for_each(|second| assert_eq!(add_sample(&mut recorder, second), second % BATCH_SECONDS == 0));
        assert_eq!((recorder.health().failed, recorder.health().lost_rows), (None, 0));
        drop(recorder);
        let recorder = self::recorder(&history_path);
        assert_eq!(sums(&recorder, 60, begin + 110).0, 105);
    }
}
