//! The binary's parts: configuration, state directory, wiring, commands. Everything else lives in the other crates.

pub mod cli;
mod commands;
