//! The rules as a table: every role, method, address, host and forwarding header.

use axum::http::Request;

use super::*;
use crate::access::Token;

const OWN_HOST: &str = "127.0.0.1:7400";
const READ: (&str, &str) = ("GET", "/api/v1/status");
const OPERATE: (&str, &str) = ("POST", "/api/v1/volumes/a/flush");
const OPERATE_FLEET: (&str, &str) = ("POST", "/api/v1/fleet/take-over");
const ADMINISTER: (&str, &str) = ("POST", "/api/v1/volumes/a/invalidate");
const LIST_TOKENS: (&str, &str) = ("GET", "/api/v1/tokens");

struct Fixture {
    access: Access,
    /// A token of each role.
    tokens: Vec<(Role, String)>,
}

impl Fixture {
    fn new() -> Fixture {
        let generated = Role::ALL.map(|role| Token::generate(role.name(), role).expect("random"));
        let access = Access::default();
        access.set_tokens(generated.iter().map(|(token, _)| token.clone()).collect());
        Fixture { access, tokens: generated.into_iter().map(|(token, text)| (token.role, text)).collect() }
    }

    /// The status of a request: 200 if it is permitted.
    fn status_of(&self, (method, path): (&str, &str), peer: &str, headers: &[(&str, &str)]) -> u16 {
        let mut request = Request::builder().method(method).uri(path);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let (parts, ()) = request.body(()).expect("a request").into_parts();
        let peer = SocketAddr::new(peer.parse().expect("an address"), 50_000);
        let names = ["cache.example".to_owned()];
        authorize(&self.access, ServerIdentity { names: &names, is_tls: false }, &parts, peer)
            .1
            .map_or_else(|problem| problem.status(), |()| 200)
    }
}

#[test]
fn each_role_grants_its_requests_from_every_address() {
    let fixture = Fixture::new();
    let needs = [
        (READ, Role::Read),
        (OPERATE, Role::Operate),
        (OPERATE_FLEET, Role::Operate),
        (ADMINISTER, Role::Administer),
        (LIST_TOKENS, Role::Administer),
    ];
    let mut requests = 0;
    for peer in ["127.0.0.1", "::1", "::ffff:127.0.0.1", "10.0.0.7", "fe80::1"] {
        let loopback = !matches!(peer, "10.0.0.7" | "fe80::1");
        for host in [OWN_HOST, "localhost", "cache.example", "evil.example", "10.0.0.7:7400"] {
            let is_own_host = !matches!(host, "evil.example" | "10.0.0.7:7400");
            for forwarded in [None, Some("forwarded"), Some("x-forwarded-for")] {
                for (request, need) in needs {
                    let mut headers = vec![("host", host)];
                    headers.extend(forwarded.map(|name| (name, "for=127.0.0.1")));
                    let local = loopback && matches!(host, OWN_HOST | "localhost");
                    let needs_no_token = local && forwarded.is_none() && need == Role::Read;
                    let expected = if !is_own_host {
                        421
                    } else if needs_no_token {
                        200
                    } else {
                        401
                    };
                    assert_eq!(fixture.status_of(request, peer, &headers), expected, "{request:?} {peer} {headers:?}");
                    for (role, token) in &fixture.tokens {
                        let bearer = format!("Bearer {token}");
                        let headers = [headers.as_slice(), &[("authorization", bearer.as_str())]].concat();
                        let expected = if !is_own_host {
                            421
                        } else if *role < need {
                            403
                        } else {
                            200
                        };
                        assert_eq!(
                            fixture.status_of(request, peer, &headers),
                            expected,
                            "{role} {request:?} {peer} {headers:?}"
                        );
                        requests += 1;
                    }
                    requests += 1;
                }
            }
        }
    }
    assert_eq!(requests, 5 * 5 * 3 * 5 * 4);
}

#[test]
fn request_through_a_local_proxy_needs_a_token() {
    let fixture = Fixture::new();
    let token = format!("Bearer {}", fixture.tokens[0].1);
    let headers = FORWARDING_HEADERS.iter().copied();
    for name in headers.chain(["Via", "X-Forwarded-Server", "X-Forwarded-Port", "x-forwarded", "X-FORWARDED-FOR"]) {
        let forwarded = [("host", OWN_HOST), (name, "1.1 proxy")];
        assert_eq!(fixture.status_of(READ, "127.0.0.1", &forwarded), 401, "{name}");
        let with_token = [("host", OWN_HOST), (name, "1.1 proxy"), ("authorization", token.as_str())];
        assert_eq!(fixture.status_of(READ, "127.0.0.1", &with_token), 200, "{name}");
    }
    // A proxy that passes the name on and adds no header.
    assert_eq!(fixture.status_of(READ, "127.0.0.1", &[("host", "cache.example")]), 401);
    let target = ("GET", "http://cache.example/api/v1/status");
    assert_eq!(fixture.status_of(target, "127.0.0.1", &[("host", OWN_HOST)]), 401);
    for host in ["localhost:7400", "[::1]:7400", "127.0.0.2"] {
        assert_eq!(fixture.status_of(READ, "::1", &[("host", host)]), 200, "{host}");
    }
}

#[test]
fn wrong_token_is_refused_where_none_is_needed() {
    let fixture = Fixture::new();
    for wrong in ["Bearer nonsense", "Bearer ", "Basic YTpi", "nonsense"] {
        assert_eq!(
            fixture.status_of(READ, "127.0.0.1", &[("host", OWN_HOST), ("authorization", wrong)]),
            401,
            "{wrong}"
        );
    }
}

#[test]
fn session_permits_changes_only_from_the_own_page() {
    let fixture = Fixture::new();
    let (_, token) = fixture.tokens.last().expect("three");
    let (session, _) = fixture.access.log_in(token).expect("known");
    let cookie = format!("theme=dark; {SESSION_COOKIE}={session}");
    let status_of = |origin: Option<&str>, request| {
        let mut headers = vec![("host", OWN_HOST), ("cookie", cookie.as_str())];
        headers.extend(origin.map(|origin| ("origin", origin)));
        fixture.status_of(request, "10.0.0.7", &headers)
    };
    assert_eq!(status_of(None, READ), 200);
    assert_eq!(status_of(Some("http://127.0.0.1:7400"), ADMINISTER), 200);
    for foreign in [None, Some("null"), Some("http://evil.example"), Some("http://127.0.0.1:7401")] {
        assert_eq!(status_of(foreign, ADMINISTER), 403, "{foreign:?}");
    }
    let unknown_session = format!("{SESSION_COOKIE}={}", "0".repeat(64));
    assert_eq!(fixture.status_of(READ, "10.0.0.7", &[("host", OWN_HOST), ("cookie", &unknown_session)]), 401);
    assert_eq!(fixture.status_of(READ, "127.0.0.1", &[("host", OWN_HOST), ("cookie", &unknown_session)]), 200);
}

#[test]
fn login_is_permitted_from_the_own_page_and_without_origin() {
    let fixture = Fixture::new();
    let login = ("POST", "/api/v1/login");
    assert_eq!(fixture.status_of(login, "10.0.0.7", &[("host", OWN_HOST)]), 200);
    assert_eq!(fixture.status_of(login, "10.0.0.7", &[("host", OWN_HOST), ("origin", "http://127.0.0.1:7400")]), 200);
    assert_eq!(fixture.status_of(login, "10.0.0.7", &[("host", OWN_HOST), ("origin", "http://evil.example")]), 403);
    assert_eq!(fixture.status_of(login, "10.0.0.7", &[("host", "evil.example")]), 421);
}

#[test]
fn request_needs_exactly_one_own_host() {
    let fixture = Fixture::new();
    assert_eq!(fixture.status_of(READ, "127.0.0.1", &[]), 400);
    assert_eq!(fixture.status_of(READ, "127.0.0.1", &[("host", OWN_HOST), ("host", OWN_HOST)]), 400);
    let other = ("GET", "http://evil.example/api/v1/status");
    assert_eq!(fixture.status_of(other, "127.0.0.1", &[("host", OWN_HOST)]), 421);
}

#[test]
fn unlisted_requests_need_the_administer_role() {
    for (method, path) in [
        ("POST", "/api/v1/novel"),
        ("DELETE", "/api/v1/volumes/a"),
        ("PATCH", "/api/v1/flash"),
        ("POST", "/api/v1/volumes/a/flush/x"),
        ("PUT", "/api/v1/volumes/a"),
        ("OPTIONS", "/api/v1/status"),
        ("POST", "/api/v1/volumes/a%2Fflush"),
        ("post", "/api/v1/volumes/a/flush"),
    ] {
        let method = Method::from_bytes(method.as_bytes()).expect("a method");
        assert_eq!(required_role(&method, path), Some(Role::Administer), "{method} {path}");
    }
}

#[test]
fn operator_may_silence_alerts_but_not_test_the_channels() {
    let role = |method: Method, path| required_role(&method, path);
    for path in ["/api/v1/alerts/no-copy/acknowledge", "/api/v1/alerts/flash-hung%3A%2Fdev%2Fx/silence"] {
        assert_eq!(role(Method::POST, path), Some(Role::Operate), "{path}");
    }
    assert_eq!(role(Method::DELETE, "/api/v1/alerts/no-copy/silence"), Some(Role::Operate));
    assert_eq!(role(Method::POST, "/api/v1/alerts/test"), Some(Role::Administer));
    assert_eq!(role(Method::GET, "/api/v1/alerts"), Some(Role::Read));
}

#[test]
fn only_administrators_list_create_and_revoke_tokens() {
    for method in [Method::GET, Method::HEAD, Method::POST, Method::DELETE] {
        for path in ["/api/v1/tokens", "/api/v1/tokens/", "/api/v1/tokens/ops"] {
            assert_eq!(required_role(&method, path), Some(Role::Administer), "{method} {path}");
        }
    }
    assert_eq!(required_role(&Method::GET, "/api/v1/tokens-of-volumes"), Some(Role::Read));
}
