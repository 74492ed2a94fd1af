//! Persistent reservations (SPC-4 5.13): who is registered, who holds the unit, and what each change makes of that.
//!
//! A change is made on a copy and put in place when it is durable; who has to be told comes back as [`Events`].

use super::Registrant;
use crate::attention::Attention;
use crate::cdb::{invalid_field, invalid_parameter};
use crate::failure::Failure;
use crate::nexus::Nexus;
use crate::sense::{Asc, Sense};

/// Most registrations that a unit has room for.
const REGISTRATIONS_MAX: usize = 256;

/// What a reservation keeps whom from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Type {
    WriteExclusive,
    ExclusiveAccess,
    WriteExclusiveRegistrants,
    ExclusiveAccessRegistrants,
    WriteExclusiveAll,
    ExclusiveAccessAll,
}

impl Type {
    const ALL: [(u8, Type); 6] = [
        (1, Type::WriteExclusive),
        (3, Type::ExclusiveAccess),
        (5, Type::WriteExclusiveRegistrants),
        (6, Type::ExclusiveAccessRegistrants),
        (7, Type::WriteExclusiveAll),
        (8, Type::ExclusiveAccessAll),
    ];

    pub fn of(code: u8) -> Option<Type> {
        Self::ALL.iter().find(|(of, _)| *of == code).map(|(_, kind)| *kind)
    }

    pub fn code(self) -> u8 {
        let found = Self::ALL.iter().find(|(_, kind)| *kind == self);
        found.expect("every type has a code").0
    }

    /// Whoever is registered holds it.
    pub fn is_of_all(self) -> bool {
        matches!(self, Type::WriteExclusiveAll | Type::ExclusiveAccessAll)
    }

    /// Whoever is registered may do as the holder may.
    fn is_open_to_registrants(self) -> bool {
        !matches!(self, Type::WriteExclusive | Type::ExclusiveAccess)
    }

    /// Others may read.
    fn is_open_to_readers(self) -> bool {
        matches!(self, Type::WriteExclusive | Type::WriteExclusiveRegistrants | Type::WriteExclusiveAll)
    }
}

/// A key that an initiator's port has registered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Registration {
    pub who: Registrant,
    pub key: u64,
}

/// A reservation. Of one that all hold `holder` is `None`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    pub kind: Type,
    pub holder: Option<Registrant>,
}

/// Who is to be told what, and whose commands are to end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Events {
    pub told: Vec<(Registrant, Attention)>,
    pub preempted: Vec<Registrant>,
}

/// Registrations and what is held.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct State {
    pub generation: u32,
    pub registrations: Vec<Registration>,
    pub held: Option<Held>,
    /// It outlasts a restart (APTPL).
    pub persists: bool,
}

impl State {
    /// True without any registration: there is no reservation then.
    pub fn is_empty(&self) -> bool {
        self.registrations.is_empty()
    }

    pub fn is_registered(&self, nexus: &Nexus) -> bool {
        self.registrations.iter().any(|registration| registration.who.is(nexus))
    }

    pub fn may_read(&self, nexus: &Nexus) -> bool {
        self.held.as_ref().is_none_or(|held| held.kind.is_open_to_readers() || self.may_all(held, nexus))
    }

    pub fn may_write(&self, nexus: &Nexus) -> bool {
        self.held.as_ref().is_none_or(|held| self.may_all(held, nexus))
    }

    fn may_all(&self, held: &Held, nexus: &Nexus) -> bool {
        held.holder.as_ref().is_some_and(|holder| holder.is(nexus))
            || held.kind.is_open_to_registrants() && self.is_registered(nexus)
    }

    /// The key of a holder, as it is told: none where all hold it.
    pub fn holders_key(&self) -> u64 {
        let holder = self.held.as_ref().and_then(|held| held.holder.as_ref());
        holder.and_then(|holder| self.key_of(holder)).unwrap_or(0)
    }

    pub fn holds(&self, who: &Registrant) -> bool {
        self.held.as_ref().is_some_and(|held| match &held.holder {
            Some(holder) => holder == who,
            None => self.key_of(who).is_some(),
        })
    }

    fn key_of(&self, who: &Registrant) -> Option<u64> {
        self.registrations.iter().find(|registration| registration.who == *who).map(|registration| registration.key)
    }

    fn check_key(&self, who: &Registrant, key: u64) -> Result<(), Failure> {
        if self.key_of(who) == Some(key) { Ok(()) } else { Err(Failure::Conflict) }
    }

    fn set_key(&mut self, who: &Registrant, key: u64) -> Result<(), Failure> {
        if let Some(registration) = self.registrations.iter_mut().find(|registration| registration.who == *who) {
            registration.key = key;
        } else if self.registrations.len() < REGISTRATIONS_MAX {
            self.registrations.push(Registration { who: who.clone(), key });
        } else {
            return Err(Sense::illegal(Asc::NO_REGISTRATION_RESOURCES).into());
        }
        Ok(())
    }

    /// REGISTER, and AND IGNORE EXISTING KEY. `also`: others that are registered with the same key, for `who` must be new then.
    pub fn register(
        &mut self,
        who: &Registrant,
        key: u64,
        new: u64,
        ignore: bool,
        also: &[Registrant],
        persists: bool,
    ) -> Result<Events, Failure> {
        let mut events = Events::default();
        let known = self.key_of(who);
        if !ignore && known.unwrap_or(0) != key {
            return Err(Failure::Conflict);
        }
        if known.is_none() && new == 0 {
            return Ok(events);
        }
        if new == 0 {
            self.unregister(who, &mut events);
        } else {
            // Others may be registered already, which nobody is to be by another's word.
            if also.iter().any(|other| other != who && self.key_of(other).is_some()) {
                return Err(Failure::Conflict);
            }
            self.set_key(who, new)?;
            for other in also {
                self.set_key(other, new)?;
            }
        }
        self.persists = persists;
        self.changed();
        Ok(events)
    }

    /// RESERVE.
    pub fn reserve(&mut self, who: &Registrant, key: u64, kind: Type) -> Result<(), Failure> {
        self.check_key(who, key)?;
        match &self.held {
            Some(held) if held.kind == kind && self.holds(who) => Ok(()),
            Some(_) => Err(Failure::Conflict),
            None => {
                self.held = Some(held_by(who, kind));
                Ok(())
            }
        }
    }

    /// RELEASE.
    pub fn release(&mut self, who: &Registrant, key: u64, kind: Option<Type>) -> Result<Events, Failure> {
        self.check_key(who, key)?;
        let mut events = Events::default();
        if let Some(held) = self.held.clone().filter(|_| self.holds(who)) {
            if kind != Some(held.kind) {
                return Err(Sense::illegal(Asc::INVALID_RELEASE).into());
            }
            self.held = None;
            if held.kind.is_open_to_registrants() {
                self.tell_others(who, Attention::ReservationsReleased, &mut events);
            }
        }
        Ok(events)
    }

    /// CLEAR.
    pub fn clear(&mut self, who: &Registrant, key: u64) -> Result<Events, Failure> {
        self.check_key(who, key)?;
        let mut events = Events::default();
        self.tell_others(who, Attention::ReservationsPreempted, &mut events);
        self.registrations.clear();
        self.held = None;
        self.changed();
        Ok(events)
    }

    /// PREEMPT, and what PREEMPT AND ABORT has to do with reservations.
    pub fn preempt(&mut self, who: &Registrant, key: u64, victims: u64, kind: Option<Type>) -> Result<Events, Failure> {
        self.check_key(who, key)?;
        let mut events = Events::default();
        let takes_over = match &self.held {
            Some(held) if held.kind.is_of_all() => victims == 0,
            Some(_) if victims == 0 => return Err(invalid_parameter(8)),
            Some(_) => self.holders_key() == victims,
            None if victims == 0 => return Err(invalid_parameter(8)),
            None => false,
        };
        // The key of nothing stands for everybody else, where all hold the unit.
        let is_victim = |other: &Registration| victims == 0 || other.key == victims;
        if !takes_over && !self.registrations.iter().any(is_victim) {
            return Err(Failure::Conflict);
        }
        let new = match (takes_over, kind) {
            (true, None) => return Err(invalid_field(2, Some(3))),
            (true, Some(kind)) => Some(held_by(who, kind)),
            (false, _) => None,
        };
        let (gone, stay): (Vec<_>, Vec<_>) = std::mem::take(&mut self.registrations)
            .into_iter()
            .partition(|other| is_victim(other) && (other.who != *who || !takes_over));
        self.registrations = stay;
        for other in gone {
            if other.who != *who {
                events.told.push((other.who.clone(), Attention::RegistrationsPreempted));
            }
            events.preempted.push(other.who);
        }
        if let Some(new) = new {
            let other_type = self.held.as_ref().is_some_and(|held| held.kind != new.kind);
            self.held = Some(new);
            if other_type {
                self.tell_others(who, Attention::ReservationsReleased, &mut events);
            }
        }
        self.drop_orphaned();
        self.changed();
        Ok(events)
    }

    /// REGISTER AND MOVE: the reservation becomes that of `to`.
    pub fn hand_over(
        &mut self,
        who: &Registrant,
        key: u64,
        to: &Registrant,
        new: u64,
        unregister: bool,
        persists: bool,
    ) -> Result<Events, Failure> {
        self.check_key(who, key)?;
        let Some(held) = self.held.clone() else { return Err(Failure::Conflict) };
        if held.kind.is_of_all() || !self.holds(who) {
            return Err(Failure::Conflict);
        }
        if new == 0 || to == who {
            return Err(invalid_parameter(if new == 0 { 8 } else { 24 }));
        }
        self.set_key(to, new)?;
        self.held = Some(Held { holder: Some(to.clone()), ..held });
        if unregister {
            self.registrations.retain(|registration| registration.who != *who);
        }
        self.persists = persists;
        self.changed();
        Ok(Events::default())
    }

    fn unregister(&mut self, who: &Registrant, events: &mut Events) {
        let holder = self.held.clone().filter(|held| held.holder.as_ref() == Some(who));
        self.registrations.retain(|registration| registration.who != *who);
        if let Some(held) = holder {
            self.held = None;
            if held.kind.is_open_to_registrants() {
                self.tell_others(who, Attention::ReservationsReleased, events);
            }
        }
        self.drop_orphaned();
    }

    /// What all hold nobody holds when nobody is left.
    fn drop_orphaned(&mut self) {
        if self.registrations.is_empty() {
            self.held = None;
        }
    }

    fn tell_others(&self, but: &Registrant, attention: Attention, events: &mut Events) {
        let others = self.registrations.iter().filter(|registration| registration.who != *but);
        events.told.extend(others.map(|registration| (registration.who.clone(), attention)));
    }

    fn changed(&mut self) {
        self.generation = self.generation.wrapping_add(1);
        let holder = self.held.as_ref().and_then(|held| held.holder.as_ref());
        assert!(holder.is_none_or(|holder| self.key_of(holder).is_some()), "a holder is registered");
    }
}

fn held_by(who: &Registrant, kind: Type) -> Held {
    Held { kind, holder: (!kind.is_of_all()).then(|| who.clone()) }
}
