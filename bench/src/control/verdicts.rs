//! Targets and results of the measurement with observers, and their comparison.

use std::fmt::Write as _;
use std::time::Duration;

use super::observers::{FOLLOWERS, Observers, SCRAPE_PAUSE, VOLUMES_PER_FOLLOWER};
use super::{CLIENTS, CellFigures, PACED_FRACTION, Round, Series, VOLUMES};
use crate::machine;
use crate::paired::{Interval, PAIRS_MIN, Verdict};
use crate::run::median;

/// Acceptable loss at a sustainable rate, at which clients receive all that they request; a smaller loss is noise.
const PACED_LOSS_MAX: f64 = 0.01;
/// Highest acceptable ratio of the 99th percentile of latency at that rate.
const P99_MAX: f64 = 1.1;
/// Acceptable loss of the saturated rate beyond the control threads' fraction of CPU time.
const LOSS_BEYOND_CONTROL: f64 = 0.02;
/// Highest acceptable CPU use of the control threads, as a fraction of a core.
const CONTROL_CPU_MAX: f64 = 0.1;
/// Highest acceptable growth of resident memory, in MiB.
const RESIDENT_MAX_MIB: f64 = 128.0;
/// Highest acceptable duration of a scrape.
const SCRAPE_MAX_MS: f64 = 100.0;

type Figure = fn(&CellFigures) -> f64;

const IOPS: Figure = |cell| cell.load.iops;
const P99: Figure = |cell| cell.load.p99_us;

impl Round {
    /// Formats one line, for progress output and for recalculation.
    pub fn show(&self, rate: Option<f64>) -> String {
        let cells = [("off", &self.off), ("again", &self.off_again), ("on", &self.on)].map(|(name, cell)| {
            format!(
                "{name} {:.0} · {:.0} µs · {:.2} %",
                cell.load.iops,
                cell.load.p99_us,
                cell.control_cpu_fraction * 100.0
            )
        });
        format!("{}: {}", load_name(rate), cells.join(", "))
    }
}

impl Series {
    fn median(&self, cell: fn(&Round) -> &CellFigures, figure: Figure) -> f64 {
        median(&self.rounds.iter().map(|round| figure(cell(round))).collect::<Vec<_>>())
    }

    /// Ratio of a figure with observers to the figure without.
    fn ratio_with_observers(&self, figure: Figure) -> Interval {
        Interval::of_ratio(self.rounds.iter().map(|round| (figure(&round.off), figure(&round.on))))
    }

    /// Ratio of a figure without observers to the other one without, as a control for the accuracy of the measurement.
    fn ratio_without_observers(&self, figure: Figure) -> Interval {
        Interval::of_ratio(self.rounds.iter().map(|round| (figure(&round.off), figure(&round.off_again))))
    }

    /// Mean CPU use of the control threads in a cell, as a fraction of a core.
    fn control_cpu_fraction(&self, cell: fn(&Round) -> &CellFigures) -> f64 {
        self.rounds.iter().map(|round| cell(round).control_cpu_fraction).sum::<f64>() / self.rounds.len() as f64
    }

    /// Target for the ratio of the request rates, and its verdict.
    fn judge_requests(&self) -> (String, Verdict) {
        let ratio = self.ratio_with_observers(IOPS);
        let control_fraction = self.control_cpu_fraction(|round| &round.on) / machine::processors() as f64;
        let (target, loss) = match self.rate {
            Some(_) => (format!("unchanged: at most {:.0} % less", PACED_LOSS_MAX * 100.0), PACED_LOSS_MAX),
            None => {
                let loss = control_fraction + LOSS_BEYOND_CONTROL;
                let (loss_percent, control_percent) = (loss * 100.0, control_fraction * 100.0);
                let beyond_percent = LOSS_BEYOND_CONTROL * 100.0;
                let target = format!(
                    "at most {loss_percent:.2} % less: control's {control_percent:.2} % of the processors' time and \
                     {beyond_percent:.0} points"
                );
                (target, loss)
            }
        };
        (target, ratio.judge_at_least(1.0 - loss))
    }

    fn describe(&self, text: &mut String) {
        let load = load_name(self.rate);
        let mut ratios = |name: &str, unit: &str, figure: Figure, target: &str, verdict: &str| {
            // Writing to a string cannot fail.
            let _ = writeln!(
                text,
                "| {load}: {name} | {:.0}{unit} | {:.0}{unit} | {} | {} | {target} | {verdict} |",
                self.median(|round| &round.off, figure),
                self.median(|round| &round.on, figure),
                self.ratio_with_observers(figure),
                self.ratio_without_observers(figure),
            );
        };
        let (target, verdict) = self.judge_requests();
        ratios("requests per second", "", IOPS, &target, &verdict.to_string());
        match self.rate {
            Some(_) => {
                let target = format!("at most {P99_MAX:.2}");
                ratios("p99", " µs", P99, &target, &self.ratio_with_observers(P99).judge_at_most(P99_MAX).to_string());
            }
            None => ratios("p99", " µs", P99, "", ""),
        }
        let (quiet, busy) =
            (self.control_cpu_fraction(|round| &round.off), self.control_cpu_fraction(|round| &round.on));
        let _ = writeln!(
            text,
            "| {load}: CPU of control, history and events, of a core | {:.2} % | {:.2} % | | | under {:.0} % | {} |",
            quiet * 100.0,
            busy * 100.0,
            CONTROL_CPU_MAX * 100.0,
            Verdict::of(busy < CONTROL_CPU_MAX)
        );
        let Observers { scrapes_ms, scraped_bytes, .. } = &self.observers;
        let longest_ms = scrapes_ms.iter().copied().fold(0.0, f64::max);
        let _ = writeln!(
            text,
            "| {load}: a scrape of {:.1} MB | | {:.0} ms, maximum {longest_ms:.0} ms | | | all under \
             {SCRAPE_MAX_MS:.0} ms | {} |",
            *scraped_bytes as f64 / 1e6,
            median(scrapes_ms),
            Verdict::of(longest_ms < SCRAPE_MAX_MS)
        );
    }
}

/// Name of the load in the report.
fn load_name(rate: Option<f64>) -> String {
    rate.map_or_else(|| "saturated".to_owned(), |_| format!("at {:.0} %", PACED_FRACTION * 100.0))
}

/// Text of the section. The cell `before_observers` ran before the first observer connected.
pub fn describe(
    start_seconds: f64,
    cell_time: Duration,
    before_observers: &CellFigures,
    all_series: &[Series],
) -> String {
    let rounds = all_series.iter().map(|series| series.rounds.len()).min().unwrap_or(0);
    let warning = if rounds < PAIRS_MIN {
        format!(" **{rounds} rounds are too few for bounds of a few percent: {PAIRS_MIN} are needed.**")
    } else {
        String::new()
    };
    let observers_cpu = median(&all_series.iter().map(|series| series.observers.cpu_fraction()).collect::<Vec<_>>());
    let mut text = format!(
        "{VOLUMES} volumes in memory, {CLIENTS} clients with 4 KiB requests to all of them in turn, one in four a \
         write: at {:.0} % of the {:.0} \
         requests per second of the saturated rate, and saturated. Off, off again, and on: with {FOLLOWERS} \
         followers of the stream that read without drawing ({VOLUMES_PER_FOLLOWER} volumes each) and a scrape of \
         `/metrics` every {} s. {rounds} rounds of cells of \
         {} s, in changing order; ratios are the geometric means of the rounds', with their 95 % confidence \
         intervals. *Open*: the bound lies in the \
         interval.{warning}\n\n\
         Clients, observers and daemon share {} processors: the observers themselves take {:.1} % of a core. The \
         daemon continues to record samples for a \
         minute after the last follower has left, so *off* includes a part of the cost of *on*: before the first \
         observer, control took {:.2} % of a \
         core. The daemon was ready {start_seconds:.1} s after its start with volumes that were new to it.\n\n\
         | | off | on | on to off | off again to off | target | |\n| --- | ---: | ---: | ---: | ---: | --- | --- |\n",
        PACED_FRACTION * 100.0,
        before_observers.load.iops,
        SCRAPE_PAUSE.as_secs(),
        cell_time.as_secs(),
        machine::processors(),
        observers_cpu * 100.0,
        before_observers.control_cpu_fraction * 100.0,
    );
    all_series.iter().for_each(|series| series.describe(&mut text));
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    let resident_mib = all_series.iter().flat_map(|series| &series.rounds).map(|round| mib(round.on.resident_bytes));
    let (before, most) = (mib(before_observers.resident_bytes), resident_mib.fold(0.0, f64::max));
    let _ = write!(
        text,
        "| resident memory, including growth by the load | {before:.0} MiB before the first observer | maximum \
         {most:.0} MiB | | | under {RESIDENT_MAX_MIB:.0} MiB more | {} |",
        Verdict::of(most - before < RESIDENT_MAX_MIB)
    );
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::LoadFigures;

    /// Rounds whose cells vary by a percent; with observers, rate and latency are multiplied by these factors.
    fn series(rate: Option<f64>, rate_factor: f64, latency_factor: f64) -> Series {
        let cell = |number: usize, rate_factor: f64, latency_factor: f64| {
            let noise = 1.0 + 0.01 * (number as f64 * 2.4).sin();
            let load = LoadFigures {
                iops: 40_000.0 * rate_factor * noise,
                p99_us: 900.0 * latency_factor / noise,
                max_us: 0.0,
            };
            CellFigures { load, control_cpu_fraction: 0.02, resident_bytes: 1 << 30 }
        };
        let round = |number| Round {
            off: cell(3 * number, 1.0, 1.0),
            off_again: cell(3 * number + 1, 1.0, 1.0),
            on: cell(3 * number + 2, rate_factor, latency_factor),
        };
        let mut observers = Observers::default();
        observers.scrapes_ms.extend([20.0, 30.0]);
        Series { rate, rounds: (0..PAIRS_MIN).map(round).collect(), observers }
    }

    fn table_row(all_series: &[Series], row: &str) -> String {
        let text = describe(1.0, Duration::from_secs(5), &all_series[0].rounds[0].off, all_series);
        text.lines().find(|line| line.starts_with(row)).expect("the table has the row").to_owned()
    }

    #[test]
    fn planted_loss_misses_and_no_loss_passes_with_observers() {
        let all_series = [series(Some(28_000.0), 1.0, 1.0), series(None, 0.98, 1.0)];
        for row in ["| at 70 %: requests", "| at 70 %: p99", "| saturated: requests", "| resident memory"] {
            assert!(table_row(&all_series, row).ends_with("| pass |"), "{}", table_row(&all_series, row));
        }
        let all_series = [series(Some(28_000.0), 0.98, 1.2), series(None, 0.95, 1.0)];
        for row in ["| at 70 %: requests", "| at 70 %: p99", "| saturated: requests"] {
            assert!(table_row(&all_series, row).ends_with("| **fail** |"), "{}", table_row(&all_series, row));
        }
    }

    #[test]
    fn accepted_loss_is_the_control_threads_fraction_plus_two_points() {
        let control_percent = 2.0 / machine::processors() as f64;
        let target = format!("at most {:.2} % less", control_percent + 2.0);
        let row_at = |rate_factor: f64| table_row(&[series(None, rate_factor, 1.0)], "| saturated: requests");
        assert!(row_at(1.0).contains(&target), "{} has no {target}", row_at(1.0));
        assert!(
            row_at(1.0 - (control_percent + 2.0) / 100.0).ends_with("| inconclusive |"),
            "the bound itself lies in the interval"
        );
    }

    #[test]
    fn slow_scrape_busy_control_or_large_memory_misses() {
        let mut all_series = [series(None, 1.0, 1.0)];
        all_series[0].observers.scrapes_ms.push(101.0);
        all_series[0].rounds[7].on.resident_bytes += 129 << 20;
        all_series[0].rounds.iter_mut().for_each(|round| round.on.control_cpu_fraction = 0.11);
        for row in ["| saturated: a scrape", "| saturated: CPU of control", "| resident memory"] {
            assert!(table_row(&all_series, row).ends_with("| **fail** |"), "{}", table_row(&all_series, row));
        }
    }
}
