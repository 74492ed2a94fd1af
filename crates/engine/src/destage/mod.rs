//! Destage: writes dirty blocks to the backing in address order, merged and paced.
//!
//! A block is *dirty*, then in flight, then *written* (on the backing, not flushed there), then clean. Only a flush of
//! the backing issued after the write completed makes it clean. A failed flush, or a reconnected backing, makes all
//! written blocks dirty again.

pub mod evidence;
mod log_destage;
pub mod pump;
mod writer;
