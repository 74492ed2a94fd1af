//! The front end in the simulated world: its promises to clients, to bad clients' neighbours, and to the backing that is its
//! own client.

mod backing;
mod bounds;
mod client;
mod crowds;
mod handover;
mod handshake;
mod long_reads;
mod odd_servers;
mod setting;
mod transmission;
mod unaligned;
