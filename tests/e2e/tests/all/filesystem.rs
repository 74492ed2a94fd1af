//! A file system image survives a round trip through a volume.

use std::path::Path;

use e2e::fixture::Fixture;
use e2e::tool::tool;

const MIB: u64 = 1 << 20;

#[test]
fn populated_file_system_survives_a_kill() {
    let mut fixture = Fixture::with_volume(48 * MIB);
    fixture.memory = "24 MiB".to_owned();
    fixture.keep_in = "none".to_owned();
    let image = fixture.folder.join("fs.img");
    let content = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join("crates");
    let mkfs = tool("mke2fs").args("-q -t ext4 -E root_owner=0:0 -d").arg(&content).arg(&image).arg("48M");
    mkfs.ok();
    let daemon = fixture.start();
    tool("nbdcopy").arg("--flush").arg(&image).arg(fixture.uri("v")).ok();
    daemon.kill();
    let daemon = fixture.start();
    let back = fixture.folder.join("back.img");
    tool("nbdcopy").arg(fixture.uri("v")).arg(&back).ok();
    tool("cmp").arg(&image).arg(&back).ok();
    tool("e2fsck").args("-f -n").arg(&back).ok();
    let listing = tool("debugfs").args("-R").arg("ls -p /engine/src").arg(&back).ok();
    assert!(listing.contains("lib.rs"), "{listing}");
    daemon.stop();
}

#[test]
fn partial_last_block_is_intact_after_a_kill() {
    let bytes = 2 * MIB + 3 * 512;
    let fixture = Fixture::with_volume(bytes);
    let daemon = fixture.start();
    assert_eq!(tool("nbdinfo").arg("--size").arg(fixture.uri("v")).ok().trim(), bytes.to_string());
    let last = format!("write -P 0x3c {} 512", bytes - 512);
    let across = format!("write -P 0x4d {} 1024", bytes - 2048);
    let io = tool("qemu-io").args("-f raw -c").arg(&across).arg("-c").arg(&last).arg("-c").arg("flush");
    io.arg(fixture.uri("v")).ok();
    daemon.kill();
    let content = std::fs::read(fixture.backing("v")).expect("the backing exists");
    assert_eq!(content.len() as u64, bytes);
    let tail = &content[content.len() - 2048..];
    assert!(tail[..1024].iter().all(|&b| b == 0x4d) && tail[1536..].iter().all(|&b| b == 0x3c));
    assert!(tail[1024..1536].iter().all(|&b| b == 0));
}
