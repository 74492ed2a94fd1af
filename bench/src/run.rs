//! Interleaved rounds: every server runs once per round, so that slowdowns of the machine affect all of them.

use std::io;

use crate::cells::Cell;
use crate::fio;
use crate::servers::{Kind, Server};

/// Number and duration of the runs.
#[derive(Clone, Copy, Debug)]
pub struct Effort {
    /// Rounds per cell.
    pub rounds: usize,
    /// Seconds per run.
    pub seconds: u32,
    /// Bytes that the clients use.
    pub size_bytes: u64,
}

/// CPU that a client is bound to; servers are bound beforehand.
pub type ClientProcessor = Option<usize>;

/// Figures of one run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sample {
    /// Requests per second.
    pub iops: f64,
    /// Median latency in microseconds.
    pub median_us: f64,
    /// CPU time of the server per request, in microseconds.
    pub cpu_us: f64,
}

/// All runs of one cell: a row per server, a sample per round.
pub struct Measured {
    /// The measured cell.
    pub cell: Cell,
    /// Servers with their samples per round.
    pub rows: Vec<(Kind, Vec<Sample>)>,
}

impl Measured {
    /// The samples of `kind`, if it was measured.
    pub fn of(&self, kind: Kind) -> Option<&[Sample]> {
        self.rows.iter().find(|(row, _)| *row == kind).map(|(_, samples)| samples.as_slice())
    }

    /// Median over the rounds of `kind`'s rate relative to the best of `others` in the same round.
    pub fn ratio(&self, kind: Kind, others: &[Kind]) -> Option<f64> {
        let mine = self.of(kind)?;
        let others: Vec<_> = others.iter().filter_map(|other| self.of(*other)).collect();
        let best = |round: usize| others.iter().map(|samples| samples[round].iops).reduce(f64::max);
        let ratios: Option<Vec<f64>> =
            mine.iter().enumerate().map(|(round, sample)| best(round).map(|best| sample.iops / best)).collect();
        ratios.map(|ratios| median(&ratios))
    }
}

/// Median; the mean of the middle two for an even count, NaN for no values.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let half = sorted.len() / 2;
    match sorted.len() {
        0 => f64::NAN,
        odd if odd % 2 == 1 => sorted[half],
        _ => (sorted[half - 1] + sorted[half]) / 2.0,
    }
}

/// Measures `cell` on all `servers`, interleaved round by round.
pub fn measure(cell: &Cell, servers: &[Server], effort: Effort, client: ClientProcessor) -> io::Result<Measured> {
    let mut rows: Vec<(Kind, Vec<Sample>)> = servers.iter().map(|server| (server.kind, Vec::new())).collect();
    for _ in 0..effort.rounds {
        for (server, (_, samples)) in servers.iter().zip(&mut rows) {
            let cpu = || server.process.as_ref().map_or(0.0, |process| process.cpu_us());
            let before = cpu();
            let outcome = fio::run(cell, &server.target, effort.size_bytes, effort.seconds, client)?;
            let cpu_us = (cpu() - before) / outcome.requests;
            samples.push(Sample { iops: outcome.iops, median_us: outcome.median_us, cpu_us });
        }
    }
    let shown: Vec<String> = rows
        .iter()
        .map(|(kind, samples)| {
            let iops: Vec<f64> = samples.iter().map(|sample| sample.iops).collect();
            format!("{} {:.0}", kind.name(), median(&iops))
        })
        .collect();
    eprintln!("{}: {}", cell.name, shown.join(", "));
    Ok(Measured { cell: *cell, rows })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cells::HITS;

    fn samples(iops: [f64; 3]) -> Vec<Sample> {
        iops.map(|iops| Sample { iops, median_us: 1.0, cpu_us: 1.0 }).to_vec()
    }

    #[test]
    fn ratio_is_the_median_against_the_best_other_per_round() {
        let rows = vec![
            (Kind::Hotset, samples([90.0, 100.0, 50.0])),
            (Kind::NullServerSeam, samples([100.0, 80.0, 100.0])),
            (Kind::NullServerThreads, samples([80.0, 125.0, 10.0])),
        ];
        let measured = Measured { cell: HITS[0], rows };
        assert_eq!(measured.ratio(Kind::Hotset, &[Kind::NullServerSeam, Kind::NullServerThreads]), Some(0.8));
        assert_eq!(measured.ratio(Kind::Hotset, &[Kind::Nbdkit]), None);
    }

    #[test]
    fn median_is_the_middle_value() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
        assert!(median(&[]).is_nan());
    }
}
