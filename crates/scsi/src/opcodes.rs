//! The commands that there are: the one list from which they are decoded, checked, let past reservations and reported.

use crate::cdb::{Cdb, invalid_field};
use crate::failure::Failure;
use crate::sense::{Asc, Sense};

/// What a command does.
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
    /// Its name in the standards.
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

/// The name of a command, for people.
pub fn name_of(cdb: &[u8]) -> &'static str {
    Opcode::of(cdb).map_or("unknown", |(opcode, _)| opcode.kind.name())
}

/// What a reservation of another initiator does to a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reserved {
    /// Nothing.
    Free,
    /// Only RESERVE(6) and its like keep it out.
    Ready,
    /// It reads.
    Read,
    /// It writes, or changes something else.
    Write,
    /// It is RESERVE.
    Session,
    /// It is RELEASE: whoever has nothing to release is told that all is well.
    Release,
    /// It tells of persistent reservations or changes them, and looks at them itself.
    Persistent,
}

/// A command.
#[derive(Debug)]
pub struct Opcode {
    /// For each byte of the descriptor block, the bits that may be set. The first is the operation code itself; where there is a service
    /// action, the low five bits of the second are it.
    pub usage: &'static [u8],
    /// The service action, where the operation code has some.
    pub action: Option<u8>,
    pub kind: Kind,
    pub reserved: Reserved,
    /// How long it usually takes at most, and after how long something is wrong, in seconds.
    pub seconds: (u32, u32),
}

/// Answered from memory.
const QUICK: (u32, u32) = (1, 10);
/// Waits for disks.
const DISK: (u32, u32) = (5, 60);
/// May wait for all that is dirty.
const LONG: (u32, u32) = (30, 600);

const fn plain(usage: &'static [u8], kind: Kind, reserved: Reserved, seconds: (u32, u32)) -> Opcode {
    Opcode { usage, action: None, kind, reserved, seconds }
}

const fn acting(usage: &'static [u8], kind: Kind, reserved: Reserved, seconds: (u32, u32)) -> Opcode {
    Opcode { usage, action: Some(usage[1] & ACTION_MASK), kind, reserved, seconds }
}

const ACTION_MASK: u8 = 0x1f;
const F: u8 = 0xff;
/// Group numbers are taken and mean nothing.
const GROUP: u8 = 0x3f;
/// Disable page out, force unit access (of the cache without power, too).
const DPO_FUA: u8 = 0x1a;
/// Disable page out, and how bytes are checked.
const DPO_CHECK: u8 = 0x16;

/// All of them, by code.
#[rustfmt::skip]
pub static OPCODES: &[Opcode] = &[
    plain(&[0x00, 0, 0, 0, 0, 0], Kind::TestUnitReady, Reserved::Ready, QUICK),
    plain(&[0x03, 0x01, 0, 0, F, 0], Kind::RequestSense, Reserved::Free, QUICK),
    plain(&[0x08, 0x1f, F, F, F, 0], Kind::Read, Reserved::Read, DISK),
    plain(&[0x0a, 0x1f, F, F, F, 0], Kind::Write, Reserved::Write, DISK),
    plain(&[0x12, 0x01, F, F, F, 0], Kind::Inquiry, Reserved::Free, QUICK),
    plain(&[0x15, 0x11, 0, 0, F, 0], Kind::ModeSelect, Reserved::Write, QUICK),
    plain(&[0x16, 0, 0, 0, 0, 0], Kind::ReserveUnit, Reserved::Session, QUICK),
    plain(&[0x17, 0, 0, 0, 0, 0], Kind::ReleaseUnit, Reserved::Release, QUICK),
    plain(&[0x1a, 0x08, F, F, F, 0], Kind::ModeSense, Reserved::Read, QUICK),
    plain(&[0x1b, 0x01, 0, 0x0f, 0xf7, 0], Kind::StartStop, Reserved::Write, LONG),
    plain(&[0x1e, 0, 0, 0, 0x03, 0], Kind::PreventAllow, Reserved::Write, QUICK),
    plain(&[0x25, 0, F, F, F, F, 0, 0, 0x01, 0], Kind::ReadCapacity10, Reserved::Free, QUICK),
    plain(&[0x28, DPO_FUA, F, F, F, F, GROUP, F, F, 0], Kind::Read, Reserved::Read, DISK),
    plain(&[0x2a, DPO_FUA, F, F, F, F, GROUP, F, F, 0], Kind::Write, Reserved::Write, DISK),
    plain(&[0x2e, DPO_CHECK, F, F, F, F, GROUP, F, F, 0], Kind::WriteAndVerify, Reserved::Write, DISK),
    plain(&[0x2f, DPO_CHECK, F, F, F, F, GROUP, F, F, 0], Kind::Verify, Reserved::Read, DISK),
    plain(&[0x34, 0x02, F, F, F, F, GROUP, F, F, 0], Kind::PreFetch, Reserved::Read, DISK),
    plain(&[0x35, 0x06, F, F, F, F, GROUP, F, F, 0], Kind::SynchronizeCache, Reserved::Write, LONG),
    plain(&[0x41, 0x08, F, F, F, F, GROUP, F, F, 0], Kind::WriteSame, Reserved::Write, LONG),
    plain(&[0x42, 0, 0, 0, 0, 0, GROUP, F, F, 0], Kind::Unmap, Reserved::Write, LONG),
    plain(&[0x4d, 0, F, F, 0, F, F, F, F, 0], Kind::LogSense, Reserved::Free, QUICK),
    plain(&[0x55, 0x11, 0, 0, 0, 0, 0, F, F, 0], Kind::ModeSelect, Reserved::Write, QUICK),
    plain(&[0x56, 0, 0, 0, 0, 0, 0, 0, 0, 0], Kind::ReserveUnit, Reserved::Session, QUICK),
    plain(&[0x57, 0, 0, 0, 0, 0, 0, 0, 0, 0], Kind::ReleaseUnit, Reserved::Release, QUICK),
    plain(&[0x5a, 0x18, F, F, 0, 0, 0, F, F, 0], Kind::ModeSense, Reserved::Read, QUICK),
    acting(&[0x5e, 0x00, 0, 0, 0, 0, 0, F, F, 0], Kind::ReserveIn, Reserved::Persistent, QUICK),
    acting(&[0x5e, 0x01, 0, 0, 0, 0, 0, F, F, 0], Kind::ReserveIn, Reserved::Persistent, QUICK),
    acting(&[0x5e, 0x02, 0, 0, 0, 0, 0, F, F, 0], Kind::ReserveIn, Reserved::Persistent, QUICK),
    acting(&[0x5e, 0x03, 0, 0, 0, 0, 0, F, F, 0], Kind::ReserveIn, Reserved::Persistent, QUICK),
    acting(&[0x5f, 0x00, F, 0, 0, F, F, F, F, 0], Kind::ReserveOut, Reserved::Persistent, DISK),
    acting(&[0x5f, 0x01, F, 0, 0, F, F, F, F, 0], Kind::ReserveOut, Reserved::Persistent, DISK),
    acting(&[0x5f, 0x02, F, 0, 0, F, F, F, F, 0], Kind::ReserveOut, Reserved::Persistent, DISK),
    acting(&[0x5f, 0x03, F, 0, 0, F, F, F, F, 0], Kind::ReserveOut, Reserved::Persistent, DISK),
    acting(&[0x5f, 0x04, F, 0, 0, F, F, F, F, 0], Kind::ReserveOut, Reserved::Persistent, DISK),
    acting(&[0x5f, 0x05, F, 0, 0, F, F, F, F, 0], Kind::ReserveOut, Reserved::Persistent, LONG),
    acting(&[0x5f, 0x06, F, 0, 0, F, F, F, F, 0], Kind::ReserveOut, Reserved::Persistent, DISK),
    acting(&[0x5f, 0x07, F, 0, 0, F, F, F, F, 0], Kind::ReserveOut, Reserved::Persistent, DISK),
    acting(&[0x83, 0x00, 0, 0, 0, 0, 0, 0, 0, 0, F, F, F, F, 0, 0], Kind::ExtendedCopy, Reserved::Write, LONG),
    acting(&[0x84, 0x00, F, 0, 0, 0, 0, 0, 0, 0, F, F, F, F, 0, 0], Kind::CopyStatus, Reserved::Read, QUICK),
    acting(&[0x84, 0x03, F, 0, 0, 0, 0, 0, 0, 0, F, F, F, F, 0, 0], Kind::CopyParameters, Reserved::Read, QUICK),
    plain(&[0x88, DPO_FUA, F, F, F, F, F, F, F, F, F, F, F, F, GROUP, 0], Kind::Read, Reserved::Read, DISK),
    plain(&[0x89, DPO_FUA, F, F, F, F, F, F, F, F, 0, 0, 0, F, GROUP, 0], Kind::CompareAndWrite, Reserved::Write, DISK),
    plain(&[0x8a, DPO_FUA, F, F, F, F, F, F, F, F, F, F, F, F, GROUP, 0], Kind::Write, Reserved::Write, DISK),
    plain(&[0x8b, DPO_FUA, F, F, F, F, F, F, F, F, F, F, F, F, GROUP, 0], Kind::OrWrite, Reserved::Write, DISK),
    plain(&[0x8e, DPO_CHECK, F, F, F, F, F, F, F, F, F, F, F, F, GROUP, 0], Kind::WriteAndVerify, Reserved::Write, DISK),
    plain(&[0x8f, DPO_CHECK, F, F, F, F, F, F, F, F, F, F, F, F, GROUP, 0], Kind::Verify, Reserved::Read, DISK),
    plain(&[0x90, 0x02, F, F, F, F, F, F, F, F, F, F, F, F, GROUP, 0], Kind::PreFetch, Reserved::Read, DISK),
    plain(&[0x91, 0x06, F, F, F, F, F, F, F, F, F, F, F, F, GROUP, 0], Kind::SynchronizeCache, Reserved::Write, LONG),
    plain(&[0x93, 0x09, F, F, F, F, F, F, F, F, F, F, F, F, GROUP, 0], Kind::WriteSame, Reserved::Write, LONG),
    acting(&[0x9e, 0x10, F, F, F, F, F, F, F, F, F, F, F, F, 0x01, 0], Kind::ReadCapacity16, Reserved::Free, QUICK),
    acting(&[0x9e, 0x12, F, F, F, F, F, F, F, F, F, F, F, F, 0, 0], Kind::LbaStatus, Reserved::Read, DISK),
    plain(&[0xa0, 0, F, 0, 0, 0, F, F, F, F, 0, 0], Kind::ReportLuns, Reserved::Free, QUICK),
    acting(&[0xa3, 0xea, 0, 0, 0, 0, F, F, F, F, 0, 0], Kind::ReportPortGroups, Reserved::Free, QUICK),
    acting(&[0xa3, 0x0c, 0x87, F, F, F, F, F, F, F, 0, 0], Kind::ReportOpcodes, Reserved::Read, QUICK),
    acting(&[0xa3, 0x0d, 0x80, 0, 0, 0, F, F, F, F, 0, 0], Kind::ReportTaskManagement, Reserved::Read, QUICK),
    plain(&[0xa8, DPO_FUA, F, F, F, F, F, F, F, F, GROUP, 0], Kind::Read, Reserved::Read, DISK),
    plain(&[0xaa, DPO_FUA, F, F, F, F, F, F, F, F, GROUP, 0], Kind::Write, Reserved::Write, DISK),
    plain(&[0xae, DPO_CHECK, F, F, F, F, F, F, F, F, GROUP, 0], Kind::WriteAndVerify, Reserved::Write, DISK),
    plain(&[0xaf, DPO_CHECK, F, F, F, F, F, F, F, F, GROUP, 0], Kind::Verify, Reserved::Read, DISK),
];

impl Opcode {
    /// The operation code.
    pub fn code(&self) -> u8 {
        self.usage[0]
    }

    /// The command of a descriptor block, and the block cut to its length.
    pub fn of(cdb: &[u8]) -> Result<(&'static Opcode, Cdb<'_>), Failure> {
        let code = *cdb.first().ok_or_else(|| Sense::illegal(Asc::INVALID_OPCODE))?;
        let from = OPCODES.partition_point(|opcode| opcode.code() < code);
        let same: &[Opcode] = &OPCODES[from..];
        let same = &same[..same.partition_point(|opcode| opcode.code() == code)];
        let action = cdb.get(1).map(|byte| byte & ACTION_MASK);
        let found = match same {
            [] => return Err(Sense::illegal(Asc::INVALID_OPCODE).into()),
            [only] if only.action.is_none() => only,
            several => {
                several.iter().find(|opcode| opcode.action == action).ok_or_else(|| invalid_field(1, Some(4)))?
            }
        };
        let cut = cdb.get(..found.usage.len()).ok_or_else(|| invalid_field(cdb.len() - 1, None))?;
        Ok((found, Cdb(cut)))
    }

    /// Refuses a block with bits set that mean nothing, or something that is not done here.
    pub fn check(&self, cdb: &Cdb<'_>) -> Result<(), Failure> {
        for (at, (byte, usage)) in cdb.0.iter().zip(self.usage).enumerate().skip(1) {
            let allowed = if at == 1 && self.action.is_some() { usage | ACTION_MASK } else { *usage };
            let wrong = byte & !allowed;
            if wrong != 0 {
                return Err(invalid_field(at, Some(7 - wrong.leading_zeros() as u8)));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sense::Format;

    #[test]
    fn the_list_is_in_order_and_its_lengths_are_those_of_the_codes_groups() {
        let keys: Vec<_> = OPCODES.iter().map(|opcode| (opcode.code(), opcode.action)).collect();
        assert!(keys.is_sorted_by(|a, b| a < b), "{keys:x?}");
        for opcode in OPCODES {
            let len = [6, 10, 10, 0, 16, 12, 0, 0][usize::from(opcode.code() >> 5)];
            assert_eq!(opcode.usage.len(), len, "{:02x}", opcode.code());
        }
    }

    #[test]
    fn each_command_is_found_by_its_own_usage_and_each_bit_beside_it_is_refused() {
        for opcode in OPCODES {
            let (found, cdb) = Opcode::of(opcode.usage).expect("it is on the list");
            assert!(std::ptr::eq(found, opcode));
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
                    assert_eq!(sense.bytes(Format::Fixed)[15..], [0xc8 | bit, 0, at as u8]);
                }
            }
        }
    }

    #[test]
    fn unknown_codes_unknown_actions_and_short_blocks_are_refused() {
        let asc = |cdb: &[u8]| match Opcode::of(cdb) {
            Err(Failure::Check(sense)) => sense.asc,
            other => panic!("{other:?}"),
        };
        assert_eq!(asc(&[]), Asc::INVALID_OPCODE);
        assert_eq!(asc(&[0xff; 16]), Asc::INVALID_OPCODE);
        assert_eq!(asc(&[0x9e; 16]), Asc::INVALID_FIELD_IN_CDB);
        assert_eq!(asc(&[0x28; 9]), Asc::INVALID_FIELD_IN_CDB);
    }
}
