//! Miss-ratio curves of traces: exact for LRU, by simulation for other policies.

mod exact;
mod knee;

pub use exact::LruCurve;
pub use knee::knee;
