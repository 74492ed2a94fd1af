//! `datastores`: congestion, the use by each volume, and sums over the volumes.

use std::collections::BTreeSet;
use std::sync::Arc;

use axum::extract::State;
use messages::report::DatastoreReport;
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

/// A datastore: its state, and sums over its volumes since the daemon started. The name is empty for volumes without a
/// datastore, whose congestion is unknown.
#[derive(Serialize, ToSchema)]
struct Datastore {
    #[serde(flatten)]
    report: DatastoreReport,
    #[serde(flatten)]
    totals: Totals,
}

/// Datastores by name, with congestion, the use by each volume, and sums over volumes
#[utoipa::path(get, path = "/api/v1/datastores", tag = "datastores",
    responses((status = 200, description = "All configured datastores, datastores that have volumes, and the flash \
        devices as a datastore of their own",
        body = Vec<Datastore>)))]
async fn list_datastores(State(shared): State<Arc<Shared>>) -> Result<Json<Vec<Datastore>>, Problem> {
    let status = shared.status().await?;
    let mut totals = by_datastore(&status.volumes);
    let reported: BTreeSet<&str> = status.datastores.iter().map(|datastore| datastore.name.as_str()).collect();
    let unreported = totals.keys().filter(|name| !reported.contains(**name));
    let unreported = unreported.map(|name| DatastoreReport { name: (*name).to_owned(), ..DatastoreReport::default() });
    let mut reports: Vec<DatastoreReport> = unreported.chain(status.datastores.iter().cloned()).collect();
    reports.sort_by(|left, right| left.name.cmp(&right.name));
    let datastores = reports.into_iter().map(|report| {
        let totals = totals.remove(report.name.as_str()).unwrap_or_default();
        Datastore { report, totals }
    });
    Ok(Json(datastores.collect()))
}
