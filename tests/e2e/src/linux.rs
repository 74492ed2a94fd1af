//! A Debian guest whose own kernel is a client: it runs what a test tells it.
//!
//! QEMU emulates the processor (no KVM is needed). The disk is made by `scripts/guest-root`, and forgets when the guest ends what was
//! written to it. Scripts go to the guest by a serial line of their own; this machine's loopback is 10.0.2.2 to it.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::daemon::wait_at_most;
use crate::folder::Folder;
use crate::kernel::{self, BOOT_PATIENCE, Kernel};

/// How the guest names this machine's loopback.
pub const HOST: &str = "10.0.2.2";

/// Loads what the disk needs and goes on from there.
const INIT: &str = r#"#!/bin/sh
/bin/busybox --install -s /bin
mount -t proc proc /proc
mount -t devtmpfs devtmpfs /dev
for module in /modules/*; do insmod $module; done
mount -t ext4 -o noatime /dev/vda /guest
cp /agent /guest/agent
[ ! -d /more ] || cp -a /more/. /guest/
umount /proc
mount --move /dev /guest/dev
exec switch_root /guest /agent
"#;

/// Answers each script with `DONE`, its status, the length of what it wrote, and that.
const AGENT: &str = r#"#!/bin/sh
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t tmpfs tmpfs /run
mount -t tmpfs tmpfs /tmp
mkdir -p /run/lock /dev/pts
mount -t devpts devpts /dev/pts
modprobe virtio_net
/lib/systemd/systemd-udevd --daemon
udevadm trigger
udevadm settle
ip link set lo up
link=$(ls /sys/class/net | grep -v lo | head -n 1)
ip link set "$link" up
ip address add 10.0.2.15/24 dev "$link"
ip route add default via 10.0.2.2
stty -F /dev/ttyS1 raw -echo
exec </dev/ttyS1 3>/dev/ttyS1
echo READY >&3
while read -r length; do
  head -c "$length" >/tmp/script
  sh -e /tmp/script >/tmp/said 2>&1 3>&- </dev/null
  status=$?
  echo "DONE $status $(stat -c %s /tmp/said)" >&3
  cat /tmp/said >&3
done
"#;

/// A disk that a guest has besides its own, kept in a file.
pub enum Drive<'a> {
    /// Flash.
    Nvme(&'a Path),
    /// A disk that rotates; it is one of the first six.
    Sata(&'a Path),
}

/// A running guest; it ends when it is dropped.
pub struct Linux {
    child: Child,
    console: PathBuf,
    agent: BufReader<UnixStream>,
    _folder: Folder,
}

impl Linux {
    /// Boots one and waits until it takes scripts.
    pub fn boot() -> Linux {
        Linux::boot_with(&[], &[])
    }

    /// As [`Linux::boot`], with these files of this machine at those places of the guest, and with more disks.
    pub fn boot_with(files: &[(&Path, &str)], drives: &[Drive<'_>]) -> Linux {
        let (folder, kernel) = (Folder::new(), Kernel::open());
        let root = folder.join("root");
        for name in ["bin", "proc", "dev", "guest"] {
            fs::create_dir_all(root.join(name)).expect("the folder can be written");
        }
        fs::copy("/bin/busybox", root.join("bin/busybox")).expect("busybox-static is installed");
        std::os::unix::fs::symlink("busybox", root.join("bin/sh")).expect("a link can be made");
        kernel.put_modules(&["virtio_pci", "virtio_blk", "ext4", "crc32c_generic"], &root.join("modules"));
        for (name, text) in [("init", INIT), ("agent", AGENT)] {
            fs::write(root.join(name), text).expect("the folder can be written");
        }
        crate::tool::tool("chmod").arg("755").arg(root.join("agent")).ok();
        for (from, to) in files {
            let to = root.join("more").join(to.trim_start_matches('/'));
            fs::create_dir_all(to.parent().expect("has a folder")).expect("the folder can be written");
            fs::copy(from, to).unwrap_or_else(|error| panic!("{}: {error}", from.display()));
        }
        let (console, socket) = (folder.join("console"), folder.join("agent"));
        let mut command = Command::new("qemu-system-x86_64");
        command.args("-accel tcg,thread=multi -m 768 -smp 2 -nodefaults -nographic -no-reboot".split(' '));
        command.arg("-kernel").arg(kernel.image()).arg("-initrd").arg(kernel::pack(&root));
        command.args(["-append", kernel::COMMAND_LINE]);
        command.arg("-serial").arg(format!("file:{}", console.display()));
        command.arg("-serial").arg(format!("unix:{},server=on,wait=off", socket.display()));
        let disk = kernel.folder().join("root.ext4");
        assert!(disk.exists(), "{} is missing: scripts/guest-root makes it", disk.display());
        command.arg("-drive").arg(format!("file={},format=raw,if=virtio,snapshot=on", disk.display()));
        command.args(["-netdev", "user,id=net", "-device", "virtio-net-pci,netdev=net,romfile="]);
        command.args(["-device", "ich9-ahci,id=ahci"]);
        for (number, drive) in drives.iter().enumerate() {
            let (file, device) = match drive {
                Drive::Nvme(file) => (file, "nvme".to_owned()),
                Drive::Sata(file) => (file, format!("ide-hd,bus=ahci.{number},rotation_rate=7200")),
            };
            command.arg("-drive").arg(format!("file={},format=raw,if=none,id=drive{number}", file.display()));
            command.arg("-device").arg(format!("{device},serial=SERIAL{number},drive=drive{number}"));
        }
        let child = command.stdin(Stdio::null()).spawn().expect("qemu runs");
        let agent = wait_at_most(BOOT_PATIENCE, "the guest's serial line", || UnixStream::connect(&socket).ok());
        agent.set_read_timeout(Some(BOOT_PATIENCE)).expect("it is no zero");
        let mut guest = Linux { child, console, agent: BufReader::new(agent), _folder: folder };
        let first = guest.line();
        assert_eq!(first, "READY", "the guest says something else");
        guest
    }

    /// Runs a script to its end; its exit status and all that it wrote.
    pub fn try_run(&mut self, script: &str) -> (i32, String) {
        write!(self.agent.get_mut(), "{}\n{script}", script.len()).expect("the guest takes scripts");
        let answer = self.line();
        let mut words = answer.strip_prefix("DONE ").unwrap_or_else(|| panic!("no answer: {answer}")).split(' ');
        let mut number = || words.next().and_then(|word| word.parse::<usize>().ok()).expect("two numbers follow");
        let (status, len) = (number(), number());
        let mut said = vec![0; len];
        self.agent.read_exact(&mut said).expect("the guest says what it announced");
        (status as i32, String::from_utf8_lossy(&said).into_owned())
    }

    /// Runs a script; it has to succeed. What it wrote.
    pub fn run(&mut self, script: &str) -> String {
        let (status, said) = self.try_run(script);
        assert_eq!(status, 0, "{script}\n{said}\n{}", self.last_of_console());
        said
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        let read = self.agent.read_line(&mut line);
        assert!(matches!(read, Ok(1..)), "the guest is silent: {read:?}\n{}", self.last_of_console());
        line.trim_end().to_owned()
    }

    fn last_of_console(&self) -> String {
        let log = String::from_utf8_lossy(&fs::read(Path::new(&self.console)).unwrap_or_default()).into_owned();
        let lines: Vec<_> = log.lines().collect();
        lines[lines.len().saturating_sub(40)..].join("\n")
    }
}

impl Drop for Linux {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
