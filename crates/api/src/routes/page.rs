//! `/`: the web page. This is where a page that is built into the binary plugs in; a binary without one says how to look otherwise.

use axum::response::Html;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::Routes;

pub(super) fn routes() -> Routes {
    OpenApiRouter::new().routes(routes!(page))
}

/// What `/` shows. No script and no style: it has to do without both under the policy that all answers carry.
const PAGE: &str = "<!doctype html>
<html lang=\"en\">
<meta charset=\"utf-8\">
<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">
<title>Hotset</title>
<h1>Hotset</h1>
<p>The daemon runs. This build has no web page in it; until it has one:</p>
<ul>
<li><code>hotset top</code> in a terminal shows the same figures, live</li>
<li><a href=\"/api/v1/status\">/api/v1/status</a> as JSON, <a href=\"/api/v1/openapi.json\">/api/v1/openapi.json</a> says what else there is</li>
<li><a href=\"/metrics\">/metrics</a> for Prometheus</li>
<li><a href=\"/api/v1/stream\">/api/v1/stream</a> once a second, as server-sent events</li>
</ul>
</html>
";

/// The web page
#[utoipa::path(get, path = "/", tag = "page",
    responses((status = 200, description = "The page", body = String, content_type = "text/html")))]
async fn page() -> Html<&'static str> {
    Html(PAGE)
}
