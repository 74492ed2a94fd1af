//! Case 22: all combinations of absent, clean, dirty blocks over neighbouring pages, every start and end, every policy, with
//! eviction, discard and destage racing; against a model.

use engine::{WriteFlags, WritePolicy};
use seam::Seam;

use crate::setting::{Numbers, attach, disk, read, world, write};

const BLOCKS: u64 = 32;

#[test]
fn every_start_and_end_over_every_pattern_of_states_reads_what_was_written() {
    for (_, policy) in WritePolicy::ALL {
        // A pool little larger than a request: eviction is always near.
        let world = world(96);
        let control = world.add_disk("disk", disk(1 << 20));
        let content: Vec<u64> = (0..2048).map(|sector| 1000 + sector).collect();
        control.set_tags(0, &content);
        let seam = world.seam();
        world.block_on(async move {
            let (_core, volume) = attach(&seam, "disk", 1, policy).await;
            let (mut expected, mut numbers, mut tag) = (content, Numbers(22), 10_000);
            for pattern in 0..81u64 {
                // Four blocks at the border of two pages take each state in turn; the others follow by chance.
                for block in 0..BLOCKS {
                    let place = block.wrapping_sub(14);
                    let state = if place < 4 { pattern / 3u64.pow(place as u32) % 3 } else { numbers.below(3) };
                    let (at, sector) = (block * 4096, block as usize * 8);
                    match state {
                        0 => volume.discard(at, 4096, WriteFlags::default()).await.expect("whole"),
                        1 => assert_eq!(read(&volume, at, 4096).await, expected[sector..sector + 8]),
                        _ => write(&volume, at, 4096, tag).await,
                    }
                    if state != 1 {
                        expected[sector..sector + 8].fill(if state == 0 { 0 } else { tag });
                    }
                    tag += 1;
                }
                if pattern % 4 == 1 {
                    volume.invalidate();
                }
                if pattern % 5 == 2 {
                    let volume = volume.clone();
                    seam.spawn(async move { volume.flush().await.expect("whole") });
                }
                for _ in 0..24 {
                    let first = numbers.below(BLOCKS * 8 - 1) as usize;
                    let count = 1 + numbers.below(BLOCKS * 8 - first as u64 - 1) as usize;
                    let (at, len) = (first as u64 * 512, count * 512);
                    match numbers.below(4) {
                        0 => {
                            write(&volume, at, len, tag).await;
                            expected[first..first + count].fill(tag);
                            tag += 1;
                        }
                        1 => {
                            volume.discard(at, len as u64, WriteFlags::default()).await.expect("whole");
                            expected[first..first + count].fill(0);
                        }
                        _ => assert_eq!(
                            read(&volume, at, len).await,
                            expected[first..first + count],
                            "{policy} {pattern}"
                        ),
                    }
                }
            }
            volume.destage_all().await.expect("whole");
            for sector in 0..BLOCKS * 8 {
                assert_eq!(control.durable_tag(sector), expected[sector as usize], "{policy}, sector {sector}");
            }
        });
    }
}
