//! Alerts that are acknowledged and silenced, over HTTP and by command, across a restart; tests of the alert channels.

use std::net::TcpListener;

use e2e::daemon::{Daemon, text_of, wait_for};
use e2e::fixture::Fixture;
use e2e::http::Http;
use serde_json::Value;

const MIB: u64 = 1 << 20;
/// The alert of a paused volume.
const ALERT: &str = "/api/v1/alerts/cache-paused%3Av";

fn fixture(tables: &str) -> Fixture {
    let mut fixture = Fixture::with_volume(16 * MIB);
    fixture.tables = format!("[api]\nlisten = \"127.0.0.1:0\"\n{tables}");
    fixture
}

fn token(daemon: &Daemon, role: &str) -> String {
    daemon.command(&["token", "create", role, "--role", role]).trim().to_owned()
}

/// The alert, once it is active.
fn alert(http: &Http) -> Value {
    wait_for("the alert", || http.get("/api/v1/alerts").json().as_array().expect("a list").first().cloned())
}

#[test]
fn silence_holds_across_a_restart_and_acknowledgement_does_not() {
    let fixture = fixture("");
    let daemon = fixture.start();
    let http = Http::of(&daemon);
    let (reader, operator) = (token(&daemon, "read"), token(&daemon, "operate"));
    let acknowledge = format!("{ALERT}/acknowledge");
    assert_eq!(http.request_as(&operator, "POST", &acknowledge, "").status, 404);
    daemon.command(&["volume", "pause", "v"]);
    assert_eq!(alert(&http)["id"], "cache-paused:v");
    assert_eq!(http.request_as(&reader, "POST", &acknowledge, "").status, 403);
    let acknowledged = http.request_as(&operator, "POST", &acknowledge, "").json();
    assert_eq!(acknowledged["acknowledged"]["by"], "token operate from 127.0.0.1", "{acknowledged}");
    let silence = format!("{ALERT}/silence");
    for body in [r#"{"seconds":0}"#, r#"{"seconds":99999999}"#, r#"{"seconds":1,"reason":"a\nb"}"#, "{}"] {
        assert_eq!(http.request_as(&operator, "POST", &silence, body).status, 400, "{body}");
    }
    let shown = daemon.command(&["alerts", "silence", "cache-paused:v", "--for", "2h", "--reason", "a test"]);
    assert!(shown.starts_with("cache-paused:v: silenced by user ") && shown.ends_with(": a test\n"), "{shown}");
    let listed = alert(&http);
    assert_eq!((&listed["silenced"]["reason"], listed["acknowledged"].is_object()), (&"a test".into(), true));
    let unknown = daemon.try_command(&["alerts", "silence", "cache-pause:v", "--for", "2h"]);
    assert!(unknown.status.code() == Some(2) && text_of(&unknown).contains("not the identifier"), "{unknown:?}");
    daemon.stop();
    let daemon = fixture.start();
    let http = Http::of(&daemon);
    daemon.command(&["volume", "pause", "v"]);
    let listed = alert(&http);
    assert_eq!((&listed["silenced"]["reason"], &listed["acknowledged"]), (&"a test".into(), &Value::Null));
    assert!(daemon.command(&["alerts", "list"]).contains(": a test"));
    assert_eq!(http.request_as(&operator, "DELETE", &silence, "").status, 204);
    assert_eq!(http.request_as(&operator, "DELETE", &silence, "").status, 404);
    assert_eq!(alert(&http)["silenced"], Value::Null);
    let events = http.get("/api/v1/events?kind=change&subject=v").json();
    let texts: Vec<_> = events["events"].as_array().expect("a list").iter().map(|event| &event["text"]).collect();
    for text in ["acknowledge the alert cache-paused:v", "silence the alert cache-paused:v for 7200 s: a test"] {
        assert!(texts.contains(&&text.into()), "{text} is not in {texts:?}");
    }
    daemon.stop();
}

#[test]
fn test_of_the_channels_shows_the_error_of_each() {
    let without_channels = fixture("");
    let daemon = without_channels.start();
    let none = daemon.try_command(&["alerts", "test"]);
    assert!(text_of(&none).contains("no alert channel is configured"), "{none:?}");
    daemon.stop();
    let closed = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).expect("a port");
    let fixture = fixture(&format!(
        "[alerts]\nwebhook = \"http://{closed}/s3cret\"\nmail_server = \"{closed}\"\nmail_tls = \"none\"\n\
         mail_from = \"a@example.com\"\nmail_to = [\"b@example.com\"]\n"
    ));
    let daemon = fixture.start();
    let http = Http::of(&daemon);
    let (operator, administrator) = (token(&daemon, "operate"), token(&daemon, "administer"));
    assert_eq!(http.request_as(&operator, "POST", "/api/v1/alerts/test", "").status, 403);
    let reports = http.request_as(&administrator, "POST", "/api/v1/alerts/test", "").json();
    let reports = reports.as_array().expect("a list");
    let channels: Vec<_> = reports.iter().map(|report| report["channel"].as_str().expect("a name")).collect();
    assert_eq!(channels, ["webhook", "mail"]);
    let is_refused = |report: &Value| report["error"].as_str().is_some_and(|text| text.contains("refused"));
    assert!(reports.iter().all(is_refused), "{reports:?}");
    let failed = daemon.try_command(&["alerts", "test"]);
    let text = text_of(&failed);
    assert!(failed.status.code() == Some(1) && text.contains("mail to b@example.com through 127.0.0.1:"), "{text}");
    assert!(!text.contains("s3cret"), "{text}");
    daemon.stop();
}
