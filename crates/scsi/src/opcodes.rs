//! The one list of commands, used for decoding, checking, reservation conflicts and reporting.

use crate::cdb::{Cdb, invalid_field};
use crate::failure::Failure;
use crate::sense::{Asc, Sense};

/// A command's function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    TestUnitReady,
    RequestSense,
    Inquiry,
    ModeSelect,
    ModeSense,
    LogSense,
    StartStop,
    PreventAllow,
    ReadCapacity10,
    ReadCapacity16,
    Read,
    Write,
    WriteAndVerify,
    Verify,
    OrWrite,
    CompareAndWrite,
    WriteSame,
    Unmap,
    PreFetch,
    SynchronizeCache,
    LbaStatus,
    ExtendedCopy,
    CopyStatus,
    CopyParameters,
    ReserveUnit,
    ReleaseUnit,
    ReserveIn,
    ReserveOut,
    ReportLuns,
    ReportPortGroups,
    ReportOpcodes,
    ReportTaskManagement,
}

impl Kind {
    /// Name in the standards.
    fn name(self) -> &'static str {
        match self {
            Kind::TestUnitReady => "TEST UNIT READY",
            Kind::RequestSense => "REQUEST SENSE",
            Kind::Inquiry => "INQUIRY",
            Kind::ModeSelect => "MODE SELECT",
            Kind::ModeSense => "MODE SENSE",
            Kind::LogSense => "LOG SENSE",
            Kind::StartStop => "START STOP UNIT",
            Kind::PreventAllow => "PREVENT ALLOW MEDIUM REMOVAL",
            Kind::ReadCapacity10 => "READ CAPACITY(10)",
            Kind::ReadCapacity16 => "READ CAPACITY(16)",
            Kind::Read => "READ",
            Kind::Write => "WRITE",
            Kind::WriteAndVerify => "WRITE AND VERIFY",
            Kind::Verify => "VERIFY",
            Kind::OrWrite => "ORWRITE",
            Kind::CompareAndWrite => "COMPARE AND WRITE",
            Kind::WriteSame => "WRITE SAME",
            Kind::Unmap => "UNMAP",
            Kind::PreFetch => "PRE-FETCH",
            Kind::SynchronizeCache => "SYNCHRONIZE CACHE",
            Kind::LbaStatus => "GET LBA STATUS",
            Kind::ExtendedCopy => "EXTENDED COPY",
            Kind::CopyStatus => "RECEIVE COPY STATUS",
            Kind::CopyParameters => "RECEIVE COPY OPERATING PARAMETERS",
            Kind::ReserveUnit => "RESERVE",
            Kind::ReleaseUnit => "RELEASE",
            Kind::ReserveIn => "PERSISTENT RESERVE IN",
            Kind::ReserveOut => "PERSISTENT RESERVE OUT",
            Kind::ReportLuns => "REPORT LUNS",
            Kind::ReportPortGroups => "REPORT TARGET PORT GROUPS",
            Kind::ReportOpcodes => "REPORT SUPPORTED OPERATION CODES",
            Kind::ReportTaskManagement => "REPORT SUPPORTED TASK MANAGEMENT FUNCTIONS",
        }
    }
}

/// Name of a CDB's command, for messages.
pub fn name_of(cdb: &[u8]) -> &'static str {
    Opcode::find(cdb).map_or("unknown", |(opcode, _)| opcode.kind.name())
}

/// Conflict of a command with another initiator's reservation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Conflict {
    /// Always allowed.
    None,
    /// Conflicts only with RESERVE(6) and RESERVE(10).
    Ready,
    /// The command reads.
    Read,
    /// The command writes or changes state of the unit.
    Write,
    /// RESERVE.
    Session,
    /// RELEASE: succeeds even if the initiator holds no reservation.
    Release,
    /// PERSISTENT RESERVE IN and OUT, which check persistent reservations themselves.
    Persistent,
}

/// A supported command.
#[derive(Debug)]
pub struct Opcode {
    /// Usage data: the allowed bits of each CDB byte. The first byte is the operation code; with a service action, the
    /// low five bits of the second byte hold it.
    pub usage: &'static [u8],
    /// Service action, if the operation code has service actions.
    pub action: Option<u8>,
    pub kind: Kind,
    /// Conflict with another initiator's reservation.
    pub conflict: Conflict,
    /// Nominal and recommended time-out, in seconds.
    pub timeouts_s: (u32, u32),
}

/// Time-outs of commands answered from memory.
const MEMORY: (u32, u32) = (1, 10);
/// Time-outs of commands that wait for disks.
const DISK: (u32, u32) = (5, 60);
/// Time-outs of commands that may wait for a flush of all dirty data.
const FLUSH: (u32, u32) = (30, 600);

/// A command whose operation code has no service actions.
const fn cmd(usage: &'static [u8], kind: Kind, conflict: Conflict, timeouts_s: (u32, u32)) -> Opcode {
    Opcode { usage, action: None, kind, conflict, timeouts_s }
}

/// A command with a service action, which the second byte of `usage` holds.
const fn action(usage: &'static [u8], kind: Kind, conflict: Conflict, timeouts_s: (u32, u32)) -> Opcode {
    Opcode { usage, action: Some(usage[1] & ACTION_MASK), kind, conflict, timeouts_s }
}

/// Bits of the service action in the second byte.
const ACTION_MASK: u8 = 0x1f;
/// The command uses all bits of the byte.
const F: u8 = 0xff;
/// The group number is accepted and ignored.
const GROUP: u8 = 0x3f;
/// DPO, FUA and FUA_NV.
const DPO_FUA: u8 = 0x1a;
/// DPO and BYTCHK.
const DPO_CHECK: u8 = 0x16;

/// All commands, sorted by operation code and service action.
#[rustfmt::skip]
pub static OPCODES: &[Opcode] = &[
    cmd(&[0x00, 0, 0, 0, 0, 0], Kind::TestUnitReady, Conflict::Ready, MEMORY),
    cmd(&[0x03, 0x01, 0, 0, F, 0], Kind::RequestSense, Conflict::None, MEMORY),
    cmd(&[0x08, 0x1f, F, F, F, 0], Kind::Read, Conflict::Read, DISK),
    cmd(&[0x0a, 0x1f, F, F, F, 0], Kind::Write, Conflict::Write, DISK),
    cmd(&[0x12, 0x01, F, F, F, 0], Kind::Inquiry, Conflict::None, MEMORY),
    cmd(&[0x15, 0x11, 0, 0, F, 0], Kind::ModeSelect, Conflict::Write, MEMORY),
    cmd(&[0x16, 0, 0, 0, 0, 0], Kind::ReserveUnit, Conflict::Session, MEMORY),
    cmd(&[0x17, 0, 0, 0, 0, 0], Kind::ReleaseUnit, Conflict::Release, MEMORY),
    cmd(&[0x1a, 0x08, F, F, F, 0], Kind::ModeSense, Conflict::Read, MEMORY),
    cmd(&[0x1b, 0x01, 0, 0x0f, 0xf7, 0], Kind::StartStop, Conflict::Write, FLUSH),
    cmd(&[0x1e, 0, 0, 0, 0x03, 0], Kind::PreventAllow, Conflict::Write, MEMORY),
    cmd(&[0x25, 0, F, F, F, F, 0, 0, 0x01, 0], Kind::ReadCapacity10, Conflict::None, MEMORY),
    cmd(&[0x28, DPO_FUA, F, F, F, F, GROUP, F, F, 0], Kind::Read, Conflict::Read, DISK),
    cmd(&[0x2a, DPO_FUA, F, F, F, F, GROUP, F, F, 0], Kind::Write, Conflict::Write, DISK),
    cmd(&[0x2e, DPO_CHECK, F, F, F, F, GROUP, F, F, 0], Kind::WriteAndVerify, Conflict::Write, DISK),
    cmd(&[0x2f, DPO_CHECK, F, F, F, F, GROUP, F, F, 0], Kind::Verify, Conflict::Read, DISK),
    cmd(&[0x34, 0x02, F, F, F, F, GROUP, F, F, 0], Kind::PreFetch, Conflict::Read, DISK),
    cmd(&[0x35, 0x06, F, F, F, F, GROUP, F, F, 0], Kind::SynchronizeCache, Conflict::Write, FLUSH),
    cmd(&[0x41, 0x08, F, F, F, F, GROUP, F, F, 0], Kind::WriteSame, Conflict::Write, FLUSH),
    cmd(&[0x42, 0, 0, 0, 0, 0, GROUP, F, F, 0], Kind::Unmap, Conflict::Write, FLUSH),
    cmd(&[0x4d, 0, F, F, 0, F, F, F, F, 0], Kind::LogSense, Conflict::None, MEMORY),
    cmd(&[0x55, 0x11, 0, 0, 0, 0, 0, F, F, 0], Kind::ModeSelect, Conflict::Write, MEMORY),
    cmd(&[0x56, 0, 0, 0, 0, 0, 0, 0, 0, 0], Kind::ReserveUnit, Conflict::Session, MEMORY),
    cmd(&[0x57, 0, 0, 0, 0, 0, 0, 0, 0, 0], Kind::ReleaseUnit, Conflict::Release, MEMORY),
    cmd(&[0x5a, 0x18, F, F, 0, 0, 0, F, F, 0], Kind::ModeSense, Conflict::Read, MEMORY),
    action(&[0x5e, 0x00, 0, 0, 0, 0, 0, F, F, 0], Kind::ReserveIn, Conflict::Persistent, MEMORY),
    action(&[0x5e, 0x01, 0, 0, 0, 0, 0, F, F, 0], Kind::ReserveIn, Conflict::Persistent, MEMORY),
    action(&[0x5e, 0x02, 0, 0, 0, 0, 0, F, F, 0], Kind::ReserveIn, Conflict::Persistent, MEMORY),
    action(&[0x5e, 0x03, 0, 0, 0, 0, 0, F, F, 0], Kind::ReserveIn, Conflict::Persistent, MEMORY),
    action(&[0x5f, 0x00, F, 0, 0, F, F, F, F, 0], Kind::ReserveOut, Conflict::Persistent, DISK),
    action(&[0x5f, 0x01, F, 0, 0, F, F, F, F, 0], Kind::ReserveOut, Conflict::Persistent, DISK),
    action(&[0x5f, 0x02, F, 0, 0, F, F, F, F, 0], Kind::ReserveOut, Conflict::Persistent, DISK),
    action(&[0x5f, 0x03, F, 0, 0, F, F, F, F, 0], Kind::ReserveOut, Conflict::Persistent, DISK),
    action(&[0x5f, 0x04, F, 0, 0, F, F, F, F, 0], Kind::ReserveOut, Conflict::Persistent, DISK),
    action(&[0x5f, 0x05, F, 0, 0, F, F, F, F, 0], Kind::ReserveOut, Conflict::Persistent, FLUSH),
    action(&[0x5f, 0x06, F, 0, 0, F, F, F, F, 0], Kind::ReserveOut, Conflict::Persistent, DISK),
    action(&[0x5f, 0x07, F, 0, 0, F, F, F, F, 0], Kind::ReserveOut, Conflict::Persistent, DISK),
    action(&[0x83, 0x00, 0, 0, 0, 0, 0, 0, 0, 0, F, F, F, F, 0, 0], Kind::ExtendedCopy, Conflict::Write, FLUSH),
    action(&[0x84, 0x00, F, 0, 0, 0, 0, 0, 0, 0, F, F, F, F, 0, 0], Kind::CopyStatus, Conflict::Read, MEMORY),
    action(&[0x84, 0x03, F, 0, 0, 0, 0, 0, 0, 0, F, F, F, F, 0, 0], Kind::CopyParameters, Conflict::Read, MEMORY),
    cmd(&[0x88, DPO_FUA, F, F, F, F, F, F, F, F, F, F, F, F, GROUP, 0], Kind::Read, Conflict::Read, DISK),
    cmd(&[0x89, DPO_FUA, F, F, F, F, F, F, F, F, 0, 0, 0, F, GROUP, 0], Kind::CompareAndWrite, Conflict::Write, DISK),
    cmd(&[0x8a, DPO_FUA, F, F, F, F, F, F, F, F, F, F, F, F, GROUP, 0], Kind::Write, Conflict::Write, DISK),
    cmd(&[0x8b, DPO_FUA, F, F, F, F, F, F, F, F, F, F, F, F, GROUP, 0], Kind::OrWrite, Conflict::Write, DISK),
    cmd(&[0x8e, DPO_CHECK, F, F, F, F, F, F, F, F, F, F, F, F, GROUP, 0], Kind::WriteAndVerify, Conflict::Write, DISK),
    cmd(&[0x8f, DPO_CHECK, F, F, F, F, F, F, F, F, F, F, F, F, GROUP, 0], Kind::Verify, Conflict::Read, DISK),
    cmd(&[0x90, 0x02, F, F, F, F, F, F, F, F, F, F, F, F, GROUP, 0], Kind::PreFetch, Conflict::Read, DISK),
    cmd(&[0x91, 0x06, F, F, F, F, F, F, F, F, F, F, F, F, GROUP, 0], Kind::SynchronizeCache, Conflict::Write, FLUSH),
    cmd(&[0x93, 0x09, F, F, F, F, F, F, F, F, F, F, F, F, GROUP, 0], Kind::WriteSame, Conflict::Write, FLUSH),
    action(&[0x9e, 0x10, F, F, F, F, F, F, F, F, F, F, F, F, 0x01, 0], Kind::ReadCapacity16, Conflict::None, MEMORY),
    action(&[0x9e, 0x12, F, F, F, F, F, F, F, F, F, F, F, F, 0, 0], Kind::LbaStatus, Conflict::Read, DISK),
    cmd(&[0xa0, 0, F, 0, 0, 0, F, F, F, F, 0, 0], Kind::ReportLuns, Conflict::None, MEMORY),
    action(&[0xa3, 0xea, 0, 0, 0, 0, F, F, F, F, 0, 0], Kind::ReportPortGroups, Conflict::None, MEMORY),
    action(&[0xa3, 0x0c, 0x87, F, F, F, F, F, F, F, 0, 0], Kind::ReportOpcodes, Conflict::Read, MEMORY),
    action(&[0xa3, 0x0d, 0x80, 0, 0, 0, F, F, F, F, 0, 0], Kind::ReportTaskManagement, Conflict::Read, MEMORY),
    cmd(&[0xa8, DPO_FUA, F, F, F, F, F, F, F, F, GROUP, 0], Kind::Read, Conflict::Read, DISK),
    cmd(&[0xaa, DPO_FUA, F, F, F, F, F, F, F, F, GROUP, 0], Kind::Write, Conflict::Write, DISK),
    cmd(&[0xae, DPO_CHECK, F, F, F, F, F, F, F, F, GROUP, 0], Kind::WriteAndVerify, Conflict::Write, DISK),
    cmd(&[0xaf, DPO_CHECK, F, F, F, F, F, F, F, F, GROUP, 0], Kind::Verify, Conflict::Read, DISK),
];

impl Opcode {
    /// The operation code.
    pub fn code(&self) -> u8 {
        self.usage[0]
    }

    /// Finds the command of a CDB and truncates the CDB to its length.
    pub fn find(cdb: &[u8]) -> Result<(&'static Opcode, Cdb<'_>), Failure> {
        let code = *cdb.first().ok_or_else(|| Sense::illegal(Asc::INVALID_OPCODE))?;
        let from = OPCODES.partition_point(|opcode| opcode.code() < code);
        let same_code: &[Opcode] = &OPCODES[from..];
        let same_code = &same_code[..same_code.partition_point(|opcode| opcode.code() == code)];
        let action = cdb.get(1).map(|byte| byte & ACTION_MASK);
        let opcode = match same_code {
            [] => return Err(Sense::illegal(Asc::INVALID_OPCODE).into()),
            [only] if only.action.is_none() => only,
            several => {
                several.iter().find(|opcode| opcode.action == action).ok_or_else(|| invalid_field(1, Some(4)))?
            }
        };
        let truncated = cdb.get(..opcode.usage.len()).ok_or_else(|| invalid_field(cdb.len() - 1, None))?;
        Ok((opcode, Cdb(truncated)))
    }

    /// Refuses a CDB with bits outside the command's usage data.
    pub fn check(&self, cdb: &Cdb<'_>) -> Result<(), Failure> {
        for (offset, (byte, usage)) in cdb.0.iter().zip(self.usage).enumerate().skip(1) {
            let allowed = if offset == 1 && self.action.is_some() { usage | ACTION_MASK } else { *usage };
            let invalid_bits = byte & !allowed;
            if invalid_bits != 0 {
                return Err(invalid_field(offset, Some(7 - invalid_bits.leading_zeros() as u8)));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sense::SenseFormat;

    #[test]
    fn list_is_sorted_and_lengths_match_opcode_groups() {
        let keys: Vec<_> = OPCODES.iter().map(|opcode| (opcode.code(), opcode.action)).collect();
        assert!(keys.is_sorted_by(|a, b| a < b), "{keys:x?}");
        for opcode in OPCODES {
            let len = [6, 10, 10, 0, 16, 12, 0, 0][usize::from(opcode.code() >> 5)];
            assert_eq!(opcode.usage.len(), len, "{:02x}", opcode.code());
        }
    }

    #[test]
    fn command_accepts_exactly_its_usage_bits() {
        for opcode in OPCODES {
            let (listed, cdb) = Opcode::find(opcode.usage).expect("the command is listed");
            assert!(std::ptr::eq(listed, opcode));
            assert_eq!(opcode.check(&cdb), Ok(()));
            for at in 1..opcode.usage.len() {
                for bit in 0..8 {
                    let skip = at == 1 && opcode.action.is_some() && bit < 5;
                    if opcode.usage[at] >> bit & 1 == 1 || skip {
                        continue;
                    }
                    let mut bytes = opcode.usage.to_vec();
                    bytes[at] = 1 << bit;
                    let Err(Failure::Check(sense)) = opcode.check(&Cdb(&bytes)) else { panic!("{bytes:x?}") };
                    assert_eq!(sense.bytes(SenseFormat::Fixed)[15..], [0xc8 | bit, 0, at as u8]);
                }
            }
        }
    }

    #[test]
    fn unknown_opcodes_and_short_cdbs_are_refused() {
        let asc = |cdb: &[u8]| match Opcode::find(cdb) {
            Err(Failure::Check(sense)) => sense.asc,
            other => panic!("{other:?}"),
        };
        assert_eq!(asc(&[]), Asc::INVALID_OPCODE);
        assert_eq!(asc(&[0xff; 16]), Asc::INVALID_OPCODE);
        assert_eq!(asc(&[0x9e; 16]), Asc::INVALID_FIELD_IN_CDB);
        assert_eq!(asc(&[0x28; 9]), Asc::INVALID_FIELD_IN_CDB);
    }
}
