//! What a client may ask in transmission, and the bits that go with it.

/// A request's kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Command {
    /// Read `len` bytes.
    Read,
    /// Write the `len` bytes that follow.
    Write,
    /// Good-bye; never answered.
    Disconnect,
    /// Make durable what was acknowledged.
    Flush,
    /// Release a range.
    Trim,
    /// Bring a range into memory.
    Cache,
    /// Zero a range.
    WriteZeroes,
    /// Tell about a range.
    BlockStatus,
    /// Something that is not spoken here.
    Unknown(u16),
}

impl Command {
    /// From its number on the wire.
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

    /// Its number on the wire.
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

    /// Flags that may come with it. Force-unit-access is allowed on everything and means nothing where nothing is written.
    pub const fn flags_allowed(self) -> u16 {
        match self {
            Command::Read => FUA | DF,
            Command::WriteZeroes => FUA | NO_HOLE | FAST_ZERO,
            Command::BlockStatus => FUA | REQ_ONE,
            _ => FUA,
        }
    }

    /// True when bytes follow the request.
    pub const fn has_payload(self) -> bool {
        matches!(self, Command::Write)
    }
}

/// Acknowledge only what is durable.
pub const FUA: u16 = 1 << 0;
/// Write-zeroes: keep the space allocated.
pub const NO_HOLE: u16 = 1 << 1;
/// Read: one chunk, or an error.
pub const DF: u16 = 1 << 2;
/// Block status: one extent a context.
pub const REQ_ONE: u16 = 1 << 3;
/// Write-zeroes: fail if it is no faster than writing.
pub const FAST_ZERO: u16 = 1 << 4;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_survives_the_way_to_the_wire_and_back() {
        for number in 0..=u16::MAX {
            assert_eq!(Command::from_wire(number).to_wire(), number);
        }
    }
}
