//! What quality of service costs where nobody is short of anything: memory hits of a volume with shares and a reservation, and of one without.

use std::fs::File;
use std::io;
use std::path::Path;

use crate::cells::Cell;
use crate::fio::{self, Target};
use crate::paired::{Interval, PAIRS_WANTED};
use crate::process::Process;
use crate::report::Section;
use crate::run::{Effort, median};
use crate::servers::{HOTSET_EXPORT, Programs, daemon};

/// Of the throughput without it, at least this much is wanted.
const WANTED: f64 = 0.98;
/// Rounds after which all daemons are started anew: where one's memory lies makes it faster or slower as long as it lives.
const ROUNDS_OF_A_LIFE: usize = 10;

const CELL: Cell = Cell::new("4 KiB random read, depth 32", "randread", 4096, 32, 1);
const FILL: Cell = Cell::new("fill", "write", 1 << 16, 8, 1);

/// Daemons in the order of a round's figures: without, another one without, and with.
const DAEMONS: [(&str, bool); 3] = [("off", false), ("again", false), ("on", true)];
/// Orders of a round's runs, in turn: every second one is the one before backwards, and all together favour none.
const ORDERS: [[usize; 3]; 6] = [[0, 1, 2], [2, 1, 0], [1, 2, 0], [0, 2, 1], [2, 0, 1], [1, 0, 2]];

/// Requests a second of each daemon.
type Round = [f64; 3];

struct Running {
    target: Target,
    /// Held for its drop.
    #[expect(dead_code, reason = "stops the daemon when dropped")]
    process: Process,
}

/// Measures daemons whose volumes, of `effort.size_bytes`, lie in `folder` and are in memory as a whole.
pub fn section(folder: &Path, programs: &Programs, effort: Effort) -> io::Result<Section> {
    let wanted = effort.rounds.max(PAIRS_WANTED);
    let mut rounds: Vec<Round> = Vec::new();
    while rounds.len() < wanted {
        let life = tempfile::tempdir_in(folder)?;
        let start = |(name, has_qos)| start(&life.path().join(name), programs, effort.size_bytes, has_qos);
        let running = DAEMONS.into_iter().map(start).collect::<io::Result<Vec<_>>>()?;
        for _ in 0..ROUNDS_OF_A_LIFE.min(wanted - rounds.len()) {
            let mut round = Round::default();
            for which in ORDERS[rounds.len() % ORDERS.len()] {
                let target = &running[which].target;
                round[which] = fio::run(&CELL, target, effort.size_bytes, effort.seconds, None)?.iops;
            }
            eprintln!("round {}: off {:.0}, again {:.0}, on {:.0}", rounds.len() + 1, round[0], round[1], round[2]);
            rounds.push(round);
        }
    }
    let text = describe(&rounds, effort.seconds);
    Ok(Section { title: "Quality of service that nobody needs".into(), text, ratios: Vec::new(), measured: Vec::new() })
}

/// A daemon with its volume in memory.
fn start(folder: &Path, programs: &Programs, bytes: u64, has_qos: bool) -> io::Result<Running> {
    std::fs::create_dir(folder)?;
    let backing = |name: &str| -> io::Result<String> {
        let path = folder.join(format!("{name}.img"));
        File::create(&path)?.set_len(bytes)?;
        Ok(path.display().to_string())
    };
    let mut tables = String::new();
    if has_qos {
        tables += "\n[[datastore]]\nname = \"pool\"\ncongestion_threshold = \"30ms\"\n";
    }
    // The second one asks for nothing, and is there to be considered.
    for (name, shares) in [(HOTSET_EXPORT, 1000), ("beside", 2000)] {
        tables += &format!("\n[[volume]]\nname = \"{name}\"\nbacking = \"{}\"\n", backing(name)?);
        if has_qos {
            tables += &format!("datastore = \"pool\"\nshares = {shares}\nreservation_iops = 100\n");
        }
    }
    let socket = folder.join("nbd.sock");
    // So much that nothing has to leave for the backing at once.
    let command = daemon(folder, &socket, bytes * 8, &[], &tables, &programs.hotset)?;
    let process = Process::start(command, &socket)?;
    let target = Target::Nbd(format!("nbd+unix:///{HOTSET_EXPORT}?socket={}", socket.display()));
    fio::run(&FILL, &target, bytes, 0, None)?;
    Ok(Running { target, process })
}

fn describe(rounds: &[Round], seconds: u32) -> String {
    let of = |which: usize| median(&rounds.iter().map(|round| round[which]).collect::<Vec<_>>());
    let to_off = |which: usize| Interval::of_ratio(rounds.iter().map(|round| (round[0], round[which])));
    let (again, on) = (to_off(1), to_off(2));
    format!(
        "A volume that is in memory as a whole, in a datastore with shares and a reservation and without a limit (*on*), and without any of \
         it (*off*), beside another daemon without (*off again*), which shows what the measurement itself can tell apart. {} rounds of {seconds} s \
         each, in changing order, all daemons started anew every {ROUNDS_OF_A_LIFE} rounds; ratios are the geometric means of the rounds', with \
         their 95 % confidence intervals. *Open*: the bound lies in the interval.\n\n\
         | | off | on | on to off | off again to off | wanted | |\n| --- | ---: | ---: | ---: | ---: | --- | --- |\n\
         | {} | {:.0} | {:.0} | {on} | {again} | {WANTED:.2} at least | {} |",
        rounds.len(),
        CELL.name,
        of(0),
        of(2),
        on.at_least(WANTED),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rounds that go up and down by a percent, with `part` of the throughput where there is quality of service.
    fn rounds(part: f64) -> Vec<Round> {
        let noise = |number: usize| 1.0 + 0.01 * (number as f64 * 2.4).sin();
        let round = |number| [noise(3 * number), noise(3 * number + 1), part * noise(3 * number + 2)];
        (0..PAIRS_WANTED).map(round).map(|round| round.map(|part| part * 100_000.0)).collect()
    }

    #[test]
    fn a_planted_loss_misses_and_nothing_lost_passes() {
        assert!(describe(&rounds(1.0), 3).ends_with("| pass |"), "{}", describe(&rounds(1.0), 3));
        assert!(describe(&rounds(0.98), 3).ends_with("| open |"), "{}", describe(&rounds(0.98), 3));
        assert!(describe(&rounds(0.96), 3).ends_with("| **miss** |"), "{}", describe(&rounds(0.96), 3));
    }

    #[test]
    fn orders_favour_nobody() {
        for which in 0..DAEMONS.len() {
            for place in 0..DAEMONS.len() {
                assert_eq!(ORDERS.iter().filter(|order| order[place] == which).count(), 2);
            }
        }
    }
}
