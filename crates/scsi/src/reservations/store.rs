//! Storage of registrations that survive a restart.

use std::future::Future;
use std::pin::Pin;

use engine::VolumeId;

/// Completion of [`ReservationStore::store`]: the record is durable, or the reason for the failure.
pub type StoreFuture = Pin<Box<dyn Future<Output = Result<(), String>>>>;

/// Stores one record for each volume ID, replacing the previous record.
///
/// After completion a crash preserves the new record; before completion it preserves the new or the previous one.
pub trait ReservationStore {
    /// Stores `record`. An empty record need not be restored.
    fn store(&self, volume_id: VolumeId, record: Vec<u8>) -> StoreFuture;
}
