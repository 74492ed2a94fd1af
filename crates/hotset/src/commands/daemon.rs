//! Requests to the running daemon, with progress.

use std::io::{IsTerminal, Write};
use std::path::Path;

use control::{Client, ClientError};
use messages::{Answer, ErrorKind, Progress, Request};

use config::control_socket;
use terminal::Failure;
use units::show_bytes;

/// Connects to the daemon at `socket`, or at the default socket.
pub fn connect(socket: Option<&Path>) -> Result<Client, Failure> {
    Client::connect(&control_socket(socket)).map_err(failure)
}

/// Sends a request on a connection, with progress on standard error.
pub fn send_request_on(client: &mut Client, request: &Request) -> Result<Answer, Failure> {
    let mut line = ProgressLine::default();
    let answer = client.request(request, |progress| line.show(&progress));
    line.clear();
    answer.map_err(failure)
}

/// Connects and sends a request.
pub fn send_request(socket: Option<&Path>, request: &Request) -> Result<Answer, Failure> {
    send_request_on(&mut connect(socket)?, request)
}

/// An invalid request is a usage error, everything else a failure.
fn failure(error: ClientError) -> Failure {
    match &error {
        ClientError::Failed(failed) if failed.kind == ErrorKind::Invalid => Failure::usage(error.to_string()),
        _ => Failure::failed(error.to_string()),
    }
}

/// The failure for a reply of the wrong kind.
pub fn unexpected() -> Failure {
    Failure::failed("unexpected reply from the daemon; check that its version matches this command")
}

/// Progress on standard error: one line that changes on a terminal, a line each elsewhere.
#[derive(Default)]
struct ProgressLine {
    is_shown: bool,
}

impl ProgressLine {
    fn show(&mut self, progress: &Progress) {
        let amount = match progress.total_bytes {
            0 => format!("{} dirty", show_bytes(progress.dirty_bytes)),
            total => format!("{} of {}", show_bytes(progress.done_bytes), show_bytes(total)),
        };
        let text = format!("{}: {amount}", messages::plain(&progress.activity));
        if std::io::stderr().is_terminal() {
            eprint!("\r\x1b[K{text}");
            // A failed flush only hides the progress.
            let _ = std::io::stderr().flush();
            self.is_shown = true;
        } else {
            eprintln!("{text}");
        }
    }

    fn clear(&mut self) {
        if std::mem::take(&mut self.is_shown) {
            eprint!("\r\x1b[K");
        }
    }
}
