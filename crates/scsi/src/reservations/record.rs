//! Registrations as stored for a restart (`docs/design/format.md`): little-endian, with a checksum at the end.

use format_version::NewerFormat;

use super::Registrant;
use super::state::{Registration, Reservation, ReservationType, State};
use crate::nexus::Initiator;

const MAGIC: [u8; 4] = *b"HSPR";
const VERSION: u8 = 1;
const NO_HOLDER: u32 = u32::MAX;

/// Reason for rejecting a record.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    /// Not a record, truncated, or damaged.
    #[error("the stored persistent reservations of the LUN are damaged")]
    Damaged,
    /// Written by a newer version.
    #[error("the stored persistent reservations of the LUN were {0}")]
    Newer(NewerFormat),
}

/// Encodes the registrations that survive a restart; empty if none do.
pub fn encode(state: &State) -> Vec<u8> {
    if !state.persists || state.is_empty() {
        return Vec::new();
    }
    let mut bytes = MAGIC.to_vec();
    let (kind, holder) = match &state.reservation {
        None => (0, NO_HOLDER),
        Some(Reservation { kind, holder: None }) => (kind.code(), NO_HOLDER),
        Some(Reservation { kind, holder: Some(holder) }) => {
            let index = state.registrations.iter().position(|registration| registration.registrant == *holder);
            (kind.code(), index.expect("a holder is registered") as u32)
        }
    };
    bytes.extend([VERSION, kind]);
    bytes.extend((state.registrations.len() as u16).to_le_bytes());
    bytes.extend(holder.to_le_bytes());
    for registration in &state.registrations {
        bytes.extend(registration.key.to_le_bytes());
        bytes.extend(registration.registrant.port.to_le_bytes());
        bytes.extend(registration.registrant.initiator.isid);
        bytes.push(registration.registrant.initiator.name.len() as u8);
        bytes.extend(registration.registrant.initiator.name.as_bytes());
    }
    bytes.extend(crc32c::crc32c(&bytes).to_le_bytes());
    bytes
}

/// Checks that a unit can be served with its stored record.
pub fn check_record(bytes: &[u8]) -> Result<(), RecordError> {
    decode(bytes).map(|_| ())
}

/// Decodes a record.
pub fn decode(bytes: &[u8]) -> Result<State, RecordError> {
    if bytes.is_empty() {
        return Ok(State::default());
    }
    let (body, checksum) = bytes.split_last_chunk::<4>().ok_or(RecordError::Damaged)?;
    if !body.starts_with(&MAGIC) || crc32c::crc32c(body) != u32::from_le_bytes(*checksum) {
        return Err(RecordError::Damaged);
    }
    let mut remaining = &body[MAGIC.len()..];
    let [version, kind] = take(&mut remaining)?;
    if version > VERSION {
        return Err(RecordError::Newer(NewerFormat::of_format(version, VERSION, None)));
    }
    if version < VERSION {
        return Err(RecordError::Damaged);
    }
    let count = u16::from_le_bytes(take(&mut remaining)?);
    let holder = u32::from_le_bytes(take(&mut remaining)?);
    let mut registrations = Vec::new();
    for _ in 0..count {
        let key = u64::from_le_bytes(take(&mut remaining)?);
        let port = u16::from_le_bytes(take(&mut remaining)?);
        let isid = take(&mut remaining)?;
        let [len] = take(&mut remaining)?;
        let (name, after) = remaining.split_at_checked(len.into()).ok_or(RecordError::Damaged)?;
        let name = std::str::from_utf8(name).map_err(|_| RecordError::Damaged)?;
        remaining = after;
        registrations
            .push(Registration { registrant: Registrant { initiator: Initiator::new(name, isid), port }, key });
    }
    let reservation = match (ReservationType::of(kind), holder) {
        (None, NO_HOLDER) if kind == 0 => None,
        (Some(kind), NO_HOLDER) if kind.is_of_all_registrants() => Some(Reservation { kind, holder: None }),
        (Some(kind), index) if !kind.is_of_all_registrants() => {
            let holder = registrations.get(index as usize).ok_or(RecordError::Damaged)?;
            Some(Reservation { kind, holder: Some(holder.registrant.clone()) })
        }
        _ => return Err(RecordError::Damaged),
    };
    Ok(State { generation: 0, registrations, reservation, persists: true })
}

fn take<const N: usize>(bytes: &mut &[u8]) -> Result<[u8; N], RecordError> {
    let (taken, remaining) = bytes.split_first_chunk::<N>().ok_or(RecordError::Damaged)?;
    *bytes = remaining;
    Ok(*taken)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(reservation: Option<Reservation>) -> State {
        let registrations = (0..3)
            .map(|number| Registration {
                registrant: Registrant { initiator: Initiator::new(&format!("iqn.a:{number}"), [number; 6]), port: 1 },
                key: 7,
            })
            .collect();
        State { generation: 0, registrations, reservation, persists: true }
    }

    #[test]
    fn record_round_trips_and_damage_of_any_byte_is_found() {
        let registrant = state(None).registrations[1].registrant.clone();
        for reservation in [
            None,
            Some(Reservation { kind: ReservationType::WriteExclusive, holder: Some(registrant) }),
            Some(Reservation { kind: ReservationType::ExclusiveAccessAll, holder: None }),
        ] {
            let state = state(reservation);
            let bytes = encode(&state);
            assert_eq!(decode(&bytes), Ok(state));
            for at in 0..bytes.len() {
                let mut damaged = bytes.clone();
                damaged[at] ^= 0x10;
                assert_eq!(decode(&damaged), Err(RecordError::Damaged), "byte {at}");
                assert!(at == 0 || decode(&bytes[..at]) == Err(RecordError::Damaged));
            }
        }
    }

    #[test]
    fn volatile_registrations_have_an_empty_record() {
        assert_eq!(encode(&State { persists: false, ..state(None) }), Vec::<u8>::new());
        assert_eq!(decode(&[]), Ok(State::default()));
    }

    #[test]
    fn golden_records_are_read_in_every_field() {
        let holder = state(None).registrations[2].registrant.clone();
        let state = state(Some(Reservation { kind: ReservationType::ExclusiveAccess, holder: Some(holder) }));
        for golden in golden::files("reservations", || encode(&state)) {
            assert_eq!(decode(&golden.bytes).as_ref(), Ok(&state), "written by {}", golden.release);
        }
    }

    #[test]
    fn newer_format_is_refused_with_its_number_and_format_0_is_damaged() {
        let of_format = |format: u8| {
            let mut bytes = encode(&state(None));
            bytes.truncate(bytes.len() - 4);
            bytes[4] = format;
            bytes.extend(b"what a newer version adds");
            bytes.extend(crc32c::crc32c(&bytes).to_le_bytes());
            decode(&bytes)
        };
        assert_eq!(
            of_format(2).expect_err("a later format").to_string(),
            "the stored persistent reservations of the LUN were written by a newer version of Hotset (format 2, this \
             one reads up to 1); needs at least a version that reads format 2"
        );
        assert_eq!(of_format(0), Err(RecordError::Damaged));
    }
}
