//! One file a format, and the list of them. A new one is a file and a line in each part of this list.

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
use crate::input::{Unit, without_return};
use crate::out::{Complaint, Out};

/// What a trace may be written in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// VMware's vscsiStats, binary, versions 1 and 2.
    Vscsi,
    /// Microsoft Research Cambridge, CSV.
    Msr,
    /// Storage Performance Council, text.
    Spc,
    /// fio's I/O log, versions 2 and 3.
    FioLog,
    /// What blkparse prints of a blktrace.
    Blkparse,
    /// The text of the ARC paper's traces.
    Lis,
    /// Block numbers alone.
    U32Le,
    /// MQSim's text.
    Mqsim,
    /// Our own.
    Hotset,
}

impl Format {
    /// All of them, by their names in commands.
    pub const ALL: [(&'static str, Format); 9] = [
        ("vscsi", Format::Vscsi),
        ("msr", Format::Msr),
        ("spc", Format::Spc),
        ("iolog", Format::FioLog),
        ("blkparse", Format::Blkparse),
        ("lis", Format::Lis),
        ("u32le", Format::U32Le),
        ("mqsim", Format::Mqsim),
        ("hotset", Format::Hotset),
    ];

    /// Its name in commands.
    pub fn name(self) -> &'static str {
        Format::ALL[self as usize].0
    }

    /// What it is, in a few words.
    pub fn title(self) -> &'static str {
        match self {
            Format::Vscsi => "VMware vscsiStats",
            Format::Msr => "MSR Cambridge CSV",
            Format::Spc => "SPC text",
            Format::FioLog => "fio iolog",
            Format::Blkparse => "blkparse text",
            Format::Lis => "ARC text",
            Format::U32Le => "block numbers of 4 KiB blocks",
            Format::Mqsim => "MQSim text",
            Format::Hotset => "Hotset trace",
        }
    }

    /// The names of all, for messages.
    pub fn names() -> String {
        Format::ALL.map(|(name, _)| name).join(", ")
    }

    /// What the ending of a file's name says, that of a compression before it left out.
    pub fn of_name(name: &str) -> Option<Self> {
        let packed = Compression::of_name(name).and_then(|_| name.rsplit_once('.'));
        let plain = packed.map_or(name, |(plain, _)| plain);
        let ending = plain.rsplit_once('.')?.1.to_ascii_lowercase();
        ending.parse().ok()
    }

    /// Reads it from its beginning on, of which `head` is some.
    pub(crate) fn decoder(self, head: &[u8]) -> Box<dyn Decoder> {
        match self {
            Format::Vscsi => Box::new(vscsi::Decoder::new(head)),
            Format::Msr => Box::new(msr::Decoder),
            Format::Spc => Box::new(spc::Decoder),
            Format::FioLog => Box::new(iolog::Decoder::new(head)),
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
        let found = Format::ALL.iter().find(|(known, _)| *known == name);
        found.map(|(_, format)| *format).ok_or_else(|| TraceError::NoFormat { name: name.to_owned() })
    }
}

/// One format's way from units to requests.
pub(crate) trait Decoder {
    /// What it wants next.
    fn unit(&self) -> Unit {
        Unit::Line
    }

    /// What that is called where the trace ends within it.
    fn unit_name(&self) -> &'static str {
        "a record"
    }

    /// Takes one unit and puts the requests that are in it.
    fn decode(&mut self, unit: &[u8], out: &mut Out) -> Result<(), Complaint>;

    /// The trace has ended: whether it may.
    fn end(&mut self) -> Result<(), Complaint> {
        Ok(())
    }
}

/// Units that are looked at.
const TRIED: usize = 32;

/// The format whose first bytes these are; else the one whose decoder takes the most of the first units, if it finds a request
/// in them. A format that would take anything (`u32le`) is not tried.
pub(crate) fn recognise(head: &[u8]) -> Option<Format> {
    // By those alone, so that a newer version is named instead of unknown, and a trace of nothing is one.
    for (magic, format) in [(&hotset::MAGIC[..], Format::Hotset), (iolog::MAGIC, Format::FioLog)] {
        if head.starts_with(magic) {
            return Some(format);
        }
    }
    let tried = Format::ALL.iter().map(|(_, format)| *format).filter(|format| *format != Format::U32Le);
    let scores = tried.map(|format| (taken(format, head), format));
    scores.filter(|(taken, _)| *taken > 0).max_by_key(|(taken, _)| *taken).map(|(_, format)| format)
}

/// How many units of the beginning are as this format has them; 0 if no request is among them.
fn taken(format: Format, head: &[u8]) -> usize {
    let mut decoder = format.decoder(head);
    let mut out = Out::default();
    let mut rest = head;
    let mut taken = 0;
    // A format with a long preamble has its requests further behind.
    while taken < TRIED || out.len() == 0 {
        let unit = match decoder.unit() {
            Unit::Bytes(len) => rest.split_at_checked(len),
            Unit::Line => match rest.iter().position(|byte| *byte == b'\n') {
                Some(newline) => Some((without_return(&rest[..newline]), &rest[newline + 1..])),
                None if rest.is_empty() => None,
                None => Some((rest, &rest[rest.len()..])),
            },
        };
        let Some((unit, behind)) = unit else { break };
        if decoder.decode(unit, &mut out).is_err() {
            break;
        }
        rest = behind;
        taken += 1;
    }
    if out.len() == 0 { 0 } else { taken }
}
