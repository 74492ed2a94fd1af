//! Vital product data (VPD) pages: names and abilities of a unit.

use seam::Seam;

use super::LOGICAL_BLOCK_BYTES;
use super::copy::{
    BLOCKS_TO_BLOCKS, BYTES_TO_BYTES, DESCRIPTORS_BYTES_MAX, IDENTIFICATION_DESCRIPTOR, SEGMENT_BYTES_MAX,
    SEGMENT_DESCRIPTORS_MAX, TARGET_DESCRIPTORS_MAX,
};
use super::read::TRANSFER_BLOCKS_MAX;
use crate::identity::Identity;
use crate::opcodes::OPCODES;
use crate::unit::Unit;

/// Maximum blocks in one UNMAP. 4 GiB exceeds the count field of a descriptor, and tools reject it as implausible.
pub const UNMAP_BLOCKS_MAX: u32 = 1 << 20;
/// Maximum ranges in one UNMAP.
pub const UNMAP_RANGES_MAX: u32 = 256;
/// Maximum blocks in one WRITE SAME: 4 GiB.
pub const WRITE_SAME_BLOCKS_MAX: u64 = 8 << 20;
/// Threshold set size of LOG SENSE and of the provisioning mode page: 1 MiB, as a power of two of blocks.
const THRESHOLD_EXPONENT: u8 = 11;
/// Threshold set size in bytes.
const THRESHOLD_SET_BYTES: u64 = LOGICAL_BLOCK_BYTES << THRESHOLD_EXPONENT;
/// Maximum blocks in one COMPARE AND WRITE: the maximum of its one-byte length.
const COMPARE_BLOCKS_MAX: u8 = 255;

/// The target port that received the INQUIRY.
pub struct TargetPort<'a> {
    pub target: &'a str,
    pub port: u16,
}

/// Number of the target port group of all ports.
pub const PORT_GROUP: u16 = 1;

/// VPD page codes.
const SUPPORTED_PAGES: u8 = 0x00;
const UNIT_SERIAL_NUMBER: u8 = 0x80;
const DEVICE_IDENTIFICATION: u8 = 0x83;
const EXTENDED_INQUIRY: u8 = 0x86;
const THIRD_PARTY_COPY: u8 = 0x8f;
const BLOCK_LIMITS: u8 = 0xb0;
const BLOCK_DEVICE_CHARACTERISTICS: u8 = 0xb1;
const LOGICAL_BLOCK_PROVISIONING: u8 = 0xb2;

/// Supported pages.
const PAGES: [u8; 8] = [
    SUPPORTED_PAGES,
    UNIT_SERIAL_NUMBER,
    DEVICE_IDENTIFICATION,
    EXTENDED_INQUIRY,
    THIRD_PARTY_COPY,
    BLOCK_LIMITS,
    BLOCK_DEVICE_CHARACTERISTICS,
    LOGICAL_BLOCK_PROVISIONING,
];

/// Designator types.
const T10_VENDOR_ID: u8 = 0x01;
const NAA: u8 = 0x03;
const RELATIVE_TARGET_PORT: u8 = 0x04;
const TARGET_PORT_GROUP: u8 = 0x05;
const SCSI_NAME_STRING: u8 = 0x08;

/// Third-party copy descriptor types.
const SUPPORTED_COMMANDS: u16 = 0x0001;
const PARAMETER_DATA: u16 = 0x0004;
const SUPPORTED_DESCRIPTORS: u16 = 0x0008;
const SUPPORTED_CSCD_IDS: u16 = 0x000c;
const GENERAL_COPY_OPERATIONS: u16 = 0x8001;

/// Operation codes of third-party copies.
const EXTENDED_COPY: u8 = 0x83;
const RECEIVE_COPY_RESULTS: u8 = 0x84;

/// Whole threshold sets in `bytes`, at most what their 32-bit fields can hold.
pub fn whole_threshold_sets(bytes: u64) -> u32 {
    u32::try_from(bytes / THRESHOLD_SET_BYTES).unwrap_or(u32::MAX)
}

/// Threshold sets that hold `bytes`, at most what their 32-bit fields can hold.
pub fn covering_threshold_sets(bytes: u64) -> u32 {
    u32::try_from(bytes.div_ceil(THRESHOLD_SET_BYTES)).unwrap_or(u32::MAX)
}

/// A page; `None` if the unit has no page of that code.
pub fn page<S: Seam>(unit: &Unit<S>, page: u8, target_port: &TargetPort<'_>) -> Option<Vec<u8>> {
    match page {
        BLOCK_LIMITS => Some(with_header(page, block_limits(unit))),
        _ => identity_page(&unit.identity, page, target_port),
    }
}

/// A page that does not need the volume; `None` if there is none of that code.
pub fn identity_page(identity: &Identity, page: u8, target_port: &TargetPort<'_>) -> Option<Vec<u8>> {
    let body = match page {
        SUPPORTED_PAGES => PAGES.to_vec(),
        UNIT_SERIAL_NUMBER => identity.naa_hex().into_bytes(),
        DEVICE_IDENTIFICATION => designators(identity, target_port),
        EXTENDED_INQUIRY => extended_inquiry(),
        THIRD_PARTY_COPY => third_party_copy(),
        BLOCK_DEVICE_CHARACTERISTICS => characteristics(),
        LOGICAL_BLOCK_PROVISIONING => provisioning(),
        _ => return None,
    };
    Some(with_header(page, body))
}

fn with_header(page: u8, body: Vec<u8>) -> Vec<u8> {
    let mut bytes = vec![0, page];
    bytes.extend((body.len() as u16).to_be_bytes());
    bytes.extend(body);
    bytes
}

fn designators(identity: &Identity, target_port: &TargetPort<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut add = |code_set: u8, kind: u8, designator: &[u8]| {
        bytes.extend([code_set, kind, 0, designator.len() as u8]);
        bytes.extend(designator);
    };
    // Code sets, with the protocol identifier of iSCSI; PIV and the association with the port or the target.
    let (binary, ascii, utf8, iscsi) = (1, 2, 3, 0x50);
    let (of_port, of_target) = (0x90, 0xa0);
    add(binary, NAA, &identity.naa);
    add(ascii, T10_VENDOR_ID, format!("{}{}", Identity::VENDOR, identity.naa_hex()).as_bytes());
    add(binary | iscsi, of_port | RELATIVE_TARGET_PORT, &u32::from(target_port.port).to_be_bytes());
    add(binary | iscsi, of_port | TARGET_PORT_GROUP, &u32::from(PORT_GROUP).to_be_bytes());
    // SCSI name strings end with a zero and are padded to a multiple of four bytes.
    let name = |text: String| {
        let mut name = text.into_bytes();
        name.truncate(251);
        name.resize((name.len() + 1).next_multiple_of(4), 0);
        name
    };
    add(
        utf8 | iscsi,
        of_port | SCSI_NAME_STRING,
        &name(format!("{},t,0x{:04x}", target_port.target, target_port.port)),
    );
    add(utf8 | iscsi, of_target | SCSI_NAME_STRING, &name(target_port.target.to_owned()));
    bytes
}

fn extended_inquiry() -> Vec<u8> {
    let mut body = vec![0; 60];
    // SIMPSUP, ORDSUP, HEADSUP; V_SUP 1: a volatile cache; NV_SUP 0: no non-volatile cache.
    body[1] = 0x07;
    body[2] = 0x01;
    // LUICLR 0: the loss of a nexus is no reset.
    body
}

/// Third-party copy page: supported commands, generated from the list of commands, and limits of EXTENDED COPY.
fn third_party_copy() -> Vec<u8> {
    let mut body = Vec::new();
    let mut add = |kind: u16, mut descriptor: Vec<u8>| {
        let len = descriptor.len().next_multiple_of(4);
        // Padded so that the next descriptor is aligned, counted after the four header bytes.
        descriptor.resize(len, 0);
        body.extend(kind.to_be_bytes());
        body.extend((len as u16).to_be_bytes());
        body.extend(descriptor);
    };
    let mut commands = vec![0];
    for code in [EXTENDED_COPY, RECEIVE_COPY_RESULTS] {
        let actions: Vec<u8> =
            OPCODES.iter().filter(|opcode| opcode.code() == code).filter_map(|opcode| opcode.action).collect();
        commands.extend([code, actions.len() as u8]);
        commands.extend(actions);
    }
    commands[0] = (commands.len() - 1) as u8;
    add(SUPPORTED_COMMANDS, commands);
    add(PARAMETER_DATA, parameter_limits());
    let kinds = [BLOCKS_TO_BLOCKS, BYTES_TO_BYTES, IDENTIFICATION_DESCRIPTOR];
    add(SUPPORTED_DESCRIPTORS, [&[kinds.len() as u8][..], &kinds].concat());
    // Supported CSCD descriptor identifiers: none besides designators.
    add(SUPPORTED_CSCD_IDS, vec![0, 0]);
    add(GENERAL_COPY_OPERATIONS, general_limits());
    body
}

fn parameter_limits() -> Vec<u8> {
    let mut bytes = vec![0; 28];
    bytes[4..6].copy_from_slice(&(TARGET_DESCRIPTORS_MAX as u16).to_be_bytes());
    bytes[6..8].copy_from_slice(&(SEGMENT_DESCRIPTORS_MAX as u16).to_be_bytes());
    bytes[8..12].copy_from_slice(&(DESCRIPTORS_BYTES_MAX as u32).to_be_bytes());
    bytes
}

fn general_limits() -> Vec<u8> {
    let mut bytes = vec![0; 32];
    // Maximum concurrent copies, in total and per target.
    bytes[..4].copy_from_slice(&255_u32.to_be_bytes());
    bytes[4..8].copy_from_slice(&255_u32.to_be_bytes());
    bytes[8..12].copy_from_slice(&SEGMENT_BYTES_MAX.to_be_bytes());
    // Data segment granularity: one block, as a power of two.
    bytes[12] = 9;
    bytes
}

fn block_limits<S: Seam>(unit: &Unit<S>) -> Vec<u8> {
    let stripe = unit.volume().geometry().stripe_bytes;
    // Without a known stripe size the granularity is 64 KiB.
    let granularity = if stripe > 0 && u64::from(stripe) % LOGICAL_BLOCK_BYTES == 0 {
        stripe / LOGICAL_BLOCK_BYTES as u32
    } else {
        128
    };
    let mut body = vec![0; 0x3c];
    body[1] = COMPARE_BLOCKS_MAX;
    body[2..4].copy_from_slice(&u16::try_from(granularity).unwrap_or(u16::MAX).to_be_bytes());
    body[4..8].copy_from_slice(&TRANSFER_BLOCKS_MAX.to_be_bytes());
    // Optimal transfer length: 1 MiB.
    body[8..12].copy_from_slice(&2048_u32.to_be_bytes());
    body[12..16].copy_from_slice(&TRANSFER_BLOCKS_MAX.to_be_bytes());
    body[16..20].copy_from_slice(&UNMAP_BLOCKS_MAX.to_be_bytes());
    body[20..24].copy_from_slice(&UNMAP_RANGES_MAX.to_be_bytes());
    // Unmap granularity: one block of the engine (4 KiB), and UGAVALID with alignment zero.
    body[24..28].copy_from_slice(&8_u32.to_be_bytes());
    body[28..32].copy_from_slice(&0x8000_0000_u32.to_be_bytes());
    body[32..40].copy_from_slice(&WRITE_SAME_BLOCKS_MAX.to_be_bytes());
    body
}

fn characteristics() -> Vec<u8> {
    let mut body = vec![0; 0x3c];
    // Medium rotation rate 1: non-rotating. 0 would mean "not reported".
    body[1] = 0x01;
    body
}

fn provisioning() -> Vec<u8> {
    // LBPU, LBPWS, LBPWS10 and LBPRZ; provisioning type 2: thin.
    vec![THRESHOLD_EXPONENT, 0xe4, 0x02, 0]
}
