//! A client of a volume: draws requests, sends them, and checks the results against the model.

use std::ops::Range;
use std::rc::Rc;

use engine::{ByteOffset, RequestError, Volume, WriteFlags, WriteSource, ZeroFlags};
use seam::sim::{SimBlock, SimSeam};
use seam::{BLOCK_BYTES, Nanos, Piece, SECTOR_BYTES, Seam};

use super::history::{OpKind, Outcome};
use super::model::Finding;
use super::session::{Session, TagSource, TestVolume};
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
    /// Mostly sequential writes, which bypass the flash log.
    Stream,
    /// Zero-ranges, discards and allocation queries.
    Trimmer,
}

struct Client {
    session: Rc<Session>,
    test_volume: usize,
    number: u16,
    random: Random,
    mix: Mix,
    aligned: bool,
    pause_max: Nanos,
    flush_percent: u32,
    /// Sector after the last sequential request.
    next_sector: u64,
    /// Writes so far.
    writes: u64,
    /// Reads so far.
    reads: u64,
}

/// One in this many reads, and one in this many writes, is marked as accessed once. The number is odd, so that the mark
/// meets both variants of a request that alternate.
const ONCE_EVERY: u64 = 3;

/// Runs client `number` until no operation is left.
pub async fn run(session: Rc<Session>, number: u16, mut random: Random) {
    let test_volume = usize::from(number) % session.test_volumes.len();
    let mixes = [Mix::Mixed, Mix::Mixed, Mix::Writer, Mix::Reader, Mix::Sequential, Mix::Trimmer];
    let drawn = random.pick(&mixes);
    let mut client = Client {
        test_volume,
        number,
        mix: if session.options.has_stream && number == 0 { Mix::Stream } else { drawn },
        aligned: random.percent(40),
        pause_max: Nanos::from_micros(random.pick(&[0, 0, 100, 2_000])),
        flush_percent: random.pick(&[1, 5, 20]),
        next_sector: 0,
        writes: 0,
        reads: 0,
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
        let test_volume = &session.test_volumes[self.test_volume];
        test_volume.enter(&session.seam).await;
        let roll = self.random.below(100) as u32;
        if roll < self.flush_percent {
            self.flush(&session, test_volume).await;
        } else {
            let kind = self.draw_kind();
            let (first, count) = self.draw_range(test_volume, &kind);
            match kind {
                OpKind::Read => self.read(&session, test_volume, first, count).await,
                OpKind::Write => self.write(&session, test_volume, first, count).await,
                OpKind::Zero | OpKind::Discard => self.zero(&session, test_volume, kind, first, count).await,
                OpKind::Allocation => self.allocation(&session, test_volume, first, count).await,
                _ => self.prefetch(&session, test_volume, first, count).await,
            }
        }
        test_volume.leave();
        if self.pause_max > Nanos::ZERO && self.random.percent(50) {
            let pause = Nanos(self.random.below(self.pause_max.0));
            session.seam.sleep(pause).await;
        }
    }

    fn draw_kind(&mut self) -> OpKind {
        // Percentages of read, write, zero, discard and allocation; the rest is prefetch.
        let percentages = match self.mix {
            Mix::Mixed => [35, 45, 4, 5, 8],
            Mix::Writer => [10, 80, 3, 3, 2],
            Mix::Reader => [80, 10, 2, 2, 3],
            Mix::Sequential => [85, 12, 1, 1, 1],
            Mix::Stream => [8, 85, 2, 2, 1],
            Mix::Trimmer => [20, 30, 15, 15, 18],
        };
        let kinds = [OpKind::Read, OpKind::Write, OpKind::Zero, OpKind::Discard, OpKind::Allocation];
        let mut roll = self.random.below(100);
        for (percent, kind) in percentages.into_iter().zip(kinds) {
            if roll < percent {
                return kind;
            }
            roll -= percent;
        }
        OpKind::Prefetch
    }

    /// Draws the first sector and the length in sectors of a request inside the volume.
    fn draw_range(&mut self, test_volume: &TestVolume, kind: &OpKind) -> (u64, u64) {
        let sectors = test_volume.sectors();
        let largest = (self.session.options.length_max / SECTOR).min(sectors);
        let classes = match self.mix {
            Mix::Stream => [24, 24, 64, 128, 128, 512, 512],
            _ => [8, 8, 8, 24, 24, 128, 512],
        };
        let class = self.random.pick(&classes);
        let unit = if self.aligned { 8.min(largest) } else { 1 };
        let count = (self.random.between(1, class.min(largest)).next_multiple_of(unit)).min(largest);
        let is_sequential = match self.mix {
            Mix::Sequential => self.random.percent(90),
            Mix::Stream => *kind == OpKind::Write,
            _ => false,
        };
        if is_sequential {
            let first = if self.next_sector + count <= sectors { self.next_sector } else { 0 };
            self.next_sector = first + count;
            return (first, count);
        }
        let region = (sectors * u64::from(test_volume.options.region_percent) / 100).clamp(count, sectors);
        let positions = if self.random.percent(85) { region - count } else { sectors - count };
        (self.random.below(positions + 1) / unit * unit, count)
    }

    async fn read(&mut self, session: &Session, test_volume: &TestVolume, first: u64, count: u64) {
        let (op, at_start) = session.begin(test_volume, self.number, OpKind::Read, first..first + count, false);
        let volume = test_volume.volume();
        let (at, len) = (ByteOffset(first * SECTOR), (count * SECTOR) as usize);
        let mut pieces: Vec<Piece<SimBlock>> = Vec::new();
        let is_immediate = self.random.percent(60) && volume.try_read(at, len, &mut pieces);
        self.reads += 1;
        let once = session.options.once && self.reads.is_multiple_of(ONCE_EVERY);
        let result = match (is_immediate, once) {
            (true, _) => Ok(()),
            (false, true) => volume.read_once(at, len, &mut pieces).await,
            (false, false) => volume.read(at, len, &mut pieces).await,
        };
        if result.is_err() {
            session.end(test_volume, op, &at_start, &result);
            return;
        }
        let content = tags(&pieces);
        if content.len() as u64 != count {
            let message = format!("op {op}: a read of {count} sectors returned {}", content.len());
            test_volume.model.borrow_mut().end(op, Outcome::Ok, false, session.seam.now());
            return session.report(test_volume, Err(Finding { message, sector: Some(first) }));
        }
        let checked = test_volume.model.borrow_mut().end_read(op, &content, session.seam.now());
        session.report(test_volume, checked);
        if self.random.percent(10) {
            let pause = Nanos::from_micros(self.random.between(1, 3_000));
            session.seam.sleep(pause).await;
            let later = tags(&pieces);
            if let Some(index) = content.iter().zip(&later).position(|(before, after)| before != after) {
                let (before, after) = (content[index], later[index]);
                let message =
                    format!("op {op}: a buffer changed while a client held it (R1), from {before} to {after}");
                session.report(test_volume, Err(Finding { message, sector: Some(first + index as u64) }));
            }
        }
    }

    async fn write(&mut self, session: &Session, test_volume: &TestVolume, first: u64, count: u64) {
        let fua = self.random.percent(5);
        let (op, at_start) = session.begin(test_volume, self.number, OpKind::Write, first..first + count, fua);
        let volume = test_volume.volume();
        let (at, len) = (ByteOffset(first * SECTOR), (count * SECTOR) as usize);
        let mut source = TagSource { volume: test_volume.number, op, first };
        let once = session.options.once && self.writes.is_multiple_of(ONCE_EVERY);
        let (try_now, flags) = (!fua && self.random.percent(60) && !once, WriteFlags { fua, is_used_once: once });
        // Every other write of whole blocks passes its buffers to the engine instead of having them copied.
        let is_whole_blocks = [at.0, len as u64].iter().all(|value| value.is_multiple_of(BLOCK_BYTES as u64));
        let mut own_buffers =
            (is_whole_blocks && self.writes.is_multiple_of(2)).then(|| source.blocks(&volume, len)).flatten();
        self.writes += 1;
        let result = match &mut own_buffers {
            Some(buffers) => write_request(&volume, at, len, flags, try_now, buffers).await,
            None => write_request(&volume, at, len, flags, try_now, &mut source).await,
        };
        session.end(test_volume, op, &at_start, &result);
    }

    async fn zero(&mut self, session: &Session, test_volume: &TestVolume, kind: OpKind, first: u64, count: u64) {
        let fua = self.random.percent(5);
        let discard = kind == OpKind::Discard;
        let (op, at_start) = session.begin(test_volume, self.number, kind, first..first + count, fua);
        let volume = test_volume.volume();
        let (at, len) = (ByteOffset(first * SECTOR), count * SECTOR);
        let flags = ZeroFlags { fua, may_unmap: self.random.percent(50), fast_only: self.random.percent(20) };
        let result = match discard {
            true => volume.discard(at, len, WriteFlags { fua, ..Default::default() }).await,
            false => volume.zero(at, len, flags).await,
        };
        if !discard && flags.fast_only && result == Err(RequestError::NotFast) {
            let outcome = Outcome::Failed("not fast".into());
            return test_volume.model.borrow_mut().end(op, outcome, false, session.seam.now());
        }
        session.end(test_volume, op, &at_start, &result);
    }

    async fn flush(&mut self, session: &Session, test_volume: &TestVolume) {
        let (op, at_start) = session.begin(test_volume, self.number, OpKind::Flush, 0..0, false);
        let result = test_volume.volume().flush().await;
        session.end(test_volume, op, &at_start, &result);
    }

    async fn allocation(&mut self, session: &Session, test_volume: &TestVolume, first: u64, count: u64) {
        let (op, at_start) = session.begin(test_volume, self.number, OpKind::Allocation, first..first + count, false);
        match test_volume.volume().allocation(ByteOffset(first * SECTOR), count * SECTOR).await {
            Ok(extents) => {
                let checked = test_volume.model.borrow_mut().end_allocation(op, &extents, session.seam.now());
                session.report(test_volume, checked);
            }
            Err(error) => {
                session.end(test_volume, op, &at_start, &Err(error));
            }
        }
    }

    async fn prefetch(&mut self, session: &Session, test_volume: &TestVolume, first: u64, count: u64) {
        let (op, at_start) = session.begin(test_volume, self.number, OpKind::Prefetch, first..first + count, false);
        let result = test_volume.volume().prefetch(ByteOffset(first * SECTOR), count * SECTOR).await;
        session.end(test_volume, op, &at_start, &result);
    }
}

/// Reads all of test volume `index` at the start of a session, before clients are admitted (`alone`) or concurrently.
pub async fn verify_first(session: Rc<Session>, index: usize, alone: bool) {
    let test_volume = &session.test_volumes[index];
    if alone {
        test_volume.close(&session.seam).await;
    }
    verify(&session, test_volume, !alone).await;
    if alone {
        test_volume.open();
    }
    session.leave();
}

/// Reads the whole volume and checks it against the model; failed reads are retried. With
/// `concurrently`, administrators may be active.
pub async fn verify(session: &Session, test_volume: &TestVolume, concurrently: bool) {
    let chunk = 256 * 1024 / SECTOR;
    let mut first = 0;
    while first < test_volume.sectors() && session.finding.borrow().is_none() {
        if concurrently {
            test_volume.enter(&session.seam).await;
        }
        // The volume may have shrunk meanwhile.
        let sectors = first..(first + chunk).min(test_volume.sectors());
        let is_verified = sectors.is_empty() || verify_range(session, test_volume, sectors).await;
        if concurrently {
            test_volume.leave();
        }
        match is_verified {
            true => first += chunk,
            false => session.seam.sleep(Nanos::from_millis(20)).await,
        }
    }
}

async fn verify_range(session: &Session, test_volume: &TestVolume, sectors: Range<u64>) -> bool {
    let count = sectors.end - sectors.start;
    let (op, at_start) = session.begin(test_volume, 0, OpKind::Read, sectors.clone(), false);
    let mut pieces = Vec::new();
    let at = ByteOffset(sectors.start * SECTOR);
    let result = test_volume.volume().read(at, (count * SECTOR) as usize, &mut pieces).await;
    if result.is_err() {
        return session.end(test_volume, op, &at_start, &result);
    }
    let checked = test_volume.model.borrow_mut().end_read(op, &tags(&pieces), session.seam.now());
    session.report(test_volume, checked);
    true
}

/// Writes; with `try_now` it first tries the synchronous path.
async fn write_request(
    volume: &Volume<SimSeam>,
    at: ByteOffset,
    len: usize,
    flags: WriteFlags,
    try_now: bool,
    source: &mut impl WriteSource<SimSeam>,
) -> Result<(), RequestError> {
    if try_now && volume.try_write(at, len, source) { Ok(()) } else { volume.write(at, len, flags, source).await }
}
