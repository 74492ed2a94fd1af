//! Commands with data, one after the other, at a target in a simulated world: of arbitrary bytes, or with the bits that they have a use for
//! and parameter lists that are almost right. No panic, no wait without end, and what is kept of reservations can be read again.

#![no_main]

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::OnceLock;

use engine::{Backing, Core, CoreSpec, VolumeSpec};
use libfuzzer_sys::fuzz_target;
use scsi::{
    AccessList, Cancel, Command, DataIn, DataOut, Expected, Gone, Identity, Initiator, Keep, Keeper, Lun, Nexus,
    Target, UnitSpec,
};
use seam::sim::{Content, SimBlock, SimDiskSpec, SimSeam, World, WorldSpec};
use seam::{DiskOpen, Nanos, Piece, Seam};

const SIZE: u64 = 1 << 20;

const NAMES: [&str; 2] = ["iqn.x:i", "iqn.x:j"];

/// Keeps the last record.
#[derive(Clone, Default)]
struct Shelf(Rc<RefCell<Vec<u8>>>);

impl Keeper for Shelf {
    fn keep(&self, _: u64, record: Vec<u8>) -> Keep {
        self.0.replace(record);
        Box::pin(async { Ok(()) })
    }
}

/// Data of a command: what the input has, over and over.
struct Wire<'a>(std::iter::Cycle<std::slice::Iter<'a, u8>>);

impl DataOut for Wire<'_> {
    async fn take(&mut self, len: usize, into: &mut Vec<u8>) -> Result<(), Gone> {
        into.extend(self.0.by_ref().take(len));
        Ok(())
    }
}

/// Keeps small answers, and nothing else.
#[derive(Default)]
struct Sink(Vec<u8>);

impl DataIn<SimSeam> for Sink {
    async fn room(&mut self, _: usize) -> Result<(), Gone> {
        Ok(())
    }

    async fn send(&mut self, pieces: &mut Vec<Piece<SimBlock>>) -> Result<(), Gone> {
        pieces.clear();
        Ok(())
    }

    async fn send_bytes(&mut self, bytes: &[u8]) -> Result<(), Gone> {
        self.0.extend_from_slice(bytes);
        Ok(())
    }
}

/// Takes the front of the input, as far as it goes.
fn take<'a>(input: &mut &'a [u8], len: usize) -> &'a [u8] {
    let (taken, rest) = input.split_at(len.min(input.len()));
    *input = rest;
    taken
}

async fn ask(target: &Target<SimSeam>, nexus: &Nexus, cdb: &[u8]) -> Vec<u8> {
    let (cancel, mut sink) = (Cancel::default(), Sink::default());
    let expected = Expected { out_bytes: 0, in_bytes: 65_536 };
    let command = Command { lun: [0; 8], cdb, expected, cancel: &cancel };
    target.execute(nexus, command, &mut Wire([].iter().cycle()), &mut sink).await;
    sink.0
}

/// For each command that there is, the bits that it has a use for, as a target itself reports them.
async fn usages(target: Target<SimSeam>) -> Vec<Vec<u8>> {
    let nexus = target.nexus(Initiator::new(NAMES[0], [1; 6]), 1);
    let report = |option, code, action| [0xa3, 0x0c, option, code, 0, action, 0, 0, 16, 0, 0, 0];
    // The first answer is that the power came on.
    ask(&target, &nexus, &[0; 6]).await;
    let mut usages = Vec::new();
    for command in ask(&target, &nexus, &report(0, 0, 0)).await[4..].as_chunks::<8>().0 {
        usages.push(ask(&target, &nexus, &report(3, command[0], command[3])).await[4..].to_vec());
    }
    usages
}

/// A device for EXTENDED COPY.
fn device(naa: &[u8]) -> Vec<u8> {
    let mut bytes = [&[0xe4, 0, 0, 0, 1, 3, 0, 16], naa].concat();
    bytes.resize(32, 0);
    bytes
}

/// A parameter list for the command, whose parts are almost right, and the place of its length in the descriptor block.
fn list(code: u8, input: &mut &[u8]) -> (Vec<u8>, std::ops::Range<usize>) {
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
            let devices =
                [device(&Identity::of(1, 1).naa), device(&Identity::of(1, u64::from(shape >> 6)).naa)].concat();
            let mut segments = Vec::new();
            for _ in 0..count {
                let [kind, blocks, from, to, which] = *take(input, 5) else { break };
                let (kind, len, amount) =
                    if kind & 1 == 0 { (2, 24, u32::from(blocks)) } else { (10, 28, u32::from(blocks) << 9) };
                segments.extend([kind, 0, 0, len, 0, which & 3, 0, which >> 2 & 3]);
                segments.extend(amount.to_be_bytes());
                segments.extend(u64::from(from).to_be_bytes());
                segments.extend(u64::from(to).to_be_bytes());
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

/// A command that is almost right, and its data.
fn structured(usages: &[Vec<u8>], input: &mut &[u8]) -> (Vec<u8>, Vec<u8>) {
    let [which, tame, flip] = *take(input, 3) else { return (vec![0; 6], Vec::new()) };
    let usage = &usages[usize::from(which) % usages.len()];
    let mut cdb = usage.clone();
    let own = take(input, usage.len() - 1);
    cdb[1..].fill(0);
    cdb[1..=own.len()].copy_from_slice(own);
    cdb.iter_mut().zip(usage).for_each(|(byte, usage)| *byte &= usage);
    if tame & 1 != 0 {
        // Of those that have one, the service action.
        cdb[1] = usage[1];
    }
    let (mut data, place) = list(cdb[0], input);
    if tame & 2 == 0 && place.is_empty() {
        // Blocks that there are, and few of them.
        let high: &[std::ops::Range<usize>] = match cdb.len() {
            10 => &[2..4, 7..8],
            12 => &[2..4, 6..9],
            16 => &[2..8, 10..13],
            _ => &[],
        };
        high.iter().for_each(|range| cdb[range.clone()].fill(0));
    }
    if !place.is_empty() {
        let len = (data.len() as u32).to_be_bytes();
        let from = len.len() - place.len();
        cdb[place].copy_from_slice(&len[from..]);
        let at = usize::from(flip) % (8 * data.len().max(1));
        if tame & 4 != 0 && !data.is_empty() {
            data[at / 8] ^= 1 << (at % 8);
        }
    }
    (cdb, data)
}

async fn commands(seam: &SimSeam, mut input: &[u8]) {
    let what = DiskOpen { path: "/disk".into(), create_bytes: None, read_only: false, lock_wait_ms: 0 };
    let core = Core::new(seam.clone(), CoreSpec::default());
    let disk = seam.open_disk(&what).await.expect("the disk is there");
    let volume = core.attach(VolumeSpec::new("x", 1), Backing::plain(disk)).expect("the first");
    let unit = |kept| {
        let (volume, access) = (volume.clone(), AccessList::default());
        UnitSpec {
            lun: Lun::ZERO,
            volume,
            identity: Identity::of(1, 1),
            access,
            read_only: false,
            physical_4k: true,
            kept,
        }
    };
    let shelf = Shelf::default();
    let target = || Target::new(seam.clone(), "iqn.x:t", 2, Rc::new(shelf.clone()));
    static USAGES: OnceLock<Vec<Vec<u8>>> = OnceLock::new();
    if USAGES.get().is_none() {
        let target = target();
        target.add(unit(Vec::new())).expect("the first");
        USAGES.set(usages(target).await).expect("there is one thread");
    }
    let usages = USAGES.get().expect("it was set");
    let again = target();
    let target = target();
    target.add(unit(Vec::new())).expect("the first");
    let nexuses = [0, 1].map(|who| target.nexus(Initiator::new(NAMES[who], [1; 6]), 1));
    while let [who, sizes, rest @ ..] = input {
        input = rest;
        let (cdb, data) = match who & 4 {
            0 => structured(usages, &mut input),
            _ => {
                let cdb = take(&mut input, [6, 10, 12, 16][usize::from(sizes & 3)]).to_vec();
                (cdb, take(&mut input, usize::from(sizes >> 2) * 2).to_vec())
            }
        };
        // Parameters are as long as they are; blocks as many as are asked for, or as fit some number.
        let blocks = match cdb.len() {
            6 => cdb.get(4),
            10 => cdb.get(8),
            12 => cdb.get(9),
            _ => cdb.get(13),
        };
        let blocks = blocks.copied().map_or(0, u64::from);
        let out_bytes = match who >> 3 & 3 {
            0 => data.len() as u64,
            1 => blocks * 512,
            2 => blocks * 1024,
            _ => u64::from(sizes >> 2) * 512,
        };
        let cycled = if data.is_empty() { &[0][..] } else { &data };
        let expected = Expected { out_bytes, in_bytes: if who & 0x40 == 0 { 4_096 } else { u64::from(*sizes) << 10 } };
        let cancel = Cancel::default();
        let lun = if who & 0x80 == 0 { [0; 8] } else { [0, *sizes, 0, 0, 0, 0, 0, 0] };
        let command = Command { lun, cdb: &cdb, expected, cancel: &cancel };
        let nexus = &nexuses[usize::from(who & 1)];
        target.read_now(nexus, &command, &mut Vec::new());
        target.execute(nexus, command, &mut Wire(cycled.iter().cycle()), &mut Sink::default()).await;
    }
    // A daemon that starts again finds what is kept.
    again.add(unit(shelf.0.take())).expect("what was kept can be read");
}

fuzz_target!(|data: &[u8]| {
    let world = World::new(WorldSpec {
        blocks: 1024,
        keep: Content::None,
        time_max: Nanos::from_secs(86_400),
        ..WorldSpec::new(1)
    });
    world.add_disk("/disk", SimDiskSpec::new(SIZE));
    let seam = world.seam();
    world.block_on(commands(&seam, data));
});
