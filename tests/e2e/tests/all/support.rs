//! `hotset support`: diagnostic data without secrets, from a daemon that runs, hangs or is absent.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::path::Path;

use e2e::client::Client;
use e2e::daemon::{hotset, text_of};
use e2e::fixture::Fixture;
use e2e::tool::tool;
use serde_json::Value;

const MIB: u64 = 1 << 20;
/// Prefix of every planted secret.
const PLANTED: &str = "PLANTED";

/// A fixture with secrets in every place that a configuration allows.
fn fixture() -> Fixture {
    let mut fixture = Fixture::new();
    fixture.tables = format!(
        "# the old password was {PLANTED}-comment\n[api]\nlisten = \"127.0.0.1:0\"\n\
         [alerts]\nwebhook = \"http://127.0.0.1:9/{PLANTED}/path?key={PLANTED}\""
    );
    fixture.add_volume("v", 8 * MIB, &format!("labels = {{ vm = \"web01\", password = \"{PLANTED}-label\" }}"));
    fixture
}

/// Unpacks an archive: every file by its name.
fn unpack(fixture: &Fixture, archive: &Path) -> BTreeMap<String, String> {
    let folder = fixture.folder.join("unpacked");
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir(&folder).expect("the folder can be written");
    tool("tar").args("--extract --gzip --file").arg(archive).arg("--directory").arg(&folder).ok();
    let entries =
        std::fs::read_dir(folder.join("hotset-support")).expect("one folder").map(|entry| entry.expect("an entry"));
    let read = |path: &Path| std::fs::read_to_string(path).expect("UTF-8 text");
    entries.map(|entry| (entry.file_name().to_string_lossy().into_owned(), read(&entry.path()))).collect()
}

fn json(files: &BTreeMap<String, String>, name: &str) -> Value {
    serde_json::from_str(&files[name]).expect("valid JSON")
}

#[test]
fn support_archive_of_a_running_daemon_has_no_secrets() {
    let fixture = fixture();
    let daemon = fixture.start();
    let token = daemon.command(&["token", "create", "deploy", "--role", "read"]).trim().to_owned();
    Client::connect(&fixture.endpoint(), "v")
        .expect("the volume is served")
        .write(0, &[1; 4096])
        .expect("the write succeeds");
    let archive = fixture.folder.join("support.tar.gz");
    let out = archive.to_string_lossy().into_owned();
    let message = daemon.command(&["support", "--out", &out]);
    assert!(message.contains("review it"), "{message}");
    assert_eq!(archive.metadata().expect("the file was written").permissions().mode() & 0o777, 0o600);
    let files = unpack(&fixture, &archive);
    let state = std::fs::read_to_string(fixture.folder.join("state/state.json")).expect("the file was written");
    let state: Value = serde_json::from_str(&state).expect("valid JSON");
    let hash = state["tokens"][0]["hash"].as_str().expect("a hash");
    for (name, text) in &files {
        for secret in [PLANTED, &token, hash] {
            assert!(!text.contains(secret), "{name} contains {secret}:\n{text}");
        }
    }
    assert_eq!(json(&files, "status.json")["volumes"][0]["writes"], 1);
    assert!(files["configuration.toml"].contains("vm = \"web01\""), "{}", files["configuration.toml"]);
    assert!(files["configuration.toml"].contains("http://127.0.0.1:9/"), "{}", files["configuration.toml"]);
    let events = json(&files, "events.json");
    assert!(events["events"].as_array().is_some_and(|events| !events.is_empty()), "{events}");
    assert_eq!(json(&files, "state.json")["volumes"][0]["name"], "v");
    assert!(json(&files, "history-hour.json")["series"]["writes"].is_object());
    let backing = fixture.backing("v").display().to_string();
    assert_eq!(json(&files, "devices.json")[&backing]["size_bytes"], 8 * MIB);
    assert!(files["system.txt"].contains("Max open files") && files["system.txt"].contains("Linux version"));
    assert!(files["contents.txt"].contains(env!("CARGO_PKG_VERSION")) && files["contents.txt"].contains("status.json"));
    // An existing file or link is not overwritten without --force.
    std::fs::write(&archive, "mine").expect("the file can be written");
    let refused = daemon.try_command(&["support", "--out", &out]);
    assert!(!refused.status.success() && text_of(&refused).contains("--force"), "{refused:?}");
    assert_eq!(std::fs::read(&archive).expect("the file exists"), b"mine");
    let report: Value =
        serde_json::from_str(&daemon.command(&["support", "--force", "--json", "--out", &out])).expect("valid JSON");
    assert_eq!(report["size_bytes"], archive.metadata().expect("the file was written").len());
    assert!(!unpack(&fixture, &archive).is_empty());
    daemon.stop();
}

#[test]
fn support_archive_without_a_daemon_names_missing_parts() {
    let fixture = fixture();
    fixture.start().stop();
    let archive = fixture.folder.join("support.tar.gz");
    let (out, config) = (archive.to_string_lossy().into_owned(), fixture.config().to_string_lossy().into_owned());
    let collect = || {
        let output = hotset(&["support", "--force", "--out", &out, "--config", &config]);
        assert!(output.status.success(), "{}", text_of(&output));
        (text_of(&output), unpack(&fixture, &archive))
    };
    let (message, files) = collect();
    assert!(message.contains("missing: data from the daemon: no daemon answers"), "{message}");
    assert!(files.values().all(|text| !text.contains(PLANTED)), "{files:#?}");
    let events = json(&files, "events.json");
    assert!(events["events"][0]["text"].as_str().is_some_and(|text| text.starts_with("stopped")), "{events}");
    assert_eq!(json(&files, "state.json")["volumes"][0]["clean"], true);
    assert!(files.contains_key("configuration.toml") && files.contains_key("system.txt"), "{:?}", files.keys());
    assert!(!files.contains_key("status.json") && files["contents.txt"].contains("Missing:"));
    // A daemon that accepts connections and never answers is a case for support.
    let silent = UnixListener::bind(fixture.folder.join("control.sock")).expect("no process listens there");
    let (message, files) = collect();
    assert!(message.contains("no reply within the time-out") && files.contains_key("state.json"), "{message}");
    drop(silent);
    std::fs::write(fixture.config(), format!("[memory\nsize = \"{PLANTED}\"")).expect("the file can be written");
    let (message, files) = collect();
    assert!(message.contains("configuration.toml") && message.contains("line 1 is not TOML"), "{message}");
    assert!(files.values().all(|text| !text.contains(PLANTED)) && !message.contains(PLANTED), "{message}");
}
