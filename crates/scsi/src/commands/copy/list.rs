//! The parameter list of EXTENDED COPY (SPC-4 6.18, list identifiers of one byte).

use crate::cdb::invalid_parameter;
use crate::failure::Failure;
use crate::sense::{Asc, Sense};

const HEADER_BYTES: usize = 16;
const TARGET_DESCRIPTOR_BYTES: usize = 32;
/// Maximum number of target descriptors in a list.
pub const TARGET_DESCRIPTORS_MAX: usize = 16;
/// Maximum number of segment descriptors in a list.
pub const SEGMENT_DESCRIPTORS_MAX: usize = 64;
/// Maximum total length of all descriptors, in bytes.
pub const DESCRIPTORS_BYTES_MAX: usize =
    TARGET_DESCRIPTORS_MAX * TARGET_DESCRIPTOR_BYTES + SEGMENT_DESCRIPTORS_MAX * 32;
/// Maximum length of a list, in bytes.
pub const LIST_BYTES_MAX: usize = 64 << 10;
/// Maximum bytes that a segment copies.
pub const SEGMENT_BYTES_MAX: u32 = 64 << 20;

/// Descriptor type codes: a target by its identification designator; segments in blocks and in bytes.
pub const IDENTIFICATION_DESCRIPTOR: u8 = 0xe4;
pub const BLOCKS_TO_BLOCKS: u8 = 0x02;
pub const BYTES_TO_BYTES: u8 = 0x0a;

/// A decoded parameter list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParameterList {
    /// List identifier for RECEIVE COPY RESULTS; `None` without one.
    pub id: Option<u8>,
    /// True if the result is held until the initiator reads it.
    pub holds_results: bool,
    /// Designators of the target descriptors, each at its own length.
    pub target_descriptors: Vec<Vec<u8>>,
    pub segments: Vec<Segment>,
}

/// A range of blocks to copy from one unit to another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Index of the source among the target descriptors.
    pub source_descriptor: u16,
    /// Index of the destination among the target descriptors.
    pub destination_descriptor: u16,
    /// First block to read.
    pub source_lba: u64,
    /// First block to write.
    pub destination_lba: u64,
    pub blocks: u64,
}

fn length_error() -> Failure {
    Sense::illegal(Asc::PARAMETER_LIST_LENGTH_ERROR).into()
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) << 32 | u64::from(u32_at(bytes, at + 4))
}

impl ParameterList {
    /// Decodes a parameter list.
    pub fn decode(bytes: &[u8]) -> Result<ParameterList, Failure> {
        let (header, remaining) = bytes.split_at_checked(HEADER_BYTES).ok_or_else(length_error)?;
        let (devices_len, segments_len) = (usize::from(u16_at(header, 2)), u32_at(header, 8) as usize);
        let inline_len = u32_at(header, 12);
        if devices_len + segments_len > DESCRIPTORS_BYTES_MAX || inline_len > 0 {
            return Err(length_error());
        }
        if devices_len > TARGET_DESCRIPTORS_MAX * TARGET_DESCRIPTOR_BYTES {
            return Err(Sense::illegal(Asc::TOO_MANY_TARGET_DESCRIPTORS).into());
        }
        let (devices, remaining) = remaining.split_at_checked(devices_len).ok_or_else(length_error)?;
        let segments = remaining.get(..segments_len).ok_or_else(length_error)?;
        let (devices, remainder) = devices.as_chunks::<TARGET_DESCRIPTOR_BYTES>();
        if !remainder.is_empty() {
            return Err(length_error());
        }
        let usage = header[1] >> 3 & 3;
        Ok(ParameterList {
            // List ID usage 3: no identifier; 2: the result is discarded at the end of the copy.
            id: (usage != 3).then_some(header[0]),
            holds_results: usage < 2,
            target_descriptors: devices.iter().map(decode_designator).collect::<Result<_, _>>()?,
            segments: decode_segments(segments, HEADER_BYTES + devices_len)?,
        })
    }
}

/// Decodes a target descriptor: its designator.
fn decode_designator(bytes: &[u8; TARGET_DESCRIPTOR_BYTES]) -> Result<Vec<u8>, Failure> {
    if bytes[0] != IDENTIFICATION_DESCRIPTOR {
        return Err(Sense::illegal(Asc::UNSUPPORTED_TARGET_DESCRIPTOR).into());
    }
    // Units of this target have NAA designators only: an empty designator matches none of them.
    let (kind, len) = (bytes[5] & 0x0f, usize::from(bytes[7]));
    Ok(if kind == 3 && len <= 20 { bytes[8..8 + len].to_vec() } else { Vec::new() })
}

fn decode_segments(mut bytes: &[u8], mut at: usize) -> Result<Vec<Segment>, Failure> {
    let mut segments = Vec::new();
    while !bytes.is_empty() {
        let header = bytes.get(..4).ok_or_else(length_error)?;
        let len = match header[0] {
            BLOCKS_TO_BLOCKS => 28,
            BYTES_TO_BYTES => 32,
            _ => return Err(Sense::illegal(Asc::UNSUPPORTED_SEGMENT_DESCRIPTOR).into()),
        };
        if segments.len() == SEGMENT_DESCRIPTORS_MAX {
            return Err(Sense::illegal(Asc::TOO_MANY_SEGMENT_DESCRIPTORS).into());
        }
        if usize::from(u16_at(header, 2)) != len - 4 {
            return Err(invalid_parameter(at + 2));
        }
        let descriptor = bytes.get(..len).ok_or_else(length_error)?;
        segments.push(decode_segment(descriptor, at)?);
        bytes = &bytes[len..];
        at += len;
    }
    Ok(segments)
}

/// Decodes a segment descriptor, which begins at byte `at` of the parameter list.
fn decode_segment(bytes: &[u8], at: usize) -> Result<Segment, Failure> {
    let (source_descriptor, destination_descriptor) = (u16_at(bytes, 4), u16_at(bytes, 6));
    let (source_lba, destination_lba) = (u64_at(bytes, 12), u64_at(bytes, 20));
    let blocks = match bytes[0] {
        BLOCKS_TO_BLOCKS => u64::from(u16_at(bytes, 10)),
        _ => {
            let len = u32_at(bytes, 8);
            let has_zero_byte_offsets = u16_at(bytes, 28) == 0 && u16_at(bytes, 30) == 0;
            // Only whole blocks are copied.
            if len > SEGMENT_BYTES_MAX || u64::from(len) % super::LOGICAL_BLOCK_BYTES != 0 || !has_zero_byte_offsets {
                return Err(invalid_parameter(at + if has_zero_byte_offsets { 8 } else { 28 }));
            }
            u64::from(len) / super::LOGICAL_BLOCK_BYTES
        }
    };
    Ok(Segment { source_descriptor, destination_descriptor, source_lba, destination_lba, blocks })
}

/// Data of RECEIVE COPY RESULTS (OPERATING PARAMETERS): the limits of a parameter list.
pub fn operating_parameters() -> Vec<u8> {
    let kinds = [BLOCKS_TO_BLOCKS, BYTES_TO_BYTES, IDENTIFICATION_DESCRIPTOR];
    let mut bytes = vec![0; 44];
    // SNLID: lists without an identifier are accepted.
    bytes[4] = 1;
    bytes[8..10].copy_from_slice(&(TARGET_DESCRIPTORS_MAX as u16).to_be_bytes());
    bytes[10..12].copy_from_slice(&(SEGMENT_DESCRIPTORS_MAX as u16).to_be_bytes());
    bytes[12..16].copy_from_slice(&(DESCRIPTORS_BYTES_MAX as u32).to_be_bytes());
    bytes[16..20].copy_from_slice(&SEGMENT_BYTES_MAX.to_be_bytes());
    // Concurrent copies in total and per initiator; data segment granularity as a power of two.
    bytes[34..36].copy_from_slice(&255_u16.to_be_bytes());
    (bytes[36], bytes[37]) = (255, 9);
    bytes[43] = kinds.len() as u8;
    bytes.extend(kinds);
    let len = (bytes.len() - 4) as u32;
    bytes[..4].copy_from_slice(&len.to_be_bytes());
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(devices: &[u8], segments: &[u8]) -> Vec<u8> {
        let mut bytes = vec![7, 0];
        bytes.extend((devices.len() as u16).to_be_bytes());
        bytes.extend([0; 4]);
        bytes.extend((segments.len() as u32).to_be_bytes());
        bytes.extend([0; 4]);
        bytes.extend(devices);
        bytes.extend(segments);
        bytes
    }

    fn device(kind: u8) -> Vec<u8> {
        let mut bytes = vec![kind, 0, 0, 0, 1, 3, 0, 16];
        bytes.extend([9; 16]);
        bytes.resize(TARGET_DESCRIPTOR_BYTES, 0);
        bytes
    }

    fn segment(kind: u8) -> Vec<u8> {
        let len = if kind == BYTES_TO_BYTES { 32 } else { 28 };
        let mut bytes = vec![kind, 0, 0, len - 4, 0, 0, 0, 1];
        bytes.extend(1024_u32.to_be_bytes());
        bytes.extend(5_u64.to_be_bytes());
        bytes.extend(6_u64.to_be_bytes());
        bytes.resize(len.into(), 0);
        bytes
    }

    #[test]
    fn both_segment_kinds_are_decoded_and_short_lists_refused() {
        let segments = [segment(BLOCKS_TO_BLOCKS), segment(BYTES_TO_BYTES)].concat();
        let bytes = list(&device(IDENTIFICATION_DESCRIPTOR), &segments);
        let decoded = ParameterList::decode(&bytes).expect("the list is complete");
        assert_eq!(
            (decoded.id, decoded.holds_results, &decoded.target_descriptors),
            (Some(7), true, &vec![vec![9; 16]])
        );
        let expected = |blocks| Segment {
            source_descriptor: 0,
            destination_descriptor: 1,
            source_lba: 5,
            destination_lba: 6,
            blocks,
        };
        assert_eq!(decoded.segments, [expected(1024), expected(2)]);
        for len in 0..bytes.len() {
            assert_eq!(ParameterList::decode(&bytes[..len]), Err(length_error()), "{len}");
        }
    }

    #[test]
    fn unknown_and_surplus_descriptors_get_their_own_sense_codes() {
        let asc = |bytes: Vec<u8>| match ParameterList::decode(&bytes) {
            Err(Failure::Check(sense)) => sense.asc,
            other => panic!("{other:?}"),
        };
        let (one_device, one_segment) = (device(IDENTIFICATION_DESCRIPTOR), segment(BLOCKS_TO_BLOCKS));
        assert_eq!(asc(list(&device(0xe0), &one_segment)), Asc::UNSUPPORTED_TARGET_DESCRIPTOR);
        assert_eq!(asc(list(&one_device, &segment(0x03))), Asc::UNSUPPORTED_SEGMENT_DESCRIPTOR);
        let too_many = (one_device.repeat(TARGET_DESCRIPTORS_MAX + 1), one_segment.repeat(SEGMENT_DESCRIPTORS_MAX + 1));
        assert_eq!(asc(list(&too_many.0, &one_segment)), Asc::TOO_MANY_TARGET_DESCRIPTORS);
        assert_eq!(asc(list(&one_device, &too_many.1)), Asc::TOO_MANY_SEGMENT_DESCRIPTORS);
        let too_long = one_segment.repeat(DESCRIPTORS_BYTES_MAX / 28 + 1);
        assert_eq!(asc(list(&too_many.0, &too_long)), Asc::PARAMETER_LIST_LENGTH_ERROR);
    }
}
