//! The engine in simulated worlds. One test binary, since each would compile the whole engine anew.

mod administrator;
mod cases;
mod changed_backing;
mod live_curves;
mod memory_partition;
mod policies;
mod pool_trace;
mod sabotage;
mod scenarios;
mod torture;
mod workload;
