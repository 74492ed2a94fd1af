//! The daemon's log: JSON lines with fields, a filter that a reload changes, and an unread standard error.

use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::process::Command;

use e2e::client::Client;
use e2e::daemon::{Daemon, wait_for};
use e2e::fixture::Fixture;
use rustix::fs::OFlags;
use serde_json::Value;

fn lines(daemon: &Daemon) -> Vec<Value> {
    let line = |line: &str| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
    daemon.log().lines().map(line).collect()
}

/// The first line with this text in its message.
fn find(lines: &[Value], text: &str) -> Option<Value> {
    lines.iter().find(|line| line["message"].as_str().is_some_and(|message| message.contains(text))).cloned()
}

#[test]
fn json_log_has_fields_and_obeys_its_filter() {
    let mut fixture = Fixture::with_volume(4 << 20);
    let format = "[log]\nformat = \"json\"\n";
    fixture.tables = format!("{format}level = \"warn\"\nfilter = \"volume=info,control=debug\"\n");
    let daemon = fixture.start();
    daemon.command(&["volume", "pause", "v"]);
    let paused = wait_for("the change", || find(&lines(&daemon), "volume v: paused by command"));
    assert_eq!((&paused["level"], &paused["target"]), (&"INFO".into(), &"volume".into()), "{paused}");
    assert_eq!(paused["volume"], "v", "{paused}");
    let request = wait_for("the request", || find(&lines(&daemon), "request: VolumePause"));
    assert_eq!((&request["level"], &request["target"]), (&"DEBUG".into(), &"control".into()), "{request}");
    assert!(request["client"].as_str().is_some_and(|client| !client.is_empty()), "{request}");
    assert_eq!(find(&lines(&daemon), "serving 1 volume"), None, "the filter hides the daemon's own changes");
    fixture.tables = format!("{format}level = \"error\"\nfilter = \"config=info\"\n");
    fs::write(fixture.config(), fixture.config_text()).expect("the folder can be written");
    daemon.signal("HUP");
    wait_for("the reload", || find(&lines(&daemon), "level and filter applied"));
    daemon.command(&["volume", "resume", "v"]);
    let log = lines(&daemon);
    daemon.stop();
    assert_eq!(find(&log, "volume v: active by command"), None, "the reloaded filter hides changes of volumes");
}

#[test]
fn unread_standard_error_delays_neither_requests_nor_stop() {
    let mut fixture = Fixture::with_volume(4 << 20);
    let (pipe, wrapper) = (fixture.folder.join("pipe"), fixture.folder.join("under"));
    assert!(Command::new("mkfifo").arg(&pipe).status().expect("mkfifo runs").success());
    let nonblock = OFlags::NONBLOCK.bits() as i32;
    let mut full_pipe = File::options()
        .read(true)
        .write(true)
        .custom_flags(nonblock)
        .open(&pipe)
        .expect("the file belongs to this user");
    let error =
        std::iter::from_fn(|| Some(full_pipe.write(&[b'.'; 4096]))).find_map(Result::err).expect("the pipe fills up");
    assert_eq!(error.kind(), ErrorKind::WouldBlock);
    fs::write(&wrapper, format!("#!/bin/sh\nexec \"$@\" 2>{}\n", pipe.display())).expect("the folder can be written");
    fs::set_permissions(&wrapper, fs::Permissions::from_mode(0o755)).expect("the file belongs to this user");
    fixture.wrapper = Some(wrapper);
    let daemon = fixture.start();
    let mut client = Client::connect(&fixture.endpoint(), "v").expect("the volume is served");
    client.write(0, &[7; 4096]).expect("the write succeeds");
    client.flush().expect("the flush succeeds");
    drop(client);
    daemon.command(&["volume", "pause", "v"]);
    daemon.command(&["volume", "resume", "v"]);
    daemon.stop();
    assert_eq!(fs::read(fixture.backing("v")).expect("the backing exists")[..4096], [7; 4096]);
}
