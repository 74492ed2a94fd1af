//! Cost of quality of service without contention: memory hits of a volume with shares and a reservation, and of one
//! without.

use std::fs::File;
use std::io;
use std::path::Path;

use crate::cells::Cell;
use crate::fio::{self, Target};
use crate::paired::{Interval, PAIRS_MIN};
use crate::process::Process;
use crate::report::Section;
use crate::run::{Effort, median};
use crate::servers::{HOTSET_EXPORT, Programs, daemon};

/// Lowest acceptable throughput relative to a daemon without QoS.
const RATIO_MIN: f64 = 0.98;
/// Number of rounds after which all daemons restart, because the placement of a daemon's memory affects its speed.
const ROUNDS_PER_START: usize = 10;

const CELL: Cell = Cell::new("4 KiB random read, depth 32", "randread", 4096, 32, 1);
const FILL: Cell = Cell::new("fill", "write", 1 << 16, 8, 1);

/// The daemons in the order of a round's figures: without QoS, a second one without, and with QoS.
const DAEMONS: [(&str, bool); 3] = [("off", false), ("again", false), ("on", true)];
/// Orders of the runs in a round, used in turn. Every second order is the previous one reversed, and together they
/// favour no daemon.
const ORDERS: [[usize; 3]; 6] = [[0, 1, 2], [2, 1, 0], [1, 2, 0], [0, 2, 1], [2, 0, 1], [1, 0, 2]];

/// Requests per second of each daemon.
type Round = [f64; 3];

/// A running daemon.
struct Running {
    target: Target,
    /// Stops the daemon when dropped.
    #[expect(dead_code, reason = "stops the daemon when dropped")]
    process: Process,
}

/// Measures daemons whose volumes of `effort.size_bytes` lie in `folder` and are entirely in memory.
pub fn section(folder: &Path, programs: &Programs, effort: Effort) -> io::Result<Section> {
    let pairs = effort.rounds.max(PAIRS_MIN);
    let mut rounds: Vec<Round> = Vec::new();
    while rounds.len() < pairs {
        let round_folder = tempfile::tempdir_in(folder)?;
        let start = |(name, has_qos)| start(&round_folder.path().join(name), programs, effort.size_bytes, has_qos);
        let running = DAEMONS.into_iter().map(start).collect::<io::Result<Vec<_>>>()?;
        for _ in 0..ROUNDS_PER_START.min(pairs - rounds.len()) {
            let mut round = Round::default();
            for daemon in ORDERS[rounds.len() % ORDERS.len()] {
                let target = &running[daemon].target;
                round[daemon] = fio::run(&CELL, target, effort.size_bytes, effort.seconds, None)?.iops;
            }
            eprintln!("round {}: off {:.0}, again {:.0}, on {:.0}", rounds.len() + 1, round[0], round[1], round[2]);
            rounds.push(round);
        }
    }
    let text = describe(&rounds, effort.seconds);
    Ok(Section {
        title: "Quality of service without contention".into(),
        text,
        ratios: Vec::new(),
        measured: Vec::new(),
    })
}

/// Starts a daemon with its volume in memory.
fn start(folder: &Path, programs: &Programs, bytes: u64, has_qos: bool) -> io::Result<Running> {
    std::fs::create_dir(folder)?;
    let backing = |name: &str| -> io::Result<String> {
        let path = folder.join(format!("{name}.img"));
        File::create(&path)?.set_len(bytes)?;
        Ok(path.display().to_string())
    };
    let mut extra_toml = String::new();
    if has_qos {
        extra_toml += "\n[[datastore]]\nname = \"pool\"\ncongestion_threshold = \"30ms\"\n";
    }
    // The second volume is idle; the scheduler must only consider it.
    for (name, shares) in [(HOTSET_EXPORT, 1000), ("idle", 2000)] {
        extra_toml += &format!("\n[[volume]]\nname = \"{name}\"\nbacking = \"{}\"\n", backing(name)?);
        if has_qos {
            extra_toml += &format!("datastore = \"pool\"\nshares = {shares}\nreservation_iops = 100\n");
        }
    }
    let socket = folder.join("nbd.sock");
    // Memory is large enough that no write-back is forced.
    let command = daemon(folder, &socket, bytes * 8, &[], &extra_toml, &programs.hotset)?;
    let process = Process::start(command, &socket)?;
    let target = Target::Nbd(format!("nbd+unix:///{HOTSET_EXPORT}?socket={}", socket.display()));
    fio::run(&FILL, &target, bytes, 0, None)?;
    Ok(Running { target, process })
}

fn describe(rounds: &[Round], seconds: u32) -> String {
    let median_of = |daemon: usize| median(&rounds.iter().map(|round| round[daemon]).collect::<Vec<_>>());
    let to_off = |daemon: usize| Interval::of_ratio(rounds.iter().map(|round| (round[0], round[daemon])));
    let (control, on) = (to_off(1), to_off(2));
    format!(
        "A volume that is entirely in memory, in a datastore with shares and a reservation but no limit (*on*), and \
         without QoS \
         (*off*), and a second daemon without QoS (*off again*) as a control for the accuracy of the measurement. {} \
         rounds of {seconds} s \
         each, in changing order; all daemons restart every {ROUNDS_PER_START} rounds; ratios are the geometric means \
         of the rounds', with \
         their 95 % confidence intervals. *Open*: the bound lies in the interval.\n\n\
         | | off | on | on to off | off again to off | target | |\n| --- | ---: | ---: | ---: | ---: | --- | --- |\n\
         | {} | {:.0} | {:.0} | {on} | {control} | {RATIO_MIN:.2} at least | {} |",
        rounds.len(),
        CELL.name,
        median_of(0),
        median_of(2),
        on.judge_at_least(RATIO_MIN),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rounds with a variation of one percent; with QoS, throughput is multiplied by `factor`.
    fn rounds(factor: f64) -> Vec<Round> {
        let noise = |number: usize| 1.0 + 0.01 * (number as f64 * 2.4).sin();
        let round = |number| [noise(3 * number), noise(3 * number + 1), factor * noise(3 * number + 2)];
        (0..PAIRS_MIN).map(round).map(|round| round.map(|relative| relative * 100_000.0)).collect()
    }

    #[test]
    fn planted_loss_misses_and_no_loss_passes() {
        assert!(describe(&rounds(1.0), 3).ends_with("| pass |"), "{}", describe(&rounds(1.0), 3));
        assert!(describe(&rounds(0.98), 3).ends_with("| inconclusive |"), "{}", describe(&rounds(0.98), 3));
        assert!(describe(&rounds(0.96), 3).ends_with("| **fail** |"), "{}", describe(&rounds(0.96), 3));
    }

    #[test]
    fn orders_favour_no_daemon() {
        for daemon in 0..DAEMONS.len() {
            for position in 0..DAEMONS.len() {
                assert_eq!(ORDERS.iter().filter(|order| order[position] == daemon).count(), 2);
            }
        }
    }
}
