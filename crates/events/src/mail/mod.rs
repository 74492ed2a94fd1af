//! Delivery of alerts by mail: one message per sample for the raised alerts, and one for the cleared alerts.

mod server;
mod text;

use std::io;
use std::time::Duration;

pub use lettre::message::Mailbox;
use messages::report::{DeliveryHealth, Severity};

pub use self::server::{Encryption, Login, MailServer, parse_mailbox};
use self::text::{MailContext, compose};
use super::alerts::{Change, NotificationKind};
use super::delivery::{ALERTS_MAX, DeliveryError, Queue, RETRY_PAUSES, Transport};

/// Maximum number of recipients.
pub const RECIPIENTS_MAX: usize = 16;

/// Mail as a channel of alerts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MailConfig {
    /// The server that accepts the messages.
    pub server: MailServer,
    /// Sender.
    pub from: Mailbox,
    /// Recipients, at most [`RECIPIENTS_MAX`].
    pub to: Vec<Mailbox>,
    /// The least severe alerts that are sent.
    pub min_severity: Severity,
}

/// A message in the queue, as it is sent.
pub struct Mail {
    /// Recipients that have not accepted the message yet.
    recipients: Vec<Mailbox>,
    content: Vec<u8>,
}

/// Queue of messages to the mail server.
pub struct Mailer {
    queue: Queue<Mail>,
    config: MailConfig,
    context: MailContext,
}

impl Mailer {
    /// Starts the delivery thread; `host` is the name of this machine, `console_url` the address of the web console if
    /// it is known.
    pub fn start(config: MailConfig, host: String, console_url: Option<String>) -> io::Result<Mailer> {
        Mailer::start_with(config, host, console_url, RETRY_PAUSES)
    }

    fn start_with(
        config: MailConfig,
        host: String,
        console_url: Option<String>,
        pauses: &'static [Duration],
    ) -> io::Result<Mailer> {
        let sender = Sender { server: config.server.clone(), from: config.from.clone(), host: host.clone() };
        let queue = Queue::start("mail", config.destination(), sender, pauses)?;
        Ok(Mailer { queue, config, context: MailContext { host, console_url } })
    }

    /// Queues `changes` of the configured severities; messages that do not fit are dropped and counted.
    pub fn send(&self, at_unix_ms: u64, changes: &[Change]) {
        for state in [NotificationKind::Raised, NotificationKind::Cleared] {
            let is_sent = |change: &&Change| change.state == state && change.alert.severity <= self.config.min_severity;
            let selected: Vec<&Change> = changes.iter().filter(is_sent).collect();
            for alerts in selected.chunks(ALERTS_MAX) {
                self.queue.push(compose(&self.config, &self.context, at_unix_ms, alerts));
            }
        }
    }

    /// Health of the delivery, for the status report.
    pub fn health(&self) -> DeliveryHealth {
        self.queue.health()
    }
}

impl MailConfig {
    /// The destination in one line: the server and the recipients.
    pub fn destination(&self) -> String {
        let to = self.to.iter().map(|mailbox| mailbox.email.to_string()).collect::<Vec<_>>().join(", ");
        format!("{to} through {}:{}", self.server.host, self.server.port)
    }

    /// Sends a test message, past the queue, and waits for the answer; the error is the server's answer.
    pub fn test(&self, host: &str, console_url: Option<&str>, test: &Change) -> Result<(), String> {
        let context = MailContext { host: host.to_owned(), console_url: console_url.map(str::to_owned) };
        let mut mail = compose(self, &context, test.alert.since_unix_ms, &[test]);
        let sender = Sender { server: self.server.clone(), from: self.from.clone(), host: context.host };
        sender.deliver(&mut mail).map_err(|error| error.into_text())
    }
}

/// Sends messages over SMTP.
struct Sender {
    server: MailServer,
    from: Mailbox,
    host: String,
}

impl Transport for Sender {
    type Message = Mail;

    fn deliver(&self, mail: &mut Mail) -> Result<(), DeliveryError> {
        self.server.submit(&self.host, &self.from, mail)
    }
}

#[cfg(test)]
mod tests;
