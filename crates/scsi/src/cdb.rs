//! Fields of a command descriptor block (CDB). [`Cdb`] has the length of its command, so reading a field needs no
//! check.

use crate::failure::Failure;
use crate::sense::{Asc, Sense};

/// A command descriptor block with the length of its command.
#[derive(Clone, Copy, Debug)]
pub struct Cdb<'a>(pub &'a [u8]);

impl Cdb<'_> {
    pub fn u8(&self, at: usize) -> u8 {
        self.0[at]
    }

    pub fn bit(&self, at: usize, bit: u8) -> bool {
        self.0[at] >> bit & 1 == 1
    }

    pub fn u16(&self, at: usize) -> u16 {
        u16::from_be_bytes(self.array(at))
    }

    pub fn u24(&self, at: usize) -> u32 {
        let [a, b, c] = self.array(at);
        u32::from_be_bytes([0, a, b, c])
    }

    pub fn u32(&self, at: usize) -> u32 {
        u32::from_be_bytes(self.array(at))
    }

    pub fn u64(&self, at: usize) -> u64 {
        u64::from_be_bytes(self.array(at))
    }

    fn array<const N: usize>(&self, at: usize) -> [u8; N] {
        self.0[at..at + N].try_into().expect("as long as it was cut")
    }
}

/// CHECK CONDITION for a field of the CDB: a whole byte, or the highest bit of the field.
pub fn invalid_field(byte: usize, bit: Option<u8>) -> Failure {
    Sense::illegal(Asc::INVALID_FIELD_IN_CDB).at_field(true, byte, bit).into()
}

/// CHECK CONDITION for a field of the parameter list.
pub fn invalid_parameter(byte: usize) -> Failure {
    Sense::illegal(Asc::INVALID_FIELD_IN_PARAMETER_LIST).at_field(false, byte, None).into()
}
