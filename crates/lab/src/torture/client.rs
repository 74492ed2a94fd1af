//! A client of a volume: draws requests, sends them, and holds what comes back against the model.

use std::ops::Range;
use std::rc::Rc;

use engine::{RequestError, Volume, WriteFlags, WriteSource, ZeroFlags};
use seam::sim::{SimBlock, SimSeam};
use seam::{BLOCK_BYTES, Nanos, Piece, SECTOR_BYTES, Seam};

use super::bench::{Life, Source, Subject};
use super::content::Tag;
use super::history::{OpKind, Outcome};
use super::model::Finding;
use crate::random::Random;

const SECTOR: u64 = SECTOR_BYTES as u64;

/// What a client likes to do.
#[derive(Clone, Copy, Debug)]
enum Taste {
    /// Everything.
    Mixed,
    /// Mostly writes.
    Writer,
    /// Mostly reads.
    Reader,
    /// One request after the other, so that it is read ahead.
    Sequential,
    /// Zero-ranges, discards and questions about them.
    Trimmer,
}

struct Client {
    life: Rc<Life>,
    subject: usize,
    number: u16,
    random: Random,
    taste: Taste,
    aligned: bool,
    think_max: Nanos,
    flush_percent: u32,
    next: u64,
    /// Writes so far.
    written: u64,
    /// Reads so far.
    read: u64,
}

/// Of so many reads, and of so many writes, one says that it is asked for once; no power of two, so that it meets what every other one is.
const ONE_IN: u64 = 3;

/// Client `number` at work until no operation is left.
pub async fn run(life: Rc<Life>, number: u16, mut random: Random) {
    let subject = usize::from(number) % life.subjects.len();
    let tastes = [Taste::Mixed, Taste::Mixed, Taste::Writer, Taste::Reader, Taste::Sequential, Taste::Trimmer];
    let mut client = Client {
        subject,
        number,
        taste: random.pick(&tastes),
        aligned: random.percent(40),
        think_max: Nanos::from_micros(random.pick(&[0, 0, 100, 2_000])),
        flush_percent: random.pick(&[1, 5, 20]),
        next: 0,
        written: 0,
        read: 0,
        life,
        random,
    };
    while client.life.take_turn() {
        client.step().await;
    }
    client.life.leave();
}

impl Client {
    async fn step(&mut self) {
        let life = Rc::clone(&self.life);
        let subject = &life.subjects[self.subject];
        subject.enter(&life.seam).await;
        let roll = self.random.below(100) as u32;
        if roll < self.flush_percent {
            self.flush(&life, subject).await;
        } else {
            let kind = self.draw_kind();
            let (first, count) = self.draw_range(subject);
            match kind {
                OpKind::Read => self.read(&life, subject, first, count).await,
                OpKind::Write => self.write(&life, subject, first, count).await,
                OpKind::Zero | OpKind::Discard => self.zero(&life, subject, kind, first, count).await,
                OpKind::Allocation => self.allocation(&life, subject, first, count).await,
                _ => self.prefetch(&life, subject, first, count).await,
            }
        }
        subject.leave();
        if self.think_max > Nanos::ZERO && self.random.percent(50) {
            let pause = Nanos(self.random.below(self.think_max.0));
            life.seam.sleep(pause).await;
        }
    }

    fn draw_kind(&mut self) -> OpKind {
        // Shares of read, write, zero, discard, allocation; the rest is prefetch.
        let shares = match self.taste {
            Taste::Mixed => [35, 45, 4, 5, 8],
            Taste::Writer => [10, 80, 3, 3, 2],
            Taste::Reader => [80, 10, 2, 2, 3],
            Taste::Sequential => [85, 12, 1, 1, 1],
            Taste::Trimmer => [20, 30, 15, 15, 18],
        };
        let kinds = [OpKind::Read, OpKind::Write, OpKind::Zero, OpKind::Discard, OpKind::Allocation];
        let mut roll = self.random.below(100);
        for (share, kind) in shares.into_iter().zip(kinds) {
            if roll < share {
                return kind;
            }
            roll -= share;
        }
        OpKind::Prefetch
    }

    /// First sector and sectors of a request inside the volume.
    fn draw_range(&mut self, subject: &Subject) -> (u64, u64) {
        let sectors = subject.sectors();
        let largest = (self.life.options.length_max / SECTOR).min(sectors);
        let class = self.random.pick(&[8, 8, 8, 24, 24, 128, 512]);
        let unit = if self.aligned { 8.min(largest) } else { 1 };
        let count = (self.random.between(1, class.min(largest)).next_multiple_of(unit)).min(largest);
        if matches!(self.taste, Taste::Sequential) && self.random.percent(90) {
            let first = if self.next + count <= sectors { self.next } else { 0 };
            self.next = first + count;
            return (first, count);
        }
        let region = (sectors * u64::from(subject.options.region_percent) / 100).clamp(count, sectors);
        let places = if self.random.percent(85) { region - count } else { sectors - count };
        (self.random.below(places + 1) / unit * unit, count)
    }

    async fn read(&mut self, life: &Life, subject: &Subject, first: u64, count: u64) {
        let (op, marks) = life.begin(subject, self.number, OpKind::Read, first..first + count, false);
        let volume = subject.volume();
        let (at, len) = (first * SECTOR, (count * SECTOR) as usize);
        let mut pieces: Vec<Piece<SimBlock>> = Vec::new();
        let at_once = self.random.percent(60) && volume.read_now(at, len, &mut pieces);
        self.read += 1;
        let once = life.options.once && self.read.is_multiple_of(ONE_IN);
        let result = match (at_once, once) {
            (true, _) => Ok(()),
            (false, true) => volume.read_once(at, len, &mut pieces).await,
            (false, false) => volume.read(at, len, &mut pieces).await,
        };
        if result.is_err() {
            life.end(subject, op, &marks, &result);
            return;
        }
        let content = tags(&pieces);
        if content.len() as u64 != count {
            let what = format!("op {op}: a read of {count} sectors returned {}", content.len());
            subject.model.borrow_mut().end(op, Outcome::Ok, false, life.seam.now());
            return life.report(subject, Err(Finding { what, sector: Some(first) }));
        }
        let checked = subject.model.borrow_mut().end_read(op, &content, life.seam.now());
        life.report(subject, checked);
        if self.random.percent(10) {
            let pause = Nanos::from_micros(self.random.between(1, 3_000));
            life.seam.sleep(pause).await;
            let later = tags(&pieces);
            if let Some(index) = content.iter().zip(&later).position(|(before, after)| before != after) {
                let (before, after) = (content[index], later[index]);
                let what = format!("op {op}: a buffer changed while a client held it (R1), from {before} to {after}");
                life.report(subject, Err(Finding { what, sector: Some(first + index as u64) }));
            }
        }
    }

    async fn write(&mut self, life: &Life, subject: &Subject, first: u64, count: u64) {
        let fua = self.random.percent(5);
        let (op, marks) = life.begin(subject, self.number, OpKind::Write, first..first + count, fua);
        let volume = subject.volume();
        let (at, len) = (first * SECTOR, (count * SECTOR) as usize);
        let mut source = Source { volume: subject.number, op, first };
        let once = life.options.once && self.written.is_multiple_of(ONE_IN);
        let (now, flags) = (!fua && self.random.percent(60) && !once, WriteFlags { fua, once });
        // Every other write of whole blocks gives its buffers away instead of having them copied.
        let whole = [at, len as u64].iter().all(|value| value.is_multiple_of(BLOCK_BYTES as u64));
        let mut given = (whole && self.written.is_multiple_of(2)).then(|| source.blocks(&volume, len)).flatten();
        self.written += 1;
        let result = match &mut given {
            Some(given) => send(&volume, at, len, flags, now, given).await,
            None => send(&volume, at, len, flags, now, &mut source).await,
        };
        life.end(subject, op, &marks, &result);
    }

    async fn zero(&mut self, life: &Life, subject: &Subject, kind: OpKind, first: u64, count: u64) {
        let fua = self.random.percent(5);
        let discard = kind == OpKind::Discard;
        let (op, marks) = life.begin(subject, self.number, kind, first..first + count, fua);
        let volume = subject.volume();
        let (at, len) = (first * SECTOR, count * SECTOR);
        let flags = ZeroFlags { fua, may_unmap: self.random.percent(50), fast_only: self.random.percent(20) };
        let result = match discard {
            true => volume.discard(at, len, WriteFlags { fua, ..Default::default() }).await,
            false => volume.zero(at, len, flags).await,
        };
        if !discard && flags.fast_only && result == Err(RequestError::NotFast) {
            let outcome = Outcome::Failed("not fast".into());
            return subject.model.borrow_mut().end(op, outcome, false, life.seam.now());
        }
        life.end(subject, op, &marks, &result);
    }

    async fn flush(&mut self, life: &Life, subject: &Subject) {
        let (op, marks) = life.begin(subject, self.number, OpKind::Flush, 0..0, false);
        let result = subject.volume().flush().await;
        life.end(subject, op, &marks, &result);
    }

    async fn allocation(&mut self, life: &Life, subject: &Subject, first: u64, count: u64) {
        let (op, marks) = life.begin(subject, self.number, OpKind::Allocation, first..first + count, false);
        match subject.volume().allocation(first * SECTOR, count * SECTOR).await {
            Ok(extents) => {
                let checked = subject.model.borrow_mut().end_allocation(op, &extents, life.seam.now());
                life.report(subject, checked);
            }
            Err(error) => {
                life.end(subject, op, &marks, &Err(error));
            }
        }
    }

    async fn prefetch(&mut self, life: &Life, subject: &Subject, first: u64, count: u64) {
        let (op, marks) = life.begin(subject, self.number, OpKind::Prefetch, first..first + count, false);
        let result = subject.volume().prefetch(first * SECTOR, count * SECTOR).await;
        life.end(subject, op, &marks, &result);
    }
}

/// What pieces say, a tag a sector.
pub fn tags(pieces: &[Piece<SimBlock>]) -> Vec<Tag> {
    let sectors = pieces.iter().flat_map(|piece| {
        let all = piece.block.tags();
        let range = piece.start() / SECTOR_BYTES..(piece.start() + piece.len()) / SECTOR_BYTES;
        range.map(move |sector| Tag(all[sector]))
    });
    sectors.collect()
}

/// Reads subject `index` whole at the start of a life: before the clients are let in, or beside them.
pub async fn verify_first(life: Rc<Life>, index: usize, alone: bool) {
    let subject = &life.subjects[index];
    if alone {
        subject.close(&life.seam).await;
    }
    verify(&life, subject, !alone).await;
    if alone {
        subject.open();
    }
    life.leave();
}

/// Reads the whole volume and holds it against the model; what fails is tried again. `beside`: administrators may be at work.
pub async fn verify(life: &Life, subject: &Subject, beside: bool) {
    let chunk = 256 * 1024 / SECTOR;
    let mut first = 0;
    while first < subject.sectors() && life.finding.borrow().is_none() {
        if beside {
            subject.enter(&life.seam).await;
        }
        // The volume may have shrunk meanwhile.
        let sectors = first..(first + chunk).min(subject.sectors());
        let done = sectors.is_empty() || verify_part(life, subject, sectors).await;
        if beside {
            subject.leave();
        }
        match done {
            true => first += chunk,
            false => life.seam.sleep(Nanos::from_millis(20)).await,
        }
    }
}

async fn verify_part(life: &Life, subject: &Subject, sectors: Range<u64>) -> bool {
    let count = sectors.end - sectors.start;
    let (op, marks) = life.begin(subject, 0, OpKind::Read, sectors.clone(), false);
    let mut pieces = Vec::new();
    let result = subject.volume().read(sectors.start * SECTOR, (count * SECTOR) as usize, &mut pieces).await;
    if result.is_err() {
        return life.end(subject, op, &marks, &result);
    }
    let checked = subject.model.borrow_mut().end_read(op, &tags(&pieces), life.seam.now());
    life.report(subject, checked);
    true
}

/// Writes, at first without waiting if `now`.
async fn send(
    volume: &Volume<SimSeam>,
    at: u64,
    len: usize,
    flags: WriteFlags,
    now: bool,
    source: &mut impl WriteSource<SimSeam>,
) -> Result<(), RequestError> {
    if now && volume.write_now(at, len, source) { Ok(()) } else { volume.write(at, len, flags, source).await }
}
