//! A real daemon under its commands: state kept across a restart, refusals, messages.

use std::cell::RefCell;
use std::fs;
use std::mem::MaybeUninit;
use std::os::fd::AsFd;
use std::os::unix::net::{UnixDatagram, UnixListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::fs::inotify;
use serde_json::Value;
use tempfile::TempDir;

const TIMEOUT: Duration = Duration::from_secs(60);

/// A directory with a configuration.
struct Fixture {
    folder: TempDir,
}

impl Fixture {
    fn new(volumes: &str) -> Fixture {
        let fixture = Fixture { folder: tempfile::tempdir().expect("a folder for the test") };
        fixture.write(volumes);
        fixture
    }

    /// Two volumes on files that are created.
    fn with_two_volumes() -> Fixture {
        Fixture::new(
            "[[volume]]\nname = \"a\"\nbacking = \"a.img\"\nsize = \"4 MiB\"\n\
             [[volume]]\nname = \"b\"\nbacking = \"b.img\"\nsize = \"4 MiB\"\n",
        )
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn write(&self, volumes: &str) {
        let text = format!(
            "[state]\ndirectory = \"state\"\n[memory]\nsize = \"16 MiB\"\nkeep_in = \"none\"\n\
             [control]\nsocket = \"control.sock\"\n[api]\nlisten = \"none\"\n\
             [nbd]\nlisten = [\"unix:nbd.sock\"]\n{volumes}"
        );
        fs::write(self.path("hotset.toml"), text).expect("the folder can be written");
    }

    fn start(&self) -> Daemon<'_> {
        self.start_with(|_| ())
    }

    fn start_with(&self, change: impl FnOnce(&mut Command)) -> Daemon<'_> {
        let mut daemon = self.spawn(change);
        daemon.wait_for("it serves", |daemon| daemon.log().contains("serving "));
        daemon
    }

    /// Like [`Fixture::start_with`], but does not wait until volumes are served.
    fn spawn(&self, change: impl FnOnce(&mut Command)) -> Daemon<'_> {
        let log = fs::File::create(self.path("log")).expect("the folder can be written");
        let mut command = hotset();
        command.arg("serve").arg("--config").arg(self.path("hotset.toml")).stdin(Stdio::null()).stderr(log);
        change(&mut command);
        Daemon { fixture: self, child: command.spawn().expect("the binary was built") }
    }
}

struct Daemon<'a> {
    fixture: &'a Fixture,
    child: Child,
}

impl Daemon<'_> {
    fn log(&self) -> String {
        fs::read_to_string(self.fixture.path("log")).unwrap_or_default()
    }

    fn wait_for(&mut self, event: &str, is_expected: impl Fn(&Self) -> bool) {
        let began = Instant::now();
        while !is_expected(self) {
            let exit_status = self.child.try_wait().expect("it is our child");
            assert!(
                exit_status.is_none() && began.elapsed() < TIMEOUT,
                "timed out waiting for {event}; exit status {exit_status:?}\n{}",
                self.log()
            );
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Runs a command, which must succeed, and returns its output.
    fn command(&self, args: &[&str]) -> String {
        let output = self.try_command(args);
        assert!(output.status.success(), "hotset {args:?}: {}\n{}", errors(&output), self.log());
        String::from_utf8(output.stdout).expect("text")
    }

    fn try_command(&self, args: &[&str]) -> Output {
        hotset()
            .args(args)
            .arg("--socket")
            .arg(self.fixture.path("control.sock"))
            .output()
            .expect("the binary was built")
    }

    fn show(&self, volume: &str) -> Value {
        serde_json::from_str(&self.command(&["volume", "show", volume, "--json"])).expect("JSON")
    }

    fn signal(&self, name: &str) {
        let sent = Command::new("kill").arg(format!("-{name}")).arg(self.child.id().to_string()).status();
        assert!(sent.expect("kill runs").success());
    }

    fn stop(mut self) {
        self.signal("TERM");
        let status = self.child.wait().expect("it is our child");
        assert!(status.success(), "{status}\n{}", self.log());
    }
}

impl Drop for Daemon<'_> {
    fn drop(&mut self) {
        // Both calls fail if the daemon has ended, which is the normal case.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn hotset() -> Command {
    Command::new(env!("CARGO_BIN_EXE_hotset"))
}

fn errors(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn check_config(path: &Path) -> String {
    let output = hotset().arg("check-config").arg(path).output().expect("the binary was built");
    assert!(output.status.success(), "{}", errors(&output));
    String::from_utf8(output.stdout).expect("text")
}

#[test]
fn newer_state_file_ends_the_start_and_stays_unchanged() {
    let fixture = Fixture::with_two_volumes();
    fixture.start().stop();
    let path = fixture.path("state/state.json");
    let mut state: Value = serde_json::from_slice(&fs::read(&path).expect("it was written")).expect("JSON");
    state["version"] = 2.into();
    state["needs"] = "1.4.0".into();
    let newer = serde_json::to_vec(&state).expect("JSON");
    fs::write(&path, &newer).expect("the folder can be written");
    let config = fixture.path("hotset.toml");
    for command in ["serve", "undestaged"] {
        let output = hotset().args([command, "--config"]).arg(&config).output().expect("the binary was built");
        let expected = "state.json was written by a newer version of Hotset (format 2, this one reads up to 1); needs \
                        at least Hotset 1.4.0";
        assert!(!output.status.success() && errors(&output).contains(expected), "{}", errors(&output));
    }
    assert_eq!(fs::read(&path).expect("it is there"), newer);
}

#[test]
fn newer_history_stays_unchanged_and_raises_an_alert() {
    // Offset of `user_version` in an SQLite file.
    const USER_VERSION_OFFSET: usize = 60;
    let fixture = Fixture::with_two_volumes();
    fixture.start().stop();
    let path = fixture.path("state/history/history.db");
    let mut newer = fs::read(&path).expect("it was written");
    newer[USER_VERSION_OFFSET..USER_VERSION_OFFSET + 4].copy_from_slice(&3_u32.to_be_bytes());
    fs::write(&path, &newer).expect("the folder can be written");
    let mut daemon = fixture.start();
    let expected = "history.db was written by a newer version of Hotset (format 3, this one reads up to 2)";
    daemon.wait_for("the alert", |daemon| daemon.command(&["status"]).contains(expected));
    assert_eq!(daemon.show("a")["state"], "active");
    daemon.stop();
    assert!(fs::read(&path).expect("it is there") == newer, "it was changed");
}

#[test]
fn changes_by_command_hold_over_a_restart_until_the_file_changes() {
    let fixture = Fixture::with_two_volumes();
    let daemon = fixture.start();
    daemon.command(&["volume", "set", "a", "policy=write-through"]);
    daemon.command(&["volume", "freeze", "b"]);
    daemon.stop();
    let daemon = fixture.start();
    assert_eq!(daemon.show("a")["policy"], "write-through");
    assert_eq!(daemon.show("b")["state"], "frozen");
    let checked = check_config(&fixture.path("hotset.toml"));
    assert!(checked.contains("a: policy = write-through (file: write-back)"), "{checked}");
    daemon.command(&["volume", "resume", "b"]);
    daemon.stop();
    fixture.write(
        "[[volume]]\nname = \"a\"\nbacking = \"a.img\"\npolicy = \"none\"\n\
         [[volume]]\nname = \"b\"\nbacking = \"b.img\"\n",
    );
    let daemon = fixture.start();
    assert_eq!(daemon.show("a")["policy"], "none");
    assert_eq!(daemon.show("b")["state"], "active");
    daemon.stop();
}

/// Counts replacements of the state file since the last call, in the directory that `watch` observes.
fn count_replacements(watch: impl AsFd) -> usize {
    let mut buffer = [MaybeUninit::uninit(); 4096];
    let mut reader = inotify::Reader::new(watch, &mut buffer);
    let is_state = |event: &inotify::Event<'_>| event.file_name().is_some_and(|name| name.to_bytes() == b"state.json");
    let replacements = std::iter::from_fn(|| {
        let event = reader.next().ok()?;
        Some(event.events().contains(inotify::ReadFlags::MOVED_TO) && is_state(&event))
    });
    replacements.filter(|is_replacement| *is_replacement).count()
}

#[test]
fn state_of_many_volumes_is_written_together() {
    let volume = |n| format!("[[volume]]\nname = \"v{n}\"\nbacking = \"v{n}.img\"\nsize = \"1 MiB\"\n");
    let fixture = Fixture::new(&(0..100).map(volume).collect::<String>());
    fs::create_dir(fixture.path("state")).expect("the folder can be written");
    let watch = inotify::init(inotify::CreateFlags::NONBLOCK).expect("a descriptor is available");
    // Creations are watched as well: they separate the replacements, which the kernel would merge as identical events.
    let events = inotify::WatchFlags::MOVED_TO | inotify::WatchFlags::CREATE;
    inotify::add_watch(&watch, fixture.path("state"), events).expect("it is there");
    let daemon = fixture.start();
    assert_eq!(count_replacements(&watch), 2, "the generation, and the volumes");
    let state = || fs::read_to_string(fixture.path("state/state.json")).expect("it was written");
    assert_eq!((state().matches("\"clean\": false").count(), state().matches("\"name\"").count()), (100, 100));
    daemon.stop();
    let times = count_replacements(&watch);
    assert!((1..50).contains(&times), "the state was written {times} times");
    assert_eq!(state().matches("\"clean\": true").count(), 100);
}

#[test]
fn unopenable_volume_does_not_keep_others_from_service() {
    let volume = |n| format!("[[volume]]\nname = \"v{n}\"\nbacking = \"v{n}.img\"\nsize = \"1 MiB\"\n");
    let good: String = (0..40).map(volume).collect();
    let fixture = Fixture::new(&format!("[[volume]]\nname = \"gone\"\nbacking = \"nbd://127.0.0.1:1/x\"\n{good}"));
    let daemon = fixture.start();
    assert!(daemon.log().contains("serving 40 volumes"), "{}", daemon.log());
    let volumes: Value = serde_json::from_str(&daemon.command(&["volume", "list", "--json"])).expect("JSON");
    let refused = volumes.as_array().expect("an array").iter().filter(|volume| volume["state"] == "refused");
    assert_eq!(refused.map(|volume| volume["name"].as_str()).collect::<Vec<_>>(), [Some("gone")]);
    let state = fs::read_to_string(fixture.path("state/state.json")).expect("it was written");
    assert_eq!(state.matches("\"name\"").count(), 40, "{state}");
    daemon.stop();
}

#[test]
fn reload_during_the_start_leaves_volumes_to_the_start() {
    let fixture = Fixture::new("");
    let socket = fixture.path("silent.sock");
    let silent = format!("[[volume]]\nname = \"silent\"\nbacking = \"nbd+unix:///x?socket={}\"\n", socket.display());
    fixture.write(&format!("[[volume]]\nname = \"a\"\nbacking = \"a.img\"\nsize = \"4 MiB\"\n{silent}"));
    let silent = UnixListener::bind(&socket).expect("the folder can be written");
    silent.set_nonblocking(true).expect("it is open");
    let mut daemon = fixture.spawn(|_| ());
    // The daemon has connected to the silent export, and its start waits for an answer.
    let clients = RefCell::new(Vec::new());
    daemon.wait_for("its start", |_| {
        clients.borrow_mut().extend(silent.accept());
        !clients.borrow().is_empty()
    });
    daemon.signal("HUP");
    for name in ["a", "silent"] {
        let message = format!("volume {name}: skipped: another change of it is in progress");
        daemon.wait_for(&message, |daemon| daemon.log().contains(&message));
    }
    daemon.wait_for("it serves", |daemon| daemon.log().contains("serving 1 volume "));
    assert_eq!(daemon.show("a")["state"], "active");
    daemon.stop();
}

#[test]
fn invalid_setting_is_refused_with_a_reason() {
    let fixture = Fixture::with_two_volumes();
    let daemon = fixture.start();
    for (setting, reason) in [
        ("polcy=none", "did you mean \"policy\""),
        ("size=1", "change it in the configuration and restart"),
        ("policy=fast", "unknown policy"),
        ("policy", "KEY=VALUE"),
    ] {
        let output = daemon.try_command(&["volume", "set", "a", setting]);
        assert_eq!(output.status.code(), Some(2), "{setting}: {}", errors(&output));
        assert!(errors(&output).contains(reason), "{setting}: {}", errors(&output));
    }
    assert_eq!(daemon.show("a")["policy"], "write-back");
    daemon.stop();
}

#[test]
fn added_and_removed_volumes_survive_a_restart() {
    let fixture = Fixture::with_two_volumes();
    let daemon = fixture.start();
    let extra = fixture.path("extra.img");
    daemon.command(&[
        "volume",
        "add",
        "extra",
        "--backing",
        &extra.to_string_lossy(),
        "--size",
        "2 MiB",
        "--policy",
        "none",
    ]);
    daemon.command(&["volume", "remove", "b"]);
    let volume_id = daemon.show("extra")["incarnation"].clone();
    daemon.stop();
    let daemon = fixture.start();
    let extra = daemon.show("extra");
    assert_eq!((&extra["incarnation"], &extra["policy"]), (&volume_id, &Value::from("none")));
    assert_eq!(daemon.try_command(&["volume", "show", "b"]).status.code(), Some(1));
    assert_eq!(
        daemon.try_command(&["volume", "add", "a", "--backing", "/x"]).status.code(),
        Some(1),
        "the name is taken"
    );
    daemon.stop();
    // A changed entry for b serves it again.
    fixture.write("[[volume]]\nname = \"b\"\nbacking = \"b.img\"\npolicy = \"none\"\n");
    let daemon = fixture.start();
    assert_eq!(daemon.show("b")["state"], "active");
    daemon.stop();
}

#[test]
fn swapped_backing_is_refused_until_adopted() {
    let fixture = Fixture::with_two_volumes();
    let daemon = fixture.start();
    let before = daemon.show("a")["incarnation"].clone();
    daemon.stop();
    fs::rename(fixture.path("a.img"), fixture.path("old.img")).expect("the file is there");
    fs::copy(fixture.path("old.img"), fixture.path("a.img")).expect("a clone");
    let daemon = fixture.start();
    assert_eq!(daemon.show("a")["state"], "refused");
    assert_eq!(daemon.show("b")["state"], "active", "the others are served");
    assert!(daemon.log().contains("hotset volume adopt a"), "{}", daemon.log());
    let flushed = daemon.try_command(&["volume", "flush", "a"]);
    assert!(
        errors(&flushed).contains("its backing is not the one that it had at the last start"),
        "{}",
        errors(&flushed)
    );
    daemon.command(&["volume", "adopt", "a"]);
    let after = daemon.show("a");
    assert_eq!(after["state"], "active");
    assert_ne!(after["incarnation"], before, "another backing is another volume");
    daemon.stop();
    let daemon = fixture.start();
    assert_eq!(daemon.show("a")["state"], "active", "the adoption persists across a restart");
    daemon.stop();
}

#[test]
fn killed_daemon_is_reported_at_the_next_start() {
    let fixture = Fixture::with_two_volumes();
    let mut daemon = fixture.start();
    daemon.child.kill().expect("it runs");
    daemon.child.wait().expect("it is our child");
    let daemon = fixture.start();
    assert!(daemon.log().contains("volume a was not cleanly stopped"), "{}", daemon.log());
    daemon.stop();
    let daemon = fixture.start();
    assert!(!daemon.log().contains("not cleanly stopped"), "{}", daemon.log());
    daemon.stop();
}

#[test]
fn reload_applies_changes_and_keeps_the_old_on_errors() {
    let fixture = Fixture::with_two_volumes();
    let mut daemon = fixture.start();
    fixture.write(
        "[[volume]]\nname = \"a\"\nbacking = \"a.img\"\nsize = \"4 MiB\"\npolicy = \"none\"\n\
         [[volume]]\nname = \"c\"\nbacking = \"c.img\"\nsize = \"1 MiB\"\n",
    );
    daemon.signal("HUP");
    daemon.wait_for("the new volume", |daemon| daemon.log().contains("volume c: added"));
    assert_eq!(daemon.show("a")["policy"], "none");
    assert_eq!(daemon.try_command(&["volume", "show", "b"]).status.code(), Some(1));
    fixture.write("[[volume]]\nname = \"a\"\nbackng = \"a.img\"\n");
    daemon.signal("HUP");
    daemon.wait_for("the configuration error in the log", |daemon| daemon.log().contains("did you mean \"backing\""));
    assert!(daemon.log().contains("the previous configuration stays in effect"), "{}", daemon.log());
    assert_eq!(daemon.show("c")["state"], "active");
    daemon.stop();
}

#[test]
fn reload_keeps_an_added_volume_with_a_name_from_the_file() {
    let fixture = Fixture::with_two_volumes();
    let mut daemon = fixture.start();
    daemon.command(&["volume", "remove", "a"]);
    let other = fixture.path("other.img");
    fs::File::create(&other).and_then(|file| file.set_len(1 << 20)).expect("the folder can be written");
    daemon.command(&["volume", "add", "a", "--backing", other.to_str().expect("a plain path")]);
    fixture.write("[[volume]]\nname = \"b\"\nbacking = \"b.img\"\nsize = \"4 MiB\"\n");
    daemon.signal("HUP");
    daemon.wait_for("the end of the reload", |daemon| daemon.log().contains("nothing has changed"));
    assert_eq!(daemon.show("a")["size_bytes"], 1 << 20);
    daemon.stop();
}

#[test]
fn volume_is_grown_by_command() {
    let fixture = Fixture::with_two_volumes();
    let daemon = fixture.start();
    daemon.command(&["volume", "resize", "a", "8 MiB"]);
    assert_eq!(daemon.show("a")["size_bytes"], 8 << 20);
    assert_eq!(fs::metadata(fixture.path("a.img")).expect("the file is there").len(), 8 << 20);
    assert_eq!(daemon.try_command(&["volume", "resize", "a", "1000"]).status.code(), Some(2));
    daemon.stop();
}

#[test]
fn status_has_everything_on_one_screen() {
    let fixture = Fixture::with_two_volumes();
    let daemon = fixture.start();
    let status: Value = serde_json::from_str(&daemon.command(&["status", "--json"])).expect("JSON");
    assert_eq!(status["volumes"].as_array().map(Vec::len), Some(2));
    assert_eq!(status["memory_bytes"], 16 << 20);
    let screen = daemon.command(&["status"]);
    assert!(screen.lines().all(|line| line.chars().count() < 160), "{screen}");
    let top = daemon.command(&["top", "--times", "2", "--every", "10ms"]);
    assert!(top.contains("reads/s"), "{top}");
    daemon.stop();
}

#[test]
fn service_manager_is_notified_of_readiness_and_stop() {
    let fixture = Fixture::with_two_volumes();
    let manager = UnixDatagram::bind(fixture.path("notify")).expect("a socket in the folder");
    manager.set_read_timeout(Some(TIMEOUT)).expect("a time-out above zero");
    let notify = fixture.path("notify");
    let daemon = fixture.start_with(|command| {
        command.env("NOTIFY_SOCKET", notify);
    });
    let mut received = String::new();
    let mut expect_message = |message: &str| {
        while !received.contains(message) {
            let mut bytes = [0; 4096];
            let len =
                manager.recv(&mut bytes).unwrap_or_else(|error| panic!("waiting for {message}: {error}; {received}"));
            received += &format!("{}\n", String::from_utf8_lossy(&bytes[..len]));
        }
    };
    expect_message("READY=1");
    daemon.stop();
    expect_message("STOPPING=1");
}

#[test]
fn stop_waits_until_everything_is_on_the_backing() {
    let fixture = Fixture::with_two_volumes();
    let mut daemon = fixture.start();
    let output = daemon.command(&["stop", "--destage"]);
    assert!(output.contains("the backings are complete"), "{output}");
    assert!(daemon.child.wait().expect("it is our child").success());
    assert!(!fixture.path("control.sock").exists() && !fixture.path("nbd.sock").exists(), "the sockets are removed");
}

#[test]
fn volume_shows_its_curves_and_advice_needs_a_load() {
    let fixture = Fixture::with_two_volumes();
    let daemon = fixture.start();
    let curve = &daemon.show("a")["miss_ratio_curve"];
    assert_eq!(
        (&curve["memory"]["unit_bytes"], &curve["flash"]["unit_bytes"]),
        (&4096.into(), &65_536.into()),
        "{curve}"
    );
    assert_eq!(curve["memory"]["points"], Value::Array(Vec::new()));
    for (name, reason) in [("a", "nothing was read or written yet"), ("c", "no file is named \"c\"")] {
        let refused = daemon.try_command(&["advise", name]);
        assert!(!refused.status.success() && errors(&refused).contains(reason), "{}", errors(&refused));
    }
    daemon.stop();
}

#[test]
fn flash_limits_and_pins_change_live_and_survive_a_restart() {
    let flash = "[flash]\ndevices = [\"one\", \"two\"]\nsize = \"64 MiB\"\n";
    let volume = "[[volume]]\nname = \"a\"\nbacking = \"a.img\"\nsize = \"4 MiB\"\n";
    let fixture = Fixture::new(&format!("{flash}{volume}"));
    let mut daemon = fixture.start();
    daemon.command(&["volume", "set", "a", "flash_min=1 MiB", "flash_max=10%", "policy=write-through"]);
    let shown = daemon.show("a");
    assert_eq!((&shown["flash"]["min"], &shown["flash"]["max"]), (&"1 MiB".into(), &"10%".into()), "{shown}");
    let refused = daemon.try_command(&["volume", "set", "a", "flash_min=10 GiB"]);
    assert!(errors(&refused).contains("above the maximum"), "{}", errors(&refused));
    daemon.command(&["volume", "pin", "a", "1 MiB..2 MiB"]);
    let refused = daemon.try_command(&["volume", "pin", "a", "5 MiB.."]);
    assert!(
        errors(&refused).contains("byte 5242880 is past the end of volume a, which has 4194304 bytes"),
        "{}",
        errors(&refused)
    );
    daemon.wait_for("the pages are there", |daemon| daemon.show("a")["flash"]["pinned_whole_pages"] == 16);
    let written = |daemon: &Daemon<'_>| {
        let list: Value = serde_json::from_str(&daemon.command(&["flash", "list", "--json"])).expect("JSON");
        let devices = list["devices"].as_array().expect("a list").iter();
        devices.map(|device| device["written"]["promotion_bytes"].as_u64().expect("a number")).sum::<u64>()
    };
    let before = written(&daemon);
    assert!(before >= 1 << 20, "{before} bytes were written for 1 MiB of pages");
    assert!(daemon.command(&["flash", "list"]).contains("of its endurance"));
    daemon.stop();
    let mut daemon = fixture.start();
    assert!(written(&daemon) >= before, "what was written before the restart counts");
    daemon.wait_for("the pages are there again", |daemon| daemon.show("a")["flash"]["pinned_whole_pages"] == 16);
    let shown = daemon.show("a");
    assert_eq!((&shown["flash"]["min"], &shown["flash"]["max"]), (&"1 MiB".into(), &"10%".into()), "{shown}");
    daemon.command(&["volume", "unpin", "a"]);
    assert_eq!(daemon.show("a")["flash"]["pinned_pages"], 0);
    daemon.command(&["volume", "set", "a", "memory_min=25%", "memory_max=50%"]);
    let shown = daemon.show("a");
    assert_eq!((&shown["memory"]["min"], &shown["memory"]["max"]), (&"25%".into(), &"50%".into()), "{shown}");
    assert!(daemon.command(&["volume", "show", "a"]).contains("minimum 25%, maximum 50%"));
    let refused = daemon.try_command(&["volume", "set", "a", "memory_min=60%"]);
    assert!(errors(&refused).contains("memory_min 60% is above memory_max 50%"), "{}", errors(&refused));
    let refused = daemon.try_command(&["volume", "set", "a", "memory_min=1 TiB", "memory_max=none"]);
    assert!(errors(&refused).contains("memory_min would be 1 TiB"), "{}", errors(&refused));
    // A changed key in the file overrides the command.
    fixture.write(&format!("{flash}{volume}flash_min = \"2 MiB\"\n"));
    daemon.signal("HUP");
    daemon.wait_for("the file is read", |daemon| daemon.show("a")["flash"]["min"] == "2 MiB");
    assert_eq!(daemon.show("a")["flash"]["max"], "10%", "that key did not change in the file");
    fixture.write(&format!("{flash}{volume}flash_min = \"1 GiB\"\n"));
    let checked = hotset().arg("check-config").arg(fixture.path("hotset.toml")).output().expect("the binary was built");
    assert!(errors(&checked).contains("flash_min is 1 GiB"), "{}", errors(&checked));
    daemon.stop();
}

#[test]
fn qos_changes_live_and_survives_a_restart() {
    let datastores = "[[datastore]]\nname = \"nl\"\n[[datastore]]\nname = \"sas\"\n";
    let rule = |match_, settings| format!("[[qos]]\nmatch = {{ {match_} }}\n{settings}\n");
    let rules = rule("vm = \"sql*\"", "shares = \"high\"") + &rule("name = \"x*\"", "limit_iops = 50");
    let volume = |name: &str, rest: &str| {
        format!(
            "[[volume]]\nname = \"{name}\"\nbacking = \"{name}.img\"\nsize = \"4 MiB\"\n\
             labels = {{ vm = \"sql-{name}\" }}\n{rest}"
        )
    };
    let on_sas = "datastore = \"sas\"\n";
    let fixture = Fixture::new(&format!("{datastores}{rules}{}{}", volume("a", on_sas), volume("b", on_sas)));
    let daemon = fixture.start();
    let qos = |daemon: &Daemon<'_>, name: &str, key: &str| daemon.show(name)["qos"][key].as_u64().expect("a number");
    let listed = |daemon: &Daemon<'_>| -> Vec<Value> {
        serde_json::from_str(&daemon.command(&["datastore", "list", "--json"])).expect("JSON")
    };
    let members = |daemon: &Daemon<'_>| -> Vec<String> {
        let member_list = |datastore: &Value| {
            let members = datastore["members"].as_array().expect("a list").iter();
            let names: Vec<&str> = members.filter_map(|member| member["volume"].as_str()).collect();
            format!("{}: {}", datastore["name"].as_str().expect("a name"), names.join(" "))
        };
        listed(daemon).iter().map(member_list).collect()
    };
    assert_eq!(
        (qos(&daemon, "a", "shares"), members(&daemon)),
        (2_000, vec!["nl: ".to_owned(), "sas: a b".to_owned()])
    );
    daemon.command(&[
        "volume",
        "set",
        "a",
        "limit_iops=500",
        "burst_iops=100",
        "reservation_iops=300",
        "limit_bytes=20 MB",
    ]);
    let shown = daemon.command(&["volume", "show", "a"]);
    assert!(shown.contains("500 IOPS, bursts of 100 requests, 19.1 MiB/s"), "{shown}");
    assert!(shown.contains("2,000, 300 IOPS reserved"), "{shown}");
    for (setting, reason) in [
        ("reservation_iops=501", "reservation_iops 501 is above limit_iops 500; lower the one or raise the other"),
        ("shares=most", "\"most\" is not a weight"),
        ("limit_bytes=20", "specify at least 64 KiB"),
        ("burst_iops=-1", "is not a number of requests"),
    ] {
        let refused = daemon.try_command(&["volume", "set", "a", setting]);
        assert!(errors(&refused).contains(reason), "{setting}: {}", errors(&refused));
    }
    let refused = daemon.try_command(&["volume", "set", "b", "burst_bytes=1 MiB"]);
    assert!(errors(&refused).contains("burst_bytes without limit_bytes"), "{}", errors(&refused));
    fs::write(fixture.path("x.img"), vec![0; 4 << 20]).expect("the folder can be written");
    daemon.command(&["volume", "add", "x", "--backing", fixture.path("x.img").to_str().expect("text")]);
    assert_eq!(qos(&daemon, "x", "limit_iops"), 50);
    daemon.stop();
    let mut daemon = fixture.start();
    assert_eq!((qos(&daemon, "a", "limit_iops"), qos(&daemon, "a", "reservation_iops")), (500, 300));
    assert_eq!((qos(&daemon, "a", "limit_bytes"), qos(&daemon, "x", "limit_iops")), (20_000_000, 50));
    // Change a weight by label, move a volume, change a threshold and add a datastore.
    let datastores =
        datastores.to_owned() + "congestion_threshold = \"10ms\"\nwrite_cost = 4\n[[datastore]]\nname = \"ssd\"\n";
    let rules = rule("vm = \"sql*\"", "shares = 3000") + &rule("name = \"x*\"", "limit_iops = 60");
    let b = volume("b", "datastore = \"nl\"\n");
    fixture.write(&format!("{datastores}{rules}{}{b}", volume("a", on_sas)));
    daemon.signal("HUP");
    daemon.wait_for("the file is read", |daemon| daemon.log().contains("[[qos]] rules applied"));
    for message in [
        "[[qos]]: 2 rules applied",
        "datastore ssd: added",
        "datastore sas: threshold and write cost applied",
        "volume b: datastore and labels",
    ] {
        assert!(daemon.log().contains(message), "{message} is missing in\n{}", daemon.log());
    }
    assert_eq!(
        (qos(&daemon, "a", "shares"), qos(&daemon, "b", "shares"), qos(&daemon, "x", "limit_iops")),
        (3_000, 3_000, 60)
    );
    assert_eq!(qos(&daemon, "a", "limit_iops"), 500, "that key did not change in the file");
    assert_eq!(members(&daemon), ["nl: b", "sas: a", "ssd: "]);
    let sas = &listed(&daemon)[1];
    assert_eq!((&sas["threshold_ms"], &sas["threshold_found"]), (&10.0.into(), &false.into()), "{sas}");
    // A changed key in the file overrides the command, and a removed datastore is no longer listed.
    let a = volume("a", &format!("{on_sas}limit_iops = 700\n"));
    fixture.write(&format!("{}{rules}{a}{b}", datastores.replace("[[datastore]]\nname = \"ssd\"\n", "")));
    daemon.signal("HUP");
    daemon.wait_for("the file is read again", |daemon| qos(daemon, "a", "limit_iops") == 700);
    daemon.wait_for("the datastore is removed", |daemon| members(daemon) == ["nl: b", "sas: a"]);
    assert!(daemon.command(&["datastore", "show", "sas"]).contains("congested above 10.0 ms"));
    let refused = daemon.try_command(&["datastore", "show", "ssd"]);
    assert!(errors(&refused).contains("unknown datastore \"ssd\""), "{}", errors(&refused));
    daemon.stop();
}

#[test]
fn completions_and_manual_contain_every_command() {
    for args in [&["completions", "bash"][..], &["completions", "zsh"], &["completions", "fish"], &["man"]] {
        let output = hotset().args(args).output().expect("the binary was built");
        let text = String::from_utf8(output.stdout).expect("text");
        for command in ["serve", "check", "status", "top", "stop", "volume", "demo", "adopt", "invalidate"] {
            assert!(text.contains(command), "{command} is missing in {args:?}");
        }
    }
    let folder = tempfile::tempdir().expect("a folder for the test");
    let output = hotset().args(["man", "--out"]).arg(folder.path()).output().expect("the binary was built");
    assert!(output.status.success(), "{}", errors(&output));
    for page in ["hotset.1", "hotset-check-config.1", "hotset-volume-set.1"] {
        let text = std::fs::read_to_string(folder.path().join(page)).unwrap_or_default();
        assert!(text.contains(".SH SYNOPSIS"), "{page}: {text}");
    }
}

#[test]
fn wrong_usage_exits_with_two() {
    for args in [&["serve", "--confg", "x"][..], &["volume", "explode"], &["demo", "--seconds", "soon"], &[]] {
        let output = hotset().args(args).output().expect("the binary was built");
        assert_eq!(output.status.code(), Some(2), "{args:?}: {}", errors(&output));
    }
}
