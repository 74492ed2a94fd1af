//! Access to the sockets: members of the daemon's group use the control socket, members of another group read and write
//! volumes; and files with secrets.

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::process::Command;

use e2e::daemon::{hotset, text_of};
use e2e::fixture::Fixture;

/// The daemon's user and group here, like the package's user `hotset`.
const DAEMON: u32 = 65_534;
/// A supplementary group of the daemon, like `hotset-volumes`.
const VOLUMES: u32 = 60;
/// The user of the virtual machine monitor.
const MONITOR: u32 = 64_055;

fn is_root() -> bool {
    fs::metadata("/proc/self").is_ok_and(|metadata| metadata.uid() == 0)
}

/// Whether a user without privileges can connect to the volume.
fn connects(fixture: &Fixture, user: u32, group: u32) -> bool {
    let ids = [format!("--reuid={user}"), format!("--regid={group}")];
    let mut command = Command::new("setpriv");
    command.args(ids).args(["--clear-groups", "timeout", "20", "nbdinfo", "--size"]).arg(fixture.uri("v"));
    command.output().expect("setpriv runs").status.success()
}

#[test]
fn control_group_may_not_write_volumes() {
    if !is_root() {
        return println!("SKIPPED: only root becomes other users");
    }
    let mut fixture = Fixture::with_volume(4 << 20);
    fixture.nbd = format!("socket_group = \"{VOLUMES}\"\nsocket_owner = \"{MONITOR}\"\n");
    fixture.enable_vhost_user();
    fixture.tables += &format!("socket_group = \"{VOLUMES}\"\n");
    // The daemon runs without capabilities, as in the package's unit.
    let wrapper = fixture.folder.join("under");
    let ids = format!("--reuid={DAEMON} --regid={DAEMON} --groups={VOLUMES}");
    let script = format!("#!/bin/sh\nexec setpriv {ids} --bounding-set=-all --inh-caps=-all \"$@\"\n");
    fs::write(&wrapper, script).expect("the folder can be written");
    fs::set_permissions(&wrapper, Permissions::from_mode(0o755)).expect("the file belongs to this user");
    fixture.wrapper = Some(wrapper);
    for path in [fixture.folder.path().to_owned(), fixture.backing("v")] {
        chown(path, Some(DAEMON), Some(DAEMON)).expect("root may");
    }
    fs::set_permissions(fixture.folder.path(), Permissions::from_mode(0o755)).expect("the file belongs to this user");
    let daemon = fixture.start();
    let group_of = |name: &str| fs::metadata(fixture.folder.join(name)).expect("the file exists").gid();
    assert_eq!(["control.sock", "nbd.sock", "vhost/v.sock"].map(group_of), [DAEMON, VOLUMES, VOLUMES]);
    assert!(connects(&fixture, 1, VOLUMES), "members of the volumes' group");
    assert!(connects(&fixture, MONITOR, MONITOR), "the user that the configuration names");
    assert!(!connects(&fixture, 1, DAEMON), "members of the daemon's own group");
    assert!(!connects(&fixture, 1, 1), "others");
    daemon.stop();
}

#[test]
fn readable_secrets_are_reported() {
    let mut fixture = Fixture::with_volume(1 << 20);
    let secret = fixture.folder.join("chap.secret");
    fs::write(&secret, "0123456789abcd").expect("the folder can be written");
    fixture.add_iscsi_target(&format!("chap = {{ user = \"host\", secret_file = \"{}\" }}", secret.display()));
    fs::write(fixture.config(), fixture.config_text()).expect("the folder can be written");
    let warning = format!("the CHAP secret in {} can be read by every user", secret.display());
    for (mode, is_reported) in [(0o644, true), (0o640, false)] {
        fs::set_permissions(&secret, Permissions::from_mode(mode)).expect("the file belongs to this user");
        let checked = hotset(&["check-config", &fixture.config().display().to_string()]);
        assert_eq!(checked.status.code(), Some(0), "{}", text_of(&checked));
        assert_eq!(text_of(&checked).contains(&warning), is_reported, "{mode:o}: {}", text_of(&checked));
        let daemon = fixture.start();
        let log = daemon.log();
        let last_run = log.rsplit("stopped;").next().expect("a part after the last stop");
        assert_eq!(last_run.contains(&warning), is_reported, "{mode:o}: {log}");
        daemon.stop();
    }
}
