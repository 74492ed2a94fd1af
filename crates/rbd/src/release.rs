//! The release of an image for a move: its owner gives it up, for one named host or for any.

use super::host_name::host_word;

/// First word of the order.
const ORDER: &str = "release";

/// A release.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Release {
    /// Every host may claim the image.
    Any,
    /// The host of this name may.
    To(String),
}

impl Release {
    /// A release for that host, or for any.
    pub fn new(host: Option<&str>) -> Release {
        host.map_or(Release::Any, |host| Release::To(host_word(host)))
    }

    /// The named host.
    pub fn host(&self) -> Option<&str> {
        match self {
            Release::Any => None,
            Release::To(host) => Some(host),
        }
    }

    /// True if the host of that name may claim the image.
    pub fn is_for(&self, host: &str) -> bool {
        self.host().is_none_or(|named| named == host)
    }

    /// One word.
    pub fn encode(&self) -> String {
        match self {
            Release::Any => "any".to_owned(),
            Release::To(host) => format!("to:{host}"),
        }
    }

    /// Parses the word; `None` if it is no release.
    pub fn parse(word: &str) -> Option<Release> {
        match word.strip_prefix("to:") {
            Some(host) if !host.is_empty() => Some(Release::To(host.to_owned())),
            Some(_) => None,
            None => (word == "any").then_some(Release::Any),
        }
    }

    /// The order to release the image when the daemon closes the channel, as a line with its end. Its data is complete
    /// then. [`Status::Released`](super::Status::Released) or [`Status::NotReleased`](super::Status::NotReleased)
    /// answers it, after the last request.
    pub fn order(&self) -> String {
        format!("{ORDER} {}\n", self.encode())
    }

    /// Parses a line; `None` if it is another order.
    pub fn parse_order(line: &str) -> Option<Release> {
        Release::parse(line.trim_end().strip_prefix(ORDER)?.strip_prefix(' ')?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_round_trip() {
        for release in [Release::Any, Release::To("alpha".to_owned())] {
            assert_eq!(Release::parse(&release.encode()), Some(release.clone()));
            assert_eq!(Release::parse_order(&release.order()), Some(release));
        }
        for text in ["", "to:", "beta", "release"] {
            assert_eq!(Release::parse(text), None, "{text}");
        }
        assert_eq!(Release::parse_order("mark\n"), None);
        assert!(Release::Any.is_for("alpha") && Release::new(Some("alpha")).is_for("alpha"));
        assert!(!Release::new(Some("alpha")).is_for("beta"));
        assert_eq!(Release::new(Some("a b")), Release::To("a-b".to_owned()), "a name is one word");
    }
}
