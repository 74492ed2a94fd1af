//! What happened and who did it, what is wrong now, and who is told.
//!
//! Nobody waits for a disk or a network here: the log and the webhook have a thread each, behind bounded queues.
//!
//! ```text
//! log.rs        the newest events in memory, and what there is to be asked of them
//! file.rs       their files: lines in, lines out, their bound
//! asked.rs      what somebody asks to have changed, in words
//! changes.rs    what has changed from one sample to the next, and what somebody had changed
//! alerts/       what is wrong: the list of kinds, what is remembered to find them, when they are raised and cleared
//! webhook/      alerts on their way to whoever wants to be told
//! ```
//!
//! Invariants:
//!
//! 1. An event's number is larger than those of all events before it that are still known, over restarts too.
//! 2. What is noted is asked for at once; what a file lacks is counted as lost, never waited for.
//! 3. Nothing here grows without bound: events, bytes of each, files, alerts, messages.

pub mod alerts;
mod asked;
mod changes;
mod file;
mod log;
mod webhook;

pub use asked::{Asked, asked};
pub use changes::{Touched, Tracker};
pub use file::read;
pub use log::{EVENTS_TOLD, Events, Note, Wanted};
pub use webhook::{Address, Receiver, Webhook};
