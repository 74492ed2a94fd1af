//! The Debian package on an installed machine: a guest with systemd, two NVMe drives and a disk, whose file system lies
//! on an attached volume. The package is installed, the machine reboots, the package is upgraded under load and
//! removed.

use std::fs::File;
use std::path::{Path, PathBuf};

use e2e::daemon::binary;
use e2e::folder::Folder;
use e2e::linux::{Drive, Linux, Machine, installed};
use e2e::tool::tool_within;
use serde_json::Value;

const MIB: u64 = 1 << 20;
/// Seconds that packing may take: the test's binary is large.
const SECONDS_PACKING: u64 = 600;
/// The daemon, and the units that keep its devices attached.
const UNITS: &str = "hotset hotset-attach@web01 hotset-attach@raw";
/// Bytes written before the reboot: twice the size of the memory.
const FILL_MIB: u64 = 64;
/// Bytes per second that the disk accepts while written data is to stay dirty.
const SLOW_BYTES: u64 = 128 << 10;
/// Load for a minute and a half on a file of a file system, an open device that is not mounted, and a client that never
/// reconnects.
const LOAD: &str = "fio --size=32M --rw=randrw --bs=4k --direct=1 --ioengine=libaio --iodepth=4 --verify=crc32c \
                    --verify_backlog=64 \
                    --time_based --runtime=90 --minimal --name=mounted --filename=/data/g --name=open \
                    --filename=/dev/hotset/raw \
                    --name=direct --ioengine=nbd --uri=nbd+unix:///direct?socket=/run/hotset/nbd.sock";
/// Reads the same scattered blocks each time: data read as a stream is not admitted to flash.
const READ_HOT: &str = "fio --name=hot --filename=/data/f --size=64M --io_size=24M --rw=randread --randseed=1 \
                        --bs=16k --direct=1 \
                        --ioengine=libaio --iodepth=4 --minimal >/dev/null";

const CONFIG: &str = r#"
[memory]
size = "32 MiB"

[flash]
devices = ["/dev/disk/by-id/nvme-QEMU_NVMe_Ctrl_SERIAL0", "/dev/disk/by-id/nvme-QEMU_NVMe_Ctrl_SERIAL1"]

[history]
size = "32 MiB"

[[volume]]
name = "web01"
backing = "/dev/disk/by-id/ata-QEMU_HARDDISK_SERIAL2"

[[volume]]
name = "raw"
backing = "/dev/disk/by-id/ata-QEMU_HARDDISK_SERIAL3"

[[volume]]
name = "direct"
backing = "/dev/disk/by-id/ata-QEMU_HARDDISK_SERIAL4"
"#;

/// Builds the package with this version and returns its path.
fn package(folder: &Path, version: &str) -> PathBuf {
    let built = tool_within(SECONDS_PACKING, "scripts/deb")
        .arg(folder.join(version))
        .env("HOTSET_BIN", binary())
        .env("HOTSET_DEB_VERSION", version)
        .within(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../.."))
        .ok();
    PathBuf::from(built.trim())
}

/// Process IDs of [`UNITS`].
fn pids(guest: &mut Linux) -> Vec<String> {
    guest.run(&format!("systemctl show --value -p MainPID {UNITS}")).split_whitespace().map(str::to_owned).collect()
}

/// Report on the volume `web01`.
fn volume_report(guest: &mut Linux) -> Value {
    serde_json::from_str(&guest.run("hotset --json volume show web01")).expect("valid JSON")
}

/// Limits the disk to `bytes` a second; 0: no limit.
fn limit_disk(guest: &Linux, bytes: u64) {
    let output = guest.monitor(&format!("block_set_io_throttle drive2 0 0 {bytes} 0 0 0"));
    assert!(!output.contains("rror"), "{output}");
}

fn assert_no_kernel_errors(guest: &mut Linux) {
    let errors = guest.run("dmesg | grep -E 'I/O error|EXT4-fs error|Buffer I/O|Remounting' || true");
    assert_eq!(errors, "", "requests failed");
}

/// Checks that removal is refused and the package stays installed. Returns the output.
fn assert_removal_refused(guest: &mut Linux, action: &str) -> String {
    let (status, output) = guest.try_run(&format!("dpkg --{action} hotset"));
    assert_ne!(status, 0, "the package was removed: {output}");
    println!("refused: {output}");
    let state = guest.run("dpkg-query -W -f '${Status}' hotset");
    assert!(state.ends_with(" installed"), "{state}");
    output
}

#[test]
#[ignore = "needs a guest kernel and a Debian root: make torture"]
fn package_installs_survives_reboot_and_upgrade_and_is_removed() {
    let folder = Folder::new();
    let (older, newer) = (package(&folder.join("packages"), "0.0.1-1"), package(&folder.join("packages"), "9.9.9-1"));
    let drive = |name: &str, mib: u64| {
        let path = folder.join(name);
        File::create(&path).and_then(|file| file.set_len(mib * MIB)).expect("a sparse file can be created");
        path
    };
    let (nvme_0, nvme_1) = (drive("fast", 512), drive("other", 512));
    let (web01, raw, direct) = (drive("slow", 256), drive("more", 64), drive("direct", 64));
    let disk = folder.join("disk");
    installed(&disk);
    let machine = Machine {
        drives: vec![
            Drive::Nvme(nvme_0),
            Drive::Nvme(nvme_1),
            Drive::Sata(web01),
            Drive::Sata(raw),
            Drive::Sata(direct),
        ],
        files: vec![(older, "/opt/older.deb".to_owned()), (newer, "/opt/newer.deb".to_owned())],
        installed: Some(disk),
        ..Machine::default()
    };
    let mut guest = Linux::boot_as(&machine);

    // After the installation the daemon runs, and no device has changed.
    guest.run("dpkg -i /opt/older.deb 2>&1 | tee /opt/installed");
    guest.run(
        "systemctl is-active hotset; systemctl is-enabled hotset; hotset status; [ $(ps -o user= -C hotset) = hotset ]",
    );
    guest.run(
        "for disk in /dev/nvme0n1 /dev/nvme1n1 /dev/sda /dev/sdb /dev/sdc; do cmp -n $(blockdev --getsize64 $disk) \
         $disk /dev/zero; done",
    );
    guest.run("[ -z \"$(cat /sys/block/nbd*/backend 2>/dev/null)\" ]");

    // A file system on an attached volume, mounted at every boot.
    guest.run(&format!(
        "cat >/etc/hotset/hotset.toml <<'TOML'{CONFIG}TOML\nhotset check-config \
                        /etc/hotset/hotset.toml; systemctl restart hotset"
    ));
    guest.run("hotset attach web01; hotset attach raw; mkfs.ext4 -q /dev/hotset/web01; mkdir /data");
    guest.run(
        "echo '/dev/hotset/web01 /data ext4 _netdev,nofail 0 2' >>/etc/fstab; systemctl daemon-reload; mount /data",
    );
    guest.run(&format!(
        "dd if=/dev/urandom of=/data/f bs=1M count={FILL_MIB} conv=fsync 2>&1; sha256sum /data/f >/opt/sum"
    ));
    for _ in 0..3 {
        guest.run(READ_HOT);
        // Promotion to flash runs when the backing is idle.
        guest.run("sleep 3");
    }
    let pages_before = volume_report(&mut guest)["flash"]["pages"].as_u64().expect("a number");

    // The command may or may not answer before the machine stops.
    guest.run("(sleep 1; systemctl reboot) >/dev/null 2>&1 &");
    guest.wait_for_end();
    let mut guest = Linux::boot_as(&machine);
    println!(
        "{}",
        guest.run("systemctl list-jobs; systemd-analyze critical-chain --no-pager hotset.service data.mount || true")
    );
    println!("{}", guest.run("journalctl -b -1 --no-pager -u hotset -u 'hotset-attach@*' -u data.mount | tail -n 25"));
    guest.run(
        "findmnt --noheadings --output SOURCE,TARGET /data || \
               { systemctl status data.mount hotset hotset-attach@web01; exit 1; }",
    );
    let hits_and_reads = |report: &Value| {
        let count = |key: &str| report[key].as_u64().expect("a number");
        (count("flash_hits"), count("memory_hits") + count("flash_hits") + count("partial_hits") + count("misses"))
    };
    let report_before = volume_report(&mut guest);
    guest.run(READ_HOT);
    let report_after = volume_report(&mut guest);
    let pages_after = report_before["flash"]["pages"].as_u64().expect("a number");
    let ((hits_before, reads_before), (hits_after, reads_after)) =
        (hits_and_reads(&report_before), hits_and_reads(&report_after));
    let (hits, reads) = (hits_after - hits_before, reads_after - reads_before);
    println!("after the reboot flash has {pages_after} of {pages_before} pages and serves {hits} of {reads} reads");
    assert!(
        pages_before > 0 && pages_after * 10 >= pages_before * 9,
        "{pages_after} of {pages_before} pages are left on flash"
    );
    // Blocks hot enough to stay in memory were not on flash.
    assert!(reads > 0 && hits * 2 >= reads, "the cache is cold: {hits} hits of {reads} reads");
    guest.run("sha256sum -c /opt/sum");
    assert_no_kernel_errors(&mut guest);

    // A newer package under load.
    let old_pids = pids(&mut guest);
    guest.start_load(LOAD);
    guest.run("sleep 10");
    println!("{}", guest.run("dpkg -i /opt/newer.deb 2>&1"));
    assert!(guest.is_load_running(), "the load ended before the upgrade: {}", guest.wait_for_load());
    assert_eq!(guest.run("dpkg-query -W -f '${Version}' hotset"), "9.9.9-1");
    println!("fio: {}", guest.wait_for_load());
    println!(
        "{}",
        guest.run("journalctl --no-pager -u hotset -b | grep -E 'NBD clients taken over from the previous daemon'")
    );
    guest.run(&format!("sha256sum -c /opt/sum; systemctl is-active {UNITS}"));
    for (old, new) in old_pids.iter().zip(pids(&mut guest)) {
        assert_ne!(*old, new, "an old process of {UNITS} still runs");
    }
    assert_no_kernel_errors(&mut guest);

    // Removal is refused while dirty data exists only in the cache, with the daemon running or stopped.
    limit_disk(&guest, SLOW_BYTES);
    guest.run("dd if=/dev/urandom of=/data/h bs=1M count=16 conv=fsync 2>&1; sha256sum /data/h >>/opt/sum");
    assert_removal_refused(&mut guest, "remove");
    guest.run(&format!("systemctl is-active {UNITS}; echo works >/data/works; sync; umount /data"));
    guest.run("hotset detach raw; hotset detach web01");
    let output = assert_removal_refused(&mut guest, "purge");
    assert!(
        output.contains("hotset stop --destage") && output.contains("web01"),
        "the refusal names no remedy: {output}"
    );
    guest.run("systemctl stop hotset");
    let output = assert_removal_refused(&mut guest, "purge");
    assert!(
        output.contains("hotset stop --destage") && output.contains("web01"),
        "the refusal names no remedy: {output}"
    );
    limit_disk(&guest, 0);
    guest.run("systemctl start hotset && hotset stop --destage");
    println!("{}", guest.run("dpkg --purge hotset 2>&1"));
    guest.run("[ ! -e /var/lib/hotset ] && [ ! -e /etc/hotset ] && [ ! -e /run/hotset ] && [ ! -e /usr/bin/hotset ]");
    guest.run("! systemctl cat hotset 2>/dev/null; [ -z \"$(find /etc/systemd -name 'hotset*')\" ]");

    // The disk now holds the complete data.
    guest.run(
        "disk=/dev/disk/by-id/ata-QEMU_HARDDISK_SERIAL2; fsck.ext4 -fn $disk; mount -o ro $disk /data; sha256sum -c \
         /opt/sum; umount /data",
    );
}
