//! An uncongested datastore: two volumes with a steady load on one modelled array, with `[[datastore]]` and without it,
//! concurrently.

use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::Value;

use crate::flash::flash_table;
use crate::paired::Verdict;
use crate::process::Process;
use crate::report::Section;
use crate::run::Effort;
use crate::servers::{Programs, daemon};

const MIB: u64 = 1 << 20;
const MEMORY_BYTES: u64 = 256 * MIB;
/// Volumes with their reads and writes per second.
const VOLUMES: [(&str, u32, u32); 2] = [("first", 400, 100), ("second", 150, 40)];
/// Shortest run with enough seconds for a result.
const SECONDS_MIN: u32 = 30;
/// Lowest acceptable fraction of the load's requests in a second.
const FRACTION_MIN: f64 = 0.9;
/// Highest acceptable ratio of the 99.9th percentile of reads to that without the datastore.
const TAIL_RATIO_MAX: f64 = 1.1;

/// Figures of one daemon.
#[derive(Clone, Debug, PartialEq)]
struct Run {
    /// Completed requests in each second.
    per_second: Vec<f64>,
    p999_ms: f64,
    longest_ms: f64,
}

impl Run {
    /// Requests per second of all clients.
    fn offered_iops() -> f64 {
        VOLUMES.iter().map(|(_, reads, writes)| f64::from(reads + writes)).sum()
    }

    /// Number of seconds below [`FRACTION_MIN`], and the lowest fraction.
    fn slow_seconds(&self) -> (usize, f64) {
        let fractions = self.per_second.iter().map(|requests| requests / Run::offered_iops());
        let lowest = fractions.clone().fold(f64::INFINITY, f64::min);
        (fractions.filter(|fraction| *fraction < FRACTION_MIN).count(), lowest)
    }
}

/// Figures of both daemons in a round.
struct Round {
    is_busy: bool,
    with: Run,
    without: Run,
}

impl Round {
    fn tail_ratio(&self) -> f64 {
        self.with.p999_ms / self.without.p999_ms
    }

    fn verdict(&self) -> Verdict {
        let has_no_more_slow_seconds = self.with.slow_seconds().0 <= self.without.slow_seconds().0;
        Verdict::of(has_no_more_slow_seconds && self.tail_ratio() <= TAIL_RATIO_MAX)
    }
}

/// Measures both daemons `effort.rounds` times on an idle machine, and as often with all CPUs kept busy.
pub fn section(folder: &Path, programs: &Programs, effort: Effort) -> io::Result<Section> {
    let (mut rounds, seconds) = (Vec::new(), effort.seconds.max(SECONDS_MIN));
    for number in 0..effort.rounds {
        for is_busy in [false, true] {
            let round_folder = tempfile::tempdir_in(folder)?;
            let round = round(round_folder.path(), programs, seconds, is_busy)?;
            eprintln!("round {}: {}", number + 1, row(&round));
            rounds.push(round);
        }
    }
    let text = describe(&rounds, seconds);
    Ok(Section { title: "A datastore without congestion".into(), text, ratios: Vec::new(), measured: Vec::new() })
}

fn round(folder: &Path, programs: &Programs, seconds: u32, is_busy: bool) -> io::Result<Round> {
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let processors = std::thread::available_parallelism()?.get();
        for _ in 0..if is_busy { processors } else { 0 } {
            scope.spawn(|| {
                while !is_done.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
        }
        let start = |name: &'static str, table: &'static str| {
            let folder = folder.join(name);
            scope.spawn(move || run(&folder, programs, seconds, table))
        };
        let with = start("with", "[[datastore]]\nname = \"array\"\n");
        let without = start("without", "");
        let runs = [with, without].map(|run| run.join().expect("no side panics"));
        is_done.store(true, Ordering::Relaxed);
        let [with, without] = runs;
        Ok(Round { is_busy, with: with?, without: without? })
    })
}

/// Runs a daemon and its clients for `seconds`.
fn run(folder: &Path, programs: &Programs, seconds: u32, datastore: &str) -> io::Result<Run> {
    std::fs::create_dir(folder)?;
    let devices: Vec<PathBuf> = ["f0", "f1"].into_iter().map(|name| folder.join(name)).collect();
    devices.iter().try_for_each(|path| std::fs::File::create(path)?.set_len(1 << 30))?;
    let mut extra_toml = flash_table(&devices);
    extra_toml += "\n[[array]]\nname = \"shelf\"\nraid = 5\ndisks = 5\ndisk = \"sas10k\"\n\n";
    extra_toml += datastore;
    for (name, ..) in VOLUMES {
        extra_toml += &format!("\n[[volume]]\nname = \"{name}\"\nbacking = \"sim://shelf\"\nsize = \"2GiB\"\n");
        if !datastore.is_empty() {
            extra_toml += "datastore = \"array\"\n";
        }
    }
    let socket = folder.join("nbd.sock");
    let _process = Process::start(daemon(folder, &socket, MEMORY_BYTES, &[], &extra_toml, &programs.hotset)?, &socket)?;
    let mut command = Command::new("fio");
    command.args(["--output-format=json", "--group_reporting", "--per_job_logs=1", "--log_avg_msec=1000"]);
    for (name, reads, writes) in VOLUMES {
        command.arg(format!("--name={name}"));
        command.args(["--ioengine=nbd", "--rw=randrw", "--bs=8k", "--iodepth=4", "--size=256m", "--norandommap"]);
        command.args(["--random_distribution=zipf:1.2", "--randrepeat=0", "--time_based"]);
        command.arg(format!("--runtime={seconds}")).arg(format!("--rate_iops={reads},{writes}"));
        command.arg(format!("--uri=nbd+unix:///{name}?socket={}", socket.display()));
        command.arg(format!("--write_iops_log={}", folder.join(name).display()));
    }
    let output = command.current_dir(folder).output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    let failed =
        |reason: &str| io::Error::other(format!("{reason}: {text}{}", String::from_utf8_lossy(&output.stderr)));
    if !output.status.success() {
        return Err(failed("fio failed"));
    }
    let (p999_ms, longest_ms) = parse_tail(&text).ok_or_else(|| failed("fio printed no read figures"))?;
    let mut per_second = vec![0.0; seconds as usize];
    for (number, (name, ..)) in VOLUMES.iter().enumerate() {
        let log = std::fs::read_to_string(folder.join(format!("{name}_iops.{}.log", number + 1)))?;
        add_rates(&mut per_second, &log);
    }
    // Drops the first second, which includes the connects, and the last one, which may be partial.
    let whole_seconds = 1..per_second.len().saturating_sub(1);
    Ok(Run { per_second: per_second[whole_seconds].to_vec(), p999_ms, longest_ms })
}

/// The 99.9th percentile and the maximum of read latency, in milliseconds.
fn parse_tail(text: &str) -> Option<(f64, f64)> {
    let value: Value = serde_json::from_str(&text[text.find('{')?..]).ok()?;
    let latency = &value["jobs"].get(0)?["read"]["clat_ns"];
    Some((latency["percentile"]["99.900000"].as_f64()? / 1e6, latency["max"].as_f64()? / 1e6))
}

/// Adds the rates of an fio log (milliseconds, requests per second, direction, ...) to the seconds.
fn add_rates(per_second: &mut [f64], log: &str) {
    for line in log.lines() {
        let mut fields = line.split(',').map(|field| field.trim().parse::<f64>());
        if let (Some(Ok(at_ms)), Some(Ok(rate))) = (fields.next(), fields.next())
            && let Some(second) = per_second.get_mut((at_ms / 1000.0).round() as usize)
        {
            *second += rate;
        }
    }
}

fn row(round: &Round) -> String {
    let format_run = |run: &Run| {
        let (slow, lowest) = run.slow_seconds();
        format!("{slow} (least {lowest:.2}) | {:.1} | {:.0}", run.p999_ms, run.longest_ms)
    };
    let machine = if round.is_busy { "busy" } else { "idle" };
    let (with, without) = (format_run(&round.with), format_run(&round.without));
    format!("| {machine} | {with} | {without} | {:.2} | {} |", round.tail_ratio(), round.verdict())
}

fn describe(rounds: &[Round], seconds: u32) -> String {
    let rows: Vec<String> = rounds.iter().map(row).collect();
    format!(
        "Two volumes of 2 GiB on one modelled RAID 5 of five 10k disks, two flash files of 1 GiB, memory {} MiB; 400 \
         reads and 100 writes, and 150 \
         and 40 a second of 8 KiB, zipf 1.2 over 256 MiB, depth 4 each, {seconds} s. A daemon with both in a \
         `[[datastore]]` and one without it \
         run at the same time, on an idle machine and with all processors kept busy by other processes. *Slow \
         seconds* have less than {FRACTION_MIN} of \
         the load's requests. Target: no more slow seconds than without, and a 99.9th percentile of reads of at most \
         {TAIL_RATIO_MAX} times.\n\n\
         | machine | slow seconds | p99.9 ms | longest ms | slow seconds without | p99.9 ms without | longest ms \
         without | p99.9 ratio | |\n\
         | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | --- |\n{}",
        MEMORY_BYTES / MIB,
        rows.join("\n")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(requests: f64, p999_ms: f64) -> Run {
        Run { per_second: vec![Run::offered_iops(), requests, Run::offered_iops()], p999_ms, longest_ms: 50.0 }
    }

    fn verdict(with: Run, without: Run) -> Verdict {
        Round { is_busy: false, with, without }.verdict()
    }

    #[test]
    fn slow_second_or_longer_tail_fails() {
        let good = || run(Run::offered_iops(), 20.0);
        assert_eq!(verdict(good(), good()), Verdict::Pass);
        assert_eq!(verdict(run(0.85 * Run::offered_iops(), 20.0), good()), Verdict::Fail);
        assert_eq!(verdict(run(Run::offered_iops(), 23.0), good()), Verdict::Fail);
    }

    #[test]
    fn per_second_rates_of_all_jobs_are_added() {
        let mut per_second = vec![0.0; 3];
        add_rates(&mut per_second, "1000, 400, 0, 0, 0\n1000, 100, 1, 0, 0\n2001, 390, 0, 0, 0\n9000, 1, 0, 0, 0\n");
        add_rates(&mut per_second, "999, 150, 0, 0, 0\n");
        assert_eq!(per_second, [0.0, 650.0, 390.0]);
    }
}
