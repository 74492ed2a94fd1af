//! Text of the demo: progress and summary.

use messages::token::LoginLink;

use super::demo_daemon::{DemoDaemon, FLASH_BYTES, MEMORY_BYTES, VOLUME_BYTES};
use super::figures::{Figures, Latency};
use super::summary::Summary;
use super::workload::{DEPTH, HOT_BYTES, HOT_PERCENT, HOTTEST_FRACTION, READ_PERCENT, REQUEST_BYTES};
use terminal::render::bars::bars;
use terminal::render::style::Style;
use terminal::render::table::{Side, Table};
use units::{show_bytes, show_count, show_micros};

/// Samples in the charts at most.
const CHART_SAMPLES_MAX: usize = 60;

/// The line with the link to the web console.
pub fn page(link: &LoginLink) -> String {
    format!("{}  (logs a browser in, once; {} is the page itself)\n", link.link, link.page)
}

/// The introduction.
pub fn intro(style: Style) -> String {
    let array = DemoDaemon::array();
    let clients = format!(
        "Two NBD clients, queue depth {DEPTH}, requests of {}, {READ_PERCENT} % reads; {HOT_PERCENT} % of them go to \
         {} of {}, most of these to {}; half of the hot set moves after a while; no flushes.",
        show_bytes(REQUEST_BYTES),
        show_bytes(HOT_BYTES),
        show_bytes(VOLUME_BYTES),
        show_bytes(HOT_BYTES / HOTTEST_FRACTION),
    );
    format!(
        "{}\nTwo identical arrays, simulated in real time: {}, {} disks ({}). One has {} of memory and two flash \
         devices of {} in front of it.\n{clients}\n",
        style.bold("hotset demo"),
        array.level,
        array.disks,
        array.disk,
        show_bytes(MEMORY_BYTES),
        show_bytes(FLASH_BYTES),
    )
}

/// One sample of both sides.
#[derive(Clone, Copy)]
pub struct Sample {
    /// Seconds since the start.
    pub at_seconds: f64,
    /// The side without a cache.
    pub without: Figures,
    /// The side with the cache.
    pub with: Figures,
    /// Dirty data.
    pub dirty_bytes: u64,
}

/// A sample as one line, for an output that cannot be redrawn.
pub fn line(sample: &Sample) -> String {
    let has_reads = sample.with.read_latency_us.p50 > 0.0;
    let operation = if has_reads { "read" } else { "write" };
    let p50 = |figures: &Figures| {
        let latency = if has_reads { &figures.read_latency_us } else { &figures.write_latency_us };
        show_micros(latency.p50)
    };
    format!(
        "{:5.1} s   without: {:>7} IOPS, {operation} p50 {:>8}   \
         with: {:>7} IOPS, {operation} p50 {:>8}, hits {:>6}, dirty {}",
        sample.at_seconds,
        show_count(sample.without.iops.round() as u64),
        p50(&sample.without),
        show_count(sample.with.iops.round() as u64),
        p50(&sample.with),
        ratio(sample.with.read_hit_ratio),
        show_bytes(sample.dirty_bytes),
    )
}

/// The newest sample, and charts of all, as lines of a screen.
pub fn live(samples: &[Sample], names: [&str; 2], progress: &str, style: Style) -> String {
    let Some(now) = samples.last() else { return String::new() };
    let mut table = Table::new(&[
        ("", Side::Left),
        ("requests/s", Side::Right),
        ("read p50", Side::Right),
        ("p99", Side::Right),
        ("write p50", Side::Right),
        ("p99", Side::Right),
        ("hits", Side::Right),
        ("dirty", Side::Right),
    ]);
    let cells = |name: &str, figures: &Figures, hits: String, dirty: String| {
        let Latency { p50: write_p50, p99: write_p99, .. } = figures.write_latency_us;
        vec![
            name.to_owned(),
            show_count(figures.iops.round() as u64),
            show_micros(figures.read_latency_us.p50),
            show_micros(figures.read_latency_us.p99),
            show_micros(write_p50),
            show_micros(write_p99),
            hits,
            dirty,
        ]
    };
    let hits = if now.without.read_hit_ratio > 0.0 { ratio(now.without.read_hit_ratio) } else { "-".to_owned() };
    table.row(cells(names[0], &now.without, hits, "-".to_owned()));
    table.row(cells(names[1], &now.with, ratio(now.with.read_hit_ratio), show_bytes(now.dirty_bytes)));
    let hits = chart(samples, |sample| sample.with.read_hit_ratio, 1.0);
    let slowest_of = |latency_of: fn(&Sample) -> f64| samples.iter().map(latency_of).fold(0.0, f64::max);
    let read_mean = |sample: &Sample| sample.with.read_latency_us.mean;
    let (operation, mean): (_, fn(&Sample) -> f64) = match slowest_of(read_mean) {
        0.0 => ("write", |sample| sample.with.write_latency_us.mean),
        _ => ("read", read_mean),
    };
    let slowest = slowest_of(mean);
    let latency = chart(samples, mean, slowest);
    let scale = |low: &str, high: String| style.dim(&format!("{low} to {high}"));
    format!(
        "\n{}\nhit ratio     {}  {}\n{:<14}{}  {}\n\n{}\n",
        table.render(style),
        style.good(&hits),
        scale("0", "100 %".to_owned()),
        format!("{operation} latency"),
        style.warn(&latency),
        scale("0", show_micros(slowest)),
        style.dim(progress),
    )
}

fn chart(samples: &[Sample], value: impl Fn(&Sample) -> f64, full: f64) -> String {
    let first = samples.len().saturating_sub(CHART_SAMPLES_MAX);
    bars(samples[first..].iter().map(value), full)
}

/// A ratio in percent.
pub fn ratio(ratio: f64) -> String {
    format!("{:.1} %", ratio * 100.0)
}

/// The summary, both sides beside each other.
pub fn summary(summary: &Summary, style: Style) -> String {
    let Summary { without, with, warm, .. } = summary;
    let mut table = Table::new(&[
        ("", Side::Left),
        ("without cache", Side::Right),
        ("with hotset", Side::Right),
        ("once warm", Side::Right),
        ("gain", Side::Right),
    ]);
    let gain_text = |gain: f64| if gain.is_finite() { format!("{gain:.1} x") } else { "-".to_owned() };
    let count = |value: f64| show_count(value.round() as u64);
    let gain = gain_text(warm.iops / without.iops);
    table.row(vec!["requests per second".to_owned(), count(without.iops), count(with.iops), count(warm.iops), gain]);
    let mut latency_row = |name: &str, value: fn(&Figures) -> f64| {
        let (without_cache, with_cache, warm_cache) = (value(without), value(with), value(warm));
        let cells = [
            show_micros(without_cache),
            show_micros(with_cache),
            show_micros(warm_cache),
            gain_text(without_cache / warm_cache),
        ];
        table.row([vec![name.to_owned()], cells.to_vec()].concat());
    };
    latency_row("read latency, mean", |figures| figures.read_latency_us.mean);
    latency_row("              p50", |figures| figures.read_latency_us.p50);
    latency_row("              p99", |figures| figures.read_latency_us.p99);
    latency_row("write latency, mean", |figures| figures.write_latency_us.mean);
    latency_row("               p50", |figures| figures.write_latency_us.p50);
    latency_row("               p99", |figures| figures.write_latency_us.p99);
    let mut ratio_row = |name: &str, value: fn(&Figures) -> f64| {
        let cells = ["-".to_owned(), ratio(value(with)), ratio(value(warm)), "-".to_owned()];
        table.row([vec![name.to_owned()], cells.to_vec()].concat());
    };
    ratio_row("reads from memory", |figures| figures.read_hit_ratio - figures.flash_hit_ratio);
    ratio_row("reads from flash", |figures| figures.flash_hit_ratio);
    let checked = show_count(without.requests + with.requests);
    format!(
        "\n{}\n{}\nThe p99 of reads is the time of misses, which wait for a disk: it gains less than p50 while more \
         than 1 % of the reads miss.\n\n{} dirty at the end, on the array {:.1} s later. Every read was checked; \
         {checked} requests in {:.0} s.\n",
        style.bold(&format!("{:.0} seconds, \"once warm\" is the last {:.0}", with.seconds, warm.seconds)),
        table.render(style).trim_end(),
        show_bytes(summary.dirty_bytes_at_end),
        summary.drain_seconds,
        with.seconds,
    )
}

#[cfg(test)]
mod tests {
    use insta::assert_snapshot;

    use super::super::summary::Load;
    use super::*;

    fn figures(requests: u64, micros: f64, read_hit_ratio: f64) -> Figures {
        let latency = Latency { mean: micros, p50: micros / 2.0, p99: micros * 4.0 };
        let (read_latency_us, write_latency_us) = (latency, latency);
        Figures {
            seconds: 10.0,
            requests,
            iops: requests as f64 / 10.0,
            read_latency_us,
            write_latency_us,
            read_hit_ratio,
            flash_hit_ratio: read_hit_ratio / 10.0,
        }
    }

    fn sample(second: u64) -> Sample {
        let with = figures(10_000 * second, 20_000.0 / second as f64, second as f64 / 10.0);
        Sample { at_seconds: second as f64, without: figures(7_000, 15_000.0, 0.0), with, dirty_bytes: second << 20 }
    }

    #[test]
    fn live_screen_shows_both_sides_and_the_charts() {
        let samples: Vec<Sample> = (1..=10).map(sample).collect();
        assert_snapshot!(live(&samples, ["without cache", "with hotset"], "10 of 20 s", Style::PLAIN));
        assert_snapshot!(line(&samples[9]));
    }

    #[test]
    fn summary_shows_both_sides_beside_each_other() {
        let (without, with, warm) =
            (figures(7_000, 15_000.0, 0.0), figures(90_000, 1_500.0, 0.9), figures(110_000, 900.0, 0.97));
        let (load, iops_gain) = (Load::of_demo(), warm.iops / without.iops);
        let whole = Summary { load, without, with, warm, iops_gain, dirty_bytes_at_end: 11 << 20, drain_seconds: 0.63 };
        assert_snapshot!(summary(&whole, Style::PLAIN));
    }
}
