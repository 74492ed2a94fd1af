//! End to end: one binary, so that the daemon is built once and the tests share the machine's cores.

mod advice;
mod api;
mod block_device;
mod browser;
mod calm;
mod chained;
mod checker;
mod clients;
mod configuration;
mod events;
mod filesystem;
mod fio;
mod flash;
mod history;
mod hostile;
mod kill;
mod lifecycle;
mod memory;
mod powercut;
mod prometheus;
mod protocol;
mod tls;
mod tls_http;
mod top;
mod traces;
mod workload;
