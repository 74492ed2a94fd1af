//! Event log, alerts, and their delivery by webhook and mail.
//!
//! Callers never wait for a disk or a network: the log and each receiver have a thread each, behind bounded queues.
//!
//! ```text
//! log.rs          the newest events in memory, and the queries over them
//! file.rs         the event files: lines written, lines read, their size limit
//! audit.rs        the text of the event that records a request for a change
//! changes.rs      differences between two status samples, and the effect of requested changes
//! alerts/         the list of alert kinds, the state kept to detect them, when they are raised and cleared
//! channels.rs     the configured receivers of alerts, and tests of them
//! delivery.rs     the queue of one receiver: attempts, pauses, dropped messages
//! authorities.rs  trusted CAs, and the texts of failed handshakes
//! webhook/        delivery by HTTP
//! mail/           delivery by SMTP
//! ```
//!
//! Invariants:
//!
//! 1. An event's number is larger than the number of every earlier event that is still known, across restarts too.
//! 2. An appended event can be queried at once. An event that the file lacks is counted as lost; no caller waits for
//!    the file.
//! 3. Events, bytes per event, files, alerts and messages are all bounded.

pub mod alerts;
mod audit;
mod authorities;
mod changes;
mod channels;
mod delivery;
mod file;
mod log;
mod mail;
#[cfg(test)]
mod test_certificate;
mod webhook;

pub use audit::{RequestedChange, requested_change};
pub use changes::{ChangeScope, Tracker};
pub use channels::{Channels, ChannelsConfig};
pub use file::read;
pub use log::{EventFilter, Events, NewEvent, SAMPLE_EVENTS_MAX};
pub use mail::{Encryption, Login, MailConfig, MailServer, Mailbox, RECIPIENTS_MAX, parse_mailbox};
pub use webhook::{Address, Receiver};
