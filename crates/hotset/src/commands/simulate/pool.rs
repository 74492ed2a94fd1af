//! `hotset simulate --pool`: the trace on a modelled pool, in virtual time, with the moves of its planner and without.

use clap::Args;
use config::{RateSetting, check_slice, check_tier_name};
use lab::timed::pool::{HalfOutcome, PlanOutcome, PoolOutcome, PoolSetup, TierOutcome, TierSetup};
use lab::timed::{Pace, PreparedTrace, ReplaySetup};
use seam::model::ArraySpec;
use serde::Serialize;
use terminal::Failure;
use terminal::render::style::Style;
use terminal::render::table::{Side, Table};
use units::{parse_size, show_bytes, show_count, show_counted, show_micros, show_percent};

use super::timed::{Cache, Latency, parse_array};

/// Options of the pool.
#[derive(Args)]
pub struct Options {
    /// Replay on a pool of modelled devices, with moves between its tiers and without: each device as TIER=ARRAY, those
    /// of the fastest tier first, for example --pool 'ssd=raid1?disks=2&type=ssd&size=200GiB' --pool
    /// 'nl=raid6?disks=8&type=nlsas'
    #[arg(long = "pool", value_name = "TIER=ARRAY", group = "storage", value_parser = parse_device)]
    devices: Vec<(String, ArraySpec)>,
    /// With --pool: size of a slice
    #[arg(long, value_name = "SIZE", requires = "devices", default_value = "4 MiB", value_parser = parse_slice)]
    slice: u64,
    /// With --pool: rate of the moves: low, medium, high, or bytes a second such as "20 MiB/s"
    #[arg(long, value_name = "RATE", requires = "devices", default_value = "medium")]
    rate: RateSetting,
}

fn parse_device(text: &str) -> Result<(String, ArraySpec), String> {
    let (tier, array) = text.split_once('=').ok_or_else(|| {
        format!("\"{text}\" is no device of a tier; write it like ssd=raid1?disks=2&type=ssd&size=200GiB")
    })?;
    // Without a tier, the first = belongs to a parameter of the array.
    if tier.contains('?') {
        return Err(format!("\"{text}\" names no tier; write it like ssd={text}"));
    }
    check_tier_name(tier)?;
    Ok((tier.to_owned(), parse_array(array)?))
}

/// Parses the size of a slice.
pub fn parse_slice(text: &str) -> Result<u64, String> {
    let bytes = parse_size(text)?;
    check_slice(bytes).map(|()| bytes)
}

impl Options {
    /// True if a pool is given.
    pub fn is_given(&self) -> bool {
        !self.devices.is_empty()
    }

    /// The tiers in the order in which they are first named.
    fn tiers(&self) -> Vec<TierSetup> {
        let mut tiers = Vec::<TierSetup>::new();
        for (name, array) in &self.devices {
            match tiers.iter_mut().find(|tier| tier.name == *name) {
                Some(tier) => tier.groups.push(*array),
                None => tiers.push(TierSetup { name: name.clone(), groups: vec![*array] }),
            }
        }
        tiers
    }
}

/// The results of the runs with moves and without.
#[derive(Serialize)]
pub struct OnPool {
    mode: &'static str,
    depth: Option<u32>,
    slice_bytes: u64,
    with_moves: Run,
    without_moves: Run,
}

#[derive(Serialize)]
struct Run {
    requests: u64,
    errors: u64,
    seconds: f64,
    read_latency_us: Latency,
    write_latency_us: Latency,
    disk_time_s: f64,
    second_half: Option<Half>,
    tiers: Vec<Tier>,
    moved_slices: u64,
    moved_bytes: u64,
    moved_bytes_per_day: u64,
    failed_moves: u64,
    plan: Plan,
    #[serde(flatten)]
    cache: Option<Cache>,
}

#[derive(Serialize)]
struct Half {
    read_latency_us: Latency,
    write_latency_us: Latency,
    disk_time_s: f64,
}

#[derive(Serialize)]
struct Tier {
    name: String,
    class: &'static str,
    read_us: u64,
    disks: usize,
    size_bytes: u64,
    used_bytes: u64,
    requests: u64,
    disk_time_s: f64,
    utilization: f64,
}

#[derive(Serialize)]
struct Plan {
    moves: u64,
    promotions: u64,
    make_room: u64,
    reserve: u64,
    balance: u64,
    bytes: u64,
    seconds: f64,
    saved_ms_per_hour: i64,
    copy_ms: u64,
}

impl Plan {
    fn new(plan: &PlanOutcome) -> Plan {
        Plan {
            moves: plan.moves(),
            promotions: plan.promotions,
            make_room: plan.make_room,
            reserve: plan.reserve,
            balance: plan.balance,
            bytes: plan.bytes,
            seconds: plan.duration.as_secs_f64(),
            saved_ms_per_hour: plan.saved_per_hour / 1_000_000,
            copy_ms: plan.copy_time.as_millis(),
        }
    }
}

impl Run {
    fn new(outcome: &PoolOutcome, slice_bytes: u64) -> Run {
        let figures = &outcome.figures;
        let seconds = figures.elapsed.as_secs_f64();
        let tier = |tier: &TierOutcome| Tier {
            name: tier.name.clone(),
            class: tier.class.nearest_name(),
            read_us: tier.class.read_access.as_micros(),
            disks: tier.disks,
            size_bytes: tier.size_bytes,
            used_bytes: tier.used_bytes,
            requests: tier.requests,
            disk_time_s: tier.disk_time.as_secs_f64(),
            utilization: tier.disk_time.as_secs_f64() / (seconds * tier.disks as f64).max(1e-9),
        };
        let half = |half: &HalfOutcome| Half {
            read_latency_us: Latency::of(&half.read_us),
            write_latency_us: Latency::of(&half.write_us),
            disk_time_s: half.disk_time.as_secs_f64(),
        };
        let moved_bytes = outcome.moves * slice_bytes;
        Run {
            requests: figures.requests(),
            errors: figures.errors,
            seconds,
            read_latency_us: Latency::of(&figures.read_us),
            write_latency_us: Latency::of(&figures.write_us),
            disk_time_s: outcome.tiers.iter().map(|tier| tier.disk_time.as_secs_f64()).sum(),
            second_half: outcome.second_half.as_ref().map(half),
            tiers: outcome.tiers.iter().map(tier).collect(),
            moved_slices: outcome.moves,
            moved_bytes,
            moved_bytes_per_day: (moved_bytes as f64 * 86_400.0 / seconds.max(1e-9)) as u64,
            failed_moves: outcome.failed_moves,
            plan: Plan::new(&outcome.plan),
            cache: outcome.stats.map(|counts| Cache::new(&counts, outcome.drained)),
        }
    }

    /// The rows of the table of latencies: the whole run, and its second half.
    fn add_rows(&self, name: &str, table: &mut Table) {
        let mut add = |name: String, read: &Latency, write: &Latency, disk_time_s: f64| {
            table.row(vec![
                name,
                show_latency(read.mean),
                show_latency(f64::from(read.p99)),
                show_latency(write.mean),
                show_latency(f64::from(write.p99)),
                format!("{disk_time_s:.1} s"),
            ]);
        };
        add(name.to_owned(), &self.read_latency_us, &self.write_latency_us, self.disk_time_s);
        if let Some(half) = &self.second_half {
            let name = format!("{name}, second half");
            add(name, &half.read_latency_us, &half.write_latency_us, half.disk_time_s);
        }
    }
}

/// A latency; "-" without a request.
fn show_latency(micros: f64) -> String {
    if micros == 0.0 { "-".to_owned() } else { show_micros(micros) }
}

impl OnPool {
    /// Replays the trace on the pool of the options, behind the cache of the setup.
    pub fn run(options: &Options, trace: &PreparedTrace, setup: &ReplaySetup) -> Result<OnPool, Failure> {
        let pool = |rate| PoolSetup { tiers: options.tiers(), slice_bytes: options.slice, rate };
        let replay = |rate| {
            let outcome = trace.replay_on_pool(&pool(rate), setup);
            outcome.map(|outcome| Run::new(&outcome, options.slice)).map_err(|error| Failure::failed(error.to_string()))
        };
        let without_moves = replay(None)?;
        let with_moves = replay(Some(options.rate.move_rate()))?;
        let (mode, depth) = match setup.pace {
            Pace::Arrivals => ("open", None),
            Pace::Depth(depth) => ("closed", Some(depth)),
        };
        Ok(OnPool { mode, depth, slice_bytes: options.slice, with_moves, without_moves })
    }

    /// The results as text.
    pub fn show(&self, style: Style) -> String {
        let mut latencies = Table::new(&[
            ("pool", Side::Left),
            ("reads, mean", Side::Right),
            ("p99", Side::Right),
            ("writes, mean", Side::Right),
            ("p99", Side::Right),
            ("disk time", Side::Right),
        ]);
        self.without_moves.add_rows("without moves", &mut latencies);
        self.with_moves.add_rows("with moves", &mut latencies);
        let mut tiers = Table::new(&[
            ("tier", Side::Left),
            ("class", Side::Left),
            ("size", Side::Right),
            ("used", Side::Right),
            ("requests", Side::Right),
            ("disk time", Side::Right),
            ("busy", Side::Right),
            ("with moves: used", Side::Right),
            ("requests", Side::Right),
            ("disk time", Side::Right),
            ("busy", Side::Right),
        ]);
        for (still, moved) in self.without_moves.tiers.iter().zip(&self.with_moves.tiers) {
            let class = format!("{} (measured, {})", still.class, show_micros(still.read_us as f64));
            let cells = [still.name.clone(), class, show_bytes(still.size_bytes)];
            let of_run = |run: &Run, tier: &Tier| {
                let requests = run.tiers.iter().map(|tier| tier.requests).sum();
                let thousandth = |seconds: f64| (seconds * 1e3) as u64;
                [
                    show_bytes(tier.used_bytes),
                    show_percent(tier.requests, requests),
                    show_percent(thousandth(tier.disk_time_s), thousandth(run.disk_time_s)),
                    format!("{:.1} %", tier.utilization * 100.0),
                ]
            };
            let runs = of_run(&self.without_moves, still).into_iter().chain(of_run(&self.with_moves, moved));
            tiers.row(cells.into_iter().chain(runs).collect());
        }
        let pace = match self.depth {
            Some(depth) => format!("queue depth {depth}"),
            None => "at the recorded times".to_owned(),
        };
        format!(
            "\nreplay on a pool in slices of {}, {pace}:\n{}{}{}",
            show_bytes(self.slice_bytes),
            latencies.render(style),
            tiers.render(style),
            self.show_moves()
        )
    }

    fn show_moves(&self) -> String {
        let Run { moved_slices, moved_bytes, moved_bytes_per_day, plan, .. } = &self.with_moves;
        let moved = format!(
            "moved: {} ({}), {} a day; the disk time includes their copies\n",
            show_counted(*moved_slices, "slice"),
            show_bytes(*moved_bytes),
            show_bytes(*moved_bytes_per_day)
        );
        if plan.moves == 0 {
            return format!("{moved}at the end no slice has to move\n");
        }
        format!(
            "{moved}at the end the plan has {} of {} in about {:.0} s ({} promote, {} make-room, {} reserve, \
             {} balance): saves {} ms of disk time an hour, copies take {} ms\n",
            show_counted(plan.moves, "move"),
            show_bytes(plan.bytes),
            plan.seconds,
            show_count(plan.promotions),
            show_count(plan.make_room),
            show_count(plan.reserve),
            show_count(plan.balance),
            plan.saved_ms_per_hour,
            show_count(plan.copy_ms)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use seam::model::DiskType;
    use trace::{Op, Request};

    #[test]
    fn device_is_a_tier_and_an_array_as_in_a_backing() {
        let (tier, array) = parse_device("ssd=raid1?disks=2&type=ssd&size=200GiB").unwrap();
        assert_eq!((tier.as_str(), array.disks, array.disk), ("ssd", 2, DiskType::Ssd));
        assert!(array.size_bytes() >= 200 << 30 && array.size_bytes() < 201 << 30);
        for (wrong, word) in [
            ("raid5", "ssd=raid1"),
            ("raid5?disks=5", "names no tier"),
            ("highest=raid5", "tier policy"),
            ("ssd=shelf", "raid10"),
            ("ssd=raid5?disks=1", "3 to 64"),
        ] {
            let error = parse_device(wrong).unwrap_err();
            assert!(error.contains(word), "{wrong}: {error}");
        }
        assert_eq!(parse_slice("1 MiB"), Ok(1 << 20));
        assert!(parse_slice("3 MiB").is_err_and(|error| error.contains("power of two")));
    }

    #[test]
    fn replay_reports_the_runs_with_moves_and_without() {
        let requests: Vec<_> = (0..400)
            .map(|number| {
                let op = if number % 4 == 0 { Op::Write } else { Op::Read };
                Request { time_ns: Some(number * 1_000_000), op, at: (number * 7 % 40) << 20, len: 4096, device: 0 }
            })
            .collect();
        let devices = ["ssd=raid0?disks=1&type=ssd&size=20MiB", "nl=raid0?disks=1&type=nlsas&size=100MiB"];
        let devices = devices.map(|text| parse_device(text).unwrap()).into();
        let options = Options { devices, slice: 1 << 20, rate: RateSetting::default() };
        let setup = ReplaySetup {
            memory_bytes: 0,
            flash_bytes: 0,
            policy: engine::WritePolicy::WriteBack,
            pace: Pace::Arrivals,
            seed: 1,
        };
        let result = OnPool::run(&options, &PreparedTrace::new(&requests).unwrap(), &setup).unwrap();
        for run in [&result.with_moves, &result.without_moves] {
            assert_eq!(run.tiers.iter().map(|tier| tier.requests).sum::<u64>(), 400);
            assert_eq!(run.tiers.iter().map(|tier| tier.used_bytes).sum::<u64>(), 40 << 20);
        }
        let text = result.show(Style::PLAIN);
        for word in ["at the recorded times", "without moves, second half", "nl-sas (measured", "moved: 0 slices"] {
            assert!(text.contains(word), "{word}: {text}");
        }
        let json = serde_json::to_value(&result).unwrap();
        assert_eq!(json["with_moves"]["plan"]["moves"], result.with_moves.plan.moves);
        assert_eq!(json["without_moves"]["moved_bytes_per_day"], 0);
    }

    #[test]
    fn devices_of_one_name_are_groups_of_one_tier() {
        let device = |text| parse_device(text).unwrap();
        let devices = vec![device("ssd=raid0?disks=1&type=ssd"), device("nl=raid6?disks=6"), device("ssd=raid5")];
        let rate = RateSetting::default();
        let tiers = Options { devices, slice: 4 << 20, rate }.tiers();
        let shapes: Vec<_> = tiers.iter().map(|tier| (tier.name.as_str(), tier.groups.len())).collect();
        assert_eq!(shapes, [("ssd", 2), ("nl", 1)]);
    }
}
