//! A SCSI block device server (SPC-4, SBC-3) over the engine's volumes, for any transport.
//!
//! A [`Target`] is a set of numbered units, each in front of a volume. A transport reports initiators to it ([`Nexus`])
//! and passes their commands, with a source of their data ([`DataOut`]) and a sink for answers ([`DataIn`]).
//! `opcodes.rs` is the one list of commands: decoding, checking, reservation conflicts and REPORT SUPPORTED OPERATION
//! CODES all use it. `commands/` has a file per family.

mod absent;
mod access;
mod attention;
mod cdb;
mod commands;
mod copy_results;
mod dispatch;
mod exchange;
mod failure;
mod identity;
mod lun;
mod nexus;
mod opcodes;
mod pool_space;
mod reservations;
mod sense;
mod status;
mod target;
mod tasks;
mod unit;

pub use absent::AbsentUnit;
pub use access::AccessList;
pub use attention::Attention;
pub use exchange::{CancelToken, Cancelled, Command, DataIn, DataOut, ExpectedLengths, SENT_AT_ONCE_BYTES_MAX};
pub use identity::Identity;
pub use lun::Lun;
pub use nexus::{Initiator, Nexus};
pub use opcodes::name_of;
pub use pool_space::{PoolSpace, SoftThreshold};
pub use reservations::{RecordError, ReservationStore, StoreFuture, check_record};
pub use status::{Outcome, Status};
pub use target::{AddError, RemovedUnit, Target};
pub use unit::UnitSpec;
