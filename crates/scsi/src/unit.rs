//! A logical unit: a volume, what initiators know it by, and what they have set and yet have to be told.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use engine::{RangeLocks, UnflushedLoss, Volume};
use seam::{SECTOR_BYTES, Seam};

use crate::access::AccessList;
use crate::attention::{Attention, Attentions};
use crate::commands::Copies;
use crate::failure::Failure;
use crate::identity::Identity;
use crate::lun::Lun;
use crate::nexus::Nexus;
use crate::reservations::{RecordError, Reservations};
use crate::sense::{Asc, Format, Key, Sense};
use crate::tasks::Tasks;

/// Hints of a unit that nobody waits for, at once.
const PREFETCHING_MAX: usize = 8;

/// What a unit is told to be.
pub struct UnitSpec<S: Seam> {
    /// Its number.
    pub lun: Lun,
    /// What it is in front of.
    pub volume: Volume<S>,
    /// What it is known by.
    pub identity: Identity,
    /// Who may see it.
    pub access: AccessList,
    /// Writes are refused, whatever the volume allows.
    pub read_only: bool,
    /// A physical block is eight logical ones (512e).
    pub physical_4k: bool,
    /// What is kept of its persistent reservations ([`crate::Keeper`]); empty where nothing is.
    pub kept: Vec<u8>,
}

/// How much of what is under a thin unit is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Provisioned {
    /// By the unit.
    pub used_bytes: u64,
    /// And still free, where that is known; others may take it.
    pub available_bytes: Option<u64>,
}

/// What initiators may set in mode pages. The same for all of them, and gone with the daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mode {
    /// Writes are acknowledged from the cache. Without, each is done as if FUA were set.
    pub write_cache: bool,
    /// Sense data come in descriptors.
    pub descriptor_sense: bool,
    /// Writes are refused.
    pub write_protect: bool,
}

impl Mode {
    /// Before anybody sets it.
    pub const DEFAULT: Mode = Mode { write_cache: true, descriptor_sense: false, write_protect: false };
}

/// A unit of a target.
pub struct Unit<S: Seam> {
    pub lun: Lun,
    pub identity: Identity,
    pub physical_4k: bool,
    pub access: RefCell<AccessList>,
    read_only: Cell<bool>,
    volume: Volume<S>,
    pub mode: Cell<Mode>,
    /// The backing was declared lost: it will not come back, and paths to it are given up.
    pub lost: Cell<bool>,
    pub provisioned: Cell<Option<Provisioned>>,
    pub locks: RangeLocks,
    pub tasks: Rc<Tasks>,
    pub reservations: Reservations,
    pub copies: Copies,
    /// Its clones are hints that the cache works on.
    prefetching: Rc<()>,
    attentions: RefCell<BTreeMap<u64, Attentions>>,
    /// Initiators that have heard of writes which ended with an earlier daemon.
    told_of_loss: RefCell<BTreeSet<u64>>,
}

impl<S: Seam> Unit<S> {
    pub fn new(spec: UnitSpec<S>) -> Result<Self, RecordError> {
        Ok(Unit {
            lun: spec.lun,
            identity: spec.identity,
            physical_4k: spec.physical_4k,
            access: RefCell::new(spec.access),
            read_only: Cell::new(spec.read_only),
            volume: spec.volume,
            mode: Cell::new(Mode::DEFAULT),
            lost: Cell::new(false),
            provisioned: Cell::new(None),
            locks: RangeLocks::default(),
            tasks: Rc::default(),
            reservations: Reservations::restore(spec.kept)?,
            copies: Copies::default(),
            prefetching: Rc::default(),
            attentions: RefCell::default(),
            told_of_loss: RefCell::default(),
        })
    }

    pub fn volume(&self) -> &Volume<S> {
        &self.volume
    }

    /// Logical blocks in all.
    pub fn blocks(&self) -> u64 {
        self.volume().size_bytes() / SECTOR_BYTES as u64
    }

    /// True when an initiator may see it.
    pub fn admits(&self, nexus: &Nexus) -> bool {
        self.access.borrow().admits(&nexus.0.initiator.name)
    }

    /// True when no write is taken.
    pub fn is_read_only(&self) -> bool {
        self.read_only.get() || self.volume().spec().read_only || self.mode.get().write_protect
    }

    /// True when each write is durable before it is acknowledged.
    pub fn writes_through(&self) -> bool {
        !self.mode.get().write_cache
    }

    /// Changes whether writes are refused.
    pub fn set_read_only(&self, read_only: bool) {
        self.read_only.set(read_only);
    }

    /// The format in which sense data are wanted.
    pub fn format(&self) -> Format {
        if self.mode.get().descriptor_sense { Format::Descriptor } else { Format::Fixed }
    }

    /// Refuses what needs the medium where there is none: its backing will not come back, or the volume is being removed (and has no
    /// block left). Whoever is past this may count on a block.
    pub fn check_present(&self) -> Result<(), Failure> {
        match () {
            () if self.lost.get() => Err(Sense::illegal(Asc::UNIT_NOT_SUPPORTED).into()),
            () if self.blocks() == 0 => Err(Sense::new(Key::NOT_READY, Asc::BECOMING_READY).into()),
            () => Ok(()),
        }
    }

    /// Refuses what changes the medium of a unit that must not be written.
    pub fn check_writable(&self) -> Result<(), Failure> {
        let refused = self.is_read_only();
        if refused { Err(Sense::new(Key::DATA_PROTECT, Asc::WRITE_PROTECTED).into()) } else { Ok(()) }
    }

    /// An initiator has something to be told.
    pub fn raise(&self, nexus: &Nexus, attention: Attention) {
        self.attentions.borrow_mut().entry(nexus.0.number).or_default().raise(attention);
    }

    /// True when an initiator has something to be told.
    pub fn has_attention(&self, nexus: &Nexus) -> bool {
        let attentions = self.attentions.borrow();
        !attentions.is_empty() && attentions.contains_key(&nexus.0.number)
    }

    /// Takes what an initiator has to be told next.
    pub fn take_attention(&self, nexus: &Nexus) -> Option<Attention> {
        let mut attentions = self.attentions.borrow_mut();
        let of_nexus = attentions.get_mut(&nexus.0.number)?;
        let taken = of_nexus.take();
        if of_nexus.is_empty() {
            attentions.remove(&nexus.0.number);
        }
        taken
    }

    /// An initiator need not be told any more.
    pub fn forget_attention(&self, nexus: &Nexus, attention: Attention) {
        let mut attentions = self.attentions.borrow_mut();
        if let Some(of_nexus) = attentions.get_mut(&nexus.0.number) {
            of_nexus.forget(attention);
            if of_nexus.is_empty() {
                attentions.remove(&nexus.0.number);
            }
        }
    }

    /// Fails the first command of each initiator that asks for durability, where acknowledged writes ended with an earlier daemon. Not as a
    /// unit attention, nor as a medium error: initiators repeat those commands by themselves, and would believe the second answer.
    pub fn tell_loss(&self, nexus: &Nexus) -> Result<(), Failure> {
        let is_lost = self.volume.spec().unflushed_loss != UnflushedLoss::None;
        if is_lost && self.told_of_loss.borrow_mut().insert(nexus.0.number) {
            return Err(Sense::new(Key::HARDWARE_ERROR, Asc::INTERNAL_TARGET_FAILURE).into());
        }
        Ok(())
    }

    /// A place for a hint that nobody waits for, held until it is dropped; none past the most.
    pub fn prefetch(&self) -> Option<Rc<()>> {
        (Rc::strong_count(&self.prefetching) <= PREFETCHING_MAX).then(|| Rc::clone(&self.prefetching))
    }

    /// Forgets all but these initiators.
    pub fn keep_only(&self, nexuses: &BTreeMap<u64, Nexus>) {
        let is_here = |number: &u64| nexuses.contains_key(number);
        self.attentions.borrow_mut().retain(|number, _| is_here(number));
        self.told_of_loss.borrow_mut().retain(is_here);
        self.reservations.keep_only(is_here);
        self.copies.keep_only(is_here);
    }

    /// An initiator is gone.
    pub fn leave(&self, nexus: &Nexus) {
        self.attentions.borrow_mut().remove(&nexus.0.number);
        self.told_of_loss.borrow_mut().remove(&nexus.0.number);
        self.reservations.leave(nexus);
        self.copies.leave(nexus);
    }
}
