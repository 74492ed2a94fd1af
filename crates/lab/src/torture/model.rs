//! Model of the promises: for every sector, the versions that a read may return and the versions that may be there
//! after a crash.
//!
//! Operations have a begin and an end in one total order of ticks. Version `a` is *superseded by* `b` when `b` began
//! after `a` had ended. All checks follow from that:
//!
//! - **read** (promise 1): any version not superseded by a version that was acknowledged before the read began;
//! - **crash** (promises 2, 3): any version not superseded by a *durable* version. A version is durable when it was
//!   acknowledged before a successful flush began, or with FUA;
//! - **drained** (promise 4): the backing's own content, under the rule of a read that began with the drain;
//! - **allocation** (R4, docs/rules.md): *zero* or *hole* only where a read could have returned zeroes.
//!
//! A failed write is a version that never supersedes. A version returned by a read counts as acknowledged again at that
//! read, so the content may not alternate between two current versions. A version is *current* for a read if it ended
//! before the read began and no acknowledged version supersedes it.

use std::ops::Range;

use seam::{AllocationExtent, Nanos, SECTOR_BYTES};

use super::history::{Loss, Op, OpKind, OpLine, Outcome, Tick};
use crate::content::{OpId, Tag};

const SECTOR: u64 = SECTOR_BYTES as u64;

/// A violated promise.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The promise and the observation.
    pub message: String,
    /// The affected sector.
    pub sector: Option<u64>,
}

/// A version of a sector: written by an operation, or seen again by a read.
#[derive(Clone, Copy, Debug)]
struct Version {
    op: OpId,
    /// Begin and end of the read that saw the version again.
    seen: Option<(Tick, Tick)>,
}

/// The operations of one volume and the content that it may return. Ticks and operation numbers are per volume.
pub struct Model {
    volume: u16,
    ops: Vec<Op>,
    sectors: Vec<Vec<Version>>,
    pending: Vec<OpId>,
    tick: Tick,
    /// Versions acknowledged before this tick are durable.
    durable_before: Tick,
    /// True when the backing has lost some write.
    has_losses: bool,
    /// Tick of the last crash. Versions acknowledged before it may or may not have survived.
    last_crash: Tick,
}

/// Parameters of a submitted operation.
#[derive(Clone, Copy, Debug, Default)]
pub struct Submit {
    /// Number of the client.
    pub client: u16,
    /// First sector.
    pub first: u64,
    /// Number of sectors.
    pub count: u64,
    /// The acknowledgement promises durability.
    pub fua: bool,
    /// True if only the backing holds the write until a flush, because the write policy writes through.
    pub write_through: bool,
}

impl Model {
    /// A volume of `sectors` sectors. With `filled` they hold [`Tag::new`] of operation 0, otherwise zeroes.
    pub fn new(volume: u16, sectors: u64, filled: bool) -> Model {
        let kind = if filled { OpKind::Initial } else { OpKind::Zero };
        let mut model = Model {
            volume,
            ops: Vec::new(),
            sectors: vec![vec![Version { op: 0, seen: None }]; sectors as usize],
            pending: Vec::new(),
            tick: 0,
            durable_before: 0,
            has_losses: false,
            last_crash: 0,
        };
        let op = model.begin(kind, Submit { count: sectors, ..Submit::default() }, Nanos::ZERO);
        model.end(op, Outcome::Ok, false, Nanos::ZERO);
        model.durable_before = model.next_tick();
        model
    }

    /// The present size in sectors.
    pub fn sectors(&self) -> u64 {
        self.sectors.len() as u64
    }

    /// All operations so far, indexed by their number.
    pub fn ops(&self) -> &[Op] {
        &self.ops
    }

    /// The volume's number in tags.
    pub fn volume(&self) -> u16 {
        self.volume
    }

    /// Records the submission of an operation. Its number identifies its content ([`Tag::new`]).
    pub fn begin(&mut self, kind: OpKind, request: Submit, now: Nanos) -> OpId {
        let id = self.ops.len() as OpId;
        let begin = self.next_tick();
        let changes = kind.changes() && id > 0;
        self.ops.push(Op {
            client: request.client,
            kind,
            first: request.first,
            count: request.count,
            fua: request.fua,
            begin,
            end: Tick::MAX,
            began_at: now,
            ended_at: Nanos::MAX,
            outcome: Outcome::Pending,
            volatile: false,
            write_through: request.write_through,
            loss: Loss::None,
        });
        if changes {
            let oldest_pending_begin =
                self.pending.iter().map(|op| self.ops[*op as usize].begin).min().unwrap_or(begin);
            for sector in request.first..request.first + request.count {
                self.drop_superseded(sector as usize, oldest_pending_begin);
                self.sectors[sector as usize].push(Version { op: id, seen: None });
            }
        }
        self.pending.push(id);
        id
    }

    /// Records the end of an operation. `volatile` is true if the volume promised durability only after the deferral
    /// time at any time during the operation.
    pub fn end(&mut self, id: OpId, outcome: Outcome, volatile: bool, now: Nanos) {
        let end = self.next_tick();
        self.pending.retain(|pending| *pending != id);
        let op = &mut self.ops[id as usize];
        assert!(op.end == Tick::MAX, "operation {id} ended twice");
        (op.end, op.ended_at, op.volatile) = (end, now, volatile);
        let begin = op.begin;
        // A drain promises durability even where a flush does not (write-back-volatile).
        let drained = matches!(op.kind, OpKind::Drain(_));
        let flushed = drained || op.kind == OpKind::Flush;
        let promised = outcome == Outcome::Ok && (drained || !volatile);
        op.outcome = outcome;
        if flushed && promised {
            self.durable_before = self.durable_before.max(begin);
        }
        if flushed && self.has_losses {
            self.resolve_losses(begin, promised);
        }
    }

    /// Marks earlier losses of the backing at a flush: a successful flush promises that the data survived, a failed one
    /// has reported the loss.
    fn resolve_losses(&mut self, begin: Tick, promised: bool) {
        for op in self.ops.iter_mut().filter(|op| op.loss == Loss::Unreported && op.end < begin) {
            op.loss = if promised { Loss::None } else { Loss::Reported };
        }
    }

    /// Records an event of the whole volume.
    pub fn event(&mut self, text: String, now: Nanos) {
        self.record(OpKind::Event(text), now);
    }

    /// Records an operation that ends when it begins.
    pub fn record(&mut self, kind: OpKind, now: Nanos) {
        let op = self.begin(kind, Submit::default(), now);
        self.end(op, Outcome::Ok, false, now);
    }

    /// Ends a read and checks its content against promise 1.
    pub fn end_read(&mut self, id: OpId, content: &[Tag], now: Nanos) -> Result<(), Finding> {
        self.end(id, Outcome::Ok, false, now);
        let (first, begin, end) = self.range(id);
        assert_eq!(content.len() as u64, self.ops[id as usize].count, "a read returns the requested sectors");
        for (sector, tag) in (first..).zip(content) {
            self.check(sector, *tag, begin, "a read returned")?;
            self.record_seen(sector as usize, *tag, begin, end);
        }
        Ok(())
    }

    /// Checks the backing's content against promise 4 after drain `id` succeeded.
    pub fn check_drained(&self, id: OpId, backing: impl Fn(u64) -> Tag) -> Result<(), Finding> {
        let begin = self.ops[id as usize].begin;
        (0..self.sectors())
            .try_for_each(|sector| self.check(sector, backing(sector), begin, "after a drain the backing holds"))
    }

    /// Ends a status request and checks its extents against R4.
    pub fn end_allocation(&mut self, id: OpId, extents: &[AllocationExtent], now: Nanos) -> Result<(), Finding> {
        self.end(id, Outcome::Ok, false, now);
        let (first, begin, _) = self.range(id);
        let end = (first + self.ops[id as usize].count) * SECTOR;
        let mut at = first * SECTOR;
        for extent in extents {
            if extent.len_bytes == 0 || at + extent.len_bytes > end {
                let message = format!(
                    "allocation status returned an extent of {} bytes at byte {at} of a request that ends at {end}",
                    extent.len_bytes
                );
                return Err(Finding { message, sector: None });
            }
            if extent.zero || extent.hole {
                let observation =
                    if extent.zero { "allocation status reports" } else { "allocation status reports a hole, so" };
                (at / SECTOR..(at + extent.len_bytes).div_ceil(SECTOR))
                    .try_for_each(|sector| self.check(sector, Tag::ZERO, begin, observation))?;
            }
            at += extent.len_bytes;
        }
        match extents.is_empty() {
            true => Err(Finding { message: "allocation status returned no extents".into(), sector: None }),
            false => Ok(()),
        }
    }

    /// Records a crash of the world. Pending operations are never answered, and versions that are not durable may be
    /// lost. With `volatile_age`, versions of write-back-volatile that were acknowledged longer ago than that are
    /// durable too.
    pub fn crash(&mut self, volatile_age: Option<Nanos>, now: Nanos) {
        let tick = self.next_tick();
        for id in std::mem::take(&mut self.pending) {
            let op = &mut self.ops[id as usize];
            (op.end, op.ended_at) = (tick, now);
        }
        let mut sectors = std::mem::take(&mut self.sectors);
        for versions in &mut sectors {
            let floor = self.newest_begin(versions, |version| {
                self.is_durable(version) || volatile_age.is_some_and(|age| self.is_older_than(version, age, now))
            });
            versions.retain(|version| self.end_of(version) >= floor);
            // The order of the reads that saw them does not matter after the crash.
            for version in versions.iter_mut() {
                version.seen = None;
            }
            versions.sort_by_key(|version| version.op);
            versions.dedup_by_key(|version| version.op);
        }
        self.sectors = sectors;
        self.last_crash = self.next_tick();
    }

    /// Records a kill of the process whose memory survives: no acknowledged write is lost. Pending operations are never
    /// answered, and earlier losses of the backing are not reported any more.
    pub fn kill(&mut self, now: Nanos) {
        let tick = self.next_tick();
        for id in std::mem::take(&mut self.pending) {
            let op = &mut self.ops[id as usize];
            (op.end, op.ended_at) = (tick, now);
        }
        self.ops.iter_mut().filter(|op| op.loss == Loss::Unreported).for_each(|op| op.loss = Loss::Reported);
    }

    /// Records that the backing lost its unflushed data while the engine runs on. Writes that only the backing held may
    /// be lost, but not silently: either the next flush fails or the data is there (promise 2).
    pub fn backing_lost_unflushed(&mut self) {
        let (durable_before, last_crash) = (self.durable_before, self.last_crash);
        let written = self.ops.iter_mut().filter(|op| op.kind.changes() && op.write_through && op.begin >= last_crash);
        for op in written.filter(|op| op.loss == Loss::None && op.end >= durable_before) {
            if !(op.fua && op.outcome == Outcome::Ok) {
                op.loss = Loss::Unreported;
                self.has_losses = true;
            }
        }
        // Forget that a read saw a write that may now be lost: only its original begin and end count.
        let ops = &self.ops;
        for versions in &mut self.sectors {
            versions.retain(|version| version.seen.is_none() || ops[version.op as usize].loss == Loss::None);
        }
    }

    /// Sets the size to `sectors`. New sectors read as zeroes.
    pub fn resize(&mut self, sectors: u64, now: Nanos) {
        let old = self.sectors();
        if sectors <= old {
            self.sectors.truncate(sectors as usize);
            return;
        }
        self.sectors.resize(sectors as usize, Vec::new());
        let grown = Submit { first: old, count: sectors - old, ..Submit::default() };
        let op = self.begin(OpKind::Zero, grown, now);
        self.end(op, Outcome::Ok, false, now);
    }

    /// Resets the model to the content of the backing after an administrator restored the volume from it. Returns
    /// false, without a change, where the backing holds content that no operation of this volume wrote.
    pub fn reset_to_backing(&mut self, backing: impl Fn(u64) -> Tag, now: Nanos) -> bool {
        let known = |sector: u64, tag: Tag| {
            tag == Tag::ZERO
                || tag.volume() == self.volume && tag.sector() == sector && (tag.op() as usize) < self.ops.len()
        };
        if !(0..self.sectors()).all(|sector| known(sector, backing(sector))) {
            return false;
        }
        let zeroes = self.begin(OpKind::Zero, Submit::default(), now);
        self.end(zeroes, Outcome::Ok, false, now);
        let seen = Some((self.next_tick(), self.next_tick()));
        for sector in 0..self.sectors() {
            let tag = backing(sector);
            let op = if tag == Tag::ZERO { zeroes } else { tag.op() };
            self.sectors[sector as usize] = vec![Version { op, seen }];
        }
        self.durable_before = self.next_tick();
        self.event("an administrator reset the volume to the content of its backing".into(), now);
        true
    }

    /// True when `backing` holds an allowed version of each of these sectors.
    pub fn is_complete_on(&self, sectors: Range<u64>, backing: impl Fn(u64) -> Tag) -> bool {
        sectors.into_iter().all(|sector| self.check(sector, backing(sector), self.tick + 1, "").is_ok())
    }

    /// True when a write or zero-range since the last crash is acknowledged but not yet durable by a flush.
    pub fn has_unflushed(&self) -> bool {
        let is_unflushed = |version: &Version| {
            self.ops[version.op as usize].kind.changes() && self.is_acknowledged(version) && !self.is_durable(version)
        };
        self.sectors.iter().flatten().any(is_unflushed)
    }

    /// History of `sector` as text: the last `limit` operations that covered it.
    pub fn history(&self, sector: u64, limit: usize) -> String {
        let numbered = self.ops.iter().enumerate().filter(|(_, op)| op.covers(sector));
        let lines: Vec<String> = numbered.map(|(id, op)| format!("  {}\n", OpLine(id as OpId, op))).collect();
        let skipped = lines.len().saturating_sub(limit);
        let head = if skipped > 0 { format!("  ({skipped} older operations not shown)\n") } else { String::new() };
        head + &lines[skipped..].concat()
    }

    /// History of the volume as text: the last `limit` operations.
    pub fn last_operations(&self, limit: usize) -> String {
        let numbered = self.ops.iter().enumerate().skip(self.ops.len().saturating_sub(limit));
        numbered.map(|(id, op)| format!("  {}\n", OpLine(id as OpId, op))).collect()
    }

    fn next_tick(&mut self) -> Tick {
        self.tick += 1;
        self.tick
    }

    fn range(&self, id: OpId) -> (u64, Tick, Tick) {
        let op = &self.ops[id as usize];
        (op.first, op.begin, op.end)
    }

    fn begin_of(&self, version: &Version) -> Tick {
        version.seen.map_or(self.ops[version.op as usize].begin, |(begin, _)| begin)
    }

    fn end_of(&self, version: &Version) -> Tick {
        version.seen.map_or(self.ops[version.op as usize].end, |(_, end)| end)
    }

    /// True if the version was acknowledged since the last crash, so that it supersedes others.
    fn is_acknowledged(&self, version: &Version) -> bool {
        let op = &self.ops[version.op as usize];
        let ok = version.seen.is_some() || (op.outcome == Outcome::Ok && op.loss == Loss::None);
        ok && self.begin_of(version) >= self.last_crash
    }

    fn is_durable(&self, version: &Version) -> bool {
        let op = &self.ops[version.op as usize];
        let fua = version.seen.is_none() && op.fua && !op.volatile;
        self.is_acknowledged(version) && (self.end_of(version) < self.durable_before || fua)
    }

    fn is_older_than(&self, version: &Version, age: Nanos, now: Nanos) -> bool {
        let op = &self.ops[version.op as usize];
        version.seen.is_none() && self.is_acknowledged(version) && op.ended_at + age < now
    }

    /// Latest begin among the versions for which `is_counted` is true; versions that ended before it are superseded.
    fn newest_begin(&self, versions: &[Version], is_counted: impl Fn(&Version) -> bool) -> Tick {
        versions.iter().filter(|version| is_counted(version)).map(|version| self.begin_of(version)).max().unwrap_or(0)
    }

    fn tag(&self, version: &Version, sector: u64) -> Tag {
        match self.ops[version.op as usize].kind {
            OpKind::Write | OpKind::Initial => Tag::new(self.volume, version.op, sector),
            _ => Tag::ZERO,
        }
    }

    /// Drops versions that neither a read nor a crash can return. All operations that began before
    /// `oldest_pending_begin` have ended.
    fn drop_superseded(&mut self, sector: usize, oldest_pending_begin: Tick) {
        if self.sectors[sector].len() < 4 {
            return;
        }
        let mut versions = std::mem::take(&mut self.sectors[sector]);
        let floor = self
            .newest_begin(&versions, |version| self.is_durable(version) && self.end_of(version) < oldest_pending_begin);
        versions.retain(|version| self.end_of(version) >= floor);
        self.sectors[sector] = versions;
    }

    fn check(&self, sector: u64, tag: Tag, begin: Tick, observation: &str) -> Result<(), Finding> {
        let versions = &self.sectors[sector as usize];
        let floor =
            self.newest_begin(versions, |version| self.is_acknowledged(version) && self.end_of(version) < begin);
        let mut allowed = versions.iter().filter(|version| self.end_of(version) >= floor);
        if allowed.any(|version| self.tag(version, sector) == tag) {
            return Ok(());
        }
        let reason = self.rejection_reason(sector, tag);
        let allowed: Vec<String> = versions
            .iter()
            .filter(|version| self.end_of(version) >= floor)
            .map(|version| self.describe(version))
            .collect();
        let message = format!("sector {sector}: {observation} {tag} ({reason}); allowed: {}", allowed.join(", "));
        Err(Finding { message, sector: Some(sector) })
    }

    fn rejection_reason(&self, sector: u64, tag: Tag) -> &'static str {
        let known = self.ops.get(tag.op() as usize).filter(|op| op.covers(sector) && op.kind.changes());
        match known {
            _ if tag == Tag::ZERO => "zeroes, which are not the last content",
            _ if tag.volume() != self.volume => "another volume's data",
            _ if tag.sector() != sector => "another sector's data",
            Some(_) => "an old version, superseded",
            None => "content that no operation wrote",
        }
    }

    fn describe(&self, version: &Version) -> String {
        let seen = if version.seen.is_some() { " (seen by a read)" } else { "" };
        match self.ops[version.op as usize].kind {
            OpKind::Write | OpKind::Initial => format!("op {}{seen}", version.op),
            _ => format!("zeroes of op {}{seen}", version.op),
        }
    }

    /// If several current versions were allowed, a read decides for the one it returned: that version counts as
    /// acknowledged again at the read.
    fn record_seen(&mut self, sector: usize, tag: Tag, begin: Tick, end: Tick) {
        let versions = &self.sectors[sector];
        if versions.len() < 2 {
            return;
        }
        let floor =
            self.newest_begin(versions, |version| self.is_acknowledged(version) && self.end_of(version) < begin);
        let is_current = |version: &&Version| (floor..begin).contains(&self.end_of(version));
        let is_undecided = versions.iter().filter(is_current).any(|version| {
            let op = &self.ops[version.op as usize];
            op.loss != Loss::None || matches!(op.outcome, Outcome::Failed(_)) && op.begin >= self.last_crash
        });
        // Zeroes of a zero-range in flight look like the zeroes of a current one.
        let is_ambiguous =
            versions.iter().any(|version| self.end_of(version) >= begin && self.tag(version, sector as u64) == tag);
        let candidates = versions.iter().filter(is_current).count();
        let seen = versions.iter().filter(is_current).find(|version| self.tag(version, sector as u64) == tag);
        if let Some(version) = seen.copied()
            && candidates > 1
            && !is_undecided
            && !is_ambiguous
        {
            self.sectors[sector].push(Version { seen: Some((begin, end)), ..version });
        }
    }
}

#[cfg(test)]
mod tests;
