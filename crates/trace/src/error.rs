//! What can be wrong with a trace, where, and what to do about it.

use std::fmt;
use std::io;

use crate::formats::Format;

/// Where in a trace, after decompression.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// Of a text, from 1 on.
    Line(u64),
    /// Of a binary file, from 0 on.
    Byte(u64),
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Line(line) => write!(f, "line {line}"),
            Place::Byte(byte) => write!(f, "byte {byte}"),
        }
    }
}

/// Why a trace cannot be read or written, or not further.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// There is nothing in it.
    #[error("{name}: holds nothing; is it the right file, and was it copied whole?")]
    Empty {
        /// The trace.
        name: String,
    },
    /// Neither content nor name fits a format.
    #[error(
        "{name}: neither its beginning nor its name fits a trace format; name one with --format ({})",
        Format::names()
    )]
    Unrecognised {
        /// The trace.
        name: String,
    },
    /// No such format.
    #[error("there is no trace format \"{name}\"; there are {}", Format::names())]
    NoFormat {
        /// What was asked for.
        name: String,
    },
    /// A record that the format does not allow, or an end in the middle of one.
    #[error("{name}, {place}: {what}; {remedy}")]
    Broken {
        /// The trace.
        name: String,
        /// Of the record.
        place: Place,
        /// What is wrong.
        what: String,
        /// What to do.
        remedy: &'static str,
    },
    /// The bytes cannot be had, or not decompressed.
    #[error("{name}, {place}: cannot be read on: {error}; copy it again, or keep what comes before with --lenient")]
    Unreadable {
        /// The trace.
        name: String,
        /// How far it could be read.
        place: Place,
        /// What the system or the decompressor says.
        error: io::Error,
    },
    /// A format that is only read.
    #[error("traces are not written in {format}; write one in hotset, msr, spc, iolog or lis")]
    Unwritable {
        /// What was asked for.
        format: Format,
    },
    /// The bytes cannot be put down.
    #[error("{name}: cannot be written: {error}")]
    Unwritten {
        /// The trace.
        name: String,
        /// What the system or the compressor says.
        error: io::Error,
    },
}
