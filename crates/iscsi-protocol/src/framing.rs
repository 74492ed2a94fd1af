//! Framing of PDUs: header, additional headers, digests, data, padding (11.1, 11.2).

use crate::limits::{AHS_BYTES_MAX, RECEIVE_BYTES_DEFAULT};
use crate::wire::{data_len, put_data_len};
use crate::{Decoded, HEADER_BYTES, Header, ProtocolError, Step};

/// Bytes of a digest.
const DIGEST_BYTES: usize = 4;

/// Negotiated format of PDUs in one direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Framing {
    /// True if headers are followed by a digest.
    pub header_digest: bool,
    /// True if data segments are followed by a digest.
    pub data_digest: bool,
    /// Longest data segment, in bytes.
    pub data_bytes_max: u32,
}

impl Default for Framing {
    /// The format before negotiation.
    fn default() -> Self {
        Framing { header_digest: false, data_digest: false, data_bytes_max: RECEIVE_BYTES_DEFAULT }
    }
}

/// A decoded PDU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame<'a> {
    /// The basic header.
    pub header: &'a Header,
    /// The additional header segments, in whole words.
    pub ahs: &'a [u8],
    /// The data segment, without padding.
    pub data: &'a [u8],
}

impl Framing {
    /// Longest PDU in bytes.
    pub fn pdu_bytes_max(&self) -> usize {
        HEADER_BYTES + AHS_BYTES_MAX + self.data_bytes_max.next_multiple_of(4) as usize + 2 * DIGEST_BYTES
    }

    /// Decodes the PDU at the start of `bytes`.
    #[inline]
    pub fn decode<'a>(&self, bytes: &'a [u8]) -> Decoded<Frame<'a>> {
        let Some(header) = bytes.first_chunk::<HEADER_BYTES>() else { return Ok(Step::Incomplete(HEADER_BYTES)) };
        let (ahs_len, data_len) = (usize::from(header[4]) * 4, data_len(header));
        let head_len = HEADER_BYTES + ahs_len;
        let data_start = head_len + if self.header_digest { DIGEST_BYTES } else { 0 };
        // The header digest is verified before the lengths are used.
        if ahs_len > AHS_BYTES_MAX && !self.header_digest {
            return Err(ProtocolError::TooLong { item: "an additional header", len: ahs_len, max: AHS_BYTES_MAX });
        }
        let Some(head) = bytes.get(..data_start) else { return Ok(Step::Incomplete(data_start)) };
        let (head, digest) = head.split_at(head_len);
        if self.header_digest && digest != crc32c::crc32c(head).to_le_bytes() {
            return Err(ProtocolError::HeaderDigest);
        }
        if ahs_len > AHS_BYTES_MAX {
            return Err(ProtocolError::TooLong { item: "an additional header", len: ahs_len, max: AHS_BYTES_MAX });
        }
        if data_len > self.data_bytes_max as usize {
            let max = self.data_bytes_max as usize;
            return Err(ProtocolError::TooLong { item: "a data segment", len: data_len, max });
        }
        let padded_len = data_len.next_multiple_of(4);
        let has_digest = self.data_digest && data_len > 0;
        let end = data_start + padded_len + if has_digest { DIGEST_BYTES } else { 0 };
        let Some(padded_and_digest) = bytes.get(data_start..end) else { return Ok(Step::Incomplete(end)) };
        let (padded, digest) = padded_and_digest.split_at(padded_len);
        if has_digest && digest != crc32c::crc32c(padded).to_le_bytes() {
            return Err(ProtocolError::DataDigest(Box::new(*header)));
        }
        let frame = Frame { header, ahs: &head[HEADER_BYTES..], data: &padded[..data_len] };
        Ok(Step::Got(frame, end))
    }

    /// Appends a header without additional headers, for a data segment of `data_len` bytes.
    pub fn push_header(&self, out: &mut Vec<u8>, mut header: Header, data_len: usize) {
        put_data_len(&mut header, data_len);
        out.extend_from_slice(&header);
        if self.header_digest {
            out.extend_from_slice(&crc32c::crc32c(&header).to_le_bytes());
        }
    }

    /// Appends padding and digest after a data segment with the checksum `crc` (of [`crc32c::crc32c`]).
    pub fn push_trailer(&self, out: &mut Vec<u8>, data_len: usize, crc: u32) {
        let padding = &[0; 3][..data_len.next_multiple_of(4) - data_len];
        out.extend_from_slice(padding);
        if self.data_digest && data_len > 0 {
            out.extend_from_slice(&crc32c::crc32c_append(crc, padding).to_le_bytes());
        }
    }

    /// Appends a whole PDU without additional headers.
    pub fn push(&self, out: &mut Vec<u8>, header: Header, data: &[u8]) {
        self.push_header(out, header, data.len());
        out.extend_from_slice(data);
        let crc = if self.data_digest { crc32c::crc32c(data) } else { 0 };
        self.push_trailer(out, data.len(), crc);
    }

    /// Appends a whole PDU with additional headers from [`crate::request::Command::encode_ahs`].
    pub fn push_with_ahs(&self, out: &mut Vec<u8>, mut header: Header, ahs: &[u8], data: &[u8]) {
        assert!(ahs.len().is_multiple_of(4) && ahs.len() <= AHS_BYTES_MAX, "additional headers are whole words");
        header[4] = (ahs.len() / 4) as u8;
        put_data_len(&mut header, data.len());
        let start = out.len();
        out.extend_from_slice(&header);
        out.extend_from_slice(ahs);
        if self.header_digest {
            let crc = crc32c::crc32c(&out[start..]);
            out.extend_from_slice(&crc.to_le_bytes());
        }
        out.extend_from_slice(data);
        self.push_trailer(out, data.len(), if self.data_digest { crc32c::crc32c(data) } else { 0 });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOTH_DIGESTS: Framing = Framing { header_digest: true, data_digest: true, data_bytes_max: 8192 };

    fn pdu(framing: Framing, ahs: &[u8], data: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        framing.push_with_ahs(&mut out, [7; HEADER_BYTES], ahs, data);
        out
    }

    #[test]
    fn pdu_round_trips_with_any_digests_padding_and_additional_headers() {
        for (header_digest, data_digest) in [(false, false), (true, false), (false, true), (true, true)] {
            let framing = Framing { header_digest, data_digest, ..Framing::default() };
            for len in 0..9 {
                for ahs in [&[][..], &[1; 8]] {
                    let (bytes, data) = (pdu(framing, ahs, &[9; 9][..len]), &[9; 9][..len]);
                    let Ok(Step::Got(frame, used)) = framing.decode(&bytes) else { panic!("no PDU") };
                    assert_eq!((frame.ahs, frame.data, used), (ahs, data, bytes.len()));
                    for short_len in 0..bytes.len() {
                        let decoded = framing.decode(&bytes[..short_len]);
                        assert!(matches!(decoded, Ok(Step::Incomplete(wanted)) if wanted > short_len));
                    }
                }
            }
        }
    }

    #[test]
    fn every_flipped_bit_is_found_by_its_digest() {
        let whole = pdu(BOTH_DIGESTS, &[1; 4], b"hello");
        let header_end = HEADER_BYTES + 4 + 4;
        for bit in 0..whole.len() * 8 {
            let mut bytes = whole.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            bytes.resize(4096, 0);
            let decoded = BOTH_DIGESTS.decode(&bytes);
            match bit / 8 < header_end {
                true => assert_eq!(decoded, Err(ProtocolError::HeaderDigest), "bit {bit}"),
                false => assert!(matches!(decoded, Err(ProtocolError::DataDigest(_))), "bit {bit}"),
            }
        }
    }

    #[test]
    fn checksum_matches_the_specification() {
        // RFC 7143 has no examples; RFC 3720, appendix B.4: 32 bytes of zeroes, little-endian on the wire.
        assert_eq!(crc32c::crc32c(&[0; 32]).to_le_bytes(), [0xaa, 0x36, 0x91, 0x8a]);
    }

    #[test]
    fn excessive_lengths_are_refused_before_the_data_arrives() {
        let mut header = [0; HEADER_BYTES];
        put_data_len(&mut header, 8193);
        let error = Framing::default().decode(&header).expect_err("the data segment is too long");
        assert_eq!(error, ProtocolError::TooLong { item: "a data segment", len: 8193, max: 8192 });
        let mut header = [0; HEADER_BYTES];
        header[4] = 67;
        assert!(Framing::default().decode(&header).is_err());
    }
}
