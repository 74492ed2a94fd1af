//! Memory of the planner on a pool of 100 TiB: bounded, whatever the number of slices.

use std::alloc::System;
use std::cell::Cell;

use cap::Cap;
use pool::heat::{Demand, HeatTable, PER_ACCESS};
use pool::planner::{ClassCost, Group, MOVES_MAX, Place, Policy, Settings, Slice, Slices, Tier, plan};
use seam::Nanos;

#[global_allocator]
static COUNTING: Cap<System> = Cap::new(System, usize::MAX);

/// Bound of a plan's memory.
const LIMIT_BYTES: usize = 40 << 20;

/// Slices computed from their index.
struct SyntheticSlices {
    count: u64,
    /// Most bytes that were allocated when the planner read a slice.
    allocated_max: Cell<usize>,
}

impl Slices for SyntheticSlices {
    fn count(&self) -> u64 {
        self.count
    }

    fn slice(&self, index: u64) -> Option<Slice> {
        self.allocated_max.set(self.allocated_max.get().max(COUNTING.allocated()));
        let a = (index ^ (index >> 30)).wrapping_add(0x9e37_79b9).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let b = (a ^ (a >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        let random = b ^ (b >> 31);
        // One slice in eight has load, spread over four orders of magnitude.
        let per_hour = if random.is_multiple_of(8) { (1 << (random >> 60)) + (random >> 50 & 7) } else { 0 };
        let demand = Demand { reads: per_hour * PER_ACCESS, writes: 0, bytes: per_hour * 8192 };
        let place = match index % 20 {
            0 => Place { tier: 0, group: 0 },
            1..6 => Place { tier: 1, group: (random >> 20) as u16 % 3 },
            _ => Place { tier: 2, group: (random >> 20) as u16 % 3 },
        };
        Some(Slice { demand, place, policy: Policy::Auto })
    }
}

fn tiers(slices: u64) -> Vec<Tier> {
    let class = |millis, disks| ClassCost::rotating(Nanos::from_millis(millis), 4, 200_000_000, disks);
    let ssd = ClassCost {
        read_access: Nanos::from_micros(90),
        write_access: Nanos::from_micros(120),
        byte_ps: 1_818,
        parallel: 12,
    };
    let group = |class, slots: u64| Group { class, slots, free: slots / 10 + 1, utilisation_ppm: 0 };
    vec![
        Tier { groups: vec![group(ssd, slices / 18)], reserve_percent: 10 },
        Tier { groups: vec![group(class(6, 40), slices / 10); 3], reserve_percent: 10 },
        Tier { groups: vec![group(class(11, 60), slices / 3); 3], reserve_percent: 10 },
    ]
}

/// Most bytes that a plan holds while it reads slices. An allocation past the limit ends the process.
fn peak_bytes(slices: u64) -> usize {
    let (tiers, synthetic) = (tiers(slices), SyntheticSlices { count: slices, allocated_max: Cell::new(0) });
    let settings = Settings { valid_for: Nanos::from_secs(86_400), ..Settings::new(4 << 20, 1 << 30) };
    let before = COUNTING.allocated();
    COUNTING.set_limit(before + LIMIT_BYTES).expect("the limit is above the use");
    let plan = plan(&tiers, &synthetic, &settings);
    COUNTING.set_limit(usize::MAX).expect("no limit");
    assert_eq!(plan.moves.len() as u64, MOVES_MAX, "{slices} slices");
    synthetic.allocated_max.get() - before
}

#[test]
fn memory_of_heat_and_planner_is_bounded() {
    let slices = 1_000_000;
    let before = COUNTING.allocated();
    let table = HeatTable::new(slices, Nanos::ZERO, 1);
    assert!(COUNTING.allocated() - before <= 8 * slices + 1024);
    drop(table);

    let (small, large) = (peak_bytes(2_000_000), peak_bytes(26_214_400));
    println!("bytes while planning: {small} for 2,000,000 slices, {large} for 26,214,400");
    assert!(large < small * 11 / 10, "{large} bytes instead of {small}");
}
