//! What clients keep of their throughput while destage runs at full speed.

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

/// Bytes of the volume whose dirty data goes to the disk meanwhile, and how much of it is dirty at most.
const DIRTY_BYTES: u64 = 1 << 30;
/// Bytes of the volume that clients ask.
const HIT_BYTES: u64 = 256 << 20;

const READ: Cell = Cell::new("4 KiB random read, depth 32", "randread", 4096, 32, 1);
const WRITE: Cell = Cell::new("4 KiB random write, depth 32", "randwrite", 4096, 32, 1);
/// Leaves blocks dirty that are no neighbours, the most work for destage.
const SCATTER: Cell = Cell::new("scatter", "randwrite", 4096, 32, 1);
const FILL: Cell = Cell::new("fill", "write", 1 << 16, 8, 1);

/// One pair.
struct Pair {
    quiet_iops: f64,
    beside_iops: f64,
    /// Part of the second run during which destage was at work.
    overlap: f64,
}

/// Measures a daemon with two volumes on files in `folder`, which lies on a real disk.
pub fn section(folder: &Path, programs: &Programs, effort: Effort) -> io::Result<Section> {
    let daemon = two_volumes(folder, programs, [HIT_BYTES, DIRTY_BYTES])?;
    let [hit, dirty] = &daemon.targets;
    fio::run(&FILL, hit, HIT_BYTES, 0, None)?;
    // A file system that has to find room for each block would be measured with it.
    fio::run(&FILL, dirty, DIRTY_BYTES, 0, None)?;
    let mut text = "A volume that is in memory as a whole is asked while another one's dirty blocks, scattered over 1 GiB, go to their file \
                    as fast as it takes them (`hotset volume flush`), and without that, interleaved. At least 0.8 is wanted.\n\n\
                    | | quiet | beside destage | ratio | destage was at work |\n| --- | ---: | ---: | ---: | ---: |\n"
        .to_owned();
    for cell in [READ, WRITE] {
        let pairs: Vec<Pair> = (0..effort.rounds)
            .map(|_| pair(&cell, hit, dirty, &daemon.control, programs, effort))
            .collect::<io::Result<_>>()?;
        let of = |figure: fn(&Pair) -> f64| median(&pairs.iter().map(figure).collect::<Vec<_>>());
        let ratio = of(|pair| pair.beside_iops / pair.quiet_iops);
        eprintln!("{} beside destage: {ratio:.2}", cell.name);
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            "| {} | {:.0} | {:.0} | **{ratio:.2}** | {:.0} % of the time |",
            cell.name,
            of(|pair| pair.quiet_iops),
            of(|pair| pair.beside_iops),
            100.0 * of(|pair| pair.overlap)
        );
    }
    let text = text.trim_end().to_owned();
    Ok(Section { title: "Beside destage at full speed".into(), text, ratios: Vec::new(), measured: Vec::new() })
}

fn pair(
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
    // What the last run left dirty is no part of this one.
    flush("hit").status()?;
    let quiet = fio::run(cell, hit, HIT_BYTES, effort.seconds, None)?;
    flush("hit").status()?;
    fio::run(&SCATTER, dirty, DIRTY_BYTES, effort.seconds, None)?;
    let begun = Instant::now();
    let mut destage = flush("dirty").spawn()?;
    let watch = std::thread::spawn(move || destage.wait().map(|_| begun.elapsed().as_secs_f64()));
    let beside = fio::run(cell, hit, HIT_BYTES, effort.seconds, None)?;
    let took = begun.elapsed().as_secs_f64();
    let destaged = watch.join().map_err(|_| io::Error::other("the flush could not be watched"))??;
    Ok(Pair { quiet_iops: quiet.iops, beside_iops: beside.iops, overlap: (destaged / took).min(1.0) })
}
