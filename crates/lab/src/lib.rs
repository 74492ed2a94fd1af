//! The lab: workloads, policies over traces, and the engine in a hostile simulated world, held against a model of the promises.

pub mod advice;
pub mod curve;
pub mod markup;
pub mod random;
pub mod replay;
pub mod report;
pub mod rig;
pub mod scenario;
pub mod timed;
pub mod torture;
pub mod workload;
