//! The front end in the simulated world: its promises to initiators, and to bad initiators' neighbours.

mod bounds;
mod client;
mod data;
mod ends;
mod management;
mod notices;
mod sessions;
mod setting;
