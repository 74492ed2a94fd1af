//! Block devices as backings, with sectors of 512 bytes and of 4 KiB.

use std::io::Write;

use e2e::client::Client;
use e2e::daemon::{Daemon, wait_for};
use e2e::fixture::Fixture;
use e2e::loop_device::LoopDevice;
use e2e::tool::tool;

const MIB: u64 = 1 << 20;
const VOLUME_BYTES: u64 = 48 * MIB;

/// A loop device in the fixture's folder; prints `SKIPPED` and returns `None` if none can be created.
fn device(fixture: &Fixture, sector_bytes: u32) -> Option<LoopDevice> {
    match LoopDevice::attach(&fixture.folder.join("device.img"), VOLUME_BYTES, sector_bytes) {
        Ok(device) => Some(device),
        Err(reason) => {
            // Written to the real stderr, past the capture of a passing test's output, because the skip must be
            // visible.
            let _ = writeln!(
                std::io::stderr(),
                "SKIPPED: a volume on a block device with {sector_bytes}-byte sectors: no loop device can be made \
                 ({reason})"
            );
            None
        }
    }
}

/// Verifies fio's sector-aligned writes before and after a restart, and the device's content after the stop.
fn check_sector_size(sector_bytes: u32) {
    let mut fixture = Fixture::new();
    let Some(device) = device(&fixture, sector_bytes) else { return };
    // Memory is smaller than the volume, so blocks are evicted and read again from the device.
    fixture.memory = "20 MiB".to_owned();
    fixture.add_volume_on("v", &device.path().to_string_lossy(), "");
    let fio = |args: &str| {
        let uri = format!("--uri={}", fixture.uri("v"));
        let common = "--name=v --ioengine=nbd --verify=crc32c --verify_fatal=1 --randseed=7 --iodepth=8";
        tool("fio").args(common).arg(uri).args(args).within(fixture.folder.path()).ok();
    };
    let daemon = fixture.start();
    assert!(daemon.command(&["volume", "show", "v"]).contains(&device.path().display().to_string()));
    fio("--rw=randrw --bsrange=512-64k --blockalign=512 --size=48m --io_size=48m --do_verify=1 --serialize_overlap=1");
    fio("--rw=write --bs=48k --size=48m --do_verify=0 --end_fsync=1");
    daemon.stop();
    let daemon = fixture.start();
    fio("--rw=read --bs=48k --size=48m");
    let mut client = Client::connect(&fixture.endpoint(), "v").expect("the volume is served");
    assert_eq!(client.size, VOLUME_BYTES);
    // On a device with sectors of 4 KiB, this write covers a part of one.
    client.write(VOLUME_BYTES - 512, &[7; 512]).expect("the write succeeds");
    let served = client.read_all().expect("the read succeeds");
    drop(client);
    daemon.stop();
    let mut stored = vec![0; VOLUME_BYTES as usize];
    let opened = std::fs::File::open(device.path()).expect("the device exists");
    std::os::unix::fs::FileExt::read_exact_at(&opened, &mut stored, 0).expect("the device reads");
    assert_eq!(stored[stored.len() - 512..], [7; 512]);
    assert!(stored == served, "the device differs from the served content");
}

#[test]
fn block_device_with_512_byte_sectors_keeps_content() {
    check_sector_size(512);
}

#[test]
fn block_device_with_4096_byte_sectors_keeps_content() {
    check_sector_size(4096);
}

#[test]
fn second_daemon_on_a_block_device_is_refused() {
    let (mut first, mut second) = (Fixture::new(), Fixture::new());
    let Some(device) = device(&first, 512) else { return };
    for fixture in [&mut first, &mut second] {
        fixture.add_volume_on("v", &device.path().to_string_lossy(), "");
    }
    let daemon = first.start();
    let other = Daemon::launch(&second);
    wait_for("the refusal", || other.log().contains("in use by another process").then_some(()));
    assert!(Client::connect(&second.endpoint(), "v").is_err(), "the second serves what the first has");
    let mut client = Client::connect(&first.endpoint(), "v").expect("the first still serves");
    client.write(0, &[1; 512]).expect("the write succeeds");
    drop(client);
    daemon.stop();
}
