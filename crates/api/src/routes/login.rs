//! Log-in and log-out: a browser gets a cookie for a token, or for a link that can be used once.

use std::sync::Arc;

use axum::extract::{Extension, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use messages::{Role, moment};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::{Routes, Shared};
use crate::access::rules::{COOKIE, session};
use crate::access::{SESSION_TIME, Who};
use crate::extract::{Json, Question};
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

/// The client that is logged in now.
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
    let (session, who) = begin(&shared, peer, || shared.access.begin(login.token.trim()))?;
    let shown = Json(LoggedIn { name: who.name, role: who.role });
    Ok(([(header::SET_COOKIE, cookie(&session, SESSION_TIME.as_secs(), &shared))], shown).into_response())
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
    Question(link): Question<Link>,
) -> Result<Response, Problem> {
    let (session, _) = begin(&shared, peer, || shared.access.begin_with_link(&link.key))?;
    let headers = [
        (header::SET_COOKIE, cookie(&session, SESSION_TIME.as_secs(), &shared)),
        // Relative, so that a proxy may serve the page under a path.
        (header::LOCATION, HeaderValue::from_static("./")),
    ];
    Ok((StatusCode::SEE_OTHER, headers).into_response())
}

/// End the session
#[utoipa::path(post, path = "/api/v1/logout", tag = "access", responses((status = 204, description = "It is over")))]
async fn logout(State(shared): State<Arc<Shared>>, headers: HeaderMap) -> Response {
    if let Some(session) = session(&headers) {
        shared.access.end(session);
    }
    (StatusCode::NO_CONTENT, [(header::SET_COOKIE, cookie("", 0, &shared))]).into_response()
}

/// Begins a session with `begin`, unless the address is locked out. Logs success and failure.
fn begin(
    shared: &Shared,
    Peer(peer): Peer,
    begin: impl FnOnce() -> Option<(String, Who)>,
) -> Result<(String, Who), Problem> {
    let address = peer.ip();
    if let Some(seconds) = shared.access.locked_out(address) {
        let text = format!("too many log-ins from {address} have failed; try again in {seconds} s");
        return Err(Problem::new(StatusCode::TOO_MANY_REQUESTS, text).retry_after(seconds));
    }
    let begun = begin();
    let now = moment::show(moment::since_1970());
    match &begun {
        Some((_, who)) => {
            let line = format!("api: {now} \"{}\" ({}) from {address}: logged in", who.name, who.role);
            (shared.options.log)(address, &line);
        }
        None => {
            shared.access.note_failure(address);
            (shared.options.log)(address, &format!("api: {now} a log-in from {address} failed"));
        }
    }
    let text = "the token is not known, or the link was used already or is too old; `hotset token create` makes a \
                token, `hotset token link` a link";
    begun.ok_or_else(|| Problem::new(StatusCode::UNAUTHORIZED, text))
}

fn cookie(session: &str, seconds: u64, shared: &Shared) -> HeaderValue {
    // Under TLS the browser must not send the cookie over a plain connection.
    let secure = if shared.options.tls.is_some() { "; Secure" } else { "" };
    let text = format!("{COOKIE}={session}; Path=/; HttpOnly; SameSite=Strict; Max-Age={seconds}{secure}");
    HeaderValue::from_str(&text).expect("hexadecimal digits and plain words")
}
