//! `hotset workload`: runs named patterns, IOMeter's files and fio's job files on a live volume through NBD.

mod live;

use std::path::Path;

use clap::Subcommand;
use lab::workload::{Pace, Spec, catalogue, file};
use serde::Serialize;

use live::{Figures, StepFigures};
use terminal::{Failure, print_json};
use units::show_counted;

/// The subcommands.
#[derive(Subcommand)]
pub enum Action {
    /// List the named workloads
    List,
    /// Run a workload on an NBD export; writes overwrite its data
    Run {
        /// A name, or a file: IOMeter's .icf, or a fio job file
        spec: String,
        /// The export: nbd://host:port/export or nbd+unix:///export?socket=/path
        #[arg(long, value_name = "URI")]
        to: String,
        /// Duration of each step; overrides the durations of the workload
        #[arg(long, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
        seconds: Option<u64>,
        /// Queue depth of each job, instead of its own
        #[arg(long, value_parser = clap::value_parser!(u32).range(1..=4096))]
        depth: Option<u32>,
        /// Seed of all random numbers
        #[arg(long, default_value_t = 1)]
        seed: u64,
    },
}

/// Duration of a step without a time.
const DEFAULT_STEP_SECONDS: u64 = 30;

#[derive(Serialize)]
struct WorkloadListing {
    name: &'static str,
    title: &'static str,
}

#[derive(Serialize)]
struct Report<'a> {
    workload: &'a str,
    to: &'a str,
    seed: u64,
    steps: &'a [StepFigures],
}

/// Runs the command.
pub fn run(action: Action, json: bool) -> Result<(), Failure> {
    match action {
        Action::List => list(json),
        Action::Run { spec, to, seconds, depth, seed } => {
            let target = to.parse().map_err(|error: live::TargetError| Failure::usage(error.to_string()))?;
            let source = Source::open(&spec)?;
            let build = move |size_bytes: u64, block_bytes: u32| -> Result<Spec, Failure> {
                let mut spec = source.build(size_bytes)?;
                spec.steps.iter_mut().for_each(|step| {
                    let time = seconds.map(seam::Nanos::from_secs).or(step.time);
                    step.time = Some(time.unwrap_or(seam::Nanos::from_secs(DEFAULT_STEP_SECONDS)));
                });
                if let Some(depth) = depth {
                    spec.jobs_mut().filter(|job| job.pace == Pace::ClosedLoop).for_each(|job| job.depth = depth);
                }
                let checked = spec.check(size_bytes, block_bytes);
                checked.map_err(|error| Failure::usage(format!("{}: {error}", spec.name)))?;
                Ok(spec)
            };
            let steps = live::run(target, build, seed, move |step| {
                if !json {
                    print!("{}", step_text(step));
                }
            })?;
            if json {
                print_json(&Report { workload: &spec, to: &to, seed, steps: &steps })?;
            }
            let errors: u64 = steps.iter().map(|step| step.all.errors).sum();
            let failed = format!("{} failed", show_counted(errors, "request"));
            if errors > 0 { Err(Failure::failed(failed)) } else { Ok(()) }
        }
    }
}

fn list(json: bool) -> Result<(), Failure> {
    if json {
        let listed = catalogue::ALL.iter().map(|named| WorkloadListing { name: named.name, title: named.title });
        return print_json(&listed.collect::<Vec<_>>());
    }
    for named in catalogue::ALL {
        println!("{:16} {}", named.name, named.title);
    }
    Ok(())
}

/// The workload before the volume's size is known.
enum Source {
    Name(String),
    File { name: String, text: String },
}

impl Source {
    fn open(spec: &str) -> Result<Source, Failure> {
        if catalogue::ALL.iter().any(|named| named.name == spec) {
            return Ok(Source::Name(spec.to_owned()));
        }
        if !Path::new(spec).exists() {
            let names: Vec<_> = catalogue::ALL.iter().map(|named| named.name).collect();
            let text = format!("\"{spec}\" is neither a file nor a workload; known workloads: {}", names.join(", "));
            return Err(Failure::usage(text));
        }
        let text = std::fs::read_to_string(spec).map_err(|error| Failure::failed(format!("{spec}: {error}")))?;
        Ok(Source::File { name: spec.to_owned(), text })
    }

    fn build(&self, size_bytes: u64) -> Result<Spec, Failure> {
        match self {
            Source::Name(name) => Ok(catalogue::find(name, size_bytes).expect("the name is in the catalogue")),
            Source::File { name, text } => {
                file::parse(name, text, size_bytes).map_err(|error| Failure::usage(format!("{name}: {error}")))
            }
        }
    }
}

/// A step as text: a line, and a line for each job if there are several.
fn step_text(step: &StepFigures) -> String {
    let line = |name: &str, indent: usize, figures: &Figures| {
        let Figures { iops, mb_s, read_ratio, mean_us, p99_us, errors, .. } = figures;
        let errors = if *errors > 0 { format!(", {errors} FAILED") } else { String::new() };
        format!(
            "{:indent$}{name:width$} {iops:>9.0}/s {mb_s:>8.1} MB/s, {:.0} % reads, mean {:.3} ms, \
             p99 {:.3} ms{errors}\n",
            "",
            read_ratio * 100.0,
            mean_us / 1e3,
            p99_us / 1e3,
            width = 20 - indent,
        )
    };
    let mut text = line(&step.name, 0, &step.all);
    if step.jobs.len() > 1 {
        text.extend(step.jobs.iter().map(|(name, figures)| line(name, 2, figures)));
    }
    text
}
