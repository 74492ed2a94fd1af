//! The listening socket's file: its permissions, and the replacement of a stale file, never of a live one.

use std::fs::Permissions;
use std::io;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;

use crate::ServerError;

/// Listens at `path`, readable and writable by the owner and the group.
pub(crate) fn listen(path: &Path) -> Result<UnixListener, ServerError> {
    let to_error = |error| ServerError::Listen { path: path.to_owned(), error };
    if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
        std::fs::create_dir_all(folder).map_err(to_error)?;
    }
    let is_socket = std::fs::symlink_metadata(path).is_ok_and(|metadata| metadata.file_type().is_socket());
    if is_socket {
        if UnixStream::connect(path).is_ok() {
            return Err(ServerError::InUse { path: path.to_owned() });
        }
        std::fs::remove_file(path).map_err(to_error)?;
    }
    let listener = UnixListener::bind(path).map_err(to_error)?;
    std::fs::set_permissions(path, Permissions::from_mode(0o660)).map_err(to_error)?;
    listener.set_nonblocking(true).map_err(to_error)?;
    Ok(listener)
}

/// Removes the file if it exists.
pub(crate) fn remove(path: &Path) -> io::Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}
