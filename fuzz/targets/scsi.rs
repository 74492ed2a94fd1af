//! Commands of arbitrary bytes with arbitrary data, one after the other, at a target in a simulated world. No panic, no wait without end.

#![no_main]

use std::rc::Rc;

use engine::{Backing, Core, CoreSpec, VolumeSpec};
use libfuzzer_sys::fuzz_target;
use scsi::{
    AccessList, Cancel, Command, DataIn, DataOut, Expected, Gone, Identity, Initiator, Keep, Keeper, Lun, Target,
    UnitSpec,
};
use seam::sim::{Content, SimBlock, SimDiskSpec, SimSeam, World, WorldSpec};
use seam::{DiskOpen, Nanos, Piece, Seam};

const SIZE: u64 = 1 << 20;

struct Forgets;

impl Keeper for Forgets {
    fn keep(&self, _: u64, _: Vec<u8>) -> Keep {
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

/// Takes all, and keeps nothing.
struct Sink;

impl DataIn<SimSeam> for Sink {
    async fn room(&mut self, _: usize) -> Result<(), Gone> {
        Ok(())
    }

    async fn send(&mut self, pieces: &mut Vec<Piece<SimBlock>>) -> Result<(), Gone> {
        pieces.clear();
        Ok(())
    }

    async fn send_bytes(&mut self, _: &[u8]) -> Result<(), Gone> {
        Ok(())
    }
}

/// Takes the front of the input, as far as it goes.
fn take<'a>(input: &mut &'a [u8], len: usize) -> &'a [u8] {
    let (taken, rest) = input.split_at(len.min(input.len()));
    *input = rest;
    taken
}

async fn commands(seam: &SimSeam, mut input: &[u8]) {
    let what = DiskOpen { path: "/disk".into(), create_bytes: None, read_only: false, lock_wait_ms: 0 };
    let core = Core::new(seam.clone(), CoreSpec::default());
    let disk = seam.open_disk(&what).await.expect("the disk is there");
    let volume = core.attach(VolumeSpec::new("x", 1), Backing::plain(disk)).expect("the first");
    let target = Target::new(seam.clone(), "iqn.x:t", 2, Rc::new(Forgets));
    let (lun, identity, access) = (Lun::ZERO, Identity::of(1, 1), AccessList::default());
    let unit = UnitSpec { lun, volume, identity, access, read_only: false, physical_4k: true, kept: Vec::new() };
    target.add(unit).expect("the first");
    let nexuses = [1, 2].map(|isid| target.nexus(Initiator::new("iqn.x:i", [isid; 6]), 1));
    while let [who, sizes, rest @ ..] = input {
        input = rest;
        let cdb = take(&mut input, [6, 10, 12, 16][usize::from(sizes & 3)]);
        let list = take(&mut input, usize::from(sizes >> 2) * 2);
        // Parameters are as long as they are; blocks as many as fit some number.
        let out_bytes = if who & 2 == 0 { list.len() as u64 } else { u64::from(sizes >> 2) * 512 };
        let expected = Expected { out_bytes: if list.is_empty() { 0 } else { out_bytes }, in_bytes: 4_096 };
        let cancel = Cancel::default();
        let command = Command { lun: [0; 8], cdb, expected, cancel: &cancel };
        let nexus = &nexuses[usize::from(who & 1)];
        target.read_now(nexus, &command, &mut Vec::new());
        target.execute(nexus, command, &mut Wire(list.iter().cycle()), &mut Sink).await;
    }
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
