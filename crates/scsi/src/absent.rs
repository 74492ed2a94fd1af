//! Units whose volumes are not there now: known to initiators, which are told to wait. That a unit is none would have them give up its paths.

use crate::access::AccessList;
use crate::identity::Identity;
use crate::lun::Lun;
use crate::nexus::Nexus;
use crate::sense::{Asc, Key, Sense};

/// A unit that is not there now.
#[derive(Clone, Debug)]
pub struct Absent {
    /// Its number.
    pub lun: Lun,
    /// What it is known by.
    pub identity: Identity,
    /// Who may know of it.
    pub access: AccessList,
}

impl Absent {
    /// True when an initiator may know of it.
    pub fn admits(&self, nexus: &Nexus) -> bool {
        self.access.admits(&nexus.0.initiator.name)
    }
}

/// What commands that need the unit are told.
pub fn not_ready() -> Sense {
    Sense::new(Key::NOT_READY, Asc::NOT_READY_CAUSE_NOT_REPORTABLE)
}
