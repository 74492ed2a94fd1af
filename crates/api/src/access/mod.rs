//! Access control: tokens, sessions of browsers, log-in links.
//!
//! All state is in memory and bounded. The daemon keeps tokens in the state directory and passes them in after a start.

pub mod host;
pub mod rules;
mod secret;

use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use messages::Role;

use self::secret::{Hash, Secret, hash_of, hex, same};

/// How long a browser stays logged in.
pub const SESSION_TIME: Duration = Duration::from_secs(12 * 3600);
/// How long a link can be used.
pub const LINK_TIME: Duration = Duration::from_secs(15 * 60);
/// Name of a session that was begun with a link. No token can have it.
pub const LINK_NAME: &str = "log-in link";
/// Sessions at once. One more ends the oldest.
const SESSIONS_MAX: usize = 256;
/// Unused links at once. One more drops the oldest.
const LINKS_MAX: usize = 16;
/// Failed log-ins that an address may have within [`FAILURES_TIME`].
const FAILURES_MAX: u32 = 5;
/// Time after which the failures of an address are forgotten.
const FAILURES_TIME: Duration = Duration::from_secs(60);
/// Addresses with failures at once. Past it no other address may log in until the oldest failures are forgotten.
const ADDRESSES_MAX: usize = 256;
/// Prefix of every token, so that scanners recognise a leaked one.
const PREFIX: &str = "hotset_";

/// A token as it is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Token {
    /// Its name.
    pub name: String,
    /// The actions it permits.
    pub role: Role,
    /// SHA-256 of its text, hexadecimal.
    pub hash: String,
}

impl Token {
    /// Draws a token and returns its text, which is not stored.
    pub fn draw(name: &str, role: Role) -> Result<(Token, String), String> {
        let secret = Secret::draw().map_err(|_| "the system gives no random numbers".to_owned())?;
        let text = format!("{PREFIX}{}", secret.text());
        Ok((Token { name: name.to_owned(), role, hash: hex(&hash_of(&text)) }, text))
    }
}

/// An authenticated client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Who {
    /// The token's name, or [`LINK_NAME`].
    pub name: String,
    /// Its role.
    pub role: Role,
}

struct Session {
    hash: Hash,
    who: Who,
    /// Name of the token that began it; `None` for a link.
    token: Option<String>,
    ends: Instant,
}

struct Link {
    hash: Hash,
    role: Role,
    ends: Instant,
}

#[derive(Default)]
struct Held {
    tokens: Vec<Token>,
    sessions: VecDeque<Session>,
    links: VecDeque<Link>,
    failures: BTreeMap<IpAddr, (u32, Instant)>,
}

/// The known tokens, sessions and links.
#[derive(Default)]
pub struct Access(Mutex<Held>);

impl Access {
    fn held(&self) -> MutexGuard<'_, Held> {
        // No statement that can panic leaves the state inconsistent, so a poisoned lock is safe to use.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Replaces the tokens. Sessions of a token that is gone, or whose role has changed, end.
    pub fn set_tokens(&self, tokens: Vec<Token>) {
        let mut held = self.held();
        let is_known = |name: &str, role| tokens.iter().any(|token| token.name == name && token.role == role);
        held.sessions.retain(|session| session.token.as_ref().is_none_or(|name| is_known(name, session.who.role)));
        held.tokens = tokens;
    }

    /// The client with this token.
    pub fn of_token(&self, text: &str) -> Option<Who> {
        let hash = hex(&hash_of(text));
        let held = self.held();
        let mut found = None;
        // Compares all tokens, so that the time does not reveal which one matches.
        for token in &held.tokens {
            let is_same = token.hash.len() == hash.len()
                && subtle::ConstantTimeEq::ct_eq(token.hash.as_bytes(), hash.as_bytes()).into();
            if is_same {
                found = Some(Who { name: token.name.clone(), role: token.role });
            }
        }
        found
    }

    /// The client with this session.
    pub fn of_session(&self, text: &str) -> Option<Who> {
        let (hash, now) = (hash_of(text), Instant::now());
        let held = self.held();
        let session = held.sessions.iter().find(|session| same(&session.hash, &hash))?;
        (session.ends > now).then(|| session.who.clone())
    }

    /// Makes a link that logs a browser in once, and returns its secret.
    pub fn make_link(&self, role: Role) -> Result<String, String> {
        let secret = Secret::draw().map_err(|_| "the system gives no random numbers".to_owned())?;
        let mut held = self.held();
        if held.links.len() >= LINKS_MAX {
            held.links.pop_front();
        }
        held.links.push_back(Link { hash: secret.hash(), role, ends: Instant::now() + LINK_TIME });
        Ok(secret.text().to_owned())
    }

    /// Begins a session with a token, and returns the session's secret and the client.
    pub fn begin(&self, token: &str) -> Option<(String, Who)> {
        let who = self.of_token(token)?;
        self.begin_as(who.clone(), Some(who.name.clone())).map(|secret| (secret, who))
    }

    /// Begins a session with a link and uses the link up. Returns the session's secret and the client.
    pub fn begin_with_link(&self, text: &str) -> Option<(String, Who)> {
        let (hash, now) = (hash_of(text), Instant::now());
        let role = {
            let mut held = self.held();
            held.links.retain(|link| link.ends > now);
            let at = held.links.iter().position(|link| same(&link.hash, &hash))?;
            held.links.remove(at)?.role
        };
        let who = Who { name: LINK_NAME.to_owned(), role };
        self.begin_as(who.clone(), None).map(|secret| (secret, who))
    }

    fn begin_as(&self, who: Who, token: Option<String>) -> Option<String> {
        let (secret, now) = (Secret::draw().ok()?, Instant::now());
        let mut held = self.held();
        held.sessions.retain(|session| session.ends > now);
        if held.sessions.len() >= SESSIONS_MAX {
            held.sessions.pop_front();
        }
        held.sessions.push_back(Session { hash: secret.hash(), who, token, ends: now + SESSION_TIME });
        Some(secret.text().to_owned())
    }

    /// Ends a session.
    pub fn end(&self, text: &str) {
        let hash = hash_of(text);
        self.held().sessions.retain(|session| !same(&session.hash, &hash));
    }

    /// True while the client still has access: its token exists with the same role, or one of its sessions goes on. A
    /// client of a link has no token.
    pub fn still_knows(&self, who: &Who) -> bool {
        let (held, now) = (self.held(), Instant::now());
        let by_token = held.tokens.iter().any(|token| token.name == who.name && token.role == who.role);
        by_token || held.sessions.iter().any(|session| session.who == *who && session.ends > now)
    }

    /// Seconds for which log-ins from `address` are refused; `None` when they are admitted.
    pub fn locked_out(&self, address: IpAddr) -> Option<u64> {
        let now = Instant::now();
        let mut held = self.held();
        held.failures.retain(|_, (_, since)| now.duration_since(*since) < FAILURES_TIME);
        let left = |since: Instant| (FAILURES_TIME - now.duration_since(since)).as_secs() + 1;
        match held.failures.get(&address) {
            Some((count, since)) if *count >= FAILURES_MAX => Some(left(*since)),
            Some(_) => None,
            None if held.failures.len() >= ADDRESSES_MAX => Some(FAILURES_TIME.as_secs()),
            None => None,
        }
    }

    /// Records a failed log-in from `address`.
    pub fn note_failure(&self, address: IpAddr) {
        let mut held = self.held();
        held.failures.entry(address).or_insert((0, Instant::now())).0 += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn access() -> (Access, String) {
        let (token, text) = Token::draw("ops", Role::Operate).expect("random");
        let access = Access::default();
        access.set_tokens(vec![token]);
        (access, text)
    }

    #[test]
    fn token_is_matched_by_its_text_and_stored_as_its_hash() {
        let (access, text) = access();
        assert_eq!(access.of_token(&text), Some(Who { name: "ops".to_owned(), role: Role::Operate }));
        let kept = access.held().tokens[0].hash.clone();
        assert!(!text.contains(&kept));
        for wrong in ["", "ops", &kept, &text[..text.len() - 1], &format!("{text} ")] {
            assert_eq!(access.of_token(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn session_ends_with_its_token() {
        let (access, text) = access();
        let (session, _) = access.begin(&text).expect("the token is known");
        assert!(access.of_session(&session).is_some());
        assert!(access.of_token(&session).is_none() && access.of_session(&text).is_none());
        access.set_tokens(Vec::new());
        assert!(access.of_session(&session).is_none());
    }

    #[test]
    fn link_logs_in_once() {
        let access = Access::default();
        let link = access.make_link(Role::Administer).expect("random");
        let (session, who) = access.begin_with_link(&link).expect("it is new");
        assert_eq!((access.of_session(&session), who.role), (Some(who.clone()), Role::Administer));
        assert!(access.begin_with_link(&link).is_none());
    }

    #[test]
    fn failed_log_ins_lock_out_their_address_alone() {
        let access = Access::default();
        let (one, other) = (IpAddr::from([10, 0, 0, 1]), IpAddr::from([10, 0, 0, 2]));
        for _ in 0..FAILURES_MAX {
            assert_eq!(access.locked_out(one), None);
            access.note_failure(one);
        }
        assert!(access.locked_out(one).is_some_and(|seconds| seconds <= 60));
        assert_eq!(access.locked_out(other), None);
    }

    #[test]
    fn sessions_links_and_failures_are_bounded() {
        let (access, text) = access();
        let first = access.begin(&text).expect("known").0;
        for number in 0..2 * SESSIONS_MAX {
            access.begin(&text).expect("known");
            access.make_link(Role::Read).expect("random");
            let address = IpAddr::from([10, 0, (number / 256) as u8, number as u8]);
            if access.locked_out(address).is_none() {
                access.note_failure(address);
            }
        }
        assert!(access.of_session(&first).is_none());
        let held = access.held();
        let lengths = (held.sessions.len(), held.links.len(), held.failures.len());
        assert_eq!(lengths, (SESSIONS_MAX, LINKS_MAX, ADDRESSES_MAX));
    }
}
