//! `stream`: the daemon's state once a second, as server-sent events.

use std::collections::BTreeSet;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Extension, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::Response;
use serde::Deserialize;
use utoipa::IntoParams;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::{Routes, Shared};
use crate::extract::QueryParameters;
use crate::guard::AuthenticatedClient;
use crate::problem::Problem;

/// Maximum number of volumes that one client may follow.
const VOLUMES_MAX: usize = 64;

pub(super) fn routes() -> Routes {
    OpenApiRouter::new().routes(routes!(stream))
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct StreamParameters {
    /// Volumes to report in full, by name, with commas between them; 64 at most
    #[serde(default)]
    volumes: String,
}

/// Once a second: status without volumes, their sums, and the requested volumes
#[utoipa::path(get, path = "/api/v1/stream", tag = "daemon",
    params(StreamParameters, ("Last-Event-ID" = Option<String>, Header,
        description = "Resume after this event if it is not older than a minute")),
    responses((status = 200, description = "Events without end", body = String, content_type = "text/event-stream")))]
async fn stream(
    State(shared): State<Arc<Shared>>,
    Extension(AuthenticatedClient(principal)): Extension<AuthenticatedClient>,
    QueryParameters(parameters): QueryParameters<StreamParameters>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let volumes: BTreeSet<String> =
        parameters.volumes.split(',').filter(|name| !name.is_empty()).map(str::to_owned).collect();
    if volumes.len() > VOLUMES_MAX {
        let text = format!("{} volumes requested; one stream follows at most {VOLUMES_MAX}", volumes.len());
        return Err(Problem::new(StatusCode::BAD_REQUEST, text));
    }
    let last_event_id = headers.get("last-event-id").and_then(|id| id.to_str().ok());
    let may_continue = {
        let access = shared.access.clone();
        move || principal.as_ref().is_none_or(|principal| access.has_access(principal))
    };
    let events = shared.hub.clone().follow(volumes, last_event_id, may_continue)?;
    let mut response = Response::new(Body::from_stream(events));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    Ok(response)
}
