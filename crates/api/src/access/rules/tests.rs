//! The rules as a table: every role, method, address, host and forwarding header.

use axum::http::Request;

use super::*;
use crate::access::Token;

const OURS: &str = "127.0.0.1:7400";
const READ: (&str, &str) = ("GET", "/api/v1/status");
const OPERATE: (&str, &str) = ("POST", "/api/v1/volumes/a/flush");
const ADMINISTER: (&str, &str) = ("POST", "/api/v1/volumes/a/invalidate");

struct World {
    access: Access,
    /// A token of each role.
    tokens: Vec<(Role, String)>,
}

impl World {
    fn new() -> World {
        let drawn = Role::ALL.map(|role| Token::draw(role.name(), role).expect("random"));
        let access = Access::default();
        access.set_tokens(drawn.iter().map(|(token, _)| token.clone()).collect());
        World { access, tokens: drawn.into_iter().map(|(token, text)| (token.role, text)).collect() }
    }

    /// The status of a request: 200 where it passes.
    fn ask(&self, (method, path): (&str, &str), peer: &str, headers: &[(&str, &str)]) -> u16 {
        let mut request = Request::builder().method(method).uri(path);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let (parts, ()) = request.body(()).expect("a request").into_parts();
        let peer = SocketAddr::new(peer.parse().expect("an address"), 50_000);
        let names = ["cache.example".to_owned()];
        judge(&self.access, Ours { names: &names, is_tls: false }, &parts, peer)
            .1
            .map_or_else(|problem| problem.status(), |()| 200)
    }
}

#[test]
fn each_role_grants_its_requests_from_every_address() {
    let world = World::new();
    let needs = [(READ, Role::Read), (OPERATE, Role::Operate), (ADMINISTER, Role::Administer)];
    let mut asked = 0;
    for peer in ["127.0.0.1", "::1", "::ffff:127.0.0.1", "10.0.0.7", "fe80::1"] {
        let loopback = !matches!(peer, "10.0.0.7" | "fe80::1");
        for host in [OURS, "localhost", "cache.example", "evil.example", "10.0.0.7:7400"] {
            let ours = !matches!(host, "evil.example" | "10.0.0.7:7400");
            for forwarded in [None, Some("forwarded"), Some("x-forwarded-for")] {
                for (request, need) in needs {
                    let mut headers = vec![("host", host)];
                    headers.extend(forwarded.map(|name| (name, "for=127.0.0.1")));
                    let local = loopback && matches!(host, OURS | "localhost");
                    let free = local && forwarded.is_none() && need == Role::Read;
                    let expected = if !ours {
                        421
                    } else if free {
                        200
                    } else {
                        401
                    };
                    assert_eq!(world.ask(request, peer, &headers), expected, "{request:?} {peer} {headers:?}");
                    for (role, token) in &world.tokens {
                        let bearer = format!("Bearer {token}");
                        let headers = [headers.as_slice(), &[("authorization", bearer.as_str())]].concat();
                        let expected = if !ours {
                            421
                        } else if *role < need {
                            403
                        } else {
                            200
                        };
                        assert_eq!(
                            world.ask(request, peer, &headers),
                            expected,
                            "{role} {request:?} {peer} {headers:?}"
                        );
                        asked += 1;
                    }
                    asked += 1;
                }
            }
        }
    }
    assert_eq!(asked, 5 * 5 * 3 * 3 * 4);
}

#[test]
fn proxy_on_this_machine_shows_nothing_without_a_token() {
    let world = World::new();
    let token = format!("Bearer {}", world.tokens[0].1);
    let listed = FORWARDED.iter().copied();
    for name in listed.chain(["Via", "X-Forwarded-Server", "X-Forwarded-Port", "x-forwarded", "X-FORWARDED-FOR"]) {
        let forwarded = [("host", OURS), (name, "1.1 proxy")];
        assert_eq!(world.ask(READ, "127.0.0.1", &forwarded), 401, "{name}");
        let known = [("host", OURS), (name, "1.1 proxy"), ("authorization", token.as_str())];
        assert_eq!(world.ask(READ, "127.0.0.1", &known), 200, "{name}");
    }
    // A proxy that passes the name on and adds no header.
    assert_eq!(world.ask(READ, "127.0.0.1", &[("host", "cache.example")]), 401);
    let target = ("GET", "http://cache.example/api/v1/status");
    assert_eq!(world.ask(target, "127.0.0.1", &[("host", OURS)]), 401);
    for host in ["localhost:7400", "[::1]:7400", "127.0.0.2"] {
        assert_eq!(world.ask(READ, "::1", &[("host", host)]), 200, "{host}");
    }
}

#[test]
fn wrong_token_is_refused_even_where_none_is_needed() {
    let world = World::new();
    for wrong in ["Bearer nonsense", "Bearer ", "Basic YTpi", "nonsense"] {
        assert_eq!(world.ask(READ, "127.0.0.1", &[("host", OURS), ("authorization", wrong)]), 401, "{wrong}");
    }
}

#[test]
fn session_makes_changes_only_from_our_own_page() {
    let world = World::new();
    let (_, token) = world.tokens.last().expect("three");
    let (session, _) = world.access.begin(token).expect("known");
    let cookie = format!("theme=dark; {COOKIE}={session}");
    let with = |origin: Option<&str>, request| {
        let mut headers = vec![("host", OURS), ("cookie", cookie.as_str())];
        headers.extend(origin.map(|origin| ("origin", origin)));
        world.ask(request, "10.0.0.7", &headers)
    };
    assert_eq!(with(None, READ), 200);
    assert_eq!(with(Some("http://127.0.0.1:7400"), ADMINISTER), 200);
    for foreign in [None, Some("null"), Some("http://evil.example"), Some("http://127.0.0.1:7401")] {
        assert_eq!(with(foreign, ADMINISTER), 403, "{foreign:?}");
    }
    let over = format!("{COOKIE}={}", "0".repeat(64));
    assert_eq!(world.ask(READ, "10.0.0.7", &[("host", OURS), ("cookie", &over)]), 401);
    assert_eq!(world.ask(READ, "127.0.0.1", &[("host", OURS), ("cookie", &over)]), 200);
}

#[test]
fn login_is_open_from_our_own_page_and_without_origin() {
    let world = World::new();
    let login = ("POST", "/api/v1/login");
    assert_eq!(world.ask(login, "10.0.0.7", &[("host", OURS)]), 200);
    assert_eq!(world.ask(login, "10.0.0.7", &[("host", OURS), ("origin", "http://127.0.0.1:7400")]), 200);
    assert_eq!(world.ask(login, "10.0.0.7", &[("host", OURS), ("origin", "http://evil.example")]), 403);
    assert_eq!(world.ask(login, "10.0.0.7", &[("host", "evil.example")]), 421);
}

#[test]
fn request_needs_exactly_one_own_host() {
    let world = World::new();
    assert_eq!(world.ask(READ, "127.0.0.1", &[]), 400);
    assert_eq!(world.ask(READ, "127.0.0.1", &[("host", OURS), ("host", OURS)]), 400);
    let other = ("GET", "http://evil.example/api/v1/status");
    assert_eq!(world.ask(other, "127.0.0.1", &[("host", OURS)]), 421);
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
        assert_eq!(needed(&method, path), Some(Role::Administer), "{method} {path}");
    }
}
