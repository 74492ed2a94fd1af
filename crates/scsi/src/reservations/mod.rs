//! Reservations of a unit: by RESERVE(6) for a session, or persistently for a registered key.

mod decode;
mod record;
mod report;
mod state;
mod store;

use std::cell::{Cell, RefCell};

pub use decode::{
    FLAGS_OFFSET, LIST_BYTES, LIST_BYTES_MAX, MOVE_PORT_OFFSET, SERVICE_ACTION_KEY_OFFSET, decode_move_parameters,
    decode_parameters,
};
pub use record::{RecordError, check_record};
pub use report::{capabilities, full_status, keys, reservation};
pub use state::{Events, ReservationType, State};
pub use store::{ReservationStore, StoreFuture};

use engine::RangeLocks;

use crate::failure::Failure;
use crate::nexus::{Initiator, Nexus};
use crate::opcodes::Conflict;

/// An initiator port at a target port, the subject of registrations and reservations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Registrant {
    pub initiator: Initiator,
    pub port: u16,
}

impl Registrant {
    /// The registrant of a nexus.
    pub fn of(nexus: &Nexus) -> Registrant {
        Registrant { initiator: nexus.initiator().clone(), port: nexus.port() }
    }

    /// True if `nexus` belongs to this registrant.
    pub fn is(&self, nexus: &Nexus) -> bool {
        self.port == nexus.port() && self.initiator == *nexus.initiator()
    }
}

/// The reservations of a unit.
#[derive(Default)]
pub struct Reservations {
    /// Number of the nexus that holds a RESERVE(6) reservation.
    session: Cell<Option<u64>>,
    persistent: RefCell<State>,
    /// The record as last stored.
    stored_record: RefCell<Vec<u8>>,
    /// Serialises changes, each of which waits for its record to become durable.
    pub change_lock: RangeLocks<u64>,
}

impl Reservations {
    /// The reservations of a stored record.
    pub fn restore(record: Vec<u8>) -> Result<Self, RecordError> {
        let persistent = RefCell::new(record::decode(&record)?);
        Ok(Reservations { persistent, stored_record: RefCell::new(record), ..Reservations::default() })
    }

    /// Refuses a command that conflicts with a reservation.
    pub fn check(&self, nexus: &Nexus, conflict: Conflict) -> Result<(), Failure> {
        if conflict == Conflict::None {
            return Ok(());
        }
        // PERSISTENT RESERVE conflicts with session reservations only; it checks persistent ones itself.
        let is_conflict = match self.session.get() {
            Some(_) if conflict == Conflict::Persistent => true,
            Some(holder) => conflict != Conflict::Release && holder != nexus.0.number,
            None => match conflict {
                Conflict::Read => !self.persistent.borrow().may_read(nexus),
                Conflict::Write => !self.persistent.borrow().may_write(nexus),
                _ => false,
            },
        };
        if is_conflict { Err(Failure::Conflict) } else { Ok(()) }
    }

    /// RESERVE(6): reserves the unit for a session.
    pub fn reserve(&self, nexus: &Nexus) -> Result<(), Failure> {
        if self.applies_to(nexus)? {
            self.session.set(Some(nexus.0.number));
        }
        Ok(())
    }

    /// RELEASE(6): releases the unit if it is reserved for this session.
    pub fn release(&self, nexus: &Nexus) -> Result<(), Failure> {
        if self.applies_to(nexus)? {
            self.remove_nexus(nexus);
        }
        Ok(())
    }

    /// With registrations, RESERVE and RELEASE do nothing for registrants and are refused to other initiators (CRH).
    fn applies_to(&self, nexus: &Nexus) -> Result<bool, Failure> {
        let persistent = self.persistent.borrow();
        match persistent.is_empty() {
            true => Ok(true),
            false if persistent.is_registered(nexus) => Ok(false),
            false => Err(Failure::Conflict),
        }
    }

    /// Releases the session reservation of a nexus that logs out.
    pub fn remove_nexus(&self, nexus: &Nexus) {
        if self.session.get() == Some(nexus.0.number) {
            self.session.set(None);
        }
    }

    /// Releases the session reservation if `is_connected` is false for its nexus.
    pub fn retain_nexuses(&self, is_connected: impl Fn(&u64) -> bool) {
        self.session.set(self.session.get().filter(is_connected));
    }

    /// Logical unit reset: releases the session reservation; persistent reservations stay.
    pub fn reset(&self) {
        self.session.set(None);
    }

    /// The current persistent reservations.
    pub fn state(&self) -> State {
        self.persistent.borrow().clone()
    }

    /// The record of `state`, if it differs from the stored record.
    pub fn record_to_store(&self, state: &State) -> Option<Vec<u8>> {
        let record = record::encode(state);
        (record != *self.stored_record.borrow()).then_some(record)
    }

    /// Puts `state` into effect. Its record is durable already.
    pub fn replace(&self, state: State, record: Option<Vec<u8>>) {
        self.persistent.replace(state);
        if let Some(record) = record {
            self.stored_record.replace(record);
        }
    }
}
