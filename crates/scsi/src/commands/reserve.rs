//! RESERVE, RELEASE, PERSISTENT RESERVE IN and PERSISTENT RESERVE OUT.

use std::rc::Rc;

use seam::Seam;

use super::Task;
use crate::attention::Attention;
use crate::cdb::{Cdb, invalid_field};
use crate::exchange::{DataIn, DataOut};
use crate::failure::Failure;
use crate::reservations::{self, Events, LIST_BYTES, LIST_BYTES_MAX, Registrant, ReservationType, State};
use crate::sense::{Asc, Sense, SenseKey};
use crate::status::Status;
use crate::unit::Unit;

/// Service actions of PERSISTENT RESERVE IN; every other one is READ FULL STATUS.
const READ_KEYS: u8 = 0;
const READ_RESERVATION: u8 = 1;
const REPORT_CAPABILITIES: u8 = 2;

/// Service actions of PERSISTENT RESERVE OUT.
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
            READ_KEYS => reservations::keys(&state),
            READ_RESERVATION => reservations::reservation(&state),
            REPORT_CAPABILITIES => reservations::capabilities(&state),
            _ => reservations::full_status(&state),
        };
        self.send_response(&bytes, cdb.u16(7)).await
    }

    pub(super) async fn reserve_out(&mut self, unit: &Rc<Unit<S>>, cdb: Cdb<'_>) -> Result<Status, Failure> {
        let (action, len) = (cdb.u8(1) & 0x1f, cdb.u32(5) as usize);
        let has_fixed_len = action != REGISTER && action != REGISTER_AND_MOVE;
        if len < LIST_BYTES || len > if has_fixed_len { LIST_BYTES } else { LIST_BYTES_MAX } {
            return Err(Sense::illegal(Asc::PARAMETER_LIST_LENGTH_ERROR).into());
        }
        // The scope of a reservation is the whole unit.
        let has_scope = matches!(action, RESERVE | RELEASE | PREEMPT | PREEMPT_AND_ABORT);
        if has_scope && cdb.u8(2) >> 4 != 0 {
            return Err(invalid_field(2, Some(7)));
        }
        let bytes = self.parameters(len).await?;
        let events = {
            let _guard = unit.reservations.change_lock.lock_exclusive(0..1).await;
            self.check_cancelled()?;
            let mut state = unit.reservations.state();
            let events = self.apply(&mut state, action, ReservationType::of(cdb.u8(2) & 0x0f), &bytes)?;
            self.commit_state(unit, state).await?;
            events
        };
        self.raise_attentions(unit, &events);
        if action == PREEMPT_AND_ABORT {
            self.abort_commands(unit, &events.preempted).await;
        }
        Ok(Status::Good)
    }

    fn apply(
        &self,
        state: &mut State,
        action: u8,
        kind: Option<ReservationType>,
        bytes: &[u8],
    ) -> Result<Events, Failure> {
        let registrant = Registrant::of(self.nexus);
        if action == REGISTER_AND_MOVE {
            let movement = reservations::decode_move_parameters(bytes)?;
            if movement.to.port == 0 || movement.to.port > self.target.0.ports {
                return Err(crate::cdb::invalid_parameter(reservations::MOVE_PORT_OFFSET));
            }
            return state.register_and_move(
                &registrant,
                movement.key,
                &movement.to,
                movement.new_key,
                movement.unregister,
                movement.persists,
            );
        }
        let parameters = reservations::decode_parameters(bytes)?;
        if parameters.other_initiators.is_some() && (action != REGISTER || state.is_registered(self.nexus)) {
            return Err(crate::cdb::invalid_parameter(reservations::FLAGS_OFFSET));
        }
        let known_type = || kind.ok_or_else(|| invalid_field(2, Some(3)));
        match action {
            REGISTER | REGISTER_AND_IGNORE => {
                let ports =
                    if parameters.all_ports { 1..=self.target.0.ports } else { registrant.port..=registrant.port };
                let mut initiators = parameters.other_initiators.unwrap_or_default();
                initiators.push(registrant.initiator.clone());
                let registrants = initiators.into_iter().flat_map(|initiator| {
                    ports.clone().map(move |port| Registrant { initiator: initiator.clone(), port })
                });
                let others: Vec<Registrant> = registrants.filter(|other| *other != registrant).collect();
                let ignores_key = action == REGISTER_AND_IGNORE;
                state.register(
                    &registrant,
                    parameters.key,
                    parameters.new_key,
                    ignores_key,
                    &others,
                    parameters.persists,
                )
            }
            RESERVE => state.reserve(&registrant, parameters.key, known_type()?).map(|()| Events::default()),
            RELEASE => state.release(&registrant, parameters.key, kind),
            CLEAR => state.clear(&registrant, parameters.key),
            _ => state.preempt(&registrant, parameters.key, parameters.new_key, kind),
        }
    }

    /// Makes a change durable if it must survive a restart, then puts it into effect.
    async fn commit_state(&self, unit: &Rc<Unit<S>>, state: State) -> Result<(), Failure> {
        let record = unit.reservations.record_to_store(&state);
        if let Some(record) = &record {
            let volume_id = unit.volume().spec().volume_id;
            let stored = self.target.0.reservation_store.store(volume_id, record.clone()).await;
            stored.map_err(|_| Sense::new(SenseKey::HARDWARE_ERROR, Asc::INTERNAL_TARGET_FAILURE))?;
        }
        unit.reservations.replace(state, record);
        Ok(())
    }

    fn raise_attentions(&self, unit: &Unit<S>, events: &Events) {
        for (registrant, attention) in &events.notified {
            self.target.raise_for_registrant(unit, registrant, *attention);
        }
    }

    /// Aborts the commands of preempted registrants.
    async fn abort_commands(&self, unit: &Rc<Unit<S>>, preempted: &[Registrant]) {
        let nexuses: Vec<u64> = self.target.nexuses_of(preempted);
        let own_number = self.running.as_ref().map(|running| running.number());
        if unit.tasks.cancel_and_wait(|nexus| nexuses.contains(&nexus), own_number).await {
            for registrant in preempted.iter().filter(|registrant| !registrant.is(self.nexus)) {
                self.target.raise_for_registrant(unit, registrant, Attention::CommandsCleared);
            }
        }
    }
}
