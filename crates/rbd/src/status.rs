//! Messages from `hotset-rbd` to the daemon: one line of text each, on the control channel.

use super::expected::Expected;
use super::line::LINE_BYTES_MAX;
use super::mark::{Mark, parse_mark_id, show_mark_id};
use super::standby_report::StandbyReport;

/// The ownership of an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ownership {
    /// The image, and the lineage of the ownership.
    pub image: Expected,
    /// When the last check that proves it began, in milliseconds of this boot ([`crate::boot_ms`]).
    pub proven_ms: u64,
    /// The mark of another host whose data was given up; `None` if there was no mark.
    pub given_up: Option<u64>,
    /// Number of the ownership among those of the image.
    pub epoch: u64,
    /// All data that this host had marked as undestaged before is in the image: another host has destaged it.
    pub is_destaged: bool,
    /// Version of the image's header when its release was found, if no other client can have written since: the former
    /// owner proves with it that the release was its own.
    pub released_version: Option<u64>,
    /// Why another lineage ended with this one; empty if this is the first one.
    pub reason: String,
}

/// In place of a number.
const NONE: &str = "-";

impl Ownership {
    /// The ownership as words.
    fn encode(&self) -> String {
        let Ownership { image, proven_ms, given_up, epoch, is_destaged, released_version, reason } = self;
        let (identity, lineage) = (&image.identity, image.show_lineage());
        let given_up = given_up.map_or_else(|| NONE.to_owned(), show_mark_id);
        let released = show_version(*released_version);
        format!("{identity} {lineage} {proven_ms} {given_up} {epoch} {is_destaged} {released} {reason}")
    }

    fn parse(text: &str) -> Option<Ownership> {
        let mut words = text.splitn(8, ' ');
        let image = Expected::parse(words.next()?, words.next()?)?;
        let proven_ms = words.next()?.parse().ok()?;
        let given_up = match words.next()? {
            NONE => None,
            id => Some(parse_mark_id(id)?),
        };
        let epoch = words.next()?.parse().ok()?;
        let is_destaged = words.next()?.parse().ok()?;
        let released_version = parse_version(words.next()?)?;
        let reason = words.next().unwrap_or("").to_owned();
        Some(Ownership { image, proven_ms, given_up, epoch, is_destaged, released_version, reason })
    }
}

fn show_version(version: Option<u64>) -> String {
    version.map_or_else(|| NONE.to_owned(), |version| version.to_string())
}

fn parse_version(word: &str) -> Option<Option<u64>> {
    match word {
        NONE => Some(None),
        version => Some(Some(version.parse().ok()?)),
    }
}

/// A message about the image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Status {
    /// The opening goes on; the text names the step.
    Progress(String),
    /// The image is open and its exclusive lock acquired.
    Ready(Ownership),
    /// Another client has the exclusive lock; the process ends.
    Busy(String),
    /// The image cannot be opened; the process ends.
    Failed(String),
    /// A check that began at this time, in milliseconds of this boot, has proven the ownership again.
    Renewed(u64),
    /// The order with this number was carried out: the image was marked as lacking flushed writes, or the mark was
    /// removed.
    Marked(u64),
    /// The order with this number failed, for this reason.
    NotMarked(u64, String),
    /// The image has a mark of another host; the process ends.
    Undestaged(Mark),
    /// The image, which will be open, has a mark of another host, from whose log the daemon destages the data first.
    LogToRead(Mark),
    /// Another host owns the image; a process that was to serve it ends.
    Standby(StandbyReport),
    /// The image was released for a move, which gave its header this version if it is known; the process ends.
    Released(Option<u64>),
    /// It was not, for this reason; the process ends.
    NotReleased(String),
    /// The exclusive lock is lost. All requests fail from now on.
    Lost(String),
}

impl Status {
    /// The message as a line, without its end.
    pub fn encode(&self) -> String {
        let line = match self {
            Status::Progress(text) => format!("progress {text}"),
            Status::Ready(ownership) => format!("ready {}", ownership.encode()),
            Status::Renewed(proven_ms) => format!("renewed {proven_ms}"),
            Status::Busy(text) => format!("busy {text}"),
            Status::Marked(number) => format!("marked {number}"),
            Status::NotMarked(number, text) => format!("not-marked {number} {text}"),
            Status::Undestaged(mark) => format!("undestaged {} {}", show_mark_id(mark.id), mark.encode_place()),
            Status::LogToRead(mark) => format!("log-to-read {} {}", show_mark_id(mark.id), mark.encode_place()),
            Status::Standby(report) => format!("standby {}", report.encode()),
            Status::Released(version) => format!("released {}", show_version(*version)),
            Status::NotReleased(text) => format!("not-released {text}"),
            Status::Failed(text) => format!("failed {text}"),
            Status::Lost(text) => format!("lost {text}"),
        };
        let line = line.replace(char::is_control, " ");
        line[..line.floor_char_boundary(LINE_BYTES_MAX - 1)].to_owned()
    }

    /// Parses a line; `None` if it is no message.
    pub fn parse(line: &str) -> Option<Status> {
        let (kind, text) = line.split_once(' ')?;
        let text = text.to_owned();
        Some(match kind {
            "progress" => Status::Progress(text),
            "ready" => Status::Ready(Ownership::parse(&text)?),
            "renewed" => Status::Renewed(text.parse().ok()?),
            "busy" => Status::Busy(text),
            "marked" => Status::Marked(text.parse().ok()?),
            "not-marked" => {
                let (number, text) = text.split_once(' ')?;
                Status::NotMarked(number.parse().ok()?, text.to_owned())
            }
            "undestaged" => Status::Undestaged(parse_mark(&text)?),
            "log-to-read" => Status::LogToRead(parse_mark(&text)?),
            "standby" => Status::Standby(StandbyReport::parse(&text)?),
            "released" => Status::Released(parse_version(&text)?),
            "not-released" => Status::NotReleased(text),
            "failed" => Status::Failed(text),
            "lost" => Status::Lost(text),
            _ => return None,
        })
    }
}

fn parse_mark(text: &str) -> Option<Mark> {
    let (id, place) = text.split_once(' ')?;
    Some(Mark::parse(parse_mark_id(id)?, place))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_round_trip() {
        let text = || "the pool is missing".to_owned();
        let image = Expected { identity: "rbd:f/1/a".to_owned(), lineage: 7 };
        assert_eq!(Expected::parse(&image.identity, &image.show_lineage()), Some(image.clone()));
        assert_eq!(image.image_id(), Some("a"));
        let ownership = Ownership {
            image,
            proven_ms: 5,
            given_up: None,
            epoch: 4,
            is_destaged: false,
            released_version: None,
            reason: text(),
        };
        let mark = Mark::parse(9, "alpha vms/ns/log");
        let report =
            StandbyReport::parse("3 true any record rbd:fsid/2/web alpha 0000000000000009 beta").expect("a report");
        for status in [
            Status::Progress(text()),
            Status::Ready(Ownership { reason: String::new(), ..ownership.clone() }),
            Status::Ready(Ownership { given_up: Some(9), is_destaged: true, released_version: Some(6), ..ownership }),
            Status::LogToRead(mark.clone()),
            Status::Undestaged(Mark { log: None, ..mark.clone() }),
            Status::Standby(report),
            Status::Released(Some(7)),
            Status::Released(None),
            Status::NotReleased(text()),
            Status::Renewed(8),
            Status::Busy(text()),
            Status::Marked(7),
            Status::NotMarked(8, text()),
            Status::Undestaged(mark),
            Status::Failed(text()),
            Status::Lost(text()),
        ] {
            // The receiver removes white space at the end of a line.
            assert_eq!(Status::parse(status.encode().trim_end()), Some(status));
        }
        assert_eq!(Status::parse("ready x"), None);
        assert_eq!(Status::parse("hello world"), None);
    }

    #[test]
    fn text_of_another_program_stays_one_short_line() {
        let line = Status::Failed(format!("a\nb{}", "ä".repeat(LINE_BYTES_MAX))).encode();
        assert!(line.starts_with("failed a b") && line.len() < LINE_BYTES_MAX && !line.contains('\n'));
    }
}
