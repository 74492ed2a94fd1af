//! The iSCSI wire format and log-in negotiation alone: no I/O, no allocation that a peer could make large, no panic on any
//! input.
//!
//! [`Framing`] finds a PDU in the bytes that have arrived, [`Request`] and [`Response`] are what its header says (both
//! directions of both, for the front end and for what tests it), [`text`] is the key=value pairs, [`login`] agrees on them as a
//! state machine that is fed PDU by PDU. Source: RFC 7143; section numbers in comments are its own.

pub mod framing;
pub mod limits;
pub mod login;
pub mod name;
pub mod request;
pub mod response;
pub mod step;
pub mod text;
pub mod window;
mod wire;

pub use framing::{Frame, Framing};
pub use request::{Request, RequestBody};
pub use response::{Response, ResponseBody};
pub use step::{Broken, Decoded, Step};
pub use window::Window;

/// Bytes of a basic header segment.
pub const HEADER_BYTES: usize = 48;

/// A basic header segment as it goes over the wire.
pub type Header = [u8; HEADER_BYTES];

/// A task tag that names no task.
pub const NO_TAG: u32 = u32::MAX;
