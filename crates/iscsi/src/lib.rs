//! The iSCSI front end (RFC 7143): logins, sessions, and the transport of commands and data to a SCSI target.
//!
//! `server` accepts connections and lists sessions, `login` negotiates a session, `session` serves it. Commands that
//! need no waiting are answered where they are decoded; every other command is a task. The reading half of a session
//! waits only for its own replies to leave, so that it answers pings even while disks hang.

mod login;
mod options;
mod refused_logins;
mod server;
mod session;

pub use iscsi_protocol::login::Credentials;
pub use iscsi_protocol::name::check as check_name;
pub use options::{ChapUser, Options};
pub use refused_logins::RefusedLogin;
pub use server::{Server, ServerStats, SessionStats};
pub use session::SlowCommand;
