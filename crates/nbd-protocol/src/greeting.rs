//! The first bytes of a connection: the server's greeting, the client's flags, and the answer to `EXPORT_NAME`.

use crate::flags::{FIXED_NEWSTYLE, NO_ZEROES};
use crate::wire::Wire;
use crate::{Broken, Decoded, Step};

const NBD_MAGIC: u64 = 0x4e42_444d_4147_4943;
/// Also starts every option.
pub(crate) const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054;
const OLD_STYLE_MAGIC: u64 = 0x0000_4202_8186_1253;

/// Length of the server's greeting.
pub const GREETING_BYTES: usize = 18;
/// Length of the client's answer to it.
pub const CLIENT_FLAGS_BYTES: usize = 4;
/// Zeroes after the answer to `EXPORT_NAME` for clients that did not refuse them.
const ZEROES: [u8; 124] = [0; 124];

/// The server's greeting: fixed newstyle, no zeroes wanted.
pub fn greeting() -> [u8; GREETING_BYTES] {
    let mut out = [0; GREETING_BYTES];
    out[0..8].copy_from_slice(&NBD_MAGIC.to_be_bytes());
    out[8..16].copy_from_slice(&OPTION_MAGIC.to_be_bytes());
    out[16..18].copy_from_slice(&(FIXED_NEWSTYLE | NO_ZEROES).to_be_bytes());
    out
}

/// The server's greeting as a client reads it: its handshake flags.
pub fn decode_greeting(bytes: &[u8]) -> Decoded<u16> {
    let mut wire = Wire(bytes);
    let Some(magic) = wire.u64() else { return Ok(Step::More(GREETING_BYTES)) };
    if magic != NBD_MAGIC {
        return Err(Broken::Magic { what: "the greeting", found: magic });
    }
    match wire.u64() {
        None => return Ok(Step::More(GREETING_BYTES)),
        Some(OPTION_MAGIC) => (),
        Some(OLD_STYLE_MAGIC) => return Err(Broken::OldStyle),
        Some(found) => return Err(Broken::Magic { what: "the greeting's second half", found }),
    }
    Ok(wire.u16().map_or(Step::More(GREETING_BYTES), |flags| Step::Got(flags, GREETING_BYTES)))
}

/// What a client said about itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClientFlags {
    /// Does not want 124 zeroes after the answer to `EXPORT_NAME`.
    pub no_zeroes: bool,
}

/// The client's answer to the greeting, as the server reads it.
pub fn decode_client_flags(bytes: &[u8]) -> Decoded<ClientFlags> {
    let Some(flags) = Wire(bytes).u32() else { return Ok(Step::More(CLIENT_FLAGS_BYTES)) };
    let known = u32::from(FIXED_NEWSTYLE | NO_ZEROES);
    if flags & !known != 0 || flags & u32::from(FIXED_NEWSTYLE) == 0 {
        return Err(Broken::Malformed("client flags: fixed newstyle is needed, and no unknown bit"));
    }
    Ok(Step::Got(ClientFlags { no_zeroes: flags & u32::from(NO_ZEROES) != 0 }, CLIENT_FLAGS_BYTES))
}

/// The client's answer to a greeting with these flags.
pub fn client_flags(greeting_flags: u16) -> Result<[u8; CLIENT_FLAGS_BYTES], Broken> {
    if greeting_flags & FIXED_NEWSTYLE == 0 {
        return Err(Broken::OldStyle);
    }
    Ok(u32::from(greeting_flags & (FIXED_NEWSTYLE | NO_ZEROES)).to_be_bytes())
}

/// Appends the answer to `EXPORT_NAME`.
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
    fn both_sides_of_the_greeting_agree() {
        let bytes = greeting();
        let Ok(Step::Got(flags, 18)) = decode_greeting(&bytes) else { panic!("the greeting is whole") };
        let answer = client_flags(flags).expect("fixed newstyle is offered");
        assert_eq!(decode_client_flags(&answer), Ok(Step::Got(ClientFlags { no_zeroes: true }, 4)));
        for len in 0..18 {
            assert_eq!(decode_greeting(&bytes[..len]), Ok(Step::More(18)));
        }
    }

    #[test]
    fn an_old_server_is_told_from_garbage() {
        let mut old = greeting();
        old[8..16].copy_from_slice(&OLD_STYLE_MAGIC.to_be_bytes());
        assert_eq!(decode_greeting(&old), Err(Broken::OldStyle));
        assert!(matches!(decode_greeting(b"SSH-2.0-OpenSSH_9.2p1"), Err(Broken::Magic { .. })));
    }

    #[test]
    fn a_client_without_fixed_newstyle_is_refused() {
        assert!(decode_client_flags(&[0, 0, 0, 2]).is_err());
        assert!(decode_client_flags(&[0, 0, 0, 7]).is_err());
    }
}
