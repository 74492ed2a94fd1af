//! `pools`: tiers, groups and volumes of the open pools, and the moves of their slices.

use std::sync::Arc;

use axum::extract::State;
use messages::report::{PoolCellsReport, PoolLostReport, PoolPlanReport, PoolQueueReport, PoolReport};
use messages::{Answer, Request};
use serde::Deserialize;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::{Routes, Shared};
use crate::extract::{Json, PathName, PathNames};
use crate::problem::Problem;
use crate::shared::unexpected;

pub(super) fn routes() -> Routes {
    OpenApiRouter::new()
        .routes(routes!(list_pools))
        .routes(routes!(show_pool))
        .routes(routes!(plan_pool))
        .routes(routes!(queue_of_pool))
        .routes(routes!(cells_of_volume))
        .routes(routes!(list_lost_ranges))
        .routes(routes!(relocate_pool))
        .routes(routes!(pause_pool))
        .routes(routes!(resume_pool))
        .routes(routes!(add_pool_device))
        .routes(routes!(import_pool_device))
        .routes(routes!(drain_pool_device))
        .routes(routes!(replace_pool_device))
        .routes(routes!(change_pool_volume, delete_pool_volume))
}

/// Open pools, with tiers, groups and volumes
#[utoipa::path(get, path = "/api/v1/pools", tag = "pools",
    responses((status = 200, description = "The pools with a served volume", body = Vec<PoolReport>)))]
async fn list_pools(State(shared): State<Arc<Shared>>) -> Result<Json<Vec<PoolReport>>, Problem> {
    match shared.control.request(Request::PoolList {}).await? {
        Answer::Pools(pools) => Ok(Json(pools)),
        _ => Err(unexpected()),
    }
}

/// An open pool, with tiers, groups, volumes and the state of relocation
#[utoipa::path(get, path = "/api/v1/pools/{name}", tag = "pools",
    params(("name" = String, Path, description = "The pool")),
    responses((status = 200, description = "As it is now", body = PoolReport)))]
async fn show_pool(State(shared): State<Arc<Shared>>, PathName(name): PathName) -> Result<Json<PoolReport>, Problem> {
    pool(&shared, Request::PoolShow { name }).await
}

/// The moves of slices that the pool would make now, and the load from which they follow
#[utoipa::path(get, path = "/api/v1/pools/{name}/plan", tag = "pools",
    params(("name" = String, Path, description = "The pool")),
    responses((status = 200, description = "The plan; nothing moves", body = PoolPlanReport)))]
async fn plan_pool(
    State(shared): State<Arc<Shared>>,
    PathName(name): PathName,
) -> Result<Json<PoolPlanReport>, Problem> {
    plan(&shared, Request::PoolPlan { name }).await
}

/// The moves of slices that have not ended, with the time until each is expected to end
#[utoipa::path(get, path = "/api/v1/pools/{name}/moves", tag = "pools",
    params(("name" = String, Path, description = "The pool")),
    responses((status = 200, description = "Moves in progress, and the next ones", body = PoolQueueReport)))]
async fn queue_of_pool(
    State(shared): State<Arc<Shared>>,
    PathName(name): PathName,
) -> Result<Json<PoolQueueReport>, Problem> {
    match shared.control.request(Request::PoolQueue { name }).await? {
        Answer::PoolQueue(report) => Ok(Json(*report)),
        _ => Err(unexpected()),
    }
}

/// Tiers and load of the slices of a volume, in at most 2,048 cells
#[utoipa::path(get, path = "/api/v1/pools/{name}/volumes/{volume}/cells", tag = "pools",
    params(("name" = String, Path, description = "The pool"), ("volume" = String, Path, description = "The volume")),
    responses((status = 200, description = "Cells of equal size in the order of the volume", body = PoolCellsReport)))]
async fn cells_of_volume(
    State(shared): State<Arc<Shared>>,
    PathNames((name, volume)): PathNames,
) -> Result<Json<PoolCellsReport>, Problem> {
    match shared.control.request(Request::PoolCells { name, volume }).await? {
        Answer::PoolCells(report) => Ok(Json(*report)),
        _ => Err(unexpected()),
    }
}

/// The ranges of volumes on absent devices; requests to them fail
#[utoipa::path(get, path = "/api/v1/pools/{name}/lost", tag = "pools",
    params(("name" = String, Path, description = "The pool")),
    responses((status = 200, description = "Sums by volume, and the first ranges", body = PoolLostReport)))]
async fn list_lost_ranges(
    State(shared): State<Arc<Shared>>,
    PathName(name): PathName,
) -> Result<Json<PoolLostReport>, Problem> {
    match shared.control.request(Request::PoolLost { name }).await? {
        Answer::PoolLost(report) => Ok(Json(*report)),
        _ => Err(unexpected()),
    }
}

/// Plan and move slices now, also outside of the windows; answers when the moves begin
#[utoipa::path(post, path = "/api/v1/pools/{name}/relocate", tag = "pools",
    params(("name" = String, Path, description = "The pool")),
    responses((status = 200, description = "Moves have begun", body = PoolPlanReport)))]
async fn relocate_pool(
    State(shared): State<Arc<Shared>>,
    PathName(name): PathName,
) -> Result<Json<PoolPlanReport>, Problem> {
    plan(&shared, Request::PoolRelocate { name }).await
}

/// Stop moves of slices; this holds across a restart
#[utoipa::path(post, path = "/api/v1/pools/{name}/pause", tag = "pools",
    params(("name" = String, Path, description = "The pool")),
    responses((status = 200, description = "Paused", body = PoolReport)))]
async fn pause_pool(State(shared): State<Arc<Shared>>, PathName(name): PathName) -> Result<Json<PoolReport>, Problem> {
    pool(&shared, Request::PoolPause { name }).await
}

/// Move slices again
#[utoipa::path(post, path = "/api/v1/pools/{name}/resume", tag = "pools",
    params(("name" = String, Path, description = "The pool")),
    responses((status = 200, description = "Resumed", body = PoolReport)))]
async fn resume_pool(State(shared): State<Arc<Shared>>, PathName(name): PathName) -> Result<Json<PoolReport>, Problem> {
    pool(&shared, Request::PoolResume { name }).await
}

/// A device to add to a pool.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct NewPoolDevice {
    /// Name of the tier.
    tier: String,
    /// The device, partition or file.
    path: String,
    /// Destroy what it holds.
    #[serde(default)]
    force: bool,
}

/// Add an empty device to a tier
#[utoipa::path(post, path = "/api/v1/pools/{name}/devices", tag = "pools",
    params(("name" = String, Path, description = "The pool")), request_body = NewPoolDevice,
    responses((status = 200, description = "Added", body = PoolReport)))]
async fn add_pool_device(
    State(shared): State<Arc<Shared>>,
    PathName(name): PathName,
    Json(device): Json<NewPoolDevice>,
) -> Result<Json<PoolReport>, Problem> {
    let NewPoolDevice { tier, path, force } = device;
    pool(&shared, Request::PoolAdd { name, tier, path, force }).await
}

/// A device full of data.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct ImportedDevice {
    /// Name of the tier.
    tier: String,
    /// The device, partition or file.
    path: String,
    /// Name of the new volume.
    volume: String,
    /// Import a device that carries a signature of md, LVM, ZFS, LUKS or another storage stack.
    #[serde(default)]
    force: bool,
}

/// Make a volume of a device full of data; its slices stay in place, except those of its start and a last partial one
#[utoipa::path(post, path = "/api/v1/pools/{name}/import", tag = "pools",
    params(("name" = String, Path, description = "The pool")), request_body = ImportedDevice,
    responses((status = 200, description = "Imported", body = PoolReport)))]
async fn import_pool_device(
    State(shared): State<Arc<Shared>>,
    PathName(name): PathName,
    Json(device): Json<ImportedDevice>,
) -> Result<Json<PoolReport>, Problem> {
    let ImportedDevice { tier, path, volume, force } = device;
    pool(&shared, Request::PoolImport { name, tier, path, volume, force }).await
}

/// A device to drain.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct DrainedDevice {
    /// Its path, or the number of its group.
    device: String,
    /// Return it to service instead.
    #[serde(default)]
    cancel: bool,
}

/// Move all slices of a device to others and remove it; answers when that has begun, `jobs` shows the progress
#[utoipa::path(post, path = "/api/v1/pools/{name}/drain", tag = "pools",
    params(("name" = String, Path, description = "The pool")), request_body = DrainedDevice,
    responses((status = 200, description = "Begun, or cancelled", body = PoolReport)))]
async fn drain_pool_device(
    State(shared): State<Arc<Shared>>,
    PathName(name): PathName,
    Json(drained): Json<DrainedDevice>,
) -> Result<Json<PoolReport>, Problem> {
    let DrainedDevice { device, cancel } = drained;
    pool(&shared, Request::PoolDrain { name, device, cancel }).await
}

/// A device to replace.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct ReplacedDevice {
    /// The path of the device that leaves, or the number of its group.
    device: String,
    /// The new device; optional with `lost`.
    path: Option<String>,
    /// Destroy what the new device holds.
    #[serde(default)]
    force: bool,
    /// The device that leaves is absent: give up what it holds.
    #[serde(default)]
    lost: bool,
}

/// Add a device to the tier of another one and drain that one, or give it up; `jobs` shows the progress of a drain
#[utoipa::path(post, path = "/api/v1/pools/{name}/replace", tag = "pools",
    params(("name" = String, Path, description = "The pool")), request_body = ReplacedDevice,
    responses((status = 200, description = "Begun, or given up", body = PoolReport)))]
async fn replace_pool_device(
    State(shared): State<Arc<Shared>>,
    PathName(name): PathName,
    Json(replaced): Json<ReplacedDevice>,
) -> Result<Json<PoolReport>, Problem> {
    let ReplacedDevice { device, path, force, lost } = replaced;
    pool(&shared, Request::PoolReplace { name, device, path, force, lost }).await
}

/// Properties of a volume in its pool.
#[derive(Deserialize, ToSchema)]
struct PoolVolumeChange {
    /// `auto`, `start-high`, `highest`, `lowest`, or the name of a tier.
    tier_policy: String,
}

/// Change the tier policy of a volume; its slices move later
#[utoipa::path(patch, path = "/api/v1/pools/{name}/volumes/{volume}", tag = "pools",
    params(("name" = String, Path, description = "The pool"), ("volume" = String, Path, description = "The volume")),
    request_body = PoolVolumeChange, responses((status = 200, description = "Changed", body = PoolReport)))]
async fn change_pool_volume(
    State(shared): State<Arc<Shared>>,
    PathNames((name, volume)): PathNames,
    Json(change): Json<PoolVolumeChange>,
) -> Result<Json<PoolReport>, Problem> {
    pool(&shared, Request::PoolSetPolicy { name, volume, tier_policy: change.tier_policy }).await
}

/// Delete a volume that is not served, with its data in the pool
#[utoipa::path(delete, path = "/api/v1/pools/{name}/volumes/{volume}", tag = "pools",
    params(("name" = String, Path, description = "The pool"), ("volume" = String, Path, description = "The volume")),
    responses((status = 200, description = "Deleted", body = PoolReport)))]
async fn delete_pool_volume(
    State(shared): State<Arc<Shared>>,
    PathNames((name, volume)): PathNames,
) -> Result<Json<PoolReport>, Problem> {
    pool(&shared, Request::PoolDeleteVolume { name, volume }).await
}

/// Sends a request whose result is a pool's report.
async fn pool(shared: &Shared, request: Request) -> Result<Json<PoolReport>, Problem> {
    match shared.control.request(request).await? {
        Answer::Pool(report) => Ok(Json(*report)),
        _ => Err(unexpected()),
    }
}

/// Sends a request whose result is a plan.
async fn plan(shared: &Shared, request: Request) -> Result<Json<PoolPlanReport>, Problem> {
    match shared.control.request(request).await? {
        Answer::PoolPlan(report) => Ok(Json(*report)),
        _ => Err(unexpected()),
    }
}
