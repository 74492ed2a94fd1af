//! `[history]`: what is kept of the past.

use super::problem::Source;
use super::read::{At, Section, Size};
use units::show_bytes;

/// Bytes where nothing is said.
const SIZE: u64 = 1 << 30;
/// The least that holds something.
const SIZE_MIN: u64 = 32 << 20;

/// What is kept of the past.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HistoryConfig {
    /// Bytes that it may take in the state directory; 0: nothing is kept.
    pub size_bytes: u64,
}

impl Default for HistoryConfig {
    fn default() -> Self {
        HistoryConfig { size_bytes: SIZE }
    }
}

pub(super) fn read_history(section: &Section<'_>, source: &mut Source<'_>) -> HistoryConfig {
    let Some(At { value: Size(size_bytes), span }) = section.get("size", source) else {
        return HistoryConfig::default();
    };
    if (1..SIZE_MIN).contains(&size_bytes) {
        let what = format!("{} are too few for a history", show_bytes(size_bytes));
        source.problem(&span, what, format!("give at least {}, or \"0\" for none", show_bytes(SIZE_MIN)));
    }
    HistoryConfig { size_bytes }
}
