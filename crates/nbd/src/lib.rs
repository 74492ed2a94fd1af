//! The NBD front end: negotiates, decodes requests, calls the engine, encodes replies.
//!
//! `server` accepts connections, `handshake` negotiates an export, `connection` serves requests. A request that the
//! engine serves without waiting is answered where it is decoded; other requests become tasks. Each connection has its
//! own state and limits, so that one client does not affect others.

mod connection;
mod errno;
mod exports;
mod half_open;
mod handover;
mod handshake;
mod negotiation;
mod options;
mod server;
mod shared_limits;
mod tls;

pub use exports::{Export, ExportEntry, Exports};
pub use handover::{HandedOverClient, NegotiatedTerms, ParseTermsError, TakeOverError};
pub use options::Options;
pub use server::{ClosedExport, Server, ServerStats};
pub use tls::Tls;
