//! Delivery of alerts to a webhook: one POST of JSON per sample with changed alerts.

mod receiver;

use std::io;
use std::time::Duration;

use messages::report::DeliveryHealth;
use serde::Serialize;

pub use self::receiver::{Address, Receiver};
use super::alerts::Change;
use super::delivery::{ALERTS_MAX, Queue, RETRY_PAUSES};

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

impl Body<'_> {
    fn json(&self) -> String {
        serde_json::to_string(self).expect("an alert has only text keys")
    }
}

/// Queue of messages to the receiver.
pub struct Webhook {
    queue: Queue<String>,
    host: String,
}

impl Webhook {
    /// Starts the delivery thread; `host` is the name of this machine.
    pub fn start(receiver: Receiver, host: String) -> io::Result<Webhook> {
        Webhook::start_with(receiver, host, RETRY_PAUSES)
    }

    fn start_with(receiver: Receiver, host: String, pauses: &'static [Duration]) -> io::Result<Webhook> {
        let queue = Queue::start("webhook", receiver.address.to_string(), receiver, pauses)?;
        Ok(Webhook { queue, host })
    }

    /// Queues `changes` for delivery; messages that do not fit are dropped and counted.
    pub fn send(&self, at_unix_ms: u64, changes: &[Change]) {
        for alerts in changes.chunks(ALERTS_MAX) {
            self.queue.push(Body { version: 1, host: &self.host, at_unix_ms, alerts }.json());
        }
    }

    /// Health of the delivery, for the status report.
    pub fn health(&self) -> DeliveryHealth {
        self.queue.health()
    }
}

impl Receiver {
    /// Sends a test message, past the queue, and waits for the answer; the error is the receiver's answer.
    pub fn test(&self, host: &str, test: &Change) -> Result<(), String> {
        let body = Body { version: 1, host, at_unix_ms: test.alert.since_unix_ms, alerts: std::slice::from_ref(test) };
        self.post(&body.json()).map_err(|error| error.into_text())
    }
}

#[cfg(test)]
mod tests;
