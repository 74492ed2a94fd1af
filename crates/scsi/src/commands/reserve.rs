//! RESERVE and RELEASE, PERSISTENT RESERVE IN and OUT.

use std::rc::Rc;

use seam::Seam;

use super::Task;
use crate::attention::Attention;
use crate::cdb::{Cdb, invalid_field};
use crate::exchange::{DataIn, DataOut};
use crate::failure::Failure;
use crate::reservations::{self, Events, LIST_BYTES, LIST_BYTES_MAX, Registrant, State, Type};
use crate::sense::{Asc, Key, Sense};
use crate::status::Status;
use crate::unit::Unit;

const REGISTER: u8 = 0;
const RESERVE: u8 = 1;
const RELEASE: u8 = 2;
const CLEAR: u8 = 3;
const PREEMPT: u8 = 4;
const PREEMPT_AND_ABORT: u8 = 5;
const REGISTER_AND_IGNORE: u8 = 6;
const REGISTER_AND_MOVE: u8 = 7;

impl<S: Seam, O: DataOut, I: DataIn<S>> Task<'_, S, O, I> {
    pub(super) async fn reserve_unit(&mut self, unit: &Rc<Unit<S>>) -> Result<Status, Failure> {
        unit.reservations.reserve(self.nexus)?;
        Ok(Status::Good)
    }

    pub(super) async fn release_unit(&mut self, unit: &Rc<Unit<S>>) -> Result<Status, Failure> {
        unit.reservations.release(self.nexus)?;
        Ok(Status::Good)
    }

    pub(super) async fn reserve_in(&mut self, unit: &Rc<Unit<S>>, cdb: Cdb<'_>) -> Result<Status, Failure> {
        let state = unit.reservations.state();
        let bytes = match cdb.u8(1) & 0x1f {
            0 => reservations::keys(&state),
            1 => reservations::reservation(&state),
            2 => reservations::capabilities(&state),
            _ => reservations::full(&state),
        };
        self.answer(&bytes, cdb.u16(7)).await
    }

    pub(super) async fn reserve_out(&mut self, unit: &Rc<Unit<S>>, cdb: Cdb<'_>) -> Result<Status, Failure> {
        let (action, len) = (cdb.u8(1) & 0x1f, cdb.u32(5) as usize);
        let plain = action != REGISTER && action != REGISTER_AND_MOVE;
        if len < LIST_BYTES || len > if plain { LIST_BYTES } else { LIST_BYTES_MAX } {
            return Err(Sense::illegal(Asc::PARAMETER_LIST_LENGTH_ERROR).into());
        }
        // A reservation is of the whole unit.
        let scoped = matches!(action, RESERVE | RELEASE | PREEMPT | PREEMPT_AND_ABORT);
        if scoped && cdb.u8(2) >> 4 != 0 {
            return Err(invalid_field(2, Some(7)));
        }
        let bytes = self.parameters(len).await?;
        let events = {
            let _turn = unit.reservations.turns.alone(0..1).await;
            self.check_wanted()?;
            let mut state = unit.reservations.state();
            let events = self.change(&mut state, action, Type::of(cdb.u8(2) & 0x0f), &bytes)?;
            self.put_in_place(unit, state).await?;
            events
        };
        self.tell(unit, &events);
        if action == PREEMPT_AND_ABORT {
            self.abort(unit, &events.preempted).await;
        }
        Ok(Status::Good)
    }

    fn change(&self, state: &mut State, action: u8, kind: Option<Type>, bytes: &[u8]) -> Result<Events, Failure> {
        let who = Registrant::of(self.nexus);
        if action == REGISTER_AND_MOVE {
            let of = reservations::moving(bytes)?;
            if of.to.port == 0 || of.to.port > self.target.0.ports {
                return Err(crate::cdb::invalid_parameter(18));
            }
            return state.hand_over(&who, of.key, &of.to, of.new_key, of.unregister, of.persists);
        }
        let given = reservations::parameters(bytes)?;
        if given.also.is_some() && (action != REGISTER || state.is_registered(self.nexus)) {
            return Err(crate::cdb::invalid_parameter(20));
        }
        let known_type = || kind.ok_or_else(|| invalid_field(2, Some(3)));
        match action {
            REGISTER | REGISTER_AND_IGNORE => {
                let ports = if given.all_ports { 1..=self.target.0.ports } else { who.port..=who.port };
                let mut initiators = given.also.unwrap_or_default();
                initiators.push(who.initiator.clone());
                let all = initiators.into_iter().flat_map(|initiator| {
                    ports.clone().map(move |port| Registrant { initiator: initiator.clone(), port })
                });
                let others: Vec<Registrant> = all.filter(|other| *other != who).collect();
                let ignore = action == REGISTER_AND_IGNORE;
                state.register(&who, given.key, given.new_key, ignore, &others, given.persists)
            }
            RESERVE => state.reserve(&who, given.key, known_type()?).map(|()| Events::default()),
            RELEASE => state.release(&who, given.key, kind),
            CLEAR => state.clear(&who, given.key),
            _ => state.preempt(&who, given.key, given.new_key, kind),
        }
    }

    /// Makes a change durable where it has to outlast a restart, then lets it count.
    async fn put_in_place(&self, unit: &Rc<Unit<S>>, state: State) -> Result<(), Failure> {
        let record = unit.reservations.record_to_keep(&state);
        if let Some(record) = &record {
            let incarnation = unit.volume().spec().incarnation;
            let kept = self.target.0.keeper.keep(incarnation, record.clone()).await;
            kept.map_err(|_| Sense::new(Key::HARDWARE_ERROR, Asc::INTERNAL_TARGET_FAILURE))?;
        }
        unit.reservations.replace(state, record);
        Ok(())
    }

    fn tell(&self, unit: &Unit<S>, events: &Events) {
        for (who, attention) in &events.told {
            self.target.tell_registrant(unit, who, *attention);
        }
    }

    /// Ends the commands of those whose registrations were taken away.
    async fn abort(&self, unit: &Rc<Unit<S>>, preempted: &[Registrant]) {
        let victims: Vec<u64> = self.target.nexuses_of(preempted);
        let own = self.running.as_ref().map(|running| running.number());
        if unit.tasks.end(|nexus| victims.contains(&nexus), own).await {
            for who in preempted.iter().filter(|who| !who.is(self.nexus)) {
                self.target.tell_registrant(unit, who, Attention::CommandsCleared);
            }
        }
    }
}
