//! Reservations of a unit: by RESERVE(6) for a session, or persistently for a registered key.

mod decode;
mod keeper;
mod record;
mod report;
mod state;

use std::cell::{Cell, RefCell};

pub use decode::{LIST_BYTES, LIST_BYTES_MAX, move_parameters, parameters};
pub use keeper::{Keep, Keeper};
pub use record::{RecordError, check_kept};
pub use report::{capabilities, full, keys, reservation};
pub use state::{Events, State, Type};

use engine::RangeLocks;

use crate::failure::Failure;
use crate::nexus::{Initiator, Nexus};
use crate::opcodes::Reserved;

/// An initiator port at a target port, the subject of registrations and reservations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Registrant {
    pub initiator: Initiator,
    pub port: u16,
}

impl Registrant {
    pub fn of(nexus: &Nexus) -> Registrant {
        Registrant { initiator: nexus.initiator().clone(), port: nexus.port() }
    }

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
    /// The record as it was last stored for a restart.
    kept: RefCell<Vec<u8>>,
    /// Serialises changes, each of which waits for its record to become durable.
    pub change_lock: RangeLocks,
}

impl Reservations {
    /// The reservations of a stored record.
    pub fn restore(kept: Vec<u8>) -> Result<Self, RecordError> {
        let persistent = RefCell::new(record::decode(&kept)?);
        Ok(Reservations { persistent, kept: RefCell::new(kept), ..Reservations::default() })
    }

    /// Refuses a command that conflicts with a reservation.
    pub fn check(&self, nexus: &Nexus, reserved: Reserved) -> Result<(), Failure> {
        if reserved == Reserved::Free {
            return Ok(());
        }
        // PERSISTENT RESERVE conflicts with session reservations only; it checks persistent ones itself.
        let kept_out = match self.session.get() {
            Some(_) if reserved == Reserved::Persistent => true,
            Some(holder) => reserved != Reserved::Release && holder != nexus.0.number,
            None => match reserved {
                Reserved::Read => !self.persistent.borrow().may_read(nexus),
                Reserved::Write => !self.persistent.borrow().may_write(nexus),
                _ => false,
            },
        };
        if kept_out { Err(Failure::Conflict) } else { Ok(()) }
    }

    /// RESERVE(6): reserves the unit for a session.
    pub fn reserve(&self, nexus: &Nexus) -> Result<(), Failure> {
        if self.is_shared_with(nexus)? {
            self.session.set(Some(nexus.0.number));
        }
        Ok(())
    }

    /// RELEASE(6): releases the unit if it is reserved for this session.
    pub fn release(&self, nexus: &Nexus) -> Result<(), Failure> {
        if self.is_shared_with(nexus)? {
            self.leave(nexus);
        }
        Ok(())
    }

    /// With registrations, RESERVE and RELEASE do nothing for registrants and are refused to other initiators (CRH).
    fn is_shared_with(&self, nexus: &Nexus) -> Result<bool, Failure> {
        let persistent = self.persistent.borrow();
        match persistent.is_empty() {
            true => Ok(true),
            false if persistent.is_registered(nexus) => Ok(false),
            false => Err(Failure::Conflict),
        }
    }

    /// Releases the session reservation of a nexus that logs out.
    pub fn leave(&self, nexus: &Nexus) {
        if self.session.get() == Some(nexus.0.number) {
            self.session.set(None);
        }
    }

    /// Releases the session reservation if `is_here` is false for its nexus.
    pub fn keep_only(&self, is_here: impl Fn(&u64) -> bool) {
        self.session.set(self.session.get().filter(is_here));
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
    pub fn record_to_keep(&self, state: &State) -> Option<Vec<u8>> {
        let record = record::encode(state);
        (record != *self.kept.borrow()).then_some(record)
    }

    /// Puts `state` into effect. Its record is durable already.
    pub fn replace(&self, state: State, record: Option<Vec<u8>>) {
        self.persistent.replace(state);
        if let Some(record) = record {
            self.kept.replace(record);
        }
    }
}
