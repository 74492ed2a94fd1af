//! Errors of the state directory in words, with their remedies.

use std::io::ErrorKind;

use state::StateError;

/// The error, and its remedy where the operating system's reason has one.
pub fn describe_state_error(error: &StateError) -> String {
    let reason = match error {
        StateError::Io { error, .. } => Some(error.kind()),
        _ => None,
    };
    let remedy = match reason {
        Some(ErrorKind::ReadOnlyFilesystem) => {
            "; remount its file system read-write, or correct `directory` in [state]"
        }
        Some(ErrorKind::PermissionDenied) => {
            "; give the user of this process write access there (`chown`, `chmod`), or correct `directory` in [state]"
        }
        Some(ErrorKind::StorageFull) => "; free space there",
        _ => "",
    };
    format!("{error}{remedy}")
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::path::PathBuf;

    use super::*;

    #[test]
    fn unwritable_directory_has_path_and_remedy() {
        for (kind, remedy) in [
            (ErrorKind::ReadOnlyFilesystem, "remount its file system read-write"),
            (ErrorKind::PermissionDenied, "write access"),
            (ErrorKind::StorageFull, "free space there"),
        ] {
            let path = PathBuf::from("/srv/state/lock");
            let error = StateError::Io { doing: "open its lock", path, error: io::Error::from(kind) };
            let text = describe_state_error(&error);
            assert!(text.contains("/srv/state/lock") && text.contains(remedy), "{text}");
        }
    }
}
