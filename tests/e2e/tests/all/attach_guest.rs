//! `hotset attach` in a Linux guest, whose kernel NBD client survives restarts of the daemon.

use std::path::Path;
use std::time::Duration;

use e2e::daemon::binary;
use e2e::folder::Folder;
use e2e::linux::Linux;
use e2e::tool::tool;

/// Number of kills of the daemon under a verified load.
const KILLS: usize = 5;

/// Boots a guest with the binary, the udev rule, and a daemon that serves `v` (write-through) and `back` (write-back).
fn guest() -> Linux {
    let folder = Folder::new();
    let program = folder.join("hotset");
    tool("strip").arg("-o").arg(&program).arg(binary()).ok();
    let rules = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/udev/60-hotset.rules");
    let files = [(&*program, "/usr/bin/hotset"), (&*rules, "/usr/lib/udev/rules.d/60-hotset.rules")];
    let mut guest = Linux::boot_with(&files, &[]);
    guest.run(
        "mkdir -p /etc/hotset /srv/a /srv/b; truncate -s 128M /srv/v.img /srv/back.img\n\
         cat >/etc/hotset/hotset.toml <<'TOML'\n\
         [memory]\nsize = \"32 MiB\"\n\
         [[volume]]\nname = \"v\"\nbacking = \"/srv/v.img\"\npolicy = \"write-through\"\n\
         [[volume]]\nname = \"back\"\nbacking = \"/srv/back.img\"\n\
         TOML\n\
         udevadm control --reload; modprobe nbd",
    );
    serve(&mut guest);
    guest
}

/// Starts the daemon in the guest and waits until it serves.
fn serve(guest: &mut Linux) {
    guest.run(
        "ulimit -l unlimited; setsid hotset serve >>/tmp/daemon.log 2>&1 </dev/null & echo $! >/tmp/daemon.pid\n\
         for i in $(seq 600); do hotset status >/dev/null 2>&1 && exit 0; sleep 0.1; done; cat /tmp/daemon.log; exit 1",
    );
}

/// Starts `hotset attach` in the guest and waits until the volume's device node exists.
fn attach(guest: &mut Linux, volume: &str) {
    guest.run(&format!(
        "setsid hotset attach --foreground {volume} >>/tmp/{volume}.log 2>&1 </dev/null & echo $! >/tmp/{volume}.pid\n\
         for i in $(seq 300); do [ -b /dev/hotset/{volume} ] && exit 0; sleep 0.1; done; cat /tmp/{volume}.log; ls -l \
         /dev/nbd*; exit 1"
    ));
}

/// Starts a verifying load on the file system at `folder`.
fn start_load(guest: &mut Linux, folder: &str, seconds: u64) {
    guest.run(&format!(
        "rm -f /tmp/load.status; setsid sh -c 'fio --name=v --filename={folder}/f --size=32M --rw=randrw --bs=4k \
         --direct=1 \
         --ioengine=libaio --iodepth=8 --verify=crc32c --verify_backlog=64 --time_based --runtime={seconds} --minimal; \
         echo $? >/tmp/load.status' >/tmp/load.output 2>&1 </dev/null &"
    ));
}

/// Checks that the load still runs; a load that has ended found an error.
fn assert_load_runs(guest: &mut Linux) {
    if guest.try_run("[ -s /tmp/load.status ]").0 == 0 {
        wait_for_load(guest);
        panic!("the load ended before its time");
    }
}

/// Waits for the end of the load, which must succeed without a failed request.
fn wait_for_load(guest: &mut Linux) {
    let (status, output) = guest.try_run(
        "while ! [ -s /tmp/load.status ]; do sleep 0.2; done; cat /tmp/load.output; exit $(cat /tmp/load.status)",
    );
    let kernel = guest.run("dmesg | grep -i -e nbd -e 'I/O error' -e EXT4-fs | tail -n 40 || true");
    assert_eq!(status, 0, "the load failed:\n{output}\n{kernel}\n{}", guest.run("cat /tmp/*.log"));
    assert!(!kernel.contains("I/O error"), "{kernel}");
    println!("fio: {}", output.lines().next_back().unwrap_or_default());
}

#[test]
#[ignore = "needs a guest kernel: make torture"]
fn attached_file_system_survives_kills_of_daemon_and_attach() {
    let mut guest = guest();
    attach(&mut guest, "v");
    guest.run("mkfs.ext4 -q /dev/hotset/v; mount /dev/hotset/v /srv/a");
    start_load(&mut guest, "/srv/a", 90);
    for kill in 0..KILLS {
        std::thread::sleep(Duration::from_secs(5));
        assert_load_runs(&mut guest);
        guest.run("kill -9 $(cat /tmp/daemon.pid)");
        // In one round the attach process is also killed; its successor takes the device over.
        let kill_attach_too = kill == KILLS / 2;
        if kill_attach_too {
            guest.run("kill -9 $(cat /tmp/v.pid)");
        }
        serve(&mut guest);
        if kill_attach_too {
            attach(&mut guest, "v");
        }
    }
    wait_for_load(&mut guest);
    println!("{}", guest.run("cat /tmp/v.log"));

    // The volume grows while it is mounted.
    guest.run("hotset volume resize v '160 MiB'");
    let grown = (160u64 << 20).to_string();
    guest.run(&format!(
        "for i in $(seq 200); do [ $(blockdev --getsize64 /dev/hotset/v) = {grown} ] && exit 0; sleep 0.1; done; exit 1"
    ));
    guest.run("resize2fs /dev/hotset/v");

    let (status, output) = guest.try_run("hotset detach v");
    assert!(status == 1 && output.contains("mounted on /srv/a"), "{status}: {output}");
    guest.run("sha256sum /srv/a/f >/tmp/sum; umount /srv/a; e2fsck -fn /dev/hotset/v");
    guest.run("exec 9</dev/hotset/v; ! hotset detach v >/tmp/refused 2>&1; grep 'has it open' /tmp/refused");
    let output = guest.run("hotset detach v");
    assert!(output.contains("continues to serve"), "{output}");
    guest.run("udevadm settle; [ ! -e /dev/hotset/v ]; hotset volume show v");
    guest.run("for i in $(seq 100); do kill -0 $(cat /tmp/v.pid) 2>/dev/null || exit 0; sleep 0.1; done; exit 1");
    attach(&mut guest, "v");
    guest.run("mount /dev/hotset/v /srv/a; sha256sum -c /tmp/sum; umount /srv/a");
    // An attach process that receives SIGTERM disconnects an unused device.
    guest.run(
        "kill $(cat /tmp/v.pid); for i in $(seq 100); do [ -e /sys/block/nbd0/backend ] || exit 0; sleep 0.1; \
               done; exit 1",
    );
}

#[test]
#[ignore = "needs a guest kernel: make torture"]
fn attached_write_back_volume_survives_clean_restarts() {
    let mut guest = guest();
    attach(&mut guest, "back");
    // A partition has a device node, too: a partition table with one partition of 32 MiB at 1 MiB.
    guest.run(
        "printf '\\000\\000\\000\\000\\203\\000\\000\\000\\000\\010\\000\\000\\000\\000\\001\\000' | dd \
         of=/dev/hotset/back bs=1 seek=446 conv=notrunc 2>/dev/null\n\
         printf '\\125\\252' | dd of=/dev/hotset/back bs=1 seek=510 conv=notrunc 2>/dev/null\n\
         sync; blockdev --rereadpt /dev/hotset/back; udevadm settle; [ $(blockdev --getsize64 /dev/hotset/back-part1) \
         = 33554432 ]",
    );
    guest.run("mkfs.ext4 -q /dev/hotset/back-part1; mount /dev/hotset/back-part1 /srv/b");
    let (status, output) = guest.try_run("hotset detach back");
    assert!(status == 1 && output.contains("mounted on /srv/b"), "{status}: {output}");
    guest.run(
        "umount /srv/b; wipefs -qa /dev/hotset/back; mkfs.ext4 -qF /dev/hotset/back; mount /dev/hotset/back /srv/b",
    );
    start_load(&mut guest, "/srv/b", 45);
    for _ in 0..2 {
        std::thread::sleep(Duration::from_secs(8));
        assert_load_runs(&mut guest);
        guest.run("kill $(cat /tmp/daemon.pid); while kill -0 $(cat /tmp/daemon.pid) 2>/dev/null; do sleep 0.1; done");
        serve(&mut guest);
    }
    wait_for_load(&mut guest);
    guest.run("umount /srv/b; e2fsck -fn /dev/hotset/back");

    // Without the daemon nothing can be flushed, so an attach process leaves the device connected at SIGTERM.
    guest.run("kill $(cat /tmp/daemon.pid); while kill -0 $(cat /tmp/daemon.pid) 2>/dev/null; do sleep 0.1; done");
    let (status, output) = guest.try_run("hotset detach back");
    assert!(status == 1 && output.contains("no daemon answers") && output.contains("--no-flush"), "{status}: {output}");
    guest.run("kill $(cat /tmp/back.pid); while kill -0 $(cat /tmp/back.pid) 2>/dev/null; do sleep 0.1; done");
    guest.run("grep 'is left connected' /tmp/back.log; cat /sys/block/nbd0/backend");
    serve(&mut guest);

    // Another volume of the same name is not attached to the old volume's device.
    guest.run(
        "hotset volume remove back; truncate -s 128M /srv/other.img; hotset volume add back --backing /srv/other.img",
    );
    let (status, output) = guest.try_run("hotset attach --foreground back");
    assert!(status == 1 && output.contains("is attached to a removed volume of the same name"), "{status}: {output}");
    guest.run("hotset detach --no-flush back; [ ! -e /sys/block/nbd0/backend ]; : >/tmp/back.log");
    attach(&mut guest, "back");

    // A read-only volume becomes a read-only device.
    guest.run("truncate -s 16M /srv/fixed.img; hotset volume add fixed --backing /srv/fixed.img --read-only");
    attach(&mut guest, "fixed");
    guest.run("[ $(blockdev --getro /dev/hotset/fixed) = 1 ]; [ $(blockdev --getro /dev/hotset/back) = 0 ]");
    let (status, output) = guest.try_run("hotset attach --foreground fixed");
    assert!(status == 1 && output.contains("fixed is already attached by another process"), "{status}: {output}");
    guest.run("hotset detach fixed; hotset detach back");
}
