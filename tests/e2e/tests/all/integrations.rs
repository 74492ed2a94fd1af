//! What `packaging/` has for Proxmox VE, libvirt, Ansible and containers, each on the real daemon.

use std::path::{Path, PathBuf};

use e2e::daemon::binary;
use e2e::tool::tool_within;

/// Seconds that a script may take.
const SECONDS: u64 = 300;

fn packaging(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging").join(file).canonicalize().expect("it is there")
}

#[test]
fn the_proxmox_plug_in_does_all_that_proxmox_asks_of_it_on_a_running_daemon() {
    let folder = packaging("proxmox");
    // Proxmox's daemons run Perl with -T, and so does this.
    let perl = || {
        let perl = tool_within(SECONDS, "perl").env("HOTSET_BIN", binary()).args("-T -w -I");
        perl.arg(folder.join("t/lib")).arg("-I").arg(&folder).within(&folder)
    };
    let compiled = perl().args("-c PVE/Storage/Custom/HotsetPlugin.pm").output();
    let said = String::from_utf8_lossy(&compiled.stderr);
    assert_eq!(said, "PVE/Storage/Custom/HotsetPlugin.pm syntax OK\n", "no error, and no warning");
    let done = perl().arg("t/contract.t").ok();
    assert!(done.contains("the token goes with the storage\n1.."), "it went to its end:\n{done}");
}

#[test]
#[ignore = "installs a Debian root: `make torture`"]
fn the_ansible_role_installs_and_configures_and_changes_nothing_when_run_again() {
    let said = tool_within(SECONDS, "packaging/ansible/t/idempotent")
        .env("HOTSET_BIN", binary())
        .within(&packaging(".."))
        .ok();
    if said.starts_with("SKIPPED") {
        eprint!("{said}");
        return;
    }
    assert!(said.contains("second: changed=0 failed=0\n"), "{said}");
}
