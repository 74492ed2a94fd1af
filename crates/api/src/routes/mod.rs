//! The routes, one file each. The router and the OpenAPI document come from the same list.

mod actions;
mod advice;
mod alerts;
mod configuration;
mod datastores;
mod document;
mod events;
mod flash;
mod fleet;
mod health;
mod history;
mod jobs;
mod login;
mod metrics;
mod page;
mod pools;
mod snapshots;
mod status;
mod stream;
mod tokens;
mod volume;
mod volumes;

use std::sync::Arc;

use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::http::{Method, StatusCode, Uri};
use utoipa_axum::router::OpenApiRouter;

use crate::extract::BODY_BYTES_MAX;
use crate::problem::Problem;
use crate::shared::{Shared, unexpected};

/// A set of routes.
type Routes = OpenApiRouter<Arc<Shared>>;

/// All routes.
pub fn router(shared: Arc<Shared>) -> Router {
    let (router, document) = all_routes().split_for_parts();
    router
        .merge(document::document_route(document))
        .fallback(async |uri: Uri| not_found(&uri))
        .method_not_allowed_fallback(async |method: Method, uri: Uri| method_not_allowed(&method, &uri))
        .layer(axum::middleware::from_fn_with_state(shared.clone(), crate::guard::guard))
        .layer(DefaultBodyLimit::max(BODY_BYTES_MAX))
        .with_state(shared)
}

fn all_routes() -> Routes {
    document::head()
        .merge(status::routes())
        .merge(volumes::routes())
        .merge(volume::routes())
        .merge(history::routes())
        .merge(advice::routes())
        .merge(actions::routes())
        .merge(datastores::routes())
        .merge(flash::routes())
        .merge(fleet::routes())
        .merge(pools::routes())
        .merge(snapshots::routes())
        .merge(jobs::routes())
        .merge(events::routes())
        .merge(alerts::routes())
        .merge(configuration::routes())
        .merge(stream::routes())
        .merge(metrics::routes())
        .merge(health::routes())
        .merge(login::routes())
        .merge(tokens::routes())
        .merge(page::routes())
}

fn not_found(uri: &Uri) -> Problem {
    let text = format!("there is nothing at {}; /api/v1/openapi.json lists all paths", uri.path());
    Problem::new(StatusCode::NOT_FOUND, text)
}

fn method_not_allowed(method: &Method, uri: &Uri) -> Problem {
    let text = format!("{} does not support {method}; /api/v1/openapi.json lists the supported methods", uri.path());
    Problem::new(StatusCode::METHOD_NOT_ALLOWED, text)
}
