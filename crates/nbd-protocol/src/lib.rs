//! nbd-protocol
