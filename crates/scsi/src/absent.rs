//! Units whose volumes are not attached. Initiators get "not ready" and wait; "no unit" would make them give up the
//! paths.

use crate::access::AccessList;
use crate::identity::Identity;
use crate::lun::Lun;
use crate::nexus::Nexus;
use crate::sense::{Asc, Sense, SenseKey};

/// A unit whose volume is not attached.
#[derive(Clone, Debug)]
pub struct AbsentUnit {
    /// Logical unit number.
    pub lun: Lun,
    /// Identity in INQUIRY.
    pub identity: Identity,
    /// Initiators that may see the unit.
    pub access: AccessList,
}

impl AbsentUnit {
    /// True if an initiator may see the unit.
    pub fn admits(&self, nexus: &Nexus) -> bool {
        self.access.admits(&nexus.0.initiator.name)
    }
}

/// Sense data of commands that need the unit's volume.
pub fn not_ready() -> Sense {
    Sense::new(SenseKey::NOT_READY, Asc::NOT_READY_CAUSE_NOT_REPORTABLE)
}

/// Sense data for a command to a LUN without a unit.
pub(crate) fn no_unit() -> Sense {
    Sense::illegal(Asc::UNIT_NOT_SUPPORTED)
}
