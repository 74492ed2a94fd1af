//! `volumes/{name}/…`: flush, pause, freeze, resume, pin, unpin, invalidate, resize. Each answers when it is done, and
//! continues if the client disconnects.

use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use messages::report::JobReport;
use messages::{Answer, Request, VolumeReport};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::{Routes, Shared, unexpected};
use crate::extract::{Json, OptionalJson, PathName};
use crate::problem::Problem;

pub(super) fn routes() -> Routes {
    OpenApiRouter::new()
        .routes(routes!(flush))
        .routes(routes!(pause))
        .routes(routes!(freeze))
        .routes(routes!(resume))
        .routes(routes!(pin))
        .routes(routes!(unpin))
        .routes(routes!(invalidate))
        .routes(routes!(resize))
}

/// The outcome, in sentences.
#[derive(Serialize, ToSchema)]
#[schema(as = Said)]
pub(super) struct ActionMessages {
    /// The sentences.
    #[serde(rename = "said")]
    pub(super) messages: Vec<String>,
}

/// Options of a flush.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct Flush {
    /// Answer when the flush is done; otherwise with its job, once it has started.
    wait: bool,
}

impl Default for Flush {
    fn default() -> Self {
        Flush { wait: true }
    }
}

/// Destage all dirty data, then flush the backing, which is then complete. `jobs` shows the progress
#[utoipa::path(post, path = "/api/v1/volumes/{name}/flush", tag = "volumes",
    params(("name" = String, Path, description = "The volume")), request_body = Option<Flush>,
    responses(
        (status = 200, description = "Done", body = VolumeReport),
        (status = 202, description = "Started", body = JobReport),
    ))]
async fn flush(
    State(shared): State<Arc<Shared>>,
    PathName(name): PathName,
    OptionalJson(options): OptionalJson<Flush>,
) -> Result<Response, Problem> {
    match shared.control.request(Request::VolumeFlush { name, in_background: !options.wait }).await? {
        Answer::Volume(report) => Ok(Json(*report).into_response()),
        Answer::Job(job) => Ok((StatusCode::ACCEPTED, Json(job)).into_response()),
        _ => Err(unexpected()),
    }
}

/// Pass everything through, cache nothing
#[utoipa::path(post, path = "/api/v1/volumes/{name}/pause", tag = "volumes",
    params(("name" = String, Path, description = "The volume")),
    responses((status = 200, description = "Done", body = VolumeReport)))]
async fn pause(State(shared): State<Arc<Shared>>, PathName(name): PathName) -> Result<Json<VolumeReport>, Problem> {
    shared.volume(Request::VolumePause { name }).await.map(Json)
}

/// Serve hits, add nothing
#[utoipa::path(post, path = "/api/v1/volumes/{name}/freeze", tag = "volumes",
    params(("name" = String, Path, description = "The volume")),
    responses((status = 200, description = "Done", body = VolumeReport)))]
async fn freeze(State(shared): State<Arc<Shared>>, PathName(name): PathName) -> Result<Json<VolumeReport>, Problem> {
    shared.volume(Request::VolumeFreeze { name }).await.map(Json)
}

/// Cache again
#[utoipa::path(post, path = "/api/v1/volumes/{name}/resume", tag = "volumes",
    params(("name" = String, Path, description = "The volume")),
    responses((status = 200, description = "Done", body = VolumeReport)))]
async fn resume(State(shared): State<Arc<Shared>>, PathName(name): PathName) -> Result<Json<VolumeReport>, Problem> {
    shared.volume(Request::VolumeResume { name }).await.map(Json)
}

/// A range of a volume. Every 64 KiB page that it touches counts whole.
#[derive(Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct Range {
    /// First byte; without it the volume's first.
    #[serde(default)]
    from_bytes: u64,
    /// The byte after the last; without it the volume's end.
    to_bytes: Option<u64>,
}

/// Pin a range: promote it to flash in the background and never evict it. Without a body the whole volume. Ranges that
/// are pinned already stay so
#[utoipa::path(post, path = "/api/v1/volumes/{name}/pin", tag = "volumes",
    params(("name" = String, Path, description = "The volume")), request_body = Option<Range>,
    responses((status = 200, description = "Pinned; `flash.pinned_whole_pages` shows how much of it is on flash",
        body = VolumeReport)))]
async fn pin(
    State(shared): State<Arc<Shared>>,
    PathName(name): PathName,
    OptionalJson(range): OptionalJson<Range>,
) -> Result<Json<VolumeReport>, Problem> {
    let Range { from_bytes, to_bytes } = range;
    shared.volume(Request::VolumePin { name, from_bytes, to_bytes }).await.map(Json)
}

/// Unpin a range, so that it can be evicted again. Without a body all pinned ranges
#[utoipa::path(post, path = "/api/v1/volumes/{name}/unpin", tag = "volumes",
    params(("name" = String, Path, description = "The volume")), request_body = Option<Range>,
    responses((status = 200, description = "Unpinned; its pages stay until their space is needed",
        body = VolumeReport)))]
async fn unpin(
    State(shared): State<Arc<Shared>>,
    PathName(name): PathName,
    OptionalJson(range): OptionalJson<Range>,
) -> Result<Json<VolumeReport>, Problem> {
    let Range { from_bytes, to_bytes } = range;
    shared.volume(Request::VolumeUnpin { name, from_bytes, to_bytes }).await.map(Json)
}

/// Options of an invalidation.
#[derive(Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct Invalidation {
    /// The volume's name once more: discard dirty data instead of refusing.
    discard_dirty: Option<String>,
}

/// Drop all cached content, on flash too, because something else has changed the backing; refused while anything is
/// dirty
#[utoipa::path(post, path = "/api/v1/volumes/{name}/invalidate", tag = "volumes",
    params(("name" = String, Path, description = "The volume")), request_body = Option<Invalidation>,
    responses((status = 200, description = "Done", body = ActionMessages)))]
async fn invalidate(
    State(shared): State<Arc<Shared>>,
    PathName(name): PathName,
    OptionalJson(options): OptionalJson<Invalidation>,
) -> Result<Json<ActionMessages>, Problem> {
    let discard_dirty = is_confirmed(&name, options.discard_dirty.as_deref())?;
    let request = Request::VolumeInvalidate { name, discard_dirty };
    shared.messages(request).await.map(|messages| Json(ActionMessages { messages }))
}

/// Options of a resize.
#[derive(Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct Resize {
    /// The new size, a multiple of 512, for a backing that can be grown or cut; without it the backing's present size.
    size_bytes: Option<u64>,
    /// The volume's name once more: discard dirty data past the new end instead of refusing.
    discard_dirty: Option<String>,
}

/// Change the size: to the backing's present size, or to `size_bytes` for a backing that can be grown or cut
#[utoipa::path(post, path = "/api/v1/volumes/{name}/resize", tag = "volumes",
    params(("name" = String, Path, description = "The volume")), request_body = Option<Resize>,
    responses((status = 200, description = "As it is now", body = VolumeReport)))]
async fn resize(
    State(shared): State<Arc<Shared>>,
    PathName(name): PathName,
    OptionalJson(options): OptionalJson<Resize>,
) -> Result<Json<VolumeReport>, Problem> {
    let discard_dirty = is_confirmed(&name, options.discard_dirty.as_deref())?;
    shared.volume(Request::VolumeResize { name, size_bytes: options.size_bytes, discard_dirty }).await.map(Json)
}

/// Whether dirty data may be discarded: only if the request repeats the volume's name.
fn is_confirmed(name: &str, confirmation: Option<&str>) -> Result<bool, Problem> {
    if confirmation.is_some_and(|confirmation| confirmation != name) {
        let text = format!("discard_dirty discards dirty data; to confirm, set it to the volume's name: \"{name}\"");
        return Err(Problem::new(StatusCode::BAD_REQUEST, text));
    }
    Ok(confirmation.is_some())
}
