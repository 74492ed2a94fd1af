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
    pub step_starts: &'a [u64],
    /// First and last time of the axis.
    pub span: (u64, u64),
    /// Seconds per step; a larger distance between two steps is a gap without data.
    pub step_seconds: u64,
    /// Name of each series (a class of the page's style) and its values, one per step.
    pub series: &'a [(&'a str, Vec<f64>)],
    /// Draws the series as stacked areas instead of lines.
    pub stacked: bool,
    /// Formats a value of the vertical axis.
    pub format_value: fn(f64) -> String,
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
        for fraction in [0.0, 0.5, 1.0] {
            let (line_y, label) = (y(top_max * fraction), (self.format_value)(top_max * fraction));
            let _ = writeln!(
                picture,
                "<line class=\"grid\" x1=\"{LEFT}\" y1=\"{line_y:.1}\" x2=\"{RIGHT}\" y2=\"{line_y:.1}\"/>"
            );
            let _ = writeln!(
                picture,
                "<text class=\"end\" x=\"{:.1}\" y=\"{:.1}\">{label}</text>",
                LEFT - 6.0,
                line_y + 4.0
            );
        }
        let (from, to) = self.span;
        for (seconds, class) in [(from, "begin"), (to, "end")] {
            let label = unix_time::format(Duration::from_secs(seconds));
            let _ = writeln!(
                picture,
                "<text class=\"{class}\" x=\"{:.1}\" y=\"{:.1}\">{label}</text>",
                self.x(seconds),
                BOTTOM + 20.0
            );
        }
        for run in self.runs() {
            for (number, (name, _)) in self.series.iter().enumerate().rev() {
                let line = |value_of: &dyn Fn(usize) -> f64, steps: &mut dyn Iterator<Item = usize>| {
                    steps
                        .map(|step| format!("{:.1},{:.1}", self.x(self.step_starts[step]), y(value_of(step))))
                        .collect::<Vec<_>>()
                        .join(" ")
                };
                let top = line(&|step| tops[number][step], &mut run.clone());
                let _ = match self.stacked {
                    true => {
                        let below = |step: usize| if number == 0 { 0.0 } else { tops[number - 1][step] };
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

    /// Horizontal position of a time in seconds since 1970.
    fn x(&self, seconds: u64) -> f64 {
        let (from, to) = self.span;
        LEFT + (RIGHT - LEFT) * seconds.saturating_sub(from) as f64 / to.saturating_sub(from).max(1) as f64
    }

    /// The upper edge of each series.
    fn tops(&self) -> Vec<Vec<f64>> {
        let mut tops: Vec<Vec<f64>> = Vec::new();
        for (_, values) in self.series {
            let below = tops.last().filter(|_| self.stacked);
            tops.push(
                values.iter().enumerate().map(|(step, value)| value + below.map_or(0.0, |below| below[step])).collect(),
            );
        }
        tops
    }

    /// Ranges of consecutive steps without a gap.
    fn runs(&self) -> Vec<std::ops::Range<usize>> {
        let mut runs: Vec<std::ops::Range<usize>> = Vec::new();
        for step in 0..self.step_starts.len() {
            match runs.last_mut() {
                Some(run) if self.step_starts[step] - self.step_starts[step - 1] <= self.step_seconds => {
                    run.end = step + 1;
                }
                _ => runs.push(step..step + 1),
            }
        }
        runs
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart<'a>(series: &'a [(&'a str, Vec<f64>)], stacked: bool) -> Chart<'a> {
        let step_starts = &[100, 110, 140, 150];
        Chart {
            title: "a<b",
            step_starts,
            span: (100, 160),
            step_seconds: 10,
            series,
            stacked,
            format_value: |value| format!("{value}/s"),
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
