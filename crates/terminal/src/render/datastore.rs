//! `datastore list` and `show`: congestion, and the volumes' usage and waits.

use std::time::Duration;

use messages::report::{DatastoreReport, EpisodeReport};
use messages::unix_time;

use super::screen::plural;
use super::style::Style;
use super::table::{Side, Table};
use units::{show_count, show_micros};

/// Maximum number of congestion episodes shown.
const EPISODES_SHOWN: usize = 8;

/// A table of datastores.
pub fn table(datastores: &[DatastoreReport], style: Style) -> String {
    if datastores.is_empty() {
        return "no datastores; add [[datastore]] to the configuration, and name it in [[volume]]\n".to_owned();
    }
    let mut table = Table::new(&[
        ("datastore", Side::Left),
        ("state", Side::Left),
        ("latency", Side::Right),
        ("threshold", Side::Right),
        ("accesses/s", Side::Right),
        ("peak/s", Side::Right),
        ("volumes", Side::Right),
        ("in queue", Side::Right),
        ("congested time", Side::Right),
    ]);
    for datastore in datastores {
        let waiting: u64 = datastore.members.iter().map(|member| member.waiting).sum();
        table.row(vec![
            datastore.name.clone(),
            state(datastore).to_owned(),
            show_micros(datastore.latency_ms * 1e3),
            threshold(datastore),
            show_count(datastore.accesses_per_second.round() as u64),
            peak_rate(datastore),
            datastore.members.len().to_string(),
            show_count(waiting),
            format!("{:.0} s", datastore.congested_seconds_total),
        ]);
    }
    table.render(style)
}

fn state(datastore: &DatastoreReport) -> &'static str {
    if datastore.congested { "congested" } else { "normal" }
}

fn threshold(datastore: &DatastoreReport) -> String {
    let suffix = if datastore.threshold_is_automatic { " (auto)" } else { "" };
    show_micros(datastore.threshold_ms * 1e3) + suffix
}

/// The datastore's highest rate while congested, which estimates its capability.
fn peak_rate(datastore: &DatastoreReport) -> String {
    datastore.peak_accesses_per_second.map_or("-".to_owned(), |rate| show_count(rate.round() as u64))
}

/// The page of one datastore.
pub fn page(datastore: &DatastoreReport, style: Style) -> String {
    let state_text = if datastore.congested { style.warn(state(datastore)) } else { style.good(state(datastore)) };
    let mut text = format!("{}  {state_text}\n\n", style.bold(&datastore.name));
    let window = datastore.window.map_or("-".to_owned(), |window| format!("{window:.1}"));
    let (episode_count, seconds) = (datastore.congestion_episodes, datastore.congested_seconds_total);
    for (name, value) in [
        ("latency", format!("{}, congested above {}", show_micros(datastore.latency_ms * 1e3), threshold(datastore))),
        ("accesses/s", show_count(datastore.accesses_per_second.round() as u64)),
        ("peak/s", peak_rate(datastore)),
        ("outstanding", format!("{:.1} of {window}", datastore.outstanding)),
        (
            "congested",
            format!("{} episode{}, {seconds:.0} s in total", show_count(episode_count), plural(episode_count)),
        ),
    ] {
        text += &format!("  {}  {value}\n", style.dim(&format!("{name:<18}")));
    }
    if !datastore.members.is_empty() {
        text += &format!("\n{}", members(datastore, style));
    }
    if !datastore.episodes.is_empty() {
        text += &format!("\n{}", episodes(&datastore.episodes, style));
    }
    text
}

fn members(datastore: &DatastoreReport, style: Style) -> String {
    let mut table = Table::new(&[
        ("volume", Side::Left),
        ("shares", Side::Right),
        ("reserved", Side::Right),
        ("entitled", Side::Right),
        ("used", Side::Right),
        ("accesses", Side::Right),
        ("waits", Side::Right),
        ("wait time", Side::Right),
        ("in queue", Side::Right),
    ]);
    for member in &datastore.members {
        let percent = |ratio: f64| format!("{:.1} %", ratio * 100.0);
        table.row(vec![
            member.volume.clone(),
            show_count(member.shares.into()),
            if member.reservation_iops == 0 { "-".to_owned() } else { show_count(member.reservation_iops) },
            percent(member.entitled_ratio),
            percent(member.used_ratio),
            show_count(member.accesses.round() as u64),
            show_count(member.waits),
            show_micros(member.waited_us as f64),
            show_count(member.waiting),
        ]);
    }
    table.render(style)
}

/// The latest congestion episodes, the newest first.
fn episodes(episodes: &[EpisodeReport], style: Style) -> String {
    let mut table = Table::new(&[
        ("congested from", Side::Left),
        ("duration", Side::Right),
        ("caused by", Side::Left),
        ("volumes in contention", Side::Left),
    ]);
    for episode in episodes.iter().rev().take(EPISODES_SHOWN) {
        let duration = |ended: u64| format!("{} s", ended.saturating_sub(episode.began_unix_seconds));
        table.row(vec![
            unix_time::format(Duration::from_secs(episode.began_unix_seconds)),
            episode.ended_unix_seconds.map_or("ongoing".to_owned(), duration),
            episode.caused_by.clone(),
            episode.contenders.join(", "),
        ]);
    }
    table.render(style)
}
