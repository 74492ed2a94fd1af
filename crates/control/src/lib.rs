//! The messages that act on a running daemon, and the socket that carries them.
//!
//! Every action is one message: the command line, tests and a web API send the same. The data path knows nothing of this crate.

mod actor;
pub mod answer;
pub mod client;
pub mod moment;
pub mod plain;
pub mod report;
pub mod request;
mod sampled;
pub mod server;
mod socket;
pub mod token;
pub mod users;
mod wire;

pub use actor::Actor;
pub use answer::{Answer, ErrorKind, Failure, Progress, Reply};
pub use client::{Client, ClientError};
pub use plain::{is_control, plain, plain_lines};
pub use report::{Counts, FlashReport, LatencyCountsReport, LatencyReport, StatusReport, VolumeReport, VolumeState};
pub use request::Request;
pub use sampled::Sampled;
pub use server::{Handler, Limits, ProgressSender, ServerError, serve};
pub use token::Role;
