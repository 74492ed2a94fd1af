//! Cost of a pool in the path of a request: a volume on a pool of one file against a volume on such a file.

use std::fmt::Write as _;
use std::fs::File;
use std::io;
use std::path::Path;

use crate::cells::Cell;
use crate::fio::{self, Outcome, Target};
use crate::process::Process;
use crate::report::Section;
use crate::run::{Effort, median};
use crate::servers::{Programs, create_pool, daemon};

const POOL: &str = "bench";
const MEMORY_BYTES: u64 = 64 << 20;
/// Space of the pool's device beside the volume: metadata and the reserve.
const SPARE_BYTES: u64 = 512 << 20;
const FILL: Cell = Cell::new("fill", "write", 1 << 20, 4, 1);
const CELLS: [Cell; 4] = [
    Cell::new("4 KiB random read, depth 1", "randread", 4096, 1, 1),
    Cell::new("4 KiB random write, depth 1", "randwrite", 4096, 1, 1),
    Cell::new("4 KiB random read, depth 32", "randread", 4096, 32, 1),
    Cell::new("4 KiB random write, depth 32", "randwrite", 4096, 32, 1),
];
/// Targets: additional median latency at depth 1, and rate at depth 32 relative to the file.
const ADDED_US_MAX: f64 = 3.0;
const RATIO_MIN: f64 = 0.98;

/// Measures a daemon with both volumes on files in `folder`. Neither volume has a cache.
pub fn section(folder: &Path, programs: &Programs, effort: Effort) -> io::Result<Section> {
    let [file, device] = ["file", "device"].map(|name| folder.join(name));
    File::create(&file)?.set_len(effort.size_bytes)?;
    File::create(&device)?.set_len(effort.size_bytes + SPARE_BYTES)?;
    let volume = |name: &str, keys: &str| format!("[[volume]]\nname = \"{name}\"\npolicy = \"none\"\n{keys}\n");
    let extra_toml = format!(
        "\n[[pool]]\nname = \"{POOL}\"\nrelocation = \"off\"\n[[pool.tier]]\nname = \"t\"\nclass = \"ssd\"\n\
         devices = [\"{}\"]\n{}{}",
        device.display(),
        volume("file", &format!("backing = \"{}\"", file.display())),
        volume("pool", &format!("backing = \"pool://{POOL}\"\nsize = \"{} B\"", effort.size_bytes))
    );
    let socket = folder.join("pool.sock");
    let command = daemon(folder, &socket, MEMORY_BYTES, &[], &extra_toml, &programs.hotset)?;
    create_pool(POOL, folder, programs)?;
    let _process = Process::start(command, &socket)?;
    let targets = ["file", "pool"].map(|name| Target::Nbd(format!("nbd+unix:///{name}?socket={}", socket.display())));
    for target in &targets {
        fio::run(&FILL, target, effort.size_bytes, 0, None)?;
    }
    let mut text = format!(
        "A volume on a pool of one file, and one on a file beside it, both without a cache and with their space \
         allocated; interleaved. Targets: at most {ADDED_US_MAX} µs more at depth 1, at least {RATIO_MIN} of the rate \
         at depth 32.\n\n| | file | pool | added | ratio of rates |\n| --- | ---: | ---: | ---: | ---: |\n"
    );
    for cell in &CELLS {
        let pairs = (0..effort.rounds).map(|round| measure_pair(cell, &targets, effort, round));
        let pairs: Vec<[Outcome; 2]> = pairs.collect::<io::Result<_>>()?;
        let median_of = |figure: fn(&[Outcome; 2]) -> f64| median(&pairs.iter().map(figure).collect::<Vec<_>>());
        let added_us = median_of(|[file, pool]| pool.median_us - file.median_us);
        let ratio = median_of(|[file, pool]| pool.iops / file.iops);
        eprintln!("{} through a pool: {added_us:+.1} µs, {ratio:.3} of the rate", cell.name);
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            "| {} | {:.0} · {:.1} µs | {:.0} · {:.1} µs | **{added_us:+.1} µs** | **{ratio:.3}** |",
            cell.name,
            median_of(|[file, _]| file.iops),
            median_of(|[file, _]| file.median_us),
            median_of(|[_, pool]| pool.iops),
            median_of(|[_, pool]| pool.median_us),
        );
    }
    let text = text.trim_end().to_owned();
    Ok(Section { title: "Through a pool".into(), text, ratios: Vec::new(), measured: Vec::new() })
}

/// Runs of the file and the pool, the first of them in turn.
fn measure_pair(cell: &Cell, targets: &[Target; 2], effort: Effort, round: usize) -> io::Result<[Outcome; 2]> {
    let run = |target| fio::run(cell, target, effort.size_bytes, effort.seconds, None);
    let [file, pool] = targets;
    if round.is_multiple_of(2) {
        Ok([run(file)?, run(pool)?])
    } else {
        let pool = run(pool)?;
        Ok([run(file)?, pool])
    }
}
