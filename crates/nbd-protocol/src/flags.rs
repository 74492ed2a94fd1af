//! Bits of the handshake, of an export and of block status.

/// Handshake: the server (and the client) speak fixed newstyle.
pub const FIXED_NEWSTYLE: u16 = 1 << 0;
/// Handshake: no 124 zeroes after the answer to `EXPORT_NAME`.
pub const NO_ZEROES: u16 = 1 << 1;

/// Export: the other bits mean something.
pub const HAS_FLAGS: u16 = 1 << 0;
/// Export: writes are refused.
pub const READ_ONLY: u16 = 1 << 1;
/// Export: understands flush.
pub const SEND_FLUSH: u16 = 1 << 2;
/// Export: understands force-unit-access.
pub const SEND_FUA: u16 = 1 << 3;
/// Export: understands trim.
pub const SEND_TRIM: u16 = 1 << 5;
/// Export: understands write-zeroes.
pub const SEND_WRITE_ZEROES: u16 = 1 << 6;
/// Export: understands "do not fragment".
pub const SEND_DF: u16 = 1 << 7;
/// Export: a flush on one connection covers what was acknowledged on all.
pub const CAN_MULTI_CONN: u16 = 1 << 8;
/// Export: understands cache (prefetch).
pub const SEND_CACHE: u16 = 1 << 10;
/// Export: understands "fast or not at all" for write-zeroes.
pub const SEND_FAST_ZERO: u16 = 1 << 11;

/// Block status in `base:allocation`: nothing is allocated there.
pub const STATE_HOLE: u32 = 1 << 0;
/// Block status in `base:allocation`: reads as zeroes.
pub const STATE_ZERO: u32 = 1 << 1;

/// The metadata context that tells holes and zeroes.
pub const BASE_ALLOCATION: &str = "base:allocation";
