//! Handover of a client between two requests from one server to its successor: the stream and the negotiated terms.

use std::fmt;
use std::str::FromStr;

use engine::VolumeId;
use seam::Seam;

use crate::negotiation::Agreed;
use crate::{Export, Exports};

/// A client of a stopped server: all of its requests are answered, and no byte of the next one was received.
pub struct Handed<S: Seam> {
    /// The client's connection.
    pub stream: S::Stream,
    /// The negotiated terms.
    pub terms: Terms,
}

/// Negotiated terms of a client. Their text form is short and valid in a file name; [`Terms::FORMAT`] is its version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// Incarnation of the volume, independent of the volume's name.
    pub incarnation: VolumeId,
    /// Size of the export as negotiated.
    pub size_bytes: u64,
    /// True if the export was announced as read-only.
    pub read_only: bool,
    /// True if structured replies are negotiated.
    pub structured: bool,
    /// True if `base:allocation` is negotiated.
    pub allocation: bool,
    /// True if the client has not yet received the error that reports lost writes.
    pub unreported_loss: bool,
}

/// Reason why a client cannot be taken over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoWay {
    /// No export has the volume's incarnation.
    #[error("its volume is not served")]
    NoVolume,
    /// The volume is smaller than negotiated.
    #[error("its volume became smaller")]
    Smaller,
    /// The volume's write protection changed.
    #[error("its volume became read-only, or is so no longer")]
    ReadOnly,
}

impl Terms {
    /// Prefix of the text form; a new format gets a new number.
    pub const FORMAT: &str = "nbd1";

    /// The terms of a connection.
    pub(crate) fn of<S: Seam>(agreed: &Agreed<S>, unreported_loss: bool) -> Terms {
        let (spec, size_bytes) = (agreed.export.volume.spec(), agreed.export.volume.size_bytes());
        let (incarnation, read_only) = (spec.incarnation, spec.read_only);
        let (structured, allocation) = (agreed.structured, agreed.allocation);
        Terms { incarnation, size_bytes, read_only, structured, allocation, unreported_loss }
    }

    /// The same terms with the volume as exported now.
    pub(crate) fn renew<S: Seam>(&self, exports: &dyn Exports<S>) -> Result<Agreed<S>, NoWay> {
        let export: Export<S> = exports.find_by_incarnation(self.incarnation).ok_or(NoWay::NoVolume)?;
        if export.volume.size_bytes() < self.size_bytes {
            return Err(NoWay::Smaller);
        }
        if export.volume.spec().read_only != self.read_only {
            return Err(NoWay::ReadOnly);
        }
        Ok(Agreed { export, structured: self.structured, allocation: self.allocation })
    }
}

impl fmt::Display for Terms {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let flags = [self.read_only, self.structured, self.allocation].map(u8::from);
        write!(f, "{}-{:016x}-{:x}-", Terms::FORMAT, self.incarnation, self.size_bytes)?;
        flags.iter().try_for_each(|flag| write!(f, "{flag}"))?;
        // Left out if false, so that a version without this flag can read the text.
        if self.unreported_loss { f.write_str("1") } else { Ok(()) }
    }
}

/// The text is not in the format of [`Terms`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParseTermsError;

impl FromStr for Terms {
    type Err = ParseTermsError;

    fn from_str(text: &str) -> Result<Terms, ParseTermsError> {
        let parts: Vec<&str> = text.split('-').collect();
        let [Terms::FORMAT, incarnation, size, flags] = parts[..] else { return Err(ParseTermsError) };
        let number = |text: &str| u64::from_str_radix(text, 16).map_err(|_| ParseTermsError);
        let flag = |flag: u8| match flag {
            b'0' => Ok(false),
            b'1' => Ok(true),
            _ => Err(ParseTermsError),
        };
        let (flags, unreported_loss) = match *flags.as_bytes() {
            [read_only, structured, allocation] => ([read_only, structured, allocation], false),
            [read_only, structured, allocation, b'1'] => ([read_only, structured, allocation], true),
            _ => return Err(ParseTermsError),
        };
        let [read_only, structured, allocation] = flags;
        let (incarnation, size_bytes) = (VolumeId(number(incarnation)?), number(size)?);
        let (read_only, structured, allocation) = (flag(read_only)?, flag(structured)?, flag(allocation)?);
        Ok(Terms { incarnation, size_bytes, read_only, structured, allocation, unreported_loss })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn terms_round_trip_and_malformed_text_is_refused() {
        for bits in 0..16u8 {
            let [read_only, structured, allocation, unreported_loss] = [1, 2, 4, 8].map(|bit| bits & bit != 0);
            let (incarnation, size_bytes) = (VolumeId(u64::MAX - u64::from(bits)), 1 << (40 + bits));
            let terms = Terms { incarnation, size_bytes, read_only, structured, allocation, unreported_loss };
            assert_eq!(terms.to_string().parse(), Ok(terms));
        }
        let sound = "nbd1-00000000000000ff-4000-010";
        assert!(sound.parse::<Terms>().is_ok());
        let broken =
            ["", "nbd1", "nbd2-ff-4000-010", "nbd1-ff-4000-01", "nbd1-ff-4000-012", "nbd1-xx-4000-010", "nbd1-ff--010"];
        for text in broken.into_iter().map(str::to_owned).chain([format!("{sound}-0"), format!("{sound}0")]) {
            assert_eq!(text.parse::<Terms>(), Err(ParseTermsError), "{text}");
        }
    }
}
