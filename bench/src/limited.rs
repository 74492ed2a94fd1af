//! Misses on a backing with a limit of 20,000 requests per second: the cost of the cache in the path.

use std::io;
use std::path::Path;

use crate::cells::Cell;
use crate::report::{Ratio, Section};
use crate::run::{Effort, measure};
use crate::servers::{Content, Kind, Programs, start_throttled_qemu};

/// Limit of the backing in requests per second.
const LIMIT_IOPS: u32 = 20_000;

const CELL: Cell = Cell::new("4 KiB random read, depth 32", "randread", 4096, 32, 1);

/// Measures the daemon on a limited export of `file`, and the export itself.
pub fn section(file: &Path, folder: &Path, programs: &Programs, effort: Effort) -> io::Result<Section> {
    let (limited, uri) = start_throttled_qemu(file, folder, LIMIT_IOPS)?;
    let hotset = Kind::Hotset.start(&Content::Export(uri), folder, programs)?;
    let measured = measure(&CELL, &[hotset, limited], effort, None)?;
    Ok(Section {
        title: "Misses on a limited backing".into(),
        text: format!(
            "Random reads through Hotset with 32 MiB of memory on an NBD export of qemu-storage-daemon limited to \
             {LIMIT_IOPS} \
             requests per second, and of that export itself."
        ),
        ratios: vec![Ratio { name: "to the export", of: Kind::Hotset, to: &[Kind::Qemu] }],
        measured: vec![measured],
    })
}
