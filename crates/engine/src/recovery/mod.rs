//! Recovery of a volume before it is served: from the flash log, and from the memory of a killed process.

mod log_records;
mod persisted_memory;
