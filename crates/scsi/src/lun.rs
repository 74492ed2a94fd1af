//! Logical unit numbers and their eight-byte addresses (SAM-5 4.7).

/// Number of a unit within its target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lun(u16);

impl Lun {
    /// LUN 0 answers INQUIRY and REPORT LUNS even without a unit.
    pub const ZERO: Lun = Lun(0);
    /// Highest number of single-level flat addressing.
    pub const MAX: u16 = 0x3fff;

    /// A number; `None` beyond [`Lun::MAX`].
    pub fn new(number: u16) -> Option<Lun> {
        (number <= Self::MAX).then_some(Lun(number))
    }

    /// The number.
    pub fn number(self) -> u16 {
        self.0
    }

    /// Decodes the address of a command: single-level peripheral or flat addressing.
    pub fn decode(bytes: [u8; 8]) -> Option<Lun> {
        let [first, second, rest @ ..] = bytes;
        let is_single_level = match first >> 6 {
            0 if first == 0 => true,
            1 => true,
            _ => false,
        };
        (is_single_level && rest == [0; 6]).then(|| Lun(u16::from_be_bytes([first & 0x3f, second])))
    }

    /// Address in REPORT LUNS: peripheral addressing below 256, because every initiator supports it, otherwise flat.
    pub fn encode(self) -> [u8; 8] {
        let method = if self.0 < 256 { 0 } else { 0x40 };
        let [high, low] = self.0.to_be_bytes();
        [method | high, low, 0, 0, 0, 0, 0, 0]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_round_trip_and_other_addresses_are_refused() {
        for number in 0..=Lun::MAX {
            let lun = Lun::new(number).unwrap();
            assert_eq!(Lun::decode(lun.encode()), Some(lun));
        }
        assert_eq!(Lun::new(Lun::MAX + 1), None);
        assert_eq!(Lun::decode([0x40, 7, 0, 0, 0, 0, 0, 0]), Lun::new(7));
        for wrong in [[1, 0, 0, 0, 0, 0, 0, 0], [0, 1, 0, 1, 0, 0, 0, 0], [0xc1, 1, 0, 0, 0, 0, 0, 0]] {
            assert_eq!(Lun::decode(wrong), None);
        }
    }
}
