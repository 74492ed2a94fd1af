//! Fields of a command descriptor block (CDB). [`Cdb`] has the length of its command, so reading a field needs no
//! check.

use crate::failure::Failure;
use crate::sense::{Asc, Sense};

/// A command descriptor block with the length of its command.
#[derive(Clone, Copy, Debug)]
pub struct Cdb<'a>(pub &'a [u8]);

impl Cdb<'_> {
    /// The byte at `offset`.
    pub fn u8(&self, offset: usize) -> u8 {
        self.0[offset]
    }

    /// Bit `bit` of the byte at `offset`.
    pub fn bit(&self, offset: usize, bit: u8) -> bool {
        self.0[offset] >> bit & 1 == 1
    }

    /// The big-endian field of two bytes at `offset`.
    pub fn u16(&self, offset: usize) -> u16 {
        u16::from_be_bytes(self.array(offset))
    }

    /// The big-endian field of three bytes at `offset`.
    pub fn u24(&self, offset: usize) -> u32 {
        let [a, b, c] = self.array(offset);
        u32::from_be_bytes([0, a, b, c])
    }

    /// The big-endian field of four bytes at `offset`.
    pub fn u32(&self, offset: usize) -> u32 {
        u32::from_be_bytes(self.array(offset))
    }

    /// The big-endian field of eight bytes at `offset`.
    pub fn u64(&self, offset: usize) -> u64 {
        u64::from_be_bytes(self.array(offset))
    }

    fn array<const N: usize>(&self, offset: usize) -> [u8; N] {
        self.0[offset..offset + N].try_into().expect("the CDB has the length of its command")
    }
}

/// CHECK CONDITION for a field of the CDB: a whole byte, or the highest bit of the field.
pub fn invalid_field(byte: usize, bit: Option<u8>) -> Failure {
    Sense::illegal(Asc::INVALID_FIELD_IN_CDB).with_field_pointer(true, byte, bit).into()
}

/// CHECK CONDITION for a field of the parameter list.
pub fn invalid_parameter(byte: usize) -> Failure {
    Sense::illegal(Asc::INVALID_FIELD_IN_PARAMETER_LIST).with_field_pointer(false, byte, None).into()
}
