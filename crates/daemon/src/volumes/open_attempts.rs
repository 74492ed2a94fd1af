//! Planned attempts to open backings that could not be opened, with growing pauses, until their volumes are served.
//!
//! A helper thread checks that a path exists before it is opened. While such a check hangs, no further attempt is made
//! for that path.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use seam::real::PathCall;

use config::{BackingSpec, is_device};

/// Pause between the first failure and the next attempt.
const PAUSE_MIN: Duration = Duration::from_secs(1);
/// The longest pause between two attempts.
const PAUSE_MAX: Duration = Duration::from_secs(30);

/// The next attempt to open a volume's backing.
struct OpenAttempt {
    due: Instant,
    pause: Duration,
    /// The check that the path exists; only for backings that are paths.
    path_check: Option<PathCall<bool>>,
}

/// Planned attempts, by volume name.
#[derive(Default)]
pub struct OpenAttempts(BTreeMap<String, OpenAttempt>);

impl OpenAttempts {
    /// Plans the next attempt for a volume whose backing could not be opened.
    pub fn plan(&mut self, name: &str, now: Instant) {
        let pause = self.0.get(name).map_or(PAUSE_MIN, |last| (last.pause * 2).min(PAUSE_MAX));
        self.0.insert(name.to_owned(), OpenAttempt { due: now + pause, pause, path_check: None });
    }

    /// Cancels the attempts for a volume that is served, refused for another reason, or removed.
    pub fn cancel(&mut self, name: &str) {
        self.0.remove(name);
    }

    /// Names of the volumes with a planned attempt.
    pub fn names(&self) -> Vec<String> {
        self.0.keys().cloned().collect()
    }

    /// True when the volume's attempt is due and its path, if it has one, exists. Starts the check of the path if none
    /// is running.
    pub fn take_due(&mut self, name: &str, path: Option<PathBuf>, now: Instant) -> bool {
        let Some(attempt) = self.0.get_mut(name) else { return false };
        if attempt.due > now {
            return false;
        }
        let Some(path) = path else { return true };
        let check = || PathCall::start(&path.clone(), move |_| path.metadata().is_ok());
        let Some(answer) = attempt.path_check.get_or_insert_with(check).try_answer() else { return false };
        attempt.path_check = None;
        let exists = answer == Ok(true);
        if !exists {
            attempt.pause = (attempt.pause * 2).min(PAUSE_MAX);
            attempt.due = now + attempt.pause;
        }
        exists
    }
}

/// The remedy for a backing that cannot be opened, worded for its kind. After a failed `volume add` there is nothing to
/// retry.
pub fn remedy(backing: &BackingSpec, has_size: bool, is_known: bool, is_retried: bool) -> String {
    let action = match backing {
        BackingSpec::Path(path) if is_device(path) => {
            "attach the disk (cabling, `multipath -ll`, import of its pool) or correct the path".to_owned()
        }
        BackingSpec::Path(_) if is_known => {
            "mount its file system or restore the file; hotset creates no new file for a volume that had one. If it is \
             lost for good: create the file with `truncate`, then `hotset volume adopt`"
                .to_owned()
        }
        BackingSpec::Path(_) if has_size => {
            "mount its file system, or create its directory and give hotset write access".to_owned()
        }
        BackingSpec::Path(_) => {
            "mount its file system, correct the path, or add size = \"100 GiB\" to have the file created".to_owned()
        }
        BackingSpec::Nbd(target) => format!("start the server of {target}, or correct the address"),
        BackingSpec::Rbd(image) => {
            format!("check the address {image}, the cluster (`ceph status`), and the user's key and capabilities")
        }
        BackingSpec::Pool(_) if is_known => {
            "attach the pool's devices; hotset creates no new volume in place of one that the pool had".to_owned()
        }
        BackingSpec::Pool(_) => "attach the pool's devices, or add size = \"100 GiB\" to create the volume".to_owned(),
        BackingSpec::Sim(..) | BackingSpec::SimArray(_) => "free space in the state directory".to_owned(),
    };
    let retry = match is_retried {
        true => "The daemon retries automatically, and at once on a reload",
        false => "Then repeat the command",
    };
    format!("{action}. {retry}")
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn spec(text: &str) -> BackingSpec {
        BackingSpec::parse(text, Path::new("/srv")).expect("a backing")
    }

    #[test]
    fn remedy_matches_kind_of_backing() {
        let cases = [
            ("/dev/disk/by-id/wwn-1", false, false, "multipath"),
            ("/dev/shm/a.img", false, false, "size ="),
            ("/srv/a.img", false, false, "size ="),
            ("/srv/a.img", true, false, "directory"),
            ("/srv/a.img", true, true, "no new file"),
            ("rbd:vms/web", false, false, "ceph status"),
            ("nbd://10.0.0.1/x", false, false, "start the server of nbd://10.0.0.1"),
        ];
        for (text, has_size, is_known, word) in cases {
            let after_start = remedy(&spec(text), has_size, is_known, true);
            assert!(after_start.contains(word) && after_start.contains("reload"), "{text}: {after_start}");
            let after_command = remedy(&spec(text), has_size, is_known, false);
            assert!(after_command.contains(word) && !after_command.contains("retries"), "{text}: {after_command}");
        }
    }

    #[test]
    fn retry_pauses_double_up_to_a_limit() {
        let (mut attempts, mut now) = (OpenAttempts::default(), Instant::now());
        let mut pauses = Vec::new();
        for _ in 0..7 {
            attempts.plan("v", now);
            let planned_at = now;
            while !attempts.take_due("v", None, now) {
                now += Duration::from_millis(500);
            }
            pauses.push((now - planned_at).as_secs());
        }
        assert_eq!(pauses, [1, 2, 4, 8, 16, 30, 30]);
        attempts.cancel("v");
        assert!(!attempts.take_due("v", None, now));
    }
}
