//! The control socket: the daemon's side, a command's side, and the identity of the client at the other end.
//!
//! The messages that it carries are those of the crate `messages`.

mod actor;
pub mod client;
pub mod server;
mod socket;
pub mod users;
mod wire;

pub use actor::Actor;
pub use client::{Client, ClientError};
pub use server::{Handler, Limits, ProgressSender, ServerError, serve};
