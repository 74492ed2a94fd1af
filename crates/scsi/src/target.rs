//! A target: units by their numbers, the initiators that are logged in, and the way of a command to its unit.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use seam::{Piece, Seam};

use crate::absent::Absent;
use crate::access::AccessList;
use crate::attention::Attention;
use crate::commands::{self, Task};
use crate::exchange::{Command, DataIn, DataOut};
use crate::failure::Failure;
use crate::lun::Lun;
use crate::nexus::{self, Initiator, Nexus};
use crate::opcodes::{Kind, Opcode};
use crate::reservations::{Keeper, RecordError, Registrant};
use crate::sense::{Asc, Format, Sense};
use crate::status::{Outcome, Status};
use crate::unit::{Provisioned, Unit, UnitSpec};

/// Why a unit is not added.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AddError {
    /// Its number is another's.
    #[error("LUN {} is in use; give the volume another one", .0.number())]
    Taken(Lun),
    /// What is kept of it cannot be read.
    #[error(transparent)]
    Kept(#[from] RecordError),
}

pub(crate) struct Inner<S: Seam> {
    pub seam: S,
    pub name: String,
    pub ports: u16,
    pub keeper: Rc<dyn Keeper>,
    pub units: RefCell<BTreeMap<Lun, Rc<Unit<S>>>>,
    absent: RefCell<BTreeMap<Lun, Absent>>,
    nexuses: RefCell<BTreeMap<u64, Nexus>>,
    next: Cell<u64>,
    observer: RefCell<Option<Observer>>,
}

/// Hears of what initiators would like to know before their next command: whom, of which unit, what, as sense data.
type Observer = Box<dyn Fn(&Nexus, Lun, &[u8])>;

/// A unit that was taken away, with all that initiators had set and reserved.
pub struct Removed<S: Seam>(Rc<Unit<S>>);

/// A target. A clone is another handle to the same; it stays on its core.
pub struct Target<S: Seam>(pub(crate) Rc<Inner<S>>);

impl<S: Seam> Clone for Target<S> {
    fn clone(&self) -> Self {
        Target(Rc::clone(&self.0))
    }
}

impl<S: Seam> Target<S> {
    /// A target without units. `name`: the one that its port has (for iSCSI `iqn.…`); `ports`: how many ports it has, numbered from 1 on;
    /// `keeper`: where registrations go that are to outlast a restart.
    pub fn new(seam: S, name: &str, ports: u16, keeper: Rc<dyn Keeper>) -> Self {
        Target(Rc::new(Inner {
            seam,
            name: name.to_owned(),
            ports,
            keeper,
            units: RefCell::default(),
            absent: RefCell::default(),
            nexuses: RefCell::default(),
            next: Cell::new(0),
            observer: RefCell::default(),
        }))
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Adds a unit; initiators that see it are told.
    pub fn add(&self, spec: UnitSpec<S>) -> Result<(), AddError> {
        let lun = spec.lun;
        if self.0.units.borrow().contains_key(&lun) {
            return Err(AddError::Taken(lun));
        }
        self.insert(Rc::new(Unit::new(spec)?));
        Ok(())
    }

    /// Puts a unit back that was taken away; commands to it are done again. Who has left meanwhile has nothing reserved any more.
    pub fn put_back(&self, removed: Removed<S>) {
        removed.0.keep_only(&self.0.nexuses.borrow());
        self.insert(removed.0);
    }

    /// A unit is known whose volume is not there now: initiators are told to wait. One that is there stays.
    pub fn set_absent(&self, absent: Absent) {
        if !self.0.units.borrow().contains_key(&absent.lun) {
            self.0.absent.borrow_mut().insert(absent.lun, absent);
        }
    }

    /// A unit that was not there will not come back.
    pub fn forget_absent(&self, lun: Lun) {
        self.0.absent.borrow_mut().remove(&lun);
    }

    /// The unit of that number that is not there now, if the initiator may know of it.
    pub(crate) fn absent(&self, nexus: &Nexus, lun: Lun) -> Option<Absent> {
        self.0.absent.borrow().get(&lun).filter(|absent| absent.admits(nexus)).cloned()
    }

    /// The numbers of those units that the initiator may know of, whether they are there or not.
    pub(crate) fn luns_of(&self, nexus: &Nexus) -> Vec<Lun> {
        let here = self.units().into_iter().filter(|unit| unit.admits(nexus)).map(|unit| unit.lun);
        let absent = self.0.absent.borrow();
        let absent = absent.values().filter(|absent| absent.admits(nexus)).map(|absent| absent.lun);
        let mut luns: Vec<Lun> = here.chain(absent).collect();
        luns.sort_unstable();
        luns
    }

    fn insert(&self, unit: Rc<Unit<S>>) {
        for nexus in self.0.nexuses.borrow().values() {
            if unit.access.borrow().admits(&nexus.initiator().name) {
                unit.raise(nexus, Attention::PowerOn);
            }
        }
        let access = unit.access.borrow().clone();
        self.0.absent.borrow_mut().remove(&unit.lun);
        self.0.units.borrow_mut().insert(unit.lun, unit);
        self.luns_changed(|name| access.admits(name));
    }

    /// Takes a unit away, if there is one; commands under way end by themselves.
    pub fn remove(&self, lun: Lun) -> Option<Removed<S>> {
        let unit = self.0.units.borrow_mut().remove(&lun)?;
        self.luns_changed(|name| unit.access.borrow().admits(name));
        Some(Removed(unit))
    }

    /// Has `observer` told what initiators would like to know at once: that units came or went, and that one has another size. Their next
    /// command tells them as well.
    pub fn observe(&self, observer: impl Fn(&Nexus, Lun, &[u8]) + 'static) {
        *self.0.observer.borrow_mut() = Some(Box::new(observer));
    }

    /// Changes who may see a unit, and whether it takes writes.
    pub fn change(&self, lun: Lun, access: AccessList, read_only: bool) {
        let Some(unit) = self.unit(lun) else { return };
        let before = unit.is_read_only();
        unit.set_read_only(read_only);
        if unit.is_read_only() != before {
            self.tell_all(&unit, Attention::ModeChanged);
        }
        let old = unit.access.replace(access);
        let new = unit.access.borrow();
        self.luns_changed(|name| old.admits(name) != new.admits(name));
    }

    /// A unit's volume has another size.
    pub fn resized(&self, lun: Lun) {
        let Some(unit) = self.unit(lun) else { return };
        self.tell_all(&unit, Attention::CapacityChanged);
        for nexus in self.0.nexuses.borrow().values().filter(|nexus| unit.admits(nexus)) {
            self.notify(nexus, lun, Attention::CapacityChanged);
        }
    }

    /// A unit's backing was declared lost for good, or has come back after all.
    pub fn set_lost(&self, lun: Lun, lost: bool) {
        if let Some(unit) = self.unit(lun) {
            unit.lost.set(lost);
        }
    }

    /// The number of the unit that is in front of the volume of that name.
    pub fn find(&self, volume: &str) -> Option<Lun> {
        self.0.units.borrow().values().find(|unit| unit.volume().name() == volume).map(|unit| unit.lun)
    }

    /// The numbers of its units.
    pub fn luns(&self) -> Vec<Lun> {
        self.0.units.borrow().keys().copied().collect()
    }

    /// True when there is a unit at that address that the initiator may see.
    pub fn sees(&self, nexus: &Nexus, lun: [u8; 8]) -> bool {
        Lun::decode(lun).is_some_and(|lun| self.visible(nexus, lun).is_some())
    }

    /// An initiator has ended the commands of all to a unit: the others are told.
    pub fn commands_cleared(&self, nexus: &Nexus, lun: [u8; 8]) {
        if let Some(unit) = Lun::decode(lun).and_then(|lun| self.visible(nexus, lun)) {
            self.tell_others(&unit, nexus, Attention::CommandsCleared);
        }
    }

    /// An initiator has logged in at a port. Of the same initiator's port and the same port there is one at a time: whoever
    /// reinstates a session calls [`Target::leave`] first.
    pub fn nexus(&self, initiator: Initiator, port: u16) -> Nexus {
        let number = self.0.next.get();
        self.0.next.set(number + 1);
        let nexus = Nexus(Rc::new(nexus::Inner { number, initiator, port }));
        for unit in self.units() {
            unit.raise(&nexus, Attention::PowerOn);
        }
        self.0.nexuses.borrow_mut().insert(number, nexus.clone());
        nexus
    }

    /// An initiator has logged out or is lost. Its commands have ended before.
    pub fn leave(&self, nexus: &Nexus) {
        self.0.nexuses.borrow_mut().remove(&nexus.0.number);
        for unit in self.units() {
            unit.leave(nexus);
        }
    }

    /// How much of what is under a thin unit is used; told to whoever asks.
    pub fn set_provisioned(&self, lun: Lun, provisioned: Option<Provisioned>) {
        if let Some(unit) = self.unit(lun) {
            unit.provisioned.set(provisioned);
        }
    }

    /// Resets one unit (`None`: all that the initiator sees): ends the commands under way, of all initiators, and returns when none of
    /// them can have an effect any more. True if there was a unit.
    pub async fn reset(&self, nexus: &Nexus, lun: Option<[u8; 8]>) -> bool {
        let units = match lun {
            Some(lun) => Lun::decode(lun).and_then(|lun| self.visible(nexus, lun)).into_iter().collect(),
            None => self.units().into_iter().filter(|unit| unit.admits(nexus)).collect::<Vec<_>>(),
        };
        // All at once: what comes to one while another is waited for is none of it.
        let called_off = units.iter().map(|unit| {
            unit.reservations.reset();
            unit.tasks.call_off(|_| true, None)
        });
        let called_off: Vec<_> = called_off.collect();
        for (unit, commands) in units.iter().zip(called_off) {
            unit.tasks.until_ended(&commands).await;
            self.tell_all(unit, Attention::Reset);
        }
        !units.is_empty()
    }

    /// Ends the commands of all initiators to a unit (CLEAR TASK SET); the others are told. Returns when none can have an effect any more;
    /// true if there is such a unit.
    pub async fn clear_commands(&self, nexus: &Nexus, lun: [u8; 8]) -> bool {
        let Some(unit) = Lun::decode(lun).and_then(|lun| self.visible(nexus, lun)) else { return false };
        if unit.tasks.end(|_| true, None).await {
            self.commands_cleared(nexus, lun);
        }
        true
    }

    /// Reads, if that needs no waiting: appends all of the answer to `pieces` and returns true, else leaves the command to
    /// [`Target::execute`].
    pub fn read_now(&self, nexus: &Nexus, command: &Command<'_>, pieces: &mut Vec<Piece<S::Block>>) -> bool {
        self.ready_unit(nexus, command, Kind::Read)
            .is_some_and(|(unit, cdb)| commands::read_now(&unit, &cdb, command.expected.in_bytes, pieces))
    }

    /// Writes `data` if that needs no waiting and is within one block of the engine; else does nothing, and the command is left to
    /// [`Target::execute`].
    pub fn write_now(&self, nexus: &Nexus, command: &Command<'_>, data: &[u8]) -> bool {
        self.ready_unit(nexus, command, Kind::Write)
            .is_some_and(|(unit, cdb)| commands::write_now(&unit, &cdb, command.expected.out_bytes, data))
    }

    /// Does a command. What it returns is always waited for to its end (the engine is under way for it): whoever wants it to end sooner
    /// cancels it.
    pub async fn execute(
        &self,
        nexus: &Nexus,
        command: Command<'_>,
        out: &mut impl DataOut,
        input: &mut impl DataIn<S>,
    ) -> Outcome {
        let unit = Lun::decode(command.lun).and_then(|lun| self.visible(nexus, lun));
        let format = unit.as_ref().map_or(Format::Fixed, |unit| unit.format());
        let absent = Lun::decode(command.lun).and_then(|lun| self.absent(nexus, lun));
        let mut task = Task::new(self, unit, absent, nexus, &command, out, input);
        let done = task.run(command.cdb).await;
        let status = match done {
            Ok(status) => status,
            Err(Failure::Check(sense)) => Status::CheckCondition(sense.bytes(format)),
            Err(Failure::Conflict) => Status::ReservationConflict,
            Err(Failure::Gone) => Status::Aborted,
        };
        Outcome { status, transfer_bytes: task.transfer_bytes() }
    }

    /// The unit of a command of this kind, if nothing stands in its way.
    fn ready_unit<'a>(
        &self,
        nexus: &Nexus,
        command: &Command<'a>,
        kind: Kind,
    ) -> Option<(Rc<Unit<S>>, crate::cdb::Cdb<'a>)> {
        let (opcode, cdb) = Opcode::of(command.cdb).ok()?;
        let unit = Lun::decode(command.lun).and_then(|lun| self.visible(nexus, lun))?;
        let ready = opcode.kind == kind
            && opcode.check(&cdb).is_ok()
            && !unit.has_attention(nexus)
            && unit.reservations.check(nexus, opcode.reserved).is_ok()
            && unit.check_present().is_ok();
        ready.then_some((unit, cdb))
    }

    /// The unit with this number, if the initiator may see it.
    pub(crate) fn visible(&self, nexus: &Nexus, lun: Lun) -> Option<Rc<Unit<S>>> {
        self.unit(lun).filter(|unit| unit.admits(nexus))
    }

    pub(crate) fn unit(&self, lun: Lun) -> Option<Rc<Unit<S>>> {
        self.0.units.borrow().get(&lun).cloned()
    }

    pub(crate) fn units(&self) -> Vec<Rc<Unit<S>>> {
        self.0.units.borrow().values().cloned().collect()
    }

    /// Tells all initiators that see a unit.
    pub(crate) fn tell_all(&self, unit: &Unit<S>, attention: Attention) {
        for nexus in self.0.nexuses.borrow().values().filter(|nexus| unit.admits(nexus)) {
            unit.raise(nexus, attention);
        }
    }

    /// Tells all other initiators that see a unit.
    pub(crate) fn tell_others(&self, unit: &Unit<S>, but: &Nexus, attention: Attention) {
        for nexus in self.0.nexuses.borrow().values() {
            if nexus.0.number != but.0.number && unit.admits(nexus) {
                unit.raise(nexus, attention);
            }
        }
    }

    /// Tells a registrant, if it is logged in.
    pub(crate) fn tell_registrant(&self, unit: &Unit<S>, who: &Registrant, attention: Attention) {
        for nexus in self.0.nexuses.borrow().values().filter(|nexus| who.is(nexus)) {
            unit.raise(nexus, attention);
        }
    }

    /// The numbers of those registrants that are logged in.
    pub(crate) fn nexuses_of(&self, registrants: &[Registrant]) -> Vec<u64> {
        let nexuses = self.0.nexuses.borrow();
        let of = nexuses.values().filter(|nexus| registrants.iter().any(|who| who.is(nexus)));
        of.map(|nexus| nexus.0.number).collect()
    }

    /// Other units are seen now by those initiators: any unit that they see says so.
    fn luns_changed(&self, concerns: impl Fn(&str) -> bool) {
        for nexus in self.0.nexuses.borrow().values().filter(|nexus| concerns(&nexus.initiator().name)) {
            for unit in self.units().iter().filter(|unit| unit.admits(nexus)) {
                unit.raise(nexus, Attention::LunsChanged);
            }
            self.notify(nexus, Lun::ZERO, Attention::LunsChanged);
        }
    }

    fn notify(&self, nexus: &Nexus, lun: Lun, attention: Attention) {
        if let Some(observer) = &*self.0.observer.borrow() {
            observer(nexus, lun, &attention.sense().bytes(Format::Fixed));
        }
    }
}

impl<S: Seam> Removed<S> {
    /// The unit as long as its volume is on its way out: it may come back.
    pub fn absent(&self) -> Absent {
        let Unit { lun, identity, access, .. } = &*self.0;
        Absent { lun: *lun, identity: identity.clone(), access: access.borrow().clone() }
    }
}

/// What a command to a number without a unit is told.
pub(crate) fn no_unit() -> Sense {
    Sense::illegal(Asc::UNIT_NOT_SUPPORTED)
}
