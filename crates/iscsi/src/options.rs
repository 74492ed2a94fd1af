//! Options of a server: access, limits and time-outs.

use iscsi_protocol::login::Credentials;
use scsi::AccessList;
use seam::Nanos;

/// Options of a server. The defaults fit a daemon that serves some dozens of hosts.
#[derive(Clone, Debug)]
pub struct Options {
    /// Portals reported by SendTargets, each `host:port`; if empty, the local address of the initiator's connection.
    pub announce: Vec<String>,
    /// Initiators that may log in.
    pub access: AccessList,
    /// CHAP users; if empty, logins need no authentication.
    pub chap_users: Vec<ChapUser>,
    /// Maximum number of sessions; further logins are refused.
    pub sessions_max: usize,
    /// Maximum number of connections in the login phase; one more closes the oldest.
    pub logins_max: usize,
    /// Time limit of the login phase.
    pub login_timeout: Nanos,
    /// Maximum number of a session's commands in flight.
    pub commands_max: u32,
    /// Maximum bytes of queued replies of a session; beyond it the socket is not read. The replies of all sessions
    /// together hold at most a quarter of the core's buffers, or one reply if that is more.
    pub held_bytes_max: usize,
    /// Time after which an initiator that does not receive its replies is disconnected, if other sessions wait for the
    /// buffers of these replies.
    pub stall_timeout: Nanos,
    /// Maximum bytes of write data of all sessions, divided evenly: solicited data from the R2T until the unit has
    /// consumed them. Unsolicited data may take as much again.
    pub payload_bytes_max: usize,
    /// Idle time after which an initiator is pinged; after the same time again without an answer the session ends.
    pub ping_after: Nanos,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            announce: Vec::new(),
            access: AccessList::default(),
            chap_users: Vec::new(),
            sessions_max: 256,
            logins_max: 64,
            login_timeout: Nanos::from_secs(15),
            commands_max: 128,
            held_bytes_max: 4 << 20,
            stall_timeout: Nanos::from_secs(5),
            payload_bytes_max: 64 << 20,
            ping_after: Nanos::from_secs(30),
        }
    }
}

/// A CHAP user.
#[derive(Clone, Debug)]
pub struct ChapUser {
    /// Name and secret.
    pub credentials: Credentials,
    /// Initiators that this user authenticates; if empty, all initiators that are bound to no user.
    pub initiators: AccessList,
}

impl ChapUser {
    /// A user that is bound to no initiator.
    pub fn of_all(credentials: Credentials) -> ChapUser {
        ChapUser { credentials, initiators: AccessList::default() }
    }
}

impl Options {
    /// Credentials that authenticate `initiator`: the bound ones, or the unbound ones if no user is bound to it. A
    /// bound name cannot be claimed with another user's secret.
    pub(crate) fn credentials_of(&self, initiator: &str) -> Vec<&Credentials> {
        let is_bound = |user: &&ChapUser| !user.initiators.is_empty() && user.initiators.admits(initiator);
        let bound: Vec<_> = self.chap_users.iter().filter(is_bound).collect();
        let unbound = || self.chap_users.iter().filter(|user| user.initiators.is_empty()).collect();
        let users = if bound.is_empty() { unbound() } else { bound };
        users.into_iter().map(|user| &user.credentials).collect()
    }
}

/// The only target portal group, and the relative target port identifier.
pub(crate) const PORTAL_GROUP: u16 = 1;
/// Maximum bytes that an R2T requests.
pub(crate) const R2T_BYTES_MAX: u32 = 256 << 10;
/// Bytes requested in advance of the unit's need.
pub(crate) const PREFETCH_BYTES: u32 = 1 << 20;
/// Smallest write-data quota of a session, whatever the number of sessions.
pub(crate) const PAYLOAD_QUOTA_BYTES_MIN: usize = 2 * R2T_BYTES_MAX as usize;
/// Smallest limit of queued reply bytes of a session.
pub(crate) const HELD_BYTES_MIN: usize = 256 << 10;
/// Maximum number of immediate commands and task management functions of a session, beyond its command window.
pub(crate) const IMMEDIATE_MAX: usize = 16;
/// Simulated processor time of a PDU outside the unit: decoding, encoding, and a fraction of two system calls.
pub(crate) const PDU_COST: Nanos = Nanos(2_000);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bound_initiator_is_not_authenticated_by_another_user() {
        let user = |name: &str, initiators: &[&str]| ChapUser {
            credentials: Credentials { user: name.to_owned(), secret: name.into(), mutual: None },
            initiators: AccessList::new(initiators),
        };
        let chap_users = vec![
            user("esx", &["iqn.1998-01.com.vmware:*"]),
            user("esx1", &["iqn.1998-01.com.vmware:esx1"]),
            user("hyper", &["iqn.1991-05.com.microsoft:a", "iqn.1991-05.com.microsoft:b"]),
            user("lab", &[]),
        ];
        let options = Options { chap_users, ..Options::default() };
        let users_of = |name: &str| {
            options.credentials_of(name).iter().map(|credentials| credentials.user.as_str()).collect::<Vec<_>>()
        };
        assert_eq!(users_of("iqn.1998-01.com.vmware:esx2"), ["esx"]);
        assert_eq!(users_of("iqn.1998-01.com.VMware:esx1"), ["esx", "esx1"]);
        assert_eq!(users_of("iqn.1991-05.com.microsoft:b"), ["hyper"]);
        assert_eq!(users_of("iqn.1991-05.com.microsoft:c"), ["lab"]);
    }
}
