//! The iSCSI wire format and login negotiation: no I/O, allocations bounded by limits, no panic on any input.
//!
//! [`Framing`] finds a PDU in received bytes. [`Request`] and [`Response`] are decoded headers; both can be encoded and
//! decoded, for the front end and for its tests. [`text`] holds the key=value pairs. [`login`] negotiates them as a
//! state machine that consumes PDUs. Source: RFC 7143, to which section numbers in comments refer.

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
pub use step::{Decoded, ProtocolError, Step};
pub use window::Window;

/// Bytes of a basic header segment.
pub const HEADER_BYTES: usize = 48;

/// A basic header segment in wire format.
pub type Header = [u8; HEADER_BYTES];

/// Reserved task tag that names no task.
pub const NO_TAG: u32 = u32::MAX;
