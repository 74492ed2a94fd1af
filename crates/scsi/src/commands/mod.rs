//! Execution of commands, one file per family, and their shared parts: the task, its ranges and its data transfers.

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
mod prevent_allow;
mod read;
mod report_luns;
mod request_sense;
mod reserve;
mod start_stop;
mod supported;
mod unmap;
mod verify;
mod vpd;
mod write;
mod write_same;

pub use read::try_read;
pub use write::try_write;

use std::ops::Range;
use std::rc::Rc;

use engine::{ByteOffset, RequestError};
use seam::block::pieces_len;
use seam::{Piece, SECTOR_BYTES, Seam};

use self::read::{TRANSFER_BLOCKS_MAX, has_fua};
use crate::absent::{AbsentUnit, no_unit, not_ready};
use crate::cdb::Cdb;
use crate::exchange::{CancelToken, Command, DataIn, DataOut, ExpectedLengths};
use crate::failure::{EngineOperation, Failure, failure_of};
use crate::lun::Lun;
use crate::nexus::Nexus;
use crate::opcodes::{Conflict, Kind, Opcode};
use crate::sense::{Asc, Sense};
use crate::status::Status;
use crate::target::Target;
use crate::tasks::RunningCommand;
use crate::unit::Unit;

/// Maximum bytes handed to a transport at once.
const BYTES_AT_ONCE_MAX: usize = 64 << 10;
/// Bytes of a logical block.
const LOGICAL_BLOCK_BYTES: u64 = SECTOR_BYTES as u64;

/// A command in execution.
pub struct Task<'a, S: Seam, O, I> {
    target: &'a Target<S>,
    unit: Option<Rc<Unit<S>>>,
    /// The unit's record if its volume is not attached now.
    absent_unit: Option<AbsentUnit>,
    nexus: &'a Nexus,
    expected: ExpectedLengths,
    cancel: &'a CancelToken,
    data_out: &'a mut O,
    data_in: &'a mut I,
    /// Bytes that the command transfers in full, whatever the initiator expects.
    transfer_bytes: u64,
    /// Bytes sent to the initiator so far.
    sent_bytes: u64,
    /// Registration among the unit's running commands, once the command has reached its unit.
    running: Option<RunningCommand>,
    /// True if the command was sent to LUN 0, which answers even without a unit.
    at_lun_zero: bool,
}

impl<'a, S: Seam, O: DataOut, I: DataIn<S>> Task<'a, S, O, I> {
    /// Execution of `command` for an initiator. `absent_unit`: the unit's record if its volume is not attached now.
    pub fn new(
        target: &'a Target<S>,
        unit: Option<Rc<Unit<S>>>,
        absent_unit: Option<AbsentUnit>,
        nexus: &'a Nexus,
        command: &Command<'a>,
        data_out: &'a mut O,
        data_in: &'a mut I,
    ) -> Self {
        let (expected, cancel) = (command.expected, command.cancel);
        let at_lun_zero = Lun::decode(command.lun) == Some(Lun::ZERO);
        Task {
            target,
            unit,
            absent_unit,
            nexus,
            expected,
            cancel,
            data_out,
            data_in,
            transfer_bytes: 0,
            sent_bytes: 0,
            running: None,
            at_lun_zero,
        }
    }

    /// Bytes that the command transfers in full, whatever the initiator expects.
    pub fn transfer_bytes(&self) -> u64 {
        self.transfer_bytes
    }

    /// Executes the command.
    pub async fn run(&mut self, cdb: &[u8]) -> Result<Status, Failure> {
        let opcode = Opcode::find(cdb);
        let kind = opcode.as_ref().ok().map(|(opcode, _)| opcode.kind);
        let needs_no_unit = matches!(kind, Some(Kind::Inquiry | Kind::ReportLuns | Kind::RequestSense));
        let Some(unit) = self.unit.clone() else {
            let refusal = || if self.absent_unit.is_some() { not_ready() } else { no_unit() };
            let (opcode, cdb) = opcode.ok().filter(|_| needs_no_unit).ok_or_else(refusal)?;
            opcode.check(&cdb)?;
            return match (opcode.kind, self.absent_unit.clone()) {
                (Kind::Inquiry, Some(absent)) => self.inquiry_absent(&absent.identity, cdb).await,
                (Kind::Inquiry, None) => self.inquiry_without_unit(cdb).await,
                (Kind::RequestSense, _) => self.request_sense(cdb).await,
                _ => self.report_luns(cdb).await,
            };
        };
        // A cancelled command must not consume a unit attention.
        self.check_cancelled()?;
        if !needs_no_unit && let Some(attention) = unit.take_attention(self.nexus) {
            return Err(attention.sense().into());
        }
        let (opcode, cdb) = opcode?;
        opcode.check(&cdb)?;
        unit.reservations.check(self.nexus, opcode.conflict)?;
        let may_change = matches!(opcode.conflict, Conflict::Write | Conflict::Persistent);
        self.running = Some(unit.tasks.begin(self.nexus.0.number, self.cancel, may_change));
        if needs_medium(opcode.kind) {
            unit.check_present()?;
        }
        if needs_durability(opcode.kind, &cdb) {
            unit.report_loss(self.nexus)?;
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

    /// Sends generated bytes as response data, truncated to the command's allocation length.
    async fn send_response(&mut self, bytes: &[u8], allocation_len: impl Into<u64>) -> Result<Status, Failure> {
        let len = (bytes.len() as u64).min(allocation_len.into());
        self.transfer_bytes = len;
        let sent = len.min(self.expected.in_bytes) as usize;
        for part in bytes[..sent].chunks(BYTES_AT_ONCE_MAX) {
            self.data_in.send_bytes(part).await?;
        }
        Ok(Status::Good)
    }

    /// Sends pieces, truncated to the length that the initiator expects.
    async fn send(&mut self, pieces: &mut Vec<Piece<S::Block>>) -> Result<(), Failure> {
        let len_max = (self.expected.in_bytes - self.sent_bytes) as usize;
        truncate_pieces(pieces, len_max);
        self.sent_bytes += pieces_len(pieces) as u64;
        if !pieces.is_empty() {
            self.data_in.send(pieces).await?;
        }
        Ok(())
    }

    /// The whole blocks of a write for which the initiator sends data, which may be fewer than the command names.
    fn expected_blocks(&mut self, extent: &Extent) -> Extent {
        self.transfer_bytes = extent.len_bytes();
        Extent { first: extent.first, count: extent.count.min(self.expected.out_bytes / LOGICAL_BLOCK_BYTES) }
    }

    /// Requires `len` bytes from the initiator: a shorter transfer is refused before any byte is taken.
    fn require_data(&mut self, len: u64) -> Result<(), Failure> {
        self.transfer_bytes = len;
        let enough = len <= self.expected.out_bytes;
        if enough { Ok(()) } else { Err(Sense::illegal(Asc::INVALID_FIELD_IN_INFORMATION_UNIT).into()) }
    }

    /// Like [`Task::require_data`], for a command with one valid data length: a longer transfer is refused as well.
    fn require_exact_data(&mut self, len: u64) -> Result<(), Failure> {
        self.require_data(len)?;
        let exact = len == self.expected.out_bytes;
        if exact { Ok(()) } else { Err(Sense::illegal(Asc::INVALID_FIELD_IN_INFORMATION_UNIT).into()) }
    }

    /// Takes the whole parameter list of a command.
    async fn parameters(&mut self, len: usize) -> Result<Vec<u8>, Failure> {
        self.require_data(len as u64)?;
        let mut bytes = Vec::with_capacity(len);
        if len > 0 {
            self.take(len, &mut bytes).await?;
        }
        Ok(bytes)
    }

    /// Takes the next bytes of the command's data. Meanwhile a reset can end the command without waiting for it.
    async fn take(&mut self, len: usize, into: &mut Vec<u8>) -> Result<(), Failure> {
        self.check_cancelled()?;
        let before = into.len();
        self.set_waiting_for_initiator(true);
        let result = self.data_out.take(len, into).await;
        self.set_waiting_for_initiator(false);
        result?;
        assert_eq!(into.len() - before, len, "a transport delivers the requested length");
        self.check_cancelled()
    }

    fn set_waiting_for_initiator(&self, is_waiting: bool) {
        if let Some(running) = &self.running {
            running.set_waiting_for_initiator(is_waiting);
        }
    }

    /// Ends a cancelled command.
    fn check_cancelled(&self) -> Result<(), Failure> {
        if self.cancel.is_cancelled() { Err(Failure::Cancelled) } else { Ok(()) }
    }
}

/// Truncates pieces to `len_max` bytes.
fn truncate_pieces<B>(pieces: &mut Vec<Piece<B>>, mut len_max: usize) {
    let mut count = 0;
    for piece in pieces.iter_mut() {
        if len_max == 0 {
            break;
        }
        piece.len = piece.len.min(len_max.min(usize::from(u16::MAX)) as u16);
        len_max -= piece.len();
        count += 1;
    }
    pieces.truncate(count);
}

/// A range of blocks of a command.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Extent {
    first: u64,
    count: u64,
}

impl Extent {
    /// Decodes the range at the usual position for the CDB's length.
    fn of(cdb: &Cdb<'_>) -> Extent {
        match cdb.0.len() {
            6 => Extent {
                first: (cdb.u24(1) & 0x1f_ffff).into(),
                // A one-byte length of 0 means 256 blocks.
                count: if cdb.u8(4) == 0 { 256 } else { cdb.u8(4).into() },
            },
            10 => Extent { first: cdb.u32(2).into(), count: cdb.u16(7).into() },
            12 => Extent { first: cdb.u32(2).into(), count: cdb.u32(6).into() },
            _ => Extent { first: cdb.u64(2), count: cdb.u32(10).into() },
        }
    }

    /// Refuses a range that exceeds the unit. An empty range may begin at the end of the unit.
    fn check<S: Seam>(&self, unit: &Unit<S>) -> Result<(), Failure> {
        let fits = self.first.checked_add(self.count).is_some_and(|end| end <= unit.blocks());
        if fits { Ok(()) } else { Err(Sense::illegal(Asc::LBA_OUT_OF_RANGE).into()) }
    }

    /// Refuses a range longer than the maximum transfer length.
    fn check_length(&self) -> Result<(), Failure> {
        let fits = self.count <= TRANSFER_BLOCKS_MAX.into();
        if fits { Ok(()) } else { Err(Sense::illegal(Asc::INVALID_FIELD_IN_CDB).into()) }
    }

    /// The blocks that `bytes` cover from the range's start.
    fn truncated_to(&self, bytes: u64) -> Extent {
        Extent { first: self.first, count: self.count.min(bytes.div_ceil(LOGICAL_BLOCK_BYTES)) }
    }

    fn blocks(&self) -> Range<u64> {
        self.first..self.first + self.count
    }

    fn offset(&self) -> ByteOffset {
        offset_of(self.first)
    }

    fn len_bytes(&self) -> u64 {
        self.count * LOGICAL_BLOCK_BYTES
    }

    /// Splits the range at multiples of `len_max` bytes: byte offset and length of each part.
    fn parts(&self, len_max: usize) -> impl Iterator<Item = (ByteOffset, usize)> + use<> {
        let (mut at, end, max) = (self.offset(), self.offset().plus(self.len_bytes()), len_max as u64);
        std::iter::from_fn(move || {
            let len = (max - at.0 % max).min(end.distance_from(at));
            let part = (at, len as usize);
            at = at.plus(len);
            (len > 0).then_some(part)
        })
    }
}

/// The offset of a logical block's first byte.
fn offset_of(block: u64) -> ByteOffset {
    ByteOffset(block * LOGICAL_BLOCK_BYTES)
}

/// The number of the logical block that contains the byte.
fn block_at(at: ByteOffset) -> u64 {
    at.0 / LOGICAL_BLOCK_BYTES
}

/// The logical blocks of `len` bytes from `at` on, both multiples of a block.
fn blocks_at(at: ByteOffset, len: usize) -> Range<u64> {
    let first = block_at(at);
    first..first + len as u64 / LOGICAL_BLOCK_BYTES
}

/// Failure of a read at `at`.
fn read_failed(error: &RequestError, at: ByteOffset) -> Failure {
    failure_of(error, EngineOperation::Read(block_at(at)))
}

/// Failure of a write at `at`.
fn write_failed(error: &RequestError, at: ByteOffset) -> Failure {
    failure_of(error, EngineOperation::Write(block_at(at)))
}

/// True for commands whose good status makes their own writes, or all earlier ones, durable.
fn needs_durability(kind: Kind, cdb: &Cdb<'_>) -> bool {
    match kind {
        Kind::SynchronizeCache | Kind::WriteAndVerify => true,
        Kind::Write | Kind::OrWrite | Kind::CompareAndWrite => has_fua(cdb),
        _ => false,
    }
}

/// True for commands that are refused once the backing is declared lost.
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
