//! `/` and `/assets`: the web console, if it existed when the binary was built. A binary without it serves a note that
//! lists other interfaces and the steps that build the page.
//!
//! The page needs no token: it holds no secret, and the log-in form is on it.

use axum::http::{HeaderMap, HeaderValue, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::Routes;
use crate::extract::PathName;
use crate::problem::Problem;

pub(super) fn routes() -> Routes {
    OpenApiRouter::new().routes(routes!(page)).routes(routes!(asset))
}

/// A file of the page.
struct File {
    name: &'static str,
    plain: &'static [u8],
    /// The same content, compressed when the page was built.
    gzip: &'static [u8],
}

/// All files; empty in a build without the page.
const FILES: &[File] = include!(concat!(env!("OUT_DIR"), "/page.rs"));

/// Answer to `/` in a build without the page. It has no script and no style, because the content security policy of all
/// answers forbids inline ones.
const PLACEHOLDER: &str = "<!doctype html>
<html lang=\"en\">
<meta charset=\"utf-8\">
<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">
<title>Hotset</title>
<h1>Hotset</h1>
<p>The daemon runs. This build has no web console in it: with Node 20.19 or later, \
<code>npm ci &amp;&amp; npm run build</code> in the folder
<code>ui</code> of the source makes it, and the next build of the daemon takes it in. Without it:</p>
<ul>
<li><code>hotset top</code> in a terminal shows the same figures, live</li>
<li><a href=\"/api/v1/status\">/api/v1/status</a> as JSON, \
<a href=\"/api/v1/openapi.json\">/api/v1/openapi.json</a> describes all routes</li>
<li><a href=\"/metrics\">/metrics</a> for Prometheus</li>
<li><a href=\"/api/v1/stream\">/api/v1/stream</a> once a second, as server-sent events</li>
</ul>
</html>
";

/// Cache control of an asset, whose name changes with its content.
const CACHE_FOREVER: HeaderValue = HeaderValue::from_static("public, max-age=31536000, immutable");
/// Cache control of the index, which names the files of this build.
const REVALIDATE: HeaderValue = HeaderValue::from_static("no-cache");

/// The web console
#[utoipa::path(get, path = "/", tag = "page",
    responses((status = 200, description = "The page", body = String, content_type = "text/html")))]
async fn page(headers: HeaderMap) -> Response {
    let placeholder = File { name: "index.html", plain: PLACEHOLDER.as_bytes(), gzip: &[] };
    let index = FILES.iter().find(|file| file.name == "index.html").unwrap_or(&placeholder);
    send(index, &headers, REVALIDATE)
}

/// A file of the web console
#[utoipa::path(get, path = "/assets/{name}", tag = "page",
    params(("name" = String, Path, description = "As the page names it")),
    responses((status = 200, description = "The file", body = String, content_type = "text/javascript")))]
async fn asset(PathName(name): PathName, uri: Uri, headers: HeaderMap) -> Result<Response, Problem> {
    let not_found = || {
        let text = format!("there is no {} in this build; reload the page", uri.path());
        Problem::new(StatusCode::NOT_FOUND, text)
    };
    let file = FILES.iter().find(|file| file.name == name && name != "index.html").ok_or_else(not_found)?;
    Ok(send(file, &headers, CACHE_FOREVER))
}

fn send(file: &File, request: &HeaderMap, cache_control: HeaderValue) -> Response {
    let content_type = match file.name.rsplit('.').next() {
        Some("html") => "text/html; charset=utf-8",
        Some("css") => "text/css; charset=utf-8",
        Some("js") => "text/javascript; charset=utf-8",
        _ => "application/octet-stream",
    };
    let common = [
        (header::CONTENT_TYPE, HeaderValue::from_static(content_type)),
        (header::CACHE_CONTROL, cache_control),
        (header::VARY, HeaderValue::from_static("accept-encoding")),
    ];
    if !file.gzip.is_empty() && accepts_gzip(request) {
        return (common, [(header::CONTENT_ENCODING, "gzip")], file.gzip).into_response();
    }
    (common, file.plain).into_response()
}

fn accepts_gzip(headers: &HeaderMap) -> bool {
    let encodings = headers.get(header::ACCEPT_ENCODING).and_then(|value| value.to_str().ok()).unwrap_or_default();
    encodings.split(',').any(|encoding| {
        let (name, weight) = encoding.split_once(';').unwrap_or((encoding, ""));
        let is_refused = weight.trim().strip_prefix("q=").is_some_and(|weight| weight.parse() == Ok(0.0));
        name.trim().eq_ignore_ascii_case("gzip") && !is_refused
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gzip_is_sent_only_to_clients_that_accept_it() {
        let file = File { name: "a-1.js", plain: b"plain", gzip: b"gzip" };
        let encoding = |accepted: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::ACCEPT_ENCODING, HeaderValue::from_static(accepted));
            send(&file, &headers, CACHE_FOREVER).headers().get(header::CONTENT_ENCODING).cloned()
        };
        for accepted in ["gzip", "br, gzip;q=0.5", "deflate,GZIP"] {
            assert_eq!(encoding(accepted), Some(HeaderValue::from_static("gzip")), "{accepted}");
        }
        for accepted in ["", "br", "gzip;q=0", "gzip;q=0.0", "xgzip"] {
            assert_eq!(encoding(accepted), None, "{accepted}");
        }
    }
}
