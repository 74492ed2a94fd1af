//! What flash gains minute by minute (`cargo run --release -p lab --example flash_gain -- MINUTES HOT_PERCENT SEED`): a hot set of
//! so many percent of the flash's clean capacity, with flash and without.

use lab::torture::flash::FlashOptions;
use lab::workload::gain::{Setting, minutes, on_raid5};

const MIB: u64 = 1 << 20;

fn main() {
    let mut numbers =
        std::env::args().skip(1).map(|text| text.parse::<u64>().expect("numbers: minutes, percent, seed"));
    let (time, percent, seed) =
        (numbers.next().unwrap_or(75), numbers.next().unwrap_or(150), numbers.next().unwrap_or(1));
    let flash = FlashOptions::plain(2, MIB, 96);
    let (rig, volume) = on_raid5(16 * MIB, Some(&flash), 64 * MIB, seed);
    let slots = rig.world.block_on(async {
        while !volume.stats().flash.checked {
            seam::Seam::sleep(&rig.seam, seam::Nanos::from_millis(100)).await;
        }
        rig.core.pages().expect("there is a store").slots_max()
    });
    let hot_bytes = (slots * 65_536 * percent / 100).next_multiple_of(MIB);
    println!("{slots} slots, a hot set of {} MiB", hot_bytes / MIB);
    let setting = Setting { seed, hot_bytes, memory_bytes: 16 * MIB, flash: Some(flash), minutes: time, depth: 16 };
    let with = minutes(&setting);
    let without = minutes(&Setting { flash: None, ..setting });
    for (minute, (with, without)) in with.iter().zip(&without).enumerate() {
        println!(
            "minute {minute:>3}: {:>7.0} IOPS with flash, {:>7.0} without ({:.3}); {:.3} hits, {:.3} without",
            with.iops,
            without.iops,
            with.iops / without.iops,
            with.hit_ratio,
            without.hit_ratio
        );
    }
}
