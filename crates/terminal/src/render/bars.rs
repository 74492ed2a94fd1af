//! A series of values as a line of small bars.

const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// A bar for each of `values`; the value `full` gives a bar of full height.
pub fn bars(values: impl Iterator<Item = f64>, full: f64) -> String {
    let bar = |value: f64| {
        let fraction = if full > 0.0 { value / full } else { 0.0 };
        BARS[((fraction * BARS.len() as f64) as usize).min(BARS.len() - 1)]
    };
    values.map(bar).collect()
}
