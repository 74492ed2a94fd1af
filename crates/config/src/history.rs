//! `[history]`: the history of counters.

use super::problem::Source;
use super::read::{Located, Section, Size};
use units::show_bytes;

/// Default of `size` in bytes.
const SIZE: u64 = 1 << 30;
/// Minimum size in bytes that holds useful data.
const SIZE_MIN: u64 = 32 << 20;

/// The history of counters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HistoryConfig {
    /// Maximum bytes in the state directory; 0: no history.
    pub size_bytes: u64,
}

impl Default for HistoryConfig {
    fn default() -> Self {
        HistoryConfig { size_bytes: SIZE }
    }
}

/// Reads `[history]`.
pub(super) fn read_history(section: &Section<'_>, source: &mut Source<'_>) -> HistoryConfig {
    let Some(Located { value: Size(size_bytes), span }) = section.get("size", source) else {
        return HistoryConfig::default();
    };
    if (1..SIZE_MIN).contains(&size_bytes) {
        let fault = format!("{} are too few for a history", show_bytes(size_bytes));
        source.add_problem(&span, fault, format!("specify at least {}, or \"0\" for none", show_bytes(SIZE_MIN)));
    }
    HistoryConfig { size_bytes }
}
