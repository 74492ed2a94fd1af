//! The promises as a model: for every sector, which versions a read may return now and which may be there after a crash.
//!
//! Operations have a beginning and an end in one total order of ticks. Version `a` is *superseded by* `b` when `b` began after
//! `a` had ended. From that follow all checks:
//!
//! - **read** (promise 1): any version that no acknowledged version supersedes, of those acknowledged before the read began;
//! - **crash** (promises 2, 3): any version that no *durable* version supersedes; durable is what was acknowledged before a
//!   successful flush began, or with FUA;
//! - **drained** (promise 4): the backing's own content, held to the rule of a read that began with the drain;
//! - **allocation** (R4): *zero* or *hole* only where a read could have returned zeroes.
//!
//! A failed write is a version that never supersedes. What a read saw counts as acknowledged again at that read, so that content
//! may not swing between two versions that are both settled.

use std::ops::Range;

use seam::{AllocationExtent, Nanos};

use super::content::{OpId, Tag};
use super::history::{Line, Loss, Op, OpKind, Outcome, Tick};

/// A broken promise.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// What was promised and what was seen.
    pub what: String,
    /// Where.
    pub sector: Option<u64>,
}

/// A version of a sector: an operation's, or the same seen again by a read.
#[derive(Clone, Copy, Debug)]
struct Version {
    op: OpId,
    /// Beginning and end of the read that saw it again.
    seen: Option<(Tick, Tick)>,
}

/// What one volume was told, and what it may say. Ticks and operations are its own.
pub struct Model {
    volume: u16,
    ops: Vec<Op>,
    sectors: Vec<Vec<Version>>,
    pending: Vec<OpId>,
    tick: Tick,
    /// Acknowledgements before this are durable.
    horizon: Tick,
    /// Some write was forgotten by the backing.
    forgetful: bool,
    /// Acknowledgements before this are of a life that ended in a crash: they may or may not have happened.
    life_start: Tick,
}

/// How an operation is submitted.
#[derive(Clone, Copy, Debug, Default)]
pub struct Submit {
    /// Who asks.
    pub client: u16,
    /// First sector.
    pub first: u64,
    /// Sectors.
    pub count: u64,
    /// Acknowledged only when durable.
    pub fua: bool,
    /// Nothing holds a copy until a flush (the write policy passes writes through).
    pub unheld: bool,
}

impl Model {
    /// A volume of `sectors` sectors: those for which `filled` is true hold [`Tag::new`] of operation 0, the others zeroes.
    pub fn new(volume: u16, sectors: u64, filled: bool) -> Model {
        let kind = if filled { OpKind::Initial } else { OpKind::Zero };
        let mut model = Model {
            volume,
            ops: Vec::new(),
            sectors: vec![vec![Version { op: 0, seen: None }]; sectors as usize],
            pending: Vec::new(),
            tick: 0,
            horizon: 0,
            forgetful: false,
            life_start: 0,
        };
        let op = model.begin(kind, Submit { count: sectors, ..Submit::default() }, Nanos::ZERO);
        model.end(op, Outcome::Ok, false, Nanos::ZERO);
        model.horizon = model.next_tick();
        model
    }

    /// Sectors that the volume has now.
    pub fn sectors(&self) -> u64 {
        self.sectors.len() as u64
    }

    /// All operations so far, by their number.
    pub fn ops(&self) -> &[Op] {
        &self.ops
    }

    /// The volume's number in tags.
    pub fn volume(&self) -> u16 {
        self.volume
    }

    /// Notes that an operation is submitted. Its number names its content ([`Tag::new`]).
    pub fn begin(&mut self, kind: OpKind, what: Submit, now: Nanos) -> OpId {
        let id = self.ops.len() as OpId;
        let begin = self.next_tick();
        let changes = kind.changes() && id > 0;
        self.ops.push(Op {
            client: what.client,
            kind,
            first: what.first,
            count: what.count,
            fua: what.fua,
            begin,
            end: Tick::MAX,
            began_at: now,
            ended_at: Nanos::MAX,
            outcome: Outcome::Pending,
            volatile: false,
            unheld: what.unheld,
            loss: Loss::None,
        });
        if changes {
            let settled = self.pending.iter().map(|op| self.ops[*op as usize].begin).min().unwrap_or(begin);
            for sector in what.first..what.first + what.count {
                self.forget_superseded(sector as usize, settled);
                self.sectors[sector as usize].push(Version { op: id, seen: None });
            }
        }
        self.pending.push(id);
        id
    }

    /// Notes how an operation ended. `volatile`: the volume promised durability by age alone at some time meanwhile.
    pub fn end(&mut self, id: OpId, outcome: Outcome, volatile: bool, now: Nanos) {
        let end = self.next_tick();
        self.pending.retain(|pending| *pending != id);
        let op = &mut self.ops[id as usize];
        assert!(op.end == Tick::MAX, "operation {id} ended twice");
        (op.end, op.ended_at, op.volatile) = (end, now, volatile);
        let begin = op.begin;
        // A drain promises even where a flush does not (write-back-volatile).
        let drained = matches!(op.kind, OpKind::Drain(_));
        let flushed = drained || op.kind == OpKind::Flush;
        let promised = outcome == Outcome::Ok && (drained || !volatile);
        op.outcome = outcome;
        if flushed && promised {
            self.horizon = self.horizon.max(begin);
        }
        if flushed && self.forgetful {
            self.own_up(begin, promised);
        }
    }

    /// A flush speaks for what a backing forgot before: success says that it is there after all, failure that it may not be.
    fn own_up(&mut self, begin: Tick, promised: bool) {
        for op in self.ops.iter_mut().filter(|op| op.loss == Loss::Untold && op.end < begin) {
            op.loss = if promised { Loss::None } else { Loss::Told };
        }
    }

    /// Notes something that happened to the whole volume at once.
    pub fn event(&mut self, text: String, now: Nanos) {
        self.note(OpKind::Event(text), now);
    }

    /// Notes an operation that ends as it begins.
    pub fn note(&mut self, kind: OpKind, now: Nanos) {
        let op = self.begin(kind, Submit::default(), now);
        self.end(op, Outcome::Ok, false, now);
    }

    /// Ends a read and holds what it returned against promise 1.
    pub fn end_read(&mut self, id: OpId, content: &[Tag], now: Nanos) -> Result<(), Finding> {
        self.end(id, Outcome::Ok, false, now);
        let (first, begin, end) = self.range(id);
        assert_eq!(content.len() as u64, self.ops[id as usize].count, "a read returns what was asked for");
        for (sector, tag) in (first..).zip(content) {
            self.check(sector, *tag, begin, "a read returned")?;
            self.see(sector as usize, *tag, begin, end);
        }
        Ok(())
    }

    /// Holds the backing's content against promise 4 after drain `id` succeeded.
    pub fn check_drained(&self, id: OpId, backing: impl Fn(u64) -> Tag) -> Result<(), Finding> {
        let begin = self.ops[id as usize].begin;
        (0..self.sectors())
            .try_for_each(|sector| self.check(sector, backing(sector), begin, "after a drain the backing holds"))
    }

    /// Ends a status request and holds its answer against R4.
    pub fn end_allocation(&mut self, id: OpId, extents: &[AllocationExtent], now: Nanos) -> Result<(), Finding> {
        self.end(id, Outcome::Ok, false, now);
        let (first, begin, _) = self.range(id);
        let end = (first + self.ops[id as usize].count) * 512;
        let mut at = first * 512;
        for extent in extents {
            if extent.len_bytes == 0 || at + extent.len_bytes > end {
                let what = format!(
                    "allocation status gave a run of {} bytes at byte {at} of a request that ends at {end}",
                    extent.len_bytes
                );
                return Err(Finding { what, sector: None });
            }
            if extent.zero || extent.hole {
                let what = if extent.zero { "allocation status said" } else { "allocation status said hole, that is" };
                (at / 512..(at + extent.len_bytes).div_ceil(512))
                    .try_for_each(|sector| self.check(sector, Tag::ZERO, begin, what))?;
            }
            at += extent.len_bytes;
        }
        match extents.is_empty() {
            true => Err(Finding { what: "allocation status gave no run at all".into(), sector: None }),
            false => Ok(()),
        }
    }

    /// The world ended. What was pending is never answered; what was not durable may be lost. With `volatile_age`,
    /// write-back-volatile's versions acknowledged longer ago than that are durable too.
    pub fn crash(&mut self, volatile_age: Option<Nanos>, now: Nanos) {
        let tick = self.next_tick();
        for id in std::mem::take(&mut self.pending) {
            let op = &mut self.ops[id as usize];
            (op.end, op.ended_at) = (tick, now);
        }
        let mut sectors = std::mem::take(&mut self.sectors);
        for versions in &mut sectors {
            let floor = self.newest(versions, |version| {
                self.durable(version) || volatile_age.is_some_and(|age| self.old_enough(version, age, now))
            });
            versions.retain(|version| self.settled(version) >= floor);
            // Their order of being seen says nothing about the next life.
            for version in versions.iter_mut() {
                version.seen = None;
            }
            versions.sort_by_key(|version| version.op);
            versions.dedup_by_key(|version| version.op);
        }
        self.sectors = sectors;
        self.life_start = self.next_tick();
    }

    /// The process was killed, and what it had in memory was kept: nothing that was acknowledged is gone. What was pending is never
    /// answered, and nobody tells any more of what a backing forgot before.
    pub fn kill(&mut self, now: Nanos) {
        let tick = self.next_tick();
        for id in std::mem::take(&mut self.pending) {
            let op = &mut self.ops[id as usize];
            (op.end, op.ended_at) = (tick, now);
        }
        self.ops.iter_mut().filter(|op| op.loss == Loss::Untold).for_each(|op| op.loss = Loss::Told);
    }

    /// The backing forgot what it had not flushed, while the engine lives on. What only the backing held may be gone, but not
    /// silently: the next flush fails, or it is there (promise 2).
    pub fn backing_forgot(&mut self) {
        let (horizon, life) = (self.horizon, self.life_start);
        let written = self.ops.iter_mut().filter(|op| op.kind.changes() && op.unheld && op.begin >= life);
        for op in written.filter(|op| op.loss == Loss::None && op.end >= horizon) {
            if !(op.fua && op.outcome == Outcome::Ok) {
                op.loss = Loss::Untold;
                self.forgetful = true;
            }
        }
        // A version seen again is no newer than what it was, if that may be gone.
        let ops = &self.ops;
        for versions in &mut self.sectors {
            versions.retain(|version| version.seen.is_none() || ops[version.op as usize].loss == Loss::None);
        }
    }

    /// The volume has `sectors` sectors from now on. New ones read as zeroes.
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

    /// An administrator has put the volume back to what its backing holds: that, and nothing else, is there from now on. False, with nothing changed,
    /// where it holds what no operation of this volume has written.
    pub fn rebase(&mut self, backing: impl Fn(u64) -> Tag, now: Nanos) -> bool {
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
        self.horizon = self.next_tick();
        self.event("an administrator put the volume back to what its backing holds".into(), now);
        true
    }

    /// True when `backing` alone has everything that must be there of those sectors.
    pub fn is_held_by(&self, sectors: Range<u64>, backing: impl Fn(u64) -> Tag) -> bool {
        sectors.into_iter().all(|sector| self.check(sector, backing(sector), self.tick + 1, "").is_ok())
    }

    /// True when a write or zero-range of this life is acknowledged, and no flush has made it durable.
    pub fn has_unflushed(&self) -> bool {
        let is_unflushed = |version: &Version| {
            self.ops[version.op as usize].kind.changes() && self.acknowledged(version) && !self.durable(version)
        };
        self.sectors.iter().flatten().any(is_unflushed)
    }

    /// What happened to `sector`, for people: the last `limit` operations that covered it.
    pub fn history(&self, sector: u64, limit: usize) -> String {
        let numbered = self.ops.iter().enumerate().filter(|(_, op)| op.covers(sector));
        let lines: Vec<String> = numbered.map(|(id, op)| format!("  {}\n", Line(id as OpId, op))).collect();
        let skipped = lines.len().saturating_sub(limit);
        let head = if skipped > 0 { format!("  ({skipped} older operations not shown)\n") } else { String::new() };
        head + &lines[skipped..].concat()
    }

    /// What happened to the volume, for people: the last `limit` operations.
    pub fn last(&self, limit: usize) -> String {
        let numbered = self.ops.iter().enumerate().skip(self.ops.len().saturating_sub(limit));
        numbered.map(|(id, op)| format!("  {}\n", Line(id as OpId, op))).collect()
    }

    fn next_tick(&mut self) -> Tick {
        self.tick += 1;
        self.tick
    }

    fn range(&self, id: OpId) -> (u64, Tick, Tick) {
        let op = &self.ops[id as usize];
        (op.first, op.begin, op.end)
    }

    fn begun(&self, version: &Version) -> Tick {
        version.seen.map_or(self.ops[version.op as usize].begin, |(begin, _)| begin)
    }

    fn settled(&self, version: &Version) -> Tick {
        version.seen.map_or(self.ops[version.op as usize].end, |(_, end)| end)
    }

    /// Acknowledged in this life, so that it supersedes.
    fn acknowledged(&self, version: &Version) -> bool {
        let op = &self.ops[version.op as usize];
        let ok = version.seen.is_some() || (op.outcome == Outcome::Ok && op.loss == Loss::None);
        ok && self.begun(version) >= self.life_start
    }

    fn durable(&self, version: &Version) -> bool {
        let op = &self.ops[version.op as usize];
        let fua = version.seen.is_none() && op.fua && !op.volatile;
        self.acknowledged(version) && (self.settled(version) < self.horizon || fua)
    }

    fn old_enough(&self, version: &Version, age: Nanos, now: Nanos) -> bool {
        let op = &self.ops[version.op as usize];
        version.seen.is_none() && self.acknowledged(version) && op.ended_at + age < now
    }

    /// Latest beginning among the versions that `counts` accepts; whatever had ended before it is superseded.
    fn newest(&self, versions: &[Version], counts: impl Fn(&Version) -> bool) -> Tick {
        versions.iter().filter(|version| counts(version)).map(|version| self.begun(version)).max().unwrap_or(0)
    }

    fn tag(&self, version: &Version, sector: u64) -> Tag {
        match self.ops[version.op as usize].kind {
            OpKind::Write | OpKind::Initial => Tag::new(self.volume, version.op, sector),
            _ => Tag::ZERO,
        }
    }

    /// Drops what neither a read nor a crash can bring back; operations that began before `settled` are all over.
    fn forget_superseded(&mut self, sector: usize, settled: Tick) {
        if self.sectors[sector].len() < 4 {
            return;
        }
        let mut versions = std::mem::take(&mut self.sectors[sector]);
        let floor = self.newest(&versions, |version| self.durable(version) && self.settled(version) < settled);
        versions.retain(|version| self.settled(version) >= floor);
        self.sectors[sector] = versions;
    }

    fn check(&self, sector: u64, tag: Tag, begin: Tick, what: &str) -> Result<(), Finding> {
        let versions = &self.sectors[sector as usize];
        let floor = self.newest(versions, |version| self.acknowledged(version) && self.settled(version) < begin);
        let mut allowed = versions.iter().filter(|version| self.settled(version) >= floor);
        if allowed.any(|version| self.tag(version, sector) == tag) {
            return Ok(());
        }
        let verdict = self.verdict(sector, tag);
        let allowed: Vec<String> = versions
            .iter()
            .filter(|version| self.settled(version) >= floor)
            .map(|version| self.name(version))
            .collect();
        let what = format!("sector {sector}: {what} {tag} ({verdict}); allowed: {}", allowed.join(", "));
        Err(Finding { what, sector: Some(sector) })
    }

    fn verdict(&self, sector: u64, tag: Tag) -> &'static str {
        let known = self.ops.get(tag.op() as usize).filter(|op| op.covers(sector) && op.kind.changes());
        match known {
            _ if tag == Tag::ZERO => "zeroes that nobody put there last",
            _ if tag.volume() != self.volume => "another volume's data",
            _ if tag.sector() != sector => "another sector's data",
            Some(_) => "an old version, superseded",
            None => "content that nobody wrote",
        }
    }

    fn name(&self, version: &Version) -> String {
        let seen = if version.seen.is_some() { " (seen by a read)" } else { "" };
        match self.ops[version.op as usize].kind {
            OpKind::Write | OpKind::Initial => format!("op {}{seen}", version.op),
            _ => format!("zeroes of op {}{seen}", version.op),
        }
    }

    /// A settled version that a read saw beside other settled ones counts as acknowledged at that read.
    fn see(&mut self, sector: usize, tag: Tag, begin: Tick, end: Tick) {
        let versions = &self.sectors[sector];
        if versions.len() < 2 {
            return;
        }
        let floor = self.newest(versions, |version| self.acknowledged(version) && self.settled(version) < begin);
        let settled = |version: &&Version| (floor..begin).contains(&self.settled(version));
        let open = versions.iter().filter(settled).any(|version| {
            let op = &self.ops[version.op as usize];
            op.loss != Loss::None || matches!(op.outcome, Outcome::Failed(_)) && op.begin >= self.life_start
        });
        // Zeroes of a zero-range still under way look like those of a settled one.
        let ambiguous =
            versions.iter().any(|version| self.settled(version) >= begin && self.tag(version, sector as u64) == tag);
        let candidates = versions.iter().filter(settled).count();
        let seen = versions.iter().filter(settled).find(|version| self.tag(version, sector as u64) == tag);
        if let Some(version) = seen.copied()
            && candidates > 1
            && !open
            && !ambiguous
        {
            self.sectors[sector].push(Version { seen: Some((begin, end)), ..version });
        }
    }
}

#[cfg(test)]
mod tests;
