//! Errors as `application/problem+json` (RFC 9457): what failed, where, and the remedy.

use axum::body::Body;
use axum::http::{HeaderValue, Response, StatusCode, header};
use axum::response::IntoResponse;
use messages::{ErrorKind, Failure};
use serde::Serialize;
use utoipa::ToSchema;

/// The media type.
pub const CONTENT_TYPE: &str = "application/problem+json";

/// An error answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[schema(as = Problem)]
pub struct Problem {
    /// Always `about:blank`: the status alone identifies the kind.
    #[serde(rename = "type")]
    kind: &'static str,
    /// The status in words.
    title: &'static str,
    /// The status.
    status: u16,
    /// The failure, its place and the remedy.
    detail: String,
    /// Seconds after which the client may retry.
    #[serde(skip)]
    retry_seconds: Option<u64>,
}

impl Problem {
    /// A problem with this status.
    pub fn new(status: StatusCode, detail: impl Into<String>) -> Self {
        let title = status.canonical_reason().unwrap_or("Error");
        Problem { kind: "about:blank", title, status: status.as_u16(), detail: detail.into(), retry_seconds: None }
    }

    /// Sets the time after which the client may retry.
    pub fn retry_after(self, seconds: u64) -> Self {
        Problem { retry_seconds: Some(seconds), ..self }
    }

    /// Its status.
    pub fn status(&self) -> u16 {
        self.status
    }
}

impl From<Failure> for Problem {
    fn from(failure: Failure) -> Self {
        let status = match failure.kind {
            ErrorKind::Invalid => StatusCode::BAD_REQUEST,
            ErrorKind::NotFound => StatusCode::NOT_FOUND,
            ErrorKind::Conflict => StatusCode::CONFLICT,
            ErrorKind::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
            ErrorKind::Failed => StatusCode::INTERNAL_SERVER_ERROR,
        };
        Problem::new(status, failure.message)
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response<Body> {
        let text = serde_json::to_vec(&self).expect("a problem has only text keys");
        let mut response = Response::new(Body::from(text));
        *response.status_mut() = StatusCode::from_u16(self.status).expect("it was built from a status");
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(CONTENT_TYPE));
        if self.status == StatusCode::UNAUTHORIZED.as_u16() {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer realm=\"hotset\""));
        }
        if let Some(seconds) = self.retry_seconds {
            headers.insert(header::RETRY_AFTER, seconds.into());
        }
        response
    }
}
