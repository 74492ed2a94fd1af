//! `configuration`: every key with its value, its default and the source of the value.

use std::sync::Arc;

use axum::extract::State;
use messages::report::ConfigurationReport;
use messages::{Answer, Request};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::{Routes, Shared, unexpected};
use crate::extract::Json;
use crate::problem::Problem;

pub(super) fn routes() -> Routes {
    OpenApiRouter::new().routes(routes!(configuration))
}

/// Each key of the configuration: its value, its default and the source of the value
#[utoipa::path(get, path = "/api/v1/configuration", tag = "daemon",
    responses((status = 200, description = "The effective keys, without secrets", body = ConfigurationReport)))]
async fn configuration(State(shared): State<Arc<Shared>>) -> Result<Json<ConfigurationReport>, Problem> {
    match shared.control.request(Request::Configuration {}).await? {
        Answer::Configuration(report) => Ok(Json(*report)),
        _ => Err(unexpected()),
    }
}
