//! Destage: dirty blocks on their way to the backing, in address order, merged, paced.
//!
//! A block is *dirty*, then in flight, then *written* (on the backing, not flushed there), then clean. Only a flush of the
//! backing that was issued after the write completed makes it clean; a failed flush, or a backing that reconnects, makes
//! everything written dirty again.

pub mod epochs;
pub mod failures;
pub mod order;
pub mod pump;
pub mod throttle;
pub mod writer;
pub mod zeroes;
