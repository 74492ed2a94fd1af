//! Alerts: the list of kinds, active alerts, and the state of their delivery.

use std::fmt;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Severity.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Severity {
    /// Data is lost or at stake, or clients are not served.
    Critical,
    /// An administrator has to act soon.
    Warning,
    /// Intended by an administrator, or affects only the hit ratio.
    #[default]
    Info,
}

impl Severity {
    /// Its name, as in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Severity::Critical => "critical",
            Severity::Warning => "warning",
            Severity::Info => "info",
        }
    }
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A problem that a report states in a sentence, with its kind of alert. JSON has the sentence alone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
pub struct StatusProblem {
    /// The kind; [`AlertKind::Other`] where no other one fits, and in a report that was read from JSON.
    pub kind: AlertKind,
    /// The sentence.
    pub text: String,
}

impl StatusProblem {
    /// A problem of that kind.
    pub fn new(kind: AlertKind, text: impl Into<String>) -> StatusProblem {
        StatusProblem { kind, text: text.into() }
    }

    /// The sentences in one line.
    pub fn join<'a>(problems: impl IntoIterator<Item = &'a StatusProblem>) -> String {
        problems.into_iter().map(|problem| problem.text.as_str()).collect::<Vec<_>>().join("; ")
    }
}

impl From<String> for StatusProblem {
    fn from(text: String) -> StatusProblem {
        StatusProblem::new(AlertKind::Other, text)
    }
}

impl From<StatusProblem> for String {
    fn from(problem: StatusProblem) -> String {
        problem.text
    }
}

impl fmt::Display for StatusProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// Generates the enum, its names and severities from one list.
macro_rules! alert_kinds {
    ($($(#[$doc:meta])* $kind:ident $name:literal $severity:ident;)*) => {
        /// Kinds of alerts.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
        #[serde(rename_all = "kebab-case")]
        pub enum AlertKind {
            $($(#[$doc])* $kind,)*
        }

        impl AlertKind {
            /// All of them, the most severe first.
            pub const ALL: &'static [AlertKind] = &[$(AlertKind::$kind,)*];

            /// Its name, as in JSON.
            pub fn name(self) -> &'static str {
                match self { $(AlertKind::$kind => $name,)* }
            }

            /// Severity.
            pub fn severity(self) -> Severity {
                match self { $(AlertKind::$kind => Severity::$severity,)* }
            }
        }
    };
}

alert_kinds! {
    /// A volume is not served.
    VolumeRefused "volume-refused" Critical;
    /// A data core does not answer.
    CoreSilent "core-silent" Critical;
    /// Dirty blocks of which no flash device has a good copy.
    FlashDataLost "flash-data-lost" Critical;
    /// No flash device is left in service.
    NoCopy "no-copy" Critical;
    /// Flash is configured and not in use.
    FlashUnused "flash-unused" Critical;
    /// A flash device is not in service.
    FlashDegraded "flash-degraded" Critical;
    /// The drive of a flash device reports that it is failing.
    DriveFailing "drive-failing" Critical;
    /// Another client has taken the backing of a volume over.
    BackingLost "backing-lost" Critical;
    /// Dirty data cannot be destaged.
    DestageFailing "destage-failing" Critical;
    /// The backing failed requests recently.
    BackingErrors "backing-errors" Critical;
    /// The backing has not answered a request for ten seconds.
    BackingHung "backing-hung" Critical;
    /// A flash device has not answered a request for ten seconds.
    FlashHung "flash-hung" Critical;
    /// A server certificate has expired.
    CertificateExpired "certificate-expired" Critical;
    /// The state directory cannot be written.
    StateDisk "state-disk" Critical;
    /// A pool has less than 5 % free.
    PoolFull "pool-full" Critical;
    /// Persisted memory is configured and not in use.
    MemoryNotKept "memory-not-kept" Warning;
    /// Unflushed writes are lost, and clients get an error that reports this.
    UnflushedWritesLost "unflushed-writes-lost" Warning;
    /// A single flash device holds the dirty data.
    SingleCopy "single-copy" Warning;
    /// A write-back volume runs as write-through for lack of a second copy.
    PolicyReduced "policy-reduced" Warning;
    /// Dirty data is older than its limit.
    DirtyTooOld "dirty-too-old" Warning;
    /// Many reads took longer than a second.
    BackingSlow "backing-slow" Warning;
    /// A datastore has been congested for a minute.
    DatastoreCongested "datastore-congested" Warning;
    /// A flash device will be worn out before the configured date.
    Endurance "endurance" Warning;
    /// The flash log holds data of volumes that are not served.
    FlashUnclaimed "flash-unclaimed" Warning;
    /// Flash devices were added by command and are not in the configuration.
    FlashUnlisted "flash-unlisted" Warning;
    /// A pool has less than 15 % free.
    PoolNearlyFull "pool-nearly-full" Warning;
    /// A server certificate expires soon.
    CertificateExpires "certificate-expires" Warning;
    /// The iSCSI target refuses the logins of an initiator.
    LoginRefused "login-refused" Warning;
    /// Another host of the fleet does not answer.
    FleetHostSilent "fleet-host-silent" Warning;
    /// The history cannot be written.
    HistoryDisk "history-disk" Warning;
    /// The event log cannot be written.
    EventsDisk "events-disk" Warning;
    /// Alerts cannot be delivered to the webhook.
    WebhookFailing "webhook-failing" Warning;
    /// Alerts cannot be delivered by mail.
    MailFailing "mail-failing" Warning;
    /// A problem without a kind of its own.
    #[default]
    Other "other" Warning;
    /// A pool has less than 30 % free.
    PoolFilling "pool-filling" Info;
    /// A volume is paused or frozen.
    CachePaused "cache-paused" Info;
    /// Flushes of a volume are answered from memory.
    VolatileWrites "volatile-writes" Info;
    /// Clean pages on flash were dropped.
    PagesDropped "pages-dropped" Info;
    /// Hosts of the fleet run different versions.
    FleetVersionsMixed "fleet-versions-mixed" Info;
    /// Some volumes have no metrics of their own.
    MetricsLeftOut "metrics-left-out" Info;
}

impl fmt::Display for AlertKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The acknowledgement of an active alert; it ends with the alert.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AlertAcknowledgement {
    /// The user or the token.
    pub by: String,
    /// Time, in milliseconds since 1970.
    pub at_unix_ms: u64,
}

/// A silence: until its end, no channel gets messages about an alert of that kind and subject.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SilenceReport {
    /// The identifier of the alert, active or not.
    pub id: String,
    /// The user or the token that silenced it.
    pub by: String,
    /// End, in milliseconds since 1970.
    pub until_unix_ms: u64,
    /// The reason that was given.
    #[schema(required)]
    pub reason: Option<String>,
}

/// An active alert.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AlertReport {
    /// Identifier for commands: the kind, and after a colon the subject if there is one.
    #[serde(default)]
    #[schema(required)]
    pub id: String,
    /// Kind.
    pub kind: AlertKind,
    /// Severity.
    pub severity: Severity,
    /// The volume, device or part of the daemon concerned; null for the whole daemon.
    #[schema(required)]
    pub subject: Option<String>,
    /// Start, in milliseconds since 1970.
    pub since_unix_ms: u64,
    /// Cause.
    pub cause: String,
    /// Effect.
    pub effect: String,
    /// Remedy.
    pub remedy: String,
    /// The acknowledgement; null without one.
    #[serde(default)]
    #[schema(required)]
    pub acknowledged: Option<AlertAcknowledgement>,
    /// The silence in force; null without one.
    #[serde(default)]
    #[schema(required)]
    pub silenced: Option<SilenceReport>,
}

/// State of the delivery of alerts to one receiver.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DeliveryHealth {
    /// Destination, without secrets.
    pub to: String,
    /// Delivered messages.
    pub delivered: u64,
    /// Failed attempts.
    pub failures: u64,
    /// Dropped messages.
    pub dropped: u64,
    /// Waiting messages.
    pub waiting: u64,
    /// Error of the last attempt; null if it succeeded.
    #[schema(required)]
    pub failed: Option<String>,
}

/// A channel by which alerts reach administrators.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum AlertChannel {
    /// A POST request to a receiver.
    Webhook,
    /// Mail.
    Mail,
}

impl AlertChannel {
    /// Its name, as in JSON.
    pub fn name(self) -> &'static str {
        match self {
            AlertChannel::Webhook => "webhook",
            AlertChannel::Mail => "mail",
        }
    }
}

/// Result of a test of one channel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ChannelTestReport {
    /// The channel.
    pub channel: AlertChannel,
    /// Destination, without secrets.
    pub to: String,
    /// The receiver's answer, or why there was none; null if the receiver accepted the message.
    #[schema(required)]
    pub error: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kind_has_one_name_and_the_most_severe_kinds_come_first() {
        for kind in AlertKind::ALL {
            assert_eq!(serde_json::to_value(kind).expect("text"), kind.name());
        }
        assert!(AlertKind::ALL.is_sorted_by_key(|kind| kind.severity()) && AlertKind::ALL.is_sorted());
    }
}
