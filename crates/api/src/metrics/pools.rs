//! Metric families of pools: fill of their tiers, and moves of slices.

use messages::StatusReport;
use messages::report::{PoolRelocationState, PoolReport};

use super::lines::{Labels, Lines};

/// Writes all families of all pools.
pub fn write(lines: &mut Lines, status: &StatusReport) {
    if status.pools.is_empty() {
        return;
    }
    let label = |pool: &PoolReport| Labels::default().with("pool", &pool.name);
    let mut write_tiers = |name, help, value: fn(&messages::report::PoolGroupReport) -> u64| {
        lines.family(name, "gauge", help);
        for pool in &status.pools {
            for tier in &pool.tiers {
                let bytes: u64 = tier.groups.iter().map(value).sum();
                lines.sample(&label(pool), &[("tier", &tier.name)], bytes as f64);
            }
        }
    };
    write_tiers("hotset_pool_size_bytes", "Bytes of the devices of the tier that volumes can use.", |group| {
        group.size_bytes
    });
    write_tiers("hotset_pool_free_bytes", "Bytes of the tier that no volume uses.", |group| group.free_bytes);
    lines.family("hotset_pool_moved_bytes_total", "counter", "Bytes of slices that moved to another device.");
    for pool in &status.pools {
        lines.sample(&label(pool), &[], pool.relocation.moved_bytes as f64);
    }
    let help = "Moves of slices by result: moved, skipped (freed, moved or cancelled meanwhile), failed.";
    lines.family("hotset_pool_moves_total", "counter", help);
    for pool in &status.pools {
        let moves = &pool.relocation;
        for (result, count) in
            [("moved", moves.moves), ("skipped", moves.skipped_moves), ("failed", moves.failed_moves)]
        {
            lines.sample(&label(pool), &[("result", result)], count as f64);
        }
    }
    lines.family("hotset_pool_relocation_state", "gauge", "1 for the present state of relocation, 0 for the others.");
    for pool in &status.pools {
        for state in PoolRelocationState::ALL {
            let is_present = f64::from(u8::from(pool.relocation.state == state));
            lines.sample(&label(pool), &[("state", state.name())], is_present);
        }
    }
}
