//! `jobs`: what takes long. A job is a change of the flash devices, or a flush of a volume.

use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use control::report::JobReport;
use control::{Answer, Request};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::{Routes, Shared, unexpected};
use crate::extract::{Json, Named};
use crate::problem::Problem;

pub(super) fn routes() -> Routes {
    OpenApiRouter::new().routes(routes!(list_jobs)).routes(routes!(cancel_job))
}

/// What is under way, and how far it is
#[utoipa::path(get, path = "/api/v1/jobs", tag = "jobs",
    responses((status = 200, description = "As it is now", body = Vec<JobReport>)))]
async fn list_jobs(State(shared): State<Arc<Shared>>) -> Result<Json<Vec<JobReport>>, Problem> {
    match shared.asker.ask(Request::JobList {}).await? {
        Answer::Jobs(jobs) => Ok(Json(jobs)),
        _ => Err(unexpected()),
    }
}

/// Call it off: the flash devices are as they were before; nobody waits for a flush any more
#[utoipa::path(delete, path = "/api/v1/jobs/{id}", tag = "jobs", params(("id" = String, Path, description = "The job")),
    responses((status = 204, description = "It is called off")))]
async fn cancel_job(State(shared): State<Arc<Shared>>, Named(id): Named) -> Result<StatusCode, Problem> {
    shared.said(Request::JobCancel { id }).await.map(|_| StatusCode::NO_CONTENT)
}
