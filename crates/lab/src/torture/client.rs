//! A client of a volume: draws requests, sends them, and checks the results against the model.

use std::ops::Range;
use std::rc::Rc;

use engine::{RequestError, Volume, WriteFlags, WriteSource, ZeroFlags};
use seam::sim::{SimBlock, SimSeam};
use seam::{BLOCK_BYTES, Nanos, Piece, SECTOR_BYTES, Seam};

use super::history::{OpKind, Outcome};
use super::model::Finding;
use super::session::{Session, Subject, TagSource};
use crate::content::tags;
use crate::random::Random;

const SECTOR: u64 = SECTOR_BYTES as u64;

/// The mix of operations of a client.
#[derive(Clone, Copy, Debug)]
enum Mix {
    /// All operations.
    Mixed,
    /// Mostly writes.
    Writer,
    /// Mostly reads.
    Reader,
    /// Sequential requests, which trigger readahead.
    Sequential,
    /// Zero-ranges, discards and allocation queries.
    Trimmer,
}

struct Client {
    session: Rc<Session>,
    subject: usize,
    number: u16,
    random: Random,
    mix: Mix,
    aligned: bool,
    pause_max: Nanos,
    flush_percent: u32,
    next: u64,
    /// Writes so far.
    written: u64,
    /// Reads so far.
    read: u64,
}

/// One in this many reads, and writes, is marked as accessed once. It is no power of two, so it also coincides with
/// properties of every other request.
const ONCE_EVERY: u64 = 3;

/// Runs client `number` until no operation is left.
pub async fn run(session: Rc<Session>, number: u16, mut random: Random) {
    let subject = usize::from(number) % session.subjects.len();
    let mixes = [Mix::Mixed, Mix::Mixed, Mix::Writer, Mix::Reader, Mix::Sequential, Mix::Trimmer];
    let mut client = Client {
        subject,
        number,
        mix: random.pick(&mixes),
        aligned: random.percent(40),
        pause_max: Nanos::from_micros(random.pick(&[0, 0, 100, 2_000])),
        flush_percent: random.pick(&[1, 5, 20]),
        next: 0,
        written: 0,
        read: 0,
        session,
        random,
    };
    while client.session.take_operation() {
        client.step().await;
    }
    client.session.leave();
}

impl Client {
    async fn step(&mut self) {
        let session = Rc::clone(&self.session);
        let subject = &session.subjects[self.subject];
        subject.enter(&session.seam).await;
        let roll = self.random.below(100) as u32;
        if roll < self.flush_percent {
            self.flush(&session, subject).await;
        } else {
            let kind = self.draw_kind();
            let (first, count) = self.draw_range(subject);
            match kind {
                OpKind::Read => self.read(&session, subject, first, count).await,
                OpKind::Write => self.write(&session, subject, first, count).await,
                OpKind::Zero | OpKind::Discard => self.zero(&session, subject, kind, first, count).await,
                OpKind::Allocation => self.allocation(&session, subject, first, count).await,
                _ => self.prefetch(&session, subject, first, count).await,
            }
        }
        subject.leave();
        if self.pause_max > Nanos::ZERO && self.random.percent(50) {
            let pause = Nanos(self.random.below(self.pause_max.0));
            session.seam.sleep(pause).await;
        }
    }

    fn draw_kind(&mut self) -> OpKind {
        // Percentages of read, write, zero, discard and allocation; the rest is prefetch.
        let shares = match self.mix {
            Mix::Mixed => [35, 45, 4, 5, 8],
            Mix::Writer => [10, 80, 3, 3, 2],
            Mix::Reader => [80, 10, 2, 2, 3],
            Mix::Sequential => [85, 12, 1, 1, 1],
            Mix::Trimmer => [20, 30, 15, 15, 18],
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

    /// Draws the first sector and the length in sectors of a request inside the volume.
    fn draw_range(&mut self, subject: &Subject) -> (u64, u64) {
        let sectors = subject.sectors();
        let largest = (self.session.options.length_max / SECTOR).min(sectors);
        let class = self.random.pick(&[8, 8, 8, 24, 24, 128, 512]);
        let unit = if self.aligned { 8.min(largest) } else { 1 };
        let count = (self.random.between(1, class.min(largest)).next_multiple_of(unit)).min(largest);
        if matches!(self.mix, Mix::Sequential) && self.random.percent(90) {
            let first = if self.next + count <= sectors { self.next } else { 0 };
            self.next = first + count;
            return (first, count);
        }
        let region = (sectors * u64::from(subject.options.region_percent) / 100).clamp(count, sectors);
        let positions = if self.random.percent(85) { region - count } else { sectors - count };
        (self.random.below(positions + 1) / unit * unit, count)
    }

    async fn read(&mut self, session: &Session, subject: &Subject, first: u64, count: u64) {
        let (op, marks) = session.begin(subject, self.number, OpKind::Read, first..first + count, false);
        let volume = subject.volume();
        let (at, len) = (first * SECTOR, (count * SECTOR) as usize);
        let mut pieces: Vec<Piece<SimBlock>> = Vec::new();
        let is_immediate = self.random.percent(60) && volume.read_now(at, len, &mut pieces);
        self.read += 1;
        let once = session.options.once && self.read.is_multiple_of(ONCE_EVERY);
        let result = match (is_immediate, once) {
            (true, _) => Ok(()),
            (false, true) => volume.read_once(at, len, &mut pieces).await,
            (false, false) => volume.read(at, len, &mut pieces).await,
        };
        if result.is_err() {
            session.end(subject, op, &marks, &result);
            return;
        }
        let content = tags(&pieces);
        if content.len() as u64 != count {
            let message = format!("op {op}: a read of {count} sectors returned {}", content.len());
            subject.model.borrow_mut().end(op, Outcome::Ok, false, session.seam.now());
            return session.report(subject, Err(Finding { message, sector: Some(first) }));
        }
        let checked = subject.model.borrow_mut().end_read(op, &content, session.seam.now());
        session.report(subject, checked);
        if self.random.percent(10) {
            let pause = Nanos::from_micros(self.random.between(1, 3_000));
            session.seam.sleep(pause).await;
            let later = tags(&pieces);
            if let Some(index) = content.iter().zip(&later).position(|(before, after)| before != after) {
                let (before, after) = (content[index], later[index]);
                let message =
                    format!("op {op}: a buffer changed while a client held it (R1), from {before} to {after}");
                session.report(subject, Err(Finding { message, sector: Some(first + index as u64) }));
            }
        }
    }

    async fn write(&mut self, session: &Session, subject: &Subject, first: u64, count: u64) {
        let fua = self.random.percent(5);
        let (op, marks) = session.begin(subject, self.number, OpKind::Write, first..first + count, fua);
        let volume = subject.volume();
        let (at, len) = (first * SECTOR, (count * SECTOR) as usize);
        let mut source = TagSource { volume: subject.number, op, first };
        let once = session.options.once && self.written.is_multiple_of(ONCE_EVERY);
        let (now, flags) = (!fua && self.random.percent(60) && !once, WriteFlags { fua, once });
        // Every other write of whole blocks passes its buffers to the engine instead of having them copied.
        let whole = [at, len as u64].iter().all(|value| value.is_multiple_of(BLOCK_BYTES as u64));
        let mut own_buffers = (whole && self.written.is_multiple_of(2)).then(|| source.blocks(&volume, len)).flatten();
        self.written += 1;
        let result = match &mut own_buffers {
            Some(buffers) => write_request(&volume, at, len, flags, now, buffers).await,
            None => write_request(&volume, at, len, flags, now, &mut source).await,
        };
        session.end(subject, op, &marks, &result);
    }

    async fn zero(&mut self, session: &Session, subject: &Subject, kind: OpKind, first: u64, count: u64) {
        let fua = self.random.percent(5);
        let discard = kind == OpKind::Discard;
        let (op, marks) = session.begin(subject, self.number, kind, first..first + count, fua);
        let volume = subject.volume();
        let (at, len) = (first * SECTOR, count * SECTOR);
        let flags = ZeroFlags { fua, may_unmap: self.random.percent(50), fast_only: self.random.percent(20) };
        let result = match discard {
            true => volume.discard(at, len, WriteFlags { fua, ..Default::default() }).await,
            false => volume.zero(at, len, flags).await,
        };
        if !discard && flags.fast_only && result == Err(RequestError::NotFast) {
            let outcome = Outcome::Failed("not fast".into());
            return subject.model.borrow_mut().end(op, outcome, false, session.seam.now());
        }
        session.end(subject, op, &marks, &result);
    }

    async fn flush(&mut self, session: &Session, subject: &Subject) {
        let (op, marks) = session.begin(subject, self.number, OpKind::Flush, 0..0, false);
        let result = subject.volume().flush().await;
        session.end(subject, op, &marks, &result);
    }

    async fn allocation(&mut self, session: &Session, subject: &Subject, first: u64, count: u64) {
        let (op, marks) = session.begin(subject, self.number, OpKind::Allocation, first..first + count, false);
        match subject.volume().allocation(first * SECTOR, count * SECTOR).await {
            Ok(extents) => {
                let checked = subject.model.borrow_mut().end_allocation(op, &extents, session.seam.now());
                session.report(subject, checked);
            }
            Err(error) => {
                session.end(subject, op, &marks, &Err(error));
            }
        }
    }

    async fn prefetch(&mut self, session: &Session, subject: &Subject, first: u64, count: u64) {
        let (op, marks) = session.begin(subject, self.number, OpKind::Prefetch, first..first + count, false);
        let result = subject.volume().prefetch(first * SECTOR, count * SECTOR).await;
        session.end(subject, op, &marks, &result);
    }
}

/// Reads all of subject `index` at the start of a session, before clients are admitted (`alone`) or concurrently.
pub async fn verify_first(session: Rc<Session>, index: usize, alone: bool) {
    let subject = &session.subjects[index];
    if alone {
        subject.close(&session.seam).await;
    }
    verify(&session, subject, !alone).await;
    if alone {
        subject.open();
    }
    session.leave();
}

/// Reads the whole volume and checks it against the model; failed reads are retried. With
/// `concurrently`, administrators may be active.
pub async fn verify(session: &Session, subject: &Subject, concurrently: bool) {
    let chunk = 256 * 1024 / SECTOR;
    let mut first = 0;
    while first < subject.sectors() && session.finding.borrow().is_none() {
        if concurrently {
            subject.enter(&session.seam).await;
        }
        // The volume may have shrunk meanwhile.
        let sectors = first..(first + chunk).min(subject.sectors());
        let is_verified = sectors.is_empty() || verify_part(session, subject, sectors).await;
        if concurrently {
            subject.leave();
        }
        match is_verified {
            true => first += chunk,
            false => session.seam.sleep(Nanos::from_millis(20)).await,
        }
    }
}

async fn verify_part(session: &Session, subject: &Subject, sectors: Range<u64>) -> bool {
    let count = sectors.end - sectors.start;
    let (op, marks) = session.begin(subject, 0, OpKind::Read, sectors.clone(), false);
    let mut pieces = Vec::new();
    let result = subject.volume().read(sectors.start * SECTOR, (count * SECTOR) as usize, &mut pieces).await;
    if result.is_err() {
        return session.end(subject, op, &marks, &result);
    }
    let checked = subject.model.borrow_mut().end_read(op, &tags(&pieces), session.seam.now());
    session.report(subject, checked);
    true
}

/// Writes; with `now` it first tries the synchronous path.
async fn write_request(
    volume: &Volume<SimSeam>,
    at: u64,
    len: usize,
    flags: WriteFlags,
    now: bool,
    source: &mut impl WriteSource<SimSeam>,
) -> Result<(), RequestError> {
    if now && volume.write_now(at, len, source) { Ok(()) } else { volume.write(at, len, flags, source).await }
}
