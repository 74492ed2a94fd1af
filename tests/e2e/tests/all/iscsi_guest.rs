//! A Linux guest's own initiator (open-iscsi, multipath) against the target: behaviour that user-space clients cannot
//! show.

use std::time::Duration;

use e2e::daemon::Daemon;
use e2e::fixture::{Fixture, TARGET};
use e2e::linux::{HOST, Linux};
use e2e::relay::Relay;
use e2e::server::Nbdkit;

use crate::iscsi::{signal, stall_seconds};

const INITIATOR: &str = "iqn.2026-11.io.hotset:guest";
const BYTES: u64 = 256 << 20;
/// Number of cuts of the connection under a verified load.
const CUTS: usize = 10;

/// A daemon with one LUN behind relays; it announces only the relays' ports.
struct ServedTarget {
    fixture: Fixture,
    daemon: Daemon,
    relays: Vec<Relay>,
}

impl ServedTarget {
    fn new(paths: usize, chap: bool) -> ServedTarget {
        ServedTarget::with(Fixture::with_volume(BYTES), paths, chap)
    }

    fn with(mut fixture: Fixture, paths: usize, chap: bool) -> ServedTarget {
        let address = fixture.add_iscsi_target("");
        let relays: Vec<_> = (0..paths).map(|_| Relay::to(address)).collect();
        let announced: Vec<_> = relays.iter().map(|relay| format!("\"{HOST}:{}\"", relay.port())).collect();
        let (secret, mutual) = (fixture.folder.join("chap"), fixture.folder.join("mutual"));
        std::fs::write(&secret, "initiators12").expect("the folder can be written");
        std::fs::write(&mutual, "thetargets12").expect("the folder can be written");
        let chap = if chap {
            format!(
                "chap = {{ user = \"guest\", secret_file = \"{}\", mutual_user = \"hotset\", mutual_secret_file = \
                 \"{}\" }}\n",
                secret.display(),
                mutual.display()
            )
        } else {
            String::new()
        };
        fixture.tables += &format!("announce = [{}]\nacl = [\"{INITIATOR}\"]\n{chap}", announced.join(", "));
        let daemon = fixture.start();
        ServedTarget { fixture, daemon, relays }
    }

    /// Boots a guest whose initiator daemon runs.
    fn guest(&self) -> Linux {
        let mut guest = Linux::boot();
        guest.run(&format!(
            "mkdir -p /run/lock/iscsi /mnt\necho InitiatorName={INITIATOR} >/etc/iscsi/initiatorname.iscsi\n\
             iscsid\nuntil pgrep iscsid >/dev/null; do sleep 0.1; done"
        ));
        guest
    }
}

/// Settings of every session: CHAP with SHA-256 in both directions, both digests.
fn set_chap_and_digests(guest: &mut Linux) {
    let settings = [
        ("node.session.auth.authmethod", "CHAP"),
        ("node.session.auth.chap_algs", "SHA256"),
        ("node.session.auth.username", "guest"),
        ("node.session.auth.password", "initiators12"),
        ("node.session.auth.username_in", "hotset"),
        ("node.session.auth.password_in", "thetargets12"),
        ("node.conn[0].iscsi.HeaderDigest", "CRC32C"),
        ("node.conn[0].iscsi.DataDigest", "CRC32C"),
    ];
    for (name, value) in settings {
        guest.run(&format!("iscsiadm -m node -T {TARGET} -o update -n '{name}' -v '{value}'"));
    }
}

/// The lifetime of a disk: discovery, authentication in both directions, digests, a file system, a load through cuts of
/// the connection, growth, the commands that hypervisors use, and a clean logout.
#[test]
#[ignore = "needs a guest kernel: make torture"]
fn linux_host_uses_a_lun_through_cuts_growth_and_primitives() {
    let served = ServedTarget::new(1, true);
    let mut guest = served.guest();
    let relay = &served.relays[0];
    let discovered = guest.run(&format!(
        "iscsiadm -m discovery -t sendtargets -p {HOST}:{} \
         -o new --op new 2>&1 || iscsiadm -m discovery -t sendtargets -p {HOST}:{}",
        relay.port(),
        relay.port()
    ));
    assert!(discovered.contains(&format!("{HOST}:{},", relay.port())) && discovered.contains(TARGET), "{discovered}");

    // A wrong secret, and no secret.
    let (status, output) = guest.try_run(&format!("iscsiadm -m node -T {TARGET} --login"));
    assert_ne!(status, 0, "a session without a secret: {output}");
    set_chap_and_digests(&mut guest);
    guest.run(&format!("iscsiadm -m node -T {TARGET} -o update -n node.session.auth.password -v 'notthesecret'"));
    let (status, output) = guest.try_run(&format!("iscsiadm -m node -T {TARGET} --login"));
    assert_ne!(status, 0, "a session with a wrong secret: {output}");
    guest.run(&format!("iscsiadm -m node -T {TARGET} -o update -n node.session.auth.password -v 'initiators12'"));
    guest.run(&format!("iscsiadm -m node -T {TARGET} --login; udevadm settle; test -b /dev/sda"));
    let session = guest.run("iscsiadm -m session -P 2");
    for property in ["HeaderDigest: CRC32C", "DataDigest: CRC32C", "username: guest", "username_in: hotset"] {
        assert!(session.contains(property), "{property} is missing:\n{session}");
    }

    // A verified load through ten cuts.
    guest.run("mkfs.ext4 -q /dev/sda; mount /dev/sda /mnt");
    guest.start_load(
        "fio --name=v --filename=/mnt/f --size=32M --rw=randrw --bs=4k --direct=1 --ioengine=libaio --iodepth=8 \
         --verify=crc32c \
         --verify_backlog=64 --time_based --runtime=90 --minimal",
    );
    let mut cut = 0;
    while cut < CUTS {
        std::thread::sleep(Duration::from_secs(5));
        assert!(guest.is_load_running(), "the load ended after {cut} cuts: {}", guest.wait_for_load());
        cut += usize::from(relay.cut() > 0);
    }
    println!("fio after {cut} cuts: {}", guest.wait_for_load().lines().next_back().unwrap_or_default());
    guest.run("umount /mnt; e2fsck -fn /dev/sda");

    // Growth while the disk is in use.
    served.daemon.command(&["volume", "resize", "v", "320 MiB"]);
    guest.run(&format!("iscsiadm -m node -T {TARGET} --rescan"));
    let bytes = guest.run("udevadm settle; blockdev --getsize64 /dev/sda");
    assert_eq!(bytes.trim(), (320u64 << 20).to_string());
    guest.run("e2fsck -fp /dev/sda || [ $? = 1 ]; resize2fs /dev/sda; mount /dev/sda /mnt; umount /mnt");

    // Reservations.
    guest.run("sg_persist --out --register --param-sark=0xabc /dev/sda");
    guest.run("sg_persist --out --reserve --param-rk=0xabc --prout-type=5 /dev/sda");
    let reservations =
        guest.run("sg_persist --in --read-reservation /dev/sda; sg_persist --in --read-full-status /dev/sda");
    assert!(reservations.contains("0xabc") && reservations.contains(INITIATOR), "{reservations}");
    guest.run("sg_persist --out --clear --param-rk=0xabc /dev/sda");

    // Copies inside the target, COMPARE AND WRITE, UNMAP and WRITE SAME.
    guest.run("dd if=/dev/urandom of=/dev/sda bs=1M count=8 oflag=direct 2>/dev/null");
    guest.run("sg_xcopy if=/dev/sda of=/dev/sda count=8192 skip=0 seek=65536 bs=512 id_usage=disable");
    guest.run("cmp -n 4194304 /dev/sda /dev/sda 0 33554432");
    guest.run(
        "dd if=/dev/sda of=/tmp/old bs=512 count=1 iflag=direct 2>/dev/null; dd if=/dev/urandom of=/tmp/new \
               bs=512 count=1 2>/dev/null",
    );
    guest.run(
        "cat /tmp/old /tmp/new >/tmp/both; sg_compare_and_write --in=/tmp/both --lba=0 --num=1 --xferlen=1024 /dev/sda",
    );
    let (status, output) = guest.try_run("sg_compare_and_write --in=/tmp/both --lba=0 --num=1 --xferlen=1024 /dev/sda");
    assert_ne!(status, 0, "the compared sector has changed: {output}");
    guest.run("dd if=/dev/sda bs=512 count=1 iflag=direct 2>/dev/null | cmp - /tmp/new");
    guest.run("blkdiscard -o 0 -l 33554432 /dev/sda; cmp -n 33554432 /dev/sda /dev/zero");
    guest.run("blkdiscard -z -o 33554432 -l 33554432 /dev/sda; cmp -n 67108864 /dev/sda /dev/zero");

    guest.run(&format!("iscsiadm -m node -T {TARGET} --logout"));
    assert!(guest.try_run("iscsiadm -m session").1.contains("No active sessions"));
    served.daemon.stop();
    drop(served.fixture);
}

/// Working paths in the output of `multipath -ll`, which aligns its columns.
fn working_paths(output: &str) -> usize {
    output.lines().filter(|line| line.contains(" active ready ")).count()
}

/// Two paths; the packets of one are dropped without notice to either end while a verified load runs.
#[test]
#[ignore = "needs a guest kernel: make torture"]
fn load_on_two_paths_survives_loss_of_one() {
    let served = ServedTarget::new(2, false);
    let mut guest = served.guest();
    let ports: Vec<_> = served.relays.iter().map(Relay::port).collect();
    guest.run(
        "cat >/etc/multipath.conf <<'CONF'\ndefaults {\n user_friendly_names yes\n find_multipaths no\n no_path_retry \
         60\n \
         polling_interval 2\n}\nblacklist {\n devnode \"^vd\"\n}\nCONF\nmodprobe dm_multipath; modprobe \
         dm_round_robin; multipathd",
    );
    guest.run(&format!("iscsiadm -m discovery -t sendtargets -p {HOST}:{}", ports[0]));
    guest.run(&format!(
        "iscsiadm -m node -T {TARGET} -o update -n node.session.timeo.replacement_timeout -v 5; \
         iscsiadm -m node -T {TARGET} --login; udevadm settle"
    ));
    let paths = guest.run("for i in $(seq 100); do [ -b /dev/mapper/mpatha ] && break; sleep 0.2; done; multipath -ll");
    assert_eq!(working_paths(&paths), 2, "{paths}");

    guest.start_load(
        "fio --name=v --filename=/dev/mapper/mpatha --size=32M --rw=randrw --bs=4k --direct=1 --ioengine=libaio \
         --iodepth=8 \
         --verify=crc32c --verify_backlog=64 --time_based --runtime=90 --minimal",
    );
    std::thread::sleep(Duration::from_secs(10));
    for chain in ["OUTPUT -p tcp --dport", "INPUT -p tcp --sport"] {
        guest.run(&format!("iptables-legacy -A {chain} {} -j DROP", ports[0]));
    }
    let paths =
        guest.run("for i in $(seq 300); do multipath -ll | grep -q 'failed' && break; sleep 0.2; done; multipath -ll");
    assert_eq!(working_paths(&paths), 1, "{paths}");
    assert!(guest.is_load_running(), "the load ended: {}", guest.wait_for_load());
    println!("fio: {}", guest.wait_for_load().lines().next_back().unwrap_or_default());
    guest.run("iptables-legacy -F");
    let paths = guest.run(
        "for i in $(seq 300); do [ $(multipath -ll | grep -c 'active ready  *running') = 2 ] && break; sleep 0.2; \
         done; multipath -ll",
    );
    assert_eq!(working_paths(&paths), 2, "{paths}");
    guest.run(&format!("multipath -F; iscsiadm -m node -T {TARGET} --logout"));
    served.daemon.stop();
}

/// Timeouts are the defaults of open-iscsi and the kernel. The effect of a hang of [`stall_seconds`] on the host is
/// printed; a hang of a minute must delay requests and fail none.
#[test]
#[ignore = "needs a guest kernel: make torture"]
fn hung_backing_only_delays_a_linux_host() {
    const PAUSE_SECONDS_MAX: u64 = 60;
    let mut fixture = Fixture::new();
    let backing = Nbdkit::start(&fixture.folder.join("slow"), "memory 64M");
    fixture.add_volume_on("v", &backing.uri(), "policy = \"write-through\"");
    let served = ServedTarget::with(fixture, 1, false);
    let mut guest = served.guest();
    guest.run(&format!("iscsiadm -m discovery -t sendtargets -p {HOST}:{}", served.relays[0].port()));
    guest.run(&format!("iscsiadm -m node -T {TARGET} --login; udevadm settle; test -b /dev/sda"));
    guest.start_load(
        "fio --name=v --filename=/dev/sda --size=32M --rw=randrw --bs=4k --direct=1 --ioengine=libaio --iodepth=8 \
         --verify=crc32c \
         --verify_backlog=64 --loops=1000 --time_based --runtime=20 --minimal",
    );
    std::thread::sleep(Duration::from_secs(5));
    let seconds = stall_seconds(PAUSE_SECONDS_MAX);
    signal(backing.pid(), "STOP");
    std::thread::sleep(Duration::from_secs(seconds));
    signal(backing.pid(), "CONT");
    let (status, output) = guest.try_run(
        "while ! [ -s /tmp/load.status ]; do sleep 0.2; done; tail -c 300 /tmp/load.output; \
         exit $(cat /tmp/load.status)",
    );
    let kernel = guest.run("dmesg | grep -i -e 'sd ' -e iscsi -e connection | tail -n 30 || true");
    println!("a hang of {seconds} s: the load ended with {status}\n{output}\nkernel messages:\n{kernel}");
    assert!(status == 0 || seconds > PAUSE_SECONDS_MAX, "the load failed");
    let pings = kernel.lines().filter(|line| line.contains("ping timeout")).count();
    assert_eq!(pings, 0, "a ping was not answered in time");
    // The disk is usable again.
    guest.run(
        "for i in $(seq 100); do dd if=/dev/sda of=/dev/null bs=4k count=1 iflag=direct 2>/dev/null && exit 0; \
               sleep 1; done; exit 1",
    );
    guest.run(&format!("iscsiadm -m node -T {TARGET} --logout"));
    served.daemon.stop();
}
