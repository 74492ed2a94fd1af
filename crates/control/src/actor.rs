//! Who asks for an action: a user of this machine, or a token of the HTTP interface.

use std::net::IpAddr;

/// Users of this machine, by number.
const USERS: &str = "/etc/passwd";

/// Who asks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Actor {
    /// Nobody that is known: who may look without a token.
    #[default]
    Unknown,
    /// Through the control socket: the user's number, as the kernel tells it.
    User(u32),
    /// Through the HTTP interface.
    Web {
        /// `token NAME`, or what else stands for who asks.
        who: String,
        /// The other end of the connection.
        from: IpAddr,
    },
}

impl Actor {
    /// For people; none where nobody is known. Looks a user's name up, so it is for what happens seldom.
    pub fn show(&self) -> Option<String> {
        match self {
            Actor::Unknown => None,
            Actor::User(uid) => {
                let users = std::fs::read_to_string(USERS).unwrap_or_default();
                let name = name_of(&users, *uid);
                Some(name.map_or_else(|| format!("uid {uid}"), |name| format!("user {name}")))
            }
            Actor::Web { who, from } => Some(format!("{who} from {from}")),
        }
    }
}

/// Users of other directories than the machine's own have no name here.
fn name_of(users: &str, uid: u32) -> Option<&str> {
    users.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1)?.parse() == Ok(uid)).then_some(name)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_are_told_by_name_and_tokens_with_where_they_came_from() {
        let users = "root:x:0:0:root:/root:/bin/sh\nbroken\nweb:x:33:33::/:/bin/false\n";
        assert_eq!((name_of(users, 33), name_of(users, 0), name_of(users, 7)), (Some("web"), Some("root"), None));
        let web = Actor::Web { who: "token ops".to_owned(), from: IpAddr::from([10, 0, 0, 5]) };
        assert_eq!(web.show().as_deref(), Some("token ops from 10.0.0.5"));
        assert_eq!(Actor::User(u32::MAX - 7).show(), Some(format!("uid {}", u32::MAX - 7)));
        assert_eq!(Actor::Unknown.show(), None);
    }
}
