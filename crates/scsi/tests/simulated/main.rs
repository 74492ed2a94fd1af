//! The block device server in the simulated world: concurrent initiators, failing disks and random bytes.

mod absent;
mod arbitrary;
mod attentions;
mod blocks;
mod codes;
mod compare;
mod copies;
mod errors;
mod fixture;
mod identity;
mod initiator;
mod preemption;
mod reservations;
mod restart;
mod space;
