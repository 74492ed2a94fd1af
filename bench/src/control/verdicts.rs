//! What was wanted, what was seen, and whether it is the same.

use std::fmt::Write as _;
use std::time::Duration;

use super::audience::{Audience, FOLLOWED, FOLLOWERS, SCRAPE_PAUSE};
use super::{CLIENTS, Cell, PART, Round, Series, VOLUMES};
use crate::machine;
use crate::paired::{Interval, PAIRS_WANTED, Verdict};
use crate::run::median;

/// At a rate that it can serve, clients get all that they ask for: what is lost below this is noise.
const UNCHANGED: f64 = 0.01;
/// How much longer the slowest hundredth of requests may take at that rate.
const P99_MAX: f64 = 1.1;
/// What of the saturated rate may be lost beyond control's share of the processors' time.
const LOSS_BEYOND_SHARE: f64 = 0.02;
/// Of a core: less than this is wanted of control.
const CONTROL_MAX: f64 = 0.1;
/// Less than this is wanted of its memory, in MiB.
const RESIDENT_MAX_MIB: f64 = 128.0;
/// Every scrape is to take less.
const SCRAPE_MAX_MS: f64 = 100.0;

type Figure = fn(&Cell) -> f64;

const IOPS: Figure = |cell| cell.seen.iops;
const P99: Figure = |cell| cell.seen.p99_us;

impl Round {
    /// One line, for whoever waits or counts again.
    pub fn show(&self, rate: Option<f64>) -> String {
        let cells = [("off", &self.off), ("again", &self.again), ("on", &self.on)].map(|(name, cell)| {
            format!("{name} {:.0} · {:.0} µs · {:.2} %", cell.seen.iops, cell.seen.p99_us, cell.control * 100.0)
        });
        format!("{}: {}", load_of(rate), cells.join(", "))
    }
}

impl Series {
    fn median(&self, cell: fn(&Round) -> &Cell, figure: Figure) -> f64 {
        median(&self.rounds.iter().map(|round| figure(cell(round))).collect::<Vec<_>>())
    }

    /// Of a figure with an audience to the one without.
    fn watched(&self, figure: Figure) -> Interval {
        Interval::of_ratio(self.rounds.iter().map(|round| (figure(&round.off), figure(&round.on))))
    }

    /// Of a figure without an audience to the one without, which shows what the measurement itself can tell apart.
    fn same(&self, figure: Figure) -> Interval {
        Interval::of_ratio(self.rounds.iter().map(|round| (figure(&round.off), figure(&round.again))))
    }

    /// What of a core control used with an audience, or without.
    fn control(&self, cell: fn(&Round) -> &Cell) -> f64 {
        self.rounds.iter().map(|round| cell(round).control).sum::<f64>() / self.rounds.len() as f64
    }

    /// What is wanted of the requests' ratio, and whether it is so.
    fn requests(&self) -> (String, Verdict) {
        let (ratio, share) = (self.watched(IOPS), self.control(|round| &round.on) / machine::processors() as f64);
        let (wanted, loss) = match self.rate {
            Some(_) => (format!("unchanged: {:.0} % less at most", UNCHANGED * 100.0), UNCHANGED),
            None => {
                let loss = share + LOSS_BEYOND_SHARE;
                let (loss_percent, share_percent, beyond) = (loss * 100.0, share * 100.0, LOSS_BEYOND_SHARE * 100.0);
                let wanted = format!(
                    "{loss_percent:.2} % less at most: control's {share_percent:.2} % of the processors' time and {beyond:.0} points"
                );
                (wanted, loss)
            }
        };
        (wanted, ratio.at_least(1.0 - loss))
    }

    fn describe(&self, text: &mut String) {
        let load = load_of(self.rate);
        let mut ratios = |name: &str, unit: &str, figure: Figure, wanted: &str, verdict: &str| {
            // Writing to a string cannot fail.
            let _ = writeln!(
                text,
                "| {load}: {name} | {:.0}{unit} | {:.0}{unit} | {} | {} | {wanted} | {verdict} |",
                self.median(|round| &round.off, figure),
                self.median(|round| &round.on, figure),
                self.watched(figure),
                self.same(figure),
            );
        };
        let (wanted, verdict) = self.requests();
        ratios("requests a second", "", IOPS, &wanted, &verdict.to_string());
        match self.rate {
            Some(_) => {
                let wanted = format!("{P99_MAX:.2} at most");
                ratios("p99", " µs", P99, &wanted, &self.watched(P99).at_most(P99_MAX).to_string());
            }
            None => ratios("p99", " µs", P99, "", ""),
        }
        let (quiet, busy) = (self.control(|round| &round.off), self.control(|round| &round.on));
        let _ = writeln!(
            text,
            "| {load}: control, history, events, of a core | {:.2} % | {:.2} % | | | under {:.0} % | {} |",
            quiet * 100.0,
            busy * 100.0,
            CONTROL_MAX * 100.0,
            Verdict::of(busy < CONTROL_MAX)
        );
        let Audience { scrapes_ms, scraped_bytes, .. } = &self.audience;
        let most_ms = scrapes_ms.iter().copied().fold(0.0, f64::max);
        let _ = writeln!(
            text,
            "| {load}: a scrape of {:.1} MB | | {:.0} ms, {most_ms:.0} ms at most | | | all under {SCRAPE_MAX_MS:.0} ms | {} |",
            *scraped_bytes as f64 / 1e6,
            median(scrapes_ms),
            Verdict::of(most_ms < SCRAPE_MAX_MS)
        );
    }
}

fn load_of(rate: Option<f64>) -> String {
    rate.map_or_else(|| "saturated".to_owned(), |_| format!("at {:.0} %", PART * 100.0))
}

/// The section's text; `alone` is a cell from before anybody looked.
pub fn describe(start_seconds: f64, time: Duration, alone: &Cell, all: &[Series]) -> String {
    let rounds = all.iter().map(|series| series.rounds.len()).min().unwrap_or(0);
    let few = if rounds < PAIRS_WANTED {
        format!(" **{rounds} rounds are too few for bounds of a few percent: {PAIRS_WANTED} are wanted.**")
    } else {
        String::new()
    };
    let used = median(&all.iter().map(|series| series.audience.share()).collect::<Vec<_>>());
    let mut text = format!(
        "{VOLUMES} volumes in memory, {CLIENTS} clients that ask 4 KiB at a time of all of them in turn, one in four a write: at {:.0} % of the {:.0} \
         requests a second that they get when they ask as fast as they can, and as fast as they can. Off, off again, and on: with {FOLLOWERS} \
         followers of the stream who read and do not draw ({FOLLOWED} volumes each) and a scrape of `/metrics` every {} s. {rounds} rounds of cells of \
         {} s, in changing order; ratios are the geometric means of the rounds', with their 95 % confidence intervals. *Open*: the bound lies in the \
         interval.{few}\n\n\
         Clients, audience and daemon share {} processors: the audience itself takes {:.1} % of a core. The daemon goes on writing samples down for a \
         minute after the last follower has left, so *off* has a part of what *on* costs: before anybody had looked, control took {:.2} % of a \
         core. The daemon was ready {start_seconds:.1} s after its start with volumes that it did not know.\n\n\
         | | off | on | on to off | off again to off | wanted | |\n| --- | ---: | ---: | ---: | ---: | --- | --- |\n",
        PART * 100.0,
        alone.seen.iops,
        SCRAPE_PAUSE.as_secs(),
        time.as_secs(),
        machine::processors(),
        used * 100.0,
        alone.control * 100.0,
    );
    all.iter().for_each(|series| series.describe(&mut text));
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    let watched = all.iter().flat_map(|series| &series.rounds).map(|round| mib(round.on.resident_bytes));
    let (before, most) = (mib(alone.resident_bytes), watched.fold(0.0, f64::max));
    let _ = write!(
        text,
        "| resident memory, what the load adds included | {before:.0} MiB before anybody looked | {most:.0} MiB at most | | | under {RESIDENT_MAX_MIB:.0} MiB more | {} |",
        Verdict::of(most - before < RESIDENT_MAX_MIB)
    );
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::Seen;

    /// Rounds whose cells go up and down by a percent, with `part` of the rate while somebody looks.
    fn series(rate: Option<f64>, part: f64, late: f64) -> Series {
        let cell = |number: usize, part: f64, late: f64| {
            let noise = 1.0 + 0.01 * (number as f64 * 2.4).sin();
            let seen = Seen { iops: 40_000.0 * part * noise, p99_us: 900.0 * late / noise };
            Cell { seen, control: 0.02, resident_bytes: 1 << 30 }
        };
        let round = |number| Round {
            off: cell(3 * number, 1.0, 1.0),
            again: cell(3 * number + 1, 1.0, 1.0),
            on: cell(3 * number + 2, part, late),
        };
        let mut audience = Audience::default();
        audience.scrapes_ms.extend([20.0, 30.0]);
        Series { rate, rounds: (0..PAIRS_WANTED).map(round).collect(), audience }
    }

    fn told(all: &[Series], row: &str) -> String {
        let text = describe(1.0, Duration::from_secs(5), &all[0].rounds[0].off, all);
        text.lines().find(|line| line.starts_with(row)).expect("it has the row").to_owned()
    }

    #[test]
    fn a_planted_loss_misses_and_nobodys_audience_passes() {
        let all = [series(Some(28_000.0), 1.0, 1.0), series(None, 0.98, 1.0)];
        for row in ["| at 70 %: requests", "| at 70 %: p99", "| saturated: requests", "| resident memory"] {
            assert!(told(&all, row).ends_with("| pass |"), "{}", told(&all, row));
        }
        let all = [series(Some(28_000.0), 0.98, 1.2), series(None, 0.95, 1.0)];
        for row in ["| at 70 %: requests", "| at 70 %: p99", "| saturated: requests"] {
            assert!(told(&all, row).ends_with("| **miss** |"), "{}", told(&all, row));
        }
    }

    #[test]
    fn the_loss_that_is_let_pass_is_controls_part_of_all_processors_and_two_points() {
        let share = 2.0 / machine::processors() as f64;
        let wanted = format!("{:.2} % less at most", share + 2.0);
        let at = |part: f64| told(&[series(None, part, 1.0)], "| saturated: requests");
        assert!(at(1.0).contains(&wanted), "{} has no {wanted}", at(1.0));
        assert!(at(1.0 - (share + 2.0) / 100.0).ends_with("| open |"), "the bound itself lies in the interval");
    }

    #[test]
    fn what_is_too_slow_or_too_large_misses() {
        let mut all = [series(None, 1.0, 1.0)];
        all[0].audience.scrapes_ms.push(101.0);
        all[0].rounds[7].on.resident_bytes += 129 << 20;
        all[0].rounds.iter_mut().for_each(|round| round.on.control = 0.11);
        for row in ["| saturated: a scrape", "| saturated: control", "| resident memory"] {
            assert!(told(&all, row).ends_with("| **miss** |"), "{}", told(&all, row));
        }
    }
}
