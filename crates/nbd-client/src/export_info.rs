//! Properties of an export, which the handshake determines.

/// Properties of an export.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExportInfo {
    pub size_bytes: u64,
    pub flags: u16,
    /// Smallest request: 512 or 4096.
    pub logical_block_bytes: u32,
    /// Best alignment.
    pub preferred_block_bytes: u32,
    /// Longest read or write, a multiple of 4096.
    pub request_bytes_max: u32,
    /// The server sends structured replies (chunks).
    pub has_structured_replies: bool,
    /// The context id of `base:allocation` on this connection.
    pub allocation_context_id: Option<u32>,
}
