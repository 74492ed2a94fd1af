//! Payloads of `LIST_META_CONTEXT` and `SET_META_CONTEXT`, and of the replies to them.

use crate::ProtocolError;
use crate::flags::BASE_ALLOCATION;
use crate::limits::NAME_BYTES_MAX;
use crate::wire::{PayloadReader, push_text};

/// A request for metadata contexts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MetaRequest<'a> {
    /// Name of the export; empty for the default export.
    pub name: &'a str,
    /// Number of queries.
    pub query_count: u32,
    /// True if a query names `base:allocation`.
    pub wants_base_allocation: bool,
    /// True if a query names the whole namespace `base:`, which is valid for listing only.
    pub wants_base_namespace: bool,
}

impl<'a> MetaRequest<'a> {
    /// Decodes the payload of `LIST_META_CONTEXT` or `SET_META_CONTEXT`.
    pub fn decode(payload: &'a [u8]) -> Result<Self, ProtocolError> {
        let malformed = || ProtocolError::Malformed("LIST or SET_META_CONTEXT");
        let mut reader = PayloadReader(payload);
        let name = reader.text(NAME_BYTES_MAX).ok_or_else(malformed)?;
        let query_count = reader.u32().ok_or_else(malformed)?;
        let mut request = MetaRequest { name, query_count, wants_base_allocation: false, wants_base_namespace: false };
        for _ in 0..query_count {
            // A query takes at least four bytes, so the payload bounds the loop whatever the count.
            match reader.text(NAME_BYTES_MAX).ok_or_else(malformed)? {
                BASE_ALLOCATION => request.wants_base_allocation = true,
                "base:" => request.wants_base_namespace = true,
                _ => (),
            }
        }
        if reader.is_empty() { Ok(request) } else { Err(malformed()) }
    }

    /// Encodes the payload that requests `base:allocation` of the export `name`.
    pub fn encode_base_allocation(name: &str) -> Vec<u8> {
        let mut out = Vec::new();
        push_text(&mut out, name);
        out.extend_from_slice(&1u32.to_be_bytes());
        push_text(&mut out, BASE_ALLOCATION);
        out
    }
}

/// Encodes the payload of a `META_CONTEXT` reply.
pub fn encode_context(id: u32, name: &str) -> Vec<u8> {
    [&id.to_be_bytes()[..], name.as_bytes()].concat()
}

/// Decodes the payload of a `META_CONTEXT` reply: context identifier on this connection, and name.
pub fn decode_context(payload: &[u8]) -> Result<(u32, &str), ProtocolError> {
    let malformed = || ProtocolError::Malformed("META_CONTEXT reply");
    let mut reader = PayloadReader(payload);
    let id = reader.u32().ok_or_else(malformed)?;
    Ok((id, std::str::from_utf8(reader.0).map_err(|_| malformed())?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn allocation_request_round_trips() {
        let bytes = MetaRequest::encode_base_allocation("vm1");
        let request = MetaRequest::decode(&bytes).expect("the payload is valid");
        assert_eq!((request.name, request.query_count, request.wants_base_allocation), ("vm1", 1, true));
        assert_eq!(decode_context(&encode_context(1, BASE_ALLOCATION)), Ok((1, BASE_ALLOCATION)));
        for len in 0..bytes.len() {
            assert!(MetaRequest::decode(&bytes[..len]).is_err());
        }
    }

    #[test]
    fn excessive_count_ends_with_the_payload() {
        let mut bytes = MetaRequest::encode_base_allocation("vm1");
        bytes[7..11].copy_from_slice(&u32::MAX.to_be_bytes());
        assert!(MetaRequest::decode(&bytes).is_err());
    }
}
