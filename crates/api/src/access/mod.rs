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

use self::secret::{Hash, Secret, hash_of, hex, is_equal};

/// Lifetime of a session.
pub const SESSION_TIME: Duration = Duration::from_secs(12 * 3600);
/// Lifetime of a log-in link.
pub const LINK_TIME: Duration = Duration::from_secs(15 * 60);
/// Name of the principal of a log-in link. A token cannot have this name.
pub const LINK_NAME: &str = "log-in link";
/// Maximum number of sessions; a further one ends the oldest.
const SESSIONS_MAX: usize = 256;
/// Maximum number of unused links; a further one drops the oldest.
const LINKS_MAX: usize = 16;
/// Maximum number of failed log-ins of an address within [`FAILURES_TIME`].
const FAILURES_MAX: u32 = 5;
/// Time after which the failures of an address are forgotten.
const FAILURES_TIME: Duration = Duration::from_secs(60);
/// Maximum number of addresses with failures. Beyond it no other address may log in until the oldest failures expire.
const ADDRESSES_MAX: usize = 256;
/// Prefix of every token, so that scanners recognise a leaked one.
const TOKEN_PREFIX: &str = "hotset_";

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
    /// Generates a random token and returns its text, which is not stored.
    pub fn generate(name: &str, role: Role) -> Result<(Token, String), String> {
        let secret = Secret::generate().map_err(|_| "the system has no random numbers".to_owned())?;
        let text = format!("{TOKEN_PREFIX}{}", secret.text());
        Ok((Token { name: name.to_owned(), role, hash: hex(&hash_of(&text)) }, text))
    }
}

/// An authenticated client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Principal {
    /// The token's name, or [`LINK_NAME`].
    pub name: String,
    /// Its role.
    pub role: Role,
}

struct Session {
    hash: Hash,
    principal: Principal,
    /// Name of the token that started it; `None` for a link.
    token: Option<String>,
    expires_at: Instant,
}

struct Link {
    hash: Hash,
    role: Role,
    expires_at: Instant,
}

#[derive(Default)]
struct AccessState {
    tokens: Vec<Token>,
    sessions: VecDeque<Session>,
    links: VecDeque<Link>,
    /// Failed log-ins by address: their number, and the time of the first.
    failures: BTreeMap<IpAddr, (u32, Instant)>,
}

/// The known tokens, sessions and links.
#[derive(Default)]
pub struct Access(Mutex<AccessState>);

impl Access {
    fn lock(&self) -> MutexGuard<'_, AccessState> {
        // No statement that can panic leaves the state inconsistent, so a poisoned lock is safe to use.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Replaces the tokens. Ends the sessions of tokens that were removed or have another role now.
    pub fn set_tokens(&self, tokens: Vec<Token>) {
        let mut state = self.lock();
        let is_known = |name: &str, role| tokens.iter().any(|token| token.name == name && token.role == role);
        state
            .sessions
            .retain(|session| session.token.as_ref().is_none_or(|name| is_known(name, session.principal.role)));
        state.tokens = tokens;
    }

    /// The client with this token.
    pub fn authenticate_token(&self, text: &str) -> Option<Principal> {
        let hash = hex(&hash_of(text));
        let state = self.lock();
        let mut matching = None;
        // Compares all tokens, so that the time does not reveal which one matches.
        for token in &state.tokens {
            let is_same = token.hash.len() == hash.len()
                && subtle::ConstantTimeEq::ct_eq(token.hash.as_bytes(), hash.as_bytes()).into();
            if is_same {
                matching = Some(Principal { name: token.name.clone(), role: token.role });
            }
        }
        matching
    }

    /// The client with this session.
    pub fn authenticate_session(&self, text: &str) -> Option<Principal> {
        let (hash, now) = (hash_of(text), Instant::now());
        let state = self.lock();
        let session = state.sessions.iter().find(|session| is_equal(&session.hash, &hash))?;
        (session.expires_at > now).then(|| session.principal.clone())
    }

    /// Creates a log-in link for one use, and returns its secret.
    pub fn make_link(&self, role: Role) -> Result<String, String> {
        let secret = Secret::generate().map_err(|_| "the system has no random numbers".to_owned())?;
        let mut state = self.lock();
        if state.links.len() >= LINKS_MAX {
            state.links.pop_front();
        }
        state.links.push_back(Link { hash: secret.hash(), role, expires_at: Instant::now() + LINK_TIME });
        Ok(secret.text().to_owned())
    }

    /// Starts a session with a token, and returns the session's secret and the client.
    pub fn log_in(&self, token: &str) -> Option<(String, Principal)> {
        let principal = self.authenticate_token(token)?;
        self.start_session(principal.clone(), Some(principal.name.clone())).map(|secret| (secret, principal))
    }

    /// Starts a session with a link, which is consumed. Returns the session's secret and the client.
    pub fn log_in_with_link(&self, text: &str) -> Option<(String, Principal)> {
        let (hash, now) = (hash_of(text), Instant::now());
        let role = {
            let mut state = self.lock();
            state.links.retain(|link| link.expires_at > now);
            let index = state.links.iter().position(|link| is_equal(&link.hash, &hash))?;
            state.links.remove(index)?.role
        };
        let principal = Principal { name: LINK_NAME.to_owned(), role };
        self.start_session(principal.clone(), None).map(|secret| (secret, principal))
    }

    fn start_session(&self, principal: Principal, token: Option<String>) -> Option<String> {
        let (secret, now) = (Secret::generate().ok()?, Instant::now());
        let mut state = self.lock();
        state.sessions.retain(|session| session.expires_at > now);
        if state.sessions.len() >= SESSIONS_MAX {
            state.sessions.pop_front();
        }
        state.sessions.push_back(Session { hash: secret.hash(), principal, token, expires_at: now + SESSION_TIME });
        Some(secret.text().to_owned())
    }

    /// Ends a session.
    pub fn end_session(&self, text: &str) {
        let hash = hash_of(text);
        self.lock().sessions.retain(|session| !is_equal(&session.hash, &hash));
    }

    /// True while the client still has access: its token exists with the same role, or it has an unexpired session. A
    /// client that used a link has no token.
    pub fn has_access(&self, principal: &Principal) -> bool {
        let (state, now) = (self.lock(), Instant::now());
        let by_token = state.tokens.iter().any(|token| token.name == principal.name && token.role == principal.role);
        by_token || state.sessions.iter().any(|session| session.principal == *principal && session.expires_at > now)
    }

    /// Seconds for which log-ins from `address` are refused; `None` when they are admitted.
    pub fn lockout_seconds(&self, address: IpAddr) -> Option<u64> {
        let now = Instant::now();
        let mut state = self.lock();
        state.failures.retain(|_, (_, since)| now.duration_since(*since) < FAILURES_TIME);
        let remaining_seconds = |since: Instant| (FAILURES_TIME - now.duration_since(since)).as_secs() + 1;
        match state.failures.get(&address) {
            Some((count, since)) if *count >= FAILURES_MAX => Some(remaining_seconds(*since)),
            Some(_) => None,
            None if state.failures.len() >= ADDRESSES_MAX => Some(FAILURES_TIME.as_secs()),
            None => None,
        }
    }

    /// Records a failed log-in from `address`.
    pub fn record_failure(&self, address: IpAddr) {
        let mut state = self.lock();
        state.failures.entry(address).or_insert((0, Instant::now())).0 += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn access() -> (Access, String) {
        let (token, text) = Token::generate("ops", Role::Operate).expect("random");
        let access = Access::default();
        access.set_tokens(vec![token]);
        (access, text)
    }

    #[test]
    fn token_is_matched_by_its_text_and_stored_as_its_hash() {
        let (access, text) = access();
        assert_eq!(access.authenticate_token(&text), Some(Principal { name: "ops".to_owned(), role: Role::Operate }));
        let stored_hash = access.lock().tokens[0].hash.clone();
        assert!(!text.contains(&stored_hash));
        for wrong in ["", "ops", &stored_hash, &text[..text.len() - 1], &format!("{text} ")] {
            assert_eq!(access.authenticate_token(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn session_ends_with_its_token() {
        let (access, text) = access();
        let (session, _) = access.log_in(&text).expect("the token is known");
        assert!(access.authenticate_session(&session).is_some());
        assert!(access.authenticate_token(&session).is_none() && access.authenticate_session(&text).is_none());
        access.set_tokens(Vec::new());
        assert!(access.authenticate_session(&session).is_none());
    }

    #[test]
    fn link_logs_in_once() {
        let access = Access::default();
        let link = access.make_link(Role::Administer).expect("random");
        let (session, principal) = access.log_in_with_link(&link).expect("the link is unused");
        assert_eq!(
            (access.authenticate_session(&session), principal.role),
            (Some(principal.clone()), Role::Administer)
        );
        assert!(access.log_in_with_link(&link).is_none());
    }

    #[test]
    fn failed_log_ins_lock_out_only_their_address() {
        let access = Access::default();
        let (first, second) = (IpAddr::from([10, 0, 0, 1]), IpAddr::from([10, 0, 0, 2]));
        for _ in 0..FAILURES_MAX {
            assert_eq!(access.lockout_seconds(first), None);
            access.record_failure(first);
        }
        assert!(access.lockout_seconds(first).is_some_and(|seconds| seconds <= 60));
        assert_eq!(access.lockout_seconds(second), None);
    }

    #[test]
    fn sessions_links_and_failures_are_bounded() {
        let (access, text) = access();
        let first = access.log_in(&text).expect("the token is known").0;
        for number in 0..2 * SESSIONS_MAX {
            access.log_in(&text).expect("the token is known");
            access.make_link(Role::Read).expect("random");
            let address = IpAddr::from([10, 0, (number / 256) as u8, number as u8]);
            if access.lockout_seconds(address).is_none() {
                access.record_failure(address);
            }
        }
        assert!(access.authenticate_session(&first).is_none());
        let state = access.lock();
        let lengths = (state.sessions.len(), state.links.len(), state.failures.len());
        assert_eq!(lengths, (SESSIONS_MAX, LINKS_MAX, ADDRESSES_MAX));
    }
}
