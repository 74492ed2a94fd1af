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

/// Parameters of all service actions except REGISTER AND MOVE.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parameters {
    pub key: u64,
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
    pub unregister: bool,
    pub persists: bool,
    pub to: Registrant,
}

fn length_error() -> Failure {
    Sense::illegal(Asc::PARAMETER_LIST_LENGTH_ERROR).into()
}

fn keys(bytes: &[u8]) -> Result<(u64, u64, &[u8]), Failure> {
    let (key, rest) = bytes.split_first_chunk::<8>().ok_or_else(length_error)?;
    let (new_key, rest) = rest.split_first_chunk::<8>().ok_or_else(length_error)?;
    Ok((u64::from_be_bytes(*key), u64::from_be_bytes(*new_key), rest))
}

/// Decodes the list of all service actions except REGISTER AND MOVE.
pub fn parameters(bytes: &[u8]) -> Result<Parameters, Failure> {
    let (key, new_key, rest) = keys(bytes)?;
    let (header, named) = rest.split_first_chunk::<8>().ok_or_else(length_error)?;
    let flags = header[4];
    let names_others = flags & 0x08 != 0;
    let other_initiators = match names_others {
        false if named.is_empty() => None,
        false => return Err(length_error()),
        true => Some(initiators(named)?),
    };
    Ok(Parameters { key, new_key, all_ports: flags & 0x04 != 0, persists: flags & 0x01 != 0, other_initiators })
}

fn initiators(bytes: &[u8]) -> Result<Vec<Initiator>, Failure> {
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
pub fn move_parameters(bytes: &[u8]) -> Result<MoveParameters, Failure> {
    let (key, new_key, rest) = keys(bytes)?;
    let (header, named) = rest.split_first_chunk::<8>().ok_or_else(length_error)?;
    let [_, flags, port_high, port_low, len @ ..] = *header;
    if u32::from_be_bytes(len) as usize != named.len() {
        return Err(length_error());
    }
    let named_initiator = Initiator::from_transport_id(named).filter(|(_, len)| *len == named.len());
    let (initiator, _) = named_initiator.ok_or_else(|| invalid_parameter(LIST_BYTES))?;
    let to = Registrant { initiator, port: u16::from_be_bytes([port_high, port_low]) };
    Ok(MoveParameters { key, new_key, unregister: flags & 0x02 != 0, persists: flags & 0x01 != 0, to })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(flags: u8, named: &[u8]) -> Vec<u8> {
        let mut bytes = [5_u64.to_be_bytes(), 6_u64.to_be_bytes()].concat();
        bytes.extend([0, 0, 0, 0, flags, 0, 0, 0]);
        bytes.extend(named);
        bytes
    }

    #[test]
    fn lists_with_and_without_transport_ids_are_decoded() {
        let plain = parameters(&list(0x05, &[])).expect("the list is complete");
        assert_eq!(plain, Parameters { key: 5, new_key: 6, all_ports: true, persists: true, other_initiators: None });
        let initiator = Initiator::new("iqn.a:b", [1; 6]);
        let id = initiator.transport_id();
        let mut named = (2 * id.len() as u32).to_be_bytes().to_vec();
        named.extend(id.repeat(2));
        let with = parameters(&list(0x08, &named)).expect("the list is complete");
        assert_eq!(with.other_initiators, Some(vec![initiator.clone(), initiator]));
        for len in 0..LIST_BYTES + named.len() {
            assert!(parameters(&list(0x08, &named)[..len]).is_err(), "{len}");
        }
        assert_eq!(parameters(&list(0, &[0; 4])), Err(length_error()));
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
            move_parameters(&bytes),
            Ok(MoveParameters { key: 5, new_key: 6, unregister: true, persists: true, to })
        );
        for len in 0..bytes.len() {
            assert!(move_parameters(&bytes[..len]).is_err(), "{len}");
        }
    }
}
