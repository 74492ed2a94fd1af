//! Tokens of the HTTP interface: creation, list and revocation. The state directory keeps only their hashes.

use std::time::SystemTime;

use messages::token::{LoginLink, TokenCreated, TokenReport};
use messages::{Answer, ErrorKind, Failure, Role};

use super::HttpInterface;
use logging::{self as log, API};
use state::TokenRecord;

/// Maximum number of tokens.
const TOKENS_MAX: usize = 256;
/// Maximum length of a name in characters.
const NAME_MAX: usize = 64;

impl HttpInterface {
    /// `token create`.
    pub fn create_token(&self, name: &str, role: Role) -> Result<Answer, Failure> {
        let is_permitted = |c: char| c.is_ascii_alphanumeric() || "-_.@".contains(c);
        // A client would resolve `.` and `..` in the path of a request, so no request could revoke such a token.
        let is_dot_segment = matches!(name, "." | "..");
        if name.is_empty() || name.len() > NAME_MAX || is_dot_segment || !name.chars().all(is_permitted) {
            let text =
                format!("\"{name}\" is not a valid token name; use up to {NAME_MAX} letters, digits and - _ . @");
            return Err(Failure::new(ErrorKind::Invalid, text));
        }
        let count = self.records.view().tokens.len();
        if self.tokens().iter().any(|token| token.name == name) {
            let text = format!("a token \"{name}\" already exists; revoke it first, or choose another name");
            return Err(Failure::new(ErrorKind::Conflict, text));
        }
        if count >= TOKENS_MAX {
            let text = format!("there are {count} tokens, the maximum; revoke one first");
            return Err(Failure::new(ErrorKind::Conflict, text));
        }
        let (drawn, token) =
            api::Token::generate(name, role).map_err(|error| Failure::new(ErrorKind::Failed, error))?;
        // A clock before 1970 yields 0.
        let created = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
        let record = TokenRecord { name: drawn.name, role, hash: drawn.hash, created };
        self.records.change(|state| state.tokens.push(record))?;
        self.update_tokens();
        log::info!(target: API, token = name, "token {name} ({role}) was created");
        Ok(Answer::TokenCreated(TokenCreated { name: name.to_owned(), role, token }))
    }

    /// `token list`.
    pub fn tokens(&self) -> Vec<TokenReport> {
        let state = self.records.view();
        let report = |token: &TokenRecord| TokenReport {
            name: token.name.clone(),
            role: token.role,
            created_unix_seconds: token.created,
        };
        state.tokens.iter().map(report).collect()
    }

    /// `token revoke`.
    pub fn revoke_token(&self, name: &str) -> Result<Answer, Failure> {
        if !self.tokens().iter().any(|token| token.name == name) {
            let text = format!("there is no token \"{name}\"; `hotset token list` shows them");
            return Err(Failure::new(ErrorKind::NotFound, text));
        }
        self.records.change(|state| state.tokens.retain(|token| token.name != name))?;
        self.update_tokens();
        let text = format!("token {name} was revoked, and its sessions ended");
        log::info!(target: API, token = name, "{text}");
        Ok(Answer::Said(vec![text]))
    }

    /// `token link`.
    pub fn login_link(&self, role: Role) -> Result<Answer, Failure> {
        let Some(address) = self.address.get() else {
            let text = "no HTTP interface is configured; add [api] listen = \"127.0.0.1:7400\" and restart";
            return Err(Failure::new(ErrorKind::Conflict, text));
        };
        let key = self.access.make_link(role).map_err(|error| Failure::new(ErrorKind::Failed, error))?;
        // A listener on all addresses is reached by loopback on this machine.
        let host = match address.ip().is_unspecified() {
            true => format!("localhost:{}", address.port()),
            false => address.to_string(),
        };
        let scheme = if self.certificates.has_api() { "https" } else { "http" };
        let page = format!("{scheme}://{host}/");
        log::info!(target: API, "a login link ({role}) was created by command");
        let link = format!("{page}login?key={key}");
        Ok(Answer::Link(LoginLink { page, link, valid_seconds: api::LINK_TIME.as_secs() }))
    }

    /// Sends the tokens to the HTTP interface.
    pub(super) fn update_tokens(&self) {
        let state = self.records.view();
        let token = |record: &TokenRecord| api::Token {
            name: record.name.clone(),
            role: record.role,
            hash: record.hash.clone(),
        };
        self.access.set_tokens(state.tokens.iter().map(token).collect());
    }
}
