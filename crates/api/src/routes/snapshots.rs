//! `volumes/{name}/snapshots`: snapshots of a volume on a pool.

use std::sync::Arc;

use axum::extract::State;
use messages::report::SnapshotsReport;
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
        .routes(routes!(list_snapshots, create_snapshot))
        .routes(routes!(delete_snapshot))
        .routes(routes!(roll_back))
        .routes(routes!(clone_snapshot))
}

/// Snapshots of a volume on a pool
#[utoipa::path(get, path = "/api/v1/volumes/{name}/snapshots", tag = "snapshots",
    params(("name" = String, Path, description = "The volume")),
    responses((status = 200, description = "The snapshots, the oldest first", body = SnapshotsReport)))]
async fn list_snapshots(
    State(shared): State<Arc<Shared>>,
    PathName(name): PathName,
) -> Result<Json<SnapshotsReport>, Problem> {
    snapshots(&shared, Request::SnapshotList { name }).await
}

/// A snapshot to take.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct NewSnapshot {
    /// Its name.
    name: String,
}

/// Take a snapshot with all data acknowledged before, while the volume serves
#[utoipa::path(post, path = "/api/v1/volumes/{name}/snapshots", tag = "snapshots",
    params(("name" = String, Path, description = "The volume")), request_body = NewSnapshot,
    responses((status = 200, description = "Taken", body = SnapshotsReport)))]
async fn create_snapshot(
    State(shared): State<Arc<Shared>>,
    PathName(name): PathName,
    Json(new): Json<NewSnapshot>,
) -> Result<Json<SnapshotsReport>, Problem> {
    snapshots(&shared, Request::SnapshotCreate { name, snapshot: new.name }).await
}

/// Delete a snapshot
#[utoipa::path(delete, path = "/api/v1/volumes/{name}/snapshots/{snapshot}", tag = "snapshots",
    params(("name" = String, Path, description = "The volume"),
        ("snapshot" = String, Path, description = "The snapshot")),
    responses((status = 200, description = "Deleted", body = SnapshotsReport)))]
async fn delete_snapshot(
    State(shared): State<Arc<Shared>>,
    PathNames((name, snapshot)): PathNames,
) -> Result<Json<SnapshotsReport>, Problem> {
    snapshots(&shared, Request::SnapshotDelete { name, snapshot }).await
}

/// Options of a roll back.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct RollbackOptions {
    /// Disconnect the clients of the volume.
    #[serde(default)]
    force: bool,
}

/// Return a volume to a snapshot; data written since is lost
#[utoipa::path(post, path = "/api/v1/volumes/{name}/snapshots/{snapshot}/rollback", tag = "snapshots",
    params(("name" = String, Path, description = "The volume"),
        ("snapshot" = String, Path, description = "The snapshot")),
    request_body = RollbackOptions,
    responses((status = 200, description = "Rolled back", body = SnapshotsReport)))]
async fn roll_back(
    State(shared): State<Arc<Shared>>,
    PathNames((name, snapshot)): PathNames,
    Json(RollbackOptions { force }): Json<RollbackOptions>,
) -> Result<Json<SnapshotsReport>, Problem> {
    snapshots(&shared, Request::SnapshotRollback { name, snapshot, force }).await
}

/// A clone to create.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct NewClone {
    /// Name of the new volume.
    volume: String,
}

/// Create a volume in the same pool with the content of a snapshot; it is not served until it is added
#[utoipa::path(post, path = "/api/v1/volumes/{name}/snapshots/{snapshot}/clone", tag = "snapshots",
    params(("name" = String, Path, description = "The volume"),
        ("snapshot" = String, Path, description = "The snapshot")),
    request_body = NewClone,
    responses((status = 200, description = "Created", body = SnapshotsReport)))]
async fn clone_snapshot(
    State(shared): State<Arc<Shared>>,
    PathNames((name, snapshot)): PathNames,
    Json(NewClone { volume }): Json<NewClone>,
) -> Result<Json<SnapshotsReport>, Problem> {
    snapshots(&shared, Request::SnapshotClone { name, snapshot, new_volume: volume }).await
}

/// Sends a request whose result are the snapshots of a volume.
async fn snapshots(shared: &Shared, request: Request) -> Result<Json<SnapshotsReport>, Problem> {
    match shared.control.request(request).await? {
        Answer::Snapshots(report) => Ok(Json(*report)),
        _ => Err(unexpected()),
    }
}
