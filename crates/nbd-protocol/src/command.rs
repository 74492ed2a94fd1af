//! Commands of the transmission phase and their flags.

/// Type of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Command {
    /// Reads `len` bytes.
    Read,
    /// Writes the `len` bytes that follow.
    Write,
    /// Disconnects; has no reply.
    Disconnect,
    /// Makes acknowledged writes durable.
    Flush,
    /// Releases a range.
    Trim,
    /// Prefetches a range into memory.
    Cache,
    /// Zeroes a range.
    WriteZeroes,
    /// Reports the block status of a range.
    BlockStatus,
    /// An unsupported command.
    Unknown(u16),
}

impl Command {
    /// Decodes a command number.
    pub const fn from_wire(number: u16) -> Self {
        match number {
            0 => Command::Read,
            1 => Command::Write,
            2 => Command::Disconnect,
            3 => Command::Flush,
            4 => Command::Trim,
            5 => Command::Cache,
            6 => Command::WriteZeroes,
            7 => Command::BlockStatus,
            other => Command::Unknown(other),
        }
    }

    /// Encodes the command number.
    pub const fn to_wire(self) -> u16 {
        match self {
            Command::Read => 0,
            Command::Write => 1,
            Command::Disconnect => 2,
            Command::Flush => 3,
            Command::Trim => 4,
            Command::Cache => 5,
            Command::WriteZeroes => 6,
            Command::BlockStatus => 7,
            Command::Unknown(number) => number,
        }
    }

    /// Flags allowed with the command. FUA is allowed with every command and has no effect unless the command writes.
    pub const fn flags_allowed(self) -> u16 {
        match self {
            Command::Read => FUA | DF,
            Command::WriteZeroes => FUA | NO_HOLE | FAST_ZERO,
            Command::BlockStatus => FUA | REQ_ONE,
            _ => FUA,
        }
    }

    /// True if data follow the request.
    pub const fn has_payload(self) -> bool {
        matches!(self, Command::Write)
    }
}

/// Write, trim, write-zeroes: acknowledge after the data is durable.
pub const FUA: u16 = 1 << 0;
/// Write-zeroes: keep the space allocated.
pub const NO_HOLE: u16 = 1 << 1;
/// Read: one chunk or an error ("do not fragment").
pub const DF: u16 = 1 << 2;
/// Block status: one extent per context.
pub const REQ_ONE: u16 = 1 << 3;
/// Write-zeroes: fail if zeroing is not faster than writing.
pub const FAST_ZERO: u16 = 1 << 4;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_numbers_round_trip() {
        for number in 0..=u16::MAX {
            assert_eq!(Command::from_wire(number).to_wire(), number);
        }
    }
}
