//! The iSCSI front end: logs initiators in, and carries their commands to a SCSI target and the data both ways (RFC 7143).
//!
//! `server` accepts and keeps the list of sessions, `login` talks an initiator into one, `session` serves it. What a unit can answer
//! at once is answered where it was decoded; every other command is a task. The half that reads a session's socket waits for
//! its own replies to leave and for nothing else, so that a ping is answered whatever disks do.

mod login;
mod options;
mod server;
mod session;
mod shared;

pub use iscsi_protocol::login::Credentials;
pub use iscsi_protocol::name::check as check_name;
pub use options::{ChapUser, Options};
pub use server::{Server, ServerStats, SessionStats};
pub use session::SlowCommand;
