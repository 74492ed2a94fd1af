//! Log-in and log-out: a browser gets a cookie for a token, or for a link that can be used once.

use std::sync::Arc;

use axum::extract::{Extension, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use messages::{Role, unix_time};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::{Routes, Shared};
use crate::access::rules::{SESSION_COOKIE, session};
use crate::access::{Principal, SESSION_TIME};
use crate::extract::{Json, QueryParameters};
use crate::guard::Peer;
use crate::problem::Problem;

pub(super) fn routes() -> Routes {
    OpenApiRouter::new().routes(routes!(login)).routes(routes!(logout)).routes(routes!(follow))
}

/// A token to log in with.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct Login {
    token: String,
}

/// The principal that is logged in now.
#[derive(Serialize, ToSchema)]
struct LoggedIn {
    /// The token's name.
    name: String,
    role: Role,
}

/// Get a session for a token, as a cookie
#[utoipa::path(post, path = "/api/v1/login", tag = "access", request_body = Login,
    responses((status = 200, description = "Logged in", body = LoggedIn),
        (status = 429, description = "Too many log-ins from that address failed; Retry-After says how long to wait",
            body = Problem, content_type = "application/problem+json")))]
async fn login(
    State(shared): State<Arc<Shared>>,
    Extension(peer): Extension<Peer>,
    Json(login): Json<Login>,
) -> Result<Response, Problem> {
    let (session, principal) = log_in(&shared, peer, || shared.access.log_in(login.token.trim()))?;
    let body = Json(LoggedIn { name: principal.name, role: principal.role });
    Ok(([(header::SET_COOKIE, cookie(&session, SESSION_TIME.as_secs(), &shared))], body).into_response())
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct Link {
    /// The link's secret
    key: String,
}

/// Follow a log-in link, which works once: sets a session cookie and redirects to the page
#[utoipa::path(get, path = "/login", tag = "access", params(Link),
    responses((status = 303, description = "Logged in; on to the page"),
        (status = 429, description = "Too many log-ins from that address failed; Retry-After says how long to wait",
            body = Problem, content_type = "application/problem+json")))]
async fn follow(
    State(shared): State<Arc<Shared>>,
    Extension(peer): Extension<Peer>,
    QueryParameters(link): QueryParameters<Link>,
) -> Result<Response, Problem> {
    let (session, _) = log_in(&shared, peer, || shared.access.log_in_with_link(&link.key))?;
    let headers = [
        (header::SET_COOKIE, cookie(&session, SESSION_TIME.as_secs(), &shared)),
        // Relative, so that a proxy may serve the page under a path. By the parameter the page tells this redirect from
        // the log-in of a proxy.
        (header::LOCATION, HeaderValue::from_static("./#/?login=link")),
    ];
    Ok((StatusCode::SEE_OTHER, headers).into_response())
}

/// End the session
#[utoipa::path(post, path = "/api/v1/logout", tag = "access", responses((status = 204, description = "It is over")))]
async fn logout(State(shared): State<Arc<Shared>>, headers: HeaderMap) -> Response {
    if let Some(session) = session(&headers) {
        shared.access.end_session(session);
    }
    (StatusCode::NO_CONTENT, [(header::SET_COOKIE, cookie("", 0, &shared))]).into_response()
}

/// Starts a session with `start_session`, unless the address is locked out. Logs success and failure.
fn log_in(
    shared: &Shared,
    Peer(peer): Peer,
    start_session: impl FnOnce() -> Option<(String, Principal)>,
) -> Result<(String, Principal), Problem> {
    let address = peer.ip();
    if let Some(seconds) = shared.access.lockout_seconds(address) {
        let text = format!("too many failed log-ins from {address}; try again in {seconds} s");
        return Err(Problem::new(StatusCode::TOO_MANY_REQUESTS, text).retry_after(seconds));
    }
    let started = start_session();
    let now = unix_time::format(unix_time::now());
    match &started {
        Some((_, principal)) => {
            let line = format!("api: {now} \"{}\" ({}) from {address}: logged in", principal.name, principal.role);
            (shared.options.log)(address, &line);
        }
        None => {
            shared.access.record_failure(address);
            (shared.options.log)(address, &format!("api: {now} log-in from {address} failed"));
        }
    }
    let text =
        "unknown token, or used or expired link; `hotset token create` creates a token, `hotset token link` a link";
    started.ok_or_else(|| Problem::new(StatusCode::UNAUTHORIZED, text))
}

fn cookie(session: &str, seconds: u64, shared: &Shared) -> HeaderValue {
    // Under TLS the browser must not send the cookie over a plain connection.
    let secure = if shared.options.tls.is_some() { "; Secure" } else { "" };
    let text = format!("{SESSION_COOKIE}={session}; Path=/; HttpOnly; SameSite=Strict; Max-Age={seconds}{secure}");
    HeaderValue::from_str(&text).expect("hexadecimal digits and plain words")
}
