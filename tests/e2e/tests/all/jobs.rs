//! Flushes as jobs: started without waiting, reported with progress and outcome, cancelled, bounded.

use std::io::Write;

use e2e::client::Client;
use e2e::daemon::{Daemon, text_of, wait_for};
use e2e::fixture::Fixture;
use e2e::http::Http;
use e2e::loop_device::LoopDevice;
use serde_json::{Value, json};

/// A volume on slow disks: destaging takes a while.
fn fixture() -> Fixture {
    let mut fixture = Fixture::new();
    fixture.tables = "[api]\nlisten = \"127.0.0.1:0\"".to_owned();
    fixture.add_volume_on("v", "sim://raid5?disks=3&type=nlsas", "size = \"128 MiB\"");
    fixture
}

/// Leaves `blocks` blocks dirty, of which no two are adjacent.
fn make_dirty(fixture: &Fixture, blocks: u64) {
    let mut client = Client::connect(&fixture.endpoint(), "v").expect("the volume is served");
    (0..blocks).for_each(|block| client.write(block * 65_536, &[1; 4096]).expect("the write succeeds"));
}

fn token(daemon: &Daemon, role: &str) -> String {
    daemon.command(&["token", "create", role, "--role", role]).trim().to_owned()
}

/// Outcomes of the flushes of the last half minute.
fn ended_jobs(http: &Http) -> Vec<Value> {
    http.get("/api/v1/status").json()["ended_jobs"].as_array().expect("a list").clone()
}

/// Starts a flush of `v` without waiting for it.
fn start_flush(http: &Http, token: &str) -> Value {
    let response = http.request_as(token, "POST", "/api/v1/volumes/v/flush", r#"{"wait": false}"#);
    assert_eq!(response.status, 202, "{response:?}");
    response.json()
}

fn dirty_bytes(http: &Http) -> u64 {
    http.get("/api/v1/volumes/v").json()["dirty_bytes"].as_u64().expect("a number")
}

#[test]
fn flush_without_waiting_is_a_job_until_done() {
    let fixture = fixture();
    let daemon = fixture.start();
    let (http, operate) = (Http::of(&daemon), token(&daemon, "operate"));
    assert_eq!(daemon.command(&["job", "list"]), "no jobs in progress\n");
    make_dirty(&fixture, 600);
    let job = start_flush(&http, &operate);
    assert_eq!((&job["kind"], &job["subject"], &job["paused"]), (&"flush".into(), &"v".into(), &false.into()), "{job}");
    assert!(job["total_bytes"].as_u64().is_some_and(|total| total > 0), "{job}");
    let id = job["id"].as_str().expect("a name");
    let listed = daemon.command(&["job", "list"]);
    assert!(listed.lines().any(|line| line.starts_with(id) && line.contains("flush")), "{listed}");
    // The progress of a job includes the estimated time left.
    wait_for("a job that is half-way", || {
        let jobs = http.get("/api/v1/jobs").json();
        let job_now = jobs.as_array().expect("a list").iter().find(|job| job["id"] == *id)?.clone();
        let is_in_progress = job_now["done_bytes"].as_u64() > Some(0) && job_now["left_seconds"].is_u64();
        assert!(job_now["done_bytes"].as_u64() <= job_now["total_bytes"].as_u64(), "{job_now}");
        is_in_progress.then_some(())
    });
    wait_for("the end of the job", || (http.get("/api/v1/jobs").json() == json!([])).then_some(()));
    assert_eq!(dirty_bytes(&http), 0);
    let ended = ended_jobs(&http);
    let outcome = ended.iter().find(|job| job["id"] == *id).expect("the outcome is reported");
    assert_eq!(
        (&outcome["outcome"], &outcome["subject"], &outcome["reason"]),
        (&"done".into(), &"v".into(), &"".into())
    );
    // A request that waits is answered as before, and invalid requests are refused.
    assert_eq!(http.request_as(&operate, "POST", "/api/v1/volumes/v/flush", r#"{"wait": true}"#).status, 200);
    assert_eq!(http.request_as(&operate, "POST", "/api/v1/volumes/v/flush", r#"{"colour": true}"#).status, 400);
    assert_eq!(http.request_as(&operate, "POST", "/api/v1/volumes/w/flush", r#"{"wait": false}"#).status, 404);
    daemon.stop();
}

#[test]
fn cancelled_flush_answers_its_waiting_client() {
    let fixture = fixture();
    let daemon = fixture.start();
    let (http, operate, read) = (Http::of(&daemon), token(&daemon, "operate"), token(&daemon, "read"));
    make_dirty(&fixture, 2_000);
    std::thread::scope(|scope| {
        let command = scope.spawn(|| daemon.try_command(&["volume", "flush", "v"]));
        let id = wait_for("the command's flush", || {
            let jobs = http.get("/api/v1/jobs").json();
            jobs[0]["id"].as_str().map(str::to_owned)
        });
        let second = start_flush(&http, &operate)["id"].as_str().expect("a name").to_owned();
        assert_ne!(id, second);
        let cancel = |token: &str, id: &str| http.request_as(token, "DELETE", &format!("/api/v1/jobs/{id}"), "").status;
        assert_eq!(cancel(&read, &id), 403);
        assert_eq!(cancel(&operate, &id), 204);
        let output = command.join().expect("the process ends");
        assert!(!output.status.success() && text_of(&output).contains("cancelled"), "{output:?}");
        assert!(daemon.command(&["job", "cancel", &second]).contains("cancelled"));
        wait_for("an empty list", || (http.get("/api/v1/jobs").json() == json!([])).then_some(()));
        let outcomes = ended_jobs(&http);
        assert!(outcomes.iter().all(|job| job["outcome"] == "called-off") && outcomes.len() == 2, "{outcomes:?}");
        assert!(dirty_bytes(&http) > 0, "the flush ended before it was cancelled: more blocks have to be dirty");
        assert_eq!(cancel(&operate, &id), 404);
        assert_eq!(cancel(&operate, "flush-x"), 404);
        assert_eq!(cancel(&operate, "flash"), 403);
    });
    // No data was lost by the cancellation.
    let mut client = Client::connect(&fixture.endpoint(), "v").expect("the volume is served");
    assert_eq!(client.read(1_999 * 65_536, 4096).expect("the read succeeds"), [1; 4096]);
    drop(client);
    let changes = daemon.command(&["events", "--kind", "change"]);
    assert!(changes.contains("cancel the job flush-1"), "{changes}");
    daemon.kill();
}

#[test]
fn flush_beyond_the_limit_is_refused_with_advice() {
    let fixture = fixture();
    let daemon = fixture.start();
    let (http, operate) = (Http::of(&daemon), token(&daemon, "operate"));
    make_dirty(&fixture, 2_000);
    let ids: Vec<String> =
        (0..64).map(|_| start_flush(&http, &operate)["id"].as_str().expect("a name").to_owned()).collect();
    let refused = http.request_as(&operate, "POST", "/api/v1/volumes/v/flush", r#"{"wait": false}"#);
    assert_eq!(refused.status, 503, "{refused:?}");
    let text = refused.json()["detail"].as_str().expect("a string").to_owned();
    assert!(text.contains("64 flushes are in progress") && text.contains("hotset job cancel"), "{text}");
    assert_eq!(http.request_as(&operate, "DELETE", &format!("/api/v1/jobs/{}", ids[7]), "").status, 204);
    wait_for("room for another", || {
        let response = http.request_as(&operate, "POST", "/api/v1/volumes/v/flush", r#"{"wait": false}"#);
        (response.status == 202).then_some(())
    });
    daemon.kill();
}

#[test]
fn failed_flush_without_waiting_is_reported_to_its_actor() {
    let mut fixture = Fixture::new();
    fixture.tables = "[api]\nlisten = \"127.0.0.1:0\"".to_owned();
    let device = match LoopDevice::attach(&fixture.folder.join("device.img"), 48 << 20, 512) {
        Ok(device) => device,
        Err(reason) => {
            // Written to the real stderr, past the capture of a passing test's output, because the skip must be
            // visible.
            let _ = writeln!(std::io::stderr(), "SKIPPED: a flush that fails: no loop device can be made ({reason})");
            return;
        }
    };
    fixture.add_volume_on("v", &device.path().to_string_lossy(), "");
    let daemon = fixture.start();
    let (http, operate) = (Http::of(&daemon), token(&daemon, "operate"));
    make_dirty(&fixture, 8);
    device.fail();
    let id = start_flush(&http, &operate)["id"].as_str().expect("a name").to_owned();
    let outcome = wait_for("the end of the job", || ended_jobs(&http).into_iter().find(|job| job["id"] == *id));
    assert_eq!(outcome["outcome"], "failed", "{outcome}");
    let reason = outcome["reason"].as_str().expect("a string");
    assert!(reason.starts_with("volume v: destaging failed: "), "{reason}");
    let events = http.get("/api/v1/events?kind=change&subject=v").json();
    let failure = events["events"]
        .as_array()
        .expect("a list")
        .iter()
        .find(|event| event["text"] == *format!("flush failed: {reason}"));
    assert!(
        failure.is_some_and(|event| event["actor"].as_str().is_some_and(|actor| actor.contains("operate"))),
        "{events}"
    );
    daemon.kill();
}
