//! Asks the daemon in a thread of its own, so that one that is slow or away keeps no key waiting.

use std::path::PathBuf;
use std::sync::mpsc::{Receiver, TrySendError, sync_channel};
use std::time::Duration;

use control::{Answer, Client, ClientError, Request, StatusReport};

/// Answers that wait to be shown at most; while the screen is slower than that, newer ones are left out.
const WAITING_MAX: usize = 4;
/// A daemon that is away is asked again after this at the latest.
const RETRY_MAX: Duration = Duration::from_secs(1);

/// What was heard of the daemon.
pub enum News {
    /// It answered.
    Status(Box<StatusReport>),
    /// It did not, for this reason.
    Away(String),
}

/// The thread's other end. It ends with the first answer that nobody takes any more.
pub struct Asker(Receiver<News>);

impl Asker {
    /// Asks at `socket`, again `every` so often.
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

    /// What has come since the last time.
    pub fn news(&self) -> impl Iterator<Item = News> {
        self.0.try_iter()
    }
}

/// Asks on the connection that there is, else on a new one; after a failure there is none.
fn ask(socket: &std::path::Path, connection: &mut Option<Client>) -> News {
    let answered = match connection.take() {
        Some(client) => Ok(client),
        None => Client::connect(socket),
    };
    let answered = answered.and_then(|mut client| {
        let answer = client.ask(&Request::Status {}, |_| {})?;
        Ok::<_, ClientError>((client, answer))
    });
    match answered {
        Ok((client, Answer::Status(status))) => {
            *connection = Some(client);
            News::Status(status)
        }
        Ok(_) => News::Away("the daemon answered something unexpected; is it of another version?".to_owned()),
        Err(error) => News::Away(error.to_string()),
    }
}
