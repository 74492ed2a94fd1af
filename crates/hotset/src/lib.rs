//! The binary's parts: configuration, state directory, wiring, commands. Everything else lives in the other crates.

mod advice;
pub mod cli;
mod commands;
mod demo;
mod export;
mod serve;
