//! Storage of registrations that survive a restart.

use std::future::Future;
use std::pin::Pin;

use engine::VolumeId;

/// Completion of [`Keeper::keep`]: the record is durable, or the reason why not.
pub type Keep = Pin<Box<dyn Future<Output = Result<(), String>>>>;

/// Stores one record for each volume incarnation, replacing the previous record.
///
/// After completion a crash preserves the new record; before completion it preserves the new or the previous one.
pub trait Keeper {
    /// Stores `record`. An empty record need not be found again.
    fn keep(&self, incarnation: VolumeId, record: Vec<u8>) -> Keep;
}
