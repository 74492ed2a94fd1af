//! A server that exists for one disk of this process, such as a helper process that it has started.

use std::pin::Pin;

use seam::{DiskError, DiskResult, Lineage, Nanos};

/// The end of a change that a server makes.
pub type Change = Pin<Box<dyn Future<Output = DiskResult<()>>>>;

/// The disk's view of its server. Dropping it ends the server: the connection has ended by then. The server answers a
/// write when it is durable, so that a flush can be repeated on another connection.
pub trait DedicatedServer {
    /// Ends the server, as dropping it does.
    fn end(&self);

    /// Identifies the storage behind the export; no other storage has this identity.
    fn identity(&self) -> String;

    /// The lineage of this process's ownership of the storage.
    fn lineage(&self) -> Option<Lineage>;

    /// Why requests fail for now; `None` while they are served, or wait for a server that is started again.
    fn failure(&self) -> Option<DiskError>;

    /// Time since the last proof that the server owns the storage, once that is too long
    /// ([`seam::Disk::unproven_for`]).
    fn unproven_for(&self) -> Option<Nanos>;

    /// Marks the storage as lacking flushed writes, or removes the mark ([`seam::Disk::mark_undestaged`]).
    fn mark_undestaged(&self, is_marked: bool) -> Change;

    /// Why no request can ever succeed again; `None` while the server serves or is restarted.
    fn lost(&self) -> Option<&DiskError>;
}
