//! A server that exists for one disk of this process, such as a helper process that it has started.

use seam::DiskError;

/// The disk's view of its server. Dropping it ends the server: the connection has ended by then.
pub trait DedicatedServer {
    /// Identifies the storage behind the export; no other storage has this identity.
    fn identity(&self) -> String;

    /// Why no request can ever succeed again; `None` while the server serves or is restarted.
    fn lost(&self) -> Option<&DiskError>;
}
