//! Retry of volumes whose backing could not be opened, with growing pauses, until each is served.
//!
//! A helper thread checks that a path exists before it is opened. While such a check hangs, no further attempt is made
//! for that path: a dead network mount must not block a thread with every attempt.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use tokio::task::JoinHandle;

use super::daemon::{Daemon, Standing};
use config::{BackingSpec, is_device};
use logging::{self as log, VOLUME};

/// Pause between the first failure and the next attempt.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// The longest pause between two attempts.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// Interval at which due attempts are collected.
const LOOK_PAUSE: Duration = Duration::from_millis(250);

/// The next attempt to open a volume's backing.
struct Attempt {
    due: Instant,
    pause: Duration,
    /// The check that the path exists; only for backings that are paths.
    look: Option<JoinHandle<bool>>,
}

/// Planned attempts, by volume name.
#[derive(Default)]
pub(super) struct Attempts(BTreeMap<String, Attempt>);

impl Attempts {
    /// Plans the next attempt at a volume that could not be opened.
    pub(super) fn plan(&mut self, name: &str, now: Instant) {
        let pause = self.0.get(name).map_or(FIRST_PAUSE, |last| (last.pause * 2).min(LONGEST_PAUSE));
        self.0.insert(name.to_owned(), Attempt { due: now + pause, pause, look: None });
    }

    /// Cancels the attempts at a volume that is served, refused for another reason, or gone.
    pub(super) fn forget(&mut self, name: &str) {
        self.0.remove(name);
    }

    fn names(&self) -> Vec<String> {
        self.0.keys().cloned().collect()
    }

    /// True when the volume's attempt is due and its path, if it has one, exists. Starts the check of the path if none
    /// is running.
    fn take_due(&mut self, name: &str, path: Option<PathBuf>, now: Instant) -> bool {
        let Some(attempt) = self.0.get_mut(name) else { return false };
        if attempt.due > now {
            return false;
        }
        let Some(path) = path else { return true };
        match &attempt.look {
            Some(look) if !look.is_finished() => false,
            Some(_) => {
                let looked = attempt.look.take().and_then(FutureExt::now_or_never);
                let is_there = matches!(looked, Some(Ok(true)));
                if !is_there {
                    attempt.pause = (attempt.pause * 2).min(LONGEST_PAUSE);
                    attempt.due = now + attempt.pause;
                }
                is_there
            }
            None => {
                attempt.look = Some(tokio::task::spawn_blocking(move || path.metadata().is_ok()));
                false
            }
        }
    }
}

/// The remedy for a backing that cannot be opened, worded for its kind.
pub(super) fn remedy(backing: &BackingSpec, has_size: bool, is_known: bool) -> String {
    let what = match backing {
        BackingSpec::Path(path) if is_device(path) => {
            "attach the disk (cabling, `multipath -ll`, import of its pool) or correct the path".to_owned()
        }
        BackingSpec::Path(_) if is_known => {
            "mount its file system or restore the file; hotset makes no new file for a volume that had one".to_owned()
        }
        BackingSpec::Path(_) if has_size => {
            "mount its file system, or make its folder and let hotset write there".to_owned()
        }
        BackingSpec::Path(_) => {
            "mount its file system, correct the path, or add size = \"100 GiB\" to have the file created".to_owned()
        }
        BackingSpec::Nbd(target) => format!("start the server of {target}, or correct the address"),
        BackingSpec::Sim(..) | BackingSpec::SimArray(_) => "make room in the state directory".to_owned(),
    };
    format!("{what}. It is tried again by itself, and at once by a reload")
}

impl Daemon {
    /// Retries refused volumes until a stop is requested.
    pub(super) async fn retry_absent(self: Rc<Self>) {
        while !self.stop.is_stopping() {
            tokio::time::sleep(LOOK_PAUSE).await;
            self.retry_due().await;
        }
    }

    async fn retry_due(&self) {
        let mut due = Vec::new();
        let names = self.absent.borrow().names();
        for name in names {
            let known = self.volumes.borrow().get(&name).cloned();
            let Some(known) = known.filter(|known| matches!(known.standing, Standing::Refused(_))) else {
                self.absent.borrow_mut().forget(&name);
                continue;
            };
            let path = match &known.config.backing {
                // A file that the open will create does not exist yet, so its folder is checked instead.
                BackingSpec::Path(path) if known.config.size_bytes.is_some() && !is_device(path) => {
                    path.parent().map(ToOwned::to_owned)
                }
                BackingSpec::Path(path) => Some(path.clone()),
                _ => None,
            };
            if self.absent.borrow_mut().take_due(&name, path, Instant::now()) {
                due.push((name, known));
            }
        }
        if due.is_empty() || self.stop.is_stopping() {
            return;
        }
        let (mut busy, mut wanted, mut before) = (Vec::new(), Vec::new(), Vec::new());
        for (name, known) in due {
            // A change of this volume that is under way supersedes the retry.
            let Ok(begun) = self.begin(&name) else { continue };
            busy.push(begun);
            wanted.push((known.config, known.from_file));
            before.push((name, known.standing));
        }
        let results = self.attach_all(wanted, state::Acceptance::default()).await;
        for ((name, standing), result) in before.into_iter().zip(results) {
            match result {
                Ok(()) => {
                    log::info!(target: VOLUME, volume = name, "volume {name}: its backing is there now; it is served");
                }
                // Log a refusal only when it differs from the last one: repeating it every half minute would hide new
                // messages.
                Err(failure) if !matches!(&standing, Standing::Refused(said) if failure.message.ends_with(said)) => {
                    log::error!(target: VOLUME, volume = name, "{}", failure.message);
                }
                Err(failure) => log::debug!(target: VOLUME, volume = name, "{}", failure.message),
            }
        }
        drop(busy);
    }
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
            ("/srv/a.img", true, false, "folder"),
            ("/srv/a.img", true, true, "no new file"),
            ("nbd://10.0.0.1/x", false, false, "start the server of nbd://10.0.0.1"),
        ];
        for (text, has_size, is_known, word) in cases {
            let said = remedy(&spec(text), has_size, is_known);
            assert!(said.contains(word) && said.contains("reload"), "{text}: {said}");
        }
    }

    #[test]
    fn retry_pauses_double_up_to_a_limit() {
        let (mut attempts, mut now) = (Attempts::default(), Instant::now());
        let mut pauses = Vec::new();
        for _ in 0..7 {
            attempts.plan("v", now);
            let planned = now;
            while !attempts.take_due("v", None, now) {
                now += Duration::from_millis(500);
            }
            pauses.push((now - planned).as_secs());
        }
        assert_eq!(pauses, [1, 2, 4, 8, 16, 30, 30]);
        attempts.forget("v");
        assert!(!attempts.take_due("v", None, now));
    }
}
