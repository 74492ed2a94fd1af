//! What commands do, a file a family, and what they all need: their unit, their descriptor block, and their data both ways.

mod cache;
mod capacity;
mod compare;
mod copy;
mod inquiry;
mod lba_status;
mod log;
mod mode;
mod ports;
mod prefetch;
mod read;
mod report_luns;
mod reserve;
mod small;
mod supported;
mod unmap;
mod verify;
mod vpd;
mod write;
mod write_same;

pub use copy::Copies;
pub use read::read_now;
pub use write::write_now;

use std::ops::Range;
use std::rc::Rc;

use engine::RequestError;
use seam::block::pieces_len;
use seam::{Piece, SECTOR_BYTES, Seam};

use self::read::{TRANSFER_BLOCKS_MAX, has_fua};
use crate::absent::{Absent, not_ready};
use crate::cdb::Cdb;
use crate::exchange::{Cancel, Command, DataIn, DataOut, Expected};
use crate::failure::{Doing, Failure, told};
use crate::lun::Lun;
use crate::nexus::Nexus;
use crate::opcodes::{Kind, Opcode, Reserved};
use crate::sense::{Asc, Sense};
use crate::status::Status;
use crate::target::{Target, no_unit};
use crate::tasks::Running;
use crate::unit::Unit;

/// Most that is handed to a transport as bytes in one go.
const BYTES_AT_ONCE_MAX: usize = 64 << 10;
/// Bytes of a logical block.
const BLOCK: u64 = SECTOR_BYTES as u64;

/// A command under way.
pub struct Task<'a, S: Seam, O, I> {
    target: &'a Target<S>,
    unit: Option<Rc<Unit<S>>>,
    /// Its unit is known, and not there now.
    absent: Option<Absent>,
    nexus: &'a Nexus,
    expected: Expected,
    cancel: &'a Cancel,
    out: &'a mut O,
    input: &'a mut I,
    /// What it wants to move, and what of it has gone to the initiator.
    transfer_bytes: u64,
    sent_bytes: u64,
    /// Its place among those under way, once it has reached its unit.
    running: Option<Running>,
    /// It was sent to number zero, which answers even without a unit.
    at_lun_zero: bool,
}

impl<'a, S: Seam, O: DataOut, I: DataIn<S>> Task<'a, S, O, I> {
    pub fn new(
        target: &'a Target<S>,
        unit: Option<Rc<Unit<S>>>,
        absent: Option<Absent>,
        nexus: &'a Nexus,
        command: &Command<'a>,
        out: &'a mut O,
        input: &'a mut I,
    ) -> Self {
        let (expected, cancel) = (command.expected, command.cancel);
        let at_lun_zero = Lun::decode(command.lun) == Some(Lun::ZERO);
        Task {
            target,
            unit,
            absent,
            nexus,
            expected,
            cancel,
            out,
            input,
            transfer_bytes: 0,
            sent_bytes: 0,
            running: None,
            at_lun_zero,
        }
    }

    /// Bytes that the command wanted to move.
    pub fn transfer_bytes(&self) -> u64 {
        self.transfer_bytes
    }

    /// Does the command.
    pub async fn run(&mut self, cdb: &[u8]) -> Result<Status, Failure> {
        let found = Opcode::of(cdb);
        let kind = found.as_ref().ok().map(|(opcode, _)| opcode.kind);
        let answers_always = matches!(kind, Some(Kind::Inquiry | Kind::ReportLuns | Kind::RequestSense));
        let Some(unit) = self.unit.clone() else {
            let refused = || if self.absent.is_some() { not_ready() } else { no_unit() };
            let (opcode, cdb) = found.ok().filter(|_| answers_always).ok_or_else(refused)?;
            opcode.check(&cdb)?;
            return match (opcode.kind, self.absent.clone()) {
                (Kind::Inquiry, Some(absent)) => self.inquiry_of(&absent.identity, cdb).await,
                (Kind::Inquiry, None) => self.inquiry_without_unit(cdb).await,
                (Kind::RequestSense, _) => self.request_sense(cdb).await,
                _ => self.report_luns(cdb).await,
            };
        };
        // Whoever waits for it no more is told nothing.
        self.check_wanted()?;
        if !answers_always && let Some(attention) = unit.take_attention(self.nexus) {
            return Err(attention.sense().into());
        }
        let (opcode, cdb) = found?;
        opcode.check(&cdb)?;
        unit.reservations.check(self.nexus, opcode.reserved)?;
        let changes = matches!(opcode.reserved, Reserved::Write | Reserved::Persistent);
        self.running = Some(unit.tasks.begin(self.nexus.0.number, self.cancel, changes));
        if needs_medium(opcode.kind) {
            unit.check_present()?;
        }
        if wants_durability(opcode.kind, &cdb) {
            unit.tell_loss(self.nexus)?;
        }
        self.run_on(&unit, opcode.kind, cdb).await
    }

    async fn run_on(&mut self, unit: &Rc<Unit<S>>, kind: Kind, cdb: Cdb<'_>) -> Result<Status, Failure> {
        match kind {
            Kind::TestUnitReady => Ok(Status::Good),
            Kind::RequestSense => self.request_sense(cdb).await,
            Kind::Inquiry => self.inquiry(unit, cdb).await,
            Kind::ModeSelect => self.mode_select(unit, cdb).await,
            Kind::ModeSense => self.mode_sense(unit, cdb).await,
            Kind::LogSense => self.log_sense(unit, cdb).await,
            Kind::StartStop => self.start_stop(unit, cdb).await,
            Kind::PreventAllow => self.prevent_allow(cdb).await,
            Kind::ReadCapacity10 => self.read_capacity_10(unit, cdb).await,
            Kind::ReadCapacity16 => self.read_capacity_16(unit, cdb).await,
            Kind::Read => self.read(unit, cdb).await,
            Kind::Write => self.write(unit, cdb).await,
            Kind::WriteAndVerify => self.write_and_verify(unit, cdb).await,
            Kind::Verify => self.verify(unit, cdb).await,
            Kind::OrWrite => self.or_write(unit, cdb).await,
            Kind::CompareAndWrite => self.compare_and_write(unit, cdb).await,
            Kind::WriteSame => self.write_same(unit, cdb).await,
            Kind::Unmap => self.unmap(unit, cdb).await,
            Kind::PreFetch => self.prefetch(unit, cdb).await,
            Kind::SynchronizeCache => self.synchronize_cache(unit, cdb).await,
            Kind::LbaStatus => self.lba_status(unit, cdb).await,
            Kind::ExtendedCopy => self.extended_copy(unit, cdb).await,
            Kind::CopyStatus => self.copy_status(unit, cdb).await,
            Kind::CopyParameters => self.copy_parameters(cdb).await,
            Kind::ReserveUnit => self.reserve_unit(unit).await,
            Kind::ReleaseUnit => self.release_unit(unit).await,
            Kind::ReserveIn => self.reserve_in(unit, cdb).await,
            Kind::ReserveOut => self.reserve_out(unit, cdb).await,
            Kind::ReportLuns => self.report_luns(cdb).await,
            Kind::ReportPortGroups => self.report_port_groups(cdb).await,
            Kind::ReportOpcodes => self.report_opcodes(cdb).await,
            Kind::ReportTaskManagement => self.report_task_management(cdb).await,
        }
    }

    /// Answers with bytes made here, as many as the initiator has allocated room for.
    async fn answer(&mut self, bytes: &[u8], allocated: impl Into<u64>) -> Result<Status, Failure> {
        let len = (bytes.len() as u64).min(allocated.into());
        self.transfer_bytes = len;
        let sent = len.min(self.expected.in_bytes) as usize;
        for part in bytes[..sent].chunks(BYTES_AT_ONCE_MAX) {
            self.input.send_bytes(part).await?;
        }
        Ok(Status::Good)
    }

    /// Sends pieces, up to what the initiator expects.
    async fn send(&mut self, pieces: &mut Vec<Piece<S::Block>>) -> Result<(), Failure> {
        let room = (self.expected.in_bytes - self.sent_bytes) as usize;
        cut(pieces, room);
        self.sent_bytes += pieces_len(pieces) as u64;
        if !pieces.is_empty() {
            self.input.send(pieces).await?;
        }
        Ok(())
    }

    /// The blocks of a plain write that the initiator has data for: where it has promised fewer than the command names, the whole ones.
    fn expected_blocks(&mut self, extent: &Extent) -> Extent {
        self.transfer_bytes = extent.len_bytes();
        Extent { first: extent.first, count: extent.count.min(self.expected.out_bytes / BLOCK) }
    }

    /// The command wants so many bytes from the initiator, all or none: one that has promised fewer is refused before any are taken.
    fn wants_data(&mut self, len: u64) -> Result<(), Failure> {
        self.transfer_bytes = len;
        let enough = len <= self.expected.out_bytes;
        if enough { Ok(()) } else { Err(Sense::illegal(Asc::INVALID_FIELD_IN_INFORMATION_UNIT).into()) }
    }

    /// As [`Task::wants_data`], for a command whose data have one length that makes sense: more is refused, too.
    fn wants_exactly(&mut self, len: u64) -> Result<(), Failure> {
        self.wants_data(len)?;
        let exact = len == self.expected.out_bytes;
        if exact { Ok(()) } else { Err(Sense::illegal(Asc::INVALID_FIELD_IN_INFORMATION_UNIT).into()) }
    }

    /// Takes all of a command's parameters.
    async fn parameters(&mut self, len: usize) -> Result<Vec<u8>, Failure> {
        self.wants_data(len as u64)?;
        let mut bytes = Vec::with_capacity(len);
        if len > 0 {
            self.take(len, &mut bytes).await?;
        }
        Ok(bytes)
    }

    /// Takes the next bytes of the command's data; what waits for them can be ended, and is not waited for.
    async fn take(&mut self, len: usize, into: &mut Vec<u8>) -> Result<(), Failure> {
        self.check_wanted()?;
        let before = into.len();
        self.outside(true);
        let taken = self.out.take(len, into).await;
        self.outside(false);
        taken?;
        assert_eq!(into.len() - before, len, "a transport takes what it was asked for");
        self.check_wanted()
    }

    fn outside(&self, outside: bool) {
        if let Some(running) = &self.running {
            running.waits_outside(outside);
        }
    }

    /// Ends a command that nobody wants any more.
    fn check_wanted(&self) -> Result<(), Failure> {
        if self.cancel.is_cancelled() { Err(Failure::Gone) } else { Ok(()) }
    }
}

/// Cuts pieces to `room` bytes.
fn cut<B>(pieces: &mut Vec<Piece<B>>, mut room: usize) {
    let mut kept = 0;
    for piece in pieces.iter_mut() {
        if room == 0 {
            break;
        }
        piece.len = piece.len.min(room.min(usize::from(u16::MAX)) as u16);
        room -= piece.len();
        kept += 1;
    }
    pieces.truncate(kept);
}

/// Blocks of a command that names a first one and how many.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Extent {
    first: u64,
    count: u64,
}

impl Extent {
    /// Reads it from where commands of this length have it.
    fn of(cdb: &Cdb<'_>) -> Extent {
        match cdb.0.len() {
            6 => Extent {
                first: (cdb.u24(1) & 0x1f_ffff).into(),
                // A length of one byte has no use for nothing.
                count: if cdb.u8(4) == 0 { 256 } else { cdb.u8(4).into() },
            },
            10 => Extent { first: cdb.u32(2).into(), count: cdb.u16(7).into() },
            12 => Extent { first: cdb.u32(2).into(), count: cdb.u32(6).into() },
            _ => Extent { first: cdb.u64(2), count: cdb.u32(10).into() },
        }
    }

    /// Refuses what lies past the unit's end. A first block just past it is right where there is no block at all.
    fn check<S: Seam>(&self, unit: &Unit<S>) -> Result<(), Failure> {
        let fits = self.first.checked_add(self.count).is_some_and(|end| end <= unit.blocks());
        if fits { Ok(()) } else { Err(Sense::illegal(Asc::LBA_OUT_OF_RANGE).into()) }
    }

    /// Refuses more than one command may move.
    fn check_length(&self) -> Result<(), Failure> {
        let fits = self.count <= TRANSFER_BLOCKS_MAX.into();
        if fits { Ok(()) } else { Err(Sense::illegal(Asc::INVALID_FIELD_IN_CDB).into()) }
    }

    /// The part of it that so many bytes have to do with.
    fn cut_to(&self, bytes: u64) -> Extent {
        Extent { first: self.first, count: self.count.min(bytes.div_ceil(BLOCK)) }
    }

    fn blocks(&self) -> Range<u64> {
        self.first..self.first + self.count
    }

    fn offset_bytes(&self) -> u64 {
        self.first * BLOCK
    }

    fn len_bytes(&self) -> u64 {
        self.count * BLOCK
    }

    /// Its parts of at most `len_max` bytes, cut at multiples of that: byte offset and length.
    fn parts(&self, len_max: usize) -> impl Iterator<Item = (u64, usize)> + use<> {
        let (mut at, end, max) = (self.offset_bytes(), self.offset_bytes() + self.len_bytes(), len_max as u64);
        std::iter::from_fn(move || {
            let len = (max - at % max).min(end - at);
            let part = (at, len as usize);
            at += len;
            (len > 0).then_some(part)
        })
    }
}

/// An error of the engine at a byte's offset, as a failure of a read.
fn read_failed(error: &RequestError, at: u64) -> Failure {
    told(error, Doing::Read(at / BLOCK))
}

/// An error of the engine at a byte's offset, as a failure of a write.
fn write_failed(error: &RequestError, at: u64) -> Failure {
    told(error, Doing::Write(at / BLOCK))
}

/// True for a command whose good end says that what it wrote, or all before it, is durable.
fn wants_durability(kind: Kind, cdb: &Cdb<'_>) -> bool {
    match kind {
        Kind::SynchronizeCache | Kind::WriteAndVerify => true,
        Kind::Write | Kind::OrWrite | Kind::CompareAndWrite => has_fua(cdb),
        _ => false,
    }
}

/// Refused once the backing is lost for good.
fn needs_medium(kind: Kind) -> bool {
    !matches!(
        kind,
        Kind::RequestSense
            | Kind::Inquiry
            | Kind::ModeSense
            | Kind::ModeSelect
            | Kind::LogSense
            | Kind::ReserveUnit
            | Kind::ReleaseUnit
            | Kind::ReserveIn
            | Kind::ReserveOut
            | Kind::ReportLuns
            | Kind::ReportPortGroups
            | Kind::ReportOpcodes
            | Kind::ReportTaskManagement
    )
}
