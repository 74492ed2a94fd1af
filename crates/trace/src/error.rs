//! Errors of traces, with their position and a remedy.

use std::io;

use crate::position::Position;

/// Error of reading or writing a trace.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// The trace is empty.
    #[error("{name}: the file is empty; check that it is the right file and that the copy is complete")]
    Empty {
        /// Name of the trace.
        name: String,
    },
    /// Neither content nor name matches a format.
    #[error("{name}: neither content nor name matches a trace format; specify one with --format ({formats})")]
    Unrecognised {
        /// Name of the trace.
        name: String,
        /// Names of all formats.
        formats: String,
    },
    /// Unknown format name.
    #[error("there is no trace format \"{name}\"; there are {formats}")]
    NoFormat {
        /// The requested name.
        name: String,
        /// Names of all formats.
        formats: String,
    },
    /// An invalid or incomplete record.
    #[error("{name}, {place}: {error}; {remedy}")]
    Broken {
        /// Name of the trace.
        name: String,
        /// Position of the record.
        place: Position,
        /// The error.
        error: String,
        /// The remedy.
        remedy: &'static str,
    },
    /// Reading or decompressing failed.
    #[error(
        "{name}, {place}: cannot be read further: {error}; copy it again, or keep what comes before with --lenient"
    )]
    Unreadable {
        /// Name of the trace.
        name: String,
        /// Position of the failure.
        place: Position,
        /// Error of the operating system or the decompressor.
        error: io::Error,
    },
    /// The format can be read only.
    #[error("traces cannot be written in {format}; write one in hotset, msr, spc, iolog or lis")]
    Unwritable {
        /// The requested format.
        format: String,
    },
    /// Writing failed.
    #[error("{name}: cannot be written: {error}")]
    Unwritten {
        /// Name of the trace.
        name: String,
        /// Error of the operating system or the compressor.
        error: io::Error,
    },
}
