//! End to end: one binary, so that the daemon is built once and the tests share the machine's cores.

mod checker;
mod powercut;
