//! `history`: figures over time, of a volume, a datastore or the whole daemon, as JSON or as comma-separated values.

use std::sync::Arc;

use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use messages::report::HistoryReport;
use messages::{Answer, Request, unix_time};
use serde::Deserialize;
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::{Routes, Shared, unexpected};
use crate::extract::{Json, PathName, QueryParameters};
use crate::problem::Problem;

/// Maximum number of series names in a query: twice the number of series.
const SERIES_MAX: usize = 96;
/// The media type of comma-separated values.
const CSV: &str = "text/csv";

pub(super) fn routes() -> Routes {
    OpenApiRouter::new().routes(routes!(volume_history)).routes(routes!(total_history))
}

/// Format of the answer.
#[derive(Clone, Copy, Deserialize, PartialEq, Eq, ToSchema)]
#[serde(rename_all = "lowercase")]
enum Format {
    Json,
    Csv,
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct HistoryParameters {
    /// The datastore whose volumes are summed; empty for volumes without one. Not for a volume's own history
    datastore: Option<String>,
    /// The pool, with figures of its own. Not for a volume's own history
    pool: Option<String>,
    /// `-1h`, `2026-11-22T05:51:03Z` or seconds since 1970; an hour before the end without it
    from: Option<String>,
    /// The same; now without it
    to: Option<String>,
    /// `10s`, `5min`, `1h` or seconds; 3660 steps at most
    step: Option<String>,
    /// Names with commas between them; all without it
    series: Option<String>,
    /// Without it the format of the `Accept` header, else JSON
    #[param(inline)]
    format: Option<Format>,
}

/// A volume's figures over time: sum, mean, least and most of each step, and percentiles of all its requests
#[utoipa::path(get, path = "/api/v1/volumes/{name}/history", tag = "history",
    params(("name" = String, Path, description = "The volume"), HistoryParameters),
    responses((status = 200, description = "In columns",
        content((HistoryReport = "application/json"), (String = "text/csv")))))]
async fn volume_history(
    State(shared): State<Arc<Shared>>,
    PathName(name): PathName,
    QueryParameters(parameters): QueryParameters<HistoryParameters>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    history(&shared, Some(name), parameters, &headers).await
}

/// Figures over time of all volumes, of a datastore's volumes or of a pool, and of the daemon's memory and flash
#[utoipa::path(get, path = "/api/v1/history", tag = "history", params(HistoryParameters),
    responses((status = 200, description = "In columns",
            content((HistoryReport = "application/json"), (String = "text/csv"))),
        (status = 404, description = "There is no such datastore", body = Problem,
            content_type = "application/problem+json"),
        (status = 409, description = "No history is kept", body = Problem, content_type = "application/problem+json")))]
async fn total_history(
    State(shared): State<Arc<Shared>>,
    QueryParameters(parameters): QueryParameters<HistoryParameters>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    history(&shared, None, parameters, &headers).await
}

async fn history(
    shared: &Shared,
    volume: Option<String>,
    parameters: HistoryParameters,
    headers: &HeaderMap,
) -> Result<Response, Problem> {
    let is_csv = parameters.format.map_or_else(|| prefers_csv(headers), |format| format == Format::Csv);
    let request = request(volume, parameters, unix_time::now().as_secs())
        .map_err(|text| Problem::new(StatusCode::BAD_REQUEST, text))?;
    let Answer::History(report) = shared.control.request(request).await? else { return Err(unexpected()) };
    Ok(match is_csv {
        true => ([(header::CONTENT_TYPE, CSV)], report.to_csv()).into_response(),
        false => Json(report).into_response(),
    })
}

/// True if `Accept` names CSV and not JSON.
fn prefers_csv(headers: &HeaderMap) -> bool {
    let accepted = headers.get_all(header::ACCEPT).iter().filter_map(|accepted| accepted.to_str().ok());
    let accepted: Vec<&str> = accepted.flat_map(|accepted| accepted.split(',')).map(str::trim).collect();
    let accepts = |media_type: &str| accepted.iter().any(|accepted| accepted.split(';').next() == Some(media_type));
    accepts(CSV) && !accepts("application/json")
}

fn request(volume: Option<String>, parameters: HistoryParameters, now: u64) -> Result<Request, String> {
    let time = |text: Option<String>| text.map(|text| unix_time::parse(&text, now)).transpose();
    let series: Vec<String> = parameters.series.iter().flat_map(|names| names.split(',')).map(str::to_owned).collect();
    if series.len() > SERIES_MAX {
        return Err(format!("{} series requested; request {SERIES_MAX} at most", series.len()));
    }
    Ok(Request::History {
        volume,
        datastore: parameters.datastore,
        pool: parameters.pool,
        from_unix_seconds: time(parameters.from)?,
        to_unix_seconds: time(parameters.to)?,
        step_seconds: parameters.step.map(|step| unix_time::parse_duration(&step)).transpose()?,
        series,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn query_becomes_the_control_request() {
        let parameters = |from: &str, step: &str| HistoryParameters {
            datastore: None,
            pool: None,
            from: Some(from.to_owned()),
            to: None,
            step: Some(step.to_owned()),
            series: Some("reads,read_latency".to_owned()),
            format: None,
        };
        let expected = Request::History {
            volume: Some("v".to_owned()),
            datastore: None,
            pool: None,
            from_unix_seconds: Some(6_400),
            to_unix_seconds: None,
            step_seconds: Some(300),
            series: vec!["reads".to_owned(), "read_latency".to_owned()],
        };
        assert_eq!(request(Some("v".to_owned()), parameters("-1h", "5min"), 10_000), Ok(expected));
        assert!(request(None, parameters("soon", "1"), 7).is_err_and(|text| text.contains("soon")));
        assert!(request(None, parameters("now", "fast"), 7).is_err_and(|text| text.contains("fast")));
        let many = HistoryParameters { series: Some("a,".repeat(100)), ..parameters("now", "1") };
        assert!(request(None, many, 7).is_err());
    }

    #[test]
    fn csv_is_sent_only_where_accept_prefers_it() {
        let prefers = |accept: &str| {
            let headers = HeaderMap::from_iter([(header::ACCEPT, accept.parse().expect("a header"))]);
            prefers_csv(&headers)
        };
        assert!(prefers("text/csv") && prefers("text/html, text/csv;q=0.9"));
        assert!(!prefers("*/*") && !prefers("application/json, text/csv") && !prefers_csv(&HeaderMap::new()));
    }
}
