//! Middleware of every request: authorization, security headers of responses, and the log of changes.

use std::net::SocketAddr;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::{HeaderValue, Response, header};
use axum::middleware::Next;
use axum::response::IntoResponse;
use control::Actor;
use messages::unix_time;

use crate::access::rules::{ServerIdentity, authorize, is_forwarded, is_safe, required_role};
use crate::access::{LINK_NAME, Principal};
use crate::control_handle::ACTOR;
use crate::shared::Shared;

/// The other end of a request's connection.
#[derive(Clone, Copy, Debug)]
pub struct Peer(pub SocketAddr);

/// The principal of a request, if it is known.
#[derive(Clone, Debug)]
pub struct AuthenticatedClient(pub Option<Principal>);

/// Content security policy of the web console: nothing from other sites, no inline script, no frame.
const CONTENT_SECURITY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; \
    connect-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'";

/// Headers of every response.
const HEADERS: [(header::HeaderName, &str); 5] = [
    (header::CONTENT_SECURITY_POLICY, CONTENT_SECURITY),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::REFERRER_POLICY, "same-origin"),
    (header::HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    (header::HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
];

/// Authorizes the request, passes it on, and logs it if it is a change.
pub async fn guard(State(shared): State<Arc<Shared>>, request: Request, next: Next) -> axum::response::Response {
    let Some(Peer(peer)) = request.extensions().get::<Peer>().copied() else {
        unreachable!("the server adds the peer address to every request")
    };
    let (mut parts, body) = request.into_parts();
    let server = ServerIdentity { names: &shared.options.names, is_tls: shared.options.tls.is_some() };
    let (principal, decision) = authorize(&shared.access, server, &parts, peer);
    let change = (!is_safe(&parts.method)).then(|| (parts.method.clone(), parts.uri.path().to_owned()));
    let is_public = required_role(&parts.method, parts.uri.path()).is_none();
    let forwarded = if is_forwarded(&parts.headers) { " (forwarded)" } else { "" };
    let mut response = match decision {
        Ok(()) => {
            parts.extensions.insert(AuthenticatedClient(principal.clone()));
            ACTOR.scope(actor_of(principal.as_ref(), peer), next.run(Request::from_parts(parts, body))).await
        }
        Err(problem) => problem.into_response(),
    };
    // The log-in route writes its own log line.
    if let (Some((method, path)), Some(principal), false) = (change, principal, is_public) {
        let status = response.status().as_u16();
        let line = format!(
            "api: {} \"{}\" ({}) from {}{forwarded}: {method} {} {status}",
            unix_time::format(unix_time::now()),
            principal.name,
            principal.role,
            peer.ip(),
            path.escape_debug(),
        );
        (shared.options.log)(peer.ip(), &line);
    }
    add_response_headers(&mut response);
    response
}

fn actor_of(principal: Option<&Principal>, peer: SocketAddr) -> Actor {
    principal.map_or(Actor::Unknown, |principal| {
        let name = match principal.name.as_str() {
            LINK_NAME => LINK_NAME.to_owned(),
            name => format!("token {name}"),
        };
        Actor::Web { name, from: peer.ip().to_canonical() }
    })
}

fn add_response_headers<B>(response: &mut Response<B>) {
    let headers = response.headers_mut();
    for (name, value) in HEADERS {
        headers.insert(name, HeaderValue::from_static(value));
    }
    // Responses change, and some are only for this client.
    headers.entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
}
