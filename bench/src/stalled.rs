//! Effect of two hundred clients that stall in the middle of a request on a healthy client.

use std::fmt::Write as _;
use std::io::{self, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

use nbd_protocol::{Command, Request};

use crate::cells::Cell;
use crate::fio;
use crate::nbd::connect;
use crate::report::Section;
use crate::run::{Effort, median};
use crate::servers::{Kind, Server};

/// Number of stalled connections.
const STALLED: u64 = 200;
/// Bytes of the incomplete write, or of the read whose reply is not received.
const REQUEST_BYTES: u32 = 1 << 20;
/// Bytes of the write's payload that are sent.
const PAYLOAD_SENT_BYTES: usize = 100_000;
/// Reads whose replies are never received.
const UNRECEIVED_READS: usize = 8;

/// Cells of the healthy client.
const CELLS: [Cell; 2] = [
    Cell::new("4 KiB random read, depth 1", "randread", 4096, 1, 1),
    Cell::new("4 KiB random write, depth 1", "randwrite", 4096, 1, 1),
];

/// Opens a connection, starts a request and stops; `number` selects one of four ways.
fn stall(socket: &Path, export: &str, number: u64) -> io::Result<UnixStream> {
    let mut stream = connect(socket, export)?;
    let request = |command| Request { flags: 0, command, cookie: number, offset: 0, len: REQUEST_BYTES }.encode();
    let write = request(Command::Write);
    match number % 4 {
        0 => stream.write_all(&write[..write.len() / 2])?,
        1 => stream.write_all(&write)?,
        2 => stream.write_all(&[&write[..], &[0; PAYLOAD_SENT_BYTES]].concat())?,
        _ => (0..UNRECEIVED_READS).try_for_each(|_| stream.write_all(&request(Command::Read)))?,
    }
    Ok(stream)
}

/// Median latencies of a healthy client in microseconds, alone and with stalled clients, one pair per round.
fn measure_pairs(
    cell: &Cell,
    server: &Server,
    socket: &Path,
    export: &str,
    effort: Effort,
) -> io::Result<Vec<[f64; 2]>> {
    let median_us =
        || fio::run(cell, &server.target, effort.size_bytes, effort.seconds, None).map(|outcome| outcome.median_us);
    let measure_pair = |_| {
        let alone = median_us()?;
        let stalled: io::Result<Vec<_>> = (0..STALLED).map(|number| stall(socket, export, number)).collect();
        let stalled = stalled?;
        let with_stalled = median_us()?;
        drop(stalled);
        Ok([alone, with_stalled])
    };
    (0..effort.rounds).map(measure_pair).collect()
}

/// Measures `server`, which listens on `socket`, and renders the result.
pub fn measure(server: &Server, socket: &Path, export: &str, effort: Effort) -> io::Result<Section> {
    assert_eq!(server.kind, Kind::Hotset, "only the daemon is measured");
    let mut text = format!(
        "{STALLED} connections that stall: a quarter each inside a request's header, after the header of a write, \
         inside its payload, and with {UNRECEIVED_READS} reads of 1 MiB whose replies are not received. A healthy \
         client's median latency without and with \
         them, interleaved; the target is at most 1.5 times.\n\n| | without | with | ratio | per round |\n| --- | \
         ---: | ---: | ---: | ---: |\n"
    );
    for cell in &CELLS {
        let pairs = measure_pairs(cell, server, socket, export, effort)?;
        let median_of = |column: usize| median(&pairs.iter().map(|pair| pair[column]).collect::<Vec<_>>());
        let ratios: Vec<f64> = pairs.iter().map(|[alone, with_stalled]| with_stalled / alone).collect();
        let formatted_ratios: Vec<String> = ratios.iter().map(|ratio| format!("{ratio:.2}")).collect();
        eprintln!(
            "{}: {:.2} times with {STALLED} stalled ({})",
            cell.name,
            median(&ratios),
            formatted_ratios.join(", ")
        );
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            "| {} | {:.1} µs | {:.1} µs | **{:.2}** | {} |",
            cell.name,
            median_of(0),
            median_of(1),
            median(&ratios),
            formatted_ratios.join(", ")
        );
    }
    let text = text.trim_end().to_owned();
    Ok(Section { title: "With stalled clients".into(), text, ratios: Vec::new(), measured: Vec::new() })
}
