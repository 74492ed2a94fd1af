//! `hotset trace …`: examines, converts and records block traces.

mod convert;
mod info;
mod record;

use std::fs::File;
use std::path::{Path, PathBuf};

use clap::Subcommand;
use trace::{Format, Reader, Request, TraceError};

use terminal::Failure;
use units::show_counted;

/// The subcommands.
#[derive(Subcommand)]
pub enum Action {
    /// Show statistics of a trace: request mix, footprint, sizes, reuse of blocks
    Info {
        /// The trace; gzip, xz and zstd are decompressed
        file: PathBuf,
        #[command(flatten)]
        read_options: ReadOptions,
    },
    /// Record the client requests to a volume in service, for a given time or until Ctrl-C
    Record {
        /// The volume
        volume: String,
        /// The file to write; Hotset's own format, compressed, unless its suffix selects another format
        #[arg(long)]
        out: PathBuf,
        /// Stop after this number of seconds
        #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
        seconds: Option<u64>,
        /// Anonymize: move extents of 1 MiB to random offsets; the layout inside an extent is kept
        #[arg(long)]
        anonymise: bool,
    },
    /// Convert a trace to another format
    Convert {
        /// The trace
        #[arg(value_name = "IN")]
        input: PathBuf,
        /// The file to write; a suffix gz, xz or zst compresses it
        #[arg(value_name = "OUT")]
        output: PathBuf,
        #[command(flatten)]
        read_options: ReadOptions,
        /// Format to write: hotset, msr, spc, iolog or lis; default: by OUT's suffix, else hotset
        #[arg(long, value_name = "FORMAT", value_parser = parse_format)]
        to: Option<Format>,
        /// Anonymize: move extents of 1 MiB to random offsets; the layout inside an extent is kept
        #[arg(long)]
        anonymise: bool,
    },
}

/// Options for reading a trace.
#[derive(clap::Args)]
pub struct ReadOptions {
    /// Format of the trace: vscsi, msr, spc, iolog, blkparse, lis, u32le, mqsim or hotset; detected by default
    #[arg(long, value_parser = parse_format)]
    format: Option<Format>,
    /// Accept a trace with a broken record; use the requests before it
    #[arg(long)]
    lenient: bool,
}

fn parse_format(name: &str) -> Result<Format, String> {
    name.parse().map_err(|error: TraceError| error.to_string())
}

/// A trace that a command reads.
pub struct Source {
    /// Name of the trace in messages.
    pub name: String,
    reader: Reader,
    lenient: bool,
    /// The error that ended the trace early, if lenient.
    pub broken: Option<String>,
}

impl Source {
    /// Opens a file.
    pub fn open(path: &Path, read_options: &ReadOptions) -> Result<Self, Failure> {
        let name = path.display().to_string();
        let file = File::open(path).map_err(|error| Failure::failed(format!("{name}: {error}")))?;
        let reader = trace::open(&name, Box::new(file), read_options.format)
            .map_err(|error| Failure::failed(error.to_string()))?;
        Ok(Source { name, reader, lenient: read_options.lenient, broken: None })
    }

    /// The next request; `None` at the end, and at a broken record if lenient.
    pub fn next(&mut self) -> Result<Option<Request>, Failure> {
        match self.reader.next() {
            None => Ok(None),
            Some(Ok(request)) => Ok(Some(request)),
            Some(Err(error)) if self.lenient => {
                self.broken = Some(error.to_string());
                Ok(None)
            }
            Some(Err(error)) => Err(Failure::failed(error.to_string())),
        }
    }

    /// The reader, for properties other than the requests.
    pub fn reader(&self) -> &Reader {
        &self.reader
    }

    /// Prints the error that ended the trace early on standard error.
    pub fn warn(&self, requests: u64) {
        if let Some(broken) = &self.broken {
            let before = show_counted(requests, "earlier request");
            eprintln!("hotset: {broken}\nhotset: using {before}");
        }
    }
}

/// Runs the subcommand.
pub fn run(socket: Option<&Path>, action: Action, json: bool) -> Result<(), Failure> {
    match action {
        Action::Info { file, read_options } => info::run(&file, &read_options, json),
        Action::Record { volume, out, seconds, anonymise } => {
            record::run(socket, &volume, &out, seconds, anonymise, json)
        }
        Action::Convert { input, output, read_options, to, anonymise } => {
            convert::run(&input, &output, &read_options, to, anonymise, json)
        }
    }
}
