//! `hotset job …`: long operations in progress.

use std::path::Path;

use clap::Subcommand;
use messages::report::JobReport;
use messages::{Answer, Request};

use super::daemon::{send_request, unexpected};
use terminal::render::style::Style;
use terminal::render::table::{Side, Table};
use terminal::{Failure, print_json};
use units::show_bytes;

/// The subcommands.
#[derive(Subcommand)]
pub enum Action {
    /// List jobs: flushes of volumes, changes of the flash devices
    List,
    /// Cancel a job
    Cancel {
        /// ID from `hotset job list`
        id: String,
    },
}

/// Sends the request and prints the answer.
pub fn run(socket: Option<&Path>, action: Action, json: bool) -> Result<(), Failure> {
    let request = match action {
        Action::List => Request::JobList {},
        Action::Cancel { id } => Request::JobCancel { id },
    };
    match send_request(socket, &request)? {
        Answer::Jobs(jobs) if json => print_json(&jobs),
        Answer::Said(said) if json => print_json(&said),
        Answer::Flash(report) if json => print_json(&report),
        Answer::Jobs(jobs) => {
            terminal::render::print(&table(&jobs, Style::of_stdout()));
            Ok(())
        }
        Answer::Said(said) => {
            said.iter().for_each(|line| println!("{}", messages::plain(line)));
            Ok(())
        }
        // The devices are unchanged; `flash list` shows them.
        Answer::Flash(_) => Ok(()),
        _ => Err(unexpected()),
    }
}

fn table(jobs: &[JobReport], style: Style) -> String {
    if jobs.is_empty() {
        return "no jobs in progress\n".to_owned();
    }
    let mut table = Table::new(&[
        ("job", Side::Left),
        ("operation", Side::Left),
        ("subject", Side::Left),
        ("done", Side::Right),
        ("total", Side::Right),
        ("time left", Side::Right),
    ]);
    for job in jobs {
        let time_left = match (job.paused, job.left_seconds) {
            (true, _) => "paused".to_owned(),
            (false, left) => left.map_or_else(|| "-".to_owned(), |seconds| format!("{seconds} s")),
        };
        let (done, total) = (show_bytes(job.done_bytes), show_bytes(job.total_bytes));
        table.row(vec![job.id.clone(), job.kind.to_string(), job.subject.clone(), done, total, time_left]);
    }
    table.render(style)
}
