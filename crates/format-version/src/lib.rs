//! The refusal of a file in a newer format than this program reads, with one message for all formats
//! (`docs/design/format.md`).

use std::fmt;

/// A release of Hotset.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Release {
    /// Major number.
    pub major: u16,
    /// Minor number.
    pub minor: u16,
    /// Patch number.
    pub patch: u16,
}

impl Release {
    /// Parses `1.4.0`.
    pub fn parse(text: &str) -> Option<Release> {
        let mut numbers = text.split('.').map(|number| number.parse::<u16>().ok());
        let release = Release { major: numbers.next()??, minor: numbers.next()??, patch: numbers.next()?? };
        numbers.next().is_none().then_some(release)
    }

    /// Decodes the eight bytes of a binary format: patch in the lowest 16 bits, then minor, then major; 0 means none.
    pub fn unpack(packed: u64) -> Option<Release> {
        let [patch, minor, major] = [0, 16, 32].map(|shift| (packed >> shift) as u16);
        (packed != 0 && packed >> 48 == 0).then_some(Release { major, minor, patch })
    }
}

impl fmt::Display for Release {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.major, self.minor, self.patch)
    }
}

/// A file has a newer format than this program reads. It is presumably intact, and is left unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("written by a newer version of Hotset ({unsupported}); needs at least {}", NeededVersion(self))]
pub struct NewerFormat {
    unsupported: Unsupported,
    needs: Option<Release>,
}

impl NewerFormat {
    /// A file of format `found`, where this program reads formats up to `known`. `needs` is the first release that
    /// reads it, if the file names one.
    pub fn of_format(found: impl Into<u64>, known: impl Into<u64>, needs: Option<Release>) -> NewerFormat {
        NewerFormat { unsupported: Unsupported::Format { found: found.into(), known: known.into() }, needs }
    }

    /// A file of a known format with features, one bit each, that this program lacks.
    pub fn with_features(features: u64, needs: Option<Release>) -> NewerFormat {
        NewerFormat { unsupported: Unsupported::Features(features), needs }
    }
}

/// The part of a file that is unknown to this program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Unsupported {
    Format { found: u64, known: u64 },
    Features(u64),
}

impl fmt::Display for Unsupported {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unsupported::Format { found, known } => write!(f, "format {found}, this one reads up to {known}"),
            Unsupported::Features(features) => write!(f, "features {features:#x} that this one lacks"),
        }
    }
}

struct NeededVersion<'a>(&'a NewerFormat);

impl fmt::Display for NeededVersion<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.0.needs, self.0.unsupported) {
            (Some(release), _) => write!(f, "Hotset {release}"),
            (None, Unsupported::Format { found, .. }) => write!(f, "a version that reads format {found}"),
            (None, Unsupported::Features(_)) => write!(f, "a version that has them"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn message_names_the_required_release_or_else_the_format() {
        let release = Release::parse("1.4.0");
        let expected = "written by a newer version of Hotset (format 3, this one reads up to 1); needs at least ";
        let shown = |needs| NewerFormat::of_format(3_u32, 1_u32, needs).to_string();
        assert_eq!(shown(release), format!("{expected}Hotset 1.4.0"));
        assert_eq!(shown(None), format!("{expected}a version that reads format 3"));
        let expected = "written by a newer version of Hotset (features 0x6 that this one lacks); needs at least ";
        let shown = |needs| NewerFormat::with_features(6, needs).to_string();
        assert_eq!(shown(release), format!("{expected}Hotset 1.4.0"));
        assert_eq!(shown(None), format!("{expected}a version that has them"));
    }

    #[test]
    fn release_is_three_numbers_as_text_and_as_bytes() {
        let release = Release { major: 1, minor: 4, patch: 2 };
        assert_eq!(Release::parse("1.4.2"), Some(release));
        assert_eq!(Release::unpack(0x0001_0004_0002), Some(release));
        for text in ["", "1", "1.4", "1.4.2.0", "1.4.x", "1.4.-2", "1.4.99999"] {
            assert_eq!(Release::parse(text), None, "{text}");
        }
        assert_eq!((Release::unpack(0), Release::unpack(1 << 48)), (None, None));
    }
}
