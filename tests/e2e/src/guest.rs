//! A virtual machine with a real kernel and the real daemon, whose power can be cut.
//!
//! QEMU emulates the CPU, so no KVM is needed. The machine has disks whose servers live in the test, and one network
//! through which the test reaches the daemon. All else is an initramfs: busybox, kernel modules, the daemon and its
//! libraries.

use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::client::Endpoint;
use crate::daemon::{SABOTAGE, wait_at_most};
use crate::kernel::{self, BOOT_TIMEOUT, Kernel};
use crate::tool::tool;

/// Configuration of the daemon in the guest, before the tables of its storage.
const CONFIG: &str = r#"
[state]
directory = "/state"
[memory]
size = "32 MiB"
[control]
socket = "/control.sock"
[nbd]
listen = ["tcp:0.0.0.0:10809"]
"#;

/// Storage of the volume "v" of a guest.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Storage {
    /// One disk.
    Disk,
    /// A disk, two flash devices, and a disk with the file system of the state directory.
    DiskAndFlash,
    /// A pool "tank" of two disks, and a disk with the file system of the state directory. The slices always move from
    /// one disk to the other.
    Pool,
}

impl Storage {
    /// Tables of the configuration.
    fn tables(self) -> &'static str {
        match self {
            Storage::Disk => "[[volume]]\nname = \"v\"\nbacking = \"/dev/vda\"\n",
            Storage::DiskAndFlash => {
                "[[volume]]\nname = \"v\"\nbacking = \"/dev/vda\"\n[flash]\ndevices = [\"/dev/vdb\", \"/dev/vdc\"]\n"
            }
            Storage::Pool => POOL_TABLES,
        }
    }

    /// Commands before the start of the daemon.
    fn preparation(self) -> &'static str {
        match self {
            Storage::Disk => "",
            Storage::DiskAndFlash => "mount -t ext4 /dev/vdd /state\n",
            // Refused if the devices carry a pool already.
            Storage::Pool => {
                "mount -t ext4 /dev/vdc /state\nhotset pool create tank --config /hotset.toml >/dev/null 2>&1\n"
            }
        }
    }

    /// Commands beside the daemon. With a pool they write the number of bytes that have moved since the start.
    fn background(self) -> &'static str {
        match self {
            Storage::Disk | Storage::DiskAndFlash => "",
            Storage::Pool => POOL_MOVES,
        }
    }
}

/// Tables of a pool and its volume.
const POOL_TABLES: &str = r#"
[[volume]]
name = "v"
backing = "pool://tank"
size = "8 MiB"
provisioning = "thick"
[[pool]]
name = "tank"
slice = "256 KiB"
relocation = "off"
rate = "128 KiB/s"
[[pool.tier]]
name = "t"
class = "nl-sas"
devices = ["/dev/vda", "/dev/vdb"]
"#;

/// Always drains the fuller disk of the pool, so that slices move without end. `free_bytes` of the pool stands before
/// those of the disks.
const POOL_MOVES: &str = r#"
pool() { hotset pool $* --socket /control.sock; }
until pool list >/dev/null 2>&1; do sleep 0.1; done
while true; do
  report=$(pool show tank --json | tr -d ' \n')
  echo "$report" | sed 's/.*"moved_bytes":\([0-9]*\).*/GUEST-MOVED \1/'
  set -- $(echo "$report" | tr ',{' '\n\n' | sed -n 's/"free_bytes":\([0-9]*\).*/\1/p') /dev/vda /dev/vdb
  [ "$2" -lt "$3" ] || set -- "$1" "$3" "$2" "$5" "$4"
  pool drain tank "$5" --cancel >/dev/null 2>&1
  pool drain tank "$4" >/dev/null 2>&1
  sleep 2
done
"#;

const INIT: &str = r#"#!/bin/sh
/bin/busybox --install -s /bin
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev
for module in /modules/*; do insmod $module; done
ifconfig lo 127.0.0.1 up
ifconfig eth0 10.0.2.15 netmask 255.255.255.0 up
ulimit -l unlimited
. /sabotage
. /preparation
sh /background &
hotset serve --config /hotset.toml &
daemon=$!
until netstat -ltn | grep -q :10809; do
  kill -0 $daemon || { echo GUEST-FAILED; poweroff -f; }
  sleep 0.1
done
echo GUEST-READY
wait $daemon
echo GUEST-FAILED
poweroff -f
"#;

/// Kernel and initramfs of a guest.
pub struct Image {
    kernel: PathBuf,
    initramfs: PathBuf,
}

impl Image {
    /// Packs `daemon` with the kernel into `folder`. `sabotage` names a deliberate fault.
    pub fn build(folder: &Path, kernel: &Kernel, daemon: &Path, storage: Storage, sabotage: Option<&str>) -> Image {
        let root = folder.join("root");
        for name in ["bin", "proc", "sys", "dev", "state", "tmp"] {
            fs::create_dir_all(root.join(name)).expect("the folder can be written");
        }
        let copy = |from: &Path, to: &Path| {
            fs::create_dir_all(to.parent().expect("the path has a parent")).expect("the folder can be written");
            fs::copy(from, to).unwrap_or_else(|error| panic!("{}: {error}", from.display()));
        };
        copy(Path::new("/bin/busybox"), &root.join("bin/busybox"));
        std::os::unix::fs::symlink("busybox", root.join("bin/sh")).expect("a link can be created");
        tool("strip").arg("-o").arg(root.join("bin/hotset")).arg(daemon).ok();
        for library in libraries(daemon) {
            copy(&library, &root.join(library.strip_prefix("/").expect("ldd prints whole paths")));
        }
        kernel
            .put_modules(&["virtio_pci", "virtio_blk", "virtio_net", "ext4", "crc32c_generic"], &root.join("modules"));
        let sabotage = sabotage.map(|fault| format!("export {SABOTAGE}={fault}\n")).unwrap_or_default();
        for (name, text) in [
            ("hotset.toml", format!("{CONFIG}{}", storage.tables())),
            ("sabotage", sabotage),
            ("preparation", storage.preparation().to_owned()),
            ("background", storage.background().to_owned()),
            ("init", INIT.to_owned()),
        ] {
            fs::write(root.join(name), text).expect("the folder can be written");
        }
        Image { kernel: kernel.image(), initramfs: kernel::pack(&root) }
    }
}

/// Shared libraries of a program.
fn libraries(program: &Path) -> Vec<PathBuf> {
    let text = tool("ldd").arg(program).ok();
    let paths = text.lines().filter_map(|line| line.split_whitespace().find(|word| word.starts_with('/')));
    paths.map(PathBuf::from).collect()
}

/// A running guest; its power is cut when it is dropped.
pub struct Guest {
    child: Child,
    console: PathBuf,
    port: u16,
}

impl Guest {
    /// Boots a guest on the disks served at these sockets, and waits until its daemon listens.
    pub fn boot(image: &Image, disks: &[PathBuf], console: &Path) -> Guest {
        // The port stays free: no other process picks ports of this range at random.
        let port = TcpListener::bind("127.0.0.1:0").and_then(|l| l.local_addr()).expect("a port is free").port();
        let _ = fs::remove_file(console);
        let mut command = Command::new("qemu-system-x86_64");
        command.args("-accel tcg -m 512 -smp 1 -nodefaults -nographic -no-reboot".split(' '));
        command.arg("-kernel").arg(&image.kernel).arg("-initrd").arg(&image.initramfs);
        command.args(["-append", kernel::COMMAND_LINE]);
        command.arg("-serial").arg(format!("file:{}", console.display()));
        for (number, disk) in disks.iter().enumerate() {
            command.arg("-blockdev").arg(format!(
                "driver=nbd,node-name=disk{number},server.type=unix,server.path={},cache.direct=on,cache.no-flush=off",
                disk.display()
            ));
            command.arg("-device").arg(format!("virtio-blk-pci,drive=disk{number},write-cache=on"));
        }
        command.arg("-netdev").arg(format!("user,id=net,restrict=on,hostfwd=tcp:127.0.0.1:{port}-:10809"));
        command.args(["-device", "virtio-net-pci,netdev=net,romfile="]);
        let child = command.stdin(Stdio::null()).spawn().expect("qemu runs");
        let mut guest = Guest { child, console: console.to_owned(), port };
        wait_at_most(BOOT_TIMEOUT, "the guest's daemon", || {
            let log = guest.log();
            let ended = guest.child.try_wait().expect("qemu is a child process").is_some();
            assert!(!ended && !log.contains("GUEST-FAILED"), "the guest failed:\n{log}");
            log.contains("GUEST-READY").then_some(())
        });
        guest
    }

    /// Endpoint of the daemon in the guest.
    pub fn endpoint(&self) -> Endpoint {
        Endpoint::Tcp(format!("127.0.0.1:{}", self.port))
    }

    /// Console output of the guest so far.
    pub fn log(&self) -> String {
        String::from_utf8_lossy(&fs::read(&self.console).unwrap_or_default()).into_owned()
    }

    /// Bytes that have moved between the disks of the pool since the boot, from the latest line of the console.
    pub fn moved_bytes(&self) -> u64 {
        let log = self.log();
        let mut counts = log.lines().rev().filter_map(|line| line.strip_prefix("GUEST-MOVED ")?.trim().parse().ok());
        counts.next().unwrap_or(0)
    }

    /// Cuts the power; returns when the guest can no longer reach its disks.
    pub fn cut(mut self) {
        self.child.kill().expect("qemu is a child process");
        self.child.wait().expect("qemu is a child process");
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
