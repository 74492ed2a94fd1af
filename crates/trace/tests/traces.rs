//! Published traces, read completely. `HOTSET_TRACES` names their directory; without it the tests read nothing.

#![allow(clippy::disallowed_types, reason = "traces are files, and a test may open them")]

use std::fs::File;
use std::path::{Path, PathBuf};

use trace::info::Info;
use trace::{Format, Op, Request, open};

fn trace_directory() -> Option<PathBuf> {
    let directory = std::env::var_os("HOTSET_TRACES").map(PathBuf::from);
    if directory.is_none() {
        println!("skipped: set HOTSET_TRACES to the directory of the traces");
    }
    directory
}

fn read_trace(directory: &Path, name: &str) -> (Format, Vec<Request>) {
    let file = File::open(directory.join(name)).expect("the trace exists");
    let reader = open(name, Box::new(file), None).expect("the trace is valid");
    let format = reader.format();
    (format, reader.map(|request| request.expect("the record is valid")).collect())
}

/// File, format, requests, and footprint in hundredths of a GiB, as published.
const TRACES: [(&str, Format, usize, u64); 6] = [
    ("cloudphysics-vm.vscsi", Format::Vscsi, 113_872, 103),
    ("cloudphysics-w106.u32le.xz", Format::U32Le, 5_292_456, 105),
    ("arc-P2.lis.zst", Format::Lis, 666_176, 46),
    ("arc-P3.lis.zst", Format::Lis, 238_578, 39),
    ("arc-P6.lis.zst", Format::Lis, 519_711, 39),
    ("tpcc-small.mqsim", Format::Mqsim, 6_999, 8),
];

#[test]
fn published_traces_are_read_completely() {
    let Some(directory) = trace_directory() else { return };
    for (name, format, requests, footprint_centigib) in TRACES {
        let (detected, read) = read_trace(&directory, name);
        assert_eq!((detected, read.len()), (format, requests), "{name}");
        let mut info = Info::default();
        read.iter().for_each(|request| info.add(request));
        let footprint = info.footprint_small_bytes();
        assert_eq!(info.sampled_one_in(), 1, "{name}");
        assert_eq!((footprint * 100 + (1 << 29)) >> 30, footprint_centigib, "{name}: {footprint} bytes");
    }
}

#[test]
fn virtual_machine_trace_has_59_percent_writes_in_two_hours() {
    let Some(directory) = trace_directory() else { return };
    let (_, requests) = read_trace(&directory, "cloudphysics-vm.vscsi");
    let writes = requests.iter().filter(|request| request.op == Op::Write).count();
    assert_eq!((writes * 100 + requests.len() / 2) / requests.len(), 59);
    let last_ns = requests.iter().filter_map(|request| request.time_ns).max().expect("the trace has times");
    assert!((6_900..7_500).contains(&(last_ns / 1_000_000_000)), "{last_ns} ns");
}
