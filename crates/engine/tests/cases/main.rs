//! The hostile cases that need no flash, in the simulated world, named after what broke other caches.

mod all_dirty;
mod backing_dies;
mod every_policy;
mod flush_ends;
mod idle;
mod resize;
mod scans;
mod setting;
mod spindles;
mod state_matrix;
