//! Reads return the written data under every policy, with all kinds of operations mixed, and all dirty data drains.

use engine::{ByteOffset, WriteFlags, WritePolicy, ZeroFlags};
use lab::fixture::{Fixture, SameTag, out_of_order_disk, read, write};
use lab::random::Random;
use seam::Nanos;

const MIB: u64 = 1 << 20;
const SECTORS: u64 = 8 * MIB / 512;

#[test]
fn written_data_reads_back_and_drains_under_every_policy() {
    for (name, policy) in WritePolicy::ALL {
        let fixture = Fixture::with_memory(1, MIB);
        fixture.add_disk(name, out_of_order_disk(8 * MIB));
        let volume = fixture.attach(name, |spec| spec.policy = policy).unwrap();
        let mut expected = vec![0; SECTORS as usize];
        let mut random = Random::new(7, 0);
        for round in 1..3_000_u64 {
            let (first, count) = (random.below(SECTORS - 64), random.between(1, 64));
            let sectors = first as usize..(first + count) as usize;
            match round % 10 {
                0 if round % 70 == 0 => {
                    let (flags, mut source) = (WriteFlags { fua: true, ..Default::default() }, SameTag(round));
                    let fua = volume.write(ByteOffset(first * 512), (count * 512) as usize, flags, &mut source);
                    fixture.world.block_on(fua).unwrap();
                    expected[sectors].fill(round);
                }
                0..=4 => {
                    fixture.world.block_on(write(&volume, first, count, round)).unwrap();
                    expected[sectors].fill(round);
                }
                5 => {
                    let flags = ZeroFlags { fua: round % 3 == 0, may_unmap: true, fast_only: false };
                    fixture.world.block_on(volume.zero(ByteOffset(first * 512), count * 512, flags)).unwrap();
                    expected[sectors].fill(0);
                }
                6 if round % 60 == 6 => fixture.world.block_on(volume.flush()).unwrap(),
                _ => {
                    let tags = fixture.world.block_on(read(&volume, first, count)).unwrap();
                    assert_eq!(tags, expected[sectors], "{policy}, round {round}");
                }
            }
        }
        fixture.world.block_on(volume.destage_all()).unwrap();
        assert_eq!(volume.stats().dirty_bytes, 0);
        fixture.world.run_for(Nanos::from_secs(60)).unwrap();
        assert_eq!(volume.stats().written_bytes, 0);
        for first in (0..SECTORS).step_by(128) {
            let tags = fixture.world.block_on(read(&volume, first, 128)).unwrap();
            assert_eq!(tags, expected[first as usize..][..128], "{policy}, after it drained");
        }
        fixture.world.block_on(fixture.core.detach(name)).unwrap();
        drop(volume);
        fixture.world.run_for(Nanos::from_secs(1)).unwrap();
        assert_eq!(fixture.world.blocks_out(), 0, "{policy}: leaked buffers");
    }
}
