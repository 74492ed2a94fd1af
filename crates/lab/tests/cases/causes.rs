//! Every request to the backing is counted by what it is and why it came.

use engine::backing::{Cause, Op};
use engine::{BackingCount, WriteFlags};
use lab::rig::{Rig, read, write};
use seam::Nanos;
use seam::sim::SimDiskSpec;

const MIB: u64 = 1 << 20;

#[test]
fn what_goes_to_the_backing_is_counted_by_what_it_is_and_why() {
    let rig = Rig::with_memory(1, 16 * MIB);
    rig.add_disk("disk", SimDiskSpec::new(64 * MIB));
    let volume = rig.attach("disk", |_| ()).unwrap();
    rig.world.block_on(write(&volume, 0, 128, 1)).unwrap();
    rig.world.block_on(volume.discard(8 * MIB, 4 * MIB, WriteFlags::default())).unwrap();
    rig.world.block_on(volume.flush()).unwrap();
    rig.world.block_on(read(&volume, 1_024, 8)).unwrap();
    rig.world.block_on(volume.prefetch(MIB, 64 << 10)).unwrap();
    rig.world.run_for(Nanos::from_secs(1)).unwrap();
    let count = |op, cause, bytes| BackingCount { op, cause, requests: 1, bytes };
    let stats = volume.stats();
    let expected = [
        count(Op::Read, Cause::ClientRead, 4096),
        count(Op::Read, Cause::Readahead, 64 << 10),
        count(Op::Write, Cause::Destage, 64 << 10),
        count(Op::Zero, Cause::Destage, 4 * MIB),
        count(Op::Flush, Cause::Destage, 0),
    ];
    assert_eq!(stats.backing, expected);
    assert_eq!((stats.backing_reads, stats.backing_writes, stats.backing_flushes), (2, 2, 1));
    assert_eq!((stats.backing_read_bytes, stats.backing_write_bytes), (68 << 10, 64 << 10));
}
