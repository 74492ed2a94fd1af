//! Case 24: scans beside a hot set. One volume reads ten times the cache; its neighbour keeps 95 % of its hits.

use engine::WritePolicy;

use crate::setting::{Numbers, attach, attach_to, disk, read, world};

async fn hits_of(volume: &engine::Volume<seam::sim::SimSeam>, numbers: &mut Numbers) -> f64 {
    let before = volume.stats().memory_hits;
    for _ in 0..4000 {
        read(volume, numbers.below(1200) * 4096, 4096).await;
    }
    (volume.stats().memory_hits - before) as f64 / 4000.0
}

#[test]
fn a_neighbour_of_a_scan_keeps_its_hits() {
    for random in [false, true] {
        let world = world(2048);
        world.add_disk("hot", disk(64 << 20));
        world.add_disk("scan", disk(128 << 20));
        let seam = world.seam();
        world.block_on(async move {
            let (core, hot) = attach(&seam, "hot", 1, WritePolicy::WriteBack).await;
            let scan = attach_to(&core, "scan", 2, WritePolicy::WriteBack).await;
            let mut numbers = Numbers(24);
            for _ in 0..8 {
                hits_of(&hot, &mut numbers).await;
            }
            let before = hits_of(&hot, &mut numbers).await;
            let mut during = 0.0;
            for round in 0..10u64 {
                for block in 0..2048u64 {
                    let at = if random { numbers.below(32_768) } else { round * 2048 + block };
                    read(&scan, at * 4096, 4096).await;
                }
                during += hits_of(&hot, &mut numbers).await / 10.0;
            }
            println!(
                "hits before {before:.4}, beside a {} scan {during:.4}",
                if random { "random" } else { "sequential" }
            );
            assert!(before > 0.95, "the hot set fits: {before}");
            assert!(during >= 0.95 * before, "{during} of {before}");
        });
    }
}
