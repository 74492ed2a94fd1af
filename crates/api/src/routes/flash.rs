//! `flash`: list, add, replace and remove devices.

use std::sync::Arc;

use axum::extract::State;
use messages::{Answer, FlashReport, Request};
use serde::Deserialize;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::{Routes, Shared, unexpected};
use crate::extract::{Json, PathName};
use crate::problem::Problem;

pub(super) fn routes() -> Routes {
    OpenApiRouter::new().routes(routes!(show_flash, add_device)).routes(routes!(remove_device))
}

/// The flash cache and its devices
#[utoipa::path(get, path = "/api/v1/flash", tag = "flash",
    responses((status = 200, description = "As it is now; without devices where there is none", body = FlashReport)))]
async fn show_flash(State(shared): State<Arc<Shared>>) -> Result<Json<FlashReport>, Problem> {
    shared.flash().await.map(Json)
}

/// A device to add.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct NewDevice {
    /// The device, partition or file.
    path: String,
    /// The device that it replaces: its path or its number. Without it the device is added.
    replace: Option<String>,
    /// Destroy what it holds.
    #[serde(default)]
    force: bool,
}

/// Add a device, or replace one; answers when that is done, `jobs` shows the progress
#[utoipa::path(post, path = "/api/v1/flash", tag = "flash", request_body = NewDevice,
    responses((status = 200, description = "Done", body = FlashReport)))]
async fn add_device(
    State(shared): State<Arc<Shared>>,
    Json(device): Json<NewDevice>,
) -> Result<Json<FlashReport>, Problem> {
    let NewDevice { path, replace, force } = device;
    let request = match replace {
        Some(old) => Request::FlashReplace { old, new: path, force },
        None => Request::FlashAdd { path, force },
    };
    submit(&shared, request).await
}

/// Remove a device; answers when that is done, `jobs` shows the progress
#[utoipa::path(delete, path = "/api/v1/flash/{id}", tag = "flash",
    params(("id" = String, Path, description = "Its number, or its path")),
    responses((status = 200, description = "Done", body = FlashReport)))]
async fn remove_device(
    State(shared): State<Arc<Shared>>,
    PathName(path): PathName,
) -> Result<Json<FlashReport>, Problem> {
    submit(&shared, Request::FlashRemove { path }).await
}

/// Sends a change to the daemon; returns the flash cache after it.
async fn submit(shared: &Shared, request: Request) -> Result<Json<FlashReport>, Problem> {
    match shared.control.request(request).await? {
        Answer::Flash(report) => Ok(Json(*report)),
        _ => Err(unexpected()),
    }
}
