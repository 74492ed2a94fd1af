//! The HTTP interface under TLS: authentication, cookies, certificates that change or expire, and clients that never
//! finish a handshake.

use std::fs;
use std::io::Read;
use std::net::TcpStream;
use std::time::Duration;

use e2e::certificate::Certificate;
use e2e::client::Client;
use e2e::daemon::{Daemon, hotset, text_of, wait_for};
use e2e::fixture::Fixture;
use e2e::http::Http;
use serde_json::{Value, json};

const MIB: u64 = 1 << 20;
/// Largest number of connections of the daemon.
const CONNECTIONS_MAX: usize = 256;

/// A fixture with TLS whose files are to be written into its folder.
fn fixture() -> Fixture {
    let mut fixture = Fixture::with_volume(4 * MIB);
    let folder = fixture.folder.path().display();
    fixture.tables = format!(
        "[api]\nlisten = \"127.0.0.1:0\"\ntls_certificate = \"{folder}/server.crt\"\ntls_key = \
         \"{folder}/server.key\"\n"
    );
    fixture
}

fn fixture_with(certificate: &Certificate) -> Fixture {
    let fixture = fixture();
    certificate.write(fixture.folder.path());
    fixture
}

fn https(daemon: &Daemon, trusted: &Certificate) -> Http {
    Http::of(daemon).with_tls(trusted.client_config())
}

/// Reloads the configuration until the log contains `word`; returns the log since.
fn reload(daemon: &Daemon, word: &str) -> String {
    let before = daemon.log().len();
    daemon.signal("HUP");
    wait_for(word, || daemon.log().get(before..).filter(|log| log.contains(word)).map(str::to_owned))
}

#[test]
fn only_clients_that_trust_the_certificate_are_served() {
    let (certificate, other) = (Certificate::new("ours"), Certificate::new("another"));
    let fixture = fixture_with(&certificate);
    let daemon = fixture.start();
    let http = https(&daemon, &certificate);
    assert_eq!(http.get("/api/v1/volumes").json()["volumes"][0]["name"], "v");
    let mut connection = http.keep_alive().expect("the certificate is trusted");
    for path in ["/healthz", "/metrics", "/api/v1/status"] {
        assert_eq!(connection.get(path).expect("the connection stays open").status, 200, "{path}");
    }
    let (first, _) = http.subscribe("/api/v1/stream?volumes=v", &[]).next_event();
    assert!(!first.is_empty());
    assert!(https(&daemon, &other).send("GET", "/api/v1/status", &[], "").is_err());
    // No reply to plain HTTP, not even a redirect.
    let plain = Http::of(&daemon).send("GET", "/", &[], "");
    assert!(plain.is_err(), "{plain:?}");
    daemon.stop();
}

#[test]
fn tls_session_cookie_is_never_sent_over_plain_http() {
    let certificate = Certificate::new("ours");
    let fixture = fixture_with(&certificate);
    let daemon = fixture.start();
    let http = https(&daemon, &certificate);
    let token = daemon.command(&["token", "create", "ops", "--role", "operate"]).trim().to_owned();
    let headers = ["Content-Type: application/json"];
    let logged_in = http.request("POST", "/api/v1/login", &headers, &json!({ "token": token }).to_string());
    let cookie = logged_in.header("set-cookie");
    for word in ["HttpOnly", "SameSite=Strict", "Secure"] {
        assert!(cookie.split("; ").any(|attribute| attribute == word), "{cookie}");
    }
    let session = format!("Cookie: {}", cookie.split(';').next().expect("a pair"));
    let pause = |scheme: &str| {
        let origin = format!("Origin: {scheme}://{}", http.address());
        http.request("POST", "/api/v1/volumes/v/pause", &[&session, &origin], "").status
    };
    assert_eq!((pause("http"), pause("https")), (403, 200));
    let logged_out =
        http.request("POST", "/api/v1/logout", &[&session, &format!("Origin: https://{}", http.address())], "");
    assert!(logged_out.header("set-cookie").ends_with("; Secure"), "{logged_out:?}");
    let link: Value = serde_json::from_str(&daemon.command(&["token", "link", "--json"])).expect("valid JSON");
    let page = format!("https://{}/", http.address());
    assert_eq!(link["page"], page.as_str());
    let path = link["link"].as_str().and_then(|link| link.strip_prefix(page.as_str())).expect("a link to the page");
    assert_eq!(http.request("GET", &format!("/{path}"), &[], "").status, 303);
    daemon.stop();
}

#[test]
fn reload_applies_only_valid_api_certificates() {
    let (first, second, third) = (Certificate::new("first"), Certificate::new("second"), Certificate::new("third"));
    let fixture = fixture_with(&first);
    let daemon = fixture.start();
    let serves = |certificate: &Certificate| https(&daemon, certificate).send("GET", "/healthz", &[], "").is_ok();
    let before = https(&daemon, &first);
    let mut connection = before.keep_alive().expect("the certificate is trusted");
    assert_eq!(connection.get("/healthz").expect("the volume is served").status, 200);
    reload(&daemon, "nothing has changed");
    let [certificate, key] = second.write(fixture.folder.path());
    assert!(serves(&first) && !serves(&second), "a certificate changes only at a reload");
    let log = reload(&daemon, "server.crt loaded");
    assert!(!log.contains("restart"), "{log}");
    assert!(serves(&second) && !serves(&first));
    assert_eq!(connection.get("/healthz").expect("open connections continue").status, 200);
    // The key of another certificate, an empty file, and a missing file.
    fs::write(&key, &first.key_pem).expect("the folder can be written");
    let log = reload(&daemon, "keeps its previous certificate: the key in");
    assert!(log.contains("specify a matching pair"), "{log}");
    fs::write(&key, "").expect("the folder can be written");
    reload(&daemon, "holds no private key in PEM form");
    fs::remove_file(&certificate).expect("the file exists");
    reload(&daemon, "server.crt cannot be read: No such file");
    assert!(serves(&second));
    // Other files, named in the configuration.
    let folder = fixture.folder.join("new");
    fs::create_dir(&folder).expect("the folder can be created");
    third.write(&folder);
    let text = fixture.config_text().replace("/server.", "/new/server.");
    fs::write(fixture.config(), text).expect("the folder can be written");
    let log = reload(&daemon, "new/server.crt loaded");
    assert!(!log.contains("restart"), "{log}");
    assert!(serves(&third) && !serves(&second));
    // The switch to plain HTTP requires a restart, so that a mistake in the file cannot cause it.
    let plain = fixture.config_text().lines().filter(|line| !line.starts_with("tls_")).collect::<Vec<_>>().join("\n");
    fs::write(fixture.config(), plain).expect("the folder can be written");
    reload(&daemon, "[api] has changed; restart the daemon");
    assert!(serves(&third));
    daemon.stop();
}

#[test]
fn bad_tls_files_at_start_disable_the_interface_only() {
    let (certificate, other) = (Certificate::new("ours"), Certificate::new("another"));
    let fixture = fixture();
    let daemon = fixture.start();
    Client::connect(&fixture.endpoint(), "v").expect("volumes are served without the interface");
    let api_address =
        || serde_json::from_str::<Value>(&daemon.command(&["status", "--json"])).expect("valid JSON")["api"].clone();
    assert!(daemon.log().contains("server.crt cannot be read: No such file"), "{}", daemon.log());
    assert_eq!(api_address(), "");
    certificate.write(fixture.folder.path());
    fs::write(fixture.folder.join("server.key"), &other.key_pem).expect("the folder can be written");
    wait_for("a line on the wrong key", || {
        daemon.log().contains("does not belong to the first certificate").then_some(())
    });
    assert_eq!(api_address(), "");
    certificate.write(fixture.folder.path());
    wait_for("the interface", || (api_address() != "").then_some(()));
    assert_eq!(https(&daemon, &certificate).get("/healthz").status, 200);
    daemon.stop();
}

#[test]
fn certificate_without_a_key_is_refused() {
    let fixture = fixture();
    for (key, missing) in [("tls_certificate", "tls_key"), ("tls_key", "tls_certificate")] {
        let is_kept = |line: &&str| !line.starts_with(missing);
        let text: String = fixture.config_text().lines().filter(is_kept).flat_map(|line| [line, "\n"]).collect();
        fs::write(fixture.config(), text).expect("the folder can be written");
        let checked = hotset(&["check-config", &fixture.config().to_string_lossy()]);
        let message = text_of(&checked);
        assert_eq!(checked.status.code(), Some(2), "{key}: {message}");
        assert!(message.contains(&format!("[api] without \"{missing}\"")), "{key}: {message}");
    }
}

#[test]
fn unfinished_handshakes_time_out() {
    let certificate = Certificate::new("ours");
    let fixture = fixture_with(&certificate);
    let daemon = fixture.start();
    let http = https(&daemon, &certificate);
    let connect = || TcpStream::connect(http.address()).expect("the server listens");
    let mut silent_clients: Vec<TcpStream> = (0..CONNECTIONS_MAX).map(|_| connect()).collect();
    // No connection is free until one of the handshakes has timed out.
    assert_eq!(http.get("/healthz").status, 200);
    for stream in &mut silent_clients {
        let mut received = Vec::new();
        let end = stream.read_to_end(&mut received);
        assert!(end.is_err() || received.is_empty(), "{received:?}");
    }
    daemon.stop();
}

#[test]
fn expiring_certificate_raises_an_alert_until_replaced() {
    const DAY: Duration = Duration::from_secs(86_400);
    let soon = Certificate::expiring_in("soon", 10 * DAY);
    let mut fixture = fixture_with(&soon);
    let folder = fixture.folder.path().display();
    fixture.nbd =
        format!("tls = \"allowed\"\ntls_certificate = \"{folder}/server.crt\"\ntls_key = \"{folder}/server.key\"\n");
    let daemon = fixture.start();
    let status = || serde_json::from_str::<Value>(&daemon.command(&["status", "--json"])).expect("valid JSON");
    let alert_subjects = |kind: &str| {
        let status = status();
        let active = status["active_alerts"].as_array().expect("a list").iter().filter(|alert| alert["kind"] == kind);
        active.map(|alert| alert["subject"].as_str().expect("a subject").to_owned()).collect::<Vec<_>>()
    };
    let subjects = ["[api] tls_certificate", "[nbd] tls_certificate"];
    wait_for("the warning", || (alert_subjects("certificate-expires") == subjects).then_some(()));
    assert_eq!(alert_subjects("certificate-expired"), [""; 0]);
    let metrics = https(&daemon, &soon).get("/metrics").body;
    let expiry = status()["certificates"][1]["ends_unix_seconds"].as_u64().expect("the expiry time");
    assert!(
        metrics.contains(&format!("hotset_certificate_expiry_timestamp_seconds{{table=\"nbd\"}} {expiry}\n")),
        "{metrics}"
    );
    Certificate::expired_since("over", DAY).write(fixture.folder.path());
    reload(&daemon, "[nbd] certificate");
    wait_for("the alert", || (alert_subjects("certificate-expired") == subjects).then_some(()));
    Certificate::expiring_in("renewed", 90 * DAY).write(fixture.folder.path());
    reload(&daemon, "[nbd] certificate");
    wait_for("its end", || {
        (alert_subjects("certificate-expired").is_empty() && alert_subjects("certificate-expires").is_empty())
            .then_some(())
    });
    daemon.stop();
}
