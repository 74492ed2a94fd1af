//! What `make bench` is made of.

pub mod ceiling;
