//! The binary's parts: configuration, state directory, wiring, commands. Everything else lives in the other crates.

mod advice;
pub mod cli;
mod commands;
pub mod config;
mod demo;
mod export;
mod log;
pub mod qos;
mod redact;
mod render;
mod serve;
pub mod share;
mod top;
