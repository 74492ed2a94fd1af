//! Which tier answers, and the answer's columns.

use std::collections::BTreeMap;

use control::report::{FigureReport, HistoryReport, LatencyFigures};
use control::{ErrorKind, Failure};
use engine::TOLD_OCTAVES;

use super::file::{File, Trouble};
use super::point::Point;
use super::rollup::RollUp;
use super::row::points;
use super::series::{Kind, SERIES, Series};
use super::subject::Subject;
use super::tiers::TIERS;

/// Steps of an answer at most: an hour of the finest, and a minute by which a question may be late.
const STEPS_MAX: u64 = 3660;
/// Steps where nothing is said, about: as many as a chart is wide.
const STEPS: u64 = 600;
/// Seconds before now where nothing is said.
const SPAN: u64 = 3600;
/// Seconds by which a question may be late.
const SLACK: u64 = 60;
/// How latencies are asked for, by their place in a point.
const LATENCIES: [(&str, &str); 2] = [("read_latency", "read"), ("write_latency", "write")];

/// What is to be told.
#[derive(Clone, Debug, Default)]
pub struct Question {
    /// Of whom.
    pub subject: Subject,
    /// It is known, even if nothing was noted of it yet.
    pub is_known: bool,
    /// From which second since 1970; an hour before the end without it.
    pub from: Option<u64>,
    /// Up to which; now without it.
    pub to: Option<u64>,
    /// Seconds of a step.
    pub step: Option<u64>,
    /// Which figures; all without any.
    pub series: Vec<String>,
}

/// What a question comes to.
struct Plan {
    tier: usize,
    step: u64,
    from: u64,
    to: u64,
}

/// Answers.
pub fn answer(question: &Question, now: u64, file: Option<&File>, rollup: &RollUp) -> Result<HistoryReport, Failure> {
    let name = &question.subject.line();
    let (series, latencies) = wanted(question)?;
    let plan = plan(question, now, file)?;
    let read = |trouble: Trouble| {
        let text = format!("the history cannot be read: {trouble}; volumes are served all the same");
        Failure::new(ErrorKind::Unavailable, text)
    };
    let (fresh, open) = rollup.fresh(plan.tier, name);
    let is_noted = match file {
        Some(file) => file.knows(name).map_err(read)?,
        None => false,
    };
    let is_another = matches!(&question.subject, Subject::Volume(name) if name.starts_with('/'));
    if is_another || (!question.is_known && !is_noted && fresh.is_empty()) {
        question.subject.unknown().map_or(Ok(()), Err)?;
    }
    let tier = &TIERS[plan.tier];
    let mut rows = match file {
        Some(file) => file.rows(plan.tier, name, plan.from.saturating_sub(2 * tier.row), plan.to).map_err(read)?,
        None => BTreeMap::new(),
    };
    rows.extend(fresh);
    let mut steps: BTreeMap<u64, Point> = BTreeMap::new();
    let mut take = |point: Point| {
        if (plan.from..plan.to).contains(&point.start) {
            let at = point.start - point.start % plan.step;
            match steps.get_mut(&at) {
                Some(sum) => sum.merge(&point),
                None => drop(steps.insert(at, point)),
            }
        }
    };
    for (start, bytes) in &rows {
        // A row that cannot be read is a gap.
        points(*start, tier.step, bytes).unwrap_or_default().into_iter().for_each(&mut take);
    }
    open.into_iter().for_each(&mut take);
    let (volume, datastore) = match question.subject.clone() {
        Subject::Whole => (None, None),
        Subject::Volume(name) => (Some(name), None),
        Subject::Datastore(name) => (None, Some(name)),
    };
    let figure = |at: &usize| (SERIES[*at].name.to_owned(), figures(*at, &steps));
    Ok(HistoryReport {
        volume,
        datastore,
        from_unix_seconds: plan.from,
        to_unix_seconds: plan.to,
        step_seconds: plan.step,
        tier_seconds: tier.step,
        at_unix_seconds: steps.keys().copied().collect(),
        covered_seconds: steps.values().map(|point| point.seconds).collect(),
        series: series.iter().map(figure).collect(),
        latency: latencies.iter().map(|at| (LATENCIES[*at].1.to_owned(), latency(*at, &steps))).collect(),
    })
}

/// The places of the figures and of the latencies that are wanted.
fn wanted(question: &Question) -> Result<(Vec<usize>, Vec<usize>), Failure> {
    let is_there = |series: &Series| question.subject == Subject::Whole || series.is_of_volumes();
    let is_asked = |name: &str| question.series.is_empty() || question.series.iter().any(|asked| asked == name);
    let names = || SERIES.iter().filter(|series| is_there(series)).map(|series| series.name);
    let known: Vec<&str> = names().chain(LATENCIES.map(|(name, _)| name)).collect();
    if let Some(unknown) = question.series.iter().find(|asked| !known.contains(&asked.as_str())) {
        let text = format!("there is no series \"{unknown}\" here; there are {}", known.join(", "));
        return Err(Failure::new(ErrorKind::Invalid, text));
    }
    let of = |at: &usize| is_there(&SERIES[*at]) && is_asked(SERIES[*at].name);
    let latencies = (0..LATENCIES.len()).filter(|at| is_asked(LATENCIES[*at].0)).collect();
    Ok(((0..SERIES.len()).filter(of).collect(), latencies))
}

/// The coarsest tier that is fine enough; a coarser one where the fine ones do not reach back so far.
fn plan(question: &Question, now: u64, file: Option<&File>) -> Result<Plan, Failure> {
    let invalid = |text: String| Failure::new(ErrorKind::Invalid, text);
    // The second that is under way belongs to what was until now.
    let to = question.to.unwrap_or(now + 1).min(now + 1);
    let from = question.from.unwrap_or(to.saturating_sub(SPAN));
    if from >= to {
        return Err(invalid(format!("from is {from} and to is {to}: nothing lies between them")));
    }
    let longest = TIERS.iter().map(|tier| tier.keep).max().unwrap_or(0);
    let from = from.max(now.saturating_sub(longest)).min(to - 1);
    let asked = question.step.unwrap_or_else(|| (to - from).div_ceil(STEPS)).max(1);
    let oldest = |at: usize| file.map_or(0, |file| file.oldest(at, now));
    let fine = TIERS.iter().rposition(|tier| tier.step <= asked).unwrap_or(0);
    let reaches = |at: &usize| oldest(*at) <= from + SLACK || *at == TIERS.len() - 1;
    let tier = (fine..TIERS.len()).find(reaches).unwrap_or(fine);
    let step = asked.div_ceil(TIERS[tier].step) * TIERS[tier].step;
    if (to - from).div_ceil(step) > STEPS_MAX {
        let least = (to - from).div_ceil(STEPS_MAX);
        let text =
            format!("{asked} s a step are more than {STEPS_MAX} steps; ask for {least} s or more, or for less time");
        return Err(invalid(text));
    }
    Ok(Plan { tier, step, from: from - from % step, to })
}

fn figures(at: usize, steps: &BTreeMap<u64, Point>) -> FigureReport {
    let Series { unit, kind, .. } = &SERIES[at];
    let is_counter = *kind == Kind::Counter;
    let values = || steps.values().map(|point| (&point.values[at], point));
    let mean = |(value, point): (&super::point::Value, &Point)| {
        value.sum as f64 / if is_counter { point.seconds } else { point.samples }.max(1) as f64
    };
    FigureReport {
        kind: if is_counter { "counter" } else { "level" }.to_owned(),
        unit: (*unit).to_owned(),
        sum: values().filter(|_| is_counter).map(|(value, _)| value.sum).collect(),
        mean: values().map(mean).collect(),
        min: values().map(|(value, _)| value.min).collect(),
        max: values().map(|(value, _)| value.max).collect(),
    }
}

fn latency(at: usize, steps: &BTreeMap<u64, Point>) -> LatencyFigures {
    let bounds_us: Vec<f64> = TOLD_OCTAVES.iter().map(|octave| (1u64 << octave) as f64 / 1e3).collect();
    let all = || steps.values().map(|point| &point.latencies[at]);
    let part = |part: f64| all().map(|latencies| latencies.percentile_us(part, &bounds_us)).collect();
    let mean = |latencies: &super::point::Latencies| {
        Some(latencies.count()).filter(|count| *count > 0).map(|count| latencies.sum_us as f64 / count as f64)
    };
    LatencyFigures {
        count: all().map(|latencies| latencies.count()).collect(),
        mean_us: all().map(mean).collect(),
        p50_us: part(0.5),
        p99_us: part(0.99),
        p999_us: part(0.999),
        counts: all().map(|latencies| latencies.counts.to_vec()).collect(),
        bounds_us,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn planned(from: u64, to: u64, step: Option<u64>) -> Result<(u64, u64), ErrorKind> {
        let question = Question { from: Some(from), to: Some(to), step, ..Question::default() };
        plan(&question, 10_000_000, None).map(|plan| (TIERS[plan.tier].step, plan.step)).map_err(|failure| failure.kind)
    }

    #[test]
    fn the_tier_follows_the_step_and_the_step_the_time() {
        let now = 10_000_000;
        assert_eq!(planned(now - 600, now, None), Ok((1, 1)));
        assert_eq!(planned(now - 3_600, now, None), Ok((1, 6)));
        assert_eq!(planned(now - 86_400, now, None), Ok((60, 180)));
        assert_eq!(planned(now - 86_400, now, Some(25)), Ok((10, 30)));
        assert_eq!(planned(now - 86_400, now, Some(10)), Err(ErrorKind::Invalid));
        assert_eq!(planned(now, now, None), Err(ErrorKind::Invalid));
        assert_eq!(planned(now + 50, now + 90, None), Err(ErrorKind::Invalid));
        assert_eq!(planned(0, now, None).map(|(tier, _)| tier), Ok(3600));
    }

    #[test]
    fn an_hour_of_the_finest_can_be_asked_for_and_ends_with_the_second_that_is_under_way() {
        let question = Question { from: Some(6_400), step: Some(1), ..Question::default() };
        let plan = plan(&question, 10_000, None);
        assert_eq!(plan.map(|plan| (plan.step, plan.to)).map_err(|failure| failure.message), Ok((1, 10_001)));
    }

    #[test]
    fn where_the_finest_does_not_reach_a_coarser_one_answers() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = File::open(folder.path(), 1 << 30).expect("it opens");
        let now = 100_000_000;
        let of = |ago: u64| {
            let question =
                Question { from: Some(now - ago), to: Some(now - ago + 100), step: Some(1), ..Question::default() };
            plan(&question, now, Some(&file)).map(|plan| plan.step).map_err(|failure| failure.kind)
        };
        assert_eq!((of(3_600), of(80_000), of(2_000_000), of(60_000_000)), (Ok(1), Ok(10), Ok(60), Ok(3_600)));
    }

    #[test]
    fn a_series_that_is_not_there_is_refused_by_name() {
        let ask = |volume: Option<&str>, name: &str| {
            let series = vec![name.to_owned()];
            let subject = volume.map_or(Subject::Whole, |name| Subject::Volume(name.to_owned()));
            wanted(&Question { subject, series, ..Question::default() })
        };
        assert!(ask(None, "volumes").is_ok_and(|(figures, latencies)| figures.len() == 1 && latencies.is_empty()));
        assert!(ask(Some("v"), "volumes").is_err_and(|failure| failure.message.contains("reads, writes")));
        assert!(
            ask(Some("v"), "write_latency").is_ok_and(|(figures, latencies)| figures.is_empty() && latencies == [1])
        );
    }
}
