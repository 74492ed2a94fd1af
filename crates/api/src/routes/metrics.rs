//! `/metrics`: metrics for Prometheus.

use std::sync::Arc;

use axum::extract::State;
use axum::http::header;
use axum::response::IntoResponse;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::{Routes, Shared};
use crate::metrics::{CONTENT_TYPE, text};
use crate::problem::Problem;

pub(super) fn routes() -> Routes {
    OpenApiRouter::new().routes(routes!(metrics))
}

/// All counters, for Prometheus
#[utoipa::path(get, path = "/metrics", tag = "metrics",
    responses((status = 200, description = "Prometheus's text format, version 0.0.4", body = String,
        content_type = "text/plain")))]
async fn metrics(State(shared): State<Arc<Shared>>) -> Result<impl IntoResponse, Problem> {
    let status = shared.status().await?;
    Ok(([(header::CONTENT_TYPE, CONTENT_TYPE)], text(&status, shared.options.metrics_volumes)))
}
