//! `alerts`: the active alerts with cause, effect and remedy; acknowledgements and silences; and a test of the alert
//! channels.

use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use messages::report::{AlertReport, ChannelTestReport, SilenceReport};
use messages::{Answer, Request};
use serde::Deserialize;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::{Routes, Shared, unexpected};
use crate::extract::{Json, PathName};
use crate::problem::Problem;

pub(super) fn routes() -> Routes {
    OpenApiRouter::new()
        .routes(routes!(list_alerts))
        .routes(routes!(acknowledge_alert))
        .routes(routes!(silence_alert, unsilence_alert))
        .routes(routes!(test_alerts))
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

/// Acknowledge an active alert. It stays listed, with who did so and when; the acknowledgement ends with the alert
#[utoipa::path(post, path = "/api/v1/alerts/{id}/acknowledge", tag = "daemon",
    params(("id" = String, Path, description = "The alert's `id`")),
    responses((status = 200, description = "As it is now", body = AlertReport)))]
async fn acknowledge_alert(
    State(shared): State<Arc<Shared>>,
    PathName(id): PathName,
) -> Result<Json<AlertReport>, Problem> {
    match shared.control.request(Request::AlertAcknowledge { id }).await? {
        Answer::Alert(alert) => Ok(Json(*alert)),
        _ => Err(unexpected()),
    }
}

/// A silence to be added.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct NewSilence {
    /// Duration in seconds: 1 to 2,592,000 (30 days).
    #[schema(minimum = 1, maximum = 2_592_000)]
    seconds: u64,
    /// The reason, up to 200 bytes.
    reason: Option<String>,
}

/// Silence an alert for a time: no channel gets messages about it. The alert need not be active. Replaces its silence
#[utoipa::path(post, path = "/api/v1/alerts/{id}/silence", tag = "daemon",
    params(("id" = String, Path, description = "The alert's `id`: its kind, and after a colon its subject")),
    request_body = NewSilence, responses((status = 200, description = "Silenced", body = SilenceReport)))]
async fn silence_alert(
    State(shared): State<Arc<Shared>>,
    PathName(id): PathName,
    Json(NewSilence { seconds, reason }): Json<NewSilence>,
) -> Result<Json<SilenceReport>, Problem> {
    match shared.control.request(Request::AlertSilence { id, seconds, reason }).await? {
        Answer::Silence(silence) => Ok(Json(silence)),
        _ => Err(unexpected()),
    }
}

/// End the silence of an alert
#[utoipa::path(delete, path = "/api/v1/alerts/{id}/silence", tag = "daemon",
    params(("id" = String, Path, description = "The alert's `id`")),
    responses((status = 204, description = "Ended")))]
async fn unsilence_alert(State(shared): State<Arc<Shared>>, PathName(id): PathName) -> Result<StatusCode, Problem> {
    shared.messages(Request::AlertUnsilence { id }).await.map(|_| StatusCode::NO_CONTENT)
}
