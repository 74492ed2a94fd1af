//! The engine's errors as the protocol names them.

use engine::RequestError;
use nbd_protocol::Errno;
use seam::DiskError;

/// What a client is told.
pub(crate) fn errno(error: &RequestError) -> Errno {
    match error {
        RequestError::Invalid => Errno::Inval,
        RequestError::ReadOnly | RequestError::Disk(DiskError::ReadOnly) => Errno::Perm,
        RequestError::NotFast | RequestError::Disk(DiskError::Unsupported) => Errno::NotSup,
        RequestError::ShuttingDown => Errno::Shutdown,
        RequestError::Disk(DiskError::NoSpace) => Errno::NoSpace,
        RequestError::Disk(_) | RequestError::Dirty(_) => Errno::Io,
    }
}
