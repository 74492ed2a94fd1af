//! Tests of the store in the simulated world: scenarios cut at every I/O, random scenarios with faults, members,
//! damage.

mod changes;
mod cuts;
mod forged;
mod inspect;
mod members;
mod model;
mod ownership;
mod paged;
mod paged_cuts;
mod paged_seeds;
mod pages;
mod sabotage;
mod seeds;
mod service;
mod workload;
mod world;
