//! States of the ownership of one volume at one node.

use crate::claim::{Claim, Recording};
use crate::ids::{Epoch, NodeId, OpId};
use crate::lease::Lease;
use crate::record::{Owner, OwnerRecord};
use seam::Nanos;

/// The state, without its data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StateKind {
    /// Another node owns the volume, or none.
    Standby,
    /// The header is read.
    Claiming,
    /// A new session with the storage is opened for the claim.
    Connecting,
    /// The old owner is fenced at the storage.
    Fencing,
    /// The managed lock is acquired.
    Acquiring,
    /// The log is read to its end.
    Replaying,
    /// The lease of the old owner runs out.
    AwaitingLease,
    /// The owner's record is written.
    Recording,
    /// This node owns the volume.
    Owning,
    /// The volume is handed over.
    Draining,
    /// The ownership or the session was lost; a new session is being opened.
    Fenced,
}

/// The state.
#[derive(Clone, Debug)]
pub(crate) enum State {
    Standby(Standby),
    Claiming {
        claim: Claim,
        op: Option<OpId>,
        retry_at: Nanos,
    },
    Connecting {
        claim: Claim,
    },
    Fencing {
        claim: Claim,
        op: OpId,
    },
    Acquiring {
        claim: Claim,
        op: OpId,
    },
    Replaying {
        claim: Claim,
        op: OpId,
    },
    AwaitingLease {
        claim: Claim,
    },
    Recording {
        claim: Claim,
        recording: Recording,
        op: OpId,
    },
    Owning {
        lease: Lease,
    },
    Draining {
        lease: Lease,
        to: Option<NodeId>,
        /// The first renewal that began after the drain. The log is completed after it.
        needs_renewal: u64,
        step: DrainStep,
        /// Start of the step.
        step_at: Nanos,
    },
    Fenced,
}

/// A node that does not own the volume.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Standby {
    /// The owner, as last seen.
    pub owner: Option<Owner>,
    /// Its epoch.
    pub epoch: Epoch,
    /// Earliest time of the next look at the header.
    pub look_at: Nanos,
    /// Earliest time of the next request for a hand-over.
    pub ask_at: Nanos,
}

/// Step of a hand-over at the owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DrainStep {
    /// Requests in flight are executed, and the ownership is confirmed.
    AwaitRequests,
    /// Dirty data is appended to the log.
    Quiesce(OpId),
    /// Dirty data is in the log; a renewal in progress ends first.
    AwaitRenewal,
    /// The record says that the volume is released.
    Record { op: OpId, new: OwnerRecord },
    /// The record is read back.
    ReadBack { op: OpId, new: OwnerRecord },
    /// The lock is released.
    Unlock(OpId),
}

impl State {
    /// The claim in progress.
    pub fn claim_mut(&mut self) -> Option<&mut Claim> {
        match self {
            State::Claiming { claim, .. }
            | State::Connecting { claim }
            | State::Fencing { claim, .. }
            | State::Acquiring { claim, .. }
            | State::Replaying { claim, .. }
            | State::AwaitingLease { claim }
            | State::Recording { claim, .. } => Some(claim),
            State::Standby(_) | State::Owning { .. } | State::Draining { .. } | State::Fenced => None,
        }
    }

    pub fn kind(&self) -> StateKind {
        match self {
            State::Standby(_) => StateKind::Standby,
            State::Claiming { .. } => StateKind::Claiming,
            State::Connecting { .. } => StateKind::Connecting,
            State::Fencing { .. } => StateKind::Fencing,
            State::Acquiring { .. } => StateKind::Acquiring,
            State::Replaying { .. } => StateKind::Replaying,
            State::AwaitingLease { .. } => StateKind::AwaitingLease,
            State::Recording { .. } => StateKind::Recording,
            State::Owning { .. } => StateKind::Owning,
            State::Draining { .. } => StateKind::Draining,
            State::Fenced => StateKind::Fenced,
        }
    }
}
