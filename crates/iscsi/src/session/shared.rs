//! State shared by all sessions of a server.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use connection::{Clients, Limits};
use scsi::Target;
use seam::Seam;

use super::Session;
use crate::Options;
use crate::options::{HELD_BYTES_MIN, PAYLOAD_QUOTA_BYTES_MIN};

/// State shared by all sessions: target, options and the list of sessions.
pub(crate) struct Shared<S: Seam> {
    pub(crate) seam: S,
    pub(crate) target: Target<S>,
    pub(crate) options: Options,
    /// Sessions with a connection, and the buffers of their replies.
    pub(crate) clients: Rc<Clients>,
    /// All sessions by TSIH; a session without a connection stays until its last command has ended.
    pub(crate) sessions: RefCell<BTreeMap<u16, Rc<Session<S>>>>,
    /// Bytes of write data of all sessions.
    pub(crate) payload_bytes: Cell<usize>,
}

impl<S: Seam> Shared<S> {
    pub(crate) fn new(seam: S, target: Target<S>, options: Options) -> Self {
        let limits = Limits { held_bytes_max: options.held_bytes_max, stall_timeout: options.stall_timeout };
        let clients = Rc::new(Clients::new(limits, seam.blocks_total() * seam::BLOCK_BYTES));
        Shared { seam, target, options, clients, sessions: Default::default(), payload_bytes: Default::default() }
    }

    /// A copy of the list of sessions, for iterations during which it changes.
    pub(crate) fn sessions(&self) -> Vec<Rc<Session<S>>> {
        self.sessions.borrow().values().cloned().collect()
    }

    /// Limit of queued reply bytes of a session.
    pub(crate) fn held_quota_bytes(&self) -> usize {
        self.clients.client_quota_bytes().max(HELD_BYTES_MIN)
    }

    /// A session's quota of the write data limit, in bytes.
    pub(crate) fn payload_quota_bytes(&self) -> usize {
        (self.options.payload_bytes_max / self.sessions.borrow().len().max(1)).max(PAYLOAD_QUOTA_BYTES_MIN)
    }
}
