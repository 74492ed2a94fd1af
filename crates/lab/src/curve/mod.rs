//! Miss-ratio curves of traces: exact for an LRU, by playing for anything else.

mod exact;
mod knee;

pub use exact::Exact;
pub use knee::knee;
