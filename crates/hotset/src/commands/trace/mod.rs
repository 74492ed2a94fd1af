//! `hotset trace …`: what is in block traces, and other formats for them.

mod convert;
mod info;
mod record;

use std::fs::File;
use std::path::{Path, PathBuf};

use clap::Subcommand;
use trace::{Format, Reader, Request, TraceError};

use terminal::Failure;

/// What may be done with traces.
#[derive(Subcommand)]
pub enum Action {
    /// Count what is in a trace: mix, footprint, sizes, how soon blocks come back
    Info {
        /// The trace; gzip, xz and zstd are taken off
        file: PathBuf,
        #[command(flatten)]
        reading: Reading,
    },
    /// Record what clients ask of a volume while it is served, until time is up or Ctrl-C
    Record {
        /// The volume
        volume: String,
        /// Where to; Hotset's own format, packed, unless its ending says another
        #[arg(long)]
        out: PathBuf,
        /// Stop after so many seconds
        #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
        seconds: Option<u64>,
        /// Move extents of 1 MiB to places that give nothing away; what is in one stays together
        #[arg(long)]
        anonymise: bool,
    },
    /// Write a trace in another format
    Convert {
        /// The trace
        #[arg(value_name = "IN")]
        input: PathBuf,
        /// Where to; an ending of gz, xz or zst packs it
        #[arg(value_name = "OUT")]
        output: PathBuf,
        #[command(flatten)]
        reading: Reading,
        /// What to write: hotset, msr, spc, iolog or lis; without it what OUT's ending says, else hotset
        #[arg(long, value_name = "FORMAT", value_parser = parse_format)]
        to: Option<Format>,
        /// Move extents of 1 MiB to places that give nothing away; what is in one stays together
        #[arg(long)]
        anonymise: bool,
    },
}

/// How a trace is read.
#[derive(clap::Args)]
pub struct Reading {
    /// What it is: vscsi, msr, spc, iolog, blkparse, lis, u32le, mqsim or hotset; without it, what it looks like
    #[arg(long, value_parser = parse_format)]
    format: Option<Format>,
    /// Keep what comes before a broken record instead of failing
    #[arg(long)]
    lenient: bool,
}

fn parse_format(name: &str) -> Result<Format, String> {
    name.parse().map_err(|error: TraceError| error.to_string())
}

/// A trace that is read by a command.
pub struct Source {
    /// What it is called in messages.
    pub name: String,
    reader: Reader,
    lenient: bool,
    /// What ended it before its end, if that was allowed.
    pub broken: Option<String>,
}

impl Source {
    /// Opens a file.
    pub fn open(path: &Path, reading: &Reading) -> Result<Self, Failure> {
        let name = path.display().to_string();
        let file = File::open(path).map_err(|error| Failure::failed(format!("{name}: {error}")))?;
        let reader =
            trace::open(&name, Box::new(file), reading.format).map_err(|error| Failure::failed(error.to_string()))?;
        Ok(Source { name, reader, lenient: reading.lenient, broken: None })
    }

    /// The next request; none at the end, or where the trace breaks and that is allowed.
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

    /// What is known of it besides its requests.
    pub fn reader(&self) -> &Reader {
        &self.reader
    }

    /// Says on standard error what ended it, once it has.
    pub fn warn(&self, requests: u64) {
        if let Some(broken) = &self.broken {
            eprintln!("hotset: {broken}\nhotset: the {requests} requests before that are kept");
        }
    }
}

/// Does what is asked.
pub fn run(socket: Option<&Path>, action: Action, json: bool) -> Result<(), Failure> {
    match action {
        Action::Info { file, reading } => info::run(&file, &reading, json),
        Action::Record { volume, out, seconds, anonymise } => {
            record::run(socket, &volume, &out, seconds, anonymise, json)
        }
        Action::Convert { input, output, reading, to, anonymise } => {
            convert::run(&input, &output, &reading, to, anonymise, json)
        }
    }
}
