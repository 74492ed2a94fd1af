//! Linux guests on vhost-user disks: the kernel's driver, kills of the daemon and of guests, and a migration.

use std::time::Duration;

use e2e::daemon::{Daemon, wait_for};
use e2e::fixture::Fixture;
use e2e::linux::{Linux, Machine, QUEUES};

const BYTES: u64 = 256 << 20;
/// Number of kills of the daemon under a verified load.
const KILLS: usize = 20;

fn fixture(volumes: &[&str]) -> Fixture {
    let mut fixture = Fixture::new();
    volumes.iter().for_each(|name| fixture.add_volume(name, BYTES, ""));
    fixture.enable_vhost_user();
    fixture
}

fn machine(fixture: &Fixture, volumes: &[&str]) -> Machine {
    Machine { vhost_user: volumes.iter().map(|name| fixture.vhost_user_socket(name)).collect(), ..Machine::default() }
}

/// A verified load, with a job for each queue.
fn verified_load(file: &str, seconds: u64, depth: usize) -> String {
    format!(
        "cd /tmp; fio --name=v --filename={file} --size=16M --offset_increment=16M --numjobs={QUEUES} --rw=randrw \
         --bs=4k --direct=1 \
         --ioengine=libaio --iodepth={depth} --verify=crc32c --verify_backlog=64 --serialize_overlap=1 --time_based \
         --runtime={seconds} --minimal"
    )
}

/// The lifetime of a disk: reported properties, a file system, four queues, discards, zeroes, growth.
#[test]
#[ignore = "needs a guest kernel: make torture"]
fn guest_disk_supports_all_features() {
    let fixture = fixture(&["v"]);
    let daemon = fixture.start();
    let mut guest = Linux::boot_as(&machine(&fixture, &["v"]));
    let disk = guest.run(
        "cd /sys/block/vdb; cat size serial; echo; cat queue/write_cache; ls mq | wc -l; cat queue/discard_max_bytes",
    );
    let output: Vec<&str> = disk.lines().collect();
    let [size, serial, cache, queues, discard] = output[..] else { panic!("{disk}") };
    assert_eq!((size, cache, queues), ((BYTES / 512).to_string().as_str(), "write back", QUEUES.to_string().as_str()));
    assert!(serial.len() == 16 && serial.bytes().all(|byte| byte.is_ascii_hexdigit()), "{serial}");
    assert_ne!(discard, "0");

    guest.run("mkfs.ext4 -q /dev/vdb; mkdir -p /mnt; mount /dev/vdb /mnt");
    guest.start_load(&verified_load("/mnt/f", 20, 32));
    println!("fio: {}", guest.wait_for_load().lines().next_back().unwrap_or_default());
    guest.run("rm /mnt/f; fstrim -v /mnt; umount /mnt; e2fsck -fn /dev/vdb");

    daemon.command(&["volume", "resize", "v", "320 MiB"]);
    guest.run(
        "for i in $(seq 100); do [ $(blockdev --getsize64 /dev/vdb) = 335544320 ] && exit 0; sleep 0.1; done; exit 1",
    );
    guest.run("e2fsck -fp /dev/vdb || [ $? = 1 ]; resize2fs /dev/vdb; mount /dev/vdb /mnt; umount /mnt");

    guest.run("dd if=/dev/urandom of=/dev/vdb bs=1M count=64 oflag=direct 2>/dev/null; sync");
    guest.run("blkdiscard -o 0 -l 33554432 /dev/vdb; cmp -n 33554432 /dev/vdb /dev/zero");
    guest.run("blkdiscard -z -o 33554432 -l 33554432 /dev/vdb; cmp -n 67108864 /dev/vdb /dev/zero");
    // The guest may change the reported cache type, and gets the durability of the new type.
    guest.run("echo 'write through' >/sys/block/vdb/cache_type; grep -q through /sys/block/vdb/queue/write_cache");
    guest.run("dd if=/dev/urandom of=/dev/vdb bs=4k count=4 oflag=direct 2>/dev/null; md5sum </dev/vdb >/dev/null");
    drop(guest);
    daemon.stop();
}

/// Other vhost-user-blk servers do not keep requests in flight: their end is an I/O error or a hung disk in the guest.
#[test]
#[ignore = "needs a guest kernel: make torture"]
fn repeated_kills_under_a_guest_lose_nothing() {
    check_repeated_kills(&fixture(&["v"]));
}

#[test]
#[ignore = "needs a guest kernel: make torture"]
fn repeated_kills_with_flash_under_a_guest_lose_nothing() {
    let mut fixture = fixture(&["v"]);
    fixture.tables += "[flash]\ndevices = [\"one\", \"two\"]\nsize = \"256 MiB\"\n";
    check_repeated_kills(&fixture);
}

fn check_repeated_kills(fixture: &Fixture) {
    let mut daemon = fixture.start();
    let mut guest = Linux::boot_as(&machine(fixture, &["v"]));
    guest.start_load(&verified_load("/dev/vdb", 5 * KILLS as u64 + 30, 32));
    for round in 0..KILLS {
        std::thread::sleep(Duration::from_secs(3));
        assert!(guest.is_load_running(), "the load ended after {round} kills: {}", guest.wait_for_load());
        daemon.kill();
        daemon = Daemon::start(fixture);
    }
    println!("fio after {KILLS} kills: {}", guest.wait_for_load().lines().next_back().unwrap_or_default());
    let errors = guest.run("dmesg | grep -i 'i/o error' || true");
    assert_eq!(errors, "", "the guest saw an error");
    drop(guest);
    daemon.stop();
}

/// A guest that loses power affects no other guest, and its own disk stays consistent.
#[test]
#[ignore = "needs a guest kernel: make torture"]
fn guest_end_does_not_affect_other_guests() {
    let fixture = fixture(&["a", "b"]);
    let daemon = fixture.start();
    let mut neighbour = Linux::boot_as(&machine(&fixture, &["a"]));
    neighbour.start_load(&verified_load("/dev/vdb", 90, 8));
    for _ in 0..3 {
        let mut guest = Linux::boot_as(&machine(&fixture, &["b"]));
        guest.start_load(&verified_load("/dev/vdb", 600, 32));
        std::thread::sleep(Duration::from_secs(4));
        assert!(guest.is_load_running(), "{}", guest.wait_for_load());
        drop(guest);
    }
    println!("fio beside three ends: {}", neighbour.wait_for_load().lines().next_back().unwrap_or_default());
    drop(neighbour);
    let listed = daemon.command(&["volume", "list"]);
    assert!(listed.contains('a') && listed.contains('b'), "{listed}");
    daemon.stop();
}

/// From one QEMU to another on this machine, under a verified load.
#[test]
#[ignore = "needs a guest kernel: make torture"]
fn guest_migrates_under_a_verified_load() {
    let fixture = fixture(&["v"]);
    let daemon = fixture.start();
    let migration_socket = fixture.folder.join("moving");
    let source_machine = Machine { may_migrate: true, ..machine(&fixture, &["v"]) };
    let target_machine =
        Machine { incoming: Some(migration_socket.clone()), may_migrate: true, ..machine(&fixture, &["v"]) };
    let mut source = Linux::boot_as(&source_machine);
    // A guest that changes memory as fast as an emulated machine is copied would never converge.
    source.start_load(&format!("{} --rate_iops=300", verified_load("/dev/vdb", 150, 8)));
    let mut target = Linux::boot_as(&target_machine);
    wait_for("the machine that waits", || migration_socket.exists().then_some(()));
    source.monitor("migrate_set_parameter max-bandwidth 1G");
    source.monitor("migrate_set_parameter downtime-limit 5000");
    source.monitor(&format!("migrate -d unix:{}", migration_socket.display()));
    let mut output = String::new();
    for _ in 0..600 {
        output = source.monitor("info migrate");
        if !output.contains("active") && !output.contains("setup") {
            break;
        }
        std::thread::sleep(Duration::from_millis(200));
    }
    assert!(output.contains("completed"), "{output}");
    drop(source);
    assert!(target.is_load_running(), "the load ended before the move did: {}", target.wait_for_load());
    println!("moved: {output}\nfio: {}", target.wait_for_load().lines().next_back().unwrap_or_default());
    assert_eq!(target.run("dmesg | grep -i 'i/o error' || true"), "", "the guest saw an error");
    drop(target);
    daemon.stop();
}
