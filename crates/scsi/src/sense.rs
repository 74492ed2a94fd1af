//! Sense data in both formats (SPC-4 4.5).

/// Sense key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SenseKey(pub u8);

impl SenseKey {
    pub const NO_SENSE: SenseKey = SenseKey(0x0);
    pub const NOT_READY: SenseKey = SenseKey(0x2);
    pub const MEDIUM_ERROR: SenseKey = SenseKey(0x3);
    pub const HARDWARE_ERROR: SenseKey = SenseKey(0x4);
    pub const ILLEGAL_REQUEST: SenseKey = SenseKey(0x5);
    pub const UNIT_ATTENTION: SenseKey = SenseKey(0x6);
    pub const DATA_PROTECT: SenseKey = SenseKey(0x7);
    pub const COPY_ABORTED: SenseKey = SenseKey(0xa);
    pub const MISCOMPARE: SenseKey = SenseKey(0xe);
}

/// Additional sense code and its qualifier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asc(pub u8, pub u8);

impl Asc {
    pub const NONE: Asc = Asc(0x00, 0x00);
    pub const OPERATION_IN_PROGRESS: Asc = Asc(0x00, 0x16);
    pub const NOT_READY_CAUSE_NOT_REPORTABLE: Asc = Asc(0x04, 0x00);
    pub const MANUAL_INTERVENTION_REQUIRED: Asc = Asc(0x04, 0x03);
    pub const BECOMING_READY: Asc = Asc(0x04, 0x01);
    pub const UNREACHABLE_COPY_TARGET: Asc = Asc(0x08, 0x04);
    pub const WRITE_ERROR: Asc = Asc(0x0c, 0x00);
    pub const INVALID_FIELD_IN_INFORMATION_UNIT: Asc = Asc(0x0e, 0x03);
    pub const UNRECOVERED_READ_ERROR: Asc = Asc(0x11, 0x00);
    pub const PARAMETER_LIST_LENGTH_ERROR: Asc = Asc(0x1a, 0x00);
    pub const MISCOMPARE_DURING_VERIFY: Asc = Asc(0x1d, 0x00);
    pub const INVALID_OPCODE: Asc = Asc(0x20, 0x00);
    pub const LBA_OUT_OF_RANGE: Asc = Asc(0x21, 0x00);
    pub const INVALID_FIELD_IN_CDB: Asc = Asc(0x24, 0x00);
    pub const UNIT_NOT_SUPPORTED: Asc = Asc(0x25, 0x00);
    pub const INVALID_FIELD_IN_PARAMETER_LIST: Asc = Asc(0x26, 0x00);
    pub const INVALID_RELEASE: Asc = Asc(0x26, 0x04);
    pub const TOO_MANY_TARGET_DESCRIPTORS: Asc = Asc(0x26, 0x06);
    pub const UNSUPPORTED_TARGET_DESCRIPTOR: Asc = Asc(0x26, 0x07);
    pub const TOO_MANY_SEGMENT_DESCRIPTORS: Asc = Asc(0x26, 0x08);
    pub const UNSUPPORTED_SEGMENT_DESCRIPTOR: Asc = Asc(0x26, 0x09);
    pub const WRITE_PROTECTED: Asc = Asc(0x27, 0x00);
    pub const SPACE_ALLOCATION_FAILED: Asc = Asc(0x27, 0x07);
    pub const SAVING_NOT_SUPPORTED: Asc = Asc(0x39, 0x00);
    pub const INTERNAL_TARGET_FAILURE: Asc = Asc(0x44, 0x00);
    pub const NO_REGISTRATION_RESOURCES: Asc = Asc(0x55, 0x04);
}

/// Response codes of current errors.
const FIXED_CURRENT: u8 = 0x70;
const DESCRIPTOR_CURRENT: u8 = 0x72;
/// VALID: the information field is set.
const VALID: u8 = 0x80;

/// Field pointer: the field in error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FieldPointer {
    in_cdb: bool,
    byte: u16,
    bit: Option<u8>,
}

/// Sense data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sense {
    pub key: SenseKey,
    pub asc: Asc,
    information: Option<u64>,
    field: Option<FieldPointer>,
}

/// Format of sense data; an initiator selects it in the control mode page (D_SENSE).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SenseFormat {
    Fixed,
    Descriptor,
}

impl Sense {
    /// Sense data without information and field pointer.
    pub fn new(key: SenseKey, asc: Asc) -> Sense {
        Sense { key, asc, information: None, field: None }
    }

    /// Sense data with the key ILLEGAL REQUEST.
    pub fn illegal(asc: Asc) -> Sense {
        Sense::new(SenseKey::ILLEGAL_REQUEST, asc)
    }

    /// Adds the information field: a block number or the offset of a miscompare.
    pub fn with_information(self, information: u64) -> Sense {
        Sense { information: Some(information), ..self }
    }

    /// Adds a field pointer.
    pub fn with_field_pointer(self, in_cdb: bool, byte: usize, bit: Option<u8>) -> Sense {
        Sense { field: Some(FieldPointer { in_cdb, byte: byte.min(u16::MAX.into()) as u16, bit }), ..self }
    }

    /// Encodes the sense data.
    pub fn bytes(&self, format: SenseFormat) -> Vec<u8> {
        match format {
            SenseFormat::Fixed => self.fixed(),
            SenseFormat::Descriptor => self.descriptors(),
        }
    }

    fn fixed(&self) -> Vec<u8> {
        let mut bytes = vec![0; 18];
        bytes[0] = FIXED_CURRENT;
        bytes[2] = self.key.0;
        bytes[7] = 10;
        (bytes[12], bytes[13]) = (self.asc.0, self.asc.1);
        // A value beyond four bytes is left out.
        if let Some(information) = self.information.and_then(|information| u32::try_from(information).ok()) {
            bytes[0] |= VALID;
            bytes[3..7].copy_from_slice(&information.to_be_bytes());
        }
        if let Some(field) = &self.field {
            bytes[15..18].copy_from_slice(&field.bytes());
        }
        bytes
    }

    fn descriptors(&self) -> Vec<u8> {
        let mut bytes = vec![DESCRIPTOR_CURRENT, self.key.0, self.asc.0, self.asc.1, 0, 0, 0, 0];
        if let Some(information) = self.information {
            // Information descriptor.
            bytes.extend([0x00, 0x0a, VALID, 0]);
            bytes.extend(information.to_be_bytes());
        }
        if let Some(field) = &self.field {
            // Sense key specific descriptor.
            bytes.extend([0x02, 0x06, 0, 0]);
            bytes.extend(field.bytes());
            bytes.push(0);
        }
        bytes[7] = (bytes.len() - 8) as u8;
        bytes
    }
}

impl FieldPointer {
    fn bytes(&self) -> [u8; 3] {
        // SKSV, C/D and BPV.
        let bit = self.bit.map_or(0, |bit| 0x08 | bit);
        let [high, low] = self.byte.to_be_bytes();
        [0x80 | u8::from(self.in_cdb) << 6 | bit, high, low]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_formats_carry_key_code_information_and_field() {
        let sense = Sense::new(SenseKey::MISCOMPARE, Asc::MISCOMPARE_DURING_VERIFY).with_information(0x1234);
        let sense = sense.with_field_pointer(true, 0x102, Some(3));
        let fixed = sense.bytes(SenseFormat::Fixed);
        assert_eq!(fixed, [0xf0, 0, 0xe, 0, 0, 0x12, 0x34, 10, 0, 0, 0, 0, 0x1d, 0, 0, 0xcb, 1, 2]);
        let descriptors = sense.bytes(SenseFormat::Descriptor);
        assert_eq!(descriptors[..8], [0x72, 0xe, 0x1d, 0, 0, 0, 0, 20]);
        assert_eq!(descriptors[8..20], [0, 10, 0x80, 0, 0, 0, 0, 0, 0, 0, 0x12, 0x34]);
        assert_eq!(descriptors[20..], [2, 6, 0, 0, 0xcb, 1, 2, 0]);
    }

    #[test]
    fn fixed_format_leaves_out_values_beyond_32_bits() {
        let fixed =
            Sense::new(SenseKey::MEDIUM_ERROR, Asc::WRITE_ERROR).with_information(1 << 32).bytes(SenseFormat::Fixed);
        assert_eq!((fixed[0], &fixed[3..7]), (0x70, &[0; 4][..]));
    }
}
