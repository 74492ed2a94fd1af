//! A server that exists for one disk of this process, such as a helper process that it has started.

use seam::{DiskError, Lineage, Nanos};

/// The disk's view of its server. Dropping it ends the server: the connection has ended by then.
pub trait DedicatedServer {
    /// Identifies the storage behind the export; no other storage has this identity.
    fn identity(&self) -> String;

    /// The lineage of this process's ownership of the storage.
    fn lineage(&self) -> Option<Lineage>;

    /// Why requests fail for now; `None` while they are served, or wait for a server that is started again.
    fn failure(&self) -> Option<DiskError>;

    /// Time since the last proof that the server owns the storage, once that is too long
    /// ([`seam::Disk::unproven_for`]).
    fn unproven_for(&self) -> Option<Nanos>;

    /// Why no request can ever succeed again; `None` while the server serves or is restarted.
    fn lost(&self) -> Option<&DiskError>;
}
