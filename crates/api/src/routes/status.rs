//! `status`: the whole daemon, as in `hotset status --json`.

use std::sync::Arc;

use axum::extract::State;
use messages::StatusReport;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::{Routes, Shared};
use crate::extract::Json;
use crate::problem::Problem;

pub(super) fn routes() -> Routes {
    OpenApiRouter::new().routes(routes!(status))
}

/// The whole daemon: volumes, caches, alerts
#[utoipa::path(get, path = "/api/v1/status", tag = "daemon",
    responses((status = 200, description = "As it is now", body = StatusReport)))]
async fn status(State(shared): State<Arc<Shared>>) -> Result<Json<StatusReport>, Problem> {
    shared.status().await.map(Json)
}
