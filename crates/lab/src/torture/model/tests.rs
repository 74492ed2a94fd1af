//! Tests of the model: the versions that it allows and, above all, the versions that it refuses.

use super::*;

const SECTORS: u64 = 64;

/// A model and its clock in nanoseconds.
struct Play(Model, u64);

impl Play {
    fn new() -> Play {
        Play(Model::new(1, SECTORS, false), 0)
    }

    fn now(&mut self) -> Nanos {
        self.1 += 1_000;
        Nanos(self.1)
    }

    fn begin(&mut self, kind: OpKind, first: u64, count: u64) -> OpId {
        let now = self.now();
        self.0.begin(kind, Submit { client: 1, first, count, ..Submit::default() }, now)
    }

    fn ok(&mut self, op: OpId) {
        let now = self.now();
        self.0.end(op, Outcome::Ok, false, now);
    }

    fn fail(&mut self, op: OpId) {
        let now = self.now();
        self.0.end(op, Outcome::Failed("no".into()), false, now);
    }

    fn write(&mut self, first: u64, count: u64) -> OpId {
        let op = self.begin(OpKind::Write, first, count);
        self.ok(op);
        op
    }

    fn flush(&mut self) {
        let op = self.begin(OpKind::Flush, 0, 0);
        self.ok(op);
    }

    fn crash(&mut self) {
        let now = self.now();
        self.0.crash(None, now);
    }

    /// Reads sector 0 and returns the content of `from` as the read's result; zeroes for `None`.
    fn read(&mut self, from: Option<OpId>) -> Result<(), Finding> {
        let op = self.begin(OpKind::Read, 0, 1);
        self.end_read(op, from)
    }

    fn end_read(&mut self, op: OpId, from: Option<OpId>) -> Result<(), Finding> {
        let now = self.now();
        self.0.end_read(op, &[tag(from)], now)
    }
}

fn tag(from: Option<OpId>) -> Tag {
    from.map_or(Tag::ZERO, |op| Tag::new(1, op, 0))
}

#[test]
fn read_returns_newest_acknowledged_write_only() {
    let mut play = Play::new();
    play.read(None).unwrap();
    let first = play.write(0, 4);
    play.read(Some(first)).unwrap();
    let second = play.write(0, 1);
    assert!(play.read(Some(first)).is_err(), "old data");
    assert!(play.read(None).is_err(), "older data");
    play.read(Some(second)).unwrap();
}

#[test]
fn concurrent_write_may_or_may_not_be_read() {
    let mut play = Play::new();
    let old = play.write(0, 1);
    let read = play.begin(OpKind::Read, 0, 1);
    let new = play.begin(OpKind::Write, 0, 1);
    play.ok(new);
    play.end_read(read, Some(old)).unwrap();
    let pending = play.begin(OpKind::Write, 0, 1);
    play.read(Some(pending)).unwrap();
    play.read(Some(new)).unwrap();
    assert!(play.read(Some(old)).is_err());
}

#[test]
fn either_concurrent_write_may_win_but_the_winner_stays() {
    let mut play = Play::new();
    let one = play.begin(OpKind::Write, 0, 1);
    let two = play.begin(OpKind::Write, 0, 1);
    play.ok(one);
    play.ok(two);
    play.read(Some(one)).unwrap();
    assert!(play.read(Some(two)).is_err(), "content alternates between two settled versions");
    play.read(Some(one)).unwrap();
    play.flush();
    play.crash();
    assert!(play.read(Some(two)).is_err(), "the flush kept the version that was read before it");
}

#[test]
fn foreign_and_misplaced_content_is_a_violation() {
    let mut play = Play::new();
    let op = play.begin(OpKind::Write, 0, 8);
    play.ok(op);
    let read = |play: &mut Play, tag| {
        let op = play.begin(OpKind::Read, 0, 1);
        let now = play.now();
        play.0.end_read(op, &[tag], now).unwrap_err().what
    };
    assert!(read(&mut play, Tag::new(1, op, 1)).contains("another sector's data"));
    assert!(read(&mut play, Tag::new(2, op, 0)).contains("another volume's data"));
    assert!(read(&mut play, Tag::new(1, op + 100, 0)).contains("content that no operation wrote"));
}

#[test]
fn crash_keeps_flushed_writes_and_may_keep_later_ones() {
    for survivor in 0..3 {
        let mut play = Play::new();
        let ops = [play.write(0, 1), play.write(0, 1)];
        play.flush();
        let late = [play.write(0, 1), play.begin(OpKind::Write, 0, 1)];
        play.crash();
        let allowed = [ops[1], late[0], late[1]];
        play.read(Some(allowed[survivor])).unwrap();
        let other = allowed[(survivor + 1) % 3];
        assert!(play.read(Some(other)).is_err(), "the crash has decided");
    }
}

#[test]
fn crash_never_returns_versions_older_than_the_last_flush() {
    let mut play = Play::new();
    let old = play.write(0, 1);
    play.flush();
    play.write(0, 1);
    play.flush();
    play.crash();
    assert!(play.read(Some(old)).is_err());
    assert!(play.read(None).is_err());
}

#[test]
fn flush_covers_only_writes_acknowledged_before_it_began() {
    let mut play = Play::new();
    let old = play.write(0, 1);
    play.flush();
    let late = play.begin(OpKind::Write, 0, 1);
    let flush = play.begin(OpKind::Flush, 0, 0);
    play.ok(late);
    play.ok(flush);
    play.crash();
    play.read(Some(old)).unwrap();
}

#[test]
fn failed_or_volatile_flush_promises_nothing() {
    let mut play = Play::new();
    let old = play.write(0, 1);
    play.flush();
    play.write(0, 1);
    let flush = play.begin(OpKind::Flush, 0, 0);
    play.fail(flush);
    let flush = play.begin(OpKind::Flush, 0, 0);
    let now = play.now();
    play.0.end(flush, Outcome::Ok, true, now);
    play.crash();
    play.read(Some(old)).unwrap();
}

#[test]
fn fua_write_is_durable_without_a_flush() {
    let mut play = Play::new();
    let old = play.write(0, 1);
    let now = play.now();
    let fua = play.0.begin(OpKind::Write, Submit { client: 1, count: 1, fua: true, ..Submit::default() }, now);
    play.ok(fua);
    play.crash();
    assert!(play.read(Some(old)).is_err());
    play.read(Some(fua)).unwrap();
}

#[test]
fn failed_write_leaves_either_version_until_the_next_success() {
    let mut play = Play::new();
    let old = play.write(0, 1);
    let failed = play.begin(OpKind::Write, 0, 1);
    play.fail(failed);
    play.read(Some(old)).unwrap();
    play.read(Some(failed)).unwrap();
    play.read(Some(old)).unwrap();
    let new = play.write(0, 1);
    play.read(Some(new)).unwrap();
    assert!(play.read(Some(failed)).is_err());
    play.flush();
    play.crash();
    assert!(play.read(Some(failed)).is_err());
}

#[test]
fn discard_reads_as_zeroes_and_survives_like_a_write() {
    let mut play = Play::new();
    let old = play.write(0, 8);
    let discard = play.begin(OpKind::Discard, 0, 8);
    play.ok(discard);
    assert!(play.read(Some(old)).is_err(), "stale data after a discard");
    play.read(None).unwrap();
    play.flush();
    play.crash();
    assert!(play.read(Some(old)).is_err());
}

#[test]
fn allocation_status_never_calls_data_zero_or_hole() {
    let mut play = Play::new();
    play.write(8, 8);
    let ask = |play: &mut Play, hole, zero| {
        let op = play.begin(OpKind::Allocation, 0, 16);
        let now = play.now();
        let extents = [
            AllocationExtent { len_bytes: 8 * 512, hole: true, zero: true },
            AllocationExtent { len_bytes: 8 * 512, hole, zero },
        ];
        play.0.end_allocation(op, &extents, now)
    };
    ask(&mut play, false, false).unwrap();
    assert!(ask(&mut play, false, true).is_err());
    assert!(ask(&mut play, true, false).is_err());
    let op = play.begin(OpKind::Allocation, 0, 16);
    let now = play.now();
    assert!(play.0.end_allocation(op, &[], now).is_err(), "an answer has at least one extent");
}

#[test]
fn drained_backing_holds_the_newest_versions() {
    let mut play = Play::new();
    let old = play.write(0, 1);
    let new = play.write(0, 1);
    let drain = play.begin(OpKind::Drain("drain".into()), 0, 0);
    play.ok(drain);
    let backing = |newest| move |sector| if sector == 0 { Tag::new(1, newest, 0) } else { Tag::ZERO };
    play.0.check_drained(drain, backing(new)).unwrap();
    assert!(play.0.check_drained(drain, backing(old)).is_err());
}

#[test]
fn unflushed_version_seen_after_a_crash_may_vanish_at_the_next() {
    let mut play = Play::new();
    let old = play.write(0, 1);
    play.flush();
    let new = play.write(0, 1);
    play.crash();
    play.read(Some(new)).unwrap();
    play.crash();
    play.read(Some(old)).unwrap();
    let mut play = Play::new();
    play.write(0, 1);
    play.flush();
    let new = play.write(0, 1);
    play.crash();
    play.read(Some(new)).unwrap();
    play.flush();
    play.crash();
    assert!(play.read(Some(old)).is_err(), "seen, then flushed: the version stays");
}

#[test]
fn written_through_data_may_vanish_when_the_backing_loses_it() {
    let mut play = Play::new();
    let old = play.write(0, 1);
    play.flush();
    let held = play.write(0, 1);
    play.0.backing_lost_unflushed();
    assert!(play.read(Some(old)).is_err(), "the cache rewrites the data that it holds");
    play.read(Some(held)).unwrap();
    let now = play.now();
    let write_through = Submit { client: 1, count: 1, write_through: true, ..Submit::default() };
    let passed = play.0.begin(OpKind::Write, write_through, now);
    play.ok(passed);
    play.0.backing_lost_unflushed();
    play.read(Some(held)).unwrap();
    play.read(Some(passed)).unwrap();
}

#[test]
fn write_back_volatile_keeps_writes_older_than_the_deferral() {
    let mut play = Play::new();
    let old = play.write(0, 1);
    let new = play.write(0, 1);
    let now = Nanos::from_secs(20);
    play.0.crash(Some(Nanos::from_secs(10)), now);
    assert!(play.read(Some(old)).is_err());
    play.read(Some(new)).unwrap();
}

#[test]
fn regrown_volume_reads_zeroes_past_the_old_end() {
    let mut play = Play::new();
    let cut = play.write(0, SECTORS);
    let now = play.now();
    play.0.resize(32, now);
    play.0.resize(SECTORS, now);
    let op = play.begin(OpKind::Read, 40, 1);
    assert!(play.0.end_read(op, &[Tag::new(1, cut, 40)], now).is_err());
    let op = play.begin(OpKind::Read, 40, 1);
    play.0.end_read(op, &[Tag::ZERO], now).unwrap();
}

#[test]
fn superseded_durable_versions_are_dropped() {
    let mut play = Play::new();
    for _ in 0..100 {
        play.write(0, 1);
        play.flush();
    }
    assert!(play.0.sectors[0].len() < 8, "{} versions kept", play.0.sectors[0].len());
    let history = play.0.history(0, 10);
    assert_eq!(history.lines().count(), 11);
    assert!(history.contains("older operations not shown"), "{history}");
}

#[test]
fn zeroes_of_a_pending_discard_do_not_confirm_older_zeroes() {
    let mut play = Play::new();
    let zero = play.begin(OpKind::Zero, 0, 1);
    let write = play.begin(OpKind::Write, 0, 1);
    play.ok(zero);
    play.ok(write);
    let pending = play.begin(OpKind::Discard, 0, 1);
    play.read(None).unwrap();
    play.fail(pending);
    play.read(Some(write)).unwrap();
}
