//! Workloads: requests of clients, drawn from a seed, for volumes in virtual time and for real clients.

pub mod address_space;
pub mod catalogue;
pub mod exports;
pub mod file;
mod fio;
pub mod gain;
mod iometer;
pub mod load;
pub mod pattern;
pub mod running_jobs;
pub mod spec;
pub mod tile;
pub mod vdi;

pub use load::{Figures, Load, quantile, run_load};
pub use pattern::{Access, AccessKind, Pattern, Skew, Stream};
pub use running_jobs::{Completion, RequestTarget, RunningJobs};
pub use spec::{Job, Pace, Spec, Step};
