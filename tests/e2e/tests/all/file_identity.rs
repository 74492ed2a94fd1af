//! A file on a file system whose device number has changed is the same backing.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use e2e::client::Client;
use e2e::fixture::Fixture;
use e2e::loop_device::LoopDevice;

const MIB: u64 = 1 << 20;

/// A mounted file system, unmounted when dropped.
struct Mounted(PathBuf);

impl Mounted {
    fn mount(device: &Path, mount_point: &Path) -> Option<Mounted> {
        std::fs::create_dir_all(mount_point).expect("the folder can be created");
        run(Command::new("mount").arg(device).arg(mount_point)).then(|| Mounted(mount_point.to_owned()))
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // A failure to unmount cannot be handled here.
        let _ = Command::new("umount").arg(&self.0).status();
    }
}

fn run(command: &mut Command) -> bool {
    let path = std::env::var("PATH").unwrap_or_default();
    command.env("PATH", format!("/usr/sbin:/sbin:{path}")).output().is_ok_and(|output| output.status.success())
}

/// Creates and mounts an XFS file system in a file on a loop device; prints `SKIPPED` and returns `None` where that is
/// impossible.
fn xfs(fixture: &Fixture, file: &Path, mount_point: &Path) -> Option<(LoopDevice, Mounted)> {
    // The smallest file system that `mkfs.xfs` creates.
    let device = LoopDevice::attach(file, 320 * MIB, 512).ok();
    let formatted = device.filter(|device| run(Command::new("mkfs.xfs").arg("-q").arg(device.path())));
    let mounted =
        formatted.and_then(|device| Mounted::mount(device.path(), mount_point).map(|mounted| (device, mounted)));
    if mounted.is_none() {
        let folder = fixture.folder.path().display();
        let _ =
            writeln!(std::io::stderr(), "SKIPPED: a backing on XFS: no such file system can be mounted in {folder}");
    }
    mounted
}

#[test]
fn file_on_xfs_is_the_same_backing_on_another_device_number() {
    let mut fixture = Fixture::new();
    let (image, mount_point) = (fixture.folder.join("xfs.img"), fixture.folder.join("mounted"));
    let Some((device, mounted)) = xfs(&fixture, &image, &mount_point) else { return };
    let backing = mount_point.join("v.img");
    File::create(&backing).and_then(|file| file.set_len(MIB)).expect("the file system can be written");
    fixture.add_volume_on("v", &backing.display().to_string(), "");
    let daemon = fixture.start();
    let mut client = Client::connect(&fixture.endpoint(), "v").expect("the volume is served");
    client.write(0, &[7; 4096]).expect("the write succeeds");
    client.flush().expect("the flush succeeds");
    drop(client);
    daemon.stop();
    drop(mounted);
    let first = device.path().to_owned();
    drop(device);
    // Another loop device takes the old device number before the file system returns.
    let other = LoopDevice::attach(&fixture.folder.join("other.img"), MIB, 512).expect("loop devices are permitted");
    let device = LoopDevice::attach_existing(&image, 512).expect("loop devices are permitted");
    assert!(other.path() == first || device.path() != first, "the device number has changed");
    let _mounted = Mounted::mount(device.path(), &mount_point).expect("mounting is permitted");
    let daemon = fixture.start();
    let mut client =
        Client::connect(&fixture.endpoint(), "v").unwrap_or_else(|error| panic!("{error}:\n{}", daemon.log()));
    assert_eq!(client.read(0, 4096).expect("the read succeeds"), [7; 4096]);
    drop(client);
    daemon.stop();
}
