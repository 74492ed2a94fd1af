//! What all sessions of a server share.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use front::{Clients, Limits};
use scsi::Target;
use seam::Seam;

use crate::Options;
use crate::options::{HELD_BYTES_MIN, PAYLOAD_BYTES_MIN};
use crate::session::Session;

/// What all sessions share: the target, limits, and who they are.
pub(crate) struct Shared<S: Seam> {
    pub(crate) seam: S,
    pub(crate) target: Target<S>,
    pub(crate) options: Options,
    /// Sessions with a connection, and what their replies hold.
    pub(crate) clients: Rc<Clients>,
    /// All sessions, by our names for them; those whose connection is gone stay until their last command has ended.
    pub(crate) sessions: RefCell<BTreeMap<u16, Rc<Session<S>>>>,
    /// Bytes that all sessions hold of writes.
    pub(crate) payload_bytes: Cell<usize>,
}

impl<S: Seam> Shared<S> {
    pub(crate) fn new(seam: S, target: Target<S>, options: Options) -> Self {
        let limits = Limits { held_bytes_max: options.held_bytes_max, stall_timeout: options.stall_timeout };
        let clients = Rc::new(Clients::new(limits, seam.blocks_total() * seam::BLOCK_BYTES));
        let (sessions, payload_bytes) = Default::default();
        Shared { seam, target, options, clients, sessions, payload_bytes }
    }

    /// Sessions now, to go through while they change.
    pub(crate) fn sessions(&self) -> Vec<Rc<Session<S>>> {
        self.sessions.borrow().values().cloned().collect()
    }

    /// Bytes of queued replies past which one session's socket is not read.
    pub(crate) fn held_bytes(&self) -> usize {
        self.clients.share_bytes().max(HELD_BYTES_MIN)
    }

    /// Bytes of writes that one session may hold without anybody minding.
    pub(crate) fn payload_share(&self) -> usize {
        (self.options.payload_bytes_max / self.sessions.borrow().len().max(1)).max(PAYLOAD_BYTES_MIN)
    }
}
