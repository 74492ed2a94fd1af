//! Configurations: invalid ones are refused before anything is opened, each with its message; a valid one is reported
//! key by key.

use std::fs::{self, File};

use e2e::daemon::{hotset, text_of, wait_for};
use e2e::fixture::Fixture;
use e2e::http::Http;
use serde_json::{Value, json};

/// Invalid configurations: description, text, and words that the message must contain.
const INVALID: [(&str, &str, &[&str]); 17] = [
    ("invalid TOML", "[memory", &["line"]),
    ("an unknown table", "[memroy]\nsize = \"1 GiB\"", &["memroy", "memory"]),
    ("an unknown key", "[memory]\nsiez = \"1 GiB\"", &["siez", "size"]),
    ("a bad size", "[memory]\nsize = \"much\"", &["much", "GiB"]),
    ("too little memory", "[memory]\nsize = \"1 MiB\"", &["16 MiB"]),
    ("a bad address", "[nbd]\nlisten = [\"10809\"]", &["10809", "unix:"]),
    ("a bad policy", "[[volume]]\nname = \"a\"\nbacking = \"/x\"\npolicy = \"fast\"", &["fast", "write-back"]),
    ("no backing", "[[volume]]\nname = \"a\"", &["backing"]),
    (
        "a duplicate name",
        "[[volume]]\nname = \"a\"\nbacking = \"/x\"\n[[volume]]\nname = \"a\"\nbacking = \"/y\"",
        &["\"a\""],
    ),
    ("an undefined array", "[[volume]]\nname = \"a\"\nbacking = \"sim://shelf\"\nsize = \"1 GiB\"", &["shelf"]),
    ("invalid permissions", "[vhost_user]\nsocket_mode = \"rw\"", &["\"rw\"", "0660"]),
    ("an invalid HTTP address", "[api]\nlisten = \"localhost\"", &["localhost", "127.0.0.1:7400"]),
    ("an invalid host name", "[api]\nnames = [\"a:80\"]", &["a:80", "without a port"]),
    ("no flash device", "[flash]\ndevices = []", &["0 flash devices", "specify two"]),
    ("a filter of an unknown subsystem", "[log]\nfilter = \"flsh=debug\"", &["\"flsh\"", "\"flash\""]),
    ("a filter with an unknown level", "[log]\nfilter = \"flash=lots\"", &["flash=lots", "debug"]),
    ("a wrong type", "[[volume]]\nname = \"a\"\nbacking = \"/x\"\nread_only = \"yes\"", &["read_only", "true"]),
];

#[test]
fn invalid_configurations_are_refused_with_their_messages() {
    let fixture = Fixture::new();
    for (case, text, expected) in INVALID {
        std::fs::write(fixture.config(), text).expect("the folder can be written");
        for command in [&["check-config"][..], &["serve", "--config"]] {
            let output = hotset(&[command, &[&fixture.config().to_string_lossy()]].concat());
            let message = text_of(&output);
            assert_eq!(output.status.code(), Some(2), "{case}: {message}");
            for word in expected {
                assert!(message.contains(word), "{case}: {word:?} is missing in: {message}");
            }
        }
    }
}

#[test]
fn all_configuration_errors_are_reported_with_their_lines() {
    let fixture = Fixture::new();
    std::fs::write(fixture.config(), "[memory]\nsize = \"much\"\n[nbd]\nlisten = [\"x\"]\ncolour = 1\n")
        .expect("the write succeeds");
    let message = text_of(&hotset(&["check-config", &fixture.config().to_string_lossy()]));
    for word in ["much", "\"x\"", "colour", "2", "4", "5"] {
        assert!(message.contains(word), "{word} is missing in: {message}");
    }
}

#[test]
fn valid_configuration_passes() {
    let fixture = Fixture::with_volume(1 << 20);
    std::fs::write(fixture.config(), fixture.config_text()).expect("the folder can be written");
    let output = hotset(&["check-config", &fixture.config().to_string_lossy()]);
    assert!(output.status.success(), "{}", text_of(&output));
}

#[test]
fn unopenable_backing_is_named() {
    let mut fixture = Fixture::new();
    fixture.add_volume_on("v", &fixture.folder.join("missing.img").to_string_lossy(), "");
    let daemon = fixture.start();
    assert!(daemon.log().contains("missing.img"), "{}", daemon.log());
    daemon.stop();
}

/// Reported entry of a key.
fn reported_key(http: &Http, table: &str, key: &str) -> Value {
    let report = http.get("/api/v1/configuration").json();
    let keys = report["keys"].as_array().expect("a list").clone();
    keys.into_iter().find(|item| item["table"] == table && item["key"] == key).expect("a listed key")
}

#[test]
fn every_key_reports_value_and_source_without_secrets() {
    const SECRET: &str = "PLANTED";
    let mut fixture = Fixture::new();
    fixture.tables = format!(
        "[api]\nlisten = \"127.0.0.1:0\"\n[alerts]\nwebhook = \"http://127.0.0.1:9/{SECRET}?key={SECRET}\"\n\
         [[datastore]]\nname = \"sas\""
    );
    fixture.add_volume("v", 8 << 20, &format!("labels = {{ vm = \"web01\", password = \"{SECRET}\" }}"));
    fixture.add_volume("w", 8 << 20, "policy = \"write-through\"");
    let daemon = fixture.start();
    let http = Http::of(&daemon);
    let administer = daemon.command(&["token", "create", "a", "--role", "administer"]).trim().to_owned();
    let reply = http.get("/api/v1/configuration");
    assert_eq!(reply.status, 200);
    assert!(!reply.body.contains(SECRET), "{}", reply.body);
    assert_eq!(reply.json()["file"], fixture.config().display().to_string());
    // Remote requests need a token, as everywhere.
    assert_eq!(http.request("GET", "/api/v1/configuration", &["X-Forwarded-For: 1.2.3.4"], "").status, 401);
    let assert_key = |table, name, value: &str, default: &str, source: &str| {
        let reported = reported_key(&http, table, name);
        assert_eq!(
            (&reported["value"], &reported["default"], &reported["source"]),
            (&value.into(), &default.into(), &source.into())
        );
    };
    assert_key("memory", "size", "64 MiB", "1 GiB", "file");
    assert_key("history", "size", "1 GiB", "1 GiB", "default");
    assert_key("", "cores", "auto", "auto", "default");
    assert_key("alerts", "webhook", "http://127.0.0.1:9/(redacted)", "none", "file");
    assert_key("flash", "devices", "none", "none", "default");
    let entry = |name, value: &str, source| json!({ "name": name, "value": value, "source": source });
    assert_eq!(reported_key(&http, "datastore", "name")["entries"], json!([entry("sas", "sas", "file")]));
    assert_eq!(reported_key(&http, "volume", "policy")["entries"], json!([entry("w", "write-through", "file")]));
    assert_eq!(
        reported_key(&http, "volume", "labels")["entries"],
        json!([entry("v", "password = (redacted), vm = web01", "file")])
    );
    // A change by command takes effect and is reported, and so is an added volume.
    daemon.command(&["volume", "set", "v", "policy=write-around"]);
    let backing = fixture.folder.join("x.img");
    File::create(&backing).and_then(|file| file.set_len(8 << 20)).expect("a file can be made");
    let added = json!({ "name": "x", "backing": backing, "read_only": true }).to_string();
    assert_eq!(http.request_as(&administer, "POST", "/api/v1/volumes", &added).status, 201);
    let policies = [
        entry("v", "write-around", "command"),
        entry("w", "write-through", "file"),
        entry("x", "write-back", "command"),
    ];
    assert_eq!(reported_key(&http, "volume", "policy")["entries"], json!(policies));
    assert_eq!(reported_key(&http, "volume", "read_only")["entries"], json!([entry("x", "true", "command")]));
    // A reload changes only reloadable keys.
    let text = fixture.config_text().replace("64 MiB", "128 MiB").replace("vm = \"web01\"", "vm = \"web02\"");
    fs::write(fixture.config(), text).expect("the file can be written");
    daemon.signal("HUP");
    wait_for("the reload", || {
        let labels = reported_key(&http, "volume", "labels");
        labels.to_string().contains("vm = web02").then_some(())
    });
    assert_key("memory", "size", "64 MiB", "1 GiB", "file");
    daemon.stop();
}
