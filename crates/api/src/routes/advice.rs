//! `advice`: the benefit of each further step of memory and flash for the volumes, page by page.

use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use messages::report::{AdvicePage, Assumptions};
use messages::{Answer, Request};
use serde::Deserialize;
use utoipa::IntoParams;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::{Routes, Shared, unexpected};
use crate::extract::{Json, QueryParameters};
use crate::problem::Problem;

/// Volumes on a page by default.
const LIMIT_DEFAULT: u32 = 20;
/// Volumes on a page at most: each needs its curves computed.
const LIMIT_MAX: u32 = 100;

pub(super) fn routes() -> Routes {
    OpenApiRouter::new().routes(routes!(advise))
}

#[derive(Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct AdviceParameters {
    /// How many volumes, 1 to 100; without it 20
    #[param(minimum = 1, maximum = 100)]
    limit: Option<u32>,
    /// Volumes whose names come after this one: `next` of the page before
    after: Option<String>,
    /// This volume alone
    volume: Option<String>,
    /// Assumed: requests per second of one disk; without it 180
    #[param(minimum = 1)]
    spindle_iops: Option<u32>,
    /// Assumed: latency of a request that the array answers; without it the measured one of each volume, or 8000
    array_latency_us: Option<u32>,
    /// Assumed: latency of a request that flash answers; without it 200
    flash_latency_us: Option<u32>,
    /// Assumed: latency of a request that memory answers; without it 20
    memory_latency_us: Option<u32>,
}

/// The benefit of further memory and flash for the volumes, by name, page by page
#[utoipa::path(get, path = "/api/v1/advice", tag = "volumes", params(AdviceParameters),
    responses((status = 200, description = "A page", body = AdvicePage),
        (status = 404, description = "There is no such volume", body = Problem,
            content_type = "application/problem+json")))]
async fn advise(
    State(shared): State<Arc<Shared>>,
    QueryParameters(parameters): QueryParameters<AdviceParameters>,
) -> Result<Json<AdvicePage>, Problem> {
    let request = request(parameters).map_err(|text| Problem::new(StatusCode::BAD_REQUEST, text))?;
    match shared.control.request(request).await? {
        Answer::Advice(page) => Ok(Json(*page)),
        _ => Err(unexpected()),
    }
}

fn request(parameters: AdviceParameters) -> Result<Request, String> {
    let limit = parameters.limit.unwrap_or(LIMIT_DEFAULT);
    if !(1..=LIMIT_MAX).contains(&limit) {
        return Err(format!("limit is {limit}; ask for 1 to {LIMIT_MAX} volumes"));
    }
    let defaults = Assumptions::default();
    let nanos = |micros: Option<u32>, default: u64| micros.map_or(default, |micros| u64::from(micros) * 1_000);
    let assumptions = Assumptions {
        spindle_iops: parameters.spindle_iops.unwrap_or(defaults.spindle_iops),
        array_ns: parameters.array_latency_us.map(|micros| u64::from(micros) * 1_000),
        flash_ns: nanos(parameters.flash_latency_us, defaults.flash_ns),
        memory_ns: nanos(parameters.memory_latency_us, defaults.memory_ns),
    };
    Ok(Request::Advice { limit, after: parameters.after, volume: parameters.volume, assumptions })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn query_becomes_the_control_request() {
        let expected = |volume: Option<&str>, assumptions| {
            let volume = volume.map(str::to_owned);
            Ok(Request::Advice { limit: 20, after: None, volume, assumptions })
        };
        assert_eq!(request(AdviceParameters::default()), expected(None, Assumptions::default()));
        let parameters = AdviceParameters {
            volume: Some("v".to_owned()),
            spindle_iops: Some(75),
            array_latency_us: Some(12_000),
            ..AdviceParameters::default()
        };
        let assumptions = Assumptions { spindle_iops: 75, array_ns: Some(12_000_000), ..Assumptions::default() };
        assert_eq!(request(parameters), expected(Some("v"), assumptions));
        for limit in [0, 101] {
            let refused = request(AdviceParameters { limit: Some(limit), ..AdviceParameters::default() });
            assert!(refused.is_err_and(|text| text.contains("1 to 100")));
        }
    }
}
