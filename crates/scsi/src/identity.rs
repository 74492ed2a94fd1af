//! What a unit is known by, for the life of its volume: names, never numbers of places.

/// A unit's lasting names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The NAA designator: sixteen bytes that no other unit in the world has.
    pub naa: [u8; 16],
    /// The product's name in INQUIRY: at most sixteen characters.
    pub product: String,
}

impl Identity {
    /// Sixteen characters of T10's list of vendors, filled up with spaces, are eight.
    pub const VENDOR: &'static str = "HOTSET  ";
    /// What a product is called.
    pub const PRODUCT: &'static str = "VOLUME";
    /// An organisation's number is bought; this one says by its second-lowest bit that it was chosen without.
    const COMPANY: u32 = 0x02_48_53;

    /// The identity of the volume with this incarnation, on the host with this number (any that stays the same and is drawn at random).
    pub fn of(host: u64, incarnation: u64) -> Identity {
        // The type (6, extended), then 24 bits of company, 36 of the host, 64 of the volume.
        let high = 6 << 60 | u64::from(Self::COMPANY) << 36 | host & 0xf_ffff_ffff;
        let mut naa = [0; 16];
        naa[..8].copy_from_slice(&high.to_be_bytes());
        naa[8..].copy_from_slice(&incarnation.to_be_bytes());
        Identity { naa, product: Self::PRODUCT.to_owned() }
    }

    /// The serial number: the designator in hexadecimal digits.
    pub fn serial(&self) -> String {
        self.naa.iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identities_differ_by_volume_and_by_host_and_say_their_type() {
        let identity = Identity::of(7, 9);
        assert_eq!(identity, Identity::of(7, 9));
        assert_eq!(identity.serial(), "60248530000000070000000000000009");
        assert_ne!(identity, Identity::of(7, 10));
        assert_ne!(identity, Identity::of(8, 9));
    }
}
