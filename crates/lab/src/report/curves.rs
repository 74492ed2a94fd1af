//! The curves as a separate SVG picture: hit ratio over cache size, with colours for light and dark mode.

use std::fmt::Write;

use crate::markup::escaped;
use messages::report::{SideAdvice, StepAdvice};

use units::show_bytes;

const WIDTH: f64 = 820.0;
const HEIGHT: f64 = 460.0;
/// Left, top, right and bottom edges of the plot.
const LEFT: f64 = 64.0;
const TOP: f64 = 76.0;
const RIGHT: f64 = WIDTH - 120.0;
const BOTTOM: f64 = HEIGHT - 60.0;

const STYLE: &str = "\
svg { --ground: #ffffff; --ink: #1c2430; --faint: #5d6776; --grid: #e3e7ec; --memory: #0b62c4; --flash: #b4480c; \
font: 13px system-ui, sans-serif; background: var(--ground) }\n\
@media (prefers-color-scheme: dark) { svg { --ground: #14181e; --ink: #e8ecf1; --faint: #9aa5b4; --grid: #2b323c; \
--memory: #6cb0ff; --flash: #ff9d5c } }\n\
.ground { fill: var(--ground) } text { fill: var(--ink) } .faint { fill: var(--faint) } .title { font-size: 17px; \
font-weight: 600 }\n\
.grid { stroke: var(--grid) } .curve { fill: none; stroke-width: 2.5; stroke-linejoin: round } .lru { fill: none; \
stroke-width: 1.5; stroke-dasharray: 3 4 }\n\
.memory { stroke: var(--memory) } .flash { stroke: var(--flash) } circle { fill: var(--ground); stroke-width: 2.5 }\n\
circle.memory.today { fill: var(--memory) } circle.flash.today { fill: var(--flash) } text.memory { fill: \
var(--memory) } text.flash { fill: var(--flash) } text.memory, text.flash { stroke: var(--ground); stroke-width: 4; \
paint-order: stroke } .end { text-anchor: end } .middle { text-anchor: middle }\n";

/// A logarithmic axis of sizes.
struct Axis {
    low: f64,
    high: f64,
}

impl Axis {
    fn of(sides: [&SideAdvice; 2]) -> Axis {
        let sizes = || sides.into_iter().flat_map(|side| &side.steps).map(|step| step.size_bytes as f64);
        let (low, high) = (sizes().fold(f64::MAX, f64::min), sizes().fold(1.0, f64::max));
        Axis { low: low.min(high / 2.0), high }
    }

    fn x(&self, bytes: u64) -> f64 {
        LEFT + (RIGHT - LEFT) * (bytes as f64 / self.low).ln().max(0.0) / (self.high / self.low).ln()
    }

    /// Powers of two, at most about eight of them.
    fn ticks(&self) -> impl Iterator<Item = u64> {
        let (first, last) = (self.low.log2().ceil() as u32, self.high.log2().floor() as u32);
        let step = (last.saturating_sub(first) / 8 + 1) as usize;
        (first..=last.max(first)).step_by(step).map(|power| 1_u64 << power.min(62))
    }
}

fn y(ratio: f64) -> f64 {
    BOTTOM - (BOTTOM - TOP) * ratio.clamp(0.0, 1.0)
}

/// Draws both curves; `title` may be any text.
pub fn draw(title: &str, memory: &SideAdvice, flash: &SideAdvice) -> String {
    let axis = Axis::of([memory, flash]);
    let mut picture = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" width=\"{WIDTH}\" \
         height=\"{HEIGHT}\" role=\"img\">\n\
         <style>\n{STYLE}</style>\n<rect class=\"ground\" width=\"{WIDTH}\" height=\"{HEIGHT}\"/>\n\
         <text class=\"title\" x=\"{LEFT}\" y=\"30\">{}</text>\n\
         <text class=\"faint\" x=\"{LEFT}\" y=\"52\">{}</text>\n",
        escaped(title),
        legend(memory)
    );
    for percent in (0..=100).step_by(20) {
        let line_y = y(f64::from(percent) / 100.0);
        line(&mut picture, (LEFT, line_y), (RIGHT, line_y));
        text(&mut picture, "faint end", (LEFT - 8.0, line_y + 4.0), &format!("{percent} %"));
    }
    for size in axis.ticks() {
        let line_x = axis.x(size);
        line(&mut picture, (line_x, TOP), (line_x, BOTTOM));
        text(&mut picture, "faint middle", (line_x, BOTTOM + 20.0), &show_bytes(size));
    }
    text(&mut picture, "faint middle", ((LEFT + RIGHT) / 2.0, BOTTOM + 44.0), "size of the cache");
    let name_heights = name_heights(memory, flash);
    for (name, side, height) in [("memory", memory, name_heights.0), ("flash", flash, name_heights.1)] {
        curve(&mut picture, name, side, &axis);
        text(&mut picture, name, (RIGHT + 10.0, height), name);
    }
    picture.push_str("</svg>\n");
    picture
}

/// Legend of the picture.
fn legend(memory: &SideAdvice) -> &'static str {
    match memory.today {
        Some(_) => {
            "Share of hits, by the size of the cache. Ring: knee, beyond which more cache gains less. Dot: today."
        }
        None => {
            "Share of hits, by the size of the cache. Dashed: an LRU's. Ring: knee, beyond which more cache gains less."
        }
    }
}

/// Vertical positions of the names at the ends of the curves, far enough apart to be readable.
fn name_heights(memory: &SideAdvice, flash: &SideAdvice) -> (f64, f64) {
    let end = |side: &SideAdvice| side.steps.last().map_or(BOTTOM, |step| y(1.0 - step.miss_ratio)) + 4.0;
    let (memory, flash) = (end(memory), end(flash));
    if (memory - flash).abs() >= 16.0 {
        return (memory, flash);
    }
    let middle = (memory + flash) / 2.0;
    if memory < flash { (middle - 8.0, middle + 8.0) } else { (middle + 8.0, middle - 8.0) }
}

fn curve(picture: &mut String, name: &str, side: &SideAdvice, axis: &Axis) {
    let points = |ratio: fn(&StepAdvice) -> f64| {
        side.steps
            .iter()
            .map(|step| format!("{:.1},{:.1}", axis.x(step.size_bytes), y(1.0 - ratio(step))))
            .collect::<Vec<_>>()
            .join(" ")
    };
    // A live volume has only the LRU curve.
    let lru = points(|step| step.lru_miss_ratio);
    let curve = points(|step| step.miss_ratio);
    for (class, points) in [("lru", &lru), ("curve", &curve)].into_iter().skip(usize::from(lru == curve)) {
        writeln!(picture, "<polyline class=\"{class} {name}\" points=\"{points}\"/>")
            .expect("writing to a string cannot fail");
    }
    if let Some(today) = side.today.filter(|today| today.size_bytes > 0) {
        let (x, y) = (axis.x(today.size_bytes).min(RIGHT), y(today.hit_ratio));
        writeln!(picture, "<circle class=\"{name} today\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"5\"/>")
            .expect("writing to a string cannot fail");
        text(picture, &format!("{name} middle"), (x, y + if name == "memory" { 20.0 } else { -12.0 }), "today");
    }
    if let Some(step) = side.knee() {
        let (x, y) = (axis.x(step.size_bytes), y(1.0 - step.miss_ratio));
        writeln!(picture, "<circle class=\"{name}\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"5\"/>")
            .expect("writing to a string cannot fail");
        let (label, above) = (show_bytes(step.size_bytes), if name == "memory" { 24.0 } else { -14.0 });
        text(picture, &format!("{name} middle"), (x, y + above), &label);
    }
}

fn line(picture: &mut String, from: (f64, f64), to: (f64, f64)) {
    let ((x1, y1), (x2, y2)) = (from, to);
    writeln!(picture, "<line class=\"grid\" x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\"/>")
        .expect("writing to a string cannot fail");
}

fn text(picture: &mut String, class: &str, at: (f64, f64), content: &str) {
    let (x, y) = at;
    writeln!(picture, "<text class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\">{}</text>", escaped(content))
        .expect("writing to a string cannot fail");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn side(sizes: &[(u64, f64)], knee: Option<usize>) -> SideAdvice {
        let step = |(size_bytes, hits): &(u64, f64)| StepAdvice {
            size_bytes: *size_bytes,
            hit_ratio: *hits,
            miss_ratio: 1.0 - hits,
            lru_miss_ratio: 1.0 - hits / 2.0,
            latency_us: 1.0,
            saved_spindles: None,
        };
        let knee_bytes = knee.map(|at| sizes[at].0);
        SideAdvice { steps: sizes.iter().map(step).collect(), knee_bytes, ..SideAdvice::default() }
    }

    #[test]
    fn picture_has_both_curves_their_knees_and_both_colour_modes() {
        let memory = side(&[(1 << 20, 0.1), (8 << 20, 0.7), (64 << 20, 0.75)], Some(1));
        let flash = side(&[(1 << 20, 0.3), (64 << 20, 0.74)], None);
        let picture = draw("a<b & c", &memory, &flash);
        assert!(picture.contains("a&lt;b &amp; c") && picture.contains("prefers-color-scheme: dark"));
        assert_eq!(picture.matches("<polyline").count(), 4);
        assert_eq!(picture.matches("<circle").count(), 1);
        assert!(picture.contains(">8 MiB<") && !picture.contains("NaN"));
    }

    #[test]
    fn trace_of_one_block_is_drawn() {
        let one = || side(&[(4_096, 0.0)], None);
        let picture = draw("one", &one(), &one());
        assert!(!picture.contains("NaN") && !picture.contains("inf"), "{picture}");
    }
}
