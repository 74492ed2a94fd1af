//! Events with their actors, alerts and webhooks: over HTTP, by command, on the stream, after kills, and on failing
//! disks.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use e2e::certificate::Certificate;
use e2e::client::Client;
use e2e::daemon::{Daemon, binary, wait_for};
use e2e::fixture::Fixture;
use e2e::http::Http;
use serde_json::{Value, json};

use crate::flash::{failing_devices, set_flash_devices};
use crate::history::SmallDisk;

const MIB: u64 = 1 << 20;

fn fixture() -> Fixture {
    let mut fixture = Fixture::with_volume(16 * MIB);
    fixture.tables = "[api]\nlisten = \"127.0.0.1:0\"".to_owned();
    fixture
}

/// Events for a query, newest first.
fn events(http: &Http, query: &str) -> Vec<Value> {
    let page = http.get(&format!("/api/v1/events?limit=1000{query}")).json();
    page["events"].as_array().expect("a list").clone()
}

/// Waits for an event whose text contains `word`, and returns the newest.
fn wait_for_event(http: &Http, query: &str, word: &str) -> Value {
    let has_word = |event: &Value| event["text"].as_str().is_some_and(|text| text.contains(word));
    wait_for(word, || events(http, query).into_iter().find(has_word))
}

/// Kinds and subjects of the active alerts.
fn alerts(http: &Http) -> Vec<(String, String)> {
    let alerts = http.get("/api/v1/alerts").json();
    let text = |value: &Value| value.as_str().unwrap_or("-").to_owned();
    let alerts = alerts.as_array().expect("a list").iter();
    alerts.map(|alert| (text(&alert["kind"]), text(&alert["subject"]))).collect()
}

fn has_alert(http: &Http, kind: &str, subject: &str) -> bool {
    alerts(http).contains(&(kind.to_owned(), subject.to_owned()))
}

fn status(daemon: &Daemon) -> Value {
    serde_json::from_str(&daemon.command(&["status", "--json"])).expect("valid JSON")
}

#[test]
fn change_is_recorded_once_with_its_actor() {
    let fixture = fixture();
    let daemon = fixture.start();
    let http = Http::of(&daemon);
    let token = daemon.command(&["token", "create", "ops", "--role", "operate"]).trim().to_owned();
    wait_for_event(&http, "&kind=daemon", "serving 1 volume");
    let mut subscriber = http.subscribe("/api/v1/stream", &[]);
    subscriber.next_event();
    let patched = http.request_as(&token, "PATCH", "/api/v1/volumes/v", r#"{"policy":"write-through"}"#);
    assert_eq!(patched.status, 200);
    let by_token = wait_for_event(&http, "&subject=v&kind=change", "policy");
    assert_eq!(by_token["actor"], "token ops from 127.0.0.1", "{by_token}");
    let text = "set policy=write-through: policy changed from write-back to write-through";
    assert_eq!((&by_token["text"], &by_token["kind"]), (&text.into(), &"change".into()));
    let streamed = (0..5).find_map(|_| {
        let (_, data) = subscriber.next_event();
        let events = data["events"].as_array().expect("a list").clone();
        events.into_iter().find(|event| event["text"] == text)
    });
    assert_eq!(streamed.as_ref(), Some(&by_token), "on the stream");
    // A refused change is not recorded, and reading is no change.
    assert_eq!(http.request_as(&token, "POST", "/api/v1/volumes/v/invalidate", "").status, 403);
    assert_eq!(http.request_as(&token, "PATCH", "/api/v1/volumes/v", r#"{"policy":"fast"}"#).status, 400);
    let created = wait_for_event(&http, "&kind=change", "create the token ops (operate)");
    daemon.command(&["volume", "pause", "v"]);
    let by_user = wait_for_event(&http, "&subject=v&kind=change", "pause");
    assert_eq!(by_user["text"], "pause: state changed from active to paused");
    assert!(by_user["actor"].as_str().is_some_and(|actor| actor.starts_with("u")), "{by_user}");
    assert_eq!(by_user["actor"], created["actor"]);
    let text = fixture.config_text().replace("name = \"v\"", "name = \"v\"\npolicy = \"none\"");
    fs::write(fixture.config(), text).expect("the folder can be written");
    daemon.signal("HUP");
    let reloaded = wait_for_event(&http, "&subject=v", "policy changed from write-back to none");
    assert_eq!(reloaded["actor"], "configuration reload (SIGHUP)");
    // Later samples do not report the recorded changes a second time.
    std::thread::sleep(Duration::from_millis(2_500));
    for kind in ["policy", "state", "limit"] {
        assert_eq!(events(&http, &format!("&kind={kind}")), [Value::Null; 0], "{kind}");
    }
    assert_eq!(events(&http, "&subject=v&kind=change").len(), 3);
    // The command reports the same.
    let commanded = daemon.command(&["events", "--subject", "v", "--kind", "change", "--json"]);
    let page = http.get("/api/v1/events?subject=v&kind=change").json();
    assert_eq!(serde_json::from_str::<Value>(&commanded).expect("valid JSON"), page);
    let lines = daemon.command(&["events", "--since", "-10min"]);
    let position =
        |word: &str| lines.lines().position(|line| line.contains(word)).unwrap_or_else(|| panic!("{word}: {lines}"));
    assert!(
        position("started: ") < position("(token ops from 127.0.0.1)") && position("policy") < position("pause"),
        "{lines}"
    );
    // Paging returns each event once.
    let (mut numbers, mut query) = (Vec::new(), String::new());
    loop {
        let page = http.get(&format!("/api/v1/events?limit=2{query}")).json();
        let events = page["events"].as_array().expect("a list");
        numbers.extend(events.iter().map(|event| event["number"].as_u64().expect("a number")));
        match page["next"].as_u64() {
            Some(older) => query = format!("&before={older}"),
            None => break,
        }
    }
    assert!(numbers.len() > 6 && numbers.is_sorted_by(|newer, older| newer > older), "{numbers:?}");
    for wrong in ["limit=0", "limit=1001", "kind=colour", "since=soon", "before=-1", "colour=1"] {
        assert_eq!(http.get(&format!("/api/v1/events?{wrong}")).status, 400, "{wrong}");
    }
    daemon.stop();
}

#[test]
fn events_survive_a_kill_and_numbering_continues() {
    let fixture = fixture();
    let daemon = fixture.start();
    daemon.command(&["volume", "freeze", "v"]);
    let file = fixture.folder.join("state/events/events.jsonl");
    wait_for("the event in the file", || fs::read_to_string(&file).ok().filter(|text| text.contains("freeze")));
    let before = events(&Http::of(&daemon), "");
    daemon.kill();
    // Appends an incomplete line, as a kill may leave it.
    let mut torn = fs::File::options().append(true).open(&file).expect("the file exists");
    torn.write_all(b"{\"number\":99,\"at_unix_ms\":1").expect("a writable file");
    let daemon = fixture.start();
    let http = Http::of(&daemon);
    let after = events(&http, "");
    let event_numbered = |number: &Value| after.iter().find(|event| event["number"] == *number);
    let frozen = before.iter().find(|event| event["text"].as_str().is_some_and(|text| text.starts_with("freeze")));
    let frozen = frozen.expect("the event was recorded");
    assert_eq!(event_numbered(&frozen["number"]), Some(frozen));
    wait_for_event(&http, "&kind=daemon", "the previous daemon was not cleanly stopped");
    daemon.stop();
    let daemon = fixture.start();
    let http = Http::of(&daemon);
    let daemons = events(&http, "&kind=daemon");
    let texts: Vec<&str> = daemons.iter().filter_map(|event| event["text"].as_str()).collect();
    assert!(texts.iter().any(|text| text.starts_with("stopped; the backings are complete")), "{texts:?}");
    let started = texts.iter().find(|text| text.starts_with("started: ")).expect("the event was recorded");
    assert!(!started.contains("did not say"), "{texts:?}");
    assert_eq!(wait_for_event(&http, "&kind=change", "stop")["actor"], "SIGTERM");
    daemon.stop();
}

#[test]
fn alert_is_reported_everywhere_while_active_only() {
    let fixture = fixture();
    let daemon = fixture.start();
    let http = Http::of(&daemon);
    let series = "hotset_alerts{kind=\"cache-paused\",severity=\"info\"}";
    let metric = || {
        let text = http.get("/metrics").body;
        text.lines().find_map(|line| line.strip_prefix(series)?.trim().parse::<u64>().ok()).expect("the metric exists")
    };
    assert_eq!((alerts(&http), metric()), (Vec::new(), 0));
    daemon.command(&["volume", "pause", "v"]);
    wait_for("the alert", || has_alert(&http, "cache-paused", "v").then_some(()));
    assert_eq!(metric(), 1);
    let status = status(&daemon);
    let alert = &status["active_alerts"][0];
    assert_eq!((&alert["kind"], &alert["severity"]), (&"cache-paused".into(), &"info".into()), "{status}");
    for field in ["cause", "effect", "remedy"] {
        assert!(alert[field].as_str().is_some_and(|text| !text.is_empty()), "{field}: {alert}");
    }
    assert!(alert["since_unix_ms"].as_u64() > Some(1_700_000_000_000), "{alert}");
    assert_eq!(status["alerts"], json!(["v: it is paused"]));
    assert!(daemon.command(&["status"]).contains("v: it is paused"));
    let raised = wait_for_event(&http, "&kind=alert", "cache-paused raised (info): it is paused");
    assert_eq!(raised["subject"], "v");
    daemon.command(&["volume", "resume", "v"]);
    wait_for_event(&http, "&kind=alert&subject=v", "cache-paused cleared");
    assert_eq!((alerts(&http), metric()), (Vec::new(), 0));
    assert_eq!(events(&http, "&kind=alert").len(), 2);
    daemon.stop();
}

#[test]
fn missing_flash_device_raises_alerts_until_replaced() {
    let mut fixture = fixture();
    let api = fixture.tables.clone();
    let flash = |names: &[&str]| {
        let devices: Vec<_> = names.iter().map(|name| format!("\"{}\"", fixture.folder.join(name).display())).collect();
        format!("{api}\n[flash]\ndevices = [{}]\nsize = \"64 MiB\"\nallow_single_copy = true\n", devices.join(", "))
    };
    let (both_devices, second_device) = (flash(&["f0", "f1"]), flash(&["f1"]));
    fixture.tables = both_devices;
    fixture.start().stop();
    fixture.tables = second_device;
    let daemon = fixture.start();
    let http = Http::of(&daemon);
    wait_for("the alerts", || {
        (has_alert(&http, "flash-degraded", "device 0") && has_alert(&http, "single-copy", "-")).then_some(())
    });
    let new = fixture.folder.join("f2");
    let new = new.to_string_lossy();
    daemon.command(&["flash", "replace", "0", &new]);
    wait_for("the alert of the file that does not name the new device alone", || {
        (alerts(&http).len() == 1 && has_alert(&http, "flash-unlisted", "-")).then_some(())
    });
    wait_for_event(&http, "&kind=alert&subject=device%200", "flash-degraded cleared");
    wait_for_event(&http, "&kind=alert", "single-copy cleared");
    wait_for_event(&http, "&kind=change&subject=0", &format!("replace with {new}"));
    wait_for_event(&http, &format!("&kind=device&subject={}", new.replace('/', "%2F")), "added: in-service");
    daemon.stop();
}

#[test]
fn failed_flash_device_raises_an_alert_until_replaced() {
    let mut fixture = Fixture::with_volume(16 * MIB);
    let Some(devices) = failing_devices(&fixture, &["loop"]) else { return };
    let (file, spare) = (fixture.folder.join("f1"), fixture.folder.join("f2"));
    set_flash_devices(&mut fixture, &[devices[0].path(), &file]);
    fixture.tables += "[api]\nlisten = \"127.0.0.1:0\"\n";
    let daemon = fixture.start();
    let http = Http::of(&daemon);
    let failed = devices[0].path().to_string_lossy().into_owned();
    let subject = failed.replace('/', "%2F");
    // Waits for a sample that has seen the device in service.
    let mut subscriber = http.subscribe("/api/v1/stream", &[]);
    (0..3).for_each(|_| drop(subscriber.next_event()));
    assert!(!has_alert(&http, "flash-degraded", &failed));
    devices[0].fail();
    let mut client = Client::connect(&fixture.endpoint(), "v").expect("the volume is served");
    wait_for("the alert", || {
        client.write(0, &[1; 4096]).and_then(|()| client.flush()).expect("the write succeeds");
        has_alert(&http, "flash-degraded", &failed).then_some(())
    });
    wait_for_event(&http, &format!("&kind=alert&subject={subject}"), "flash-degraded raised (critical)");
    wait_for_event(&http, &format!("&kind=device&subject={subject}"), "changed from in-service to lost");
    // A policy change without an actor.
    let to_write_through =
        wait_for_event(&http, "&kind=policy&subject=v", "policy changed from write-back to write-through");
    assert_eq!(to_write_through["actor"], Value::Null);
    daemon.command(&["flash", "replace", &failed, &spare.to_string_lossy()]);
    wait_for_event(&http, &format!("&kind=alert&subject={subject}"), "flash-degraded cleared");
    wait_for("the alert of the file that does not name the new device alone", || {
        (alerts(&http).len() == 1 && has_alert(&http, "flash-unlisted", "-")).then_some(())
    });
    wait_for_event(&http, "&kind=policy&subject=v", "policy changed from write-through to write-back");
    daemon.stop();
}

/// An HTTP server that replies to each POST with the next of `statuses`, and repeats the last one.
fn receiver(statuses: &'static [u16]) -> (String, Receiver<Value>) {
    let (address, bodies) = receiver_on(statuses, |stream| stream);
    (format!("http://{address}/hook?secret=s3cret"), bodies)
}

/// The same server on connections wrapped by `wrap`; connections without a request are skipped.
fn receiver_on<S: Read + Write>(
    statuses: &'static [u16],
    wrap: impl Fn(TcpStream) -> S + Send + 'static,
) -> (SocketAddr, Receiver<Value>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let address = listener.local_addr().expect("a bound socket");
    let (sender, bodies) = channel();
    std::thread::spawn(move || {
        let mut statuses = statuses.iter().chain(std::iter::repeat(statuses.last().expect("a status")));
        for stream in listener.incoming().map_while(Result::ok) {
            let mut reader = BufReader::new(wrap(stream));
            let (mut length, mut line) = (0, String::new());
            while reader.read_line(&mut line).is_ok_and(|bytes| bytes > 2) {
                let head = std::mem::take(&mut line).to_lowercase();
                let value = head.strip_prefix("content-length: ");
                length = value.map_or(length, |text| text.trim().parse().expect("a number"));
            }
            let mut body = vec![0; length];
            if length == 0 || reader.read_exact(&mut body).is_err() {
                continue;
            }
            let status = statuses.next().expect("an endless iterator");
            let stream = reader.get_mut();
            write!(stream, "HTTP/1.1 {status} X\r\nContent-Length: 0\r\n\r\n").expect("the client reads the reply");
            stream.flush().expect("the client reads the reply");
            if sender.send(serde_json::from_slice(&body).expect("valid JSON")).is_err() {
                return;
            }
        }
    });
    (address, bodies)
}

#[test]
fn webhook_retries_after_a_500_and_reports_the_clearing() {
    let (url, bodies) = receiver(&[500, 204]);
    let mut fixture = fixture();
    fixture.tables += &format!("\n[alerts]\nwebhook = \"{url}\"\n");
    let daemon = fixture.start();
    let http = Http::of(&daemon);
    let next_body = || bodies.recv_timeout(Duration::from_secs(60)).expect("a POST");
    daemon.command(&["volume", "pause", "v"]);
    let (first, again) = (next_body(), next_body());
    assert_eq!(first, again);
    let alert = &first["alerts"][0];
    assert_eq!(
        (&alert["state"], &alert["kind"], &alert["subject"], &alert["severity"]),
        (&"raised".into(), &"cache-paused".into(), &"v".into(), &"info".into()),
        "{first}"
    );
    assert!(first["version"] == 1 && alert["remedy"].as_str().is_some_and(|text| text.contains("resume")), "{first}");
    daemon.command(&["volume", "resume", "v"]);
    assert_eq!(next_body()["alerts"][0]["state"], "cleared");
    let health = wait_for("the deliveries", || {
        let health = status(&daemon)["webhook"].clone();
        (health["delivered"] == 2).then_some(health)
    });
    assert_eq!((&health["failures"], &health["failed"], &health["waiting"]), (&1.into(), &Value::Null, &0.into()));
    assert!(http.get("/metrics").body.contains("\nhotset_webhook_failures_total 1\n"));
    // Secrets in the URL appear nowhere.
    assert!(!status(&daemon).to_string().contains("s3cret") && !daemon.log().contains("s3cret"));
    daemon.stop();
}

#[test]
fn tls_webhook_receives_posts_only_with_a_trusted_certificate() {
    let (certificate, other) = (Certificate::new("receiver"), Certificate::new("another"));
    let (address, bodies) = receiver_on(&[204], certificate.tls_server());
    let fixture_trusting = |trusted: &Certificate| {
        let mut fixture = fixture();
        let [authority, _] = trusted.write(fixture.folder.path());
        let (url, authority) = (format!("https://{address}/hook?secret=s3cret"), authority.display());
        fixture.tables += &format!("\n[alerts]\nwebhook = \"{url}\"\nwebhook_ca = \"{authority}\"\n");
        fixture
    };
    let distrusting = fixture_trusting(&other);
    let daemon = distrusting.start();
    daemon.command(&["volume", "pause", "v"]);
    let reason = wait_for("a refusal", || status(&daemon)["webhook"]["failed"].as_str().map(str::to_owned));
    assert!(reason.contains("a CA that is not trusted here"), "{reason}");
    assert!(bodies.try_recv().is_err() && !status(&daemon).to_string().contains("s3cret"));
    daemon.stop();
    let trusting = fixture_trusting(&certificate);
    let daemon = trusting.start();
    daemon.command(&["volume", "pause", "v"]);
    let body = bodies.recv_timeout(Duration::from_secs(60)).expect("a POST");
    assert_eq!((&body["alerts"][0]["kind"], &body["alerts"][0]["subject"]), (&"cache-paused".into(), &"v".into()));
    wait_for("the delivery", || (status(&daemon)["webhook"]["delivered"] == 1).then_some(()));
    daemon.stop();
}

#[test]
fn unreachable_webhook_raises_an_alert_and_delays_nothing() {
    let closed = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).expect("a port");
    let mut fixture = fixture();
    fixture.tables += &format!("\n[alerts]\nwebhook = \"http://{closed}/\"\n");
    let daemon = fixture.start();
    let http = Http::of(&daemon);
    daemon.command(&["volume", "pause", "v"]);
    let mut client = Client::connect(&fixture.endpoint(), "v").expect("the volume is served");
    wait_for("the alert", || {
        client.write(0, &[1; 4096]).expect("the write succeeds");
        has_alert(&http, "webhook-failing", "-").then_some(())
    });
    daemon.stop();
}

#[test]
fn event_log_is_bounded_and_rotates() {
    let fixture = fixture();
    let folder = fixture.folder.join("state/events");
    fs::create_dir_all(&folder).expect("the folder can be created");
    let line = |number: u64| {
        let text = "x".repeat(200);
        json!({ "number": number, "at_unix_ms": number, "kind": "state", "subject": "v", "actor": null, "text": text })
    };
    let text: String = (1..=20_000).map(|number| format!("{}\n", line(number))).collect();
    assert!(text.len() > 5 << 20);
    fs::write(folder.join("events.jsonl"), &text).expect("the folder can be written");
    let daemon = fixture.start();
    let http = Http::of(&daemon);
    let (mut count, mut query) = (0, String::new());
    loop {
        let page = http.get(&format!("/api/v1/events?limit=1000{query}")).json();
        count += page["events"].as_array().expect("a list").len();
        match page["next"].as_u64() {
            Some(next) => query = format!("&before={next}"),
            None => break,
        }
    }
    assert!((9_990..=10_000).contains(&count), "{count}");
    daemon.command(&["volume", "freeze", "v"]);
    wait_for("another file", || {
        let bytes = |name: &str| fs::metadata(folder.join(name)).map(|meta| meta.len()).ok();
        (bytes("events.old.jsonl")? > 5 << 20 && bytes("events.jsonl")? < MIB).then_some(())
    });
    daemon.stop();
}

#[test]
fn full_or_read_only_event_disk_raises_an_alert_only() {
    let fixture = fixture();
    let Some(disk) = SmallDisk::mount(&fixture.folder.join("state/events")) else { return };
    let filler = fixture.folder.join("state/events/filler");
    let daemon = fixture.start();
    let http = Http::of(&daemon);
    let mut client = Client::connect(&fixture.endpoint(), "v").expect("the volume is served");
    assert!(!has_alert(&http, "events-disk", "-"));
    // The write fails with a full disk, as intended.
    assert!(fs::write(&filler, vec![1; 2 << 20]).is_err());
    let mut write = |number: u8| {
        client.write(0, &[number; 4096]).and_then(|()| client.flush()).expect("the write succeeds");
        assert_eq!(client.read(0, 4096).expect("the read succeeds"), [number; 4096]);
    };
    wait_for("the alert", || {
        // Creates events until the last page of the file is full.
        daemon.command(&["volume", "freeze", "v"]);
        daemon.command(&["volume", "resume", "v"]);
        write(1);
        has_alert(&http, "events-disk", "-").then_some(())
    });
    fs::remove_file(&filler).expect("the file exists");
    wait_for("the end of the alert", || (!has_alert(&http, "events-disk", "-")).then_some(()));
    let recorded = events(&http, "&subject=v").len();
    daemon.stop();
    disk.remount("ro");
    let daemon = fixture.start();
    let http = Http::of(&daemon);
    // Events that could not be written are still in memory.
    assert!(events(&http, "&subject=v").len() >= recorded);
    wait_for("the alert", || has_alert(&http, "events-disk", "-").then_some(()));
    let mut client = Client::connect(&fixture.endpoint(), "v").expect("the volume is served");
    client.write(0, &[2; 4096]).and_then(|()| client.flush()).expect("the write succeeds");
    disk.remount("rw");
    wait_for("the end of the alert", || (!has_alert(&http, "events-disk", "-")).then_some(()));
    daemon.stop();
}

#[test]
fn event_following_survives_a_restart() {
    let fixture = fixture();
    let daemon = fixture.start();
    let mut command = Command::new(binary());
    command
        .args(["events", "--follow", "--json", "--since", "now", "--socket"])
        .arg(fixture.folder.join("control.sock"));
    let mut follower = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("the command starts");
    let (sender, lines) = channel();
    let out = BufReader::new(follower.stdout.take().expect("a piped output"));
    std::thread::spawn(move || out.lines().map_while(Result::ok).try_for_each(|line| sender.send(line)));
    let next_line_with = |word: &str| {
        let line =
            std::iter::from_fn(|| lines.recv_timeout(Duration::from_secs(60)).ok()).find(|line| line.contains(word));
        let line = line.unwrap_or_else(|| panic!("no {word}"));
        serde_json::from_str::<Value>(&line).expect("one object per line")
    };
    daemon.command(&["volume", "pause", "v"]);
    assert_eq!(next_line_with("pause")["subject"], "v");
    daemon.stop();
    let daemon = fixture.start();
    assert_eq!(next_line_with("started: ")["kind"], "daemon");
    follower.kill().and_then(|()| follower.wait()).expect("a child process");
    daemon.stop();
}
