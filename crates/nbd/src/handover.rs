//! Handover of a client at a request boundary from a server to its successor: the stream and the negotiated terms.

use std::fmt;
use std::str::FromStr;

use engine::VolumeId;
use seam::Seam;

use crate::negotiation::Negotiated;
use crate::{Export, Exports};

/// A client of a stopped server: all of its requests are answered, and no byte of the next one was received.
pub struct HandedOverClient<S: Seam> {
    /// The client's connection.
    pub stream: S::Stream,
    /// The negotiated terms.
    pub terms: NegotiatedTerms,
}

/// Negotiated terms of a client. Their text form is short and valid in a file name;
/// [`NegotiatedTerms::FORMAT`] is its version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NegotiatedTerms {
    /// Volume ID of the volume, independent of the volume's name.
    pub volume_id: VolumeId,
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
pub enum TakeOverError {
    /// No export has the volume ID.
    #[error("its volume is not served")]
    NoVolume,
    /// The volume is smaller than negotiated.
    #[error("its volume shrank")]
    Smaller,
    /// The volume's write protection changed.
    #[error("the write protection of its volume changed")]
    ReadOnly,
    /// The server is stopping.
    #[error("the server is stopping")]
    Stopping,
}

impl NegotiatedTerms {
    /// Prefix of the text form; a new format gets a new number.
    pub const FORMAT: &str = "nbd1";

    /// The terms of a connection.
    pub(crate) fn of<S: Seam>(negotiated: &Negotiated<S>, unreported_loss: bool) -> NegotiatedTerms {
        let (spec, size_bytes) = (negotiated.export.volume.spec(), negotiated.export.volume.size_bytes());
        let (volume_id, read_only) = (spec.volume_id, negotiated.export.is_read_only);
        let (structured, allocation) = (negotiated.structured, negotiated.allocation);
        NegotiatedTerms { volume_id, size_bytes, read_only, structured, allocation, unreported_loss }
    }

    /// The same terms with the volume as exported now.
    pub(crate) fn renew<S: Seam>(&self, exports: &dyn Exports<S>) -> Result<Negotiated<S>, TakeOverError> {
        let export: Export<S> = exports.find_by_id(self.volume_id).ok_or(TakeOverError::NoVolume)?;
        if export.volume.size_bytes() < self.size_bytes {
            return Err(TakeOverError::Smaller);
        }
        if export.is_read_only != self.read_only {
            return Err(TakeOverError::ReadOnly);
        }
        Ok(Negotiated { export, structured: self.structured, allocation: self.allocation })
    }
}

impl fmt::Display for NegotiatedTerms {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let flags = [self.read_only, self.structured, self.allocation].map(u8::from);
        write!(f, "{}-{:016x}-{:x}-", NegotiatedTerms::FORMAT, self.volume_id, self.size_bytes)?;
        flags.iter().try_for_each(|flag| write!(f, "{flag}"))?;
        // Omitted if false, so that a version without this flag can read the text.
        if self.unreported_loss { f.write_str("1") } else { Ok(()) }
    }
}

/// The text is not in the format of [`NegotiatedTerms`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParseTermsError;

impl FromStr for NegotiatedTerms {
    type Err = ParseTermsError;

    fn from_str(text: &str) -> Result<NegotiatedTerms, ParseTermsError> {
        let parts: Vec<&str> = text.split('-').collect();
        let [NegotiatedTerms::FORMAT, volume_id, size, flags] = parts[..] else { return Err(ParseTermsError) };
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
        let (volume_id, size_bytes) = (VolumeId(number(volume_id)?), number(size)?);
        let (read_only, structured, allocation) = (flag(read_only)?, flag(structured)?, flag(allocation)?);
        Ok(NegotiatedTerms { volume_id, size_bytes, read_only, structured, allocation, unreported_loss })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn terms_round_trip_and_malformed_text_is_refused() {
        for bits in 0..16u8 {
            let [read_only, structured, allocation, unreported_loss] = [1, 2, 4, 8].map(|bit| bits & bit != 0);
            let (volume_id, size_bytes) = (VolumeId(u64::MAX - u64::from(bits)), 1 << (40 + bits));
            let terms = NegotiatedTerms { volume_id, size_bytes, read_only, structured, allocation, unreported_loss };
            assert_eq!(terms.to_string().parse(), Ok(terms));
        }
        let valid = "nbd1-00000000000000ff-4000-010";
        assert!(valid.parse::<NegotiatedTerms>().is_ok());
        let malformed =
            ["", "nbd1", "nbd2-ff-4000-010", "nbd1-ff-4000-01", "nbd1-ff-4000-012", "nbd1-xx-4000-010", "nbd1-ff--010"];
        for text in malformed.into_iter().map(str::to_owned).chain([format!("{valid}-0"), format!("{valid}0")]) {
            assert_eq!(text.parse::<NegotiatedTerms>(), Err(ParseTermsError), "{text}");
        }
    }
}
