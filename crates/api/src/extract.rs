//! Extractors: names in the path, query strings, JSON bodies. An unreadable part is answered with a [`Problem`].

use std::time::Duration;

use axum::body::{Body, to_bytes};
use axum::extract::{FromRequest, FromRequestParts, Path, Query, Request};
use axum::http::request::Parts;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::problem::Problem;

/// Size of a request's body at most.
pub const BODY_BYTES_MAX: usize = 64 << 10;
/// Time-out for receiving a whole body.
const BODY_TIMEOUT: Duration = Duration::from_secs(10);

/// The name in a route's path.
pub struct PathName(pub String);

impl<S: Send + Sync> FromRequestParts<S> for PathName {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        match Path::<String>::from_request_parts(parts, state).await {
            Ok(Path(name)) => Ok(PathName(name)),
            Err(error) => Err(Problem::new(StatusCode::BAD_REQUEST, format!("the path cannot be read: {error}"))),
        }
    }
}

/// The two names in a route's path.
pub struct PathNames(pub (String, String));

impl<S: Send + Sync> FromRequestParts<S> for PathNames {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        match Path::<(String, String)>::from_request_parts(parts, state).await {
            Ok(Path(names)) => Ok(PathNames(names)),
            Err(error) => Err(Problem::new(StatusCode::BAD_REQUEST, format!("the path cannot be read: {error}"))),
        }
    }
}

/// The query string of a request.
pub struct QueryParameters<T>(pub T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequestParts<S> for QueryParameters<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        match Query::try_from_uri(&parts.uri) {
            Ok(Query(parameters)) => Ok(QueryParameters(parameters)),
            Err(error) => {
                let text = format!("the query string cannot be read: {error}");
                Err(Problem::new(StatusCode::BAD_REQUEST, text))
            }
        }
    }
}

/// The JSON body of a request or of an answer.
pub struct Json<T>(pub T);

impl<T: Serialize> IntoResponse for Json<T> {
    fn into_response(self) -> Response {
        axum::Json(self.0).into_response()
    }
}

impl<S: Send + Sync, T: DeserializeOwned> FromRequest<S> for Json<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, _: &S) -> Result<Self, Problem> {
        check_content_type(&request)?;
        let bytes = read_body(request.into_body()).await?;
        let value = serde_json::from_slice(&bytes);
        let unreadable = |error| Problem::new(StatusCode::BAD_REQUEST, format!("the body cannot be read: {error}"));
        value.map(Json).map_err(unreadable)
    }
}

/// A JSON body, where an empty body means the defaults.
pub struct OptionalJson<T>(pub T);

impl<S: Send + Sync, T: DeserializeOwned + Default> FromRequest<S> for OptionalJson<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, state: &S) -> Result<Self, Problem> {
        let (parts, body) = request.into_parts();
        let bytes = read_body(body).await?;
        if bytes.is_empty() {
            return Ok(OptionalJson(T::default()));
        }
        let request = Request::from_parts(parts, Body::from(bytes));
        Json::from_request(request, state).await.map(|Json(value)| OptionalJson(value))
    }
}

/// Requires the media type JSON. Forms of another site can send only other types without the browser asking first.
fn check_content_type(request: &Request) -> Result<(), Problem> {
    let content_type =
        request.headers().get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let essence = content_type.split(';').next().unwrap_or_default().trim();
    if essence.eq_ignore_ascii_case("application/json") {
        return Ok(());
    }
    let text = format!("the body is \"{essence}\"; send JSON with Content-Type: application/json");
    Err(Problem::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, text))
}

async fn read_body(body: Body) -> Result<axum::body::Bytes, Problem> {
    match tokio::time::timeout(BODY_TIMEOUT, to_bytes(body, BODY_BYTES_MAX)).await {
        Ok(Ok(bytes)) => Ok(bytes),
        Ok(Err(_)) => {
            let text = format!("the body is longer than {BODY_BYTES_MAX} bytes, or incomplete");
            Err(Problem::new(StatusCode::PAYLOAD_TOO_LARGE, text))
        }
        Err(_) => {
            Err(Problem::new(StatusCode::REQUEST_TIMEOUT, "the body was not received in time; send it without a pause"))
        }
    }
}
