//! `hotset lab`: published tests reproduced in virtual time.

mod destage;

use std::path::{Path, PathBuf};

use clap::Subcommand;
use lab::scenario::{self, Outcome, Scenario, report};
use serde::Serialize;
use serde_json::{Map, Value, json};

use terminal::{Failure, print_json};

/// The subcommands.
#[derive(Subcommand)]
pub enum Action {
    /// List the scenarios
    List,
    /// Run one scenario or all scenarios
    Run {
        /// The scenario's name
        #[arg(required_unless_present = "all", conflicts_with = "all")]
        scenario: Option<String>,
        /// Run all scenarios
        #[arg(long)]
        all: bool,
        /// Seed of all random numbers
        #[arg(long, default_value_t = 1)]
        seed: u64,
        /// Write report.html, and JSON and CSV files of each scenario, into this directory
        #[arg(long, value_name = "DIR")]
        out: Option<PathBuf>,
    },
    /// Compare orders and paces of destage (Hotset, WOW, ACP, ALRU) on a model of a write cache
    Destage(destage::Options),
}

#[derive(Serialize)]
struct ScenarioListing {
    name: &'static str,
    title: &'static str,
    source: &'static str,
    setting: &'static str,
}

/// Runs the command.
pub fn run(action: Action, json: bool) -> Result<(), Failure> {
    match action {
        Action::List => list(json),
        Action::Run { scenario, seed, out, .. } => {
            let selected: Vec<&Scenario> = match &scenario {
                None => scenario::ALL.iter().collect(),
                Some(name) => vec![find(name)?],
            };
            run_scenarios(&selected, seed, out.as_deref(), json)
        }
        Action::Destage(options) => destage::run(&options, json),
    }
}

/// The scenario of that name.
pub fn find(name: &str) -> Result<&'static Scenario, Failure> {
    scenario::find(name).ok_or_else(|| {
        let names: Vec<_> = scenario::ALL.iter().map(|scenario| scenario.name).collect();
        Failure::usage(format!("unknown scenario \"{name}\"; known scenarios: {}", names.join(", ")))
    })
}

fn list(json: bool) -> Result<(), Failure> {
    if json {
        let listed = |scenario: &Scenario| ScenarioListing {
            name: scenario.name,
            title: scenario.title,
            source: scenario.source,
            setting: scenario.setting,
        };
        return print_json(&scenario::ALL.iter().map(listed).collect::<Vec<_>>());
    }
    for scenario in scenario::ALL {
        println!("{:20} {}\n{:20} {}", scenario.name, scenario.title, "", scenario.source);
    }
    Ok(())
}

fn run_scenarios(selected: &[&'static Scenario], seed: u64, out: Option<&Path>, json: bool) -> Result<(), Failure> {
    if let Some(folder) = out {
        std::fs::create_dir_all(folder).map_err(|error| cannot_write(folder, &error))?;
    }
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let runs = scenario::run_all(selected, seed, threads, |scenario, outcome| {
        if !json {
            print!("{}", report::text(scenario, outcome));
        }
    });
    if let Some(folder) = out {
        write_all(folder, &runs, seed)?;
    }
    if json {
        let mut results: Vec<Value> =
            runs.iter().map(|(scenario, outcome)| result_json(scenario, outcome, seed)).collect();
        print_json(&if results.len() == 1 { results.remove(0) } else { Value::Array(results) })?;
    }
    let failed: Vec<_> =
        runs.iter().filter(|(_, outcome)| !outcome.passed()).map(|(scenario, _)| scenario.name).collect();
    match (failed.is_empty(), json) {
        (true, _) => Ok(()),
        (false, true) => Err(Failure::failed("")),
        (false, false) => Err(Failure::failed(format!("not all checks passed: {}", failed.join(", ")))),
    }
}

fn write_all(folder: &Path, runs: &[(&'static Scenario, Outcome)], seed: u64) -> Result<(), Failure> {
    let write = |name: String, content: String| {
        let path = folder.join(name);
        std::fs::write(&path, content).map_err(|error| cannot_write(&path, &error))
    };
    for (scenario, outcome) in runs {
        let text = serde_json::to_string_pretty(&result_json(scenario, outcome, seed));
        write(format!("{}.json", scenario.name), text.expect("figures and names can be serialized") + "\n")?;
        write(format!("{}.csv", scenario.name), report::csv(outcome))?;
    }
    let pages: Vec<_> = runs.iter().map(|(scenario, outcome)| (*scenario, outcome)).collect();
    write("report.html".to_owned(), report::html(&pages))
}

fn cannot_write(path: &Path, error: &std::io::Error) -> Failure {
    Failure::failed(format!("cannot write {}: {error}", path.display()))
}

/// A scenario's result. `series` is the first run, which is the run with the cache; `runs` has all runs.
fn result_json(scenario: &Scenario, outcome: &Outcome, seed: u64) -> Value {
    let points = |series: &scenario::Series| -> Vec<Value> {
        let point = |point: &scenario::Point| {
            let mut columns = Map::new();
            columns.insert("minute".to_owned(), json!(point.minute));
            for (name, _, value) in report::COLUMNS {
                columns.insert(name.to_owned(), json!(value(point)));
            }
            Value::Object(columns)
        };
        series.points.iter().map(point).collect()
    };
    let checks = outcome.checks.iter().map(|check| {
        json!({ "name": check.name, "value": check.value, "low": check.low, "high": check.high, "source": check.source,
            "passed": check.passed() })
    });
    let runs = outcome.series.iter().map(|series| json!({ "name": series.name, "series": points(series) }));
    json!({
        "scenario": scenario.name, "seed": seed, "passed": outcome.passed(), "checks": checks.collect::<Vec<_>>(),
        "series": outcome.series.first().map(points).unwrap_or_default(), "runs": runs.collect::<Vec<_>>(),
        "notes": outcome.notes, "setting": scenario.setting
    })
}
