//! Alerts as the commands show them.

use std::time::Duration;

use messages::report::{AlertReport, SilenceReport};
use messages::unix_time;

use super::style::Style;
use super::table::{Side, Table};

/// The acknowledgement and the silence of an alert, a phrase each.
pub fn annotations(alert: &AlertReport) -> Vec<String> {
    let acknowledgement =
        alert.acknowledged.as_ref().map(|mark| format!("acknowledged by {} at {}", mark.by, time(mark.at_unix_ms)));
    acknowledgement.into_iter().chain(alert.silenced.as_ref().map(silence)).collect()
}

/// A silence in words.
pub fn silence(SilenceReport { by, until_unix_ms, reason, .. }: &SilenceReport) -> String {
    let reason = reason.as_ref().map_or(String::new(), |reason| format!(": {reason}"));
    format!("silenced by {by} until {}{reason}", time(*until_unix_ms))
}

/// The active alerts with their identifiers, and the silences of alerts that are not active.
pub fn list(alerts: &[AlertReport], silences: &[SilenceReport], style: Style) -> String {
    let inactive = silences.iter().filter(|silence| alerts.iter().all(|alert| alert.id != silence.id));
    let mut table =
        Table::new(&[("alert", Side::Left), ("severity", Side::Left), ("since", Side::Left), ("state", Side::Left)]);
    let mut is_empty = true;
    for alert in alerts {
        let annotations = annotations(alert);
        let state = if annotations.is_empty() { "active".to_owned() } else { annotations.join("; ") };
        let severity = alert.severity.name().to_owned();
        table.row(vec![alert.id.clone(), severity, time(alert.since_unix_ms), state]);
        is_empty = false;
    }
    for silenced in inactive {
        table.row(vec![
            silenced.id.clone(),
            "-".to_owned(),
            "-".to_owned(),
            format!("not active; {}", silence(silenced)),
        ]);
        is_empty = false;
    }
    if is_empty { "no active alerts\n".to_owned() } else { table.render(style) }
}

fn time(unix_ms: u64) -> String {
    unix_time::format(Duration::from_millis(unix_ms))
}

#[cfg(test)]
mod tests {
    use messages::report::{AlertAcknowledgement, AlertKind};

    use super::*;

    #[test]
    fn list_shows_acknowledgements_and_silences_of_inactive_alerts() {
        let alert = |kind: AlertKind, id: &str| AlertReport {
            id: id.to_owned(),
            kind,
            severity: kind.severity(),
            since_unix_ms: 1_795_326_300_000,
            ..AlertReport::default()
        };
        let silence = |id: &str, reason: Option<&str>| SilenceReport {
            id: id.to_owned(),
            by: "user root".to_owned(),
            until_unix_ms: 1_795_326_360_000,
            reason: reason.map(str::to_owned),
        };
        let mut hung = alert(AlertKind::BackingHung, "backing-hung:web01");
        hung.acknowledged = Some(AlertAcknowledgement { by: "token ops".to_owned(), at_unix_ms: 1_795_326_301_000 });
        let mut single = alert(AlertKind::SingleCopy, "single-copy");
        single.silenced = Some(silence("single-copy", Some("new drive")));
        let alerts = [hung, single, alert(AlertKind::NoCopy, "no-copy")];
        let silences = [silence("single-copy", Some("new drive")), silence("endurance:/dev/x", None)];
        let text = list(&alerts, &silences, Style::PLAIN);
        let lines: Vec<String> =
            text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
        assert_eq!(
            lines,
            [
                "alert severity since state",
                "backing-hung:web01 critical 2026-11-22T05:45:00Z acknowledged by token ops at 2026-11-22T05:45:01Z",
                "single-copy warning 2026-11-22T05:45:00Z silenced by user root until 2026-11-22T05:46:00Z: new drive",
                "no-copy critical 2026-11-22T05:45:00Z active",
                "endurance:/dev/x - - not active; silenced by user root until 2026-11-22T05:46:00Z",
            ]
        );
        assert_eq!(list(&[], &[], Style::PLAIN), "no active alerts\n");
    }
}
