//! `tokens`: list, create and revoke tokens. Only administrators may do so (`access/rules.rs`). The secret of a token
//! is in the answer to its creation, and nowhere else.

use std::sync::Arc;

use axum::extract::{Extension, State};
use axum::http::StatusCode;
use messages::token::{TokenCreated, TokenReport};
use messages::{Answer, Request, Role};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::{Routes, Shared, unexpected};
use crate::extract::{Json, PathName};
use crate::guard::AuthenticatedClient;
use crate::problem::Problem;

pub(super) fn routes() -> Routes {
    OpenApiRouter::new().routes(routes!(list_tokens, create_token)).routes(routes!(revoke_token))
}

/// Tokens with their roles, without their secrets
#[utoipa::path(get, path = "/api/v1/tokens", tag = "access",
    responses((status = 200, description = "In the order of their creation", body = Vec<TokenReport>),
        (status = 403, description = "The token does not permit it", body = Problem,
            content_type = "application/problem+json")))]
async fn list_tokens(State(shared): State<Arc<Shared>>) -> Result<Json<Vec<TokenReport>>, Problem> {
    match shared.control.request(Request::TokenList {}).await? {
        Answer::Tokens(tokens) => Ok(Json(tokens)),
        _ => Err(unexpected()),
    }
}

/// A token to create.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct NewToken {
    /// Up to 64 letters, digits and - _ . @
    name: String,
    role: Role,
}

/// Create a token. The answer has its secret, which is not shown again: the daemon stores only a hash
#[utoipa::path(post, path = "/api/v1/tokens", tag = "access", request_body = NewToken,
    responses((status = 201, description = "Created, with its secret", body = TokenCreated)))]
async fn create_token(
    State(shared): State<Arc<Shared>>,
    Json(NewToken { name, role }): Json<NewToken>,
) -> Result<(StatusCode, Json<TokenCreated>), Problem> {
    match shared.control.request(Request::TokenCreate { name, role }).await? {
        Answer::TokenCreated(created) => Ok((StatusCode::CREATED, Json(created))),
        _ => Err(unexpected()),
    }
}

/// The result of a revocation.
#[derive(Serialize, ToSchema)]
struct Revocation {
    /// The result, in sentences.
    said: Vec<String>,
    /// This request was sent with the revoked token, or by a session of it, which has ended: the client needs another
    /// token.
    own_access_ended: bool,
}

/// Revoke a token, and end the sessions that were started with it, also the present one
#[utoipa::path(delete, path = "/api/v1/tokens/{name}", tag = "access",
    params(("name" = String, Path, description = "The token")),
    responses((status = 200, description = "Revoked; `own_access_ended` says whether this session has ended with it",
        body = Revocation)))]
async fn revoke_token(
    State(shared): State<Arc<Shared>>,
    Extension(AuthenticatedClient(principal)): Extension<AuthenticatedClient>,
    PathName(name): PathName,
) -> Result<Json<Revocation>, Problem> {
    // The principal of a log-in link has a name that no token can have.
    let own_access_ended = principal.is_some_and(|principal| principal.name == name);
    let mut sentences = shared.messages(Request::TokenRevoke { name }).await?;
    if own_access_ended {
        sentences.push("this request was sent with it: log in with another token, or send another one".to_owned());
    }
    Ok(Json(Revocation { said: sentences, own_access_ended }))
}

#[cfg(test)]
mod tests;
