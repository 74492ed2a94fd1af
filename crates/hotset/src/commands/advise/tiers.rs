//! The tiers of a pool: advice for the load of a trace, and the measured curve of a pool of the daemon.

use std::path::Path;

use clap::Args;
use lab::advice::{RESERVE_PERCENT, ShareStep, SliceLoads, TierAdvice, TierSize, TierStep};
use lab::curve::knee;
use messages::report::{PoolPlanReport, PoolReport, PoolTierReport};
use messages::{Answer, Request};
use pool::planner::{ClassCost, NAMED_CLASSES};
use serde::Serialize;
use terminal::render::style::Style;
use terminal::render::table::{Side, Table};
use terminal::{Failure, print_json};
use units::{show_bytes, show_count, show_percent};

use super::super::daemon::{send_request, unexpected};
use super::super::simulate::parse_slice;

/// Millionths of a whole.
const PPM: u64 = 1_000_000;
/// Shares of the disk time that are reported, in percent.
const SHARES_PERCENT: [u64; 4] = [50, 80, 90, 95];

/// Options of the tiers.
#[derive(Args)]
pub struct Options {
    /// For a trace: size of the slices of a pool
    #[arg(long, value_name = "SIZE", default_value = "4 MiB", value_parser = parse_slice)]
    slice: u64,
    /// For a trace: classes of the tiers to choose from, the fastest first
    #[arg(long, value_name = "CLASSES", default_value = "ssd,10k,nl-sas", value_parser = parse_classes)]
    tiers: Classes,
}

/// Names and costs of at least two classes, the fastest first.
#[derive(Clone)]
struct Classes(Vec<(&'static str, ClassCost)>);

fn parse_classes(text: &str) -> Result<Classes, String> {
    let names = || NAMED_CLASSES.map(|(name, _)| name).join(", ");
    let mut classes = Vec::new();
    for name in text.split(',').map(str::trim) {
        let position = NAMED_CLASSES.iter().position(|(known, _)| *known == name);
        classes.push(position.ok_or_else(|| format!("\"{name}\" is no class; use {}", names()))?);
    }
    if classes.len() < 2 || !classes.is_sorted_by(|faster, slower| faster < slower) {
        return Err(format!("\"{text}\" does not name two or more classes in the order {}", names()));
    }
    Ok(Classes(classes.into_iter().map(|position| NAMED_CLASSES[position]).collect()))
}

/// Advice on the tiers for a trace.
#[derive(Serialize)]
pub struct TraceTiers {
    classes: Vec<&'static str>,
    slice_bytes: u64,
    slices: u64,
    disk_time_s: f64,
    busy_disks: Option<f64>,
    knee_bytes: Option<u64>,
    shares: Vec<Share>,
    steps: Vec<Step>,
    tiers: Vec<Tier>,
}

#[derive(Serialize)]
struct Share {
    percent: u64,
    slices_ppm: u64,
    bytes: u64,
}

#[derive(Serialize)]
struct Step {
    size_bytes: u64,
    share: f64,
    saved: f64,
    saved_disks: Option<f64>,
}

#[derive(Serialize)]
struct Tier {
    class: String,
    size_bytes: u64,
    slices_ppm: u64,
    share: f64,
    busy_disks: Option<f64>,
}

impl TraceTiers {
    /// Advice for the requests of a trace.
    pub fn new(options: &Options, requests: &[trace::Request]) -> TraceTiers {
        let classes = &options.tiers.0;
        let advice = SliceLoads::of_trace(requests, options.slice).advise(classes);
        let TierAdvice { slice_bytes, slices, .. } = advice;
        let ppm = |count: u64| (count * PPM).checked_div(slices).unwrap_or(0);
        let tier = |tier: TierSize| Tier {
            class: tier.class,
            size_bytes: tier.bytes,
            slices_ppm: ppm(tier.slices),
            share: tier.share,
            busy_disks: tier.busy_disks,
        };
        let share = |step: ShareStep| Share {
            percent: step.percent,
            slices_ppm: ppm(step.slices),
            bytes: step.slices * slice_bytes,
        };
        let step = |step: TierStep| Step {
            size_bytes: step.slices * slice_bytes,
            share: step.share,
            saved: step.saved,
            saved_disks: step.saved_disks,
        };
        TraceTiers {
            classes: classes.iter().map(|(name, _)| *name).collect(),
            slice_bytes,
            slices,
            disk_time_s: advice.disk_time.as_secs_f64(),
            busy_disks: advice.busy_disks,
            knee_bytes: advice.knee.map(|knee| knee * slice_bytes),
            shares: advice.shares.into_iter().map(share).collect(),
            steps: advice.steps.into_iter().map(step).collect(),
            tiers: advice.tiers.into_iter().map(tier).collect(),
        }
    }

    /// The curve and the recommended tiers as text.
    pub fn show(&self, style: Style) -> String {
        let (fastest, slowest) = (self.classes[0], self.classes[self.classes.len() - 1]);
        let mut table = Table::new(&[
            (&format!("tier of {fastest}"), Side::Right),
            ("disk time", Side::Right),
            ("saved", Side::Right),
            (&format!("{slowest} disks"), Side::Right),
        ]);
        let (mut last_saved, mut last_bytes) = (0.0, 0);
        for step in &self.steps {
            let is_whole = step.size_bytes == self.slices * self.slice_bytes;
            // As for caches: steps that differ.
            if step.saved < last_saved + 0.01 && !is_whole || step.size_bytes * 4 < last_bytes * 5 {
                continue;
            }
            (last_saved, last_bytes) = (step.saved, step.size_bytes);
            // A smaller number is printed as "-" instead of 0.0.
            let saved_disks = step.saved_disks.filter(|saved| *saved >= 0.05);
            table.row(vec![
                show_bytes(step.size_bytes),
                format!("{:.1} %", step.share * 100.0),
                format!("{:.1} %", step.saved * 100.0),
                saved_disks.map_or_else(|| "-".to_owned(), |saved| format!("-{saved:.1}")),
            ]);
        }
        let busy = self.busy_disks.map(|disks| format!(", {disks:.2} disks busy all the time"));
        let mut text = format!(
            "\ntiers of a pool, without a cache above: {} slices of {}, {:.0} s of disk time on {slowest}{}\n{}{}",
            show_count(self.slices),
            show_bytes(self.slice_bytes),
            self.disk_time_s,
            busy.unwrap_or_default(),
            table.render(style),
            show_shares(&self.shares)
        );
        text += &match self.knee_bytes {
            Some(bytes) => format!("knee at {}: a larger {fastest} tier saves less per byte\n", show_bytes(bytes)),
            None => format!("all slices have the same load: no {fastest} tier is worth more than another size\n"),
        };
        let tiers = self.tiers.iter().map(|tier| {
            let disks = tier.busy_disks.filter(|disks| *disks >= 0.05);
            let disks = disks.map(|disks| format!(", keeps {disks:.1} devices busy"));
            format!(
                "  {:7} {} ({} of the slices, with the reserve): {:.1} % of the disk time{}\n",
                tier.class,
                show_bytes(tier.size_bytes),
                show_percent(tier.slices_ppm, PPM),
                tier.share * 100.0,
                disks.unwrap_or_default()
            )
        });
        text + "recommended tiers for the used slices; unused data belongs to the last one:\n"
            + &tiers.collect::<String>()
    }
}

/// The shares in one line, as far as they differ.
fn show_shares(shares: &[Share]) -> String {
    let shares: Vec<_> = shares
        .iter()
        .map(|share| {
            format!("{} % in {} ({})", share.percent, show_percent(share.slices_ppm, PPM), show_bytes(share.bytes))
        })
        .collect();
    format!("disk time and the hottest slices that carry it: {}\n", shares.join(", "))
}

/// The curve of a pool of the daemon.
#[derive(Serialize)]
struct PoolTiers {
    pool: String,
    slice_bytes: u64,
    allocated_bytes: u64,
    disk_time_ms_per_hour: u64,
    knee_bytes: Option<u64>,
    shares: Vec<Share>,
    tiers: Vec<PoolTier>,
}

#[derive(Serialize)]
struct PoolTier {
    name: String,
    class: String,
    size_bytes: u64,
    used_bytes: u64,
    /// Part of the disk time of the hottest slices that fit on this tier, below those on the faster ones.
    share: f64,
}

/// Prints the curve of a pool, and what fits on its tiers.
pub fn run_pool(socket: Option<&Path>, name: &str, json: bool) -> Result<(), Failure> {
    let Answer::PoolPlan(plan) = send_request(socket, &Request::PoolPlan { name: name.to_owned() })? else {
        return Err(unexpected());
    };
    let Answer::Pool(pool) = send_request(socket, &Request::PoolShow { name: name.to_owned() })? else {
        return Err(unexpected());
    };
    let Some(tiers) = PoolTiers::new(&plan, &pool) else {
        return Err(Failure::failed(format!("pool {name}: no load of its slices has been recorded yet")));
    };
    if json {
        return print_json(&tiers);
    }
    terminal::render::print(&tiers.show(Style::of_stdout()));
    Ok(())
}

/// The measured curve: (slices, load) in millionths, from none to all.
fn curve_of(plan: &PoolPlanReport) -> Vec<(u64, u64)> {
    std::iter::once((0, 0)).chain(plan.curve.iter().map(|point| (point.slices_ppm, point.load_ppm))).collect()
}

/// Straight line between the points of an ascending curve.
fn interpolate(points: impl Iterator<Item = (u64, u64)> + Clone, at: u64) -> u64 {
    let pairs = points.clone().zip(points.clone().skip(1));
    for ((left, from), (right, to)) in pairs {
        if at <= right && right > left {
            return from + (to - from) * at.saturating_sub(left) / (right - left);
        }
    }
    points.last().map_or(0, |(_, last)| last)
}

impl PoolTiers {
    /// `None` without a load.
    fn new(plan: &PoolPlanReport, pool: &PoolReport) -> Option<PoolTiers> {
        let disk_time: u64 = plan.heat.iter().map(|class| class.ms_per_hour).sum();
        let allocated: u64 = plan.heat.iter().flat_map(|class| &class.tier_bytes).sum();
        let curve = curve_of(plan);
        if disk_time == 0 || allocated == 0 || curve.len() < 2 {
            return None;
        }
        let bytes_of = |slices_ppm: u64| (u128::from(allocated) * u128::from(slices_ppm) / u128::from(PPM)) as u64;
        let share = |percent: u64| {
            let slices_ppm = interpolate(curve.iter().map(|(slices, load)| (*load, *slices)), percent * 10_000);
            Share { percent, slices_ppm, bytes: bytes_of(slices_ppm) }
        };
        let points: Vec<_> = curve.iter().map(|(slices, load)| (*slices as f64, *load as f64)).collect();
        let mut filled_ppm = 0;
        let tier = |tier: &PoolTierReport| {
            let size_bytes: u64 = tier.groups.iter().map(|group| group.size_bytes).sum();
            let free_bytes: u64 = tier.groups.iter().map(|group| group.free_bytes).sum();
            let room = u128::from(size_bytes) * u128::from(100 - RESERVE_PERCENT) / 100;
            let room_ppm = u64::try_from(room * u128::from(PPM) / u128::from(allocated)).unwrap_or(u64::MAX);
            let end_ppm = room_ppm.saturating_add(filled_ppm).min(PPM);
            let load = |at: u64| interpolate(curve.iter().copied(), at);
            let share = (load(end_ppm) - load(filled_ppm)) as f64 / PPM as f64;
            filled_ppm = end_ppm;
            let (name, class) = (tier.name.clone(), tier.class.name.clone());
            PoolTier { name, class, size_bytes, used_bytes: size_bytes - free_bytes, share }
        };
        Some(PoolTiers {
            pool: plan.pool.clone(),
            slice_bytes: pool.slice_bytes,
            allocated_bytes: allocated,
            disk_time_ms_per_hour: disk_time,
            knee_bytes: knee(&points).map(|index| bytes_of(curve[index].0)),
            shares: SHARES_PERCENT.map(share).into(),
            tiers: pool.tiers.iter().map(tier).collect(),
        })
    }

    fn show(&self, style: Style) -> String {
        let mut table = Table::new(&[
            ("tier", Side::Left),
            ("class", Side::Left),
            ("size", Side::Right),
            ("used", Side::Right),
            ("disk time of the hottest that fit", Side::Right),
        ]);
        for tier in &self.tiers {
            table.row(vec![
                tier.name.clone(),
                tier.class.clone(),
                show_bytes(tier.size_bytes),
                show_bytes(tier.used_bytes),
                format!("{:.1} %", tier.share * 100.0),
            ]);
        }
        let knee = self
            .knee_bytes
            .map(|bytes| format!("knee at {}: a larger fastest tier saves less per byte\n", show_bytes(bytes)));
        format!(
            "pool {}: {} allocated, {:.0} s of disk time an hour on the slowest tier\n{}{}{}",
            self.pool,
            show_bytes(self.allocated_bytes),
            self.disk_time_ms_per_hour as f64 / 1e3,
            table.render(style),
            show_shares(&self.shares),
            knee.unwrap_or_default()
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use messages::report::{PoolCurveReport, PoolGroupReport, PoolHeatReport};

    #[test]
    fn classes_are_named_in_the_order_of_their_speed() {
        assert_eq!(parse_classes("ssd, nl-sas").unwrap().0.len(), 2);
        for wrong in ["ssd", "nl-sas,ssd", "ssd,ssd", "ssd,tape"] {
            assert!(parse_classes(wrong).is_err_and(|error| error.contains("nl-sas")), "{wrong}");
        }
    }

    #[test]
    fn hottest_slices_fill_the_tiers_of_a_pool_in_order() {
        let point = |slices_ppm, load_ppm| PoolCurveReport { slices_ppm, load_ppm };
        let heat = PoolHeatReport { from_ms_per_hour: 0, tier_bytes: vec![200, 800], ms_per_hour: 5_000 };
        let plan = PoolPlanReport {
            heat: vec![heat],
            curve: vec![point(100_000, 600_000), point(500_000, 900_000), point(1_000_000, 1_000_000)],
            ..PoolPlanReport::default()
        };
        let tier = |size_bytes| {
            let group = PoolGroupReport { size_bytes, ..PoolGroupReport::default() };
            PoolTierReport { groups: vec![group], ..PoolTierReport::default() }
        };
        let pool = PoolReport { tiers: vec![tier(500), tier(2_000)], ..PoolReport::default() };
        let tiers = PoolTiers::new(&plan, &pool).unwrap();
        // 450 of 1,000 bytes fit on the first tier: 60 % and seven eighths of the next 30 %.
        let shares: Vec<_> = tiers.tiers.iter().map(|tier| (tier.share * 1e4).round()).collect();
        assert_eq!(shares, [8_625.0, 1_375.0]);
        let bytes: Vec<_> = tiers.shares.iter().map(|share| (share.percent, share.bytes)).collect();
        assert_eq!(bytes, [(50, 83), (80, 366), (90, 500), (95, 750)]);
        assert_eq!(tiers.knee_bytes, Some(100));
        assert!(PoolTiers::new(&PoolPlanReport::default(), &pool).is_none());
    }
}
