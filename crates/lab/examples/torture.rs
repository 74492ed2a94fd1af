//! Runs the seeds `A..B` (arguments) and prints the summary and the mean time per seed. With `ADMINISTRATOR=1` an
//! administrator acts between the sessions of every seed.

use engine::spec::Sabotage;
use lab::torture::{Campaign, campaign};

fn main() {
    let mut numbers = std::env::args()
        .skip(1)
        .map(|text| text.parse::<u64>().expect("the arguments are two numbers: first seed, end"));
    let (first, end) = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(100));
    #[expect(clippy::disallowed_methods, reason = "the example prints its duration")]
    let started = std::time::Instant::now();
    let with_administrator = std::env::var_os("ADMINISTRATOR").is_some();
    let parameters =
        Campaign { seeds: first..end, time_max: None, threads: 1, sabotage: Sabotage::None, with_administrator };
    let summary = campaign(&parameters, |done| eprintln!("{done} seeds"));
    if let Some(violation) = summary.violation {
        println!("{violation}");
        if std::env::var_os("TRACE").is_some() {
            let again = lab::torture::run(&violation.options, Sabotage::None, seam::sim::TraceMode::Log);
            println!("{}", again.expect_err("the same run breaks the same promise").trace);
        }
    }
    let millis = started.elapsed().as_secs_f64() * 1e3 / (summary.report.seeds.max(1)) as f64;
    println!("{:?}\n{millis:.1} ms a seed", summary.report);
}
