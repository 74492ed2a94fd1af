//! Middleware of every request: access rules, security headers of answers, and the log of changes.

use std::net::SocketAddr;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::{HeaderValue, Response, header};
use axum::middleware::Next;
use axum::response::IntoResponse;
use control::Actor;
use messages::moment;

use crate::access::rules::{Ours, is_forwarded, is_safe, judge, needed};
use crate::access::{LINK_NAME, Who};
use crate::asker::ACTOR;
use crate::shared::Shared;

/// The other end of a request's connection.
#[derive(Clone, Copy, Debug)]
pub struct Peer(pub SocketAddr);

/// The client of a request, if it is known.
#[derive(Clone, Debug)]
pub struct Asking(pub Option<Who>);

/// Content security policy of our pages: nothing from other sites, no inline script, no frame.
const CONTENT_SECURITY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; \
    connect-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'";

/// Headers of every answer.
const HEADERS: [(header::HeaderName, &str); 5] = [
    (header::CONTENT_SECURITY_POLICY, CONTENT_SECURITY),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::REFERRER_POLICY, "same-origin"),
    (header::HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    (header::HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
];

/// Applies the rules to the request, passes it on, and logs the change that it made.
pub async fn guard(State(shared): State<Arc<Shared>>, request: Request, next: Next) -> axum::response::Response {
    let Some(Peer(peer)) = request.extensions().get::<Peer>().copied() else {
        unreachable!("the server tells the peer of every request")
    };
    let (mut parts, body) = request.into_parts();
    let ours = Ours { names: &shared.options.names, is_tls: shared.options.tls.is_some() };
    let (who, verdict) = judge(&shared.access, ours, &parts, peer);
    let asked = (!is_safe(&parts.method)).then(|| (parts.method.clone(), parts.uri.path().to_owned()));
    let is_login = needed(&parts.method, parts.uri.path()).is_none();
    let through = if is_forwarded(&parts.headers) { " (forwarded)" } else { "" };
    let mut response = match verdict {
        Ok(()) => {
            parts.extensions.insert(Asking(who.clone()));
            ACTOR.scope(actor(who.as_ref(), peer), next.run(Request::from_parts(parts, body))).await
        }
        Err(problem) => problem.into_response(),
    };
    // The log-in route writes its own line.
    if let (Some((method, path)), Some(who), false) = (asked, who, is_login) {
        let status = response.status().as_u16();
        let line = format!(
            "api: {} \"{}\" ({}) from {}{through}: {method} {} {status}",
            moment::show(moment::since_1970()),
            who.name,
            who.role,
            peer.ip(),
            path.escape_debug(),
        );
        (shared.options.log)(peer.ip(), &line);
    }
    finish(&mut response);
    response
}

fn actor(who: Option<&Who>, peer: SocketAddr) -> Actor {
    who.map_or(Actor::Unknown, |who| {
        let name = if who.name == LINK_NAME { who.name.clone() } else { format!("token {}", who.name) };
        Actor::Web { who: name, from: peer.ip().to_canonical() }
    })
}

fn finish<B>(response: &mut Response<B>) {
    let headers = response.headers_mut();
    for (name, value) in HEADERS {
        headers.insert(name, HeaderValue::from_static(value));
    }
    // Answers change, and some are only for this client.
    headers.entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
}
