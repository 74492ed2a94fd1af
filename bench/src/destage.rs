//! Throughput of clients while destage runs at full speed.

use std::fmt::Write as _;
use std::io;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use crate::cells::Cell;
use crate::fio::{self, Target};
use crate::report::Section;
use crate::run::{Effort, median};
use crate::servers::{Programs, two_volumes};

/// Size of the volume whose dirty data is destaged, and so the upper limit of that data.
const DIRTY_BYTES: u64 = 1 << 30;
/// Size of the volume that the clients read and write.
const HIT_BYTES: u64 = 256 << 20;

const READ: Cell = Cell::new("4 KiB random read, depth 32", "randread", 4096, 32, 1);
const WRITE: Cell = Cell::new("4 KiB random write, depth 32", "randwrite", 4096, 32, 1);
/// Leaves scattered dirty blocks, the most work for destage.
const SCATTER: Cell = Cell::new("scatter", "randwrite", 4096, 32, 1);
const FILL: Cell = Cell::new("fill", "write", 1 << 16, 8, 1);

/// One pair of runs.
struct Pair {
    baseline_iops: f64,
    destaging_iops: f64,
    /// Fraction of the second run during which destage was active.
    overlap: f64,
}

/// Measures a daemon with two volumes on files in `folder`, which lies on a real disk.
pub fn section(folder: &Path, programs: &Programs, effort: Effort) -> io::Result<Section> {
    let daemon = two_volumes(folder, programs, [HIT_BYTES, DIRTY_BYTES])?;
    let [hit, dirty] = &daemon.targets;
    fio::run(&FILL, hit, HIT_BYTES, 0, None)?;
    // Allocates all blocks first; otherwise the file system's allocation would be measured too.
    fio::run(&FILL, dirty, DIRTY_BYTES, 0, None)?;
    let mut text = "Clients use a volume that is entirely in memory while another volume's dirty blocks, scattered \
                    over 1 GiB, are \
                    destaged to a file at full speed (`hotset volume flush`), and without destage, interleaved. The \
                    target is at least 0.8.\n\n\
                    | | without destage | during destage | ratio | destage active |\n\
                    | --- | ---: | ---: | ---: | ---: |\n"
        .to_owned();
    for cell in [READ, WRITE] {
        let pairs: Vec<Pair> = (0..effort.rounds)
            .map(|_| measure_pair(&cell, hit, dirty, &daemon.control, programs, effort))
            .collect::<io::Result<_>>()?;
        let median_of = |figure: fn(&Pair) -> f64| median(&pairs.iter().map(figure).collect::<Vec<_>>());
        let ratio = median_of(|pair| pair.destaging_iops / pair.baseline_iops);
        eprintln!("{} during destage: {ratio:.2}", cell.name);
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            "| {} | {:.0} | {:.0} | **{ratio:.2}** | {:.0} % of the time |",
            cell.name,
            median_of(|pair| pair.baseline_iops),
            median_of(|pair| pair.destaging_iops),
            100.0 * median_of(|pair| pair.overlap)
        );
    }
    let text = text.trim_end().to_owned();
    Ok(Section {
        title: "Client throughput during full-speed destage".into(),
        text,
        ratios: Vec::new(),
        measured: Vec::new(),
    })
}

fn measure_pair(
    cell: &Cell,
    hit: &Target,
    dirty: &Target,
    control: &Path,
    programs: &Programs,
    effort: Effort,
) -> io::Result<Pair> {
    let flush = |name: &str| {
        let mut command = Command::new(&programs.hotset);
        command.args(["volume", "flush", name, "--socket"]).arg(control).stdout(Stdio::null());
        command
    };
    // Destages what the previous run left dirty.
    flush("hit").status()?;
    let baseline = fio::run(cell, hit, HIT_BYTES, effort.seconds, None)?;
    flush("hit").status()?;
    fio::run(&SCATTER, dirty, DIRTY_BYTES, effort.seconds, None)?;
    let started = Instant::now();
    let mut destage = flush("dirty").spawn()?;
    let flush_timer = std::thread::spawn(move || destage.wait().map(|_| started.elapsed().as_secs_f64()));
    let destaging = fio::run(cell, hit, HIT_BYTES, effort.seconds, None)?;
    let seconds = started.elapsed().as_secs_f64();
    let destaged = flush_timer.join().map_err(|_| io::Error::other("the thread that times the flush panicked"))??;
    Ok(Pair { baseline_iops: baseline.iops, destaging_iops: destaging.iops, overlap: (destaged / seconds).min(1.0) })
}
