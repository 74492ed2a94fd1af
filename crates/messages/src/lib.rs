//! Requests to a running daemon, its reports and its answers.
//!
//! Every action is one message: the command line, tests and the HTTP interface send the same, and the types of the web
//! page are generated from these. The crate does no I/O and depends on no crate of the data path: the daemon fills in
//! the reports.

pub mod answer;
pub mod plain;
pub mod report;
pub mod request;
mod status_sample;
pub mod token;
pub mod unix_time;

pub use answer::{Answer, ErrorKind, Failure, Progress, Reply};
pub use plain::{is_control, plain, plain_lines};
pub use report::{Counts, FlashReport, LatencyCountsReport, LatencyReport, StatusReport, VolumeReport, VolumeState};
pub use request::Request;
pub use status_sample::StatusSample;
pub use token::Role;
