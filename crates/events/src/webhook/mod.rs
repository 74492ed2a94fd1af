//! Alerts on their way to whoever wants to be told: a POST of JSON for those of a moment, tried again until it is taken.
//!
//! A thread of its own behind a bounded queue: who does not answer costs the daemon nothing. While nobody answers the newest messages are kept;
//! one that is answered and refused is given up after a few attempts, so that it does not hold up those behind it.

mod receiver;

use std::collections::VecDeque;
use std::io;
use std::sync::mpsc::{self, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use control::report::WebhookHealth;
use serde::Serialize;

use self::receiver::Failed;
pub use self::receiver::{Address, Receiver};
use super::alerts::Change;

/// Messages that wait at most.
const WAITING_MAX: usize = 256;
/// Alerts of a message at most.
const ALERTS_MAX: usize = 64;
/// Pauses before another attempt; the last one holds until a message is taken.
const PAUSES: [Duration; 5] = [
    Duration::from_secs(1),
    Duration::from_secs(2),
    Duration::from_secs(5),
    Duration::from_secs(15),
    Duration::from_secs(60),
];
/// Attempts for a message that is refused each time.
const REFUSALS_MAX: u32 = 5;

/// What is sent.
#[derive(Serialize)]
struct Body<'a> {
    /// Of this layout.
    version: u32,
    /// The machine's name.
    host: &'a str,
    at_unix_ms: u64,
    alerts: &'a [Change],
}

/// The way there.
pub struct Webhook {
    messages: SyncSender<String>,
    health: Arc<Mutex<WebhookHealth>>,
    host: String,
}

impl Webhook {
    /// Starts the thread; `host` is what this machine calls itself.
    pub fn start(receiver: Receiver, host: String) -> io::Result<Webhook> {
        let to = receiver.address.to_string();
        let health = Arc::new(Mutex::new(WebhookHealth { to, ..WebhookHealth::default() }));
        let (messages, received) = sync_channel(WAITING_MAX);
        let delivery = Delivery { receiver, health: health.clone(), waiting: VecDeque::new(), failed: 0, refused: 0 };
        let body = move || delivery.run(&received, &PAUSES);
        std::thread::Builder::new().name("webhook".to_owned()).spawn(body)?;
        Ok(Webhook { messages, health, host })
    }

    /// Sends these when it can be.
    pub fn send(&self, at_unix_ms: u64, changes: &[Change]) {
        for alerts in changes.chunks(ALERTS_MAX) {
            let body = Body { version: 1, host: &self.host, at_unix_ms, alerts };
            let body = serde_json::to_string(&body).expect("an alert has only text keys");
            let mut health = lock(&self.health);
            match self.messages.try_send(body) {
                Ok(()) => health.waiting += 1,
                Err(_) => health.dropped += 1,
            }
        }
    }

    /// How it stands.
    pub fn health(&self) -> WebhookHealth {
        lock(&self.health).clone()
    }
}

fn lock(health: &Mutex<WebhookHealth>) -> MutexGuard<'_, WebhookHealth> {
    // What is held is whole between any two statements.
    health.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What the thread has.
struct Delivery {
    receiver: Receiver,
    health: Arc<Mutex<WebhookHealth>>,
    waiting: VecDeque<String>,
    /// Attempts in a row that failed.
    failed: usize,
    /// Attempts with the first message that were refused.
    refused: u32,
}

impl Delivery {
    fn run(mut self, messages: &mpsc::Receiver<String>, pauses: &[Duration]) {
        let mut next_attempt = Instant::now();
        loop {
            let message = match self.waiting.is_empty() {
                true => messages.recv().map_err(|_| RecvTimeoutError::Disconnected),
                false => messages.recv_timeout(next_attempt.saturating_duration_since(Instant::now())),
            };
            match message {
                Ok(message) => self.push(message),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            // A message that comes is no reason to try those before it any sooner.
            if Instant::now() < next_attempt {
                continue;
            }
            self.attempt();
            let pause = if self.failed == 0 { Duration::ZERO } else { pauses[self.failed.min(pauses.len()) - 1] };
            next_attempt = Instant::now() + pause;
        }
    }

    fn push(&mut self, message: String) {
        if self.waiting.len() == WAITING_MAX {
            self.waiting.pop_front();
            self.refused = 0;
            let mut health = lock(&self.health);
            health.dropped += 1;
            health.waiting -= 1;
        }
        self.waiting.push_back(message);
    }

    /// Tries the oldest message.
    fn attempt(&mut self) {
        let Some(message) = self.waiting.front() else { return };
        let result = self.receiver.post(message);
        let mut health = lock(&self.health);
        let is_done = match result {
            Ok(()) => {
                (self.failed, self.refused, health.failed) = (0, 0, None);
                health.delivered += 1;
                true
            }
            Err(failed) => {
                self.failed += 1;
                health.failures += 1;
                let (why, is_refused) = match failed {
                    Failed::Later(why) => (why, false),
                    Failed::Refused(why) => (why, true),
                };
                self.refused += u32::from(is_refused);
                health.failed = Some(why);
                let gives_up = self.refused == REFUSALS_MAX;
                if gives_up {
                    self.refused = 0;
                    health.dropped += 1;
                }
                gives_up
            }
        };
        if is_done {
            health.waiting -= 1;
            self.waiting.pop_front();
        }
    }
}

#[cfg(test)]
mod tests;
