//! `healthz`: the process answers. `readyz`: clients can use their volumes.

use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::{Routes, Shared};
use crate::problem::Problem;

pub(super) fn routes() -> Routes {
    OpenApiRouter::new().routes(routes!(healthz)).routes(routes!(readyz))
}

/// Whether the daemon answers
#[utoipa::path(get, path = "/healthz", tag = "health",
    responses((status = 200, description = "It does", body = String, content_type = "text/plain")))]
async fn healthz() -> &'static str {
    "ok\n"
}

/// Whether clients can use their volumes
#[utoipa::path(get, path = "/readyz", tag = "health",
    responses((status = 200, description = "They can", body = String, content_type = "text/plain")))]
async fn readyz(State(shared): State<Arc<Shared>>) -> Result<&'static str, Problem> {
    let status = shared.status().await?;
    let reason = if status.stopping {
        "the daemon is stopping"
    } else if status.listen.is_empty() {
        "volumes are being opened"
    } else if status.cores.is_empty() {
        "no data core answers"
    } else {
        return Ok("ready\n");
    };
    Err(Problem::new(StatusCode::SERVICE_UNAVAILABLE, reason).retry_after(1))
}
