//! The NBD front end: negotiates, decodes, calls the engine, encodes.
//!
//! `server` accepts, `handshake` talks a client into an export, `connection` serves its requests. A request that the engine
//! can serve at once is served where it was decoded, without a task; the others become tasks, whose replies leave with
//! whatever else is ready. The state of one client is its connection's alone: whatever it does costs nobody else anything.

mod connection;
mod errno;
mod exports;
mod half_open;
mod handover;
mod handshake;
mod negotiation;
mod options;
mod server;
mod shares;
mod tls;

pub use exports::{Export, Exports, Listed};
pub use handover::{Handed, NoTerms, NoWay, Terms};
pub use options::Options;
pub use server::{Server, ServerStats};
pub use tls::Tls;
