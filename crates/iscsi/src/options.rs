//! What a server is told to be: who may come in, limits and time-outs.

use iscsi_protocol::login::Credentials;
use scsi::AccessList;
use seam::Nanos;

/// A server's rules and limits. The defaults fit a daemon that serves some dozens of hosts.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where initiators are told to connect, `host:port` each; none: where the asking one has connected to.
    pub announce: Vec<String>,
    /// Who may log in.
    pub access: AccessList,
    /// What they prove their names with; none: a name is believed.
    pub chap_users: Vec<ChapUser>,
    /// Sessions at once; past it a log-in is refused.
    pub sessions_max: usize,
    /// Connections that are not logged in at once; past it the oldest of them is closed.
    pub logins_max: usize,
    /// Time that an initiator has to log in.
    pub login_timeout: Nanos,
    /// Commands of one session that are under way at once.
    pub commands_max: u32,
    /// Bytes of one session's replies that are held at once; past it its socket is not read. The replies of all sessions together
    /// hold at most a quarter of the core's buffers (or one reply alone, where that is less).
    pub held_bytes_max: usize,
    /// Time that an initiator has to take what was sent to it while others wait for the buffers which that holds; then it is sent
    /// away.
    pub stall_timeout: Nanos,
    /// Bytes of writes, from when they are asked for until their units have done with them, of all sessions together, shared evenly. What
    /// was let in unasked may be as much again.
    pub payload_bytes_max: usize,
    /// Silence after which an initiator is asked whether it is there, and after which as much again it is not.
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

/// What initiators prove their names with.
#[derive(Clone, Debug)]
pub struct ChapUser {
    /// A name and a secret.
    pub credentials: Credentials,
    /// The initiators that these prove; empty: all that no other user is bound to.
    pub initiators: AccessList,
}

impl ChapUser {
    /// One that is bound to no initiator.
    pub fn of_all(credentials: Credentials) -> ChapUser {
        ChapUser { credentials, initiators: AccessList::default() }
    }
}

impl Options {
    /// What proves the initiator of that name: credentials that are bound to it, and where there are none, those that are bound to no
    /// initiator. So a name that is bound cannot be claimed with the secret of another.
    pub(crate) fn credentials_of(&self, initiator: &str) -> Vec<&Credentials> {
        let is_its = |user: &&ChapUser| !user.initiators.is_empty() && user.initiators.admits(initiator);
        let bound: Vec<_> = self.chap_users.iter().filter(is_its).collect();
        let unbound = || self.chap_users.iter().filter(|user| user.initiators.is_empty()).collect();
        let users = if bound.is_empty() { unbound() } else { bound };
        users.into_iter().map(|user| &user.credentials).collect()
    }
}

/// The target's only portal group, and its port's number to SCSI.
pub(crate) const PORTAL_GROUP: u16 = 1;
/// Data that one R2T asks for, in bytes.
pub(crate) const R2T_BYTES: u32 = 256 << 10;
/// Data that are asked for before a unit wants them, in bytes.
pub(crate) const AHEAD_BYTES: u32 = 1 << 20;
/// Least that a session may hold of writes, however many there are.
pub(crate) const PAYLOAD_BYTES_MIN: usize = 2 * R2T_BYTES as usize;
/// Least that a session may hold of replies before its socket is not read.
pub(crate) const HELD_BYTES_MIN: usize = 256 << 10;
/// Immediate commands and task management functions of a session at once, beyond its window.
pub(crate) const IMMEDIATE_MAX: usize = 16;
/// What a PDU costs in simulated time, besides the unit's part: decoding, encoding, and its part of two system calls.
pub(crate) const PDU_COST: Nanos = Nanos(2_000);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bound_initiator_is_proved_by_no_other_users_secret() {
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
        let of = |name: &str| options.credentials_of(name).iter().map(|one| one.user.as_str()).collect::<Vec<_>>();
        assert_eq!(of("iqn.1998-01.com.vmware:esx2"), ["esx"]);
        assert_eq!(of("iqn.1998-01.com.VMware:esx1"), ["esx", "esx1"]);
        assert_eq!(of("iqn.1991-05.com.microsoft:b"), ["hyper"]);
        assert_eq!(of("iqn.1991-05.com.microsoft:c"), ["lab"]);
    }
}
