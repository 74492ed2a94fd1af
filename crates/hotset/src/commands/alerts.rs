//! `hotset alerts …`: a test of the alert channels.

use std::path::Path;

use clap::Subcommand;
use messages::report::ChannelTestReport;
use messages::{Answer, Request, plain};

use super::daemon::{send_request, unexpected};
use terminal::{Failure, print_json};

/// The subcommands.
#[derive(Subcommand)]
pub enum Action {
    /// Send a test message through each configured channel, and show the answers; fails if one does not accept it
    Test,
}

/// Sends the request and prints the answer.
pub fn run(socket: Option<&Path>, action: Action, json: bool) -> Result<(), Failure> {
    let request = match action {
        Action::Test => Request::AlertsTest {},
    };
    match send_request(socket, &request)? {
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
