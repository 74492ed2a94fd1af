//! Mapping of the engine's errors to NBD error codes.

use engine::RequestError;
use nbd_protocol::Errno;
use seam::DiskError;

/// The NBD error code of an engine's error.
pub(crate) fn errno(error: &RequestError) -> Errno {
    match error {
        RequestError::Invalid => Errno::Inval,
        RequestError::ReadOnly | RequestError::Disk(DiskError::ReadOnly) => Errno::Perm,
        RequestError::NotFast | RequestError::Disk(DiskError::Unsupported) => Errno::NotSup,
        RequestError::ShuttingDown | RequestError::MovedAway => Errno::Shutdown,
        RequestError::Disk(DiskError::NoSpace) => Errno::NoSpace,
        RequestError::Disk(_) | RequestError::Dirty(_) | RequestError::NotOwner => Errno::Io,
    }
}
