//! The routes of tokens through the guard, on a handler that keeps tokens as the daemon does.

use std::cell::RefCell;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::Mutex;

use axum::body::{Body, to_bytes};
use axum::http::Request as HttpRequest;
use control::{Actor, Handler, ProgressSender};
use hyper::service::Service;
use hyper_util::service::TowerToHyperService;
use messages::{ErrorKind, Failure, StatusSample};
use serde_json::{Value, json};
use tokio::sync::watch;

use super::*;
use crate::access::rules::SESSION_COOKIE;
use crate::access::{Access, Token};
use crate::control_handle::{ControlHandle, handle_requests};
use crate::guard::Peer;
use crate::shared::Options;
use crate::stream::Hub;

const PATH: &str = "/api/v1/tokens";
const OWN_HOST: &str = "127.0.0.1:7400";
const OWN_ORIGIN: &str = "http://127.0.0.1:7400";

thread_local! {
    /// Lines of the daemon's log. `Options::log` is a plain function, so they cannot belong to the fixture.
    static LOG: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

fn record_line(_: IpAddr, line: &str) {
    LOG.with_borrow_mut(|log| log.push(line.to_owned()));
}

/// Keeps tokens, and records the requests with their actors: audit events are made from these.
struct FakeDaemon {
    access: Arc<Access>,
    tokens: Mutex<Vec<Token>>,
    requests: Mutex<Vec<(Request, Actor)>>,
}

impl FakeDaemon {
    fn answer(&self, request: Request) -> Result<Answer, Failure> {
        let mut tokens = self.tokens.lock().expect("no test panics with it");
        let answer = match request {
            Request::TokenList {} => {
                let report = |Token { name, role, .. }: &Token| TokenReport {
                    name: name.clone(),
                    role: *role,
                    created_unix_seconds: 7,
                };
                Answer::Tokens(tokens.iter().map(report).collect())
            }
            Request::TokenCreate { name, .. } if name.contains(' ') => {
                return Err(Failure::new(ErrorKind::Invalid, format!("\"{name}\" is not a valid token name")));
            }
            Request::TokenCreate { name, role } => {
                let (token, text) = Token::generate(&name, role).expect("random");
                tokens.push(token);
                Answer::TokenCreated(TokenCreated { name, role, token: text })
            }
            Request::TokenRevoke { name } if tokens.iter().all(|token| token.name != name) => {
                return Err(Failure::new(ErrorKind::NotFound, format!("there is no token \"{name}\"")));
            }
            Request::TokenRevoke { name } => {
                tokens.retain(|token| token.name != name);
                Answer::Said(vec![format!("token {name} was revoked")])
            }
            other => unreachable!("{other:?} is sent by no route of tokens"),
        };
        self.access.set_tokens(tokens.clone());
        Ok(answer)
    }
}

impl Handler for FakeDaemon {
    async fn handle(self: Rc<Self>, request: Request, actor: Actor, _: ProgressSender) -> Result<Answer, Failure> {
        self.requests.lock().expect("no test panics with it").push((request.clone(), actor));
        self.answer(request)
    }
}

struct Fixture {
    daemon: Rc<FakeDaemon>,
    service: TowerToHyperService<axum::Router>,
    /// A token of each role, by growing permissions.
    tokens: [String; 3],
}

impl Fixture {
    fn new() -> Fixture {
        let generated = Role::ALL.map(|role| Token::generate(role.name(), role).expect("random"));
        let access = Arc::new(Access::default());
        let stored = generated.iter().map(|(token, _)| token.clone()).collect::<Vec<_>>();
        access.set_tokens(stored.clone());
        let daemon =
            Rc::new(FakeDaemon { access: access.clone(), tokens: Mutex::new(stored), requests: Mutex::default() });
        let (control, queue) = ControlHandle::new();
        tokio::task::spawn_local(handle_requests(queue, daemon.clone()));
        let (_, samples) = watch::channel(Arc::new(StatusSample::default()));
        let options = Options { names: Vec::new(), metrics_volumes: 0, tls: None, log: record_line };
        let shared = Arc::new(Shared { control, access, hub: Arc::new(Hub::new(samples)), options });
        let service = TowerToHyperService::new(crate::routes::router(shared));
        Fixture { daemon, service, tokens: generated.map(|(_, text)| text) }
    }

    /// Sends a request with these headers; returns the status and the text of the answer.
    async fn send(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> (u16, String) {
        let mut request = HttpRequest::builder().method(method).uri(path).header("host", OWN_HOST);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        request = request.header("content-type", "application/json");
        let mut request = request.body(Body::from(body.to_owned())).expect("a request");
        request.extensions_mut().insert(Peer(SocketAddr::from(([127, 0, 0, 1], 50_000))));
        let response = self.service.call(request).await.expect("a router does not fail");
        let status = response.status().as_u16();
        assert_eq!(response.headers()["cache-control"], "no-store", "{method} {path}");
        let bytes = to_bytes(response.into_body(), 1 << 20).await.expect("a short body");
        (status, String::from_utf8(bytes.to_vec()).expect("text"))
    }

    async fn send_as(&self, token: &str, method: &str, path: &str, body: &Value) -> (u16, Value) {
        let bearer = format!("Bearer {token}");
        let (status, text) = self.send(method, path, &[("authorization", &bearer)], &body.to_string()).await;
        (status, serde_json::from_str(&text).unwrap_or_default())
    }

    fn requests(&self) -> Vec<(Request, Actor)> {
        self.daemon.requests.lock().expect("no test panics with it").clone()
    }
}

/// Runs `test` with a fixture, on the local tasks that the fixture spawns.
fn run(test: impl AsyncFnOnce(&Fixture)) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    tokio::task::LocalSet::new().block_on(&runtime, async { test(&Fixture::new()).await });
}

#[test]
fn token_is_created_listed_used_and_revoked_by_an_administrator() {
    run(async |fixture| {
        let [_, _, administer] = &fixture.tokens;
        let new = json!({ "name": "deploy", "role": "operate" });
        let (status, created) = fixture.send_as(administer, "POST", PATH, &new).await;
        assert_eq!((status, &created["name"], &created["role"]), (201, &json!("deploy"), &json!("operate")));
        let secret = created["token"].as_str().expect("the secret");
        let (status, list) = fixture.send_as(administer, "GET", PATH, &Value::Null).await;
        let expected = json!({ "name": "deploy", "role": "operate", "created_unix_seconds": 7 });
        assert_eq!((status, &list[3]), (200, &expected));
        assert_eq!(fixture.send_as(secret, "GET", PATH, &Value::Null).await.0, 403);
        let path = format!("{PATH}/deploy");
        let (status, revoked) = fixture.send_as(administer, "DELETE", &path, &Value::Null).await;
        let expected = json!({ "said": ["token deploy was revoked"], "own_access_ended": false });
        assert_eq!((status, revoked), (200, expected));
        assert_eq!(fixture.send_as(secret, "GET", PATH, &Value::Null).await.0, 401);
        assert_eq!(fixture.send_as(administer, "DELETE", &path, &Value::Null).await.0, 404);
    });
}

#[test]
fn other_roles_and_unknown_clients_reach_no_token() {
    run(async |fixture| {
        let requests = [("GET", PATH), ("POST", PATH), ("DELETE", "/api/v1/tokens/read")];
        for (method, path) in requests {
            let body = json!({ "name": "deploy", "role": "administer" });
            for token in &fixture.tokens[..2] {
                assert_eq!(fixture.send_as(token, method, path, &body).await.0, 403, "{method} {path}");
            }
            let (status, answer) = fixture.send(method, path, &[], &body.to_string()).await;
            assert_eq!(status, 401, "{method} {path}");
            assert!(!answer.contains("operate"), "{answer}");
        }
        assert_eq!(fixture.requests(), []);
    });
}

#[test]
fn session_changes_tokens_only_from_the_own_page() {
    run(async |fixture| {
        let (session, _) = fixture.daemon.access.log_in(&fixture.tokens[2]).expect("known");
        let cookie = format!("{SESSION_COOKIE}={session}");
        let new = json!({ "name": "deploy", "role": "read" }).to_string();
        for (origin, create, revoke) in [("http://evil.example", 403, 403), (OWN_ORIGIN, 201, 200)] {
            let headers = [("cookie", cookie.as_str()), ("origin", origin)];
            assert_eq!(fixture.send("POST", PATH, &headers, &new).await.0, create, "{origin}");
            assert_eq!(fixture.send("DELETE", "/api/v1/tokens/read", &headers, "").await.0, revoke, "{origin}");
        }
        assert_eq!(fixture.send("POST", PATH, &[("cookie", cookie.as_str())], &new).await.0, 403);
    });
}

#[test]
fn revocation_of_the_own_token_ends_the_session_and_says_so() {
    run(async |fixture| {
        let (session, _) = fixture.daemon.access.log_in(&fixture.tokens[2]).expect("known");
        let cookie = format!("{SESSION_COOKIE}={session}");
        let headers = [("cookie", cookie.as_str()), ("origin", OWN_ORIGIN)];
        let (status, answer) = fixture.send("DELETE", "/api/v1/tokens/administer", &headers, "").await;
        let answer: Value = serde_json::from_str(&answer).expect("JSON");
        assert_eq!((status, &answer["own_access_ended"]), (200, &json!(true)));
        assert!(answer["said"][1].as_str().is_some_and(|text| text.contains("log in with another token")), "{answer}");
        assert_eq!(fixture.send("GET", PATH, &headers, "").await.0, 401);
        assert_eq!(fixture.send_as(&fixture.tokens[2], "GET", PATH, &Value::Null).await.0, 401);
    });
}

#[test]
fn unusable_names_roles_and_fields_are_refused() {
    run(async |fixture| {
        for body in [
            json!({ "name": "two words", "role": "read" }),
            json!({ "name": "deploy", "role": "root" }),
            json!({ "name": "deploy" }),
            json!({ "role": "read" }),
            json!({ "name": "deploy", "role": "read", "token": "hotset_chosen" }),
        ] {
            let (status, answer) = fixture.send_as(&fixture.tokens[2], "POST", PATH, &body).await;
            assert_eq!(status, 400, "{body}");
            assert!(answer["detail"].is_string(), "{answer}");
        }
        let (_, list) = fixture.send_as(&fixture.tokens[2], "GET", PATH, &Value::Null).await;
        assert_eq!(list.as_array().map(Vec::len), Some(3));
    });
}

#[test]
fn secret_and_hash_are_in_no_list_log_or_audited_request() {
    run(async |fixture| {
        let administer = &fixture.tokens[2];
        let new = json!({ "name": "deploy", "role": "read" });
        let (_, created) = fixture.send_as(administer, "POST", PATH, &new).await;
        let secret = created["token"].as_str().expect("the secret").to_owned();
        let (_, list) = fixture.send_as(administer, "GET", PATH, &Value::Null).await;
        let stored = fixture.daemon.tokens.lock().expect("no test panics with it").clone();
        fixture.send_as(administer, "DELETE", "/api/v1/tokens/deploy", &Value::Null).await;
        let requests = fixture.requests();
        let actor = Actor::Web { name: "token administer".to_owned(), from: IpAddr::from([127, 0, 0, 1]) };
        let create = Request::TokenCreate { name: "deploy".to_owned(), role: Role::Read };
        assert_eq!(requests[0], (create, actor.clone()));
        assert_eq!(requests[2], (Request::TokenRevoke { name: "deploy".to_owned() }, actor));
        let log = LOG.with_borrow(|log| log.join("\n"));
        assert!(log.contains("\"administer\" (administer) from 127.0.0.1: POST /api/v1/tokens 201"), "{log}");
        assert!(log.contains("DELETE /api/v1/tokens/deploy 200"), "{log}");
        for (place, text) in [("list", list.to_string()), ("log", log), ("requests", format!("{requests:?}"))] {
            for known in [&secret, administer] {
                assert!(!text.contains(known.trim_start_matches("hotset_")), "a secret is in the {place}: {text}");
            }
            assert!(stored.iter().all(|token| !text.contains(&token.hash)), "a hash is in the {place}: {text}");
        }
    });
}
