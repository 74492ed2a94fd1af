//! The mark of an image that lacks flushed writes which another host may have.

/// The mark.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mark {
    /// Identifies the mark, and the data.
    pub id: u64,
    /// The name of the host.
    pub host: String,
    /// The image with the host's flash log ([`ImageSpec::place`](super::ImageSpec::place)), if the log lies on one.
    pub log: Option<String>,
}

impl Mark {
    /// The mark without its ID: words after it on a line, or in a metadata value.
    pub fn encode_place(&self) -> String {
        let Mark { id: _, host, log } = self;
        log.as_ref().map_or_else(|| host.clone(), |log| format!("{host} {log}"))
    }

    /// The mark with that ID and the words of [`Mark::encode_place`].
    pub fn parse(id: u64, place: &str) -> Mark {
        let (host, log) = place.split_once(' ').map_or((place, None), |(host, log)| (host, Some(log)));
        Mark { id, host: host.to_owned(), log: log.map(str::to_owned) }
    }
}

/// The name of the data of the mark with this ID.
pub fn show_mark_id(id: u64) -> String {
    format!("{id:016x}")
}

/// Parses the name of the data of a mark.
pub fn parse_mark_id(text: &str) -> Option<u64> {
    u64::from_str_radix(text, 16).ok()
}
