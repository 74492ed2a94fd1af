//! The control socket: the daemon's side, a command's side, and the identity of the client at the other end. The
//! link between hosts has the same wire format ([`Connections`], [`exchange`]).
//!
//! The messages that it carries are those of the crate `messages`.

mod actor;
pub mod client;
mod exchange;
pub mod server;
mod socket;
pub mod users;
mod wire;

pub use actor::Actor;
pub use client::{Client, ClientError};
pub use exchange::{ExchangeError, exchange, receive_request, send_result};
pub use server::{Connections, Handler, Limits, ProgressSender, ServerError, serve};
