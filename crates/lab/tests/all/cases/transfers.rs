//! Cached blocks pass from the former owner of a volume to the next one: the next owner has them without a read of the
//! backing, and never one that is older than a write of its own.

use std::cell::Cell;
use std::rc::Rc;

use cache_transfer::{ReceiveError, Received, receive, send};
use engine::policy::PolicyPart;
use engine::spec::Sabotage;
use engine::{
    AnyDisk, Backing, BlockNo, Core, CoreSpec, RetainedBlocks, RetainedPosition, Volume, VolumeSpec, WritePolicy,
};
use lab::fixture::{Fixture, out_of_order_disk, read, spec, write};
use lab::torture::flash::FlashOptions;
use seam::sim::{
    CrashMode, DiskControl, Fault, Ops, Rng, Rule, SimDisk, SimDiskSpec, SimSeam, When, WireSpec, WorldSpec,
};
use seam::{Address, BLOCK_BYTES, ByteStream, DiskOpen, Gather, Listener, Nanos, Seam, StreamWriter};

const MIB: u64 = 1 << 20;
/// Blocks of the volume.
const BLOCKS: u64 = 1024;
const SECTORS: u64 = 8;

/// Two hosts with the same disk: each has an engine on a core of its own.
struct Hosts {
    source: Fixture,
    disk: DiskControl,
    open: SimDisk,
    target: Core<SimSeam>,
}

impl Hosts {
    /// Hosts with these amounts of memory.
    fn new(seed: u64, source_blocks: usize, target_blocks: usize, sabotage: Sabotage) -> Hosts {
        let world = WorldSpec { blocks: source_blocks, ..WorldSpec::new(seed) };
        let source = Fixture::new(world, CoreSpec::default());
        source.world.set_wires(WireSpec { window_bytes: 1 << 20, ..WireSpec::default() });
        let disk = source.add_disk("disk", out_of_order_disk(BLOCKS * BLOCK_BYTES as u64));
        let open = source.open("disk");
        let target = Core::new(source.world.another_core(target_blocks), CoreSpec { sabotage, ..CoreSpec::default() });
        Hosts { source, disk, open, target }
    }

    /// Serves the volume at the source: `used` of its blocks are written.
    fn serve_source(&self, used: u64) -> Volume<SimSeam> {
        let disk = AnyDisk::Plain(self.open.clone());
        let volume = self.source.attach_disk("disk", disk, |_| ()).expect("the name is free");
        self.source.world.block_on(async {
            for block in 0..used {
                write(&volume, block * SECTORS, SECTORS, 1_000 + block).await.expect("a healthy disk");
            }
        });
        volume
    }

    /// Hands the volume over. Returns the former owner's blocks and the volume of the next one.
    fn hand_over(&self, edit: impl FnOnce(&mut VolumeSpec)) -> (RetainedBlocks<SimSeam>, Volume<SimSeam>) {
        let retained = self.source.world.block_on(self.source.core.detach_retaining("disk"));
        let spec = spec("disk", |spec| {
            spec.awaits_transfer = Some(2);
            edit(spec);
        });
        let backing = Backing { disk: AnyDisk::Plain(self.open.clone()) };
        (retained.expect("a healthy disk"), self.target.attach(spec, backing).expect("the name is free"))
    }

    /// Both ends of a connection.
    async fn connect(&self) -> (<SimSeam as Seam>::Stream, <SimSeam as Seam>::Stream) {
        let address = Address::Unix("transfer".into());
        let listener = self.source.seam.listen(&address).await.expect("the address is free");
        let target = self.target.seam().connect(&address).await.expect("the source listens");
        (listener.accept().await.expect("the target has connected"), target)
    }

    /// Passes the retained blocks on.
    async fn transfer(&self, retained: RetainedBlocks<SimSeam>, volume: &Volume<SimSeam>) -> Received {
        let (here, there) = self.connect().await;
        let seam = self.source.seam.clone();
        self.source.seam.spawn(async move {
            // The receiver may end the stream.
            drop(send(&seam, here, &retained).await);
        });
        let received = receive(self.target.seam(), there, volume).await.expect("nothing disturbs the stream");
        volume.end_transfer();
        received
    }
}

#[test]
fn next_owner_serves_the_former_owners_blocks_without_its_backing() {
    let hosts = Hosts::new(1, 2048, 2048, Sabotage::None);
    hosts.serve_source(BLOCKS / 2);
    let (retained, volume) = hosts.hand_over(|_| ());
    assert_eq!(retained.bytes(), BLOCKS / 2 * BLOCK_BYTES as u64, "the former owner keeps them");
    hosts.source.world.block_on(async {
        let received = hosts.transfer(retained, &volume).await;
        let bytes = BLOCKS / 2 * BLOCK_BYTES as u64;
        assert_eq!(received, Received { bytes, admitted_bytes: bytes, is_complete: true });
        let before = hosts.disk.counts().reads;
        for block in 0..BLOCKS / 2 {
            assert_eq!(read(&volume, block * SECTORS, SECTORS).await.expect("a hit"), [1_000 + block; 8]);
        }
        assert_eq!(hosts.disk.counts().reads, before, "every read is a hit");
    });
}

#[test]
fn blocks_of_the_main_part_come_first() {
    let hosts = Hosts::new(2, 600, 600, Sabotage::None);
    let volume = hosts.serve_source(300);
    hosts.source.world.block_on(async {
        volume.destage_all().await.expect("a healthy disk");
        // Two uses of these blocks lie more than a correlation window apart.
        for block in (0..40).chain(300..500).chain(0..40) {
            read(&volume, block * SECTORS, SECTORS).await.expect("a healthy disk");
        }
    });
    let (retained, _) = hosts.hand_over(|_| ());
    let (mut position, mut parts) = (RetainedPosition::START, Vec::new());
    while let Some(batch) = retained.next(&mut position, 7) {
        assert!(batch.blocks.len() <= 7);
        parts.extend(batch.blocks.iter().map(|(block, _)| (batch.part, block.0)));
    }
    let main: Vec<u64> =
        parts.iter().take_while(|(part, _)| *part == PolicyPart::Main).map(|(_, block)| *block).collect();
    assert!(main.iter().filter(|block| **block < 40).count() == 40, "{main:?}");
    assert!(main.len() < parts.len() && parts[main.len()..].iter().all(|(part, _)| *part == PolicyPart::Probation));
}

/// A client of the next owner writes and reads while blocks arrive. Under this policy, or for want of memory, written
/// blocks leave the cache again. Returns the number of wrong reads.
fn wrong_reads_beside_a_transfer(seed: u64, policy: WritePolicy, sabotage: Sabotage) -> u64 {
    let hosts = Hosts::new(seed, 2048, 800, sabotage);
    let former = hosts.serve_source(BLOCKS);
    hosts.source.world.block_on(async {
        // A second use: the blocks displace others at the next owner.
        for block in 0..BLOCKS {
            read(&former, block * SECTORS, SECTORS).await.expect("a hit");
        }
    });
    let (retained, volume) = hosts.hand_over(|spec| spec.policy = policy);
    let wrong = Rc::new(Cell::new(0));
    let (client, seam, count) = (volume.clone(), hosts.target.seam().clone(), Rc::clone(&wrong));
    let ended = Rc::new(Cell::new(false));
    let end = Rc::clone(&ended);
    hosts.source.seam.spawn(async move {
        let rng = Rng::new(seed, 7);
        let mut newest: Vec<u64> = (0..BLOCKS).map(|block| 1_000 + block).collect();
        for number in 0..6_000 {
            let block = rng.below(BLOCKS);
            let first = block * SECTORS;
            match rng.below(8) {
                0..3 => {
                    newest[block as usize] = 10_000 + number;
                    write(&client, first, SECTORS, 10_000 + number).await.expect("a healthy disk");
                }
                3 => client.destage_all().await.expect("a healthy disk"),
                _ => {
                    let content = read(&client, first, SECTORS).await.expect("a healthy disk");
                    count.set(count.get() + u64::from(content != [newest[block as usize]; 8]));
                }
            }
            if number % 16 == 0 {
                seam.sleep(Nanos::from_micros(300)).await;
            }
        }
        end.set(true);
    });
    hosts.source.world.block_on(async {
        let (here, there) = hosts.connect().await;
        let seam = hosts.source.seam.clone();
        hosts.source.seam.spawn(async move {
            // Blocks arrive late: many of them were changed and destaged since.
            seam.sleep(Nanos::from_millis(100)).await;
            drop(send(&seam, here, &retained).await);
        });
        // Memory may be full of the client's blocks, which ends the transfer.
        drop(receive(hosts.target.seam(), there, &volume).await);
        while !ended.get() {
            hosts.target.seam().sleep(Nanos::from_millis(10)).await;
        }
    });
    assert!(hosts.source.world.violations().is_empty(), "{:?}", hosts.source.world.violations());
    wrong.get()
}

#[test]
fn changed_block_is_never_replaced_by_the_former_owners_copy() {
    for seed in 0..20 {
        for policy in [WritePolicy::WriteBack, WritePolicy::WriteThrough, WritePolicy::WriteAround] {
            assert_eq!(wrong_reads_beside_a_transfer(seed, policy, Sabotage::None), 0, "seed {seed}, {policy}");
        }
    }
    let caught =
        |seed: &u64| wrong_reads_beside_a_transfer(*seed, WritePolicy::WriteAround, Sabotage::TransferOverWrite) > 0;
    assert!((0..20).filter(caught).count() > 10, "an admission over a newer write is caught");
}

#[test]
fn transfer_ends_where_memory_belongs_to_others() {
    let hosts = Hosts::new(3, 2048, 512, Sabotage::None);
    hosts.source.add_disk("other", out_of_order_disk(4 * MIB));
    hosts.serve_source(BLOCKS);
    let disk = AnyDisk::Plain(hosts.source.open("other"));
    let other = hosts.source.world.block_on(async {
        let other = hosts.target.attach(spec("other", |_| ()), Backing { disk }).expect("the name is free");
        for block in (0..500).chain(0..500) {
            read(&other, block * SECTORS, SECTORS).await.expect("a healthy disk");
        }
        other
    });
    let (retained, volume) = hosts.hand_over(|_| ());
    let held = other.stats().memory_bytes;
    let received = hosts.source.world.block_on(hosts.transfer(retained, &volume));
    assert!(!received.is_complete, "{received:?}");
    // All blocks of the former owner were written once, so they are in probation and take free buffers only.
    assert_eq!(other.stats().memory_bytes, held);
    assert_eq!(volume.stats().memory_bytes, received.admitted_bytes);
}

#[test]
fn retained_blocks_are_the_first_to_make_room() {
    let hosts = Hosts::new(4, 1100, 64, Sabotage::None);
    hosts.source.add_disk("other", out_of_order_disk(4 * MIB));
    hosts.serve_source(500);
    let other = hosts.source.attach("other", |_| ()).expect("the name is free");
    // No sequential stream, whose blocks are evicted first.
    let hot: Vec<u64> = (0..500).map(|index| index * 197 % 500).collect();
    let read_all = async || {
        for block in &hot {
            read(&other, block * SECTORS, SECTORS).await.expect("a healthy disk");
        }
    };
    hosts.source.world.block_on(read_all());
    let (retained, _) = hosts.hand_over(|_| ());
    hosts.source.world.block_on(async {
        for block in 500..900 {
            read(&other, block * SECTORS, SECTORS).await.expect("a healthy disk");
        }
    });
    assert!(retained.bytes() < 300 * BLOCK_BYTES as u64, "{} bytes are left", retained.bytes());
    let before = other.stats().misses;
    hosts.source.world.block_on(read_all());
    assert_eq!(other.stats().misses, before, "the other volume has lost nothing");
    drop(retained);
    hosts.source.world.block_on(hosts.source.core.detach("other")).expect("a healthy disk");
    assert_eq!(hosts.source.world.blocks_out(), 0, "the end of the handle frees the rest");
}

#[test]
fn volume_without_a_transfer_and_one_that_caches_nothing_admit_nothing() {
    let edits: [fn(&mut VolumeSpec); 2] = [|spec| spec.awaits_transfer = None, |spec| spec.policy = WritePolicy::None];
    for edit in edits {
        let hosts = Hosts::new(5, 2048, 2048, Sabotage::None);
        hosts.serve_source(64);
        let (retained, volume) = hosts.hand_over(edit);
        let received = hosts.source.world.block_on(hosts.transfer(retained, &volume));
        assert_eq!((received, volume.stats().memory_bytes), (Received::default(), 0));
    }
}

/// Records of this host's log are newer than what another host has in memory.
#[test]
fn volume_with_records_in_the_log_admits_nothing() {
    for has_records in [false, true] {
        let fixture = Fixture::new(WorldSpec::new(7), CoreSpec::default());
        let log = FlashOptions::plain(2, 64 << 10, 6);
        log.add_disks(&fixture.world);
        fixture.add_disk("disk", SimDiskSpec::new(4 * MIB)).add_fault(Rule::new(
            Fault::Error,
            Ops::CHANGE,
            When::Always,
        ));
        let attach = async |fixture: &Fixture, first: bool, awaits_transfer: bool| {
            log.open(&fixture.seam, &fixture.core, first, false).await.expect("the devices are intact");
            let open = DiskOpen { path: "disk".into(), create_bytes: None, read_only: false, lock_wait_ms: 1_000 };
            let disk = fixture.seam.open_disk(&open).await.expect("it exists");
            let spec = spec("disk", |spec| spec.awaits_transfer = awaits_transfer.then_some(2));
            fixture.core.attach_recovered(spec, Backing::plain(disk)).await.expect("the log is intact")
        };
        fixture.world.block_on(async {
            let volume = attach(&fixture, true, false).await;
            if has_records {
                write(&volume, 0, SECTORS, 7).await.expect("memory has room");
                volume.flush().await.expect("the log has room");
            }
        });
        let fixture = fixture.crash(CrashMode::LoseAll, WorldSpec::new(8));
        let volume = fixture.world.block_on(attach(&fixture, false, true));
        assert_eq!(volume.awaits_transfer(), !has_records);
    }
}

#[test]
fn broken_and_false_streams_are_refused() {
    let mut too_many = 65_u32.to_le_bytes().to_vec();
    too_many.extend([0; 4]);
    let mut false_part = 1_u32.to_le_bytes().to_vec();
    false_part.extend(9_u32.to_le_bytes());
    let mut false_checksum = 1_u32.to_le_bytes().to_vec();
    false_checksum.extend([0; 4]);
    false_checksum.extend(7_u64.to_le_bytes());
    false_checksum.extend([1; 4]);
    false_checksum.extend([0; BLOCK_BYTES]);
    let half = too_many[..5].to_vec();
    type IsExpected = fn(&ReceiveError) -> bool;
    let cases: [(Vec<u8>, IsExpected); 4] = [
        (too_many, |error| matches!(error, ReceiveError::Header { blocks: 65, .. })),
        (false_part, |error| matches!(error, ReceiveError::Header { part: 9, .. })),
        (false_checksum, |error| matches!(error, ReceiveError::Checksum(7))),
        (half, |error| matches!(error, ReceiveError::Stream(_))),
    ];
    for (bytes, is_expected) in cases {
        let hosts = Hosts::new(6, 256, 256, Sabotage::None);
        hosts.serve_source(16);
        let (_retained, volume) = hosts.hand_over(|_| ());
        let error = hosts.source.world.block_on(async {
            let (here, there) = hosts.connect().await;
            let (reader, mut writer) = here.split();
            let mut gather = Gather::default();
            gather.push_bytes(&bytes);
            writer.send(gather).await.0.expect("the receiver reads");
            drop((reader, writer));
            receive(hosts.target.seam(), there, &volume).await.expect_err("the stream is wrong")
        });
        assert!(is_expected(&error), "{error}");
        assert_eq!(volume.stats().memory_bytes, 0);
        assert!(!volume.admit_transferred(PolicyPart::Main, BlockNo(BLOCKS), block_of(&hosts)), "past the end");
    }
}

fn block_of(hosts: &Hosts) -> <SimSeam as Seam>::Block {
    seam::BlockMut::freeze(hosts.target.seam().alloc().expect("memory is free"))
}
