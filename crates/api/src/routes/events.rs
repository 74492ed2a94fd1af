//! `events`: the entries of the event log with their actors, page by page.

use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use messages::report::{EventKind, EventsPage};
use messages::{Answer, Request, unix_time};
use serde::Deserialize;
use utoipa::IntoParams;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::{Routes, Shared, unexpected};
use crate::extract::{Json, QueryParameters};
use crate::problem::Problem;

/// Events on a page by default.
const LIMIT_DEFAULT: u32 = 100;
/// Events on a page at most.
const LIMIT_MAX: u32 = 1000;

pub(super) fn routes() -> Routes {
    OpenApiRouter::new().routes(routes!(list_events))
}

#[derive(Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct PageParameters {
    /// How many, 1 to 1000; without it 100
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<u32>,
    /// Events before this number: `next` of the page before
    before: Option<u64>,
    /// Events after this number
    after: Option<u64>,
    /// Events from this time on: `-1h`, `2026-11-22T05:51:03Z` or seconds since 1970
    since: Option<String>,
    /// Events before this time, written the same way
    until: Option<String>,
    /// Events of this volume or device
    subject: Option<String>,
    /// Events of this kind
    #[param(inline)]
    kind: Option<EventKind>,
}

/// Events with their actors, the newest first
#[utoipa::path(get, path = "/api/v1/events", tag = "daemon", params(PageParameters),
    responses((status = 200, description = "A page", body = EventsPage)))]
async fn list_events(
    State(shared): State<Arc<Shared>>,
    QueryParameters(parameters): QueryParameters<PageParameters>,
) -> Result<Json<EventsPage>, Problem> {
    let request = request(parameters, unix_time::now().as_secs());
    let request = request.map_err(|text| Problem::new(StatusCode::BAD_REQUEST, text))?;
    match shared.control.request(request).await? {
        Answer::Events(page) => Ok(Json(page)),
        _ => Err(unexpected()),
    }
}

fn request(parameters: PageParameters, now: u64) -> Result<Request, String> {
    let PageParameters { limit, before, after, since, until, subject, kind } = parameters;
    let limit = limit.unwrap_or(LIMIT_DEFAULT);
    if !(1..=LIMIT_MAX).contains(&limit) {
        return Err(format!("limit is {limit}; ask for 1 to {LIMIT_MAX} events"));
    }
    let time = |text: Option<String>| text.map(|text| unix_time::parse(&text, now)).transpose();
    let (since_unix_seconds, until_unix_seconds) = (time(since)?, time(until)?);
    Ok(Request::Events { limit, before, after, since_unix_seconds, until_unix_seconds, subject, kind })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn query_becomes_the_control_request() {
        let parameters =
            PageParameters { since: Some("-1h".to_owned()), kind: Some(EventKind::Alert), ..PageParameters::default() };
        let expected = Request::Events {
            limit: 100,
            before: None,
            after: None,
            since_unix_seconds: Some(6_400),
            until_unix_seconds: None,
            subject: None,
            kind: Some(EventKind::Alert),
        };
        assert_eq!(request(parameters, 10_000), Ok(expected));
        assert!(
            request(PageParameters { limit: Some(1001), ..PageParameters::default() }, 7)
                .is_err_and(|text| text.contains("1001"))
        );
        let invalid = PageParameters { until: Some("soon".to_owned()), ..PageParameters::default() };
        assert!(request(invalid, 7).is_err_and(|text| text.contains("soon")));
    }
}
