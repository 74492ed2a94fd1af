//! Polls the daemon in a thread of its own, so that a slow or absent daemon does not delay keys.

use std::path::PathBuf;
use std::sync::mpsc::{Receiver, TrySendError, sync_channel};
use std::time::Duration;

use control::{Client, ClientError};
use messages::{Answer, Request, StatusReport};

/// Maximum number of queued results; while the queue is full, newer ones are dropped.
const QUEUED_RESULTS_MAX: usize = 4;
/// Longest interval between attempts to reach an absent daemon.
const RETRY_INTERVAL_MAX: Duration = Duration::from_secs(1);

/// The result of a poll.
pub enum PollResult {
    /// The daemon replied.
    Status(Box<StatusReport>),
    /// The daemon did not reply, for this reason.
    NoReply(String),
}

/// The receiving end. After this is dropped, the thread ends with its next result.
pub struct StatusPoller(Receiver<PollResult>);

impl StatusPoller {
    /// Starts polling at `socket` in this interval.
    pub fn start(socket: PathBuf, interval: Duration) -> StatusPoller {
        let (sender, receiver) = sync_channel(QUEUED_RESULTS_MAX);
        std::thread::spawn(move || {
            let mut client = None;
            loop {
                let result = poll_status(&socket, &mut client);
                let pause = if client.is_some() { interval } else { interval.min(RETRY_INTERVAL_MAX) };
                if matches!(sender.try_send(result), Err(TrySendError::Disconnected(_))) {
                    return;
                }
                std::thread::sleep(pause);
            }
        });
        StatusPoller(receiver)
    }

    /// Results since the last call.
    pub fn results(&self) -> impl Iterator<Item = PollResult> {
        self.0.try_iter()
    }
}

/// Sends a request on the existing connection, else on a new one. A failure drops the connection.
fn poll_status(socket: &std::path::Path, connection: &mut Option<Client>) -> PollResult {
    let connected = match connection.take() {
        Some(client) => Ok(client),
        None => Client::connect(socket),
    };
    let reply = connected.and_then(|mut client| {
        let answer = client.request(&Request::Status {}, |_| {})?;
        Ok::<_, ClientError>((client, answer))
    });
    match reply {
        Ok((client, Answer::Status(status))) => {
            *connection = Some(client);
            PollResult::Status(status)
        }
        Ok(_) => PollResult::NoReply(
            "unexpected reply from the daemon; check that its version matches this command".to_owned(),
        ),
        Err(error) => PollResult::NoReply(error.to_string()),
    }
}
