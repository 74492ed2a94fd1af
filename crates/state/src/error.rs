//! Errors of the state directory, with their remedies.

use std::fmt;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::time::Duration;

use format_version::NewerFormat;

use super::trust::UNKNOWN_CONFIG;

/// Remedy for a directory on a file system that is mounted read-only.
pub const READ_ONLY_REMEDY: &str = "remount its file system read-write, or correct `directory` in [state]";

/// Remedy for a damaged file; `config` is the configuration file.
fn rebuild_remedy(config: &dyn fmt::Display) -> String {
    format!(
        "restore its newest copy, or stop the daemon and rebuild the records from the flash devices: hotset state \
         rebuild --config {config}"
    )
}

/// Reason why the state directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    /// A call of the operating system failed.
    #[error("state directory {path}: cannot {doing}: {error}")]
    Io {
        /// The failed action.
        doing: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// Error of the system.
        error: io::Error,
    },
    /// The directory does not answer: its disk hangs, or its server is unreachable.
    #[error(
        "state directory {path} does not answer (for {} s): changes that need a durable record fail; check its disk",
        .time.as_secs()
    )]
    Hangs {
        /// The directory.
        path: PathBuf,
        /// Time without an answer.
        time: Duration,
    },
    /// Another daemon holds the directory.
    #[error(
        "state directory {path} is in use by another hotset (process {holder}); stop that process, or set another \
         directory in [state]"
    )]
    Locked {
        /// The directory.
        path: PathBuf,
        /// Process that holds the directory, as recorded in the lock file.
        holder: String,
    },
    /// The file was written by a newer version and stays unchanged.
    #[error("{path} was {newer}; start that version, or restore a copy of the file that this version has written")]
    Newer {
        /// The file.
        path: PathBuf,
        /// Its format.
        newer: NewerFormat,
    },
    /// The file is damaged.
    #[error("{path} is damaged ({detail}): {}", rebuild_remedy(&UNKNOWN_CONFIG))]
    Damaged {
        /// The file.
        path: PathBuf,
        /// Error of the parser.
        detail: String,
    },
}

impl StateError {
    /// The error, and its remedy where the operating system's reason has one. `config` is the configuration file.
    pub fn describe(&self, config: &Path) -> String {
        let reason = match self {
            StateError::Io { error, .. } => Some(error.kind()),
            StateError::Damaged { path, detail } => {
                let remedy = rebuild_remedy(&config.display());
                return format!("{} is damaged ({detail}): {remedy}", path.display());
            }
            _ => None,
        };
        match reason {
            Some(ErrorKind::ReadOnlyFilesystem) => format!("{self}; {READ_ONLY_REMEDY}"),
            Some(ErrorKind::PermissionDenied) => format!(
                "{self}; give the user of this process write access there (`chown`, `chmod`), or correct `directory` \
                 in [state]"
            ),
            Some(ErrorKind::StorageFull) => format!("{self}; free space there"),
            _ => self.to_string(),
        }
    }
}

#[cfg(test)]
mod tests {
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
            let text = error.describe(Path::new("/etc/other.toml"));
            assert!(text.contains("/srv/state/lock") && text.contains(remedy), "{text}");
        }
    }

    #[test]
    fn damaged_file_has_the_rebuild_with_the_configuration_as_remedy() {
        let error = StateError::Damaged { path: PathBuf::from("/srv/state/state.json"), detail: "cut".to_owned() };
        let text = error.describe(Path::new("/etc/other.toml"));
        let remedy = "stop the daemon and rebuild the records from the flash devices: hotset state rebuild --config \
                      /etc/other.toml";
        assert!(text.ends_with(remedy), "{text}");
        assert_eq!(error.to_string(), text.replace("/etc/other.toml", "FILE"));
    }
}
