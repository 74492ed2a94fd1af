//! Answers of PERSISTENT RESERVE IN.

use super::state::State;

/// Scope LU_SCOPE: the whole unit.
const SCOPE_UNIT: u8 = 0x00;

/// An answer: the header with the generation and the length of `body`, then `body`.
fn with_header(state: &State, body: &[u8]) -> Vec<u8> {
    [&state.generation.to_be_bytes()[..], &(body.len() as u32).to_be_bytes(), body].concat()
}

/// READ KEYS.
pub fn keys(state: &State) -> Vec<u8> {
    let keys: Vec<u8> = state.registrations.iter().flat_map(|registration| registration.key.to_be_bytes()).collect();
    with_header(state, &keys)
}

/// READ RESERVATION.
pub fn reservation(state: &State) -> Vec<u8> {
    let Some(reservation) = &state.reservation else { return with_header(state, &[]) };
    let mut body = state.holders_key().to_be_bytes().to_vec();
    body.extend([0, 0, 0, 0, 0, SCOPE_UNIT | reservation.kind.code(), 0, 0]);
    with_header(state, &body)
}

/// REPORT CAPABILITIES.
pub fn capabilities(state: &State) -> Vec<u8> {
    // Capabilities: CRH, SIP_C, ATP_C and PTPL_C. State: TMV and PTPL_A. All types are supported.
    let (capability_flags, state_flags) = (0x1d, 0x80 | u8::from(state.persists));
    vec![0, 8, capability_flags, state_flags, 0xea, 0x01, 0, 0]
}

/// READ FULL STATUS.
pub fn full_status(state: &State) -> Vec<u8> {
    let mut body = Vec::new();
    for registration in &state.registrations {
        let holds = state.holds(&registration.registrant);
        let kind =
            state.reservation.as_ref().filter(|_| holds).map_or(0, |reservation| SCOPE_UNIT | reservation.kind.code());
        let id = registration.registrant.initiator.transport_id();
        body.extend(registration.key.to_be_bytes());
        body.extend([0, 0, 0, 0, u8::from(holds), kind, 0, 0, 0, 0]);
        body.extend(registration.registrant.port.to_be_bytes());
        body.extend((id.len() as u32).to_be_bytes());
        body.extend(id);
    }
    with_header(state, &body)
}
