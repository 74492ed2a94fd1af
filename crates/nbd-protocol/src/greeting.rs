//! The start of a connection: the server's greeting, the client's flags, and the reply to `EXPORT_NAME`.

use crate::flags::{FIXED_NEWSTYLE, NO_ZEROES};
use crate::wire::PayloadReader;
use crate::{Decoded, ProtocolError, Step};

const NBD_MAGIC: u64 = 0x4e42_444d_4147_4943;
/// Magic number of the greeting and of every option.
pub(crate) const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054;
const OLD_STYLE_MAGIC: u64 = 0x0000_4202_8186_1253;

/// Length of the server's greeting.
pub const GREETING_BYTES: usize = 18;
/// Length of the client's flags.
pub const CLIENT_FLAGS_BYTES: usize = 4;
/// Zeroes after the reply to `EXPORT_NAME`, unless the client refused them.
const ZEROES: [u8; 124] = [0; 124];

/// Encodes the server's greeting: fixed newstyle, zeroes not required.
pub fn greeting() -> [u8; GREETING_BYTES] {
    let mut out = [0; GREETING_BYTES];
    out[0..8].copy_from_slice(&NBD_MAGIC.to_be_bytes());
    out[8..16].copy_from_slice(&OPTION_MAGIC.to_be_bytes());
    out[16..18].copy_from_slice(&(FIXED_NEWSTYLE | NO_ZEROES).to_be_bytes());
    out
}

/// Decodes the server's greeting; returns the handshake flags.
pub fn decode_greeting(bytes: &[u8]) -> Decoded<u16> {
    let mut reader = PayloadReader(bytes);
    let Some(magic) = reader.u64() else { return Ok(Step::Incomplete(GREETING_BYTES)) };
    if magic != NBD_MAGIC {
        return Err(ProtocolError::Magic { item: "the greeting", found: magic });
    }
    match reader.u64() {
        None => return Ok(Step::Incomplete(GREETING_BYTES)),
        Some(OPTION_MAGIC) => (),
        Some(OLD_STYLE_MAGIC) => return Err(ProtocolError::OldStyle),
        Some(found) => return Err(ProtocolError::Magic { item: "the greeting's second half", found }),
    }
    Ok(reader.u16().map_or(Step::Incomplete(GREETING_BYTES), |flags| Step::Got(flags, GREETING_BYTES)))
}

/// Flags of a client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClientFlags {
    /// True if the client refuses 124 zeroes after the reply to `EXPORT_NAME`.
    pub no_zeroes: bool,
}

/// Decodes the client's flags.
pub fn decode_client_flags(bytes: &[u8]) -> Decoded<ClientFlags> {
    let Some(flags) = PayloadReader(bytes).u32() else { return Ok(Step::Incomplete(CLIENT_FLAGS_BYTES)) };
    let known = u32::from(FIXED_NEWSTYLE | NO_ZEROES);
    if flags & !known != 0 || flags & u32::from(FIXED_NEWSTYLE) == 0 {
        return Err(ProtocolError::Malformed("client flags: fixed newstyle is required, unknown bits are not allowed"));
    }
    Ok(Step::Got(ClientFlags { no_zeroes: flags & u32::from(NO_ZEROES) != 0 }, CLIENT_FLAGS_BYTES))
}

/// Encodes the client's flags for a greeting with `greeting_flags`.
pub fn client_flags(greeting_flags: u16) -> Result<[u8; CLIENT_FLAGS_BYTES], ProtocolError> {
    if greeting_flags & FIXED_NEWSTYLE == 0 {
        return Err(ProtocolError::OldStyle);
    }
    Ok(u32::from(greeting_flags & (FIXED_NEWSTYLE | NO_ZEROES)).to_be_bytes())
}

/// Appends the reply to `EXPORT_NAME`.
pub fn push_export(out: &mut Vec<u8>, size_bytes: u64, export_flags: u16, no_zeroes: bool) {
    out.extend_from_slice(&size_bytes.to_be_bytes());
    out.extend_from_slice(&export_flags.to_be_bytes());
    if !no_zeroes {
        out.extend_from_slice(&ZEROES);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn greeting_and_client_flags_round_trip() {
        let bytes = greeting();
        let Ok(Step::Got(flags, 18)) = decode_greeting(&bytes) else { panic!("the greeting is incomplete") };
        let answer = client_flags(flags).expect("fixed newstyle is offered");
        assert_eq!(decode_client_flags(&answer), Ok(Step::Got(ClientFlags { no_zeroes: true }, 4)));
        for len in 0..18 {
            assert_eq!(decode_greeting(&bytes[..len]), Ok(Step::Incomplete(18)));
        }
    }

    #[test]
    fn oldstyle_server_is_told_from_garbage() {
        let mut old = greeting();
        old[8..16].copy_from_slice(&OLD_STYLE_MAGIC.to_be_bytes());
        assert_eq!(decode_greeting(&old), Err(ProtocolError::OldStyle));
        assert!(matches!(decode_greeting(b"SSH-2.0-OpenSSH_9.2p1"), Err(ProtocolError::Magic { .. })));
    }

    #[test]
    fn client_without_fixed_newstyle_is_refused() {
        assert!(decode_client_flags(&[0, 0, 0, 2]).is_err());
        assert!(decode_client_flags(&[0, 0, 0, 7]).is_err());
    }
}
