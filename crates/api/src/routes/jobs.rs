//! `jobs`: what takes long. One kind has figures of its own so far: a change of the flash devices.

use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use control::Request;
use control::report::FlashJobReport;
use serde::Serialize;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::{Routes, Shared};
use crate::extract::{Json, Named};
use crate::problem::Problem;

/// There is one change of the flash devices at a time.
const FLASH: &str = "flash";

pub(super) fn routes() -> Routes {
    OpenApiRouter::new().routes(routes!(list_jobs)).routes(routes!(cancel_job))
}

/// What takes long.
#[derive(Serialize, ToSchema)]
struct Job {
    /// What to call it off by.
    id: &'static str,
    #[serde(flatten)]
    job: FlashJobReport,
}

/// What is under way, and how far it is
#[utoipa::path(get, path = "/api/v1/jobs", tag = "jobs",
    responses((status = 200, description = "As it is now", body = Vec<Job>)))]
async fn list_jobs(State(shared): State<Arc<Shared>>) -> Result<Json<Vec<Job>>, Problem> {
    let job = shared.flash().await?.job;
    Ok(Json(job.into_iter().map(|job| Job { id: FLASH, job }).collect()))
}

/// Call it off: things are as they were before
#[utoipa::path(delete, path = "/api/v1/jobs/{id}", tag = "jobs", params(("id" = String, Path, description = "The job")),
    responses((status = 204, description = "It is called off")))]
async fn cancel_job(State(shared): State<Arc<Shared>>, Named(id): Named) -> Result<StatusCode, Problem> {
    let is_there = id == FLASH && shared.flash().await?.job.is_some();
    if !is_there {
        return Err(Problem::new(
            StatusCode::NOT_FOUND,
            format!("there is no job \"{id}\"; GET /api/v1/jobs lists them"),
        ));
    }
    shared.said(Request::FlashCancel {}).await.map(|_| StatusCode::NO_CONTENT)
}
