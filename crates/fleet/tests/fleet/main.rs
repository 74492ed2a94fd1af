//! Ownership in a simulated fleet: nodes, links, a model of RBD, guests that migrate, faults; histories are checked.

mod campaign;
mod checker;
mod client;
mod data_path;
mod events;
mod failure;
mod faults;
mod history;
mod node;
mod sabotage;
mod storage;
mod world;
