//! Workloads: requests of clients, drawn from a seed, for volumes in virtual time and for real clients.

pub mod catalogue;
pub mod exports;
pub mod file;
mod fio;
pub mod gain;
mod iometer;
pub mod pattern;
pub mod play;
pub mod player;
pub mod row;
pub mod spec;
pub mod tile;
pub mod vdi;

pub use pattern::{Access, Part, Pattern, Skew, Stream};
pub use play::{Figures, Load, play, quantile};
pub use player::{Crowd, Door, Ended};
pub use spec::{Job, Pace, Spec, Step};
