//! The block device server in the simulated world: what initiators are promised, with many of them at once, with disks that fail, and
//! with bytes that mean nothing.

mod absent;
mod arbitrary;
mod attentions;
mod blocks;
mod compare;
mod copies;
mod errors;
mod identity;
mod initiator;
mod kept;
mod preempting;
mod reserving;
mod setting;
mod space;
