//! CHAP authentication (12.1.3, RFC 1994): proves knowledge of a secret without sending it.

use md5::{Digest, Md5};
use ring::digest::{Context, SHA256};
use subtle::ConstantTimeEq;

use crate::text;

/// Longest CHAP response of the supported algorithms, in bytes.
pub(super) const RESPONSE_BYTES_MAX: usize = 32;
/// Bytes of the target's challenges.
const CHALLENGE_BYTES: usize = 32;

/// Credentials of an initiator, and of the target towards it.
#[derive(Clone)]
pub struct Credentials {
    /// The initiator's CHAP name.
    pub user: String,
    /// The initiator's secret.
    pub secret: Vec<u8>,
    /// The target's name and secret, for initiators that request mutual authentication.
    pub mutual: Option<(String, Vec<u8>)>,
}

impl std::fmt::Debug for Credentials {
    /// Formats without secrets.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mutual = self.mutual.as_ref().map(|(user, _)| user);
        f.debug_struct("Credentials").field("user", &self.user).field("mutual", &mutual).finish_non_exhaustive()
    }
}

/// Hash algorithm of CHAP responses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Algorithm {
    /// MD5, supported by every initiator.
    Md5,
    /// SHA-256, the recommended algorithm.
    Sha256,
}

impl Algorithm {
    /// Decodes an algorithm number.
    pub fn from_wire(number: &str) -> Option<Algorithm> {
        match text::parse_number(number)? {
            5 => Some(Algorithm::Md5),
            7 => Some(Algorithm::Sha256),
            _ => None,
        }
    }

    fn to_wire(self) -> &'static str {
        match self {
            Algorithm::Md5 => "5",
            Algorithm::Sha256 => "7",
        }
    }

    /// Computes the CHAP response to a challenge.
    pub fn response(self, identifier: u8, secret: &[u8], challenge: &[u8]) -> Vec<u8> {
        match self {
            Algorithm::Md5 => {
                Md5::new().chain_update([identifier]).chain_update(secret).chain_update(challenge).finalize().to_vec()
            }
            Algorithm::Sha256 => {
                let mut context = Context::new(&SHA256);
                for input in [&[identifier][..], secret, challenge] {
                    context.update(input);
                }
                context.finish().as_ref().to_vec()
            }
        }
    }
}

/// A challenge that was sent to an initiator.
pub(super) struct Challenge {
    algorithm: Algorithm,
    identifier: u8,
    bytes: Vec<u8>,
}

impl Challenge {
    /// A new challenge for a response with `algorithm`.
    pub(super) fn new(algorithm: Algorithm, random: &mut dyn FnMut() -> u64) -> Challenge {
        let bytes =
            std::iter::repeat_with(random).flat_map(u64::to_le_bytes).take(CHALLENGE_BYTES + 1).collect::<Vec<_>>();
        Challenge { algorithm, identifier: bytes[CHALLENGE_BYTES], bytes: bytes[..CHALLENGE_BYTES].to_vec() }
    }

    /// Appends the challenge as key=value pairs.
    pub(super) fn push(&self, out: &mut Vec<u8>) {
        text::push(out, "CHAP_A", self.algorithm.to_wire());
        text::push(out, "CHAP_I", &self.identifier.to_string());
        text::push(out, "CHAP_C", &text::format_hex(&self.bytes));
    }

    /// True if the CHAP response matches the credentials. The comparison takes constant time.
    pub(super) fn verifies(&self, credentials: &Credentials, name: &str, response: &[u8]) -> bool {
        let expected = self.algorithm.response(self.identifier, &credentials.secret, &self.bytes);
        let user = name.as_bytes().ct_eq(credentials.user.as_bytes());
        bool::from(user & expected.ct_eq(response))
    }

    /// Answers the initiator's challenge if the target has a secret. The target's own challenge is not answered: the
    /// reply could be used as the initiator's response (12.1.3).
    pub(super) fn answer(
        &self,
        credentials: &Credentials,
        identifier: u8,
        peer_challenge: &[u8],
        out: &mut Vec<u8>,
    ) -> Option<()> {
        let (name, secret) = credentials.mutual.as_ref()?;
        if peer_challenge == self.bytes || secret == &credentials.secret {
            return None;
        }
        text::push(out, "CHAP_N", name);
        text::push(out, "CHAP_R", &text::format_hex(&self.algorithm.response(identifier, secret, peer_challenge)));
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn responses_match_other_implementations() {
        // md5sum and sha256sum of the bytes 01, "secret", "challenge".
        let response = |algorithm: Algorithm| text::format_hex(&algorithm.response(1, b"secret", b"challenge"));
        assert_eq!(response(Algorithm::Md5), "0x46e47770030e2b4e26a0db72a7efec00");
        assert_eq!(response(Algorithm::Sha256), "0x2dfa0526f4764864b7c3c5bc6596bcead3d8dbd984f4fc1d9f330299f0beced4");
    }

    #[test]
    fn challenge_is_answered_only_with_the_secret() {
        let credentials = Credentials { user: "esx".into(), secret: b"fourteen bytes".to_vec(), mutual: None };
        let mut number = 0;
        let challenge = Challenge::new(Algorithm::Sha256, &mut || {
            number += 1;
            number
        });
        let response = Algorithm::Sha256.response(challenge.identifier, &credentials.secret, &challenge.bytes);
        assert!(challenge.verifies(&credentials, "esx", &response));
        assert!(!challenge.verifies(&credentials, "esy", &response));
        assert!(!challenge.verifies(&credentials, "esx", &response[..31]));
        assert!(!challenge.verifies(&credentials, "esx", &[]));
        let other =
            Algorithm::Sha256.response(challenge.identifier.wrapping_add(1), &credentials.secret, &challenge.bytes);
        assert!(!challenge.verifies(&credentials, "esx", &other));
    }

    #[test]
    fn debug_output_hides_secrets() {
        let mutual = Some(("us".into(), b"SHOWN".to_vec()));
        let credentials = Credentials { user: "esx".into(), secret: b"SHOWN".to_vec(), mutual };
        assert!(!format!("{credentials:?}").contains("SHOWN"));
        assert!(!format!("{credentials:?}").contains("83"));
    }
}
