//! A sequence of commands with data at a target in a simulated world: arbitrary bytes, or the used bits of supported
//! commands with nearly valid parameter lists. Checks: no panic, no endless wait, and readable records of reservations.

#![no_main]

mod scsi_commands;

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::OnceLock;

use engine::{Backing, Core, CoreSpec, VolumeId, VolumeSpec};
use libfuzzer_sys::fuzz_target;
use scsi::{
    AccessList, CancelToken, Command, ExpectedLengths, Identity, Initiator, Lun, PoolSpace, ReservationStore,
    StoreFuture, Target, UnitSpec,
};
use seam::sim::{SimDiskSpec, SimSeam, StoredContent, World, WorldSpec};
use seam::{DiskOpen, Nanos, Seam};

use scsi_commands::{INITIATOR_NAMES, RepeatedInput, Sink, structured_command, take, usages};

const DISK_BYTES: u64 = 1 << 20;

/// Stores the last reservation record.
#[derive(Clone, Default)]
struct MemoryStore(Rc<RefCell<Vec<u8>>>);

impl ReservationStore for MemoryStore {
    fn store(&self, _: VolumeId, record: Vec<u8>) -> StoreFuture {
        self.0.replace(record);
        Box::pin(async { Ok(()) })
    }
}

async fn run_commands(seam: &SimSeam, mut input: &[u8]) {
    let open = DiskOpen { path: "/disk".into(), create_bytes: None, read_only: false, lock_wait_ms: 0 };
    let core = Core::new(seam.clone(), CoreSpec::default());
    let disk = seam.open_disk(&open).await.expect("the disk exists");
    let volume = core.attach(VolumeSpec::new("x", VolumeId(1)), Backing::plain(disk)).expect("the volume name is free");
    let unit = |reservation_record| {
        let (volume, access) = (volume.clone(), AccessList::default());
        UnitSpec {
            lun: Lun::ZERO,
            volume,
            identity: Identity::of(1, 1),
            access,
            read_only: false,
            physical_4k: true,
            reservation_record,
            thin_pool: Some("pool".to_owned()),
        }
    };
    let store = MemoryStore::default();
    let target = || Target::new(seam.clone(), "iqn.x:t", 2, Rc::new(store.clone()));
    static USAGES: OnceLock<Vec<Vec<u8>>> = OnceLock::new();
    if USAGES.get().is_none() {
        let target = target();
        target.add(unit(Vec::new())).expect("the LUN is free");
        USAGES.set(usages(target, [0; 8]).await).expect("only one thread sets the usages");
    }
    let usages = USAGES.get().expect("the usages were set above");
    let target_after_restart = target();
    let target = target();
    target.add(unit(Vec::new())).expect("the LUN is free");
    let soft_thresholds = [70 << 20, 85 << 20, 95 << 20];
    target.set_pool_space("pool", PoolSpace { used_bytes: 60 << 20, available_bytes: 40 << 20, soft_thresholds });
    let nexuses = [0, 1].map(|initiator| target.add_nexus(Initiator::new(INITIATOR_NAMES[initiator], [1; 6]), 1));
    while let [flags, sizes, rest @ ..] = input {
        input = rest;
        let initiator = usize::from(flags & 1);
        let is_random = flags & 4 != 0;
        let data_length_rule = flags >> 3 & 3;
        let sets_read_length = flags & 0x40 != 0;
        let uses_other_lun = flags & 0x80 != 0;
        // Length of a random CDB, and amount of data.
        let (cdb_bytes, data_units) = ([6, 10, 12, 16][usize::from(sizes & 3)], sizes >> 2);
        let (cdb, data) = if is_random {
            let cdb = take(&mut input, cdb_bytes).to_vec();
            (cdb, take(&mut input, usize::from(data_units) * 2).to_vec())
        } else {
            structured_command(usages, &mut input)
        };
        // Low byte of the transfer length, whose place depends on the length of the CDB.
        let blocks = match cdb.len() {
            6 => cdb.get(4),
            10 => cdb.get(8),
            12 => cdb.get(9),
            _ => cdb.get(13),
        };
        let blocks = blocks.copied().map_or(0, u64::from);
        // Parameter lists have their own length; data has the command's number of blocks, or another size.
        let out_bytes = match data_length_rule {
            0 => data.len() as u64,
            1 => blocks * 512,
            2 => blocks * 1024,
            _ => u64::from(data_units) * 512,
        };
        let repeated = if data.is_empty() { &[0][..] } else { &data };
        let in_bytes = if sets_read_length { u64::from(*sizes) << 10 } else { 4_096 };
        let expected = ExpectedLengths { out_bytes, in_bytes };
        let cancel = CancelToken::default();
        let lun = if uses_other_lun { [0, *sizes, 0, 0, 0, 0, 0, 0] } else { [0; 8] };
        let command = Command { lun, cdb: &cdb, expected, cancel: &cancel };
        let nexus = &nexuses[initiator];
        target.try_read(nexus, &command, &mut Vec::new());
        target.execute(nexus, command, &mut RepeatedInput(repeated.iter().cycle()), &mut Sink::default()).await;
    }
    // A restarted daemon must be able to read the record.
    target_after_restart.add(unit(store.0.take())).expect("the stored record can be decoded");
}

fuzz_target!(|data: &[u8]| {
    let spec = WorldSpec {
        blocks: 1024,
        time_max: Nanos::from_secs(86_400),
        content: StoredContent::MetadataOnly,
        ..WorldSpec::new(1)
    };
    let world = World::new(spec);
    world.add_disk("/disk", SimDiskSpec::new(DISK_BYTES));
    let seam = world.seam();
    world.block_on(run_commands(&seam, data));
});
