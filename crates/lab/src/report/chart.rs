//! A chart over time, as an inline SVG picture: stacked areas or lines.

use std::fmt::Write;
use std::time::Duration;

use crate::markup::escaped;
use messages::unix_time;

const WIDTH: f64 = 920.0;
const HEIGHT: f64 = 240.0;
/// Left, top, right and bottom edges of the plot.
const LEFT: f64 = 84.0;
const TOP: f64 = 12.0;
const RIGHT: f64 = WIDTH - 12.0;
const BOTTOM: f64 = HEIGHT - 32.0;

/// Data of a chart.
pub struct Chart<'a> {
    /// Title for screen readers.
    pub title: &'a str,
    /// Start of each step, in seconds since 1970.
    pub at: &'a [u64],
    /// First and last time of the axis.
    pub span: (u64, u64),
    /// Seconds per step; a larger distance between two steps is a gap without data.
    pub step_seconds: u64,
    /// Name of each series (a class of the page's style) and its values, one per step.
    pub series: &'a [(&'a str, Vec<f64>)],
    /// Draws the series as stacked areas instead of lines.
    pub stacked: bool,
    /// Formats a value of the vertical axis.
    pub show: fn(f64) -> String,
}

impl Chart<'_> {
    /// The SVG picture.
    pub fn draw(&self) -> String {
        let tops = self.tops();
        let top_max = tops.iter().flatten().copied().fold(0.0, f64::max).max(f64::MIN_POSITIVE);
        let y = |value: f64| BOTTOM - (BOTTOM - TOP) * value / top_max;
        let mut picture =
            format!("<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{}\">\n", escaped(self.title));
        // Writing to a string cannot fail, here and below.
        for part in [0.0, 0.5, 1.0] {
            let (at, shown) = (y(top_max * part), (self.show)(top_max * part));
            let _ =
                writeln!(picture, "<line class=\"grid\" x1=\"{LEFT}\" y1=\"{at:.1}\" x2=\"{RIGHT}\" y2=\"{at:.1}\"/>");
            let _ =
                writeln!(picture, "<text class=\"end\" x=\"{:.1}\" y=\"{:.1}\">{shown}</text>", LEFT - 6.0, at + 4.0);
        }
        let (from, to) = self.span;
        for (at, class) in [(from, "begin"), (to, "end")] {
            let shown = unix_time::format(Duration::from_secs(at));
            let _ = writeln!(
                picture,
                "<text class=\"{class}\" x=\"{:.1}\" y=\"{:.1}\">{shown}</text>",
                self.x(at),
                BOTTOM + 20.0
            );
        }
        for run in self.runs() {
            for (number, (name, _)) in self.series.iter().enumerate().rev() {
                let line = |value_at: &dyn Fn(usize) -> f64, at: &mut dyn Iterator<Item = usize>| {
                    at.map(|at| format!("{:.1},{:.1}", self.x(self.at[at]), y(value_at(at))))
                        .collect::<Vec<_>>()
                        .join(" ")
                };
                let top = line(&|at| tops[number][at], &mut run.clone());
                let _ = match self.stacked {
                    true => {
                        let below = |at: usize| if number == 0 { 0.0 } else { tops[number - 1][at] };
                        let bottom = line(&below, &mut run.clone().rev());
                        writeln!(picture, "<polygon class=\"{name}\" points=\"{top} {bottom}\"/>")
                    }
                    false => writeln!(picture, "<polyline class=\"{name}\" points=\"{top}\"/>"),
                };
            }
        }
        picture.push_str("</svg>\n");
        picture
    }

    fn x(&self, at: u64) -> f64 {
        let (from, to) = self.span;
        LEFT + (RIGHT - LEFT) * at.saturating_sub(from) as f64 / to.saturating_sub(from).max(1) as f64
    }

    /// The upper edge of each series.
    fn tops(&self) -> Vec<Vec<f64>> {
        let mut tops: Vec<Vec<f64>> = Vec::new();
        for (_, values) in self.series {
            let below = tops.last().filter(|_| self.stacked);
            tops.push(
                values.iter().enumerate().map(|(at, value)| value + below.map_or(0.0, |below| below[at])).collect(),
            );
        }
        tops
    }

    /// Ranges of consecutive steps without a gap.
    fn runs(&self) -> Vec<std::ops::Range<usize>> {
        let mut runs: Vec<std::ops::Range<usize>> = Vec::new();
        for at in 0..self.at.len() {
            match runs.last_mut() {
                Some(run) if self.at[at] - self.at[at - 1] <= self.step_seconds => run.end = at + 1,
                _ => runs.push(at..at + 1),
            }
        }
        runs
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart<'a>(series: &'a [(&'a str, Vec<f64>)], stacked: bool) -> Chart<'a> {
        let at = &[100, 110, 140, 150];
        Chart {
            title: "a<b",
            at,
            span: (100, 160),
            step_seconds: 10,
            series,
            stacked,
            show: |value| format!("{value}/s"),
        }
    }

    #[test]
    fn areas_are_stacked_and_gaps_stay_gaps() {
        let series = [("memory", vec![1.0, 1.0, 2.0, 2.0]), ("flash", vec![1.0, 1.0, 2.0, 2.0])];
        let picture = chart(&series, true).draw();
        assert_eq!(picture.matches("<polygon").count(), 4, "two layers before the gap, two behind it: {picture}");
        assert!(picture.contains(">4/s<") && picture.contains("aria-label=\"a&lt;b\""), "{picture}");
        let picture = chart(&series, false).draw();
        assert!(picture.matches("<polyline").count() == 4 && picture.contains(">2/s<"), "{picture}");
    }

    #[test]
    fn zeroes_are_drawn_as_a_flat_line() {
        let picture = chart(&[("memory", vec![0.0; 4])], false).draw();
        assert!(!picture.contains("NaN") && !picture.contains("inf"), "{picture}");
    }
}
