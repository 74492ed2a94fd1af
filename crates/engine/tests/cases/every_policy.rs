//! What is read is what was written, under every policy, whatever moves underneath.

use engine::{WriteFlags, WritePolicy, ZeroFlags};
use seam::{Nanos, Seam};

use crate::setting::{Tag, attach, disk, read, world};

#[test]
fn what_is_written_is_read_under_every_policy_and_the_dirty_data_drains() {
    for (_, policy) in WritePolicy::ALL {
        let world = world(256);
        world.add_disk("disk", disk(8 << 20));
        let seam = world.seam();
        world.block_on(async move {
            let (core, volume) = attach(&seam, "disk", 1, policy).await;
            let mut expected = vec![0u64; (8 << 20) / 512];
            let mut state = 7u64;
            for turn in 1..3000u64 {
                state = state.wrapping_mul(6364136223846793005).wrapping_add(turn);
                let first = (state >> 33) as usize % (expected.len() - 64);
                let count = 1 + (state >> 20) as usize % 64;
                let (at, len) = (first as u64 * 512, count * 512);
                match turn % 10 {
                    0..=4 => {
                        if !volume.write_now(at, len, &mut Tag(turn)) {
                            volume
                                .write(at, len, WriteFlags { fua: turn % 7 == 0 }, &mut Tag(turn))
                                .await
                                .expect("whole");
                        }
                        expected[first..first + count].fill(turn);
                    }
                    5 => {
                        let flags = ZeroFlags { fua: turn % 3 == 0, may_unmap: true, fast_only: false };
                        volume.zero(at, len as u64, flags).await.expect("whole");
                        expected[first..first + count].fill(0);
                    }
                    6 if turn % 60 == 6 => volume.flush().await.expect("whole"),
                    _ => {
                        assert_eq!(read(&volume, at, len).await, expected[first..first + count], "turn {turn} {policy}")
                    }
                }
            }
            volume.destage_all().await.expect("whole");
            assert_eq!(volume.stats().dirty_bytes, 0);
            seam.sleep(Nanos::from_secs(60)).await;
            assert_eq!(volume.stats().written_bytes, 0);
            for first in (0..expected.len()).step_by(128) {
                assert_eq!(read(&volume, first as u64 * 512, 65536).await, expected[first..first + 128]);
            }
            core.detach("disk").await.expect("whole");
        });
        assert_eq!(world.blocks_out(), 0, "every buffer came back");
    }
}
