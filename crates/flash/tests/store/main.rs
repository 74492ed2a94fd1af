//! Tests of the store in the simulated world: crashes at every I/O, random scenarios with faults, members,
//! damage.

mod crash_points;
mod image_log;
mod inspect;
mod invalid_metadata;
mod kept_reads;
mod member_changes;
mod members;
mod model;
mod ownership;
mod page_crash_points;
mod paged;
mod paged_seeds;
mod pages;
mod relocation;
mod replay;
mod sabotage;
mod seeds;
mod service;
mod summaries;
mod workload;
mod world;
