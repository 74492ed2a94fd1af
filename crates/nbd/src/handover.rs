//! A client that stands between two requests, on its way from one server to the next: its stream, and what was agreed with it.

use std::fmt;
use std::str::FromStr;

use seam::Seam;

use crate::negotiation::Agreed;
use crate::{Export, Exports};

/// A client of a server that stopped: all that it asked is answered, and nothing of its next request has been taken.
pub struct Handed<S: Seam> {
    /// Its connection.
    pub stream: S::Stream,
    /// What it relies on.
    pub terms: Terms,
}

/// What was agreed with a client. As text, it is short and in the letters of a file's name; [`Terms::FORMAT`] says what is in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// Which volume it uses, whatever that is called by now.
    pub incarnation: u64,
    /// Bytes that it may ask for.
    pub size_bytes: u64,
    /// It was told that it cannot write.
    pub read_only: bool,
    /// It understands structured replies.
    pub structured: bool,
    /// It may ask for block status.
    pub allocation: bool,
    /// It has yet to hear that acknowledged writes are lost.
    pub untold_loss: bool,
}

/// Why a client cannot go on where it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoWay {
    /// Nobody here serves what it uses.
    #[error("its volume is not served")]
    NoVolume,
    /// It could ask for what is not there.
    #[error("its volume became smaller")]
    Smaller,
    /// It was told otherwise.
    #[error("its volume became read-only, or is so no longer")]
    ReadOnly,
}

impl Terms {
    /// Begins the text of terms; another format gets another number.
    pub const FORMAT: &str = "nbd1";

    /// What was agreed.
    pub(crate) fn of<S: Seam>(agreed: &Agreed<S>, untold_loss: bool) -> Terms {
        let (spec, size_bytes) = (agreed.export.volume.spec(), agreed.export.volume.size_bytes());
        let (incarnation, read_only) = (spec.incarnation, spec.read_only);
        let (structured, allocation) = (agreed.structured, agreed.allocation);
        Terms { incarnation, size_bytes, read_only, structured, allocation, untold_loss }
    }

    /// The same agreement with the volume as it is served now.
    pub(crate) fn renew<S: Seam>(&self, exports: &dyn Exports<S>) -> Result<Agreed<S>, NoWay> {
        let export: Export<S> = exports.of_incarnation(self.incarnation).ok_or(NoWay::NoVolume)?;
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
        // Left out where there is none: a version that knows nothing of it reads the rest.
        if self.untold_loss { f.write_str("1") } else { Ok(()) }
    }
}

/// The text is none of [`Terms`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoTerms;

impl FromStr for Terms {
    type Err = NoTerms;

    fn from_str(text: &str) -> Result<Terms, NoTerms> {
        let parts: Vec<&str> = text.split('-').collect();
        let [Terms::FORMAT, incarnation, size, flags] = parts[..] else { return Err(NoTerms) };
        let number = |text: &str| u64::from_str_radix(text, 16).map_err(|_| NoTerms);
        let flag = |flag: u8| match flag {
            b'0' => Ok(false),
            b'1' => Ok(true),
            _ => Err(NoTerms),
        };
        let (flags, untold_loss) = match *flags.as_bytes() {
            [read_only, structured, allocation] => ([read_only, structured, allocation], false),
            [read_only, structured, allocation, b'1'] => ([read_only, structured, allocation], true),
            _ => return Err(NoTerms),
        };
        let [read_only, structured, allocation] = flags;
        let (incarnation, size_bytes) = (number(incarnation)?, number(size)?);
        let (read_only, structured, allocation) = (flag(read_only)?, flag(structured)?, flag(allocation)?);
        Ok(Terms { incarnation, size_bytes, read_only, structured, allocation, untold_loss })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn terms_are_read_as_they_were_written_and_nothing_else_is() {
        for bits in 0..16u8 {
            let [read_only, structured, allocation, untold_loss] = [1, 2, 4, 8].map(|bit| bits & bit != 0);
            let (incarnation, size_bytes) = (u64::MAX - u64::from(bits), 1 << (40 + bits));
            let terms = Terms { incarnation, size_bytes, read_only, structured, allocation, untold_loss };
            assert_eq!(terms.to_string().parse(), Ok(terms));
        }
        let sound = "nbd1-00000000000000ff-4000-010";
        assert!(sound.parse::<Terms>().is_ok());
        let broken =
            ["", "nbd1", "nbd2-ff-4000-010", "nbd1-ff-4000-01", "nbd1-ff-4000-012", "nbd1-xx-4000-010", "nbd1-ff--010"];
        for text in broken.into_iter().map(str::to_owned).chain([format!("{sound}-0"), format!("{sound}0")]) {
            assert_eq!(text.parse::<Terms>(), Err(NoTerms), "{text}");
        }
    }
}
