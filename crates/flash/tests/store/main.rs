//! The store in the simulated world: lives cut at every I/O, lives from seeds with faults, and what members and damage lead to.

mod changes;
mod cuts;
mod forged;
mod inspect;
mod life;
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
mod world;
