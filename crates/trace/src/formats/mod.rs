//! Trace formats, one file each, and their list. A new format is a file, and a line in the enum, in
//! `ALL` and in each `match`.

mod blkparse;
pub mod hotset;
mod iolog;
mod lis;
mod mqsim;
mod msr;
mod spc;
mod u32le;
mod vscsi;

use std::fmt;
use std::str::FromStr;

use crate::compression::Compression;
use crate::error::TraceError;
use crate::input::{Chunk, strip_carriage_return};
use crate::request_sink::{RecordError, RequestSink};

/// Format of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// VMware's vscsiStats, binary, versions 1 and 2.
    Vscsi,
    /// Microsoft Research Cambridge, CSV.
    Msr,
    /// Storage Performance Council, text.
    Spc,
    /// fio's I/O log, versions 2 and 3.
    Iolog,
    /// Text output of blkparse.
    Blkparse,
    /// Text of the ARC paper's traces.
    Lis,
    /// Block numbers only.
    U32Le,
    /// Text of MQSim.
    Mqsim,
    /// The Hotset format.
    Hotset,
}

impl Format {
    /// All formats with their names in commands.
    pub const ALL: [(&'static str, Format); 9] = [
        ("vscsi", Format::Vscsi),
        ("msr", Format::Msr),
        ("spc", Format::Spc),
        ("iolog", Format::Iolog),
        ("blkparse", Format::Blkparse),
        ("lis", Format::Lis),
        ("u32le", Format::U32Le),
        ("mqsim", Format::Mqsim),
        ("hotset", Format::Hotset),
    ];

    /// Name in commands.
    pub fn name(self) -> &'static str {
        // `ALL` has the order of the enum, as a test checks.
        Format::ALL[self as usize].0
    }

    /// Short description.
    pub fn title(self) -> &'static str {
        match self {
            Format::Vscsi => "VMware vscsiStats",
            Format::Msr => "MSR Cambridge CSV",
            Format::Spc => "SPC text",
            Format::Iolog => "fio iolog",
            Format::Blkparse => "blkparse text",
            Format::Lis => "ARC text",
            Format::U32Le => "block numbers of 4 KiB blocks",
            Format::Mqsim => "MQSim text",
            Format::Hotset => "Hotset trace",
        }
    }

    /// All names, for messages.
    pub fn names() -> String {
        Format::ALL.map(|(name, _)| name).join(", ")
    }

    /// Format by the extension of a file name, after removing that of a compression.
    pub fn of_name(name: &str) -> Option<Self> {
        let packed = Compression::of_name(name).and_then(|_| name.rsplit_once('.'));
        let plain = packed.map_or(name, |(plain, _)| plain);
        let extension = plain.rsplit_once('.')?.1.to_ascii_lowercase();
        extension.parse().ok()
    }

    /// A decoder from the start of a trace, of which `head` is a prefix.
    pub(crate) fn decoder(self, head: &[u8]) -> Box<dyn Decoder> {
        match self {
            Format::Vscsi => Box::new(vscsi::Decoder::new(head)),
            Format::Msr => Box::new(msr::Decoder),
            Format::Spc => Box::new(spc::Decoder),
            Format::Iolog => Box::new(iolog::Decoder::new(head)),
            Format::Blkparse => Box::new(blkparse::Decoder::new(head)),
            Format::Lis => Box::new(lis::Decoder),
            Format::U32Le => Box::new(u32le::Decoder),
            Format::Mqsim => Box::new(mqsim::Decoder),
            Format::Hotset => Box::new(hotset::Decoder::new()),
        }
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Format {
    type Err = TraceError;

    fn from_str(name: &str) -> Result<Self, TraceError> {
        let format = Format::ALL.iter().find(|(known, _)| *known == name);
        format
            .map(|(_, format)| *format)
            .ok_or_else(|| TraceError::NoFormat { name: name.to_owned(), formats: Format::names() })
    }
}

/// Decodes chunks of one format into requests.
pub(crate) trait Decoder {
    /// The next chunk to decode.
    fn next_chunk(&self) -> Chunk {
        Chunk::Line
    }

    /// Name of the chunk, for a trace that ends within it.
    fn chunk_name(&self) -> &'static str {
        "a record"
    }

    /// Decodes a chunk and puts its requests into `out`.
    fn decode(&mut self, chunk: &[u8], out: &mut RequestSink) -> Result<(), RecordError>;

    /// Checks that the trace may end here.
    fn end(&mut self) -> Result<(), RecordError> {
        Ok(())
    }
}

/// Maximum number of chunks examined per format.
const CHUNKS_EXAMINED_MAX: usize = 32;

/// Detects the format by its magic number, or else by the decoder that accepts the most chunks at the start, including
/// a request. A format that accepts any bytes (`u32le`) is not tried.
pub(crate) fn detect(head: &[u8]) -> Option<Format> {
    // A magic number decides alone, so that a newer version gets its own error and an empty trace is valid.
    for (magic, format) in [(&hotset::MAGIC[..], Format::Hotset), (iolog::MAGIC, Format::Iolog)] {
        if head.starts_with(magic) {
            return Some(format);
        }
    }
    let tried = Format::ALL.iter().map(|(_, format)| *format).filter(|format| *format != Format::U32Le);
    let scores = tried.map(|format| (decoded_chunks(format, head), format));
    scores
        .filter(|(decoded_chunks, _)| *decoded_chunks > 0)
        .max_by_key(|(decoded_chunks, _)| *decoded_chunks)
        .map(|(_, format)| format)
}

/// Number of chunks at the start that a format accepts; 0 without a request among them.
fn decoded_chunks(format: Format, head: &[u8]) -> usize {
    let mut decoder = format.decoder(head);
    let mut out = RequestSink::default();
    let mut remaining = head;
    let mut decoded_chunks = 0;
    // A format with a long preamble has its first request beyond the limit.
    while decoded_chunks < CHUNKS_EXAMINED_MAX || out.len() == 0 {
        let chunk = match decoder.next_chunk() {
            Chunk::Bytes(len) => remaining.split_at_checked(len),
            Chunk::Line => match remaining.iter().position(|byte| *byte == b'\n') {
                Some(newline) => Some((strip_carriage_return(&remaining[..newline]), &remaining[newline + 1..])),
                None if remaining.is_empty() => None,
                None => Some((remaining, &remaining[remaining.len()..])),
            },
        };
        let Some((chunk, tail)) = chunk else { break };
        if decoder.decode(chunk, &mut out).is_err() {
            break;
        }
        remaining = tail;
        decoded_chunks += 1;
    }
    if out.len() == 0 { 0 } else { decoded_chunks }
}
