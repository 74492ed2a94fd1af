//! `hotset trace info`.

use std::fmt::Write as _;
use std::path::Path;

use serde::Serialize;
use trace::Op;
use trace::info::{Histogram, Info};

use terminal::render::style::Style;
use terminal::render::table::{Side, Table};
use terminal::{Failure, print_json};
use units::{show_bytes, show_count, show_micros, show_percent};

use super::{ReadOptions, Source};

/// One row of a histogram.
#[derive(Serialize)]
struct Row {
    /// The lowest value of the row. The row ends below the next row's lowest value, or below twice its own.
    from: u64,
    count: u64,
}

/// Counts of a trace. "Request" means reads and writes unless a field's description differs.
#[derive(Serialize)]
struct Report {
    trace: String,
    format: &'static str,
    description: String,
    requests: u64,
    reads: u64,
    writes: u64,
    discards: u64,
    flushes: u64,
    read_bytes: u64,
    write_bytes: u64,
    discard_bytes: u64,
    /// Accesses to 4 KiB pages, counted for each page of each request.
    block_accesses: u64,
    footprint_4k_bytes: u64,
    footprint_64k_bytes: u64,
    /// Footprints and reuse are estimated from 1 page in this number.
    one_page_of: u64,
    /// Reads and writes that begin where one of the last 32 ended.
    sequential: u64,
    duration_s: Option<f64>,
    disks: u64,
    end_bytes: u64,
    /// Bytes of a read or write.
    sizes: Vec<Row>,
    /// Reuse intervals: accesses between two uses of the same 4 KiB page.
    reuse: Vec<Row>,
    /// First accesses to pages.
    first_accesses: u64,
    /// Records that are no requests.
    skipped: u64,
    /// Requests that the recorder lost.
    dropped: u64,
    /// The error that ended the trace early.
    broken: Option<String>,
}

fn rows(histogram: &Histogram) -> Vec<Row> {
    histogram.buckets().map(|(from, count)| Row { from, count }).collect()
}

impl Report {
    fn new(source: &Source, info: &Info) -> Self {
        let count = |op: Op| info.requests[op as usize];
        let bytes = |op: Op| info.bytes[op as usize];
        let reused: u64 = info.reuse_intervals.buckets().map(|(_, count)| count).sum();
        Report {
            trace: source.name.clone(),
            format: source.reader().format().name(),
            description: source.reader().description(),
            requests: info.requests.iter().sum(),
            reads: count(Op::Read),
            writes: count(Op::Write),
            discards: count(Op::Discard),
            flushes: count(Op::Flush),
            read_bytes: bytes(Op::Read),
            write_bytes: bytes(Op::Write),
            discard_bytes: bytes(Op::Discard),
            block_accesses: info.accesses,
            footprint_4k_bytes: info.footprint_small_bytes(),
            footprint_64k_bytes: info.footprint_large_bytes(),
            one_page_of: info.sampled_one_in(),
            sequential: info.sequential,
            duration_s: info.duration_ns.map(|ns| ns as f64 / 1e9),
            disks: u64::from(info.device_max) + 1,
            end_bytes: info.end_bytes,
            sizes: rows(&info.sizes),
            reuse: rows(&info.reuse_intervals),
            first_accesses: info.accesses.saturating_sub(reused),
            skipped: source.reader().skipped(),
            dropped: source.reader().dropped(),
            broken: source.broken.clone(),
        }
    }

    fn render(&self, style: Style) -> String {
        let mut text = format!("{}\n{}\n\n", style.bold(&self.trace), self.description);
        let mut line =
            |name: &str, value: String| writeln!(text, "{name:<22}{value}").expect("writing to a string cannot fail");
        let transfers = self.reads + self.writes;
        line("requests", show_count(self.requests));
        let op_text = |count: u64, bytes: u64| {
            format!("{}, {} of requests, {}", show_count(count), show_percent(count, self.requests), show_bytes(bytes))
        };
        line("reads", op_text(self.reads, self.read_bytes));
        line("writes", op_text(self.writes, self.write_bytes));
        if self.discards > 0 {
            line("discards", op_text(self.discards, self.discard_bytes));
        }
        if self.flushes > 0 {
            line("flushes", show_count(self.flushes));
        }
        line("sequential", format!("{} of reads and writes", show_percent(self.sequential, transfers)));
        line("duration", self.duration());
        let estimated = if self.one_page_of > 1 {
            format!(" (estimated from 1 page in {})", self.one_page_of)
        } else {
            String::new()
        };
        line("footprint at 4 KiB", show_bytes(self.footprint_4k_bytes) + &estimated);
        line("footprint at 64 KiB", show_bytes(self.footprint_64k_bytes) + &estimated);
        line("disks", format!("{}, highest address {}", show_count(self.disks), show_bytes(self.end_bytes)));
        if self.skipped > 0 {
            line("skipped", format!("{} records other than requests", show_count(self.skipped)));
        }
        if self.dropped > 0 {
            line("lost in recording", format!("{} requests", show_count(self.dropped)));
        }
        let sizes = histogram("size from", "requests", &self.sizes, transfers, show_bytes);
        let reuse = histogram("reuse interval", "accesses", &self.reuse, self.block_accesses, show_count);
        let first = show_percent(self.first_accesses, self.block_accesses);
        text + "\n"
            + &sizes.render(style)
            + "\nReuse interval: accesses between two uses of the same 4 KiB page; first accesses: "
            + &first
            + "\n"
            + &reuse.render(style)
    }

    fn duration(&self) -> String {
        let Some(seconds) = self.duration_s else { return "unknown: the trace has no times".to_owned() };
        let rate = if seconds > 0.0 {
            format!(", {:.0} requests per second", self.requests as f64 / seconds)
        } else {
            String::new()
        };
        let duration = match seconds {
            s if s < 120.0 => show_micros(s * 1e6),
            s if s < 7_200.0 => format!("{:.1} min", s / 60.0),
            s => format!("{:.1} h", s / 3_600.0),
        };
        duration + &rate
    }
}

/// A table with a bar for each row.
fn histogram(title: &'static str, counted: &'static str, rows: &[Row], total: u64, show: fn(u64) -> String) -> Table {
    const BAR_MAX: u64 = 40;
    let count_max = rows.iter().map(|row| row.count).max().unwrap_or(1).max(1);
    let mut table =
        Table::new(&[(title, Side::Right), (counted, Side::Right), ("share", Side::Right), ("", Side::Left)]);
    for row in rows {
        let bar = "#".repeat((u128::from(row.count) * u128::from(BAR_MAX) / u128::from(count_max)) as usize);
        table.row(vec![show(row.from), show_count(row.count), show_percent(row.count, total), bar]);
    }
    table
}

/// Reads a trace and prints its counts.
pub fn run(file: &Path, read_options: &ReadOptions, json: bool) -> Result<(), Failure> {
    let mut source = Source::open(file, read_options)?;
    let mut info = Info::default();
    while let Some(request) = source.next()? {
        info.add(&request);
    }
    let report = Report::new(&source, &info);
    source.warn(report.requests);
    if json {
        return print_json(&report);
    }
    print!("{}", report.render(Style::of_stdout()));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trace_has_a_page() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.spc");
        let mut text = String::new();
        for number in 0..4_000u64 {
            let (kind, bytes) = if number % 4 == 0 { ('w', 4_096) } else { ('r', 65_536) };
            writeln!(text, "0,{},{bytes},{kind},{}.5", number % 1_000 * 128, number / 10).unwrap();
        }
        std::fs::write(&path, text + "0,1,2,x,3\n").unwrap();
        let strict = ReadOptions { format: None, lenient: false };
        let failure = run(&path, &strict, false).expect_err("the last line is invalid");
        assert!(failure.message.contains("line 4001: the opcode is \"x\", neither r nor w"), "{}", failure.message);
        let mut source = Source::open(&path, &ReadOptions { format: None, lenient: true }).unwrap();
        let mut info = Info::default();
        while let Some(request) = source.next().unwrap() {
            info.add(&request);
        }
        assert!(source.broken.as_ref().is_some_and(|broken| broken.contains("line 4001")));
        source.name = "a.spc".to_owned();
        insta::assert_snapshot!(Report::new(&source, &info).render(Style::PLAIN));
    }
}
