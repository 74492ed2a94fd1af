//! Health of the drives under flash devices, as reported by a fake `smartctl`: its output, its failures, and that it
//! blocks nothing.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use e2e::client::Client;
use e2e::daemon::{Daemon, wait_for};
use e2e::fixture::Fixture;
use e2e::http::Http;
use e2e::loop_device::LoopDevice;
use serde_json::Value;

use crate::flash::{failing_devices, set_flash_devices};

const SATA: &str = include_str!("../../../../crates/daemon/src/flash/fixtures/sata.json");
const WORN: &str = include_str!("../../../../crates/daemon/src/flash/fixtures/nvme-failing.json");

/// A fixture whose flash devices are two drives; `None` where no loop devices can be created.
fn fixture() -> Option<(Fixture, [LoopDevice; 2])> {
    let mut fixture = Fixture::with_volume(4 << 20);
    let drives: [LoopDevice; 2] = failing_devices(&fixture, &["one", "two"])?.try_into().ok()?;
    set_flash_devices(&mut fixture, &[drives[0].path(), drives[1].path()]);
    fixture.tables = format!("[api]\nlisten = \"127.0.0.1:0\"\n{}", fixture.tables);
    Some((fixture, drives))
}

/// Installs a fake `smartctl` that runs `script` for the drive in `$3`.
fn install_smartctl(fixture: &mut Fixture, script: &str) {
    let folder = fixture.folder.join("programs");
    fs::create_dir(&folder).expect("the folder can be created");
    let program = folder.join("smartctl");
    fs::write(&program, format!("#!/bin/sh\n[ \"$1 $2\" = '--json -a' ] || exit 1\n{script}\n"))
        .expect("the folder can be written");
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).expect("a file of this user");
    fixture.programs = Some(folder);
}

fn flash(daemon: &Daemon) -> Value {
    serde_json::from_str(&daemon.command(&["flash", "list", "--json"])).expect("valid JSON")
}

/// Reported state of the drive under a device, once it satisfies `condition`.
fn drive(daemon: &Daemon, device: &Path, condition: impl Fn(&Value) -> bool) -> Value {
    let device = device.to_string_lossy();
    wait_for("the state of the drive", || {
        let list = flash(daemon);
        let devices = list["devices"].as_array().expect("a list");
        let drive = devices.iter().find(|entry| entry["device"] == *device)?["drive"].clone();
        (drive.is_object() && condition(&drive)).then_some(drive)
    })
}

#[test]
fn drive_health_is_reported_and_warnings_raise_alerts() {
    let Some((mut fixture, drives)) = fixture() else { return };
    for (name, text) in [("sata.json", SATA), ("worn.json", WORN)] {
        fs::write(fixture.folder.join(name), text).expect("the file can be written");
    }
    let [healthy, worn] = drives.each_ref().map(LoopDevice::path);
    let folder = fixture.folder.path().display().to_string();
    let cases = format!(
        "{}) cat {folder}/sata.json ;; {}) cat {folder}/worn.json; exit 8 ;;",
        healthy.display(),
        worn.display()
    );
    install_smartctl(&mut fixture, &format!("case \"$3\" in {cases} *) exit 2 ;; esac"));
    let daemon = fixture.start();
    let http = Http::of(&daemon);
    let is_read = |drive: &Value| drive["read_unix_seconds"].as_u64() > Some(0);
    let reported = drive(&daemon, healthy, is_read);
    assert_eq!(
        (&reported["drive"], &reported["model"]),
        (&healthy.to_string_lossy().into(), &"EXAMPLE SATA SSD 480GB".into())
    );
    assert_eq!(
        (&reported["temperature_celsius"], &reported["spare_ratio"], &reported["unread"]),
        (&33.into(), &0.98.into(), &"".into())
    );
    let reported = drive(&daemon, worn, is_read);
    assert_eq!((&reported["wear_used_ratio"], &reported["media_errors"]), (&1.12.into(), &219.into()));
    assert_eq!(reported["warnings"].as_array().map(Vec::len), Some(3), "{reported}");
    let alert = wait_for("the alert", || {
        let alerts = http.get("/api/v1/alerts").json();
        alerts.as_array().expect("a list").iter().find(|alert| alert["kind"] == "drive-failing").cloned()
    });
    assert_eq!((&alert["subject"], &alert["severity"]), (&worn.to_string_lossy().into(), &"critical".into()));
    let metrics = http.get("/metrics").body;
    for (name, device, value) in [
        ("spare_ratio", healthy, "0.98"),
        ("temperature_celsius", worn, "62"),
        ("media_errors_total", worn, "219"),
        ("warnings", healthy, "0"),
        ("warnings", worn, "3"),
    ] {
        let line = format!("hotset_flash_drive_{name}{{device=\"{}\"}} {value}\n", device.display());
        assert!(metrics.contains(&line), "{line} is missing");
    }
    daemon.stop();
}

#[test]
fn hanging_or_garbled_drive_blocks_nothing_and_is_reported() {
    let Some((mut fixture, drives)) = fixture() else { return };
    let [hanging, garbled] = drives.each_ref().map(LoopDevice::path);
    let pid = fixture.folder.join("pid");
    let (hanging_path, pid_file) = (hanging.display(), pid.display());
    let hang = format!("echo $$ > {pid_file}.new; mv {pid_file}.new {pid_file}; exec sleep 1000");
    let script = format!("if [ \"$3\" = {hanging_path} ]; then {hang}; fi\necho nonsense");
    install_smartctl(&mut fixture, &script);
    let daemon = fixture.start();
    let process: PathBuf = wait_for("the smartctl process", || {
        let pid = fs::read_to_string(&pid).ok()?;
        Some(Path::new("/proc").join(pid.trim()))
    });
    assert_eq!(drive(&daemon, garbled, |_| true)["unread"], "smartctl printed invalid JSON");
    // Clients and commands are served while it hangs.
    let mut client = Client::connect(&fixture.endpoint(), "v").expect("the volume is served");
    client.write(0, &[7; 4096]).and_then(|()| client.flush()).expect("the write succeeds");
    assert!(process.exists(), "the smartctl process has ended");
    let reported = drive(&daemon, hanging, |drive| drive["unread"] != "");
    assert_eq!(
        (&reported["unread"], &reported["read_unix_seconds"]),
        (&"smartctl did not answer within 10 s".into(), &0.into())
    );
    wait_for("the end of the smartctl process", || (!process.exists()).then_some(()));
    daemon.stop();
}

#[test]
fn missing_smartctl_is_reported_once() {
    if ["/usr/sbin/smartctl", "/sbin/smartctl", "/usr/bin/smartctl"].iter().any(|path| Path::new(path).exists()) {
        eprintln!("SKIPPED: a machine without smartctl: this one has it");
        return;
    }
    let Some((fixture, _drives)) = fixture() else { return };
    let daemon = fixture.start();
    let reported = wait_for("the report of the missing smartctl", || {
        flash(&daemon)["drive_health_error"].as_str().map(str::to_owned)
    });
    assert!(reported.starts_with("smartctl is not installed"), "{reported}");
    assert_eq!(daemon.log().matches("smartctl is not installed").count(), 1, "{}", daemon.log());
    assert!(flash(&daemon)["devices"].as_array().expect("a list").iter().all(|device| device["drive"].is_null()));
    daemon.stop();
}
