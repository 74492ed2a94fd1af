//! Where registrations are kept over a restart.

use std::future::Future;
use std::pin::Pin;

/// What keeping ends in: durable, or why not.
pub type Keep = Pin<Box<dyn Future<Output = Result<(), String>>>>;

/// Keeps a record for each volume, by its incarnation, in place of the one before.
///
/// When it says that a record is kept, that one is found after a crash; until then, that one or the one before.
pub trait Keeper {
    /// Keeps `record`. An empty one need not be found.
    fn keep(&self, incarnation: u64, record: Vec<u8>) -> Keep;
}
