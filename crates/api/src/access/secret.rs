//! Secrets and their hashes.
//!
//! A secret is 256 random bits, so a plain SHA-256 is enough for storage: it cannot be guessed. A deliberately slow
//! hash, as for passwords, would let any client keep the control thread busy.

use ring::digest::{SHA256, digest};
use ring::rand::{SecureRandom, SystemRandom};
use subtle::ConstantTimeEq;

/// SHA-256 of a secret.
pub type Hash = [u8; 32];

/// The text of a token, a session or a link. It is shown once and never stored.
pub struct Secret(String);

impl Secret {
    /// Generates a random secret; fails if the system has no random numbers.
    pub fn generate() -> Result<Secret, ring::error::Unspecified> {
        let mut bytes = [0; 32];
        SystemRandom::new().fill(&mut bytes)?;
        Ok(Secret(hex(&bytes)))
    }

    /// Its text: 64 hexadecimal digits.
    pub fn text(&self) -> &str {
        &self.0
    }

    /// Its hash.
    pub fn hash(&self) -> Hash {
        hash_of(&self.0)
    }
}

/// Hashes a secret.
pub fn hash_of(secret: &str) -> Hash {
    let digest = digest(&SHA256, secret.as_bytes());
    digest.as_ref().try_into().expect("SHA-256 has 32 bytes")
}

/// Compares two hashes in constant time.
pub fn is_equal(one: &Hash, other: &Hash) -> bool {
    one.ct_eq(other).into()
}

/// Bytes as hexadecimal digits.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hash_is_sha256_and_secrets_differ() {
        // FIPS 180-2, appendix B.1.
        assert_eq!(hex(&hash_of("abc")), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
        let (first, second) = (Secret::generate().expect("random"), Secret::generate().expect("random"));
        assert_eq!(first.text().len(), 64);
        assert!(is_equal(&first.hash(), &hash_of(first.text())) && !is_equal(&first.hash(), &second.hash()));
    }
}
