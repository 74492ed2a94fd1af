//! Nearly valid SCSI commands from a fuzzer's input: only the bits that a command uses, and parameter lists.

use std::ops::Range;

use scsi::{Cancel, Cancelled, Command, DataIn, DataOut, Expected, Identity, Initiator, Target};
use seam::Piece;
use seam::sim::{SimBlock, SimSeam};

/// Initiators named in lists.
pub const NAMES: [&str; 2] = ["iqn.x:i", "iqn.x:j"];

/// Data-out of a command: bytes of the input, repeated.
pub struct Wire<'a>(pub std::iter::Cycle<std::slice::Iter<'a, u8>>);

impl DataOut for Wire<'_> {
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
    let (cancel, mut sink) = (Cancel::default(), Sink::default());
    let expected = Expected { out_bytes: 0, in_bytes: 65_536 };
    let command = Command { lun, cdb, expected, cancel: &cancel };
    target.execute(nexus, command, &mut Wire([].iter().cycle()), &mut sink).await;
    sink.0
}

/// The usage bits of each supported command, as the target reports them.
pub async fn usages(target: Target<SimSeam>, lun: [u8; 8]) -> Vec<Vec<u8>> {
    let nexus = target.nexus(Initiator::new(NAMES[0], [1; 6]), 1);
    let report = |option, code, action| [0xa3, 0x0c, option, code, 0, action, 0, 0, 16, 0, 0, 0];
    // The first answer is a unit attention (power on).
    execute(&target, lun, &nexus, &[0; 6]).await;
    let mut usages = Vec::new();
    for command in execute(&target, lun, &nexus, &report(0, 0, 0)).await[4..].as_chunks::<8>().0 {
        usages.push(execute(&target, lun, &nexus, &report(3, command[0], command[3])).await[4..].to_vec());
    }
    usages
}

/// A target descriptor for EXTENDED COPY.
fn target_descriptor(naa: &[u8]) -> Vec<u8> {
    let mut bytes = [&[0xe4, 0, 0, 0, 1, 3, 0, 16], naa].concat();
    bytes.resize(32, 0);
    bytes
}

/// A nearly valid parameter list for the command, and the position of its length in the command descriptor block.
fn parameter_list(code: u8, input: &mut &[u8]) -> (Vec<u8>, Range<usize>) {
    let shape = input.split_off_first().copied().unwrap_or_default();
    let count = usize::from(shape & 7);
    let mut bytes = Vec::new();
    match code {
        0x15 | 0x55 => {
            bytes.resize(if code == 0x15 { 4 } else { 8 }, 0);
            for _ in 0..count {
                let [page, value, at] = *take(input, 3) else { break };
                let (page, len) = [(0x08, 18), (0x0a, 10), (0x01, 10), (0x1c, 10)][usize::from(page) % 4];
                let start = bytes.len();
                bytes.extend([page, len]);
                bytes.resize(start + 2 + usize::from(len), 0);
                bytes[start + 2 + usize::from(at % len)] = value;
            }
            (bytes, if code == 0x15 { 4..5 } else { 7..9 })
        }
        0x42 => {
            bytes.extend([0, 0, 0, 16 * count as u8, 0, 0, 0, 0]);
            for _ in 0..count {
                let [a, b, c, d] = *take(input, 4) else { break };
                bytes.extend([0, 0, 0, 0, 0, 0, a, b, 0, 0, c, d, 0, 0, 0, 0]);
            }
            (bytes, 7..9)
        }
        0x5f => {
            let [key, new_key, flags, other] = *take(input, 4) else { return (bytes, 5..9) };
            bytes.extend([0, 0, 0, 0, 0, 0, 0, key & 3, 0, 0, 0, 0, 0, 0, 0, new_key & 3]);
            let id = Initiator::new(NAMES[usize::from(other & 1)], [other >> 1 & 3; 6]).transport_id();
            match shape >> 3 & 3 {
                0 => bytes.extend([0, 0, 0, 0, flags, 0, 0, 0]),
                1 => {
                    bytes.extend([0, flags, 0, other >> 6]);
                    bytes.extend((id.len() as u32).to_be_bytes());
                    bytes.extend(id);
                }
                _ => {
                    bytes.extend([0, 0, 0, 0, flags | 8, 0, 0, 0]);
                    bytes.extend(((id.len() * count) as u32).to_be_bytes());
                    bytes.extend(id.repeat(count));
                }
            }
            (bytes, 5..9)
        }
        0x83 => {
            let devices = [1, u64::from(shape >> 6)].map(|unit| target_descriptor(&Identity::of(1, unit).naa)).concat();
            let mut segments = Vec::new();
            for _ in 0..count {
                let [kind, blocks, source, destination, which] = *take(input, 5) else { break };
                let (kind, len, amount) =
                    if kind & 1 == 0 { (2, 24, u32::from(blocks)) } else { (10, 28, u32::from(blocks) << 9) };
                segments.extend([kind, 0, 0, len, 0, which & 3, 0, which >> 2 & 3]);
                // One value of the top bit makes the length no multiple of a block.
                segments.extend((amount + u32::from(which >> 7)).to_be_bytes());
                segments.extend(u64::from(source).to_be_bytes());
                segments.extend(u64::from(destination).to_be_bytes());
                segments.extend(&[0; 4][..usize::from(len - 24)]);
            }
            bytes.extend([count as u8, shape & 0x38, 0, devices.len() as u8, 0, 0, 0, 0]);
            bytes.extend((segments.len() as u32).to_be_bytes());
            bytes.extend([&[0; 4], &devices[..], &segments].concat());
            (bytes, 10..14)
        }
        _ => (bytes, 0..0),
    }
}

/// A nearly valid command, and its data.
pub fn structured(usages: &[Vec<u8>], input: &mut &[u8]) -> (Vec<u8>, Vec<u8>) {
    let [which, options, flip] = *take(input, 3) else { return (vec![0; 6], Vec::new()) };
    let usage = &usages[usize::from(which) % usages.len()];
    let mut cdb = usage.clone();
    let parameters = take(input, usage.len() - 1);
    cdb[1..].fill(0);
    cdb[1..=parameters.len()].copy_from_slice(parameters);
    cdb.iter_mut().zip(usage).for_each(|(byte, usage)| *byte &= usage);
    if options & 1 != 0 {
        // The service action, for commands that have one.
        cdb[1] = usage[1];
    }
    let (mut data, len_field) = parameter_list(cdb[0], input);
    if options & 2 == 0 && len_field.is_empty() {
        // Limits the command to few and existing blocks.
        let high: &[Range<usize>] = match cdb.len() {
            10 => &[2..4, 7..8],
            12 => &[2..4, 6..9],
            16 => &[2..8, 10..13],
            _ => &[],
        };
        high.iter().for_each(|range| cdb[range.clone()].fill(0));
    }
    if !len_field.is_empty() {
        let len = (data.len() as u32).to_be_bytes();
        let from = len.len() - len_field.len();
        cdb[len_field].copy_from_slice(&len[from..]);
        let at = usize::from(flip) % (8 * data.len().max(1));
        if options & 4 != 0 && !data.is_empty() {
            data[at / 8] ^= 1 << (at % 8);
        }
    }
    (cdb, data)
}
