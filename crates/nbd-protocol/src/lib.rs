//! The NBD wire format alone: no I/O, no allocation that a peer could make large, no panic on any input.
//!
//! Both directions are here, for the front end that serves the protocol and for the backing that is its client. A decoder
//! takes the bytes that have arrived and says *more needed*, *here is one, so many bytes used*, or *broken*; it keeps no
//! state. Source: the protocol's specification, `doc/proto.md` of the NetworkBlockDevice project.

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
pub use step::{Broken, Decoded, Step};
