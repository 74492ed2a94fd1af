//! `pools`: tiers, groups and volumes of the open pools.

use std::sync::Arc;

use axum::extract::State;
use messages::report::PoolReport;
use messages::{Answer, Request};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::{Routes, Shared};
use crate::extract::Json;
use crate::problem::Problem;
use crate::shared::unexpected;

pub(super) fn routes() -> Routes {
    OpenApiRouter::new().routes(routes!(list_pools))
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
