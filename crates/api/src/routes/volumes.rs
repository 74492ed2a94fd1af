//! `volumes`: list volumes page by page; add one.

use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use messages::{Answer, Request, VolumeReport};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::{Routes, Shared, unexpected};
use crate::extract::{Json, QueryParameters};
use crate::problem::Problem;

/// Volumes on a page by default.
const LIMIT_DEFAULT: u32 = 100;
/// Volumes on a page at most.
const LIMIT_MAX: u32 = 1000;

pub(super) fn routes() -> Routes {
    OpenApiRouter::new().routes(routes!(list_volumes, add_volume))
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct PageParameters {
    /// How many, 1 to 1000; without it 100
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<u32>,
    /// Volumes whose names come after this one
    after: Option<String>,
}

/// A page of volumes, by name.
#[derive(Serialize, ToSchema)]
struct VolumesPage {
    volumes: Vec<VolumeReport>,
    /// Value of `after` for the next page; null on the last one.
    #[schema(required)]
    next: Option<String>,
}

/// Volumes by name, page by page
#[utoipa::path(get, path = "/api/v1/volumes", tag = "volumes", params(PageParameters),
    responses((status = 200, description = "A page", body = VolumesPage)))]
async fn list_volumes(
    State(shared): State<Arc<Shared>>,
    QueryParameters(parameters): QueryParameters<PageParameters>,
) -> Result<Json<VolumesPage>, Problem> {
    let limit = parameters.limit.unwrap_or(LIMIT_DEFAULT);
    if !(1..=LIMIT_MAX).contains(&limit) {
        let text = format!("limit is {limit}; ask for 1 to {LIMIT_MAX} volumes");
        return Err(Problem::new(StatusCode::BAD_REQUEST, text));
    }
    let Answer::Volumes(all) = shared.control.request(Request::VolumeList {}).await? else { return Err(unexpected()) };
    Ok(Json(page(all, limit as usize, parameters.after.as_deref())))
}

fn page(mut reports: Vec<VolumeReport>, limit: usize, after: Option<&str>) -> VolumesPage {
    reports.sort_by(|first, second| first.name.cmp(&second.name));
    let mut volumes: Vec<_> =
        reports.into_iter().filter(|volume| after.is_none_or(|after| volume.name.as_str() > after)).collect();
    let is_last = volumes.len() <= limit;
    volumes.truncate(limit);
    let next = volumes.last().map(|volume| volume.name.clone()).filter(|_| !is_last);
    VolumesPage { volumes, next }
}

/// A volume to add.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct NewVolume {
    name: String,
    /// A path or a URI, as in the configuration.
    backing: String,
    /// Only for a backing without a size of its own.
    size_bytes: Option<u64>,
    policy: Option<String>,
    #[serde(default)]
    read_only: bool,
    /// Only for a new volume on a pool: `auto`, `start-high`, `highest`, `lowest` or the name of a tier; without it
    /// `auto`.
    tier_policy: Option<String>,
    /// Only for a new volume on a pool: `thin` or `thick`; without it `thin`.
    provisioning: Option<String>,
}

/// Add a volume; it stays across a restart
#[utoipa::path(post, path = "/api/v1/volumes", tag = "volumes", request_body = NewVolume,
    responses((status = 201, description = "It is served", body = VolumeReport)))]
async fn add_volume(
    State(shared): State<Arc<Shared>>,
    Json(volume): Json<NewVolume>,
) -> Result<(StatusCode, Json<VolumeReport>), Problem> {
    let NewVolume { name, backing, size_bytes, policy, read_only, tier_policy, provisioning } = volume;
    let request = Request::VolumeAdd { name, backing, size_bytes, policy, read_only, tier_policy, provisioning };
    Ok((StatusCode::CREATED, Json(shared.volume(request).await?)))
}

#[cfg(test)]
mod tests {
    use messages::VolumeState;

    use super::*;

    #[test]
    fn pages_hold_every_volume_once() {
        let names = ["b", "d", "a", "c", "e"];
        let volumes = || names.map(|name| VolumeReport::idle(name, VolumeState::Active, "none", "/x")).to_vec();
        for limit in 1..7 {
            let (mut seen, mut after) = (Vec::new(), None);
            loop {
                let page = page(volumes(), limit, after.as_deref());
                assert!(page.volumes.len() <= limit);
                seen.extend(page.volumes.into_iter().map(|volume| volume.name));
                after = page.next;
                if after.is_none() {
                    break;
                }
            }
            assert_eq!(seen, ["a", "b", "c", "d", "e"], "{limit} a page");
        }
    }
}
