//! `alerts`: what is wrong now, with cause, effect and remedy.

use std::sync::Arc;

use axum::extract::State;
use messages::report::AlertReport;
use messages::{Answer, Request};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::{Routes, Shared, unexpected};
use crate::extract::Json;
use crate::problem::Problem;

pub(super) fn routes() -> Routes {
    OpenApiRouter::new().routes(routes!(list_alerts))
}

/// Alerts that are raised now, the most severe first
#[utoipa::path(get, path = "/api/v1/alerts", tag = "daemon",
    responses((status = 200, description = "As of the last second", body = Vec<AlertReport>)))]
async fn list_alerts(State(shared): State<Arc<Shared>>) -> Result<Json<Vec<AlertReport>>, Problem> {
    match shared.control.request(Request::Alerts {}).await? {
        Answer::Alerts(alerts) => Ok(Json(alerts)),
        _ => Err(unexpected()),
    }
}
