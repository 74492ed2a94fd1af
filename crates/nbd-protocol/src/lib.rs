//! The NBD wire format: no I/O, allocations bounded by limits, no panic on any input.
//!
//! Both directions are included, for the front end (server) and for the backing (client). A decoder is stateless: it
//! takes the received bytes and returns "more bytes needed", a value with its length, or an error. Source: the
//! protocol's specification, `doc/proto.md` of the NetworkBlockDevice project.

pub mod command;
pub mod errno;
pub mod flags;
pub mod greeting;
pub mod info;
pub mod limits;
pub mod meta;
pub mod option;
pub mod reply;
pub mod request;
pub mod step;
mod wire;

pub use command::Command;
pub use errno::Errno;
pub use option::{OptionHeader, OptionKind, OptionReplyHeader, OptionReplyKind};
pub use reply::{ChunkKind, ReplyHeader};
pub use request::Request;
pub use step::{Decoded, ProtocolError, Step};
