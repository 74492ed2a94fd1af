//! `alerts`: what is wrong now, with cause, effect and remedy; and a test of the alert channels.

use std::sync::Arc;

use axum::extract::State;
use messages::report::{AlertReport, ChannelTestReport};
use messages::{Answer, Request};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::{Routes, Shared, unexpected};
use crate::extract::Json;
use crate::problem::Problem;

pub(super) fn routes() -> Routes {
    OpenApiRouter::new().routes(routes!(list_alerts)).routes(routes!(test_alerts))
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

/// Send a test message through each configured channel: webhook and mail. Answers when each has answered
#[utoipa::path(post, path = "/api/v1/alerts/test", tag = "daemon",
    responses((status = 200, description = "The result of each channel, with the receiver's own error",
        body = Vec<ChannelTestReport>)))]
async fn test_alerts(State(shared): State<Arc<Shared>>) -> Result<Json<Vec<ChannelTestReport>>, Problem> {
    match shared.control.request(Request::AlertsTest {}).await? {
        Answer::AlertsTested(reports) => Ok(Json(reports)),
        _ => Err(unexpected()),
    }
}
