//! `jobs`: long operations. A job is a change of the flash devices, or a flush of a volume.

use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use messages::report::JobReport;
use messages::{Answer, Request};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::{Routes, Shared, unexpected};
use crate::extract::{Json, PathName};
use crate::problem::Problem;

pub(super) fn routes() -> Routes {
    OpenApiRouter::new().routes(routes!(list_jobs)).routes(routes!(cancel_job))
}

/// Jobs in progress, with their progress
#[utoipa::path(get, path = "/api/v1/jobs", tag = "jobs",
    responses((status = 200, description = "As it is now", body = Vec<JobReport>)))]
async fn list_jobs(State(shared): State<Arc<Shared>>) -> Result<Json<Vec<JobReport>>, Problem> {
    match shared.control.request(Request::JobList {}).await? {
        Answer::Jobs(jobs) => Ok(Json(jobs)),
        _ => Err(unexpected()),
    }
}

/// Cancel a job: the flash devices are restored to their former state; a flush is no longer waited for
#[utoipa::path(delete, path = "/api/v1/jobs/{id}", tag = "jobs", params(("id" = String, Path, description = "The job")),
    responses((status = 204, description = "Cancelled")))]
async fn cancel_job(State(shared): State<Arc<Shared>>, PathName(id): PathName) -> Result<StatusCode, Problem> {
    shared.messages(Request::JobCancel { id }).await.map(|_| StatusCode::NO_CONTENT)
}
