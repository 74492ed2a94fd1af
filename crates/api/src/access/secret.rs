//! Secrets and their hashes.
//!
//! A secret is 256 random bits, so SHA-256 is enough to keep it: there is nothing to guess, and a hash made slow on purpose, as passwords
//! need it, would let anybody who asks keep the control thread busy.

use ring::digest::{SHA256, digest};
use ring::rand::{SecureRandom, SystemRandom};
use subtle::ConstantTimeEq;

/// What a secret is known by.
pub type Hash = [u8; 32];

/// What is told once and never kept.
pub struct Secret(String);

impl Secret {
    /// Draws one; fails where the system gives no random numbers.
    pub fn draw() -> Result<Secret, ring::error::Unspecified> {
        let mut bytes = [0; 32];
        SystemRandom::new().fill(&mut bytes)?;
        Ok(Secret(hex(&bytes)))
    }

    /// Its text: 64 hexadecimal digits.
    pub fn text(&self) -> &str {
        &self.0
    }

    /// What it is known by.
    pub fn hash(&self) -> Hash {
        hash_of(&self.0)
    }
}

/// What a secret is known by.
pub fn hash_of(secret: &str) -> Hash {
    let digest = digest(&SHA256, secret.as_bytes());
    digest.as_ref().try_into().expect("SHA-256 has 32 bytes")
}

/// True when both are the same; the time that it takes does not tell how much of them is.
pub fn same(one: &Hash, other: &Hash) -> bool {
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
    fn a_hash_is_sha256_and_no_secret_is_drawn_twice() {
        // FIPS 180-2, appendix B.1.
        assert_eq!(hex(&hash_of("abc")), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
        let (one, other) = (Secret::draw().expect("random"), Secret::draw().expect("random"));
        assert_eq!(one.text().len(), 64);
        assert!(same(&one.hash(), &hash_of(one.text())) && !same(&one.hash(), &other.hash()));
    }
}
