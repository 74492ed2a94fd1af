//! Delivery of alerts to a webhook: one POST of JSON per sample with changed alerts, retried until it is accepted.
//!
//! A thread of its own sends the messages from a bounded queue, so a receiver that does not answer never delays the
//! daemon. While the receiver does not answer, the newest messages are kept. A message that the receiver refuses is
//! dropped after a few attempts, so that it does not block later messages.

mod receiver;

use std::collections::VecDeque;
use std::io;
use std::sync::mpsc::{self, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use messages::report::WebhookHealth;
use serde::Serialize;

use self::receiver::DeliveryError;
pub use self::receiver::{Address, Receiver};
use super::alerts::Change;

/// Maximum number of queued messages.
const QUEUE_MAX: usize = 256;
/// Maximum number of alerts in one message.
const ALERTS_MAX: usize = 64;
/// Pauses before the next attempt; the last one repeats until a message is accepted.
const PAUSES: [Duration; 5] = [
    Duration::from_secs(1),
    Duration::from_secs(2),
    Duration::from_secs(5),
    Duration::from_secs(15),
    Duration::from_secs(60),
];
/// Attempts after which a refused message is dropped.
const REFUSALS_MAX: u32 = 5;

/// The JSON body of a message.
#[derive(Serialize)]
struct Body<'a> {
    /// Version of this layout.
    version: u32,
    /// The machine's name.
    host: &'a str,
    at_unix_ms: u64,
    alerts: &'a [Change],
}

/// Queue of messages to the receiver.
pub struct Webhook {
    messages: SyncSender<String>,
    health: Arc<Mutex<WebhookHealth>>,
    host: String,
}

impl Webhook {
    /// Starts the delivery thread; `host` is the name of this machine.
    pub fn start(receiver: Receiver, host: String) -> io::Result<Webhook> {
        let to = receiver.address.to_string();
        let health = Arc::new(Mutex::new(WebhookHealth { to, ..WebhookHealth::default() }));
        let (messages, received) = sync_channel(QUEUE_MAX);
        let delivery = Delivery { receiver, health: health.clone(), waiting: VecDeque::new(), failed: 0, refused: 0 };
        let body = move || delivery.run(&received, &PAUSES);
        std::thread::Builder::new().name("webhook".to_owned()).spawn(body)?;
        Ok(Webhook { messages, health, host })
    }

    /// Queues `changes` for delivery; messages that do not fit are dropped and counted.
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

    /// Health of the delivery, for the status report.
    pub fn health(&self) -> WebhookHealth {
        lock(&self.health).clone()
    }
}

fn lock(health: &Mutex<WebhookHealth>) -> MutexGuard<'_, WebhookHealth> {
    // A panic cannot leave the health half-changed, so a poisoned lock is safe to use.
    health.lock().unwrap_or_else(PoisonError::into_inner)
}

/// State of the delivery thread.
struct Delivery {
    receiver: Receiver,
    health: Arc<Mutex<WebhookHealth>>,
    waiting: VecDeque<String>,
    /// Consecutive failed attempts.
    failed: usize,
    /// Attempts at the first message that the receiver refused.
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
            // A new message does not shorten the pause before the next attempt.
            if Instant::now() < next_attempt {
                continue;
            }
            self.attempt();
            let pause = if self.failed == 0 { Duration::ZERO } else { pauses[self.failed.min(pauses.len()) - 1] };
            next_attempt = Instant::now() + pause;
        }
    }

    fn push(&mut self, message: String) {
        if self.waiting.len() == QUEUE_MAX {
            self.waiting.pop_front();
            self.refused = 0;
            let mut health = lock(&self.health);
            health.dropped += 1;
            health.waiting -= 1;
        }
        self.waiting.push_back(message);
    }

    /// Tries to deliver the oldest message.
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
            Err(error) => {
                self.failed += 1;
                health.failures += 1;
                let (reason, is_refused) = match error {
                    DeliveryError::Temporary(reason) => (reason, false),
                    DeliveryError::Refused(reason) => (reason, true),
                };
                self.refused += u32::from(is_refused);
                health.failed = Some(reason);
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
