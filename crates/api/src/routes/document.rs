//! `openapi.json`: generated from the routes, with the answers that the guard may give to any of them.

use std::sync::Arc;

use axum::Router;
use axum::body::Bytes;
use axum::http::header;
use axum::routing::get;
use utoipa::OpenApi;
use utoipa::openapi::path::{Operation, PathItem};
use utoipa::openapi::security::{ApiKey, ApiKeyValue, HttpAuthScheme, HttpBuilder, SecurityScheme};
use utoipa::openapi::{ContentBuilder, OpenApi as Document, Ref, ResponseBuilder};
use utoipa_axum::router::OpenApiRouter;

use super::{Routes, Shared};
use crate::access::rules::SESSION_COOKIE;
use crate::problem::{self, Problem};

/// Path of the document.
const PATH: &str = "/api/v1/openapi.json";

#[derive(OpenApi)]
#[openapi(
    info(title = "Hotset", description = "Status, figures and control of the cache",
        license(name = "Apache-2.0", identifier = "Apache-2.0")),
    components(schemas(Problem)),
    security((), ("token" = []), ("session" = []))
)]
struct Head;

/// An empty set of routes with the document's head.
pub(super) fn head() -> Routes {
    OpenApiRouter::with_openapi(Head::openapi())
}

/// The route that serves the document.
pub(super) fn document_route(mut document: Document) -> Router<Arc<Shared>> {
    complete(&mut document);
    let text = Bytes::from(document.to_json().expect("a document has only text keys"));
    Router::new().route(PATH, get(async move || ([(header::CONTENT_TYPE, "application/json")], text)))
}

/// Adds the security schemes, and the error answers of each operation.
fn complete(document: &mut Document) {
    let schemes = document.components.get_or_insert_default();
    let bearer =
        HttpBuilder::new().scheme(HttpAuthScheme::Bearer).description(Some("Of `hotset token create`")).build();
    schemes.add_security_scheme("token", SecurityScheme::Http(bearer));
    schemes.add_security_scheme("session", SecurityScheme::ApiKey(ApiKey::Cookie(ApiKeyValue::new(SESSION_COOKIE))));
    for (path, item) in &mut document.paths.paths {
        for (operation, is_get) in operations(item) {
            add_problems(operation, path, is_get);
        }
    }
}

fn operations(item: &mut PathItem) -> Vec<(&mut Operation, bool)> {
    let PathItem { get, post, patch, delete, .. } = item;
    let operations = [(get, true), (post, false), (patch, false), (delete, false)];
    operations.into_iter().filter_map(|(operation, is_get)| Some((operation.as_mut()?, is_get))).collect()
}

/// Adds the error answers that any request may get, and those of this kind of request.
fn add_problems(operation: &mut Operation, path: &str, is_get: bool) {
    let for_any = [
        (400, "The request cannot be read, or makes no sense"),
        (401, "It needs a token, or a different one"),
        (408, "The body was not received in time"),
        (413, "The body is too long"),
        (421, "It was sent to a name that is not listed in `[api] names`"),
        (500, "It failed"),
        (503, "The daemon is starting, stopping or overloaded"),
    ];
    let for_changes = [
        (403, "The token does not permit it, or it was sent from a page of another site"),
        (404, "Its subject does not exist"),
        (409, "The present state does not permit it"),
        (415, "The body is not JSON"),
    ];
    let for_named = [(404, "Nothing has that name"), (409, "It is not served")];
    let is_named = path.contains('{');
    let responses = for_any
        .into_iter()
        .chain(for_changes.into_iter().filter(|_| !is_get))
        .chain(for_named.into_iter().filter(|_| is_named));
    for (status, description) in responses {
        let content = ContentBuilder::new().schema(Some(Ref::from_schema_name("Problem"))).build();
        let response = ResponseBuilder::new().description(description).content(problem::CONTENT_TYPE, content).build();
        operation.responses.responses.entry(status.to_string()).or_insert(response.into());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every `$ref` of the document resolves, and every answer has a description.
    #[test]
    fn document_is_complete() {
        let (_, mut document) = super::super::all_routes().split_for_parts();
        complete(&mut document);
        let text = document.to_json().expect("it can be written");
        let value: serde_json::Value = serde_json::from_str(&text).expect("its own text");
        assert_eq!(value["openapi"], "3.1.0");
        let mut refs = 0;
        visit(&value, &mut |key, node| {
            if let (Some("$ref"), Some(reference)) = (key, node.as_str()) {
                let pointer = reference.strip_prefix('#').expect("a reference within the document");
                assert!(value.pointer(pointer).is_some(), "{reference} does not resolve");
                refs += 1;
            }
            if let (Some("responses"), Some(responses)) = (key, node.as_object()) {
                assert!(responses.values().all(|response| response["description"].is_string()), "{node}");
            }
        });
        assert!(refs > 20);
        let paths = value["paths"].as_object().expect("it has paths");
        for path in
            ["/api/v1/status", "/api/v1/volumes/{name}", "/metrics", "/healthz", "/api/v1/stream", "/api/v1/login"]
        {
            assert!(paths.contains_key(path), "{path}");
        }
        let mut operation_ids = std::collections::BTreeSet::new();
        for (path, item) in paths {
            for (method, operation) in item.as_object().expect("an item") {
                assert!(operation["summary"].as_str().is_some_and(|text| !text.is_empty()), "{method} {path}");
                assert!(
                    operation_ids.insert(operation["operationId"].as_str()),
                    "{method} {path} has the name of another operation"
                );
                assert!(operation["responses"]["421"].is_object(), "{method} {path}");
            }
        }
    }

    /// Set `UPDATE_DOCS=1` to write the file instead of comparing it.
    #[test]
    fn checked_in_document_is_current() {
        let (_, mut document) = super::super::all_routes().split_for_parts();
        complete(&mut document);
        let rendered = document.to_pretty_json().expect("a document has only text keys") + "\n";
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/openapi.json");
        if std::env::var_os("UPDATE_DOCS").is_some() {
            return std::fs::write(file, rendered).expect("the file can be written");
        }
        let stored = std::fs::read_to_string(file).unwrap_or_default();
        assert!(stored == rendered, "crates/api/openapi.json is out of date; UPDATE_DOCS=1 rewrites it");
    }

    fn visit<'a>(value: &'a serde_json::Value, visitor: &mut impl FnMut(Option<&'a str>, &'a serde_json::Value)) {
        match value {
            serde_json::Value::Object(fields) => fields.iter().for_each(|(key, value)| {
                visitor(Some(key), value);
                visit(value, visitor);
            }),
            serde_json::Value::Array(entries) => entries.iter().for_each(|value| visit(value, visitor)),
            _ => {}
        }
    }
}
