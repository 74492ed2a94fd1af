//! What PERSISTENT RESERVE IN tells.

use super::state::State;

/// Registrations and the reservation reach what lies past this bit of the unit: all of it.
const SCOPE_UNIT: u8 = 0x00;

fn with_head(state: &State, body: &[u8]) -> Vec<u8> {
    [&state.generation.to_be_bytes()[..], &(body.len() as u32).to_be_bytes(), body].concat()
}

/// READ KEYS.
pub fn keys(state: &State) -> Vec<u8> {
    let keys: Vec<u8> = state.registrations.iter().flat_map(|registration| registration.key.to_be_bytes()).collect();
    with_head(state, &keys)
}

/// READ RESERVATION.
pub fn reservation(state: &State) -> Vec<u8> {
    let Some(held) = &state.held else { return with_head(state, &[]) };
    let mut body = state.holders_key().to_be_bytes().to_vec();
    body.extend([0, 0, 0, 0, 0, SCOPE_UNIT | held.kind.code(), 0, 0]);
    with_head(state, &body)
}

/// REPORT CAPABILITIES.
pub fn capabilities(state: &State) -> Vec<u8> {
    // RESERVE is compatible, initiators may be named, all ports be meant at once; it can outlast a restart. All types.
    let (can, does) = (0x1d, 0x80 | u8::from(state.persists));
    vec![0, 8, can, does, 0xea, 0x01, 0, 0]
}

/// READ FULL STATUS.
pub fn full(state: &State) -> Vec<u8> {
    let mut body = Vec::new();
    for registration in &state.registrations {
        let holds = state.holds(&registration.who);
        let kind = state.held.as_ref().filter(|_| holds).map_or(0, |held| SCOPE_UNIT | held.kind.code());
        let id = registration.who.initiator.transport_id();
        body.extend(registration.key.to_be_bytes());
        body.extend([0, 0, 0, 0, u8::from(holds), kind, 0, 0, 0, 0]);
        body.extend(registration.who.port.to_be_bytes());
        body.extend((id.len() as u32).to_be_bytes());
        body.extend(id);
    }
    with_head(state, &body)
}
