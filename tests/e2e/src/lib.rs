//! Shared parts of the end-to-end tests: the real daemon under real clients.
//!
//! [`fixture::Fixture`] is a folder with a configuration and backings, [`daemon::Daemon`] a running `hotset serve` in
//! it. [`client::Client`] is a small NBD client of the tests, and [`write_history::WriteHistory`] checks the content
//! after a crash.

pub mod authority;
pub mod blocks;
pub mod bridge;
pub mod cache_disk;
pub mod ceph;
pub mod certificate;
pub mod client;
pub mod daemon;
pub mod file_system;
pub mod fixture;
pub mod folder;
pub mod fuse;
pub mod guest;
pub mod http;
pub mod initiator;
pub mod kernel;
pub mod linux;
pub mod load;
pub mod loop_device;
pub mod manager;
pub mod network;
pub mod numbered;
pub mod pattern;
pub mod random;
pub mod refusal;
pub mod relay;
pub mod server;
pub mod sizes;
pub mod stopped_thread;
pub mod terminal;
pub mod tool;
pub mod write_history;
pub mod writer;
