//! Who asks for an action: a user of this machine, or a token of the HTTP interface.

use std::net::IpAddr;

use crate::users;

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
                let list = users::read().unwrap_or_default();
                let name = users::name_of(&list, *uid);
                Some(name.map_or_else(|| format!("uid {uid}"), |name| format!("user {name}")))
            }
            Actor::Web { who, from } => Some(format!("{who} from {from}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_are_told_by_name_and_tokens_with_where_they_came_from() {
        assert_eq!(Actor::User(0).show().as_deref(), Some("user root"));
        let web = Actor::Web { who: "token ops".to_owned(), from: IpAddr::from([10, 0, 0, 5]) };
        assert_eq!(web.show().as_deref(), Some("token ops from 10.0.0.5"));
        assert_eq!(Actor::User(u32::MAX - 7).show(), Some(format!("uid {}", u32::MAX - 7)));
        assert_eq!(Actor::Unknown.show(), None);
    }
}
