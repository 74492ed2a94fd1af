//! `hotset init` on real block devices: blank devices are proposed, devices with data are not, and no byte of either
//! changes.

use std::path::Path;
use std::process::Output;

use e2e::daemon::{binary, hotset, text_of};
use e2e::folder::Folder;
use e2e::linux::{Drive, Linux};
use e2e::loop_device::LoopDevice;
use e2e::tool::tool;
use serde_json::Value;

const BYTES: u64 = 64 << 20;

/// The digest of all bytes of a device.
fn digest(device: &Path) -> String {
    tool("sha256sum").arg(device).ok().split(' ').next().unwrap_or_default().to_owned()
}

fn init(args: &[&str]) -> Output {
    hotset(&[&["init"], args].concat())
}

fn propose(args: &[&str]) -> Value {
    let output = init(&[args, &["--json"]].concat());
    assert!(output.status.success(), "{}", text_of(&output));
    serde_json::from_slice(&output.stdout).expect("valid JSON")
}

fn backings(report: &Value) -> Vec<&str> {
    let volumes = report["plan"]["volumes"].as_array().expect("a list");
    volumes.iter().map(|volume| volume["device"].as_str().expect("a path")).collect()
}

#[test]
fn init_proposes_blank_and_named_devices_and_changes_none() {
    let folder = Folder::new();
    let attach = |name: &str| LoopDevice::attach(&folder.join(name), BYTES, 512);
    let (blank, formatted, unrecognised) = match (attach("blank"), attach("full"), attach("odd")) {
        (Ok(blank), Ok(formatted), Ok(unrecognised)) => (blank, formatted, unrecognised),
        (Err(reason), ..) | (_, Err(reason), _) | (.., Err(reason)) => {
            return println!("SKIPPED: no loop devices: {reason}");
        }
    };
    tool("mke2fs").arg("-q").arg("-t").arg("ext4").arg(formatted.path()).ok();
    // No tool recognises this data, but a user may still need it.
    tool("dd")
        .arg("if=/dev/urandom")
        .arg(format!("of={}", unrecognised.path().display()))
        .args("bs=64k count=1 seek=1023 conv=fsync")
        .ok();
    let devices = [blank.path(), formatted.path(), unrecognised.path()];
    let before = devices.map(digest);
    let [blank, formatted, unrecognised] = devices.map(|path| path.to_str().expect("a UTF-8 path"));
    let look_args = ["--look-at", blank, "--look-at", formatted, "--look-at", unrecognised];

    let report = propose(&look_args);
    assert_eq!(backings(&report), [blank], "{report:#}");
    let skipped = report["plan"]["left"].as_array().expect("a list");
    let reason = |device: &str| {
        let entry = skipped.iter().find(|entry| entry["device"] == device).expect("the device is in the list");
        entry["why"].as_str().expect("a reason").to_owned()
    };
    assert!(reason(formatted).contains("ext4") && reason(unrecognised).contains("unrecognised data"), "{report:#}");
    let report = propose(&[&look_args[..], &["--volume", formatted]].concat());
    assert_eq!(backings(&report), [formatted, blank], "{report:#}");

    // The file is complete, valid, and never overwritten.
    let out = folder.join("hotset.toml");
    let file = out.to_str().expect("a UTF-8 path");
    let args = [&look_args[..], &["--out", file]].concat();
    let output = init(&args);
    assert!(output.status.success(), "{}", text_of(&output));
    let checked = hotset(&["check-config", file]);
    assert!(checked.status.success() && text_of(&checked).contains("1 volume"), "{}", text_of(&checked));
    let written = std::fs::read(&out).expect("the file was written");
    assert!(String::from_utf8_lossy(&written).contains("Left alone:"));
    let again = init(&args);
    assert_eq!(again.status.code(), Some(1), "{}", text_of(&again));
    assert!(text_of(&again).contains("not overwritten"), "{}", text_of(&again));
    assert_eq!(std::fs::read(&out).expect("the file exists"), written);

    // A mounted device is refused even when it is named. Where mounting is not permitted, this part is skipped.
    let mount_point = folder.join("mounted");
    std::fs::create_dir(&mount_point).expect("the folder can be written");
    if tool("mount").args("-o ro,noload").arg(formatted).arg(&mount_point).output().status.success() {
        let refused = init(&[&look_args[..], &["--volume", formatted]].concat());
        tool("umount").arg(&mount_point).ok();
        assert_eq!(refused.status.code(), Some(1), "{}", text_of(&refused));
        assert!(text_of(&refused).contains("mounted at"), "{}", text_of(&refused));
    } else {
        println!("SKIPPED: a mounted device: nothing may be mounted here");
    }
    let wrong = init(&["--volume", "/dev/no-such-disk"]);
    assert_eq!(wrong.status.code(), Some(2), "{}", text_of(&wrong));
    assert_eq!(devices.map(digest), before, "a byte of a device changed");
}

/// A machine with its own kernel and udev: two blank NVMe drives, a blank disk, and a disk with a file system.
#[test]
#[ignore = "needs a guest kernel: make torture"]
fn guest_init_distinguishes_flash_from_disks_and_serves_the_plan() {
    const GIB: u64 = 1 << 30;
    let folder = Folder::new();
    let file = |name: &str| {
        let path = folder.join(name);
        let created = std::fs::File::create(&path).and_then(|file| file.set_len(5 * GIB));
        created.expect("a sparse file can be created");
        path
    };
    let (nvme_0, nvme_1, blank, formatted) = (file("fast"), file("other"), file("blank"), file("full"));
    tool("mke2fs").args("-q -t ext4").arg(&formatted).ok();
    let program = folder.join("hotset");
    tool("strip").arg("-o").arg(&program).arg(binary()).ok();
    let drives = [
        Drive::Sata(blank.clone()),
        Drive::Sata(formatted.clone()),
        Drive::Nvme(nvme_0.clone()),
        Drive::Nvme(nvme_1.clone()),
    ];
    let before = digest(&formatted);
    let mut guest = Linux::boot_with(&[(&program, "/usr/bin/hotset")], &drives);
    guest.run("modprobe ahci; modprobe sd_mod; modprobe nvme; udevadm settle; mkdir -p /etc/hotset");
    println!("{}", guest.run("hotset init"));
    let report: Value =
        serde_json::from_str(&guest.run("hotset init --json --out /etc/hotset/hotset.toml")).expect("valid JSON");
    let plan = &report["plan"];
    assert_eq!(backings(&report), ["/dev/disk/by-id/ata-QEMU_HARDDISK_SERIAL0"], "{report:#}");
    let flash = plan["flash"].as_array().expect("a list");
    let flash: Vec<_> = flash.iter().map(|device| device["device"].as_str().expect("a path")).collect();
    let id_path = |number| format!("/dev/disk/by-id/nvme-QEMU_NVMe_Ctrl_SERIAL{number}");
    assert!(
        flash.len() == 2 && (2..4).all(|number| flash.iter().any(|path| path.starts_with(&id_path(number)))),
        "{report:#}"
    );
    let skipped = plan["left"].as_array().expect("a list").iter();
    let skipped: Vec<_> = skipped.map(|entry| entry["why"].as_str().expect("a reason")).collect();
    assert!(skipped.len() == 2 && skipped.iter().all(|reason| reason.contains("ext4")), "{report:#}");
    assert!(skipped.iter().any(|reason| reason.contains("mounted at /")), "{report:#}");

    guest.run("hotset check-config /etc/hotset/hotset.toml");
    guest.run(
        "ulimit -l unlimited; setsid hotset serve >/tmp/daemon.log 2>&1 </dev/null & echo $! >/tmp/daemon.pid\n\
         for i in $(seq 600); do hotset status >/dev/null 2>&1 && exit 0; sleep 0.1; done; cat /tmp/daemon.log; exit 1",
    );
    let printed = guest.run("hotset flash list; kill $(cat /tmp/daemon.pid)");
    assert!(printed.contains("2 copies in service"), "{printed}");
    drop(guest);
    assert_eq!(digest(&formatted), before, "a byte of the disk with the file system changed");
}
