//! Polls the daemon in a thread of its own, so that a slow or absent daemon does not delay keys.

use std::path::PathBuf;
use std::sync::mpsc::{Receiver, TrySendError, sync_channel};
use std::time::Duration;

use control::{Client, ClientError};
use messages::{Answer, Request, StatusReport};

/// Answers in the queue at most; while it is full, newer ones are dropped.
const WAITING_MAX: usize = 4;
/// Longest interval between attempts to reach an absent daemon.
const RETRY_MAX: Duration = Duration::from_secs(1);

/// The result of a poll.
pub enum News {
    /// The daemon answered.
    Status(Box<StatusReport>),
    /// The daemon did not answer, for this reason.
    Away(String),
}

/// The receiving end. The thread ends with the first answer after this is dropped.
pub struct Asker(Receiver<News>);

impl Asker {
    /// Starts polling at `socket`, `every` so often.
    pub fn start(socket: PathBuf, every: Duration) -> Asker {
        let (sender, receiver) = sync_channel(WAITING_MAX);
        std::thread::spawn(move || {
            let mut client = None;
            loop {
                let news = ask(&socket, &mut client);
                let pause = if client.is_some() { every } else { every.min(RETRY_MAX) };
                if matches!(sender.try_send(news), Err(TrySendError::Disconnected(_))) {
                    return;
                }
                std::thread::sleep(pause);
            }
        });
        Asker(receiver)
    }

    /// Results since the last call.
    pub fn news(&self) -> impl Iterator<Item = News> {
        self.0.try_iter()
    }
}

/// Sends a request on the existing connection, else on a new one. A failure drops the connection.
fn ask(socket: &std::path::Path, connection: &mut Option<Client>) -> News {
    let answered = match connection.take() {
        Some(client) => Ok(client),
        None => Client::connect(socket),
    };
    let answered = answered.and_then(|mut client| {
        let answer = client.request(&Request::Status {}, |_| {})?;
        Ok::<_, ClientError>((client, answer))
    });
    match answered {
        Ok((client, Answer::Status(status))) => {
            *connection = Some(client);
            News::Status(status)
        }
        Ok(_) => {
            News::Away("unexpected answer from the daemon; check that its version matches this command".to_owned())
        }
        Err(error) => News::Away(error.to_string()),
    }
}
