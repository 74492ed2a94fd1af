//! The mark of an image that lacks flushed writes which another host may have.

/// The mark.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mark {
    /// Identifies the mark, and the data.
    pub id: u64,
    /// The name of the host.
    pub host: String,
}

/// The name of the data of the mark with this ID.
pub fn show_mark_id(id: u64) -> String {
    format!("{id:016x}")
}

/// Parses the name of the data of a mark.
pub fn parse_mark_id(text: &str) -> Option<u64> {
    u64::from_str_radix(text, 16).ok()
}
