//! The front end in the simulated world: service, isolation from misbehaving clients, and the NBD client as a backing.

mod backing;
mod bounds;
mod client;
mod connection_floods;
mod fixture;
mod handover;
mod handshake;
mod long_reads;
mod transmission;
mod unaligned;
mod unusual_servers;
