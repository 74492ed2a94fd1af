//! Metric families of alerts, of their delivery and of the event log.

use messages::StatusReport;
use messages::report::AlertKind;

use super::lines::{Labels, Lines};

/// Writes all families. Every kind of alert has a series, raised or not; the number of series does not depend on the
/// number of volumes.
pub fn write(lines: &mut Lines, status: &StatusReport) {
    let none = Labels::default();
    lines.family("hotset_alerts", "gauge", "Active alerts by kind and severity.");
    for kind in AlertKind::ALL {
        let active = status.active_alerts.iter().filter(|alert| alert.kind == *kind).count();
        lines.sample(&none, &[("kind", kind.name()), ("severity", kind.severity().name())], active as f64);
    }
    let mut single = |name, kind, help, value: u64| {
        lines.family(name, kind, help);
        lines.sample(&none, &[], value as f64);
    };
    let events = &status.events;
    single(
        "hotset_events_lost_total",
        "counter",
        "Events that could not be written to the event log and are lost at a restart.",
        events.lost,
    );
    if let Some(webhook) = &status.webhook {
        single("hotset_webhook_delivered_total", "counter", "Messages that the webhook accepted.", webhook.delivered);
        single(
            "hotset_webhook_failures_total",
            "counter",
            "Failed attempts to deliver a message to the webhook.",
            webhook.failures,
        );
        single(
            "hotset_webhook_dropped_total",
            "counter",
            "Messages to the webhook that were dropped undelivered.",
            webhook.dropped,
        );
        single("hotset_webhook_waiting", "gauge", "Messages to the webhook in the queue.", webhook.waiting);
    }
    if let Some(mail) = &status.mail {
        single(
            "hotset_mail_delivered_total",
            "counter",
            "Mails about alerts that the server accepted.",
            mail.delivered,
        );
        single("hotset_mail_failures_total", "counter", "Failed attempts to send a mail about alerts.", mail.failures);
        single("hotset_mail_dropped_total", "counter", "Mails about alerts that were dropped unsent.", mail.dropped);
        single("hotset_mail_waiting", "gauge", "Mails about alerts in the queue.", mail.waiting);
    }
}
