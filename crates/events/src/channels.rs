//! The configured channels of alerts: each gets the raised and cleared alerts, and can be tested.

use std::io;
use std::sync::mpsc::sync_channel;
use std::time::{Duration, Instant};

use messages::report::{AlertChannel, AlertKind, AlertReport, ChannelTestReport, DeliveryHealth, Severity};

use crate::alerts::{Change, NotificationKind};
use crate::mail::{MailConfig, Mailer};
use crate::webhook::{Receiver, Webhook};

/// Time limit of a test: longer than an attempt.
const TEST_TIMEOUT: Duration = Duration::from_secs(45);

/// Configuration of the channels.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChannelsConfig {
    /// Receiver of alerts over HTTP.
    pub webhook: Option<Receiver>,
    /// Mail.
    pub mail: Option<MailConfig>,
    /// Name of this machine.
    pub host: String,
    /// Address of the web console, if it is known.
    pub console_url: Option<String>,
}

/// The channels.
pub struct Channels {
    webhook: Option<Webhook>,
    mail: Option<Mailer>,
    config: ChannelsConfig,
}

impl Channels {
    /// Starts the configured channels. `on_error` gets the key and the error of one whose thread cannot be started.
    pub fn start(config: ChannelsConfig, on_error: impl Fn(&str, io::Error)) -> Channels {
        let ChannelsConfig { webhook, mail, host, console_url } = config.clone();
        let report = |key, error| on_error(key, error);
        let webhook = webhook
            .and_then(|receiver| Webhook::start(receiver, host.clone()).map_err(|error| report("webhook", error)).ok());
        let mail = mail.and_then(|config| {
            Mailer::start(config, host, console_url).map_err(|error| report("mail_server", error)).ok()
        });
        Channels { webhook, mail, config }
    }

    /// Queues `changes` for all channels.
    pub fn send(&self, at_unix_ms: u64, changes: &[Change]) {
        self.webhook.iter().for_each(|webhook| webhook.send(at_unix_ms, changes));
        self.mail.iter().for_each(|mail| mail.send(at_unix_ms, changes));
    }

    /// Health of the webhook.
    pub fn webhook_health(&self) -> Option<DeliveryHealth> {
        self.webhook.as_ref().map(Webhook::health)
    }

    /// Health of the delivery by mail.
    pub fn mail_health(&self) -> Option<DeliveryHealth> {
        self.mail.as_ref().map(Mailer::health)
    }

    /// The configuration, for a test on another thread.
    pub fn config(&self) -> &ChannelsConfig {
        &self.config
    }
}

impl ChannelsConfig {
    /// Sends a test through each channel, all at the same time, and returns what each answered. Blocks until then, at
    /// most [`TEST_TIMEOUT`]. `actor` is the user who requested it.
    pub fn test(&self, at_unix_ms: u64, actor: &str) -> Vec<ChannelTestReport> {
        let test = test_change(at_unix_ms, actor);
        let mut outcomes = Vec::new();
        if let Some(receiver) = self.webhook.clone() {
            let (to, host, test) = (receiver.address.to_string(), self.host.clone(), test.clone());
            outcomes.push((AlertChannel::Webhook, to, start_test(move || receiver.test(&host, &test))));
        }
        if let Some(mail) = self.mail.clone() {
            let (to, host, console_url) = (mail.destination(), self.host.clone(), self.console_url.clone());
            outcomes.push((
                AlertChannel::Mail,
                to,
                start_test(move || mail.test(&host, console_url.as_deref(), &test)),
            ));
        }
        let deadline = Instant::now() + TEST_TIMEOUT;
        let report = |(channel, to, outcome): (AlertChannel, String, std::sync::mpsc::Receiver<Outcome>)| {
            let outcome = outcome.recv_timeout(deadline.saturating_duration_since(Instant::now()));
            let error = outcome.unwrap_or_else(|_| Err("it did not answer in time".to_owned())).err();
            ChannelTestReport { channel, to, error }
        };
        outcomes.into_iter().map(report).collect()
    }
}

/// Result of a test; the error is the receiver's answer.
type Outcome = Result<(), String>;

/// Runs a test on a thread of its own: a receiver that answers byte by byte may exceed every time limit of its attempt.
fn start_test(test: impl FnOnce() -> Outcome + Send + 'static) -> std::sync::mpsc::Receiver<Outcome> {
    let (sender, outcome) = sync_channel(1);
    // Without a thread the sender is dropped, which ends the wait for the outcome.
    let body = move || drop(sender.send(test()));
    let _ = std::thread::Builder::new().name("alert-test".to_owned()).spawn(body);
    outcome
}

/// The alert of a test message.
fn test_change(at_unix_ms: u64, actor: &str) -> Change {
    let alert = AlertReport {
        kind: AlertKind::Other,
        severity: Severity::Info,
        since_unix_ms: at_unix_ms,
        cause: format!("This is a test of the alert channels, requested by {actor}."),
        effect: "None: no problem was found.".to_owned(),
        remedy: "No action is needed.".to_owned(),
        ..AlertReport::default()
    };
    Change { state: NotificationKind::Test, alert }
}
