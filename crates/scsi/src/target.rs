//! A target: its units by number, and the initiators logged in.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use seam::Seam;

use crate::absent::AbsentUnit;
use crate::access::AccessList;
use crate::attention::Attention;
use crate::lun::Lun;
use crate::nexus::{self, Initiator, Nexus};
use crate::pool_space::{PoolSpace, SoftThreshold};
use crate::reservations::{RecordError, Registrant, ReservationStore};
use crate::sense::SenseFormat;
use crate::unit::{Unit, UnitSpec};

/// Reason why a unit is not added.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AddError {
    /// The number is in use.
    #[error("LUN {} is in use; specify another one for the volume", .0.number())]
    Taken(Lun),
    /// The stored reservation record is unusable.
    #[error(transparent)]
    Record(#[from] RecordError),
}

pub(crate) struct Inner<S: Seam> {
    pub seam: S,
    pub name: String,
    pub ports: u16,
    pub reservation_store: Rc<dyn ReservationStore>,
    pub units: RefCell<BTreeMap<Lun, Rc<Unit<S>>>>,
    absent: RefCell<BTreeMap<Lun, AbsentUnit>>,
    /// Space of the pools of thin units, by name.
    pool_spaces: RefCell<BTreeMap<String, PoolSpace>>,
    nexuses: RefCell<BTreeMap<u64, Nexus>>,
    next_nexus: Cell<u64>,
    observer: RefCell<Option<Observer>>,
}

/// Callback for changes that are reported to initiators at once: nexus, unit, and sense data.
type Observer = Box<dyn Fn(&Nexus, Lun, &[u8])>;

/// A removed unit with the modes and reservations of its initiators.
pub struct RemovedUnit<S: Seam>(Rc<Unit<S>>);

/// A target. A clone is another handle to the same target; it stays on its core.
pub struct Target<S: Seam>(pub(crate) Rc<Inner<S>>);

impl<S: Seam> Clone for Target<S> {
    fn clone(&self) -> Self {
        Target(Rc::clone(&self.0))
    }
}

impl<S: Seam> Target<S> {
    /// A target without units. `name`: its port name (for iSCSI `iqn.…`); `ports`: number of ports, numbered from 1;
    /// `reservation_store`: storage for registrations that survive a restart.
    pub fn new(seam: S, name: &str, ports: u16, reservation_store: Rc<dyn ReservationStore>) -> Self {
        Target(Rc::new(Inner {
            seam,
            name: name.to_owned(),
            ports,
            reservation_store,
            units: RefCell::default(),
            absent: RefCell::default(),
            pool_spaces: RefCell::default(),
            nexuses: RefCell::default(),
            next_nexus: Cell::new(0),
            observer: RefCell::default(),
        }))
    }

    /// Name of the target port.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Adds a unit and establishes unit attention conditions for the initiators that see it.
    pub fn add(&self, spec: UnitSpec<S>) -> Result<(), AddError> {
        let lun = spec.lun;
        if self.0.units.borrow().contains_key(&lun) {
            return Err(AddError::Taken(lun));
        }
        self.insert(Rc::new(Unit::new(spec)?));
        Ok(())
    }

    /// Restores a removed unit. Initiators that logged out meanwhile lose their session reservations.
    pub fn reinsert(&self, removed: RemovedUnit<S>) {
        removed.0.retain_nexuses(&self.0.nexuses.borrow());
        self.insert(removed.0);
    }

    /// Records a unit whose volume is not attached now, unless the unit exists: its commands get "not ready".
    pub fn set_absent(&self, absent: AbsentUnit) {
        if !self.0.units.borrow().contains_key(&absent.lun) {
            self.0.absent.borrow_mut().insert(absent.lun, absent);
        }
    }

    /// Removes the record of an absent unit that will not return.
    pub fn remove_absent(&self, lun: Lun) {
        self.0.absent.borrow_mut().remove(&lun);
    }

    /// The absent unit `lun`, if the initiator may see it.
    pub(crate) fn absent_unit(&self, nexus: &Nexus, lun: Lun) -> Option<AbsentUnit> {
        self.0.absent.borrow().get(&lun).filter(|absent| absent.admits(nexus)).cloned()
    }

    /// Numbers of the units that the initiator may see, including absent ones.
    pub(crate) fn luns_of(&self, nexus: &Nexus) -> Vec<Lun> {
        let present = self.units().into_iter().filter(|unit| unit.admits(nexus)).map(|unit| unit.lun);
        let absent = self.0.absent.borrow();
        let absent = absent.values().filter(|absent| absent.admits(nexus)).map(|absent| absent.lun);
        let mut luns: Vec<Lun> = present.chain(absent).collect();
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
        self.raise_luns_changed(|name| access.admits(name));
    }

    /// Removes a unit; running commands end by themselves.
    pub fn remove(&self, lun: Lun) -> Option<RemovedUnit<S>> {
        let unit = self.0.units.borrow_mut().remove(&lun)?;
        self.raise_luns_changed(|name| unit.access.borrow().admits(name));
        Some(RemovedUnit(unit))
    }

    /// Sets the callback for changes of the list of units and of a unit's size. Initiators also learn of such a change
    /// from the unit attention of their next command.
    pub fn set_observer(&self, observer: impl Fn(&Nexus, Lun, &[u8]) + 'static) {
        *self.0.observer.borrow_mut() = Some(Box::new(observer));
    }

    /// Changes a unit's access list and write protection.
    pub fn set_access(&self, lun: Lun, access: AccessList, read_only: bool) {
        let Some(unit) = self.unit(lun) else { return };
        let before = unit.is_read_only();
        unit.set_read_only(read_only);
        if unit.is_read_only() != before {
            self.raise_for_all(&unit, Attention::ModeChanged);
        }
        let old = unit.access.replace(access);
        let new = unit.access.borrow();
        self.raise_luns_changed(|name| old.admits(name) != new.admits(name));
    }

    /// Reports to initiators that the size of a unit's volume changed.
    pub fn report_capacity_change(&self, lun: Lun) {
        let Some(unit) = self.unit(lun) else { return };
        self.raise_for_all(&unit, Attention::CapacityChanged);
        for nexus in self.0.nexuses.borrow().values().filter(|nexus| unit.admits(nexus)) {
            self.notify(nexus, lun, Attention::CapacityChanged);
        }
    }

    /// Records that a unit's backing is declared permanently lost, or that it has returned.
    pub fn set_declared_lost(&self, lun: Lun, declared_lost: bool) {
        if let Some(unit) = self.unit(lun) {
            unit.lost.set(declared_lost);
        }
    }

    /// The number of the unit in front of the named volume.
    pub fn lun_of_volume(&self, volume: &str) -> Option<Lun> {
        self.0.units.borrow().values().find(|unit| unit.volume().name() == volume).map(|unit| unit.lun)
    }

    /// True if an initiator that may see the unit is logged in.
    pub fn has_initiators(&self, lun: Lun) -> bool {
        let nexuses = self.0.nexuses.borrow();
        self.unit(lun).is_some_and(|unit| nexuses.values().any(|nexus| unit.admits(nexus)))
    }

    /// Numbers of all units.
    pub fn luns(&self) -> Vec<Lun> {
        self.0.units.borrow().keys().copied().collect()
    }

    /// True if the address names a unit that the initiator may see.
    pub fn is_visible(&self, nexus: &Nexus, lun: [u8; 8]) -> bool {
        Lun::decode(lun).is_some_and(|lun| self.visible_unit(nexus, lun).is_some())
    }

    /// Raises "commands cleared" for the other initiators after one has cancelled all commands to a unit.
    pub fn raise_commands_cleared(&self, nexus: &Nexus, lun: [u8; 8]) {
        if let Some(unit) = Lun::decode(lun).and_then(|lun| self.visible_unit(nexus, lun)) {
            self.raise_for_others(&unit, nexus, Attention::CommandsCleared);
        }
    }

    /// Records a login. An initiator port has one nexus per target port at a time: session reinstatement calls
    /// [`Target::remove_nexus`] first.
    pub fn add_nexus(&self, initiator: Initiator, port: u16) -> Nexus {
        let number = self.0.next_nexus.get();
        self.0.next_nexus.set(number + 1);
        let nexus = Nexus(Rc::new(nexus::Inner { number, initiator, port }));
        for unit in self.units() {
            unit.raise(&nexus, Attention::PowerOn);
        }
        self.0.nexuses.borrow_mut().insert(number, nexus.clone());
        nexus
    }

    /// Records a logout or the loss of an initiator. Its commands have ended already.
    pub fn remove_nexus(&self, nexus: &Nexus) {
        self.0.nexuses.borrow_mut().remove(&nexus.0.number);
        for unit in self.units() {
            unit.remove_nexus(nexus);
        }
    }

    /// Sets the space of a pool, which its thin units report.
    pub fn set_pool_space(&self, pool: &str, space: PoolSpace) {
        self.0.pool_spaces.borrow_mut().insert(pool.to_owned(), space);
    }

    /// Reports to the initiators of a pool's thin units that its fill has reached a threshold.
    pub fn report_soft_threshold(&self, pool: &str, threshold: SoftThreshold) {
        for unit in self.units().iter().filter(|unit| unit.thin_pool.as_deref() == Some(pool)) {
            self.raise_for_all(unit, Attention::SoftThresholdReached(threshold));
        }
    }

    /// Space of a thin unit's pool, if it is known.
    pub(crate) fn pool_space(&self, unit: &Unit<S>) -> Option<PoolSpace> {
        self.0.pool_spaces.borrow().get(unit.thin_pool.as_ref()?).copied()
    }

    /// Resets one unit, or with `None` every unit that the initiator sees. Cancels the running commands of all
    /// initiators and returns once none of them can have an effect. True if there was a unit.
    pub async fn reset(&self, nexus: &Nexus, lun: Option<[u8; 8]>) -> bool {
        let units = match lun {
            Some(lun) => Lun::decode(lun).and_then(|lun| self.visible_unit(nexus, lun)).into_iter().collect(),
            None => self.units().into_iter().filter(|unit| unit.admits(nexus)).collect::<Vec<_>>(),
        };
        // All units are cancelled first: a command that arrives at one during the wait for another is not part of the
        // reset.
        let cancelled = units.iter().map(|unit| {
            unit.reservations.reset();
            unit.tasks.cancel(|_| true, None)
        });
        let cancelled: Vec<_> = cancelled.collect();
        for (unit, commands) in units.iter().zip(cancelled) {
            unit.tasks.wait_until_ended(&commands).await;
            self.raise_for_all(unit, Attention::Reset);
        }
        !units.is_empty()
    }

    /// CLEAR TASK SET: cancels the commands of all initiators to a unit and raises unit attentions for the others.
    /// Returns once none of the commands can have an effect; true if the unit exists.
    pub async fn clear_commands(&self, nexus: &Nexus, lun: [u8; 8]) -> bool {
        let Some(unit) = Lun::decode(lun).and_then(|lun| self.visible_unit(nexus, lun)) else { return false };
        if unit.tasks.cancel_and_wait(|_| true, None).await {
            self.raise_commands_cleared(nexus, lun);
        }
        true
    }

    /// The unit of this number, if the initiator may see it.
    pub(crate) fn visible_unit(&self, nexus: &Nexus, lun: Lun) -> Option<Rc<Unit<S>>> {
        self.unit(lun).filter(|unit| unit.admits(nexus))
    }

    /// The unit of this number, whether an initiator may see it or not.
    pub(crate) fn unit(&self, lun: Lun) -> Option<Rc<Unit<S>>> {
        self.0.units.borrow().get(&lun).cloned()
    }

    /// All units.
    pub(crate) fn units(&self) -> Vec<Rc<Unit<S>>> {
        self.0.units.borrow().values().cloned().collect()
    }

    /// Raises a unit attention for all initiators that see a unit.
    pub(crate) fn raise_for_all(&self, unit: &Unit<S>, attention: Attention) {
        for nexus in self.0.nexuses.borrow().values().filter(|nexus| unit.admits(nexus)) {
            unit.raise(nexus, attention);
        }
    }

    /// Raises a unit attention for all other initiators that see a unit.
    pub(crate) fn raise_for_others(&self, unit: &Unit<S>, except: &Nexus, attention: Attention) {
        for nexus in self.0.nexuses.borrow().values() {
            if nexus.0.number != except.0.number && unit.admits(nexus) {
                unit.raise(nexus, attention);
            }
        }
    }

    /// Raises a unit attention for a registrant that is logged in.
    pub(crate) fn raise_for_registrant(&self, unit: &Unit<S>, registrant: &Registrant, attention: Attention) {
        for nexus in self.0.nexuses.borrow().values().filter(|nexus| registrant.is(nexus)) {
            unit.raise(nexus, attention);
        }
    }

    /// Numbers of the registrants' nexuses.
    pub(crate) fn nexuses_of(&self, registrants: &[Registrant]) -> Vec<u64> {
        let nexuses = self.0.nexuses.borrow();
        let matching = nexuses.values().filter(|nexus| registrants.iter().any(|registrant| registrant.is(nexus)));
        matching.map(|nexus| nexus.0.number).collect()
    }

    /// Raises "LUNs changed" on every visible unit for the initiators whose visible units changed.
    fn raise_luns_changed(&self, is_affected: impl Fn(&str) -> bool) {
        for nexus in self.0.nexuses.borrow().values().filter(|nexus| is_affected(&nexus.initiator().name)) {
            for unit in self.units().iter().filter(|unit| unit.admits(nexus)) {
                unit.raise(nexus, Attention::LunsChanged);
            }
            self.notify(nexus, Lun::ZERO, Attention::LunsChanged);
        }
    }

    fn notify(&self, nexus: &Nexus, lun: Lun, attention: Attention) {
        if let Some(observer) = &*self.0.observer.borrow() {
            observer(nexus, lun, &attention.sense().bytes(SenseFormat::Fixed));
        }
    }
}

impl<S: Seam> RemovedUnit<S> {
    /// The unit as absent while its volume detaches: it may return.
    pub fn absent(&self) -> AbsentUnit {
        let Unit { lun, identity, access, .. } = &*self.0;
        AbsentUnit { lun: *lun, identity: identity.clone(), access: access.borrow().clone() }
    }
}
