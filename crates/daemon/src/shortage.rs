//! Out of file descriptors: told once, however often clients are tried again, and once more when it is over.

use rustix::process::{Resource, getrlimit};

use super::daemon::Daemon;
use terminal::log;

/// Looks, a second apart, without a client that could not be let in, after which it is over.
const QUIET_LOOKS: u32 = 10;

/// Whether descriptors are short.
#[derive(Default)]
pub struct Shortage {
    /// Clients that could not be let in, by the last look.
    seen: u64,
    /// Looks that it will take until it is over; 0 where it is.
    left: u32,
}

impl Shortage {
    /// Takes how many clients could not be let in so far: true where a shortage begins, false where it ends.
    fn look(&mut self, so_far: u64) -> Option<bool> {
        let before = self.left;
        let is_new = std::mem::replace(&mut self.seen, so_far) != so_far;
        self.left = if is_new { QUIET_LOOKS } else { before.saturating_sub(1) };
        match (before, self.left) {
            (0, 1..) => Some(true),
            (1.., 0) => Some(false),
            _ => None,
        }
    }
}

impl Daemon {
    /// Tells where file descriptors have run out, or are there again. To be called each second.
    pub(super) fn look_at_descriptors(&self, shortage: &mut Shortage) {
        let Some(begins) = shortage.look(seam::real::shortages()) else { return };
        let text = match begins {
            true => {
                let limit = getrlimit(Resource::Nofile).current;
                let limit = limit.map_or_else(|| "no limit".to_owned(), |limit| limit.to_string());
                format!(
                    "no file descriptor is left (of {limit}): new clients wait until others leave; raise LimitNOFILE= of the service, \
                     or have fewer clients. One is kept for the control socket"
                )
            }
            false => "there are file descriptors again".to_owned(),
        };
        if begins {
            log::error(&text)
        } else {
            log::info(&text)
        }
        self.journal.note_daemon(&text);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shortage_is_told_once_and_its_end_once() {
        let mut shortage = Shortage::default();
        let mut told = Vec::new();
        for (at, so_far) in [0, 0, 5, 15, 15, 25].into_iter().chain([25; 20]).chain([26]).enumerate() {
            told.extend(shortage.look(so_far).map(|begins| (at, begins)));
        }
        assert_eq!(told, [(2, true), (15, false), (26, true)]);
    }
}
