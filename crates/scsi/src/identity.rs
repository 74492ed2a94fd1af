//! The identity of a unit, constant for the life of its volume and independent of its number and port.

/// Identity of a unit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// NAA designator: sixteen bytes, globally unique.
    pub naa: [u8; 16],
    /// Product identification in INQUIRY: at most sixteen characters.
    pub product: String,
}

impl Identity {
    /// T10 vendor identification: eight characters, padded with spaces.
    pub const VENDOR: &'static str = "HOTSET  ";
    /// Default product identification.
    pub const PRODUCT: &'static str = "VOLUME";
    /// Locally assigned company identifier: its second-lowest bit marks it as not registered.
    const COMPANY: u32 = 0x02_48_53;

    /// The identity of the unit with this serial number. `host_id`: random number of the daemon, constant over
    /// restarts.
    pub fn of(host_id: u64, serial: u64) -> Identity {
        // NAA type 6 (extended), 24 bits of company, 36 of the host, 64 of the volume.
        let high = 6 << 60 | u64::from(Self::COMPANY) << 36 | host_id & 0xf_ffff_ffff;
        let mut naa = [0; 16];
        naa[..8].copy_from_slice(&high.to_be_bytes());
        naa[8..].copy_from_slice(&serial.to_be_bytes());
        Identity { naa, product: Self::PRODUCT.to_owned() }
    }

    /// The NAA designator in hexadecimal digits, which is also the unit serial number.
    pub fn naa_hex(&self) -> String {
        self.naa.iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identities_differ_by_volume_and_host() {
        let identity = Identity::of(7, 9);
        assert_eq!(identity, Identity::of(7, 9));
        assert_eq!(identity.naa_hex(), "60248530000000070000000000000009");
        assert_ne!(identity, Identity::of(7, 10));
        assert_ne!(identity, Identity::of(8, 9));
    }
}
