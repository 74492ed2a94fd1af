//! One file a command.

pub mod check_config;
