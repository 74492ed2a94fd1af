//! `hotset alerts …`: list, acknowledge and silence alerts, and test the alert channels.

use std::path::Path;
use std::time::Duration;

use clap::Subcommand;
use messages::report::ChannelTestReport;
use messages::{Answer, Request, plain};

use super::daemon::{send_request, unexpected};
use terminal::render::alerts::{list, silence};
use terminal::render::style::Style;
use terminal::{Failure, print_json};
use units::parse_time;

/// The subcommands.
#[derive(Subcommand)]
pub enum Action {
    /// List active alerts and silences, with the IDs for the other commands
    List,
    /// Acknowledge an active alert: it stays listed, with who did so and when
    Ack {
        /// ID from `hotset alerts list`
        id: String,
    },
    /// Send no messages about an alert for a time; it stays listed. The alert need not be active
    Silence {
        /// ID from `hotset alerts list`: its kind, and after a colon its subject
        id: String,
        /// Duration, up to 30 days: 30min, 2h, 7d
        #[arg(long = "for", value_name = "TIME", value_parser = parse_time)]
        time: Duration,
        /// Reason that is shown with the alert
        #[arg(long, value_name = "TEXT")]
        reason: Option<String>,
    },
    /// End the silence of an alert
    Unsilence {
        /// ID from `hotset alerts list`
        id: String,
    },
    /// Send a test message through each configured channel, and show the answers; fails if one does not accept it
    Test,
}

/// Sends the request and prints the answer.
pub fn run(socket: Option<&Path>, action: Action, json: bool) -> Result<(), Failure> {
    let request = match action {
        Action::List => Request::Status {},
        Action::Ack { id } => Request::AlertAcknowledge { id },
        Action::Silence { id, time, reason } => {
            // Rounds up to whole seconds.
            let seconds = time.as_secs() + u64::from(time.subsec_nanos() > 0);
            Request::AlertSilence { id, seconds, reason }
        }
        Action::Unsilence { id } => Request::AlertUnsilence { id },
        Action::Test => Request::AlertsTest {},
    };
    match send_request(socket, &request)? {
        Answer::Status(status) if json => {
            print_json(&serde_json::json!({ "alerts": status.active_alerts, "silences": status.silences }))
        }
        Answer::Status(status) => {
            terminal::render::print(&list(&status.active_alerts, &status.silences, Style::of_stdout()));
            Ok(())
        }
        Answer::Alert(alert) if json => print_json(&alert),
        Answer::Alert(alert) => {
            println!("{}: acknowledged", plain(&alert.id));
            Ok(())
        }
        Answer::Silence(report) if json => print_json(&report),
        Answer::Silence(report) => {
            println!("{}: {}", plain(&report.id), plain(&silence(&report)));
            Ok(())
        }
        Answer::Said(said) if json => print_json(&said),
        Answer::Said(said) => {
            said.iter().for_each(|line| println!("{}", plain(line)));
            Ok(())
        }
        Answer::AlertsTested(reports) => show_test(&reports, json),
        _ => Err(unexpected()),
    }
}

fn show_test(reports: &[ChannelTestReport], json: bool) -> Result<(), Failure> {
    if json {
        print_json(&reports)?;
    } else {
        reports.iter().for_each(|report| println!("{}", test_line(report)));
    }
    let failed = reports.iter().filter(|report| report.error.is_some()).count();
    match failed {
        0 => Ok(()),
        // The lines above have the reasons.
        _ => Err(Failure::failed(format!("{failed} of {} channels did not accept the test", reports.len()))),
    }
}

fn test_line(ChannelTestReport { channel, to, error }: &ChannelTestReport) -> String {
    let result = error.as_ref().map_or("accepted".to_owned(), |error| format!("failed: {error}"));
    plain(&format!("{} to {to}: {result}", channel.name())).into_owned()
}

#[cfg(test)]
mod tests {
    use messages::report::AlertChannel;

    use super::*;

    #[test]
    fn line_of_a_test_has_the_channel_and_the_receivers_answer() {
        let report = |error: Option<&str>| ChannelTestReport {
            channel: AlertChannel::Mail,
            to: "a@example.com through mail.example:465".to_owned(),
            error: error.map(str::to_owned),
        };
        assert_eq!(test_line(&report(None)), "mail to a@example.com through mail.example:465: accepted");
        let refused = test_line(&report(Some("it answered 535 no\u{1b}")));
        assert!(refused.ends_with(": failed: it answered 535 no\\u{1b}"), "{refused}");
    }
}
