//! The lab: workloads, replacement policies over traces, and the engine in a simulated world with faults, checked
//! against a model of its promises.

pub mod advice;
pub mod content;
pub mod curve;
pub mod destage;
pub mod fixture;
pub mod markup;
pub mod modelled_pool;
pub mod random;
pub mod replay;
pub mod report;
pub mod scenario;
pub mod timed;
pub mod torture;
pub mod workload;
