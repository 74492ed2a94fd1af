//! Persistent reservations (SPC-4 5.13): registrations, the reservation, and the effect of each service action.
//!
//! A change is made on a copy, which takes effect when it is durable. [`Events`] lists the initiators to notify.

use super::{LIST_BYTES, Registrant, SERVICE_ACTION_KEY_OFFSET};
use crate::attention::Attention;
use crate::cdb::{invalid_field, invalid_parameter};
use crate::failure::Failure;
use crate::nexus::Nexus;
use crate::sense::{Asc, Sense};

/// Maximum number of registrations of a unit.
const REGISTRATIONS_MAX: usize = 256;

/// Reservation type: access of holders, registrants and other initiators.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReservationType {
    WriteExclusive,
    ExclusiveAccess,
    WriteExclusiveRegistrants,
    ExclusiveAccessRegistrants,
    WriteExclusiveAll,
    ExclusiveAccessAll,
}

impl ReservationType {
    const ALL: [(u8, ReservationType); 6] = [
        (1, ReservationType::WriteExclusive),
        (3, ReservationType::ExclusiveAccess),
        (5, ReservationType::WriteExclusiveRegistrants),
        (6, ReservationType::ExclusiveAccessRegistrants),
        (7, ReservationType::WriteExclusiveAll),
        (8, ReservationType::ExclusiveAccessAll),
    ];

    /// Decodes a type code.
    pub fn of(code: u8) -> Option<ReservationType> {
        Self::ALL.iter().find(|(other, _)| *other == code).map(|(_, kind)| *kind)
    }

    /// Type code.
    pub fn code(self) -> u8 {
        let entry = Self::ALL.iter().find(|(_, kind)| *kind == self);
        entry.expect("every type has a code").0
    }

    /// True if every registrant is a holder.
    pub fn is_of_all_registrants(self) -> bool {
        matches!(self, ReservationType::WriteExclusiveAll | ReservationType::ExclusiveAccessAll)
    }

    /// True if registrants have the holder's access.
    fn is_open_to_registrants(self) -> bool {
        !matches!(self, ReservationType::WriteExclusive | ReservationType::ExclusiveAccess)
    }

    /// True if other initiators may read.
    fn is_open_to_readers(self) -> bool {
        matches!(
            self,
            ReservationType::WriteExclusive
                | ReservationType::WriteExclusiveRegistrants
                | ReservationType::WriteExclusiveAll
        )
    }
}

/// A key that an initiator's port has registered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Registration {
    pub registrant: Registrant,
    pub key: u64,
}

/// A reservation. `holder` is `None` if all registrants hold it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reservation {
    pub kind: ReservationType,
    pub holder: Option<Registrant>,
}

/// Unit attentions to raise and registrants whose commands a PREEMPT AND ABORT ends.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Events {
    pub notified: Vec<(Registrant, Attention)>,
    pub preempted: Vec<Registrant>,
}

/// Registrations and the reservation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct State {
    /// PRgeneration: counts the changes of registrations.
    pub generation: u32,
    pub registrations: Vec<Registration>,
    pub reservation: Option<Reservation>,
    /// APTPL: registrations survive a restart.
    pub persists: bool,
}

impl State {
    /// True without registrations, and so without a reservation.
    pub fn is_empty(&self) -> bool {
        self.registrations.is_empty()
    }

    /// True if the nexus' initiator port has a registration.
    pub fn is_registered(&self, nexus: &Nexus) -> bool {
        self.registrations.iter().any(|registration| registration.registrant.is(nexus))
    }

    /// True if the reservation allows reads of the nexus.
    pub fn may_read(&self, nexus: &Nexus) -> bool {
        self.reservation.as_ref().is_none_or(|reservation| {
            reservation.kind.is_open_to_readers() || self.has_holder_access(reservation, nexus)
        })
    }

    /// True if the reservation allows writes of the nexus.
    pub fn may_write(&self, nexus: &Nexus) -> bool {
        self.reservation.as_ref().is_none_or(|reservation| self.has_holder_access(reservation, nexus))
    }

    fn has_holder_access(&self, reservation: &Reservation, nexus: &Nexus) -> bool {
        reservation.holder.as_ref().is_some_and(|holder| holder.is(nexus))
            || reservation.kind.is_open_to_registrants() && self.is_registered(nexus)
    }

    /// The key to report for the reservation: the holder's key, or zero if all registrants hold it.
    pub fn holders_key(&self) -> u64 {
        let holder = self.reservation.as_ref().and_then(|reservation| reservation.holder.as_ref());
        holder.and_then(|holder| self.key_of(holder)).unwrap_or(0)
    }

    /// True if the registrant holds the reservation.
    pub fn holds(&self, registrant: &Registrant) -> bool {
        self.reservation.as_ref().is_some_and(|reservation| match &reservation.holder {
            Some(holder) => holder == registrant,
            None => self.key_of(registrant).is_some(),
        })
    }

    fn key_of(&self, registrant: &Registrant) -> Option<u64> {
        self.registrations
            .iter()
            .find(|registration| registration.registrant == *registrant)
            .map(|registration| registration.key)
    }

    fn check_key(&self, registrant: &Registrant, key: u64) -> Result<(), Failure> {
        if self.key_of(registrant) == Some(key) { Ok(()) } else { Err(Failure::Conflict) }
    }

    fn set_key(&mut self, registrant: &Registrant, key: u64) -> Result<(), Failure> {
        if let Some(registration) =
            self.registrations.iter_mut().find(|registration| registration.registrant == *registrant)
        {
            registration.key = key;
        } else if self.registrations.len() < REGISTRATIONS_MAX {
            self.registrations.push(Registration { registrant: registrant.clone(), key });
        } else {
            return Err(Sense::illegal(Asc::NO_REGISTRATION_RESOURCES).into());
        }
        Ok(())
    }

    /// REGISTER, and REGISTER AND IGNORE EXISTING KEY. `others`: further registrants for the same key; none may be
    /// registered.
    pub fn register(
        &mut self,
        registrant: &Registrant,
        key: u64,
        new_key: u64,
        ignores_key: bool,
        others: &[Registrant],
        persists: bool,
    ) -> Result<Events, Failure> {
        let mut events = Events::default();
        let current_key = self.key_of(registrant);
        if !ignores_key && current_key.unwrap_or(0) != key {
            return Err(Failure::Conflict);
        }
        if current_key.is_none() && new_key == 0 {
            return Ok(events);
        }
        if new_key == 0 {
            self.unregister(registrant, &mut events);
        } else {
            // A registrant's key may be changed only by that registrant itself.
            if others.iter().any(|other| other != registrant && self.key_of(other).is_some()) {
                return Err(Failure::Conflict);
            }
            self.set_key(registrant, new_key)?;
            for other in others {
                self.set_key(other, new_key)?;
            }
        }
        self.persists = persists;
        self.bump_generation();
        Ok(events)
    }

    /// RESERVE.
    pub fn reserve(&mut self, registrant: &Registrant, key: u64, kind: ReservationType) -> Result<(), Failure> {
        self.check_key(registrant, key)?;
        match &self.reservation {
            Some(reservation) if reservation.kind == kind && self.holds(registrant) => Ok(()),
            Some(_) => Err(Failure::Conflict),
            None => {
                self.reservation = Some(reservation_of(registrant, kind));
                Ok(())
            }
        }
    }

    /// RELEASE.
    pub fn release(
        &mut self,
        registrant: &Registrant,
        key: u64,
        kind: Option<ReservationType>,
    ) -> Result<Events, Failure> {
        self.check_key(registrant, key)?;
        let mut events = Events::default();
        if let Some(reservation) = self.reservation.clone().filter(|_| self.holds(registrant)) {
            if kind != Some(reservation.kind) {
                return Err(Sense::illegal(Asc::INVALID_RELEASE).into());
            }
            self.reservation = None;
            if reservation.kind.is_open_to_registrants() {
                self.raise_for_others(registrant, Attention::ReservationsReleased, &mut events);
            }
        }
        Ok(events)
    }

    /// CLEAR.
    pub fn clear(&mut self, registrant: &Registrant, key: u64) -> Result<Events, Failure> {
        self.check_key(registrant, key)?;
        let mut events = Events::default();
        self.raise_for_others(registrant, Attention::ReservationsPreempted, &mut events);
        self.registrations.clear();
        self.reservation = None;
        self.bump_generation();
        Ok(events)
    }

    /// PREEMPT, and the reservation part of PREEMPT AND ABORT. `victim_key`: the key of the registrants to preempt.
    pub fn preempt(
        &mut self,
        registrant: &Registrant,
        key: u64,
        victim_key: u64,
        kind: Option<ReservationType>,
    ) -> Result<Events, Failure> {
        self.check_key(registrant, key)?;
        let mut events = Events::default();
        let takes_over = match &self.reservation {
            Some(reservation) if reservation.kind.is_of_all_registrants() => victim_key == 0,
            Some(_) if victim_key == 0 => return Err(invalid_parameter(SERVICE_ACTION_KEY_OFFSET)),
            Some(_) => self.holders_key() == victim_key,
            None if victim_key == 0 => return Err(invalid_parameter(SERVICE_ACTION_KEY_OFFSET)),
            None => false,
        };
        // Key zero stands for all other registrants if all of them hold the reservation.
        let is_victim = |other: &Registration| victim_key == 0 || other.key == victim_key;
        if !takes_over && !self.registrations.iter().any(is_victim) {
            return Err(Failure::Conflict);
        }
        let new_reservation = match (takes_over, kind) {
            (true, None) => return Err(invalid_field(2, Some(3))),
            (true, Some(kind)) => Some(reservation_of(registrant, kind)),
            (false, _) => None,
        };
        let (removed, kept): (Vec<_>, Vec<_>) = std::mem::take(&mut self.registrations)
            .into_iter()
            .partition(|other| is_victim(other) && (other.registrant != *registrant || !takes_over));
        self.registrations = kept;
        for other in removed {
            if other.registrant != *registrant {
                events.notified.push((other.registrant.clone(), Attention::RegistrationsPreempted));
            }
            events.preempted.push(other.registrant);
        }
        if let Some(new_reservation) = new_reservation {
            let is_other_type =
                self.reservation.as_ref().is_some_and(|reservation| reservation.kind != new_reservation.kind);
            self.reservation = Some(new_reservation);
            if is_other_type {
                self.raise_for_others(registrant, Attention::ReservationsReleased, &mut events);
            }
        }
        self.drop_orphaned();
        self.bump_generation();
        Ok(events)
    }

    /// REGISTER AND MOVE: moves the reservation to `to`.
    pub fn register_and_move(
        &mut self,
        registrant: &Registrant,
        key: u64,
        to: &Registrant,
        new_key: u64,
        unregister: bool,
        persists: bool,
    ) -> Result<Events, Failure> {
        self.check_key(registrant, key)?;
        let Some(reservation) = self.reservation.clone() else { return Err(Failure::Conflict) };
        if reservation.kind.is_of_all_registrants() || !self.holds(registrant) {
            return Err(Failure::Conflict);
        }
        if new_key == 0 || to == registrant {
            // The TransportID follows the fixed part of the list.
            return Err(invalid_parameter(if new_key == 0 { SERVICE_ACTION_KEY_OFFSET } else { LIST_BYTES }));
        }
        self.set_key(to, new_key)?;
        self.reservation = Some(Reservation { holder: Some(to.clone()), ..reservation });
        if unregister {
            self.registrations.retain(|registration| registration.registrant != *registrant);
        }
        self.persists = persists;
        self.bump_generation();
        Ok(Events::default())
    }

    fn unregister(&mut self, registrant: &Registrant, events: &mut Events) {
        let holder = self.reservation.clone().filter(|reservation| reservation.holder.as_ref() == Some(registrant));
        self.registrations.retain(|registration| registration.registrant != *registrant);
        if let Some(reservation) = holder {
            self.reservation = None;
            if reservation.kind.is_open_to_registrants() {
                self.raise_for_others(registrant, Attention::ReservationsReleased, events);
            }
        }
        self.drop_orphaned();
    }

    /// Drops a reservation of all registrants with the last registration.
    fn drop_orphaned(&mut self) {
        if self.registrations.is_empty() {
            self.reservation = None;
        }
    }

    fn raise_for_others(&self, except: &Registrant, attention: Attention, events: &mut Events) {
        let others = self.registrations.iter().filter(|registration| registration.registrant != *except);
        events.notified.extend(others.map(|registration| (registration.registrant.clone(), attention)));
    }

    /// Counts a change, and checks that the holder is still registered.
    fn bump_generation(&mut self) {
        self.generation = self.generation.wrapping_add(1);
        let holder = self.reservation.as_ref().and_then(|reservation| reservation.holder.as_ref());
        assert!(holder.is_none_or(|holder| self.key_of(holder).is_some()), "a holder is registered");
    }
}

fn reservation_of(registrant: &Registrant, kind: ReservationType) -> Reservation {
    Reservation { kind, holder: (!kind.is_of_all_registrants()).then(|| registrant.clone()) }
}
