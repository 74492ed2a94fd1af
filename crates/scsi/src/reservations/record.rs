//! Registrations as they are kept over a restart (`docs/format.md`): little-endian, with a checksum at the end.

use format_version::NewerFormat;

use super::Registrant;
use super::state::{Held, Registration, State, Type};
use crate::nexus::Initiator;

const MAGIC: [u8; 4] = *b"HSPR";
const VERSION: u8 = 1;
const NO_HOLDER: u32 = u32::MAX;

/// Why a record is not taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    /// Something else, cut short, or damaged.
    #[error("what is kept of the LUN's persistent reservations is damaged")]
    Damaged,
    /// Written by a newer version.
    #[error("what is kept of the LUN's persistent reservations was {0}")]
    Newer(NewerFormat),
}

/// The record of what is to outlast a restart: nothing, if nothing is.
pub fn encode(state: &State) -> Vec<u8> {
    if !state.persists || state.is_empty() {
        return Vec::new();
    }
    let mut bytes = MAGIC.to_vec();
    let (kind, holder) = match &state.held {
        None => (0, NO_HOLDER),
        Some(Held { kind, holder: None }) => (kind.code(), NO_HOLDER),
        Some(Held { kind, holder: Some(holder) }) => {
            let place = state.registrations.iter().position(|registration| registration.who == *holder);
            (kind.code(), place.expect("a holder is registered") as u32)
        }
    };
    bytes.extend([VERSION, kind]);
    bytes.extend((state.registrations.len() as u16).to_le_bytes());
    bytes.extend(holder.to_le_bytes());
    for registration in &state.registrations {
        bytes.extend(registration.key.to_le_bytes());
        bytes.extend(registration.who.port.to_le_bytes());
        bytes.extend(registration.who.initiator.isid);
        bytes.push(registration.who.initiator.name.len() as u8);
        bytes.extend(registration.who.initiator.name.as_bytes());
    }
    bytes.extend(crc32c::crc32c(&bytes).to_le_bytes());
    bytes
}

/// Whether a unit can be served with what is kept of its reservations.
pub fn check_kept(bytes: &[u8]) -> Result<(), RecordError> {
    decode(bytes).map(|_| ())
}

/// What a record says.
pub fn decode(bytes: &[u8]) -> Result<State, RecordError> {
    if bytes.is_empty() {
        return Ok(State::default());
    }
    let (body, sum) = bytes.split_last_chunk::<4>().ok_or(RecordError::Damaged)?;
    if !body.starts_with(&MAGIC) || crc32c::crc32c(body) != u32::from_le_bytes(*sum) {
        return Err(RecordError::Damaged);
    }
    let mut rest = &body[MAGIC.len()..];
    let [version, kind] = take(&mut rest)?;
    if version > VERSION {
        return Err(RecordError::Newer(NewerFormat::of_format(version, VERSION, None)));
    }
    if version < VERSION {
        return Err(RecordError::Damaged);
    }
    let count = u16::from_le_bytes(take(&mut rest)?);
    let holder = u32::from_le_bytes(take(&mut rest)?);
    let mut registrations = Vec::new();
    for _ in 0..count {
        let key = u64::from_le_bytes(take(&mut rest)?);
        let port = u16::from_le_bytes(take(&mut rest)?);
        let isid = take(&mut rest)?;
        let [len] = take(&mut rest)?;
        let (name, after) = rest.split_at_checked(len.into()).ok_or(RecordError::Damaged)?;
        let name = std::str::from_utf8(name).map_err(|_| RecordError::Damaged)?;
        rest = after;
        registrations.push(Registration { who: Registrant { initiator: Initiator::new(name, isid), port }, key });
    }
    let held = match (Type::of(kind), holder) {
        (None, NO_HOLDER) if kind == 0 => None,
        (Some(kind), NO_HOLDER) if kind.is_of_all() => Some(Held { kind, holder: None }),
        (Some(kind), place) if !kind.is_of_all() => {
            let holder = registrations.get(place as usize).ok_or(RecordError::Damaged)?;
            Some(Held { kind, holder: Some(holder.who.clone()) })
        }
        _ => return Err(RecordError::Damaged),
    };
    Ok(State { generation: 0, registrations, held, persists: true })
}

fn take<const N: usize>(bytes: &mut &[u8]) -> Result<[u8; N], RecordError> {
    let (taken, rest) = bytes.split_first_chunk::<N>().ok_or(RecordError::Damaged)?;
    *bytes = rest;
    Ok(*taken)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(held: Option<Held>) -> State {
        let registrations = (0..3)
            .map(|n| Registration {
                who: Registrant { initiator: Initiator::new(&format!("iqn.a:{n}"), [n; 6]), port: 1 },
                key: 7,
            })
            .collect();
        State { generation: 0, registrations, held, persists: true }
    }

    #[test]
    fn what_persists_comes_back_and_damage_is_noticed_in_every_byte() {
        let who = state(None).registrations[1].who.clone();
        for held in [
            None,
            Some(Held { kind: Type::WriteExclusive, holder: Some(who) }),
            Some(Held { kind: Type::ExclusiveAccessAll, holder: None }),
        ] {
            let state = state(held);
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
    fn nothing_is_kept_of_what_does_not_persist() {
        assert_eq!(encode(&State { persists: false, ..state(None) }), Vec::<u8>::new());
        assert_eq!(decode(&[]), Ok(State::default()));
    }

    #[test]
    fn golden_records_are_read_in_every_field() {
        let who = state(None).registrations[2].who.clone();
        let state = state(Some(Held { kind: Type::ExclusiveAccess, holder: Some(who) }));
        for golden in golden::files("reservations", || encode(&state)) {
            assert_eq!(decode(&golden.bytes).as_ref(), Ok(&state), "written by {}", golden.release);
        }
    }

    #[test]
    fn a_newer_record_is_refused_by_its_format_and_no_other_number_is_known() {
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
            "what is kept of the LUN's persistent reservations was written by a newer version of Hotset (format 2, this one reads \
             up to 1); needs at least a version that reads format 2"
        );
        assert_eq!(of_format(0), Err(RecordError::Damaged));
    }
}
