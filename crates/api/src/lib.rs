//! The HTTP interface: routes, metrics, the stream and access control.
//!
//! All answers and changes go through the control messages, so that commands, API and page cannot disagree. The data
//! path does not depend on this crate.
//!
//! ```text
//! server.rs    connections and their limits: number, sizes, time-outs
//! guard.rs     checks of every request: host, token, role; the log of changes
//! access/      tokens, sessions, log-in links, the rules
//! shared.rs    options and handles that the server, the guard and the routes use
//! routes/      one file per route
//! metrics/     metric families for Prometheus
//! stream/      one sample per second for all clients
//! ```

pub mod access;
mod control_handle;
mod extract;
mod guard;
mod metrics;
mod problem;
mod routes;
mod server;
mod shared;
mod stream;
pub mod totals;

pub use access::{Access, LINK_TIME, Token};
pub use server::{listen, serve, with_alpn};
pub use shared::Options;
