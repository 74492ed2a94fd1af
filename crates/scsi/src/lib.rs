//! A SCSI block device server (SPC-4, SBC-3) over the engine's volumes, for any transport.
//!
//! A [`Target`] is a set of numbered units, each in front of a volume; a transport tells it of initiators ([`Nexus`]) and hands it their
//! commands with a way to fetch their data ([`DataOut`]) and to send them some ([`DataIn`]). `opcodes.rs` is the one list of commands:
//! what is decoded, refused, let past a reservation and reported as supported all comes from it. `commands/` has a file a family.

mod absent;
mod access;
mod attention;
mod cdb;
mod commands;
mod exchange;
mod failure;
mod identity;
mod lun;
mod nexus;
mod opcodes;
mod reservations;
mod sense;
mod status;
mod target;
mod tasks;
mod unit;

pub use absent::Absent;
pub use access::AccessList;
pub use attention::Attention;
pub use exchange::{Cancel, Command, DataIn, DataOut, Expected, Gone, SENT_AT_ONCE_BYTES_MAX};
pub use identity::Identity;
pub use lun::Lun;
pub use nexus::{Initiator, Nexus};
pub use opcodes::name_of;
pub use reservations::{Keep, Keeper, RecordError, check_kept};
pub use status::{Outcome, Status};
pub use target::{AddError, Removed, Target};
pub use unit::{Provisioned, UnitSpec};
