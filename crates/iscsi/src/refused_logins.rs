//! Recently refused logins, for reports: a bounded list, because refused initiators are not authenticated and choose
//! their names freely.

use std::collections::VecDeque;

use iscsi_protocol::login::Refusal;
use seam::Nanos;

/// Maximum number of entries. Further refusals within [`ENTRY_LIFETIME`] are only counted by the server.
const ENTRIES_MAX: usize = 16;
/// Time for which an entry is kept after its last refusal.
const ENTRY_LIFETIME: Nanos = Nanos::from_secs(60);

/// Refused logins of one initiator for one reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefusedLogin {
    /// The initiator's name as it claims; empty if it sent none.
    pub initiator: String,
    /// The reason.
    pub refusal: Refusal,
    /// Refusals since the entry was made.
    pub count: u64,
    /// Time of the last refusal.
    pub last: Nanos,
}

/// The entries, the oldest first.
#[derive(Default)]
pub(crate) struct RefusedLogins(VecDeque<RefusedLogin>);

impl RefusedLogins {
    /// Adds a refusal.
    pub(crate) fn add(&mut self, initiator: &str, refusal: Refusal, now: Nanos) {
        self.remove_expired(now);
        let entry = self.0.iter_mut().find(|entry| entry.initiator == initiator && entry.refusal == refusal);
        if let Some(entry) = entry {
            (entry.count, entry.last) = (entry.count + 1, now);
        } else if self.0.len() < ENTRIES_MAX {
            self.0.push_back(RefusedLogin { initiator: initiator.to_owned(), refusal, count: 1, last: now });
        }
    }

    /// The entries as of `now`.
    pub(crate) fn list(&mut self, now: Nanos) -> Vec<RefusedLogin> {
        self.remove_expired(now);
        self.0.iter().cloned().collect()
    }

    fn remove_expired(&mut self, now: Nanos) {
        self.0.retain(|entry| now.since(entry.last) < ENTRY_LIFETIME);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_are_grouped_bounded_and_expire() {
        let mut logins = RefusedLogins::default();
        let seconds = Nanos::from_secs;
        logins.add("iqn.a:1", Refusal::Authentication, seconds(1));
        logins.add("iqn.a:1", Refusal::Authentication, seconds(2));
        logins.add("iqn.a:1", Refusal::Authorization, seconds(2));
        let counts: Vec<_> = logins.list(seconds(3)).iter().map(|login| (login.refusal, login.count)).collect();
        assert_eq!(counts, [(Refusal::Authentication, 2), (Refusal::Authorization, 1)]);
        for number in 0..100 {
            logins.add(&format!("iqn.b:{number}"), Refusal::Authentication, seconds(3));
        }
        assert_eq!(logins.list(seconds(3)).len(), ENTRIES_MAX);
        assert_eq!(logins.list(seconds(64)), []);
    }
}
