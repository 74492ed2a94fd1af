//! The HTTP interface: routes, metrics, the stream, and who may do what.
//!
//! Everything that is shown or done goes through the control messages, so that commands, API and page cannot disagree. The data path knows
//! nothing of this crate.
//!
//! ```text
//! server.rs    connections: how many, how large, how long
//! guard.rs     every request: whose host, whose token, what for; every change in the log
//! access/      tokens, sessions, log-in links, the rules
//! routes/      a file a route
//! metrics/     what Prometheus scrapes: a list of families
//! stream/      one sample a second for all clients
//! ```

pub mod access;
mod asker;
mod extract;
mod guard;
mod metrics;
mod patient;
mod problem;
mod routes;
mod server;
mod stream;
pub mod totals;

pub use access::{Access, LINK_TIME, Token};
pub use server::{Options, encrypted, listen, serve};
