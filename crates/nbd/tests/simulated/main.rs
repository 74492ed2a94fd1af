//! The front end in the simulated world: service, isolation from misbehaving clients, and the NBD client as a backing.

mod backing;
mod bounds;
mod client;
mod crowds;
mod fixture;
mod handover;
mod handshake;
mod long_reads;
mod odd_servers;
mod transmission;
mod unaligned;
