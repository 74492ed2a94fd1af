//! The integrations in `packaging/` for Proxmox VE, libvirt, Ansible and containers, each on the real daemon.

use std::path::{Path, PathBuf};

use e2e::client::Client;
use e2e::daemon::binary;
use e2e::fixture::{Fixture, TARGET};
use e2e::http::Http;
use e2e::initiator::{Initiator, lun};
use e2e::tool::{tool, tool_within};

const MIB: u64 = 1 << 20;
/// Time limits of a script, and of a script that installs and boots a Debian system.
const SECONDS: u64 = 300;
const SECONDS_INSTALLING: u64 = 1200;

fn packaging(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging").join(file).canonicalize().expect("the file exists")
}

#[test]
fn proxmox_plug_in_passes_its_contract_on_a_running_daemon() {
    let folder = packaging("proxmox");
    // Proxmox's daemons run Perl with -T, and so does this test.
    let perl = || {
        let perl = tool_within(SECONDS, "perl").env("HOTSET_BIN", binary()).args("-T -w -I");
        perl.arg(folder.join("t/lib")).arg("-I").arg(&folder).within(&folder)
    };
    let compiled = perl().args("-c PVE/Storage/Custom/HotsetPlugin.pm").output();
    let errors = String::from_utf8_lossy(&compiled.stderr);
    assert_eq!(errors, "PVE/Storage/Custom/HotsetPlugin.pm syntax OK\n", "no error, and no warning");
    let output = perl().arg("t/contract.t").ok();
    assert!(output.contains("the token goes with the storage\n1.."), "the script did not complete:\n{output}");
}

#[test]
#[ignore = "installs a Debian root: `make torture`"]
fn ansible_role_installs_and_second_run_changes_nothing() {
    let output = tool_within(SECONDS_INSTALLING, "packaging/ansible/t/idempotent")
        .env("HOTSET_BIN", binary())
        .within(&packaging(".."))
        .ok();
    if let Some(skipped) = output.lines().find(|line| line.starts_with("SKIPPED")) {
        eprintln!("{skipped}");
    }
    let systems = ["offline", "booted"].iter().filter(|system| output.contains(&format!("{system}: done\n"))).count();
    assert!(systems == 2 || output.contains("SKIPPED"), "{output}");
    assert_eq!(output.matches("second: changed=0 failed=0\n").count(), systems, "{output}");
}

#[test]
fn container_seccomp_profile_suffices_and_blocks_other_calls() {
    let confined = packaging("container/t/confined");
    if !tool("/usr/bin/python3").args("-c").arg("import seccomp").output().status.success() {
        eprintln!("SKIPPED: the profile of system calls: apt-get install python3-seccomp");
        return;
    }
    // The profile is in force: a new namespace is refused.
    assert!(
        !tool_within(SECONDS, &confined.to_string_lossy())
            .args("/usr/bin/unshare --mount true")
            .output()
            .status
            .success()
    );

    let mut fixture = Fixture::with_volume(64 * MIB);
    fixture.wrapper = Some(confined);
    let target = fixture.add_iscsi_target("");
    let devices = [fixture.folder.join("f0"), fixture.folder.join("f1")];
    fixture.tables += &format!("[flash]\ndevices = {devices:?}\nsize = \"512 MiB\"\n[api]\nlisten = \"127.0.0.1:0\"\n");
    let daemon = fixture.start();
    tool("fio")
        .args("--name=load --ioengine=nbd --rw=randrw --bs=4k --size=32M --iodepth=16 --fsync=32 --verify=crc32c")
        .arg(format!("--uri={}", fixture.uri("v")))
        .ok();
    tool("qemu-io").args("-f raw -c").arg("discard 0 1M").arg("-c").arg("write -z 1M 1M").arg(fixture.uri("v")).ok();
    let mut initiator =
        Initiator::log_in(target, "iqn.2026-11.io.hotset:client", 1, TARGET).expect("the login succeeds");
    initiator.write(lun(0), 0, &[7; 4096]).expect("the write succeeds");
    initiator.flush(lun(0)).expect("the flush succeeds");
    assert_eq!(Http::of(&daemon).get("/metrics").status, 200);
    let more = fixture.folder.join("more.img").to_string_lossy().into_owned();
    daemon.command(&["volume", "add", "more", "--backing", &more, "--size", "1 MiB"]);
    daemon.command(&["volume", "resize", "more", "2 MiB"]);
    daemon.signal("HUP");
    daemon.command(&["volume", "remove", "more"]);
    let mut client = Client::connect(&fixture.endpoint(), "v").expect("the volume is served");
    assert_eq!(client.read(0, 4096).expect("the read succeeds"), [7; 4096]);
    drop((client, initiator));
    // A system call outside the profile has killed the daemon by now.
    daemon.stop();
}
