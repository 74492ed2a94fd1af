//! The text of a mail: subject and body of raised, cleared and test alerts.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use lettre::Message;
use lettre::message::header::{ContentType, HeaderName, HeaderValue};
use messages::report::AlertReport;
use messages::{plain, plain_lines, unix_time};

use super::{Mail, MailConfig};
use crate::alerts::{Change, NotificationKind};

/// Description of this machine in a mail.
pub struct MailContext {
    /// Its name.
    pub host: String,
    /// URL of the web console, if it is known.
    pub console_url: Option<String>,
}

/// Composes the mail about `changes`, which are one or more of the same transition, the most severe first.
pub fn compose(config: &MailConfig, context: &MailContext, at_unix_ms: u64, changes: &[&Change]) -> Mail {
    let time = SystemTime::UNIX_EPOCH + Duration::from_millis(at_unix_ms);
    // RFC 3834: such a message gets no automatic replies, for example out-of-office messages.
    let automatic = HeaderValue::new(HeaderName::new_from_ascii_str("Auto-Submitted"), "auto-generated".to_owned());
    let builder = config.to.iter().fold(Message::builder(), |builder, mailbox| builder.to(mailbox.clone()));
    let message = builder
        .from(config.from.clone())
        .subject(subject(&context.host, changes))
        .date(time)
        .message_id(Some(message_id(&context.host, at_unix_ms)))
        .raw_header(automatic)
        .header(ContentType::TEXT_PLAIN)
        .body(body(context, at_unix_ms, changes))
        .expect("a message with a sender and recipients");
    Mail { recipients: config.to.clone(), content: message.formatted() }
}

/// An identifier that no other message has: the time, the process, and a counter.
fn message_id(host: &str, at_unix_ms: u64) -> String {
    static COUNTER: AtomicU64 = AtomicU64::new(0);
    let counter = COUNTER.fetch_add(1, Ordering::Relaxed);
    let is_host_char = |c: char| c.is_ascii_alphanumeric() || "-.".contains(c);
    let host = if !host.is_empty() && host.chars().all(is_host_char) { host } else { "localhost" };
    format!("<{at_unix_ms}.{}.{counter}@{host}>", std::process::id())
}

/// For example `[hotset cache01] WARNING: single-copy`, with the number of further alerts.
fn subject(host: &str, changes: &[&Change]) -> String {
    let Change { state, alert } = changes.first().expect("a mail has a change");
    let label = match state {
        NotificationKind::Raised => alert.severity.name().to_uppercase(),
        NotificationKind::Cleared => "RESOLVED".to_owned(),
        NotificationKind::Test => return plain(&format!("[hotset {host}] TEST: alerts by mail")).into_owned(),
    };
    let more = match changes.len() - 1 {
        0 => String::new(),
        more => format!(", and {more} more"),
    };
    plain(&format!("[hotset {host}] {label}: {}{more}", title(alert))).into_owned()
}

/// Kind and subject. Without the cause, which may change: both mails about an alert have the same title.
fn title(alert: &AlertReport) -> String {
    match &alert.subject {
        Some(subject) => format!("{} of {subject}", alert.kind),
        None => alert.kind.to_string(),
    }
}

fn body(context: &MailContext, at_unix_ms: u64, changes: &[&Change]) -> String {
    let mut text = changes.iter().map(|change| paragraph(change, at_unix_ms)).collect::<Vec<_>>().join("\n");
    text += &format!("\nHost:   {}\n", context.host);
    if let Some(url) = &context.console_url {
        text += &format!("Page:   {url}\n");
    }
    plain_lines(&text).into_owned()
}

/// The paragraph about one alert.
fn paragraph(Change { state, alert }: &Change, at_unix_ms: u64) -> String {
    let time = |unix_ms| unix_time::format(Duration::from_millis(unix_ms));
    let AlertReport { severity, since_unix_ms, cause, effect, remedy, .. } = alert;
    let since = time(*since_unix_ms);
    match state {
        NotificationKind::Raised => format!(
            "{} ({severity})\nCause:  {cause}\nSince:  {since}\nEffect: {effect}\nRemedy: {remedy}\n",
            title(alert)
        ),
        NotificationKind::Cleared => format!(
            "{} ({severity}) is resolved\nCause:  {cause}\nSince:  {since}\nUntil:  {}\n",
            title(alert),
            time(at_unix_ms)
        ),
        NotificationKind::Test => format!("{cause}\nSent:   {since}\nEffect: {effect}\nRemedy: {remedy}\n"),
    }
}
