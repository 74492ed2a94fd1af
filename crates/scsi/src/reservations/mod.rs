//! Who may do what at a unit while it is reserved: by RESERVE(6) for a session, or persistently for a registered key.

mod decode;
mod keeper;
mod record;
mod report;
mod state;

use std::cell::{Cell, RefCell};

pub use decode::{LIST_BYTES, LIST_BYTES_MAX, moving, parameters};
pub use keeper::{Keep, Keeper};
pub use record::{RecordError, check_kept};
pub use report::{capabilities, full, keys, reservation};
pub use state::{Events, State, Type};

use engine::RangeLocks;

use crate::failure::Failure;
use crate::nexus::{Initiator, Nexus};
use crate::opcodes::Reserved;

/// An initiator's port at a port of the target: what registers and holds.
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
    /// Whose session it is reserved for by RESERVE(6).
    session: Cell<Option<u64>>,
    persistent: RefCell<State>,
    /// What is kept for after a restart, as it was written last.
    kept: RefCell<Vec<u8>>,
    /// Changes are made one after the other: each waits for the disk.
    pub turns: RangeLocks,
}

impl Reservations {
    /// What was kept over a restart.
    pub fn restore(kept: Vec<u8>) -> Result<Self, RecordError> {
        let persistent = RefCell::new(record::decode(&kept)?);
        Ok(Reservations { persistent, kept: RefCell::new(kept), ..Reservations::default() })
    }

    /// Refuses a command that a reservation keeps its initiator from.
    pub fn check(&self, nexus: &Nexus, reserved: Reserved) -> Result<(), Failure> {
        if reserved == Reserved::Free {
            return Ok(());
        }
        // Whoever changes reservations is refused by those of sessions alone; what they are held by the change itself looks at.
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

    /// Reserves the unit for a session.
    pub fn reserve(&self, nexus: &Nexus) -> Result<(), Failure> {
        if self.is_shared_with(nexus)? {
            self.session.set(Some(nexus.0.number));
        }
        Ok(())
    }

    /// Releases the unit, if it is this session that it is reserved for.
    pub fn release(&self, nexus: &Nexus) -> Result<(), Failure> {
        if self.is_shared_with(nexus)? {
            self.leave(nexus);
        }
        Ok(())
    }

    /// With registrations RESERVE and RELEASE do nothing for those that have one, and are refused to others (CRH).
    fn is_shared_with(&self, nexus: &Nexus) -> Result<bool, Failure> {
        let persistent = self.persistent.borrow();
        match persistent.is_empty() {
            true => Ok(true),
            false if persistent.is_registered(nexus) => Ok(false),
            false => Err(Failure::Conflict),
        }
    }

    /// A session is over.
    pub fn leave(&self, nexus: &Nexus) {
        if self.session.get() == Some(nexus.0.number) {
            self.session.set(None);
        }
    }

    /// Sessions other than these are over.
    pub fn keep_only(&self, is_here: impl Fn(&u64) -> bool) {
        self.session.set(self.session.get().filter(is_here));
    }

    /// The unit is reset: what is persistent stays.
    pub fn reset(&self) {
        self.session.set(None);
    }

    /// What is there now.
    pub fn state(&self) -> State {
        self.persistent.borrow().clone()
    }

    /// The record of `state`, if it differs from what is kept.
    pub fn record_to_keep(&self, state: &State) -> Option<Vec<u8>> {
        let record = record::encode(state);
        (record != *self.kept.borrow()).then_some(record)
    }

    /// Puts a changed state in place, whose record is durable.
    pub fn replace(&self, state: State, record: Option<Vec<u8>>) {
        self.persistent.replace(state);
        if let Some(record) = record {
            self.kept.replace(record);
        }
    }
}
