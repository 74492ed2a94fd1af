//! Tests of the model: the versions that it allows and those that it rejects.

use super::*;

const SECTORS: u64 = 64;

/// A model and its clock in nanoseconds.
struct ModelDriver {
    model: Model,
    time: u64,
}

impl ModelDriver {
    fn new() -> ModelDriver {
        ModelDriver { model: Model::new(1, SECTORS, false), time: 0 }
    }

    fn now(&mut self) -> Nanos {
        self.time += 1_000;
        Nanos(self.time)
    }

    fn begin(&mut self, kind: OpKind, first: u64, count: u64) -> OpId {
        let now = self.now();
        self.model.begin(kind, Submit { client: 1, first, count, ..Submit::default() }, now)
    }

    fn ok(&mut self, op: OpId) {
        let now = self.now();
        self.model.end(op, Outcome::Ok, false, now);
    }

    fn fail(&mut self, op: OpId) {
        let now = self.now();
        self.model.end(op, Outcome::Failed("failed".into()), false, now);
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
        self.model.crash(None, now);
    }

    /// Reads sector 0 and returns the content of `from` as the read's result; zeroes for `None`.
    fn read(&mut self, from: Option<OpId>) -> Result<(), Finding> {
        let op = self.begin(OpKind::Read, 0, 1);
        self.end_read(op, from)
    }

    fn end_read(&mut self, op: OpId, from: Option<OpId>) -> Result<(), Finding> {
        let now = self.now();
        self.model.end_read(op, &[tag(from)], now)
    }
}

fn tag(from: Option<OpId>) -> Tag {
    from.map_or(Tag::ZERO, |op| Tag::new(1, op, 0))
}

#[test]
fn read_returns_newest_acknowledged_write_only() {
    let mut driver = ModelDriver::new();
    driver.read(None).unwrap();
    let first = driver.write(0, 4);
    driver.read(Some(first)).unwrap();
    let second = driver.write(0, 1);
    assert!(driver.read(Some(first)).is_err(), "old data");
    assert!(driver.read(None).is_err(), "older data");
    driver.read(Some(second)).unwrap();
}

#[test]
fn concurrent_write_may_or_may_not_be_read() {
    let mut driver = ModelDriver::new();
    let old = driver.write(0, 1);
    let read = driver.begin(OpKind::Read, 0, 1);
    let new = driver.begin(OpKind::Write, 0, 1);
    driver.ok(new);
    driver.end_read(read, Some(old)).unwrap();
    let pending = driver.begin(OpKind::Write, 0, 1);
    driver.read(Some(pending)).unwrap();
    driver.read(Some(new)).unwrap();
    assert!(driver.read(Some(old)).is_err());
}

#[test]
fn first_read_decides_between_concurrent_writes() {
    let mut driver = ModelDriver::new();
    let one = driver.begin(OpKind::Write, 0, 1);
    let two = driver.begin(OpKind::Write, 0, 1);
    driver.ok(one);
    driver.ok(two);
    driver.read(Some(one)).unwrap();
    assert!(driver.read(Some(two)).is_err(), "content alternates between two current versions");
    driver.read(Some(one)).unwrap();
    driver.flush();
    driver.crash();
    assert!(driver.read(Some(two)).is_err(), "the flush kept the version that was read before it");
}

#[test]
fn foreign_and_misplaced_content_is_a_violation() {
    let mut driver = ModelDriver::new();
    let op = driver.begin(OpKind::Write, 0, 8);
    driver.ok(op);
    let read = |driver: &mut ModelDriver, tag| {
        let op = driver.begin(OpKind::Read, 0, 1);
        let now = driver.now();
        driver.model.end_read(op, &[tag], now).unwrap_err().message
    };
    assert!(read(&mut driver, Tag::new(1, op, 1)).contains("another sector's data"));
    assert!(read(&mut driver, Tag::new(2, op, 0)).contains("another volume's data"));
    assert!(read(&mut driver, Tag::new(1, op + 100, 0)).contains("content that no operation wrote"));
}

#[test]
fn crash_keeps_flushed_writes_and_may_keep_later_ones() {
    for survivor in 0..3 {
        let mut driver = ModelDriver::new();
        let ops = [driver.write(0, 1), driver.write(0, 1)];
        driver.flush();
        let late = [driver.write(0, 1), driver.begin(OpKind::Write, 0, 1)];
        driver.crash();
        let allowed = [ops[1], late[0], late[1]];
        driver.read(Some(allowed[survivor])).unwrap();
        let other = allowed[(survivor + 1) % 3];
        assert!(driver.read(Some(other)).is_err(), "after a crash one version remains");
    }
}

#[test]
fn crash_never_returns_versions_older_than_the_last_flush() {
    let mut driver = ModelDriver::new();
    let old = driver.write(0, 1);
    driver.flush();
    driver.write(0, 1);
    driver.flush();
    driver.crash();
    assert!(driver.read(Some(old)).is_err());
    assert!(driver.read(None).is_err());
}

#[test]
fn flush_covers_only_writes_acknowledged_before_it_began() {
    let mut driver = ModelDriver::new();
    let old = driver.write(0, 1);
    driver.flush();
    let late = driver.begin(OpKind::Write, 0, 1);
    let flush = driver.begin(OpKind::Flush, 0, 0);
    driver.ok(late);
    driver.ok(flush);
    driver.crash();
    driver.read(Some(old)).unwrap();
}

#[test]
fn failed_or_volatile_flush_promises_nothing() {
    let mut driver = ModelDriver::new();
    let old = driver.write(0, 1);
    driver.flush();
    driver.write(0, 1);
    let flush = driver.begin(OpKind::Flush, 0, 0);
    driver.fail(flush);
    let flush = driver.begin(OpKind::Flush, 0, 0);
    let now = driver.now();
    driver.model.end(flush, Outcome::Ok, true, now);
    driver.crash();
    driver.read(Some(old)).unwrap();
}

#[test]
fn fua_write_is_durable_without_a_flush() {
    let mut driver = ModelDriver::new();
    let old = driver.write(0, 1);
    let now = driver.now();
    let fua = driver.model.begin(OpKind::Write, Submit { client: 1, count: 1, fua: true, ..Submit::default() }, now);
    driver.ok(fua);
    driver.crash();
    assert!(driver.read(Some(old)).is_err());
    driver.read(Some(fua)).unwrap();
}

#[test]
fn failed_write_leaves_either_version_until_the_next_success() {
    let mut driver = ModelDriver::new();
    let old = driver.write(0, 1);
    let failed = driver.begin(OpKind::Write, 0, 1);
    driver.fail(failed);
    driver.read(Some(old)).unwrap();
    driver.read(Some(failed)).unwrap();
    driver.read(Some(old)).unwrap();
    let new = driver.write(0, 1);
    driver.read(Some(new)).unwrap();
    assert!(driver.read(Some(failed)).is_err());
    driver.flush();
    driver.crash();
    assert!(driver.read(Some(failed)).is_err());
}

#[test]
fn discard_reads_as_zeroes_and_survives_like_a_write() {
    let mut driver = ModelDriver::new();
    let old = driver.write(0, 8);
    let discard = driver.begin(OpKind::Discard, 0, 8);
    driver.ok(discard);
    assert!(driver.read(Some(old)).is_err(), "a discarded sector must not read as old data");
    driver.read(None).unwrap();
    driver.flush();
    driver.crash();
    assert!(driver.read(Some(old)).is_err());
}

#[test]
fn allocation_status_never_calls_data_zero_or_hole() {
    let mut driver = ModelDriver::new();
    driver.write(8, 8);
    let end_status = |driver: &mut ModelDriver, hole, zero| {
        let op = driver.begin(OpKind::Allocation, 0, 16);
        let now = driver.now();
        let extents = [
            AllocationExtent { len_bytes: 8 * 512, hole: true, zero: true },
            AllocationExtent { len_bytes: 8 * 512, hole, zero },
        ];
        driver.model.end_allocation(op, &extents, now)
    };
    end_status(&mut driver, false, false).unwrap();
    assert!(end_status(&mut driver, false, true).is_err());
    assert!(end_status(&mut driver, true, false).is_err());
    let op = driver.begin(OpKind::Allocation, 0, 16);
    let now = driver.now();
    assert!(driver.model.end_allocation(op, &[], now).is_err(), "a status reply has at least one extent");
}

#[test]
fn drained_backing_holds_the_newest_versions() {
    let mut driver = ModelDriver::new();
    let old = driver.write(0, 1);
    let new = driver.write(0, 1);
    let drain = driver.begin(OpKind::Drain("drain".into()), 0, 0);
    driver.ok(drain);
    let backing = |newest| move |sector| if sector == 0 { Tag::new(1, newest, 0) } else { Tag::ZERO };
    driver.model.check_drained(drain, backing(new)).unwrap();
    assert!(driver.model.check_drained(drain, backing(old)).is_err());
}

#[test]
fn unflushed_version_seen_after_a_crash_may_vanish_at_the_next() {
    let mut driver = ModelDriver::new();
    let old = driver.write(0, 1);
    driver.flush();
    let new = driver.write(0, 1);
    driver.crash();
    driver.read(Some(new)).unwrap();
    driver.crash();
    driver.read(Some(old)).unwrap();
    let mut driver = ModelDriver::new();
    driver.write(0, 1);
    driver.flush();
    let new = driver.write(0, 1);
    driver.crash();
    driver.read(Some(new)).unwrap();
    driver.flush();
    driver.crash();
    assert!(driver.read(Some(old)).is_err(), "a version that was seen and then flushed is durable");
}

#[test]
fn written_through_data_may_vanish_when_the_backing_loses_it() {
    let mut driver = ModelDriver::new();
    let old = driver.write(0, 1);
    driver.flush();
    let held = driver.write(0, 1);
    driver.model.backing_lost_unflushed();
    assert!(driver.read(Some(old)).is_err(), "the cache rewrites the data that it holds");
    driver.read(Some(held)).unwrap();
    let now = driver.now();
    let write_through = Submit { client: 1, count: 1, write_through: true, ..Submit::default() };
    let passed = driver.model.begin(OpKind::Write, write_through, now);
    driver.ok(passed);
    driver.model.backing_lost_unflushed();
    driver.read(Some(held)).unwrap();
    driver.read(Some(passed)).unwrap();
}

#[test]
fn write_back_volatile_keeps_writes_older_than_the_deferral() {
    let mut driver = ModelDriver::new();
    let old = driver.write(0, 1);
    let new = driver.write(0, 1);
    let now = Nanos::from_secs(20);
    driver.model.crash(Some(Nanos::from_secs(10)), now);
    assert!(driver.read(Some(old)).is_err());
    driver.read(Some(new)).unwrap();
}

#[test]
fn regrown_volume_reads_zeroes_past_the_old_end() {
    let mut driver = ModelDriver::new();
    let truncated = driver.write(0, SECTORS);
    let now = driver.now();
    driver.model.resize(32, now);
    driver.model.resize(SECTORS, now);
    let op = driver.begin(OpKind::Read, 40, 1);
    assert!(driver.model.end_read(op, &[Tag::new(1, truncated, 40)], now).is_err());
    let op = driver.begin(OpKind::Read, 40, 1);
    driver.model.end_read(op, &[Tag::ZERO], now).unwrap();
}

#[test]
fn superseded_durable_versions_are_dropped() {
    let mut driver = ModelDriver::new();
    for _ in 0..100 {
        driver.write(0, 1);
        driver.flush();
    }
    assert!(driver.model.sectors[0].len() < 8, "{} versions kept", driver.model.sectors[0].len());
    let history = driver.model.history(0, 10);
    assert_eq!(history.lines().count(), 11);
    assert!(history.contains("older operations not shown"), "{history}");
}

#[test]
fn zeroes_of_a_pending_discard_do_not_confirm_older_zeroes() {
    let mut driver = ModelDriver::new();
    let zero = driver.begin(OpKind::Zero, 0, 1);
    let write = driver.begin(OpKind::Write, 0, 1);
    driver.ok(zero);
    driver.ok(write);
    let pending = driver.begin(OpKind::Discard, 0, 1);
    driver.read(None).unwrap();
    driver.fail(pending);
    driver.read(Some(write)).unwrap();
}
