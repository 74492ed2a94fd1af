//! A logical unit: a volume with its identity, modes, reservations and pending unit attentions.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use engine::{RangeLocks, UnflushedLoss, Volume};
use seam::{SECTOR_BYTES, Seam};

use crate::access::AccessList;
use crate::attention::{Attention, Attentions};
use crate::copy_results::CopyResults;
use crate::failure::Failure;
use crate::identity::Identity;
use crate::lun::Lun;
use crate::nexus::Nexus;
use crate::reservations::{RecordError, Reservations};
use crate::sense::{Asc, Sense, SenseFormat, SenseKey};
use crate::tasks::Tasks;

/// Maximum number of concurrent background prefetches of a unit.
const PREFETCHING_MAX: usize = 8;

/// Specification of a unit.
pub struct UnitSpec<S: Seam> {
    /// Logical unit number.
    pub lun: Lun,
    /// The volume.
    pub volume: Volume<S>,
    /// Identity in INQUIRY.
    pub identity: Identity,
    /// Initiators that may see the unit.
    pub access: AccessList,
    /// True if writes are refused, whatever the volume allows.
    pub read_only: bool,
    /// True if a physical block is eight logical blocks (512e).
    pub physical_4k: bool,
    /// Stored record of persistent reservations ([`crate::ReservationStore`]); empty if there is none.
    pub reservation_record: Vec<u8>,
    /// The pool that gives the unit space at its first writes; `None` if its space is its own.
    pub thin_pool: Option<String>,
}

/// Mode parameters, common to all initiators and lost at a restart of the daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModeParameters {
    /// WCE: writes are acknowledged from the cache. Without it every write is executed as with FUA.
    pub write_cache: bool,
    /// D_SENSE: sense data use descriptor format.
    pub descriptor_sense: bool,
    /// SWP: writes are refused.
    pub write_protect: bool,
}

impl ModeParameters {
    /// Default mode parameters.
    pub const DEFAULT: ModeParameters =
        ModeParameters { write_cache: true, descriptor_sense: false, write_protect: false };
}

/// A unit of a target.
pub struct Unit<S: Seam> {
    pub lun: Lun,
    pub identity: Identity,
    pub physical_4k: bool,
    pub access: RefCell<AccessList>,
    read_only: Cell<bool>,
    volume: Volume<S>,
    pub mode: Cell<ModeParameters>,
    /// True if the backing is declared permanently lost, so that initiators give up the paths.
    pub lost: Cell<bool>,
    /// The pool that gives the unit space at its first writes.
    pub thin_pool: Option<String>,
    /// Locks of ranges of logical blocks.
    pub locks: RangeLocks<u64>,
    pub tasks: Rc<Tasks>,
    pub reservations: Reservations,
    pub copy_results: CopyResults,
    /// Counts background prefetches: each holds a clone.
    prefetching: Rc<()>,
    attentions: RefCell<BTreeMap<u64, Attentions>>,
    /// Nexuses that have received the report of acknowledged writes lost with an earlier daemon.
    loss_reported_to: RefCell<BTreeSet<u64>>,
}

impl<S: Seam> Unit<S> {
    /// A unit with its stored reservations.
    pub fn new(spec: UnitSpec<S>) -> Result<Self, RecordError> {
        Ok(Unit {
            lun: spec.lun,
            identity: spec.identity,
            physical_4k: spec.physical_4k,
            access: RefCell::new(spec.access),
            read_only: Cell::new(spec.read_only),
            volume: spec.volume,
            mode: Cell::new(ModeParameters::DEFAULT),
            lost: Cell::new(false),
            thin_pool: spec.thin_pool,
            locks: RangeLocks::default(),
            tasks: Rc::default(),
            reservations: Reservations::restore(spec.reservation_record)?,
            copy_results: CopyResults::default(),
            prefetching: Rc::default(),
            attentions: RefCell::default(),
            loss_reported_to: RefCell::default(),
        })
    }

    /// The unit's volume.
    pub fn volume(&self) -> &Volume<S> {
        &self.volume
    }

    /// Number of logical blocks.
    pub fn blocks(&self) -> u64 {
        self.volume().size_bytes() / SECTOR_BYTES as u64
    }

    /// True if an initiator may see the unit.
    pub fn admits(&self, nexus: &Nexus) -> bool {
        self.access.borrow().admits(&nexus.0.initiator.name)
    }

    /// True if writes are refused.
    pub fn is_read_only(&self) -> bool {
        self.read_only.get() || self.volume().spec().read_only || self.mode.get().write_protect
    }

    /// True if each write is durable before its acknowledgement.
    pub fn writes_through(&self) -> bool {
        !self.mode.get().write_cache
    }

    /// Sets whether writes are refused.
    pub fn set_read_only(&self, read_only: bool) {
        self.read_only.set(read_only);
    }

    /// The selected format of sense data.
    pub fn sense_format(&self) -> SenseFormat {
        if self.mode.get().descriptor_sense { SenseFormat::Descriptor } else { SenseFormat::Fixed }
    }

    /// Refuses a command that needs the medium if the backing is lost or the volume is being removed (its size is zero
    /// then). On success the unit has at least one block.
    pub fn check_present(&self) -> Result<(), Failure> {
        if self.lost.get() {
            Err(Sense::illegal(Asc::UNIT_NOT_SUPPORTED).into())
        } else if self.blocks() == 0 {
            Err(Sense::new(SenseKey::NOT_READY, Asc::BECOMING_READY).into())
        } else {
            Ok(())
        }
    }

    /// Refuses a change of a write-protected unit.
    pub fn check_writable(&self) -> Result<(), Failure> {
        let refused = self.is_read_only();
        if refused { Err(Sense::new(SenseKey::DATA_PROTECT, Asc::WRITE_PROTECTED).into()) } else { Ok(()) }
    }

    /// Raises a unit attention for a nexus.
    pub fn raise(&self, nexus: &Nexus, attention: Attention) {
        self.attentions.borrow_mut().entry(nexus.0.number).or_default().raise(attention);
    }

    /// True if a nexus has a pending unit attention.
    pub fn has_attention(&self, nexus: &Nexus) -> bool {
        let attentions = self.attentions.borrow();
        !attentions.is_empty() && attentions.contains_key(&nexus.0.number)
    }

    /// Takes the next unit attention of a nexus.
    pub fn take_attention(&self, nexus: &Nexus) -> Option<Attention> {
        let mut attentions = self.attentions.borrow_mut();
        let of_nexus = attentions.get_mut(&nexus.0.number)?;
        let taken = of_nexus.take();
        if of_nexus.is_empty() {
            attentions.remove(&nexus.0.number);
        }
        taken
    }

    /// Removes a pending unit attention of a nexus.
    pub fn remove_attention(&self, nexus: &Nexus, attention: Attention) {
        let mut attentions = self.attentions.borrow_mut();
        if let Some(of_nexus) = attentions.get_mut(&nexus.0.number) {
            of_nexus.remove(attention);
            if of_nexus.is_empty() {
                attentions.remove(&nexus.0.number);
            }
        }
    }

    /// If acknowledged writes were lost with an earlier daemon: fails each nexus' first command that requires
    /// durability. Initiators repeat commands after a unit attention or a medium error and would trust the second
    /// answer, so neither is used.
    pub fn report_loss(&self, nexus: &Nexus) -> Result<(), Failure> {
        let is_lost = self.volume.spec().unflushed_loss != UnflushedLoss::None;
        if is_lost && self.loss_reported_to.borrow_mut().insert(nexus.0.number) {
            return Err(Sense::new(SenseKey::HARDWARE_ERROR, Asc::INTERNAL_TARGET_FAILURE).into());
        }
        Ok(())
    }

    /// Permission for a background prefetch, held until it is dropped; `None` at the limit.
    pub fn begin_prefetch(&self) -> Option<Rc<()>> {
        (Rc::strong_count(&self.prefetching) <= PREFETCHING_MAX).then(|| Rc::clone(&self.prefetching))
    }

    /// Drops the state of nexuses that are not in `nexuses`.
    pub fn retain_nexuses(&self, nexuses: &BTreeMap<u64, Nexus>) {
        let is_connected = |number: &u64| nexuses.contains_key(number);
        self.attentions.borrow_mut().retain(|number, _| is_connected(number));
        self.loss_reported_to.borrow_mut().retain(is_connected);
        self.reservations.retain_nexuses(is_connected);
        self.copy_results.retain_nexuses(is_connected);
    }

    /// Drops the state of a nexus that logs out.
    pub fn remove_nexus(&self, nexus: &Nexus) {
        self.attentions.borrow_mut().remove(&nexus.0.number);
        self.loss_reported_to.borrow_mut().remove(&nexus.0.number);
        self.reservations.remove_nexus(nexus);
        self.copy_results.remove_nexus(nexus);
    }
}
