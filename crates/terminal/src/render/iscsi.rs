//! The iSCSI target and its sessions.

use messages::report::{IscsiReport, IscsiSessionReport};

use super::screen::plural;
use super::style::Style;
use super::table::{Side, Table};
use units::{show_bytes, show_count, show_micros};

/// The target in a line.
pub fn target(report: &IscsiReport, style: Style) -> String {
    let count = report.sessions.len() as u64;
    format!(
        "{}  {} on {}, {count} session{}{}\n",
        style.bold("iscsi  "),
        report.target,
        report.portals.join(", "),
        plural(count),
        match report.failed_logins {
            0 => String::new(),
            failed => format!(", {} failed login{}", show_count(failed), plural(failed)),
        }
    )
}

/// A table of sessions; empty if there are none.
pub fn sessions(report: &IscsiReport, style: Style) -> String {
    if report.sessions.is_empty() {
        return String::new();
    }
    let mut table = Table::new(&[
        ("initiator", Side::Left),
        ("portal", Side::Left),
        ("features", Side::Left),
        ("commands", Side::Right),
        ("outstanding", Side::Right),
        ("aborted", Side::Right),
        ("read", Side::Right),
        ("written", Side::Right),
        ("slowest, last hour", Side::Left),
    ]);
    for session in &report.sessions {
        let slowest =
            session.slowest.first().map(|slow| format!("{} {}", slow.command, show_micros(slow.took_us as f64)));
        table.row(vec![
            name(session),
            session.portal.clone(),
            features(session),
            show_count(session.commands),
            show_count(session.commands_in_flight),
            show_count(session.aborted),
            show_bytes(session.read_bytes),
            show_bytes(session.write_bytes),
            slowest.unwrap_or_else(|| "-".to_owned()),
        ]);
    }
    format!("\n{}", table.render(style))
}

fn name(session: &IscsiSessionReport) -> String {
    match session.alias.as_str() {
        "" => session.initiator.clone(),
        alias => format!("{} ({alias})", session.initiator),
    }
}

/// Negotiated features of a session: authentication and digests.
fn features(session: &IscsiSessionReport) -> String {
    let features = [
        (session.discovery, "discovery"),
        (session.authenticated, "CHAP"),
        (session.header_digest, "header digest"),
        (session.data_digest, "data digest"),
    ];
    let features: Vec<&str> =
        features.iter().filter(|(is_negotiated, _)| *is_negotiated).map(|(_, name)| *name).collect();
    if features.is_empty() { "-".to_owned() } else { features.join(", ") }
}

#[cfg(test)]
mod tests {
    use messages::report::SlowCommandReport;

    use super::*;

    #[test]
    fn session_is_a_row_with_its_identifying_fields() {
        let slowest = vec![SlowCommandReport { ago_ms: 1, command: "WRITE".to_owned(), lun: Some(0), took_us: 2_500 }];
        let session = IscsiSessionReport {
            initiator: "iqn.1998-01.com.vmware:esx1".to_owned(),
            alias: "esx1".to_owned(),
            portal: "10.0.0.5:3260".to_owned(),
            authenticated: true,
            data_digest: true,
            commands: 7,
            slowest,
            ..IscsiSessionReport::default()
        };
        let sessions = vec![session];
        let report = IscsiReport { target: "iqn.a:b".to_owned(), failed_logins: 1, sessions, ..IscsiReport::default() };
        let text = super::sessions(&report, Style::PLAIN);
        for expected in ["iqn.1998-01.com.vmware:esx1 (esx1)", "10.0.0.5:3260", "CHAP, data digest", "WRITE 2.50 ms"] {
            assert!(text.contains(expected), "{expected}: {text}");
        }
        assert!(target(&report, Style::PLAIN).ends_with(", 1 session, 1 failed login\n"));
        assert_eq!(super::sessions(&IscsiReport::default(), Style::PLAIN), "");
    }
}
