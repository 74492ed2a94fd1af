//! `datastores`: sums over the volumes of each, for load and latency by what they share.

use std::sync::Arc;

use axum::extract::State;
use serde::Serialize;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::{Routes, Shared};
use crate::extract::Json;
use crate::problem::Problem;
use crate::totals::{Totals, by_datastore};

pub(super) fn routes() -> Routes {
    OpenApiRouter::new().routes(routes!(list_datastores))
}

/// A datastore: what its volumes have done together since the start, and hold.
#[derive(Serialize, ToSchema)]
struct Datastore {
    /// Its name; empty for volumes without one.
    name: String,
    #[serde(flatten)]
    totals: Totals,
}

/// Datastores by name, with sums over their volumes
#[utoipa::path(get, path = "/api/v1/datastores", tag = "datastores",
    responses((status = 200, description = "Those that have volumes", body = Vec<Datastore>)))]
async fn list_datastores(State(shared): State<Arc<Shared>>) -> Result<Json<Vec<Datastore>>, Problem> {
    let status = shared.status().await?;
    let sums = by_datastore(&status.volumes).into_iter();
    Ok(Json(sums.map(|(name, totals)| Datastore { name: name.to_owned(), totals }).collect()))
}
