//! I_T nexus: the pair of an initiator port and a target port, to which unit attentions and reservations belong.

use std::rc::Rc;

/// An initiator port, identified across logins.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Initiator {
    /// Name (for iSCSI `iqn.…`), in lower case.
    pub name: String,
    /// The initiator's part of the session identifier.
    pub isid: [u8; 6],
}

impl Initiator {
    /// Longest name, in bytes (RFC 7143 4.2.7).
    pub const NAME_BYTES_MAX: usize = 223;
    /// First byte of a TransportID of an iSCSI initiator port: format 01b, protocol identifier 5h.
    const ISCSI_PORT_TRANSPORT_ID: u8 = 0x45;

    /// An initiator port; `name` is converted to lower case and truncated to the longest valid length.
    pub fn new(name: &str, isid: [u8; 6]) -> Initiator {
        let mut name = name.to_ascii_lowercase();
        let end = (0..=Self::NAME_BYTES_MAX.min(name.len())).rev().find(|at| name.is_char_boundary(*at));
        name.truncate(end.unwrap_or(0));
        Initiator { name, isid }
    }

    /// The TransportID (SPC-4 7.6.4.6) of an iSCSI initiator port.
    pub fn transport_id(&self) -> Vec<u8> {
        let isid: String = self.isid.iter().map(|byte| format!("{byte:02x}")).collect();
        let text = format!("{},i,0x{isid}", self.name);
        let len = (text.len() + 1).next_multiple_of(4).max(20);
        let mut bytes = vec![Self::ISCSI_PORT_TRANSPORT_ID, 0];
        bytes.extend((len as u16).to_be_bytes());
        bytes.extend(text.as_bytes());
        bytes.resize(4 + len, 0);
        bytes
    }

    /// Decodes a TransportID; returns the initiator and the length. A TransportID without a session identifier is
    /// refused.
    pub fn from_transport_id(bytes: &[u8]) -> Option<(Initiator, usize)> {
        let (header, remaining) = bytes.split_at_checked(4)?;
        let len = usize::from(u16::from_be_bytes([header[2], header[3]]));
        if header[0] != Self::ISCSI_PORT_TRANSPORT_ID || len < 20 || !len.is_multiple_of(4) {
            return None;
        }
        let text = remaining.get(..len)?.split(|byte| *byte == 0).next()?;
        let (name, isid) = std::str::from_utf8(text).ok()?.split_once(",i,0x")?;
        if name.is_empty()
            || name.len() > Self::NAME_BYTES_MAX
            || isid.len() != 12
            || !isid.bytes().all(|digit| digit.is_ascii_hexdigit())
        {
            return None;
        }
        let isid = u64::from_str_radix(isid, 16).ok()?.to_be_bytes();
        Some((Initiator::new(name, isid[2..].try_into().expect("six of eight bytes")), 4 + len))
    }
}

/// An initiator port that is logged in at a target port. A clone is another handle to the same nexus.
#[derive(Clone, Debug)]
pub struct Nexus(pub(crate) Rc<Inner>);

#[derive(Debug)]
pub(crate) struct Inner {
    /// Number of the nexus, never reused.
    pub number: u64,
    pub initiator: Initiator,
    /// The target port's relative identifier, from 1 on.
    pub port: u16,
}

impl Nexus {
    /// The initiator port.
    pub fn initiator(&self) -> &Initiator {
        &self.0.initiator
    }

    /// True if both are handles to the same nexus.
    pub fn is(&self, other: &Nexus) -> bool {
        self.0.number == other.0.number
    }

    /// Relative identifier of the target port.
    pub fn port(&self) -> u16 {
        self.0.port
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transport_id_round_trips() {
        for name in ["iqn.a:b", "iqn.2026-11.io.hotset:a-longer-name-of-an-initiator"] {
            let initiator = Initiator::new(name, [0x80, 1, 2, 3, 4, 0xff]);
            let bytes = initiator.transport_id();
            assert!(bytes.len().is_multiple_of(4) && bytes.len() >= 24);
            assert_eq!(Initiator::from_transport_id(&bytes), Some((initiator, bytes.len())));
        }
    }

    #[test]
    fn other_and_truncated_transport_ids_are_refused() {
        let good = Initiator::new("iqn.a:b", [1; 6]).transport_id();
        let mut device_only = good.clone();
        device_only[0] = 0x05;
        assert_eq!(Initiator::from_transport_id(&device_only), None);
        for len in 0..good.len() {
            assert_eq!(Initiator::from_transport_id(&good[..len]), None);
        }
    }
}
