//! A storage pool: tiers of different devices, and slices that move to the tier that suits their load.
//!
//! [`heat`] measures the demand of each slice, [`planner`] decides which slices move. Both are pure functions of their
//! input: callers pass the time.

pub mod heat;
pub mod planner;
