//! Nearly valid SCSI commands from a fuzzer's input: only the bits that a command uses, and parameter lists.

use std::ops::Range;

use scsi::{CancelToken, Cancelled, Command, DataIn, DataOut, ExpectedLengths, Identity, Initiator, Target};
use seam::Piece;
use seam::sim::{SimBlock, SimSeam};

/// Command descriptor block of TEST UNIT READY.
const TEST_UNIT_READY: [u8; 6] = [0; 6];
/// Operation codes of the commands that have a parameter list.
const MODE_SELECT_6: u8 = 0x15;
const MODE_SELECT_10: u8 = 0x55;
const UNMAP: u8 = 0x42;
pub const PERSISTENT_RESERVE_OUT: u8 = 0x5f;
const EXTENDED_COPY: u8 = 0x83;
/// REPORT SUPPORTED OPERATION CODES: MAINTENANCE IN with its service action, and two of its reporting options.
const MAINTENANCE_IN: u8 = 0xa3;
const REPORT_OPCODES: u8 = 0x0c;
const ALL_COMMANDS: u8 = 0;
const ONE_COMMAND: u8 = 3;
/// Mode pages with their lengths: caching, control, read-write error recovery, informational exceptions.
const MODE_PAGES: [(u8, u8); 4] = [(0x08, 18), (0x0a, 10), (0x01, 10), (0x1c, 10)];
/// Types of descriptors of EXTENDED COPY: a target by its designator; segments in blocks and in bytes.
const IDENTIFICATION_TARGET_DESCRIPTOR: u8 = 0xe4;
const BLOCK_TO_BLOCK: u8 = 2;
const BYTE_TO_BYTE: u8 = 10;
/// Flag of PERSISTENT RESERVE OUT: initiators are listed.
const SPECIFIES_INITIATORS: u8 = 8;
/// Bits of EXTENDED COPY's second byte: use of the list identifier, sequential access.
const COPY_OPTIONS: u8 = 0x38;
/// Length in bytes of descriptors of EXTENDED COPY.
const TARGET_DESCRIPTOR_BYTES: usize = 32;
const BLOCK_SEGMENT_BYTES: u8 = 24;
const BYTE_SEGMENT_BYTES: u8 = 28;
/// Options of a structured command: keeps its service action, exceeds the limits, flips a bit of the data.
const WITH_SERVICE_ACTION: u8 = 1;
const WITHOUT_LIMITS: u8 = 2;
const WITH_FLIPPED_BIT: u8 = 4;

/// Initiators named in lists.
pub const INITIATOR_NAMES: [&str; 2] = ["iqn.x:i", "iqn.x:j"];

/// Data-out of a command: bytes of the input, repeated.
pub struct RepeatedInput<'a>(pub std::iter::Cycle<std::slice::Iter<'a, u8>>);

impl DataOut for RepeatedInput<'_> {
    async fn take(&mut self, len: usize, into: &mut Vec<u8>) -> Result<(), Cancelled> {
        into.extend(self.0.by_ref().take(len));
        Ok(())
    }
}

/// Keeps small answers and discards blocks.
#[derive(Default)]
pub struct Sink(Vec<u8>);

impl DataIn<SimSeam> for Sink {
    async fn reserve_buffers(&mut self, _: usize) -> Result<(), Cancelled> {
        Ok(())
    }

    async fn send(&mut self, pieces: &mut Vec<Piece<SimBlock>>) -> Result<(), Cancelled> {
        pieces.clear();
        Ok(())
    }

    async fn send_bytes(&mut self, bytes: &[u8]) -> Result<(), Cancelled> {
        self.0.extend_from_slice(bytes);
        Ok(())
    }
}

/// Takes up to `len` bytes from the front of the input.
pub fn take<'a>(input: &mut &'a [u8], len: usize) -> &'a [u8] {
    let (taken, rest) = input.split_at(len.min(input.len()));
    *input = rest;
    taken
}

async fn execute(target: &Target<SimSeam>, lun: [u8; 8], nexus: &scsi::Nexus, cdb: &[u8]) -> Vec<u8> {
    let (cancel, mut sink) = (CancelToken::default(), Sink::default());
    let expected = ExpectedLengths { out_bytes: 0, in_bytes: 65_536 };
    let command = Command { lun, cdb, expected, cancel: &cancel };
    target.execute(nexus, command, &mut RepeatedInput([].iter().cycle()), &mut sink).await;
    sink.0
}

/// The usage bits of each supported command, as the target reports them.
pub async fn usages(target: Target<SimSeam>, lun: [u8; 8]) -> Vec<Vec<u8>> {
    let nexus = target.add_nexus(Initiator::new(INITIATOR_NAMES[0], [1; 6]), 1);
    let report = |option, opcode, service_action| {
        [MAINTENANCE_IN, REPORT_OPCODES, option, opcode, 0, service_action, 0, 0, 16, 0, 0, 0]
    };
    // The first answer is a unit attention (power on).
    execute(&target, lun, &nexus, &TEST_UNIT_READY).await;
    let mut usages = Vec::new();
    for command in execute(&target, lun, &nexus, &report(ALL_COMMANDS, 0, 0)).await[4..].as_chunks::<8>().0 {
        usages.push(execute(&target, lun, &nexus, &report(ONE_COMMAND, command[0], command[3])).await[4..].to_vec());
    }
    usages
}

/// A target descriptor for EXTENDED COPY.
fn target_descriptor(naa: &[u8]) -> Vec<u8> {
    let mut bytes = [&[IDENTIFICATION_TARGET_DESCRIPTOR, 0, 0, 0, 1, 3, 0, 16], naa].concat();
    bytes.resize(TARGET_DESCRIPTOR_BYTES, 0);
    bytes
}

/// A nearly valid parameter list for the command, and the position of its length in the command descriptor block.
fn parameter_list(opcode: u8, input: &mut &[u8]) -> (Vec<u8>, Range<usize>) {
    let shape = input.split_off_first().copied().unwrap_or_default();
    let count = usize::from(shape & 7);
    let mut bytes = Vec::new();
    match opcode {
        MODE_SELECT_6 | MODE_SELECT_10 => {
            bytes.resize(if opcode == MODE_SELECT_6 { 4 } else { 8 }, 0);
            for _ in 0..count {
                let [page, value, offset] = *take(input, 3) else { break };
                let (page, len) = MODE_PAGES[usize::from(page) % MODE_PAGES.len()];
                let start = bytes.len();
                bytes.extend([page, len]);
                bytes.resize(start + 2 + usize::from(len), 0);
                bytes[start + 2 + usize::from(offset % len)] = value;
            }
            (bytes, if opcode == MODE_SELECT_6 { 4..5 } else { 7..9 })
        }
        UNMAP => {
            bytes.extend([0, 0, 0, 16 * count as u8, 0, 0, 0, 0]);
            for _ in 0..count {
                let [a, b, c, d] = *take(input, 4) else { break };
                bytes.extend([0, 0, 0, 0, 0, 0, a, b, 0, 0, c, d, 0, 0, 0, 0]);
            }
            (bytes, 7..9)
        }
        PERSISTENT_RESERVE_OUT => {
            let [key, new_key, flags, other] = *take(input, 4) else { return (bytes, 5..9) };
            bytes.extend([0, 0, 0, 0, 0, 0, 0, key & 3, 0, 0, 0, 0, 0, 0, 0, new_key & 3]);
            let id = Initiator::new(INITIATOR_NAMES[usize::from(other & 1)], [other >> 1 & 3; 6]).transport_id();
            match shape >> 3 & 3 {
                0 => bytes.extend([0, 0, 0, 0, flags, 0, 0, 0]),
                1 => {
                    bytes.extend([0, flags, 0, other >> 6]);
                    bytes.extend((id.len() as u32).to_be_bytes());
                    bytes.extend(id);
                }
                _ => {
                    bytes.extend([0, 0, 0, 0, flags | SPECIFIES_INITIATORS, 0, 0, 0]);
                    bytes.extend(((id.len() * count) as u32).to_be_bytes());
                    bytes.extend(id.repeat(count));
                }
            }
            (bytes, 5..9)
        }
        EXTENDED_COPY => {
            let targets = [1, u64::from(shape >> 6)].map(|unit| target_descriptor(&Identity::of(1, unit).naa)).concat();
            let mut segments = Vec::new();
            for _ in 0..count {
                let [kind, blocks, source, destination, targets_and_excess] = *take(input, 5) else { break };
                let (kind, len, amount) = match kind & 1 {
                    0 => (BLOCK_TO_BLOCK, BLOCK_SEGMENT_BYTES, u32::from(blocks)),
                    _ => (BYTE_TO_BYTE, BYTE_SEGMENT_BYTES, u32::from(blocks) << 9),
                };
                segments.extend([kind, 0, 0, len, 0, targets_and_excess & 3, 0, targets_and_excess >> 2 & 3]);
                // One value of the top bit makes the length no multiple of a block.
                segments.extend((amount + u32::from(targets_and_excess >> 7)).to_be_bytes());
                segments.extend(u64::from(source).to_be_bytes());
                segments.extend(u64::from(destination).to_be_bytes());
                segments.extend(&[0; 4][..usize::from(len - BLOCK_SEGMENT_BYTES)]);
            }
            bytes.extend([count as u8, shape & COPY_OPTIONS, 0, targets.len() as u8, 0, 0, 0, 0]);
            bytes.extend((segments.len() as u32).to_be_bytes());
            bytes.extend([&[0; 4], &targets[..], &segments].concat());
            (bytes, 10..14)
        }
        _ => (bytes, 0..0),
    }
}

/// A nearly valid command, and its data.
pub fn structured_command(usages: &[Vec<u8>], input: &mut &[u8]) -> (Vec<u8>, Vec<u8>) {
    let [command, options, bit] = *take(input, 3) else { return (vec![0; 6], Vec::new()) };
    let usage = &usages[usize::from(command) % usages.len()];
    let mut cdb = usage.clone();
    let parameters = take(input, usage.len() - 1);
    cdb[1..].fill(0);
    cdb[1..=parameters.len()].copy_from_slice(parameters);
    cdb.iter_mut().zip(usage).for_each(|(byte, usage)| *byte &= usage);
    if options & WITH_SERVICE_ACTION != 0 {
        // The service action, for commands that have one.
        cdb[1] = usage[1];
    }
    let (mut data, len_field) = parameter_list(cdb[0], input);
    if options & WITHOUT_LIMITS == 0 && len_field.is_empty() {
        // Limits the command to few and existing blocks.
        let high_bytes: &[Range<usize>] = match cdb.len() {
            10 => &[2..4, 7..8],
            12 => &[2..4, 6..9],
            16 => &[2..8, 10..13],
            _ => &[],
        };
        high_bytes.iter().for_each(|range| cdb[range.clone()].fill(0));
    }
    if !len_field.is_empty() {
        let len = (data.len() as u32).to_be_bytes();
        let unused = len.len() - len_field.len();
        cdb[len_field].copy_from_slice(&len[unused..]);
        let bit = usize::from(bit) % (8 * data.len().max(1));
        if options & WITH_FLIPPED_BIT != 0 && !data.is_empty() {
            data[bit / 8] ^= 1 << (bit % 8);
        }
    }
    (cdb, data)
}
