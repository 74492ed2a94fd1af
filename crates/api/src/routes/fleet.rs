//! `fleet` and the actions on the ownership of volumes that several hosts have in their configuration.

use std::sync::Arc;

use axum::extract::State;
use messages::report::{FleetHostReport, FleetVolumeReport};
use messages::{Answer, Request, VolumeReport};
use serde::Deserialize;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::actions::ActionMessages;
use super::{Routes, Shared, unexpected};
use crate::extract::{Json, OptionalJson, PathName};
use crate::problem::Problem;

pub(super) fn routes() -> Routes {
    OpenApiRouter::new()
        .routes(routes!(list_fleet))
        .routes(routes!(list_hosts))
        .routes(routes!(drain))
        .routes(routes!(move_volume))
        .routes(routes!(take_over))
        .routes(routes!(take_over_host))
}

/// Volumes on images that several hosts can own, each with its owner
#[utoipa::path(get, path = "/api/v1/fleet", tag = "fleet",
    responses((status = 200, description = "As it is now", body = Vec<FleetVolumeReport>)))]
async fn list_fleet(State(shared): State<Arc<Shared>>) -> Result<Json<Vec<FleetVolumeReport>>, Problem> {
    match shared.control.request(Request::VolumeList {}).await? {
        Answer::Volumes(volumes) => Ok(Json(FleetVolumeReport::of(&volumes))),
        _ => Err(unexpected()),
    }
}

/// All hosts of the fleet, this one first, each with its volumes on images that several hosts can own
#[utoipa::path(get, path = "/api/v1/fleet/hosts", tag = "fleet",
    responses((status = 200, description = "As they are now; a host without an answer has an error",
        body = Vec<FleetHostReport>)))]
async fn list_hosts(State(shared): State<Arc<Shared>>) -> Result<Json<Vec<FleetHostReport>>, Problem> {
    match shared.control.request(Request::FleetHosts {}).await? {
        Answer::FleetHosts(hosts) => Ok(Json(hosts)),
        _ => Err(unexpected()),
    }
}

/// Move all volumes on images that several hosts can own away from this host
#[utoipa::path(post, path = "/api/v1/fleet/drain", tag = "fleet",
    responses((status = 200, description = "Done", body = ActionMessages)))]
async fn drain(State(shared): State<Arc<Shared>>) -> Result<Json<ActionMessages>, Problem> {
    shared.messages(Request::FleetDrain {}).await.map(|messages| Json(ActionMessages { messages }))
}

/// Options of a move.
#[derive(Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct Move {
    /// The host that may claim the image; without it any.
    to: Option<String>,
}

/// Destage a volume, release its image for another host, and stop serving it; on standby the owner is asked
#[utoipa::path(post, path = "/api/v1/volumes/{name}/move", tag = "fleet",
    params(("name" = String, Path, description = "The volume")), request_body = Option<Move>,
    responses((status = 200, description = "Released", body = VolumeReport)))]
async fn move_volume(
    State(shared): State<Arc<Shared>>,
    PathName(name): PathName,
    OptionalJson(options): OptionalJson<Move>,
) -> Result<Json<VolumeReport>, Problem> {
    shared.volume(Request::FleetMove { name, to: options.to }).await.map(Json)
}

/// Options of a take-over.
#[derive(Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct TakeOver {
    /// The host that has to be the owner; without it whoever is.
    from: Option<String>,
    /// The name of the undestaged data of another host that may be lost.
    give_up: Option<String>,
    /// The owner's host is known to be off: the end of its lease is not waited for.
    #[serde(default)]
    fenced: bool,
}

/// Take a volume on standby over from its owner, whose client the cluster blocks
#[utoipa::path(post, path = "/api/v1/volumes/{name}/take-over", tag = "fleet",
    params(("name" = String, Path, description = "The volume")), request_body = Option<TakeOver>,
    responses((status = 200, description = "In service", body = VolumeReport)))]
async fn take_over(
    State(shared): State<Arc<Shared>>,
    PathName(name): PathName,
    OptionalJson(options): OptionalJson<TakeOver>,
) -> Result<Json<VolumeReport>, Problem> {
    let TakeOver { from, give_up, fenced } = options;
    shared.volume(Request::FleetTakeOver { name, from, give_up, fenced }).await.map(Json)
}

/// The host that volumes are taken over from.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct TakeOverHost {
    /// The host.
    host: String,
    /// It is known to be off: the end of its lease is not waited for.
    #[serde(default)]
    fenced: bool,
}

/// Take over all volumes on standby that a host owns, or of which it has undestaged data
#[utoipa::path(post, path = "/api/v1/fleet/take-over", tag = "fleet", request_body = TakeOverHost,
    responses((status = 200, description = "All are in service", body = ActionMessages)))]
async fn take_over_host(
    State(shared): State<Arc<Shared>>,
    Json(TakeOverHost { host, fenced }): Json<TakeOverHost>,
) -> Result<Json<ActionMessages>, Problem> {
    let messages = shared.messages(Request::FleetTakeOverHost { host, fenced }).await?;
    Ok(Json(ActionMessages { messages }))
}
