//! `pool list`, `show` and `plan`: groups by tier, volumes with their bytes in each tier, and moves of slices.

use messages::report::{
    PoolDrainReport, PoolLostReport, PoolMoveReport, PoolPlanReport, PoolProvisioning, PoolRelocationState, PoolReport,
    PoolTierReport,
};
use messages::unix_time;

use super::style::Style;
use super::table::{Side, Table};
use units::{show_bytes, show_count, show_counted, show_percent};

/// Volumes with ranges on absent devices, and the first ranges of each.
pub fn lost(report: &PoolLostReport, style: Style) -> String {
    if report.volumes.is_empty() {
        return format!("no range of pool {} lies on an absent device\n", report.pool);
    }
    let mut text = String::new();
    for volume in &report.volumes {
        let ranges = show_counted(volume.total_ranges, "range");
        text += &format!("volume {}: {} in {ranges}\n", volume.name, show_bytes(volume.bytes));
        let mut table = Table::new(&[("byte offset", Side::Right), ("bytes", Side::Right), ("device", Side::Left)]);
        for range in &volume.ranges {
            let device = format!("group {} ({})", range.number, range.device);
            table.row(vec![range.offset_bytes.to_string(), range.length_bytes.to_string(), device]);
        }
        text += &table.render(style);
        match volume.total_ranges - volume.ranges.len() as u64 {
            0 => {}
            more => text += &format!("... and {more} more\n"),
        }
    }
    text += &format!("{} of pool {}: requests to these ranges fail\n", show_bytes(report.bytes), report.pool);
    text
}

/// A table of groups and one of volumes for each pool.
pub fn tables(pools: &[PoolReport], style: Style) -> String {
    if pools.is_empty() {
        return "no open pools; add [[pool]] to the configuration, create it with `hotset pool create NAME`, and add a \
                [[volume]] with backing = \"pool://NAME\"\n"
            .to_owned();
    }
    let texts: Vec<_> = pools.iter().map(|pool| one_pool(pool, style)).collect();
    texts.join("\n")
}

fn one_pool(pool: &PoolReport, style: Style) -> String {
    let used_bytes = pool.size_bytes - pool.free_bytes;
    let mut groups = Table::new(&[
        ("tier", Side::Left),
        ("group", Side::Right),
        ("device", Side::Left),
        ("state", Side::Left),
        ("size", Side::Right),
        ("free", Side::Right),
        ("load", Side::Right),
        ("metadata", Side::Left),
    ]);
    for PoolTierReport { name, groups: of_tier, .. } in &pool.tiers {
        // A removed device stays known to its pool.
        for group in of_tier.iter().filter(|group| group.state != "removed") {
            groups.row(vec![
                name.clone(),
                group.number.to_string(),
                group.device.clone(),
                match &group.drain {
                    Some(drain) => format!("{} {}", group.state, drain_progress(drain)),
                    None => group.state.clone(),
                },
                show_bytes(group.size_bytes),
                show_bytes(group.free_bytes),
                group.load_ppm.map_or_else(|| "-".to_owned(), |ppm| show_percent(ppm, 1_000_000)),
                if group.carries_metadata { "yes" } else { "" }.to_owned(),
            ]);
        }
    }
    let mut columns =
        vec![("volume", Side::Left), ("placement", Side::Left), ("size", Side::Right), ("allocated", Side::Right)];
    columns.extend(pool.tiers.iter().map(|tier| (tier.name.as_str(), Side::Right)));
    columns.push(("on absent devices", Side::Right));
    let mut volumes = Table::new(&columns);
    for volume in &pool.volumes {
        let placement = match volume.provisioning {
            PoolProvisioning::Thick => format!("{}, thick", volume.tier_policy),
            PoolProvisioning::Thin => volume.tier_policy.clone(),
        };
        let allocated_bytes = volume.tier_bytes.iter().sum();
        let mut row = vec![volume.name.clone(), placement, show_bytes(volume.size_bytes), show_bytes(allocated_bytes)];
        row.extend(volume.tier_bytes.iter().map(|bytes| show_bytes(*bytes)));
        row.push(show_bytes(volume.lost_bytes));
        volumes.row(row);
    }
    let full = pool.full_at_unix_seconds.map(|at| format!("full on {} by its trend\n", unix_time::date(at)));
    format!(
        "pool {}: {} of {} used ({}), slices of {}\n{}{}{}",
        pool.name,
        show_bytes(used_bytes),
        show_bytes(pool.size_bytes),
        show_percent(used_bytes, pool.size_bytes),
        show_bytes(pool.slice_bytes),
        full.unwrap_or_default(),
        groups.render(style),
        volumes.render(style)
    )
}

/// The progress of a drain in a few words.
fn drain_progress(drain: &PoolDrainReport) -> String {
    let left = match (drain.paused, &drain.problem, drain.left_seconds) {
        (true, ..) => ", paused".to_owned(),
        (_, Some(problem), _) => format!(", {problem}"),
        (.., Some(seconds)) => format!(", {} left", show_seconds(seconds)),
        _ => String::new(),
    };
    format!("({}{left})", show_percent(drain.done_bytes, drain.total_bytes))
}

/// `pool show`: the tables of a pool, the classes of its tiers, and the state of its moves.
pub fn details(pool: &PoolReport, style: Style) -> String {
    let mut classes = Table::new(&[
        ("tier", Side::Left),
        ("class", Side::Left),
        ("random read", Side::Right),
        ("sequential", Side::Right),
        ("at once", Side::Right),
    ]);
    for PoolTierReport { name, class, .. } in &pool.tiers {
        classes.row(vec![
            name.clone(),
            format!("{}{}", class.name, if class.measured { " (measured)" } else { "" }),
            format!("{} us", class.read_us),
            format!("{}/s", show_bytes(class.bytes_per_second)),
            class.parallel.to_string(),
        ]);
    }
    let moves = &pool.relocation;
    let state = match moves.state {
        PoolRelocationState::Moving if moves.planned_moves > moves.ended_moves => {
            format!("moving, {} of {} moves", moves.ended_moves, moves.planned_moves)
        }
        state => state.name().to_owned(),
    };
    let next =
        moves.next_plan_seconds.map_or_else(String::new, |seconds| format!(", next plan in {}", show_seconds(seconds)));
    format!(
        "{}{}relocation: {state}{next}; times: {}, rate: {}\nsince the start: {} moved ({}), {} skipped, {} failed\n",
        one_pool(pool, style),
        classes.render(style),
        moves.times,
        moves.rate,
        show_counted(moves.moves, "slice"),
        show_bytes(moves.moved_bytes),
        show_count(moves.skipped_moves),
        show_count(moves.failed_moves)
    )
}

/// Moves that `pool plan` prints; JSON has more.
const PLAN_MOVES_MAX: usize = 50;

/// `pool plan`: slices by load, the load of the devices, the moves with their reasons, and their sums.
pub fn plan(plan: &PoolPlanReport, style: Style) -> String {
    let mut columns = vec![("disk time an hour", Side::Left)];
    columns.extend(plan.tiers.iter().map(|tier| (tier.as_str(), Side::Right)));
    columns.push(("all slices, an hour", Side::Right));
    let mut heat = Table::new(&columns);
    for class in plan.heat.iter().rev() {
        let mut row = vec![match class.from_ms_per_hour {
            0 => "less than 1 ms".to_owned(),
            from => format!("{} or more", show_milliseconds(from)),
        }];
        row.extend(class.tier_bytes.iter().map(|bytes| show_bytes(*bytes)));
        row.push(show_milliseconds(class.ms_per_hour));
        heat.row(row);
    }
    let mut loads = Table::new(&[
        ("group", Side::Right),
        ("device", Side::Left),
        ("utilisation", Side::Right),
        ("expected", Side::Right),
    ]);
    for load in &plan.loads {
        let percent = |ppm: u64| show_percent(ppm, 1_000_000);
        let cells = [load.number.to_string(), load.device.clone(), percent(load.measured_ppm)];
        loads.row(cells.into_iter().chain([percent(load.expected_ppm)]).collect());
    }
    let share = |percent: u64| plan.curve.iter().find(|point| point.slices_ppm == percent * 10_000);
    let curve = [1, 5, 20].into_iter().filter_map(|percent| Some((percent, share(percent)?)));
    let curve: Vec<_> =
        curve.map(|(percent, point)| format!("{percent} %: {}", show_percent(point.load_ppm, 1_000_000))).collect();
    let curve = match curve.is_empty() {
        true => String::new(),
        false => format!("share of the load by the hottest slices: {}\n", curve.join(", ")),
    };
    let text = format!("{}{curve}{}", heat.render(style), loads.render(style));
    if plan.total_moves == 0 {
        return format!("{text}no slice has to move\n");
    }
    let mut moves = Table::new(&[
        ("volume", Side::Left),
        ("at", Side::Right),
        ("from", Side::Right),
        ("to", Side::Right),
        ("reason", Side::Left),
        ("saves an hour", Side::Right),
        ("copy", Side::Right),
        ("pays back in", Side::Right),
    ]);
    for planned in plan.moves.iter().take(PLAN_MOVES_MAX) {
        moves.row(move_row(planned));
    }
    let shown = PLAN_MOVES_MAX.min(plan.moves.len()) as u64;
    let others = plan.total_moves - shown;
    let more = if others > 0 { format!("and {} more\n", show_counted(others, "move")) } else { String::new() };
    format!(
        "{text}{}{more}{}, {} in about {}: saves {} of disk time an hour, copies take {}\n",
        moves.render(style),
        show_counted(plan.total_moves, "move"),
        show_bytes(plan.bytes),
        show_seconds(plan.seconds),
        show_saving(plan.saved_ms_per_hour),
        show_milliseconds(plan.copy_ms)
    )
}

fn move_row(planned: &PoolMoveReport) -> Vec<String> {
    let payback = planned.payback_seconds.map(show_seconds);
    vec![
        planned.volume.clone(),
        show_bytes(planned.offset_bytes),
        planned.from.to_string(),
        planned.to.to_string(),
        planned.reason.name().to_owned(),
        show_saving(planned.saved_ms_per_hour),
        show_milliseconds(planned.copy_ms),
        payback.unwrap_or_else(|| "-".to_owned()),
    ]
}

/// A time in a unit that leaves two or three digits.
fn show_milliseconds(milliseconds: u64) -> String {
    match milliseconds {
        0..1_000 => format!("{milliseconds} ms"),
        1_000..10_000 => format!("{:.1} s", milliseconds as f64 / 1e3),
        10_000..120_000 => format!("{} s", milliseconds / 1_000),
        120_000..7_200_000 => format!("{} min", milliseconds / 60_000),
        7_200_000..172_800_000 => format!("{} h", milliseconds / 3_600_000),
        _ => format!("{} days", milliseconds / 86_400_000),
    }
}

fn show_seconds(seconds: u64) -> String {
    show_milliseconds(seconds.saturating_mul(1_000))
}

fn show_saving(milliseconds: i64) -> String {
    let sign = if milliseconds < 0 { "-" } else { "" };
    format!("{sign}{}", show_milliseconds(milliseconds.unsigned_abs()))
}

#[cfg(test)]
mod tests {
    use messages::report::{
        PoolClassReport, PoolCurveReport, PoolGroupReport, PoolHeatReport, PoolLoadReport, PoolMoveReason,
        PoolRelocationReport, PoolVolumeReport,
    };

    use super::*;

    #[test]
    fn pool_shows_groups_by_tier_and_volumes_by_their_bytes_in_each() {
        let group = |number, device: &str, free_bytes| PoolGroupReport {
            number,
            device: device.to_owned(),
            state: "in-service".to_owned(),
            carries_metadata: number == 0,
            size_bytes: 100 << 30,
            free_bytes,
            load_ppm: Some(120_000),
            drain: (number == 1).then(|| PoolDrainReport {
                done_bytes: 1 << 30,
                total_bytes: 4 << 30,
                left_seconds: Some(900),
                ..PoolDrainReport::default()
            }),
        };
        let class = PoolClassReport {
            name: "ssd".to_owned(),
            measured: true,
            read_us: 140,
            bytes_per_second: 500 << 20,
            parallel: 8,
        };
        let tier = |name: &str, groups| PoolTierReport { name: name.to_owned(), class: class.clone(), groups };
        let volume = PoolVolumeReport {
            name: "web01".to_owned(),
            size_bytes: 80 << 30,
            tier_policy: "start-high".to_owned(),
            provisioning: PoolProvisioning::Thick,
            tier_bytes: vec![10 << 30, 20 << 30],
            lost_bytes: 0,
        };
        let pool = PoolReport {
            name: "tank".to_owned(),
            slice_bytes: 4 << 20,
            size_bytes: 200 << 30,
            free_bytes: 170 << 30,
            tiers: vec![
                tier("ssd", vec![group(0, "/dev/sdb", 90 << 30)]),
                tier("sas", vec![group(1, "/dev/sdc", 80 << 30)]),
            ],
            volumes: vec![volume],
            relocation: PoolRelocationReport {
                state: PoolRelocationState::Idle,
                times: "22:00-06:00".to_owned(),
                rate: "medium".to_owned(),
                moves: 1_200,
                moved_bytes: 1_200 * (4 << 20),
                failed_moves: 3,
                next_plan_seconds: Some(420),
                ..PoolRelocationReport::default()
            },
            full_at_unix_seconds: Some(1_796_083_200),
        };
        insta::assert_snapshot!("pool_details", details(&pool, Style::PLAIN));
        insta::assert_snapshot!(tables(&[pool], Style::PLAIN));
        assert!(tables(&[], Style::PLAIN).contains("hotset pool create"));
    }

    #[test]
    fn plan_shows_heat_loads_and_each_move_with_its_reason() {
        let heat = |from_ms_per_hour, tier_bytes: [u64; 2], ms_per_hour| PoolHeatReport {
            from_ms_per_hour,
            tier_bytes: tier_bytes.to_vec(),
            ms_per_hour,
        };
        let curve = |slices_ppm, load_ppm| PoolCurveReport { slices_ppm, load_ppm };
        let load = |number, device: &str, measured_ppm, expected_ppm| PoolLoadReport {
            number,
            device: device.to_owned(),
            measured_ppm,
            expected_ppm,
        };
        let planned = |reason, saved_ms_per_hour, payback_seconds| PoolMoveReport {
            volume: "web01".to_owned(),
            offset_bytes: 1 << 30,
            from: 1,
            to: 0,
            reason,
            saved_ms_per_hour,
            copy_ms: 60,
            payback_seconds,
            eta_seconds: 1,
        };
        let report = PoolPlanReport {
            pool: "tank".to_owned(),
            tiers: vec!["ssd".to_owned(), "sas".to_owned()],
            heat: vec![heat(0, [0, 90 << 30], 10), heat(10_000, [0, 8 << 20], 40_000)],
            curve: vec![curve(10_000, 400_000), curve(50_000, 700_000), curve(200_000, 999_000)],
            loads: vec![load(0, "/dev/sdb", 1_000, 2_000), load(1, "/dev/sdc", 400_000, 350_000)],
            total_moves: 60,
            moves: vec![
                planned(PoolMoveReason::MakeRoom, -3, None),
                planned(PoolMoveReason::Promote, 19_000, Some(12)),
            ],
            bytes: 8 << 20,
            seconds: 2,
            saved_ms_per_hour: 18_997,
            copy_ms: 120,
        };
        insta::assert_snapshot!(plan(&report, Style::PLAIN));
        assert!(plan(&PoolPlanReport::default(), Style::PLAIN).contains("no slice has to move"));
    }
}
