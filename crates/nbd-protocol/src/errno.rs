//! Error numbers on the wire, independent of the operating system's.

/// Error of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Errno {
    /// Not permitted (a write to a read-only export).
    Perm,
    /// Input/output error.
    Io,
    /// Out of memory.
    NoMem,
    /// Invalid request.
    Inval,
    /// No space left, or a write past the end.
    NoSpace,
    /// Too large for a reply in one piece.
    Overflow,
    /// Not supported, or not possible fast (`NBD_CMD_FLAG_FAST_ZERO`).
    NotSup,
    /// The server is shutting down.
    Shutdown,
}

impl Errno {
    /// All error numbers.
    pub const ALL: [Errno; 8] = [
        Errno::Perm,
        Errno::Io,
        Errno::NoMem,
        Errno::Inval,
        Errno::NoSpace,
        Errno::Overflow,
        Errno::NotSup,
        Errno::Shutdown,
    ];

    /// Encodes the error number.
    pub const fn to_wire(self) -> u32 {
        match self {
            Errno::Perm => 1,
            Errno::Io => 5,
            Errno::NoMem => 12,
            Errno::Inval => 22,
            Errno::NoSpace => 28,
            Errno::Overflow => 75,
            Errno::NotSup => 95,
            Errno::Shutdown => 108,
        }
    }

    /// Decodes an error number; 0 is success. An unknown number counts as invalid, as the specification requires.
    pub fn from_wire(number: u32) -> Option<Self> {
        if number == 0 {
            return None;
        }
        Some(Errno::ALL.into_iter().find(|errno| errno.to_wire() == number).unwrap_or(Errno::Inval))
    }

    /// Text for error messages.
    pub const fn text(self) -> &'static str {
        match self {
            Errno::Perm => "not permitted: the export is read-only",
            Errno::Io => "input/output error",
            Errno::NoMem => "out of memory",
            Errno::Inval => "invalid request: misaligned, out of bounds, too long, or unknown",
            Errno::NoSpace => "no space left, or past the end of the export",
            Errno::Overflow => "too large for a reply in one piece",
            Errno::NotSup => "not supported, or not possible as a fast zero request",
            Errno::Shutdown => "the export is shutting down",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_errors_round_trip_and_unknown_ones_are_invalid() {
        assert!(Errno::ALL.into_iter().all(|errno| Errno::from_wire(errno.to_wire()) == Some(errno)));
        assert_eq!(Errno::from_wire(0), None);
        assert_eq!(Errno::from_wire(4711), Some(Errno::Inval));
    }
}
