//! The long traces and the published results for them.

use std::path::PathBuf;

use lab::replay::{PageTrace, Recording};

/// A row of the published table.
pub struct Row {
    /// File name of the trace.
    pub trace: String,
    /// True for pages of 64 KiB, false for blocks of 4 KiB.
    pub is_page_sized: bool,
    /// Cache size in percent of the footprint.
    pub percent: u64,
    /// Cache size in pages.
    pub slots: usize,
    columns: Vec<(String, f64)>,
}

impl Row {
    /// Size of a page, in KiB.
    pub fn unit_kib(&self) -> u64 {
        if self.is_page_sized { 64 } else { 4 }
    }

    /// Published miss ratio of a policy.
    pub fn miss_ratio(&self, policy: &str) -> f64 {
        self.columns.iter().find(|(name, _)| name == policy).expect("the table has a column per policy").1
    }
}

/// All traces in memory.
pub struct Traces {
    directory: PathBuf,
    table: String,
    recordings: Vec<(String, Recording)>,
}

impl Traces {
    /// Reads all traces; `None` without a directory of traces.
    pub fn open() -> Option<Traces> {
        let Some(directory) = std::env::var_os("HOTSET_TRACES").map(PathBuf::from) else {
            println!("not measured: HOTSET_TRACES is not set to the directory of the traces");
            return None;
        };
        #[expect(clippy::disallowed_methods, reason = "the test reads its input")]
        let table = std::fs::read_to_string(directory.join("miss-ratios.csv"))
            .expect("the directory contains the published table");
        let mut traces = Traces { directory, table, recordings: Vec::new() };
        let mut names: Vec<_> = traces.published().into_iter().map(|row| row.trace).collect();
        names.dedup();
        names.sort();
        names.dedup();
        traces.recordings = names.into_iter().map(|name| (name.clone(), traces.recording(&name))).collect();
        Some(traces)
    }

    /// The published table.
    pub fn published(&self) -> Vec<Row> {
        let mut lines = self.table.lines();
        let column_names: Vec<_> = lines.next().expect("the table begins with column names").split(',').collect();
        lines
            .map(|line| {
                let fields: Vec<_> = line.split(',').collect();
                let number = |at: usize| fields[at].parse::<f64>().expect("the field is a number");
                let columns = (4..fields.len()).map(|at| (column_names[at].to_owned(), number(at))).collect();
                let (percent, slots) = (number(2) as u64, number(3) as usize);
                Row { trace: fields[0].to_owned(), is_page_sized: fields[1] == "64k", percent, slots, columns }
            })
            .collect()
    }

    /// The accesses of a row.
    pub fn pages(&self, row: &Row) -> &PageTrace {
        let (_, recording) = self
            .recordings
            .iter()
            .find(|(name, _)| *name == row.trace)
            .expect("the directory contains every trace of the table");
        if row.is_page_sized { &recording.pages } else { &recording.blocks }
    }

    /// Reads one trace.
    pub fn recording(&self, name: &str) -> Recording {
        #[expect(clippy::disallowed_types, reason = "the test reads its input")]
        let file =
            std::fs::File::open(self.directory.join(name)).expect("the directory contains every trace of the table");
        let (recording, error) =
            Recording::of(trace::open(name, Box::new(file), None).expect("the trace format is known"));
        assert!(error.is_none(), "{name}: {error:?}");
        recording
    }
}
