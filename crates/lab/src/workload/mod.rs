//! Workloads: what clients ask, drawn from a seed, for volumes in virtual time and for real clients alike.

pub mod gain;
pub mod pattern;
pub mod play;

pub use pattern::{Access, Pattern, Skew, Stream};
pub use play::{Figures, Load, play, quantile};
