//! Operation codes, flags and sense codes of the standards.

/// CDB of TEST UNIT READY.
pub const TEST_UNIT_READY: [u8; 6] = [0; 6];

// Operation codes.
pub const REQUEST_SENSE: u8 = 0x03;
pub const READ_6: u8 = 0x08;
pub const WRITE_6: u8 = 0x0a;
pub const INQUIRY: u8 = 0x12;
pub const MODE_SELECT_6: u8 = 0x15;
pub const RESERVE_6: u8 = 0x16;
pub const RELEASE_6: u8 = 0x17;
pub const MODE_SENSE_6: u8 = 0x1a;
pub const START_STOP_UNIT: u8 = 0x1b;
pub const READ_CAPACITY_10: u8 = 0x25;
pub const READ_10: u8 = 0x28;
pub const WRITE_10: u8 = 0x2a;
pub const WRITE_AND_VERIFY_10: u8 = 0x2e;
pub const VERIFY_10: u8 = 0x2f;
pub const PRE_FETCH_10: u8 = 0x34;
pub const SYNCHRONIZE_CACHE_10: u8 = 0x35;
pub const WRITE_SAME_10: u8 = 0x41;
pub const UNMAP: u8 = 0x42;
pub const SANITIZE: u8 = 0x48;
pub const LOG_SENSE: u8 = 0x4d;
pub const MODE_SELECT_10: u8 = 0x55;
pub const MODE_SENSE_10: u8 = 0x5a;
pub const PERSISTENT_RESERVE_IN: u8 = 0x5e;
pub const PERSISTENT_RESERVE_OUT: u8 = 0x5f;
pub const EXTENDED_COPY: u8 = 0x83;
pub const RECEIVE_COPY_RESULTS: u8 = 0x84;
pub const READ_16: u8 = 0x88;
pub const COMPARE_AND_WRITE: u8 = 0x89;
pub const WRITE_16: u8 = 0x8a;
pub const OR_WRITE: u8 = 0x8b;
pub const WRITE_AND_VERIFY_16: u8 = 0x8e;
pub const VERIFY_16: u8 = 0x8f;
pub const PRE_FETCH_16: u8 = 0x90;
pub const WRITE_SAME_16: u8 = 0x93;
pub const SERVICE_ACTION_IN_16: u8 = 0x9e;
pub const REPORT_LUNS: u8 = 0xa0;
pub const MAINTENANCE_IN: u8 = 0xa3;
pub const READ_12: u8 = 0xa8;
pub const WRITE_12: u8 = 0xaa;
pub const WRITE_AND_VERIFY_12: u8 = 0xae;
pub const VERIFY_12: u8 = 0xaf;

// Service actions.
pub const READ_CAPACITY_16: u8 = 0x10;
pub const GET_LBA_STATUS: u8 = 0x12;
pub const REPORT_OPCODES: u8 = 0x0c;
pub const OPERATING_PARAMETERS: u8 = 0x03;

/// FUA of READ and WRITE.
pub const FUA: u8 = 0x08;
/// DPO of READ and WRITE.
pub const DPO: u8 = 0x10;

/// MODE SENSE: DBD.
pub const DISABLE_BLOCK_DESCRIPTORS: u8 = 0x08;
/// MODE SENSE(10): LLBAA.
pub const LONG_LBA_ACCEPTED: u8 = 0x10;
/// MODE SENSE: page control for saved values.
pub const SAVED_VALUES: u8 = 0xc0;
/// MODE SELECT: PF.
pub const PAGE_FORMAT: u8 = 0x10;

// Mode page codes.
pub const CACHING_PAGE: u8 = 0x08;
pub const CONTROL_PAGE: u8 = 0x0a;
pub const INFORMATIONAL_EXCEPTIONS_PAGE: u8 = 0x1c;
pub const ALL_PAGES: u8 = 0x3f;
/// Subpage of informational exceptions.
pub const PROVISIONING_SUBPAGE: u8 = 0x02;
pub const ALL_SUBPAGES: u8 = 0xff;

// Vital product data page codes.
pub const UNIT_SERIAL_NUMBER: u8 = 0x80;
pub const DEVICE_IDENTIFICATION: u8 = 0x83;
pub const BLOCK_LIMITS: u8 = 0xb0;

// Flags in the parameter list of PERSISTENT RESERVE OUT.
pub const APTPL: u8 = 0x01;
pub const ALL_TG_PT: u8 = 0x04;
pub const SPEC_I_PT: u8 = 0x08;

// Descriptor type codes of EXTENDED COPY.
pub const BLOCKS_TO_BLOCKS: u8 = 0x02;
pub const BYTES_TO_BYTES: u8 = 0x0a;
pub const IDENTIFICATION_DESCRIPTOR: u8 = 0xe4;

/// Peripheral qualifier and type of a LUN without a unit.
pub const NO_DEVICE: u8 = 0x3f;

/// Response code of current errors in descriptor format.
pub const DESCRIPTOR_CURRENT: u8 = 0x72;
/// Sense key UNIT ATTENTION.
pub const UNIT_ATTENTION: u8 = 0x6;

// Sense key, additional sense code and qualifier.
pub const NOT_READY: (u8, u8, u8) = (0x2, 0x04, 0x00);
pub const BECOMING_READY: (u8, u8, u8) = (0x2, 0x04, 0x01);
pub const WRITE_ERROR: (u8, u8, u8) = (0x3, 0x0c, 0x00);
pub const UNRECOVERED_READ_ERROR: (u8, u8, u8) = (0x3, 0x11, 0x00);
pub const INTERNAL_TARGET_FAILURE: (u8, u8, u8) = (0x4, 0x44, 0x00);
pub const INVALID_FIELD_IN_INFORMATION_UNIT: (u8, u8, u8) = (0x5, 0x0e, 0x03);
pub const PARAMETER_LIST_LENGTH_ERROR: (u8, u8, u8) = (0x5, 0x1a, 0x00);
pub const INVALID_OPCODE: (u8, u8, u8) = (0x5, 0x20, 0x00);
pub const LBA_OUT_OF_RANGE: (u8, u8, u8) = (0x5, 0x21, 0x00);
pub const INVALID_FIELD_IN_CDB: (u8, u8, u8) = (0x5, 0x24, 0x00);
pub const UNIT_NOT_SUPPORTED: (u8, u8, u8) = (0x5, 0x25, 0x00);
pub const INVALID_FIELD_IN_PARAMETER_LIST: (u8, u8, u8) = (0x5, 0x26, 0x00);
pub const INVALID_RELEASE: (u8, u8, u8) = (0x5, 0x26, 0x04);
pub const SAVING_NOT_SUPPORTED: (u8, u8, u8) = (0x5, 0x39, 0x00);
pub const POWER_ON: (u8, u8, u8) = (0x6, 0x29, 0x00);
pub const RESET: (u8, u8, u8) = (0x6, 0x29, 0x03);
pub const MODE_CHANGED: (u8, u8, u8) = (0x6, 0x2a, 0x01);
pub const RESERVATIONS_PREEMPTED: (u8, u8, u8) = (0x6, 0x2a, 0x03);
pub const RESERVATIONS_RELEASED: (u8, u8, u8) = (0x6, 0x2a, 0x04);
pub const REGISTRATIONS_PREEMPTED: (u8, u8, u8) = (0x6, 0x2a, 0x05);
pub const COMMANDS_CLEARED: (u8, u8, u8) = (0x6, 0x2f, 0x00);
pub const WRITE_PROTECTED: (u8, u8, u8) = (0x7, 0x27, 0x00);
pub const SPACE_ALLOCATION_FAILED: (u8, u8, u8) = (0x7, 0x27, 0x07);
pub const COPY_ABORTED: (u8, u8, u8) = (0xa, 0x00, 0x00);
pub const UNREACHABLE_COPY_TARGET: (u8, u8, u8) = (0xa, 0x08, 0x04);
pub const MISCOMPARE: (u8, u8, u8) = (0xe, 0x1d, 0x00);
