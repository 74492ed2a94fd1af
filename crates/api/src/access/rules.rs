//! The access rules. A request is permitted, with its principal if that is known, or refused with a reason.
//!
//! 1. The `Host` is loopback or one of `[api] names`, on every connection.
//! 2. A connection from loopback may read without a token if its `Host` is also loopback and no header says that it
//!    was forwarded. A reverse proxy on this machine connects from loopback on behalf of remote clients. The list of
//!    tokens is the exception: only administrators read it.
//! 3. All other requests need a token or a session. A change always needs one whose role permits it.
//! 4. Browsers send a session's cookie unasked (CSRF), so a change with a cookie must come from this server's own page.
//! 5. An unknown token is refused even where none is needed, because its client expects to be authenticated.

use std::net::SocketAddr;

use axum::http::request::Parts;
use axum::http::{HeaderMap, Method, StatusCode, header};
use messages::Role;

use super::host::{is_own_name, is_own_origin};
use super::{Access, Principal};
use crate::problem::Problem;

/// Name of the session's cookie.
pub const SESSION_COOKIE: &str = "hotset_session";
/// Headers with which proxies and load balancers mark a forwarded request, besides all that begin with
/// [`FORWARDING_PREFIX`].
const FORWARDING_HEADERS: [&str; 15] = [
    "cf-connecting-ip",
    "client-ip",
    "cluster-client-ip",
    "fastly-client-ip",
    "forwarded",
    "proxy-connection",
    "true-client-ip",
    "via",
    "x-client-ip",
    "x-cluster-client-ip",
    "x-envoy-external-address",
    "x-original-forwarded-for",
    "x-original-host",
    "x-proxyuser-ip",
    "x-real-ip",
];
/// Prefix of most headers that mark a forwarded request.
const FORWARDING_PREFIX: &str = "x-forwarded";

/// The routes for logging in, which need no token.
pub const LOGIN_ROUTES: [(Method, &str); 2] = [(Method::POST, "/api/v1/login"), (Method::GET, "/login")];

/// Whether `method` changes nothing.
pub fn is_safe(method: &Method) -> bool {
    method == Method::GET || method == Method::HEAD
}

/// Whether this is a file of the web console. It needs no token: it contains the log-in form and no data of this
/// daemon.
fn is_page(method: &Method, path: &str) -> bool {
    is_safe(method) && (path == "/" || path.starts_with("/assets/"))
}

/// Whether this is the list of tokens, or a path below it.
fn is_tokens(path: &str) -> bool {
    path.strip_prefix("/api/v1/tokens").is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// The role that a request needs; `None` for a log-in or the web console. A request that is not listed needs
/// [`Role::Administer`].
pub fn required_role(method: &Method, path: &str) -> Option<Role> {
    if LOGIN_ROUTES.contains(&(method.clone(), path)) || is_page(method, path) {
        return None;
    }
    if is_safe(method) && !is_tokens(path) {
        return Some(Role::Read);
    }
    let parts: Vec<&str> = path.split('/').skip(1).collect();
    Some(match (method.as_str(), parts.as_slice()) {
        ("POST", ["api", "v1", "logout"]) => Role::Read,
        ("PATCH", ["api", "v1", "volumes", _]) => Role::Operate,
        ("POST", ["api", "v1", "volumes", _, "flush" | "pause" | "freeze" | "resume" | "pin" | "unpin"]) => {
            Role::Operate
        }
        ("POST", ["api", "v1", "volumes", _, "move" | "take-over"] | ["api", "v1", "fleet", "drain" | "take-over"]) => {
            Role::Operate
        }
        ("POST", ["api", "v1", "pools", _, "relocate" | "pause" | "resume"]) => Role::Operate,
        ("POST", ["api", "v1", "alerts", _, "acknowledge" | "silence"]) => Role::Operate,
        ("DELETE", ["api", "v1", "alerts", _, "silence"]) => Role::Operate,
        // The role that may start a flush may cancel it.
        ("DELETE", ["api", "v1", "jobs", id]) if id.starts_with("flush-") => Role::Operate,
        _ => Role::Administer,
    })
}

/// Names of this server, and whether it uses TLS.
#[derive(Clone, Copy, Debug)]
pub struct ServerIdentity<'a> {
    /// Host names besides loopback's.
    pub names: &'a [String],
    /// Connections are encrypted.
    pub is_tls: bool,
}

/// Applies the rules to a request. Returns its principal, if it is known, and the decision.
pub fn authorize(
    access: &Access,
    server: ServerIdentity<'_>,
    parts: &Parts,
    peer: SocketAddr,
) -> (Option<Principal>, Result<(), Problem>) {
    let host = match check_host(parts, server.names) {
        Ok(host) => host,
        Err(problem) => return (None, Err(problem)),
    };
    let Some(required) = required_role(&parts.method, parts.uri.path()) else {
        return (None, check_origin(&parts.headers, host, server, false));
    };
    let (principal, by_cookie) = match identify(access, &parts.headers) {
        Ok(identified) => identified,
        Err(problem) => return (None, Err(problem)),
    };
    let decision = match &principal {
        None => check_anonymous(parts, peer, required),
        Some(principal) if principal.role < required => {
            let text = format!(
                "the token \"{}\" may {}; this needs one that may {required}: `hotset token create --role {required}`",
                principal.name, principal.role
            );
            Err(Problem::new(StatusCode::FORBIDDEN, text))
        }
        Some(_) if by_cookie && !is_safe(&parts.method) => check_origin(&parts.headers, host, server, true),
        Some(_) => Ok(()),
    };
    (principal, decision)
}

fn check_anonymous(parts: &Parts, peer: SocketAddr, required: Role) -> Result<(), Problem> {
    let is_local = peer.ip().to_canonical().is_loopback();
    let for_loopback = requested_names(parts).all(|name| is_own_name(name, &[])) && !is_forwarded(&parts.headers);
    let reason = match is_safe(&parts.method) {
        true if required > Role::Read => "the list of tokens needs a token that may administer",
        true if is_local && for_loopback => return Ok(()),
        true => "requests from other machines, through a proxy, or to a host name other than loopback need a token",
        false => "changes need a token",
    };
    let text = format!("{reason}; create one with `hotset token create` and send it as Authorization: Bearer …");
    Err(Problem::new(StatusCode::UNAUTHORIZED, text))
}

/// True when a proxy or a load balancer has forwarded the request.
pub fn is_forwarded(headers: &HeaderMap) -> bool {
    headers
        .keys()
        .any(|name| FORWARDING_HEADERS.contains(&name.as_str()) || name.as_str().starts_with(FORWARDING_PREFIX))
}

/// The host names in a request: its `Host` headers, and the host in its target if there is one.
fn requested_names(parts: &Parts) -> impl Iterator<Item = &str> {
    let hosts = parts.headers.get_all(header::HOST).iter().map(|host| host.to_str().unwrap_or_default());
    hosts.chain(parts.uri.authority().map(|authority| authority.as_str()))
}

fn check_host<'a>(parts: &'a Parts, names: &[String]) -> Result<&'a str, Problem> {
    let mut hosts = parts.headers.get_all(header::HOST).iter();
    let (Some(Ok(host)), None) = (hosts.next().map(|host| host.to_str()), hosts.next()) else {
        return Err(Problem::new(StatusCode::BAD_REQUEST, "a request must have exactly one Host header, in ASCII"));
    };
    if let Some(foreign) = requested_names(parts).find(|host| !is_own_name(host, names)) {
        let text = format!(
            "host name \"{foreign}\" is not served; use a loopback name, or list this name in [api] names and restart"
        );
        return Err(Problem::new(StatusCode::MISDIRECTED_REQUEST, text));
    }
    Ok(host)
}

/// The principal of the token or session in the headers, and whether it came from a cookie.
fn identify(access: &Access, headers: &HeaderMap) -> Result<(Option<Principal>, bool), Problem> {
    if let Some(sent) = headers.get(header::AUTHORIZATION) {
        let token = sent.to_str().ok().and_then(|sent| {
            let (scheme, token) = sent.split_once(' ')?;
            scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
        });
        let principal = token.and_then(|token| access.authenticate_token(token));
        let text = "unknown token; `hotset token list` lists the tokens, `hotset token create` creates one";
        return principal
            .map(|principal| (Some(principal), false))
            .ok_or_else(|| Problem::new(StatusCode::UNAUTHORIZED, text));
    }
    // An expired session counts as none.
    let principal = session(headers).and_then(|session| access.authenticate_session(session));
    Ok((principal, true))
}

/// The secret of the browser's session, if it sent one.
pub fn session(headers: &HeaderMap) -> Option<&str> {
    let cookies = headers.get_all(header::COOKIE).iter().filter_map(|cookies| cookies.to_str().ok());
    let mut pairs = cookies.flat_map(|cookies| cookies.split(';')).filter_map(|pair| pair.trim().split_once('='));
    pairs.find(|(name, _)| *name == SESSION_COOKIE).map(|(_, value)| value)
}

fn check_origin(headers: &HeaderMap, host: &str, server: ServerIdentity<'_>, required: bool) -> Result<(), Problem> {
    let origin = headers.get(header::ORIGIN).map(|origin| origin.to_str().unwrap_or_default());
    if origin.map_or(!required, |origin| is_own_origin(origin, host, server.is_tls)) {
        return Ok(());
    }
    let from = origin.unwrap_or("none");
    let text = format!("cross-origin request refused (Origin: {from}); use the page at this address, or a token");
    Err(Problem::new(StatusCode::FORBIDDEN, text))
}

#[cfg(test)]
mod tests;
