//! IOPS and hit ratio per minute with flash and without it.
//!
//! Usage: `cargo run --release -p lab --example flash_gain -- MINUTES HOT_PERCENT SEED GIB DEPTH`. The hot set is
//! HOT_PERCENT of the clean capacity of two devices of GIB each.

#![expect(clippy::disallowed_methods, reason = "two independent worlds, a thread each")]

use lab::workload::gain::{GainSpec, Minute, capacity_pages, run_minutes};

const MIB: u64 = 1 << 20;

fn main() {
    let mut numbers = std::env::args().skip(1).map(|text| text.parse::<u64>().expect("every argument is a number"));
    let (minutes, percent, seed) =
        (numbers.next().unwrap_or(75), numbers.next().unwrap_or(150), numbers.next().unwrap_or(1));
    let (gib, depth) = (numbers.next().unwrap_or(32), numbers.next().unwrap_or(16) as u32);
    let flash_bytes = gib << 30;
    let pages = capacity_pages(flash_bytes);
    let hot_bytes = (pages * 65_536 * percent / 100).next_multiple_of(MIB);
    println!("room for {pages} pages, a hot set of {} MiB", hot_bytes / MIB);
    let gain = GainSpec { seed, hot_bytes, memory_bytes: 64 * MIB, flash_bytes, minutes, depth };
    let run = |gain: GainSpec| {
        std::thread::spawn(move || {
            let mut minutes = Vec::new();
            run_minutes(&gain, |minute| minutes.push(minute));
            minutes
        })
    };
    let without = run(GainSpec { flash_bytes: 0, ..gain.clone() });
    let with = run(gain);
    let (with, without): (Vec<Minute>, Vec<Minute>) =
        (with.join().expect("a run does not panic"), without.join().expect("a run does not panic"));
    for (minute, (with, without)) in with.iter().zip(&without).enumerate() {
        println!(
            "minute {minute:>3}: {:>7.0} IOPS with flash, {:>7.0} without ({:.3}); {:.3} hits, {:.3} without; {} pages",
            with.iops,
            without.iops,
            with.iops / without.iops,
            with.hit_ratio,
            without.hit_ratio,
            with.pages
        );
    }
}
