//! Ownership of volumes on shared storage: one owner each, with an epoch, fenced at the storage.
//!
//! The crate is a state machine without I/O, clock and threads: [`Ownership`] takes an [`Event`] and the time, and
//! returns [`Action`]s. States, invariants and the fencing argument: `docs/design/fleet.md`.

mod action;
mod claim;
mod connection;
mod event;
mod ids;
mod lease;
mod ownership;
mod peer;
mod record;
mod request;
mod sabotage;
mod settings;
mod state;

pub use action::{Action, LossReason};
pub use event::{Command, CommandError, Event, StorageAnswer, StorageError};
pub use ids::{
    CommandId, ConnectionId, Epoch, ImageId, MachineGeneration, NodeId, NodeLock, OpId, RequestId, StorageClient,
};
pub use ownership::Ownership;
pub use peer::PeerMessage;
pub use record::{Expected, Header, Owner, OwnerRecord};
pub use request::{RequestError, RequestKind};
pub use sabotage::Sabotage;
pub use settings::Settings;
pub use state::StateKind;
