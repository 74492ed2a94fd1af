//! The arguments of `hotset-rbd`.

use std::path::PathBuf;
use std::time::Duration;

use super::expected::Expected;
use super::host_name::machine_name;
use super::line::LINE_BYTES_MAX;

/// Before the claim of a first start.
const CLAIM: &str = "--claim";
/// Before the names of data that may be lost, separated by commas ([`show_mark_id`](super::show_mark_id)).
const GIVE_UP: &str = "--give-up";
/// Before the identity and the lineage that a start after a crash must continue.
const AGAIN: &str = "--again";
/// Before the take-over of a volume on standby.
const STANDBY: &str = "--standby";
/// Before the image with the flash log of this host.
const LOG: &str = "--log";
/// Before a word: undestaged data is read from the log of its host.
const READS_LOG: &str = "--reads-log";
/// First word of the order to a process on standby; words are separated by [`SEPARATOR`].
const SERVE: &str = "serve";
const SEPARATOR: char = '\t';

/// The reason for which a host that is not the last owner of an image may claim it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Claim {
    /// The image's record alone: it names no owner, or the owner has released it.
    #[default]
    Record,
    /// The owner with this token was absent for so long that the host takes over by itself.
    Absent(u64),
    /// An administrator's order, from the owner that he has seen, if he names one. The owner may be alive.
    Command {
        /// The owner's host.
        from: Option<String>,
        /// That host is known to be off: it answers nothing from its cache.
        is_fenced: bool,
    },
    /// The adoption of a volume that was refused here after this host had become the owner. A living owner stays it.
    Adoption,
    /// The state directory knows the image as the one with its log. A living owner stays the owner.
    Log,
    /// The image has the log of this host, whose volume another one takes over. Another living owner stays it.
    LogOf(String),
}

impl Claim {
    /// One word.
    pub fn encode(&self) -> String {
        match self {
            Claim::Record => "record".to_owned(),
            Claim::Absent(token) => format!("absent:{token:016x}"),
            Claim::Command { from, is_fenced } => {
                let word = if *is_fenced { "fenced" } else { "command" };
                from.as_ref().map_or_else(|| word.to_owned(), |host| format!("{word}:{host}"))
            }
            Claim::Adoption => "adoption".to_owned(),
            Claim::Log => "log".to_owned(),
            Claim::LogOf(host) => format!("log-of:{host}"),
        }
    }

    /// Parses the word; `None` if it is no claim.
    pub fn parse(word: &str) -> Option<Claim> {
        Some(match word.split_once(':') {
            Some(("absent", token)) => Claim::Absent(u64::from_str_radix(token, 16).ok()?),
            Some((word @ ("command" | "fenced"), host)) => {
                Claim::Command { from: Some(host.to_owned()), is_fenced: word == "fenced" }
            }
            Some(("log-of", host)) => Claim::LogOf(host.to_owned()),
            Some(_) => return None,
            None => match word {
                "record" => Claim::Record,
                "command" | "fenced" => Claim::Command { from: None, is_fenced: word == "fenced" },
                "adoption" => Claim::Adoption,
                "log" => Claim::Log,
                _ => return None,
            },
        })
    }
}

/// When a host on standby claims the image of an absent owner.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TakeOver {
    /// By command alone.
    #[default]
    Command,
    /// By itself, after the owner was absent for this time.
    After(Duration),
}

impl TakeOver {
    fn encode(self) -> String {
        match self {
            TakeOver::Command => "command".to_owned(),
            TakeOver::After(margin) => margin.as_millis().to_string(),
        }
    }

    fn parse(word: &str) -> Option<TakeOver> {
        match word {
            "command" => Some(TakeOver::Command),
            word => word.parse().ok().map(Duration::from_millis).map(TakeOver::After),
        }
    }
}

/// Purpose of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// Serve the image for a daemon that does not have it yet.
    First {
        /// The reason for which it may claim the image of another host.
        claim: Claim,
        /// Names of data that may be lost.
        given_up: Vec<String>,
        /// Undestaged data of another host is no obstacle if that host's log lies on an image: the daemon destages it
        /// from there, and then removes the mark.
        reads_log: bool,
    },
    /// Serve it again after a crash.
    Again {
        /// The ownership that the daemon has, which it must continue.
        expected: Expected,
        /// The daemon destages undestaged data of another host from its log.
        reads_log: bool,
    },
    /// Look at it time and again while another host owns it, without appearing among its clients.
    Standby(TakeOver),
}

/// The arguments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Invocation {
    /// Address of the image.
    pub image: String,
    /// Folder of the records of owners, one file per image.
    pub folder: PathBuf,
    /// Name of this host.
    pub host: String,
    /// The image with the flash log of this host ([`ImageSpec::place`](super::ImageSpec::place)), if it lies on one.
    pub log: Option<String>,
    /// Purpose.
    pub purpose: Purpose,
}

impl Invocation {
    /// The arguments as text.
    pub fn arguments(&self) -> Vec<String> {
        let mut arguments = vec![self.image.clone(), self.folder.to_string_lossy().into_owned(), self.host.clone()];
        arguments.extend(self.log.iter().flat_map(|log| [LOG.to_owned(), log.clone()]));
        match &self.purpose {
            Purpose::First { claim, given_up, reads_log } => {
                arguments.extend([CLAIM.to_owned(), claim.encode()]);
                arguments.extend(reads_log_arguments(*reads_log));
                if !given_up.is_empty() {
                    arguments.extend([GIVE_UP.to_owned(), given_up.join(",")]);
                }
            }
            Purpose::Again { expected, reads_log } => {
                arguments.extend([AGAIN.to_owned(), expected.identity.clone(), expected.show_lineage()]);
                arguments.extend(reads_log_arguments(*reads_log));
            }
            Purpose::Standby(take_over) => arguments.extend([STANDBY.to_owned(), take_over.encode()]),
        }
        arguments
    }

    /// The order to a process on standby to go on with these arguments, a line with its end; `None` if a line cannot
    /// contain them.
    pub fn order(&self) -> Option<String> {
        let arguments = self.arguments();
        let is_word = |argument: &String| !argument.contains([SEPARATOR, '\n']);
        let line = format!("{SERVE}{SEPARATOR}{}\n", arguments.join(&SEPARATOR.to_string()));
        (arguments.iter().all(is_word) && line.len() <= LINE_BYTES_MAX).then_some(line)
    }

    /// Parses such an order; `None` for another line.
    pub fn parse_order(line: &str) -> Option<Invocation> {
        let arguments = line.strip_prefix(SERVE)?.strip_prefix(SEPARATOR)?;
        Invocation::parse(arguments.trim_end_matches('\n').split(SEPARATOR).map(str::to_owned))
    }

    /// Parses the arguments; `None` without an address. A missing or damaged claim counts as [`Claim::Record`].
    pub fn parse(arguments: impl Iterator<Item = String>) -> Option<Invocation> {
        let arguments: Vec<String> = arguments.collect();
        let mut words = arguments.into_iter();
        let image = words.next()?;
        let folder = PathBuf::from(words.next().unwrap_or_default());
        let host = words.next().unwrap_or_else(machine_name);
        let mut purpose = Purpose::First { claim: Claim::Record, given_up: Vec::new(), reads_log: false };
        let mut log = None;
        while let Some((option, value)) = words.next().zip(words.next()) {
            match (option.as_str(), &mut purpose) {
                (CLAIM, Purpose::First { claim, .. }) => *claim = Claim::parse(&value).unwrap_or_default(),
                (GIVE_UP, Purpose::First { given_up, .. }) => {
                    *given_up = value.split(',').map(str::to_owned).collect();
                }
                (READS_LOG, Purpose::First { reads_log, .. } | Purpose::Again { reads_log, .. }) => {
                    *reads_log = value == "true";
                }
                (LOG, _) => log = Some(value),
                (AGAIN, _) => {
                    let expected = Expected::parse(&value, &words.next()?)?;
                    purpose = Purpose::Again { expected, reads_log: false };
                }
                (STANDBY, _) => purpose = Purpose::Standby(TakeOver::parse(&value)?),
                _ => return None,
            }
        }
        Some(Invocation { image, folder, host, log, purpose })
    }
}

fn reads_log_arguments(reads_log: bool) -> Vec<String> {
    if reads_log { vec![READS_LOG.to_owned(), "true".to_owned()] } else { Vec::new() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_round_trip() {
        let first = |claim, given_up: &[&str]| {
            let given_up = given_up.iter().map(|name| (*name).to_owned()).collect();
            Purpose::First { claim, given_up, reads_log: false }
        };
        let expected = Expected { identity: "rbd:f/1/a".to_owned(), lineage: 9 };
        for purpose in [
            first(Claim::Record, &[]),
            first(Claim::Absent(7), &["a", "b"]),
            first(Claim::Command { from: None, is_fenced: false }, &[]),
            first(Claim::Command { from: None, is_fenced: true }, &[]),
            first(Claim::Command { from: Some("alpha".to_owned()), is_fenced: false }, &["a"]),
            first(Claim::Command { from: Some("alpha".to_owned()), is_fenced: true }, &["a"]),
            first(Claim::Adoption, &["a"]),
            first(Claim::LogOf("alpha".to_owned()), &[]),
            Purpose::First { claim: Claim::Adoption, given_up: Vec::new(), reads_log: true },
            Purpose::Again { expected: expected.clone(), reads_log: false },
            Purpose::Again { expected: expected.clone(), reads_log: true },
            Purpose::Standby(TakeOver::Command),
            Purpose::Standby(TakeOver::After(Duration::from_secs(60))),
        ] {
            let folder = PathBuf::from("/var/lib/hotset/rbd/owners");
            let (image, host) = ("rbd:a/b".to_owned(), "alpha".to_owned());
            for log in [None, Some("a/log".to_owned())] {
                let (image, folder, host, purpose) = (image.clone(), folder.clone(), host.clone(), purpose.clone());
                let invocation = Invocation { image, folder, host, log, purpose };
                assert_eq!(Invocation::parse(invocation.arguments().into_iter()), Some(invocation.clone()));
                let order = invocation.order().expect("it fits in a line");
                assert_eq!(Invocation::parse_order(&order), Some(invocation));
            }
        }
    }

    #[test]
    fn order_that_no_line_can_contain_is_not_sent() {
        let order_in = |folder: &str| {
            let (image, host, folder) = ("rbd:a/b".to_owned(), "alpha".to_owned(), PathBuf::from(folder));
            Invocation { image, folder, host, log: None, purpose: Purpose::Standby(TakeOver::Command) }.order()
        };
        assert!(order_in("/var lib").is_some());
        for folder in ["/a\tb", "/a\nb", &"x".repeat(LINE_BYTES_MAX)] {
            assert_eq!(order_in(folder), None, "{folder}");
        }
        for line in ["serve", "mark 7", "server\trbd:a/b"] {
            assert_eq!(Invocation::parse_order(line), None, "{line}");
        }
    }

    #[test]
    fn damaged_claim_permits_nothing_beyond_the_record() {
        let words = ["rbd:a/b", "/f", "alpha", "--claim", "commandeer"].map(str::to_owned);
        let parsed = Invocation::parse(words.into_iter()).expect("an address");
        let record = Purpose::First { claim: Claim::Record, given_up: Vec::new(), reads_log: false };
        assert_eq!(parsed.purpose, record);
        assert_eq!(Invocation::parse(std::iter::empty()), None);
    }
}
