//! Parameter lists of PERSISTENT RESERVE OUT.

use super::Registrant;
use crate::cdb::invalid_parameter;
use crate::failure::Failure;
use crate::nexus::Initiator;
use crate::sense::{Asc, Sense};

/// Bytes of a list without TransportIDs.
pub const LIST_BYTES: usize = 24;
/// Maximum bytes of a list with TransportIDs.
pub const LIST_BYTES_MAX: usize = 32 << 10;
/// Offset of the service action reservation key in a list.
pub const SERVICE_ACTION_KEY_OFFSET: usize = 8;
/// Offset of the relative target port identifier in a list of REGISTER AND MOVE.
pub const MOVE_PORT_OFFSET: usize = 18;
/// Offset of the flags in a list of other service actions.
pub const FLAGS_OFFSET: usize = 20;

const APTPL: u8 = 0x01;
const UNREG: u8 = 0x02;
const ALL_TG_PT: u8 = 0x04;
const SPEC_I_PT: u8 = 0x08;

/// Parameters of all service actions except REGISTER AND MOVE.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parameters {
    /// The initiator's registered key.
    pub key: u64,
    /// Service action reservation key: the key to register, or the key of the registrants to preempt.
    pub new_key: u64,
    /// ALL_TG_PT: the registration is for all target ports.
    pub all_ports: bool,
    /// APTPL: the registration survives a restart.
    pub persists: bool,
    /// SPEC_I_PT: further initiators to register; `None` if the bit is not set.
    pub other_initiators: Option<Vec<Initiator>>,
}

/// Parameters of REGISTER AND MOVE.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MoveParameters {
    pub key: u64,
    pub new_key: u64,
    /// UNREG: the initiator's own registration ends.
    pub unregister: bool,
    /// APTPL: the registration survives a restart.
    pub persists: bool,
    /// New holder of the reservation.
    pub to: Registrant,
}

fn length_error() -> Failure {
    Sense::illegal(Asc::PARAMETER_LIST_LENGTH_ERROR).into()
}

/// Splits both keys from the start of a list.
fn split_keys(bytes: &[u8]) -> Result<(u64, u64, &[u8]), Failure> {
    let (key, rest) = bytes.split_first_chunk::<8>().ok_or_else(length_error)?;
    let (new_key, rest) = rest.split_first_chunk::<8>().ok_or_else(length_error)?;
    Ok((u64::from_be_bytes(*key), u64::from_be_bytes(*new_key), rest))
}

/// Decodes the list of all service actions except REGISTER AND MOVE.
pub fn decode_parameters(bytes: &[u8]) -> Result<Parameters, Failure> {
    let (key, new_key, rest) = split_keys(bytes)?;
    let (header, transport_ids) = rest.split_first_chunk::<8>().ok_or_else(length_error)?;
    let flags = header[4];
    let has_transport_ids = flags & SPEC_I_PT != 0;
    let other_initiators = match has_transport_ids {
        false if transport_ids.is_empty() => None,
        false => return Err(length_error()),
        true => Some(decode_initiators(transport_ids)?),
    };
    Ok(Parameters { key, new_key, all_ports: flags & ALL_TG_PT != 0, persists: flags & APTPL != 0, other_initiators })
}

/// Decodes a list of TransportIDs after its length.
fn decode_initiators(bytes: &[u8]) -> Result<Vec<Initiator>, Failure> {
    let (len, mut remaining) = bytes.split_first_chunk::<4>().ok_or_else(length_error)?;
    if u32::from_be_bytes(*len) as usize != remaining.len() {
        return Err(length_error());
    }
    let mut initiators = Vec::new();
    while !remaining.is_empty() {
        let at = LIST_BYTES + bytes.len() - remaining.len();
        let (initiator, len) = Initiator::from_transport_id(remaining).ok_or_else(|| invalid_parameter(at))?;
        initiators.push(initiator);
        remaining = &remaining[len..];
    }
    Ok(initiators)
}

/// Decodes the list of REGISTER AND MOVE.
pub fn decode_move_parameters(bytes: &[u8]) -> Result<MoveParameters, Failure> {
    let (key, new_key, rest) = split_keys(bytes)?;
    let (header, transport_ids) = rest.split_first_chunk::<8>().ok_or_else(length_error)?;
    let [_, flags, port_high, port_low, len @ ..] = *header;
    if u32::from_be_bytes(len) as usize != transport_ids.len() {
        return Err(length_error());
    }
    let decoded = Initiator::from_transport_id(transport_ids).filter(|(_, len)| *len == transport_ids.len());
    let (initiator, _) = decoded.ok_or_else(|| invalid_parameter(LIST_BYTES))?;
    let to = Registrant { initiator, port: u16::from_be_bytes([port_high, port_low]) };
    Ok(MoveParameters { key, new_key, unregister: flags & UNREG != 0, persists: flags & APTPL != 0, to })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(flags: u8, transport_ids: &[u8]) -> Vec<u8> {
        let mut bytes = [5_u64.to_be_bytes(), 6_u64.to_be_bytes()].concat();
        bytes.extend([0, 0, 0, 0, flags, 0, 0, 0]);
        bytes.extend(transport_ids);
        bytes
    }

    #[test]
    fn lists_with_and_without_transport_ids_are_decoded() {
        let plain = decode_parameters(&list(ALL_TG_PT | APTPL, &[])).expect("the list is complete");
        assert_eq!(plain, Parameters { key: 5, new_key: 6, all_ports: true, persists: true, other_initiators: None });
        let initiator = Initiator::new("iqn.a:b", [1; 6]);
        let id = initiator.transport_id();
        let mut transport_ids = (2 * id.len() as u32).to_be_bytes().to_vec();
        transport_ids.extend(id.repeat(2));
        let with_ids = decode_parameters(&list(SPEC_I_PT, &transport_ids)).expect("the list is complete");
        assert_eq!(with_ids.other_initiators, Some(vec![initiator.clone(), initiator]));
        for len in 0..LIST_BYTES + transport_ids.len() {
            assert!(decode_parameters(&list(SPEC_I_PT, &transport_ids)[..len]).is_err(), "{len}");
        }
        assert_eq!(decode_parameters(&list(0, &[0; 4])), Err(length_error()));
    }

    #[test]
    fn register_and_move_names_one_initiator() {
        let initiator = Initiator::new("iqn.a:b", [1; 6]);
        let id = initiator.transport_id();
        let mut bytes = [5_u64.to_be_bytes(), 6_u64.to_be_bytes()].concat();
        bytes.extend([0, 3, 0, 9]);
        bytes.extend((id.len() as u32).to_be_bytes());
        bytes.extend(&id);
        let to = Registrant { initiator, port: 9 };
        assert_eq!(
            decode_move_parameters(&bytes),
            Ok(MoveParameters { key: 5, new_key: 6, unregister: true, persists: true, to })
        );
        for len in 0..bytes.len() {
            assert!(decode_move_parameters(&bytes[..len]).is_err(), "{len}");
        }
    }
}
