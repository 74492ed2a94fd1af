//! The latest attempt to destage evidence of a volume's backing (`destage/evidence.rs`).

use std::cell::Cell;

use seam::Nanos;

/// Begin of the latest attempt, and whether it has ended.
#[derive(Default)]
pub struct EvidenceAttempt {
    began_at: Cell<Option<Nanos>>,
    is_running: Cell<bool>,
}

impl EvidenceAttempt {
    /// Begins an attempt, unless one is running or one began less than `interval` ago.
    pub fn begin(&self, now: Nanos, interval: Nanos) -> bool {
        let is_due = self.began_at.get().is_none_or(|began_at| now.since(began_at) >= interval);
        if self.is_running.get() || !is_due {
            return false;
        }
        self.began_at.set(Some(now));
        self.is_running.set(true);
        true
    }

    /// Ends the attempt.
    pub fn end(&self) {
        self.is_running.set(false);
    }

    /// True while an attempt is running.
    pub fn is_running(&self) -> bool {
        self.is_running.get()
    }

    /// Begin of the attempt in progress.
    pub fn running_since(&self) -> Option<Nanos> {
        self.began_at.get().filter(|_| self.is_running.get())
    }
}
