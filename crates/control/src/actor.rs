//! The actor of a request: a user of this machine, a token of the HTTP interface, or another host of the fleet.

use std::net::IpAddr;

use crate::users;

/// The actor of a request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Actor {
    /// Unknown: a query without a token.
    #[default]
    Unknown,
    /// Through the control socket: the user's ID, as the kernel reports it.
    User(u32),
    /// Through the HTTP interface.
    Web {
        /// `token NAME`, or another description of the client.
        name: String,
        /// The other end of the connection.
        from: IpAddr,
    },
    /// Through the link between hosts: the host's name, as its certificate proves it.
    Host(String),
}

impl Actor {
    /// Display text; `None` for an unknown actor. Reads the list of users, so it is for rare use.
    pub fn show(&self) -> Option<String> {
        match self {
            Actor::Unknown => None,
            Actor::User(uid) => {
                let list = users::read().unwrap_or_default();
                let name = users::name_of(&list, *uid);
                Some(name.map_or_else(|| format!("uid {uid}"), |name| format!("user {name}")))
            }
            Actor::Web { name, from } => Some(format!("{name} from {from}")),
            Actor::Host(host) => Some(format!("host {host}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_are_shown_by_name_and_tokens_with_their_address() {
        assert_eq!(Actor::User(0).show().as_deref(), Some("user root"));
        let web = Actor::Web { name: "token ops".to_owned(), from: IpAddr::from([10, 0, 0, 5]) };
        assert_eq!(web.show().as_deref(), Some("token ops from 10.0.0.5"));
        assert_eq!(Actor::User(u32::MAX - 7).show(), Some(format!("uid {}", u32::MAX - 7)));
        assert_eq!(Actor::Unknown.show(), None);
    }
}
