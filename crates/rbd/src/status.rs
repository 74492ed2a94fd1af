//! Messages from `hotset-rbd` to the daemon: one line of text each, on the control channel.

/// Longest line, in bytes.
pub const LINE_BYTES_MAX: usize = 4096;

/// A message about the image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Status {
    /// The opening goes on; the text names the step.
    Progress(String),
    /// The exclusive lock is about to be acquired under this address of a RADOS client.
    Claiming(String),
    /// The image is open and its exclusive lock acquired.
    Ready {
        /// The identity of the image: the cluster's fsid, the pool's number and the image's ID.
        identity: String,
        /// The owner of the lock: the address of this process as a RADOS client.
        owner: String,
    },
    /// Another client has the exclusive lock; the process ends.
    Busy(String),
    /// The image cannot be opened; the process ends.
    Failed(String),
    /// The exclusive lock is lost. All requests fail from now on.
    Lost(String),
}

impl Status {
    /// The message as a line, without its end.
    pub fn encode(&self) -> String {
        let line = match self {
            Status::Progress(text) => format!("progress {text}"),
            Status::Claiming(owner) => format!("claiming {owner}"),
            Status::Ready { identity, owner } => format!("ready {identity} {owner}"),
            Status::Busy(text) => format!("busy {text}"),
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
            "claiming" => Status::Claiming(text),
            "ready" => {
                let (identity, owner) = text.split_once(' ')?;
                Status::Ready { identity: identity.to_owned(), owner: owner.to_owned() }
            }
            "busy" => Status::Busy(text),
            "failed" => Status::Failed(text),
            "lost" => Status::Lost(text),
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_round_trip() {
        let text = || "the pool is missing".to_owned();
        for status in [
            Status::Progress(text()),
            Status::Claiming("127.0.0.1:0/7".to_owned()),
            Status::Ready { identity: "rbd:f/1/a".to_owned(), owner: "127.0.0.1:0/7".to_owned() },
            Status::Busy(text()),
            Status::Failed(text()),
            Status::Lost(text()),
        ] {
            assert_eq!(Status::parse(&status.encode()), Some(status));
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
