//! The HTTP interface: it reports the same figures as the commands, makes the same changes, and checks authorisation.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use e2e::client::Client;
use e2e::daemon::{Daemon, wait_for};
use e2e::fixture::Fixture;
use e2e::http::Http;
use serde_json::{Value, json};

const MIB: u64 = 1 << 20;

fn fixture() -> Fixture {
    let mut fixture = Fixture::new();
    fixture.tables =
        "[api]\nlisten = \"127.0.0.1:0\"\nnames = [\"cache.example\"]\n[[datastore]]\nname = \"shelf\"".to_owned();
    fixture.add_volume("v", 32 * MIB, "datastore = \"shelf\"\nlabels = { vm = \"web01\" }");
    fixture
}

fn token(daemon: &Daemon, role: &str) -> String {
    daemon.command(&["token", "create", role, "--role", role]).trim().to_owned()
}

fn json_of(daemon: &Daemon, args: &[&str]) -> Value {
    serde_json::from_str(&daemon.command(args)).expect("valid JSON")
}

/// Parses `/metrics` into values by series.
fn metrics(http: &Http) -> BTreeMap<String, f64> {
    let text = http.get("/metrics").body;
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let parse = |line: &str| {
        let (series, value) = line.rsplit_once(' ').expect("a value");
        (series.to_owned(), value.parse().expect("a number"))
    };
    lines.map(parse).collect()
}

#[test]
fn commands_routes_and_metrics_report_equal_counts() {
    let fixture = fixture();
    let daemon = fixture.start();
    let http = Http::of(&daemon);
    let mut client = Client::connect(&fixture.endpoint(), "v").expect("the volume is served");
    (0..70).for_each(|number| client.write(number * 8192, &[1; 8192]).expect("the write succeeds"));
    (0..130).for_each(|number| drop(client.read(number * 4096, 4096).expect("the read succeeds")));
    client.flush().expect("the flush succeeds");
    let shown = http.get("/api/v1/volumes/v").json();
    assert_eq!((&shown["reads"], &shown["writes"], &shown["flushes"]), (&130.into(), &70.into(), &1.into()));
    assert_eq!((&shown["read_bytes"], &shown["write_bytes"]), (&(130 * 4096).into(), &(70 * 8192).into()));
    // Removes the fields that change with time.
    let without_times = |mut report: Value| {
        let fields = report.as_object_mut().expect("an object");
        ["uptime_seconds", "uptime_ms", "miss_ratio_curve", "dirty_age_ms", "cores", "history"]
            .iter()
            .for_each(|name| drop(fields.remove(*name)));
        report
    };
    assert_eq!(without_times(shown.clone()), without_times(json_of(&daemon, &["volume", "show", "v", "--json"])));
    assert_eq!(
        without_times(http.get("/api/v1/status").json()),
        without_times(json_of(&daemon, &["status", "--json"]))
    );
    assert_eq!(
        without_times(http.get("/api/v1/volumes").json()["volumes"][0].clone()),
        without_times(http.get("/api/v1/status").json()["volumes"][0].clone())
    );
    let metrics = metrics(&http);
    let metric = |name: &str, label: &str| {
        metrics[&format!("hotset_volume_{name}{{volume=\"v\",datastore=\"shelf\",vm=\"web01\"{label}}}")]
    };
    assert_eq!(metric("requests_total", ",op=\"read\""), 130.0);
    assert_eq!(metric("requests_total", ",op=\"write\""), 70.0);
    assert_eq!(metric("requests_total", ",op=\"flush\""), 1.0);
    assert_eq!(metric("bytes_total", ",op=\"write\""), 70.0 * 8192.0);
    assert_eq!(metric("latency_seconds_count", ",op=\"read\""), 130.0);
    assert_eq!(metric("latency_seconds_bucket", ",op=\"write\",le=\"+Inf\""), 70.0);
    assert_eq!(metric("state", ",state=\"active\""), 1.0);
    let sources = ["memory", "flash", "backing", "mixed"]
        .map(|source| metric("reads_by_source_total", &format!(",source=\"{source}\"")));
    assert_eq!(sources.iter().sum::<f64>(), 130.0);
    assert_eq!(metrics["hotset_datastore_requests_total{datastore=\"shelf\",op=\"read\"}"], 130.0);
    // Each datastore counts its backings' latencies as often as its volumes sent requests.
    let backing_requests = shown["backing_requests"].as_array().expect("a list");
    for op in ["read", "write", "flush"] {
        let values_of = |key: &str| {
            backing_requests
                .iter()
                .filter(|entry| entry["op"] == op)
                .map(|entry| entry[key].clone())
                .collect::<Vec<_>>()
        };
        let series = metrics.iter().filter(|(series, _)| {
            series.starts_with("hotset_backing_latency_seconds_count{datastore=\"shelf\"")
                && series.contains(&format!("op=\"{op}\""))
        });
        let counted: f64 = series.map(|(_, count)| count).sum();
        let requests: u64 = values_of("requests").iter().map(|count| count.as_u64().expect("a number")).sum();
        assert_eq!((counted, requests > 0), (requests as f64, true), "{op}: {backing_requests:?}");
        assert!(
            values_of("latency").iter().all(|latency| latency["sum_us"].as_f64() > Some(0.0)),
            "{op}: {backing_requests:?}"
        );
    }
    let curve = http.get("/api/v1/volumes/v/miss-ratio-curve").json();
    assert!(curve["memory"]["accesses"].as_u64().expect("a number") > 0, "{curve}");
    assert!(http.get("/api/v1/volumes/v/slow").json().is_array());
    drop(client);
    daemon.stop();
}

#[test]
fn http_changes_match_commands_survive_and_are_logged() {
    let fixture = fixture();
    let daemon = fixture.start();
    let (http, operate) = (Http::of(&daemon), token(&daemon, "operate"));
    let patched = http.request_as(&operate, "PATCH", "/api/v1/volumes/v", r#"{"policy":"write-through"}"#);
    assert_eq!((patched.status, &patched.json()["policy"]), (200, &"write-through".into()));
    assert_eq!(json_of(&daemon, &["volume", "show", "v", "--json"])["policy"], "write-through");
    for (action, state) in [("pause", "paused"), ("freeze", "frozen"), ("resume", "active"), ("flush", "active")] {
        let response = http.request_as(&operate, "POST", &format!("/api/v1/volumes/v/{action}"), "");
        assert_eq!((response.status, &response.json()["state"]), (200, &state.into()), "{action}");
        assert_eq!(json_of(&daemon, &["volume", "show", "v", "--json"])["state"], state, "{action}");
    }
    let refused = http.request_as(&operate, "POST", "/api/v1/volumes/v/invalidate", "");
    assert_eq!(refused.status, 403, "{refused:?}");
    for line in
        ["\"operate\" (operate) from 127.0.0.1: PATCH /api/v1/volumes/v 200", "POST /api/v1/volumes/v/invalidate 403"]
    {
        // A thread of its own writes the log.
        wait_for(line, || daemon.log().contains(line).then_some(()));
    }
    assert!(!daemon.log().contains(&operate), "the log contains a token");
    daemon.stop();
    let state = std::fs::read_to_string(fixture.folder.join("state/state.json")).expect("the state file exists");
    assert!(state.contains("\"operate\"") && !state.contains(&operate), "{state}");
    let daemon = fixture.start();
    let http = Http::of(&daemon);
    assert_eq!(http.get("/api/v1/volumes/v").json()["policy"], "write-through");
    assert_eq!(http.get("/api/v1/status").json()["overrides"][0]["key"], "policy");
    // The token survives too, until it is revoked.
    let set_write_back =
        || http.request_as(&operate, "PATCH", "/api/v1/volumes/v", r#"{"policy":"write-back"}"#).status;
    assert_eq!(set_write_back(), 200);
    daemon.command(&["token", "revoke", "operate"]);
    assert_eq!(set_write_back(), 401);
    daemon.stop();
}

#[test]
fn pin_and_unpin_check_roles_and_ranges() {
    let mut fixture = fixture();
    let devices = ["f0", "f1"].map(|name| format!("\"{}\"", fixture.folder.join(name).display()));
    fixture.tables += &format!("\n[flash]\ndevices = [{}]\nsize = \"64 MiB\"", devices.join(", "));
    let daemon = fixture.start();
    let http = Http::of(&daemon);
    let (read, operate) = (token(&daemon, "read"), token(&daemon, "operate"));
    let post = |token: &str, action: &str, range: &str| {
        http.request_as(token, "POST", &format!("/api/v1/volumes/{action}"), range)
    };
    assert_eq!(post(&read, "v/pin", "").status, 403);
    let pinned = || {
        let overrides = http.get("/api/v1/status").json()["overrides"].clone();
        let pinned = overrides.as_array().expect("a list").iter().find(|entry| entry["key"] == "pinned").cloned();
        pinned.map(|entry| entry["value"].as_str().expect("a string").to_owned())
    };
    let response = post(&operate, "v/pin", r#"{"from_bytes": 65536, "to_bytes": 200000}"#);
    assert_eq!((response.status, &response.json()["flash"]["pinned_pages"]), (200, &3.into()), "{response:?}");
    assert_eq!(pinned().as_deref(), Some("65536..262144"));
    wait_for("its pages", || (http.get("/api/v1/volumes/v").json()["flash"]["pinned_whole_pages"] == 3).then_some(()));
    for (action, range, status, reason) in [
        ("v/pin", r#"{"from_bytes": 8192, "to_bytes": 4096}"#, 400, "from byte 8192 to byte 4096"),
        ("v/unpin", r#"{"from_bytes": 4096, "to_bytes": 4096}"#, 400, "the range from byte 4096"),
        ("v/pin", r#"{"from_bytes": 33554432}"#, 400, "byte 33554432 is past the end of volume v"),
        ("v/pin", r#"{"from_bytes": -1}"#, 400, "`-1`, expected"),
        ("v/pin", r#"{"from": 0}"#, 400, "from"),
        ("none/pin", "", 404, "no volume named"),
    ] {
        let refused = post(&operate, action, range);
        assert_eq!(refused.status, status, "{range}: {refused:?}");
        assert_eq!(refused.header("content-type"), "application/problem+json");
        assert!(refused.json()["detail"].as_str().is_some_and(|text| text.contains(reason)), "{refused:?}");
    }
    let unpinned = post(&operate, "v/unpin", r#"{"from_bytes": 65536, "to_bytes": 131072}"#);
    assert_eq!((unpinned.status, pinned().as_deref()), (200, Some("131072..262144")));
    assert_eq!(post(&operate, "v/pin", "").status, 200);
    assert_eq!(pinned(), Some(format!("0..{}", 32 * MIB)));
    assert_eq!((post(&operate, "v/unpin", "").status, pinned()), (200, None));
    daemon.stop();
}

#[test]
fn heat_map_counts_requests_by_address_and_time() {
    let fixture = fixture();
    let daemon = fixture.start();
    let http = Http::of(&daemon);
    let heat = || http.get("/api/v1/volumes/v/heat").json();
    let before = heat();
    assert_eq!((&before["size_bytes"], &before["part_bytes"]), (&(32 * MIB).into(), &(MIB / 2).into()), "{before}");
    assert_eq!((&before["step_seconds"], &before["keep_seconds"]), (&60.into(), &3600.into()));
    assert_eq!(before["rows"], json!([]), "no requests so far");
    let mut client = Client::connect(&fixture.endpoint(), "v").expect("the volume is served");
    (0..5).for_each(|_| drop(client.read(3 * MIB, 4096).expect("the read succeeds")));
    // The end of the volume, and a request over many parts, which counts once at its start.
    (0..2).for_each(|_| client.write(32 * MIB - 4096, &[1; 4096]).expect("the write succeeds"));
    drop(client.read(8 * MIB, 2 << 20).expect("the read succeeds"));
    client.flush().expect("the flush succeeds");
    let map = heat();
    let rows = map["rows"].as_array().expect("a list");
    let sum = |kind: &str, part: usize| rows.iter().map(|row| row[kind][part].as_u64().expect("a number")).sum::<u64>();
    let total = |kind: &str| (0..64).map(|part| sum(kind, part)).sum::<u64>();
    assert_eq!((sum("reads", 6), sum("reads", 16), sum("writes", 63)), (5, 1, 2), "{map}");
    assert_eq!((total("reads"), total("writes")), (6, 2), "{map}");
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("after 1970").as_secs();
    let row_start = rows[0]["at_unix_seconds"].as_u64().expect("a number");
    assert!((now - 61..=now).contains(&row_start) || rows.len() > 1, "{row_start} and not {now}");
    assert_eq!(http.get("/api/v1/volumes/none/heat").status, 404);
    drop(client);
    daemon.stop();
}

#[test]
fn volumes_are_added_and_removed_online() {
    let fixture = fixture();
    let daemon = fixture.start();
    let (http, administer) = (Http::of(&daemon), token(&daemon, "administer"));
    let add = |name: &str| {
        let backing = fixture.folder.join(&format!("{name}.img"));
        let volume = json!({ "name": name, "backing": backing, "size_bytes": MIB, "read_only": false });
        http.request_as(&administer, "POST", "/api/v1/volumes", &volume.to_string())
    };
    for name in ["a", "b"] {
        let added = add(name);
        assert_eq!((added.status, &added.json()["name"]), (201, &name.into()), "{added:?}");
    }
    assert_eq!(add("a").status, 409);
    Client::connect(&fixture.endpoint(), "a")
        .expect("the volume is served")
        .write(0, &[1; 4096])
        .expect("the write succeeds");
    let page = http.get("/api/v1/volumes?limit=2").json();
    assert_eq!((page["volumes"].as_array().map(Vec::len), &page["next"]), (Some(2), &"b".into()));
    assert_eq!(http.get("/api/v1/volumes?limit=2&after=b").json()["volumes"][0]["name"], "v");
    let wrong = http.request_as(&administer, "POST", "/api/v1/volumes/a/invalidate", r#"{"discard_dirty":"b"}"#);
    assert_eq!(wrong.status, 400);
    let dropped = http.request_as(&administer, "POST", "/api/v1/volumes/a/invalidate", r#"{"discard_dirty":"a"}"#);
    assert!(dropped.status == 200 && dropped.json()["said"][0].is_string(), "{dropped:?}");
    let resize = |body: &str| http.request_as(&administer, "POST", "/api/v1/volumes/a/resize", body);
    let grown = resize(&json!({ "size_bytes": 2 * MIB }).to_string());
    assert_eq!((grown.status, &grown.json()["size_bytes"]), (200, &(2 * MIB).into()), "{grown:?}");
    for wrong in [r#"{"size_bytes":1000}"#, r#"{"discard_dirty":"b"}"#] {
        assert_eq!(resize(wrong).status, 400, "{wrong}");
    }
    std::fs::File::options()
        .write(true)
        .open(fixture.folder.join("a.img"))
        .expect("the file exists")
        .set_len(3 * MIB)
        .expect("the file can grow");
    assert_eq!(resize("").json()["size_bytes"], 3 * MIB, "the present size of the backing");
    assert_eq!(http.request_as(&administer, "DELETE", "/api/v1/volumes/a", "").status, 204);
    assert_eq!(http.get("/api/v1/volumes/a").status, 404);
    assert_eq!(http.get("/api/v1/flash").json()["devices"], json!([]));
    assert_eq!(http.get("/api/v1/jobs").json(), json!([]));
    assert_eq!(http.request_as(&administer, "DELETE", "/api/v1/jobs/flash", "").status, 404);
    assert_eq!(http.request_as(&administer, "POST", "/api/v1/flash", r#"{"path":"/x"}"#).status / 100, 4);
    daemon.stop();
}

#[test]
fn unauthorised_requests_are_refused() {
    let fixture = fixture();
    let daemon = fixture.start();
    let (http, read) = (Http::of(&daemon), token(&daemon, "read"));
    let status = "/api/v1/status";
    let status_with = |headers: &[&str]| http.request("GET", status, headers, "").status;
    assert_eq!(status_with(&[]), 200);
    assert_eq!(status_with(&["Host: localhost"]), 200);
    // A proxy on this machine may pass this name on for clients of other machines.
    assert_eq!(status_with(&["Host: cache.example"]), 401);
    assert_eq!(status_with(&["Host: cache.example", &format!("Authorization: Bearer {read}")]), 200);
    for foreign in ["Host: evil.example", "Host: 127.0.0.1.evil.example", "Host: 10.0.0.1"] {
        assert_eq!(status_with(&[foreign]), 421, "{foreign}");
        assert_eq!(http.request("GET", "/", &[foreign], "").status, 421, "{foreign}");
    }
    for forwarded in ["Forwarded: for=127.0.0.1", "X-Forwarded-For: 127.0.0.1", "X-Forwarded-For:", "Via: 1.1 proxy"] {
        assert_eq!(status_with(&[forwarded]), 401, "{forwarded}");
        assert_eq!(status_with(&[forwarded, &format!("Authorization: Bearer {read}")]), 200, "{forwarded}");
        assert_eq!(http.request("GET", "/metrics", &[forwarded], "").status, 401, "{forwarded}");
    }
    let restricted = [
        ("POST", "/api/v1/volumes"),
        ("PATCH", "/api/v1/volumes/v"),
        ("DELETE", "/api/v1/volumes/v"),
        ("POST", "/api/v1/volumes/v/flush"),
        ("POST", "/api/v1/volumes/v/pause"),
        ("POST", "/api/v1/volumes/v/freeze"),
        ("POST", "/api/v1/volumes/v/resume"),
        ("POST", "/api/v1/volumes/v/invalidate"),
        ("POST", "/api/v1/volumes/v/resize"),
        ("POST", "/api/v1/flash"),
        ("DELETE", "/api/v1/flash/0"),
        ("DELETE", "/api/v1/jobs/flash"),
        ("GET", "/api/v1/tokens"),
        ("POST", "/api/v1/tokens"),
        ("DELETE", "/api/v1/tokens/read"),
    ];
    for (method, path) in restricted {
        let bare = http.request(method, path, &[], "");
        assert_eq!((bare.status, bare.header("www-authenticate")), (401, "Bearer realm=\"hotset\""), "{method} {path}");
        bare.json();
        assert_eq!(http.request_as(&read, method, path, "{}").status, 403, "{method} {path}");
    }
    assert_eq!(json_of(&daemon, &["volume", "show", "v", "--json"])["state"], "active");
    daemon.stop();
}

#[test]
fn tokens_over_http_match_commands_and_their_secrets_stay_hidden() {
    let fixture = fixture();
    let daemon = fixture.start();
    let (http, administer) = (Http::of(&daemon), token(&daemon, "administer"));
    let tokens = "/api/v1/tokens";
    let create = |name: &str| {
        let body = json!({ "name": name, "role": "operate" }).to_string();
        http.request_as(&administer, "POST", tokens, &body)
    };
    let created = create("deploy");
    assert_eq!(created.status, 201, "{created:?}");
    let secret = created.json()["token"].as_str().expect("the secret").to_owned();
    let listed = http.request_as(&administer, "GET", tokens, "");
    assert_eq!((listed.status, listed.json()), (200, json_of(&daemon, &["token", "list", "--json"])));
    let flush = || http.request_as(&secret, "POST", "/api/v1/volumes/v/flush", "").status;
    assert_eq!((flush(), create("deploy").status, create("..").status, create("a b").status), (200, 409, 400, 400));
    let revoked = http.request_as(&administer, "DELETE", "/api/v1/tokens/deploy", "");
    assert_eq!((revoked.status, &revoked.json()["own_access_ended"]), (200, &false.into()));
    assert_eq!(flush(), 401);
    let events = http.get("/api/v1/events?kind=change").body;
    assert!(events.contains("create the token deploy (operate)") && events.contains("revoke the token deploy"));
    let own = http.request_as(&administer, "DELETE", "/api/v1/tokens/administer", "");
    assert_eq!((own.status, &own.json()["own_access_ended"]), (200, &true.into()));
    assert_eq!(http.request_as(&administer, "GET", tokens, "").status, 401);
    for (place, text) in [("list", &listed.body), ("events", &events), ("log", &daemon.log())] {
        assert!(!text.contains(secret.trim_start_matches("hotset_")), "a secret is in the {place}: {text}");
    }
    daemon.stop();
}

#[test]
fn browser_logs_in_by_link_or_token_and_out() {
    let fixture = fixture();
    let daemon = fixture.start();
    let (http, operate) = (Http::of(&daemon), token(&daemon, "operate"));
    let link = daemon.command(&["token", "link"]);
    let path = link.trim().strip_prefix(&format!("http://{}", http.address())).expect("a link to this interface");
    let opened = http.get(path);
    assert_eq!((opened.status, opened.header("location")), (303, "./#/?login=link"));
    let cookie = opened.header("set-cookie").to_owned();
    assert!(cookie.contains("HttpOnly") && cookie.contains("SameSite=Strict"), "{cookie}");
    assert_eq!(http.get(path).status, 401);
    let login = |token: &str| {
        http.request(
            "POST",
            "/api/v1/login",
            &["Content-Type: application/json"],
            &json!({ "token": token }).to_string(),
        )
    };
    let logged_in = login(&operate);
    assert_eq!((logged_in.status, &logged_in.json()["role"]), (200, &"operate".into()));
    let session = format!("Cookie: {}", cookie.split(';').next().expect("a pair"));
    let origin = format!("Origin: http://{}", http.address());
    let pause = |headers: &[&str]| http.request("POST", "/api/v1/volumes/v/pause", headers, "").status;
    assert_eq!(pause(&[&session]), 403);
    assert_eq!(pause(&[&session, "Origin: http://evil.example"]), 403);
    assert_eq!(pause(&[&session, &origin]), 200);
    assert_eq!(http.request("GET", "/api/v1/status", &[&session, "X-Forwarded-For: 1.2.3.4"], "").status, 200);
    assert_eq!(http.request("POST", "/api/v1/logout", &[&session, &origin], "").status, 204);
    assert_eq!(pause(&[&session, &origin]), 401);
    // Guessing is rate-limited before the check, so a valid token is refused too.
    let wrong: Vec<u16> = (0..6).map(|_| login("hotset_0").status).collect();
    assert_eq!(wrong.last(), Some(&429), "{wrong:?}");
    let late = login(&operate);
    assert!(late.status == 429 && !late.header("retry-after").is_empty(), "{late:?}");
    assert_eq!(http.request_as(&operate, "POST", "/api/v1/volumes/v/resume", "").status, 200);
    daemon.stop();
}

#[test]
fn malformed_requests_are_refused_with_a_reason() {
    let fixture = fixture();
    let daemon = fixture.start();
    let (http, administer) = (Http::of(&daemon), token(&daemon, "administer"));
    let patch = |body: &str| http.request_as(&administer, "PATCH", "/api/v1/volumes/v", body);
    for (body, word) in [
        (r#"{"polcy":"none"}"#, "polcy"),
        (r#"{"policy":"fast"}"#, "fast"),
        (r#"{"policy":7}"#, "a string"),
        ("{}", "no setting given"),
        ("{", "EOF"),
        ("", "EOF"),
    ] {
        let refused = patch(body);
        assert_eq!(refused.status, 400, "{body}: {refused:?}");
        assert!(refused.json()["detail"].as_str().is_some_and(|text| text.contains(word)), "{body}: {refused:?}");
    }
    assert_eq!(patch(&format!("\"{}\"", "x".repeat(70_000))).status, 413);
    let bearer = format!("Authorization: Bearer {administer}");
    assert_eq!(http.request("PATCH", "/api/v1/volumes/v", &[&bearer], "{}").status, 415);
    for query in ["?limit=0", "?limit=1001", "?limit=x", "?colour=1", "?limit=-1"] {
        assert_eq!(http.get(&format!("/api/v1/volumes{query}")).status, 400, "{query}");
    }
    assert_eq!(http.get("/api/v1/volumes/none").status, 404);
    assert_eq!(http.get("/api/v1/volumes/%ff").status, 400);
    assert_eq!(http.get("/nowhere").status, 404);
    assert_eq!(http.request_as(&administer, "PUT", "/api/v1/status", "").status, 405);
    let long = format!("X-Long: {}", "x".repeat(100_000));
    assert_eq!(http.send("GET", "/healthz", &[&long], "").map_or(431, |reply| reply.status), 431);
    let many = vec!["X-Many: 1"; 100];
    assert_eq!(http.send("GET", "/healthz", &many, "").map_or(431, |reply| reply.status), 431);
    assert_eq!((http.get("/healthz").body.as_str(), http.get("/readyz").body.as_str()), ("ok\n", "ready\n"));
    let page = http.get("/");
    assert!(page.body.contains("<title>Hotset") && !page.body.contains("<script>"), "{}", page.body);
    assert!(page.header("content-security-policy").contains("script-src 'self'"), "{page:?}");
    daemon.stop();
}

#[test]
fn undocumented_replies_are_caught() {
    let fixture = fixture();
    let daemon = fixture.start();
    let http = Http::of(&daemon);
    assert!(http.is_documented("GET", "/api/v1/volumes/v", 200) && http.is_documented("GET", "/nowhere", 404));
    for (method, path, status) in [
        ("GET", "/api/v1/status", 418),
        ("GET", "/api/v1/status", 201),
        ("GET", "/nowhere", 200),
        ("POST", "/api/v1/status", 200),
    ] {
        assert!(!http.is_documented(method, path, status), "{method} {path} {status}");
    }
    daemon.stop();
}

#[test]
fn stream_sends_each_second_once_and_resumes() {
    let fixture = fixture();
    let daemon = fixture.start();
    let http = Http::of(&daemon);
    let sequence = |id: &str| id.rsplit_once('-').and_then(|(_, number)| number.parse::<u64>().ok()).expect("a number");
    let began = Instant::now();
    let mut subscriber = http.subscribe("/api/v1/stream?volumes=v,none", &[]);
    let events: Vec<_> = (0..4).map(|_| subscriber.next_event()).collect();
    // Three pauses lie between four events; a busy machine may be late.
    let elapsed = began.elapsed();
    assert!((Duration::from_secs(2)..Duration::from_secs(20)).contains(&elapsed), "{elapsed:?}");
    let (first, last) = (sequence(&events[0].0), sequence(&events[3].0));
    assert_eq!(last - first, 3);
    let data = &events[0].1;
    assert_eq!((&data["volumes"]["v"]["name"], &data["totals"]["volumes"]), (&"v".into(), &1.into()), "{data}");
    assert!(data["volumes"]["none"].is_null() && data["status"]["version"].is_string(), "{data}");
    // All clients receive the same events.
    let mut other = http.subscribe("/api/v1/stream", &[]);
    let (id, data) = other.next_event();
    assert_eq!(data["volumes"], json!({}));
    let same = std::iter::repeat_with(|| subscriber.next_event())
        .find(|(event_id, _)| *event_id == id)
        .expect("the event arrives");
    assert_eq!(same.1["totals"], data["totals"]);
    drop(subscriber);
    let mut resumed = http.subscribe("/api/v1/stream?volumes=v", &[&format!("Last-Event-ID: {}", events[0].0)]);
    let again: Vec<_> = (0..3).map(|_| resumed.next_event()).collect();
    assert_eq!(again, events[1..]);
    let unknown = http.subscribe("/api/v1/stream", &["Last-Event-ID: 1-1"]).next_event();
    assert!(sequence(&unknown.0) > last);
    daemon.stop();
}

#[test]
fn hundred_stream_subscribers_do_not_block_the_control_socket() {
    let fixture = fixture();
    let daemon = fixture.start();
    let http = Http::of(&daemon);
    let mut subscribers: Vec<_> = (0..100).map(|_| http.subscribe("/api/v1/stream?volumes=v", &[])).collect();
    assert!(subscribers.iter_mut().all(|subscriber| subscriber.next_event().1["volumes"]["v"].is_object()));
    assert_eq!(json_of(&daemon, &["volume", "show", "v", "--json"])["name"], "v");
    daemon.command(&["volume", "flush", "v"]);
    assert_eq!(http.get("/api/v1/status").status, 200);
    // The number of subscribers is limited.
    subscribers.extend((0..28).map(|_| http.subscribe("/api/v1/stream", &[])));
    let full = http.get("/api/v1/stream");
    assert!(full.status == 503 && !full.header("retry-after").is_empty(), "{full:?}");
    drop(subscribers);
    wait_for("room in the stream", || (http.status_of("/api/v1/stream") == 200).then_some(()));
    let names: Vec<String> = (0..65).map(|number| format!("v{number}")).collect();
    assert_eq!(http.get(&format!("/api/v1/stream?volumes={}", names.join(","))).status, 400);
    daemon.stop();
}

#[test]
fn volumes_are_served_while_the_api_cannot_listen() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let mut fixture = Fixture::with_volume(MIB);
    fixture.tables = format!("[api]\nlisten = \"{}\"", taken.local_addr().expect("a bound socket"));
    let daemon = fixture.start();
    assert!(daemon.log().contains("[api] cannot listen"), "{}", daemon.log());
    Client::connect(&fixture.endpoint(), "v")
        .expect("the volume is served")
        .write(0, &[1; 4096])
        .expect("the write succeeds");
    let refused = daemon.try_command(&["token", "link"]);
    assert!(!refused.status.success());
    drop(taken);
    wait_for("the interface", || Some(()).filter(|()| daemon.log().contains("web console: http://127.0.0.1")));
    assert_eq!(Http::of(&daemon).get("/readyz").status, 200);
    daemon.stop();
}
