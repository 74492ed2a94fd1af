//! The front end in the simulated world: service, and isolation from misbehaving initiators.

mod bounds;
mod client;
mod data;
mod ends;
mod fixture;
mod management;
mod notices;
mod sessions;
