//! `volumes/{name}`: one volume, its settings, miss-ratio curves, slow requests and heat map.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use messages::report::{HeatReport, MissRatioCurve, SlowReport};
use messages::{Answer, Request, VolumeReport};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::{Routes, Shared, unexpected};
use crate::extract::{Json, PathName};
use crate::problem::Problem;

pub(super) fn routes() -> Routes {
    OpenApiRouter::new()
        .routes(routes!(show_volume, set_volume, remove_volume))
        .routes(routes!(miss_ratio_curve))
        .routes(routes!(slow_requests))
        .routes(routes!(heat))
}

/// Everything about one volume
#[utoipa::path(get, path = "/api/v1/volumes/{name}", tag = "volumes",
    params(("name" = String, Path, description = "The volume")),
    responses((status = 200, description = "As it is now", body = VolumeReport)))]
async fn show_volume(
    State(shared): State<Arc<Shared>>,
    PathName(name): PathName,
) -> Result<Json<VolumeReport>, Problem> {
    shared.volume(Request::VolumeShow { name }).await.map(Json)
}

/// Settings that can be changed while a volume is served. An absent one stays as it is.
#[derive(Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct Settings {
    /// `write-back`, `write-through`, `write-around`, `none` or `write-back-volatile`.
    #[serde(skip_serializing_if = "Option::is_none")]
    policy: Option<String>,
    /// A size or percent of memory that is reserved for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    memory_min: Option<String>,
    /// A size, percent or `none`.
    #[serde(skip_serializing_if = "Option::is_none")]
    memory_max: Option<String>,
    /// A size or percent of flash that is reserved for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    flash_min: Option<String>,
    /// A size, percent or `none`.
    #[serde(skip_serializing_if = "Option::is_none")]
    flash_max: Option<String>,
    /// Declares the backing lost: the target reports the LUN as permanently gone to iSCSI initiators.
    #[serde(skip_serializing_if = "Option::is_none")]
    declared_lost: Option<bool>,
    /// Its weight under contention: `low`, `normal`, `high` or a number.
    #[serde(skip_serializing_if = "Option::is_none")]
    shares: Option<Figure>,
    /// Requests per second at most; 0: no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    limit_iops: Option<Figure>,
    /// Bytes per second at most, a number or a size such as `20 MB`; 0: no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    limit_bytes: Option<Figure>,
    /// Requests that may come at once above the limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    burst_iops: Option<Figure>,
    /// Bytes that may come at once above the limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    burst_bytes: Option<Figure>,
    /// Requests of 4 KiB per second that its datastore guarantees it; 0: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    reservation_iops: Option<Figure>,
}

/// A number, or a text as in the configuration.
#[derive(Deserialize, Serialize, ToSchema)]
#[serde(untagged)]
enum Figure {
    /// A whole number.
    Number(u64),
    /// A text as in the configuration.
    Text(String),
}

impl fmt::Display for Figure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Figure::Number(number) => number.fmt(f),
            Figure::Text(text) => text.fmt(f),
        }
    }
}

impl Settings {
    /// Keys and values for the control message.
    fn pairs(self) -> BTreeMap<String, String> {
        // Destructured, so that the compiler notices a new setting.
        let Settings {
            policy,
            memory_min,
            memory_max,
            flash_min,
            flash_max,
            declared_lost,
            shares,
            limit_iops,
            limit_bytes,
            burst_iops,
            burst_bytes,
            reservation_iops,
        } = self;
        let text = |value: Option<Figure>| value.map(|value| value.to_string());
        let pairs = [
            ("policy", policy),
            ("memory_min", memory_min),
            ("memory_max", memory_max),
            ("flash_min", flash_min),
            ("flash_max", flash_max),
            ("declared_lost", declared_lost.map(|lost| lost.to_string())),
            ("shares", text(shares)),
            ("limit_iops", text(limit_iops)),
            ("limit_bytes", text(limit_bytes)),
            ("burst_iops", text(burst_iops)),
            ("burst_bytes", text(burst_bytes)),
            ("reservation_iops", text(reservation_iops)),
        ];
        pairs.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?))).collect()
    }
}

/// Change settings; they hold across a restart until their key changes in the configuration
#[utoipa::path(patch, path = "/api/v1/volumes/{name}", tag = "volumes",
    params(("name" = String, Path, description = "The volume")),
    request_body = Settings,
    responses((status = 200, description = "As it is now", body = VolumeReport)))]
async fn set_volume(
    State(shared): State<Arc<Shared>>,
    PathName(name): PathName,
    Json(settings): Json<Settings>,
) -> Result<Json<VolumeReport>, Problem> {
    shared.volume(Request::VolumeSet { name, settings: settings.pairs() }).await.map(Json)
}

/// Destage a volume, flush its backing and stop serving it; answers when that is done
#[utoipa::path(delete, path = "/api/v1/volumes/{name}", tag = "volumes",
    params(("name" = String, Path, description = "The volume")),
    responses((status = 204, description = "Removed; its backing is complete")))]
async fn remove_volume(State(shared): State<Arc<Shared>>, PathName(name): PathName) -> Result<StatusCode, Problem> {
    shared.messages(Request::VolumeRemove { name, give_up: None }).await.map(|_| StatusCode::NO_CONTENT)
}

/// Miss ratios of caches of other sizes
#[utoipa::path(get, path = "/api/v1/volumes/{name}/miss-ratio-curve", tag = "volumes",
    params(("name" = String, Path, description = "The volume")),
    responses((status = 200, description = "The curves of memory and of flash", body = MissRatioCurve)))]
async fn miss_ratio_curve(
    State(shared): State<Arc<Shared>>,
    PathName(name): PathName,
) -> Result<Json<MissRatioCurve>, Problem> {
    let report = shared.volume(Request::VolumeShow { name }).await?;
    let no_curve = || {
        let text = format!("volume {} is {}: it has no miss-ratio curve", report.name, report.state.name());
        Problem::new(StatusCode::CONFLICT, text)
    };
    report.miss_ratio_curve.clone().map(Json).ok_or_else(no_curve)
}

/// The slowest requests of the last hour, the slowest first
#[utoipa::path(get, path = "/api/v1/volumes/{name}/slow", tag = "volumes",
    params(("name" = String, Path, description = "The volume")),
    responses((status = 200, description = "With the step that each waited in", body = Vec<SlowReport>)))]
async fn slow_requests(
    State(shared): State<Arc<Shared>>,
    PathName(name): PathName,
) -> Result<Json<Vec<SlowReport>>, Problem> {
    match shared.control.request(Request::VolumeSlow { name }).await? {
        Answer::Slow(slow) => Ok(Json(slow)),
        _ => Err(unexpected()),
    }
}

/// Requests per part of a volume and minute, for the last hour
#[utoipa::path(get, path = "/api/v1/volumes/{name}/heat", tag = "volumes",
    params(("name" = String, Path, description = "The volume")),
    responses((status = 200, description = "Minutes with requests, the oldest first",
        body = HeatReport)))]
async fn heat(State(shared): State<Arc<Shared>>, PathName(name): PathName) -> Result<Json<HeatReport>, Problem> {
    match shared.control.request(Request::VolumeHeat { name }).await? {
        Answer::Heat(heat) => Ok(Json(*heat)),
        _ => Err(unexpected()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_numbers_or_texts() {
        let json = r#"{ "shares": 1500, "limit_iops": "500", "limit_bytes": "20 MB", "burst_bytes": 65536,
            "declared_lost": true }"#;
        let pairs = serde_json::from_str::<Settings>(json).expect("settings").pairs();
        let shown: Vec<_> = pairs.iter().map(|(key, value)| format!("{key}={value}")).collect();
        let expected =
            ["burst_bytes=65536", "declared_lost=true", "limit_bytes=20 MB", "limit_iops=500", "shares=1500"];
        assert_eq!(shown, expected);
        for invalid in [r#"{ "shares": -1 }"#, r#"{ "limit_iops": 0.5 }"#, r#"{ "weight": 1 }"#] {
            assert!(serde_json::from_str::<Settings>(invalid).is_err(), "{invalid}");
        }
    }
}
