//! A Debian guest whose own kernel is a client, and which runs scripts of a test.
//!
//! QEMU emulates the CPU, so no KVM is needed. `scripts/guest-root` creates the disk. Writes to it are discarded when
//! the guest ends, except on an installed machine, which has systemd and may reboot. A separate serial line carries
//! scripts to the guest. The guest reaches this machine's loopback as 10.0.2.2.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::daemon::wait_at_most;
use crate::folder::Folder;
use crate::kernel::{self, BOOT_TIMEOUT, Kernel};

/// Address of this machine's loopback in the guest.
pub const HOST: &str = "10.0.2.2";

/// Loads the modules that the disk needs and switches to its root.
const INIT: &str = r#"#!/bin/sh
/bin/busybox --install -s /bin
mount -t proc proc /proc
mount -t devtmpfs devtmpfs /dev
for module in /modules/*; do insmod $module; done
mount -t ext4 -o noatime /dev/vda /guest
mount -t tmpfs tmpfs /guest/run
cp /agent /guest/run/agent
[ ! -d /more ] || cp -a /more/. /guest/
umount /proc
mount --move /dev /guest/dev
exec switch_root /guest /run/agent
"#;

/// Replaces the last line on an installed machine: systemd runs the agent after all other units. A machine without an
/// ID would enable all its units as on a first boot.
const INIT_INSTALLED: &str = r#"
echo 5a1e0000000000000000000000000000 >/guest/etc/machine-id
units=/guest/run/systemd/system
mkdir -p $units/multi-user.target.wants
cat >$units/agent.service <<'UNIT'
[Unit]
After=multi-user.target
[Service]
Type=idle
ExecStart=/run/agent
UNIT
ln -s ../agent.service $units/multi-user.target.wants/
exec switch_root /guest /lib/systemd/systemd
"#;

const AGENT_HEAD: &str = r#"#!/bin/sh
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root
"#;

/// Preparations that a service manager makes on an installed machine.
const PREPARE: &str = r#"
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
"#;

/// Replies to each script with `DONE`, its exit status, the length of its output, and the output.
const AGENT: &str = r#"
stty -F /dev/ttyS1 raw -echo
exec </dev/ttyS1 3>/dev/ttyS1
echo READY >&3
while read -r length; do
  head -c "$length" >/tmp/script
  sh -e /tmp/script >/tmp/output 2>&1 3>&- </dev/null
  status=$?
  echo "DONE $status $(stat -c %s /tmp/output)" >&3
  cat /tmp/output >&3
done
"#;

/// An additional disk of a guest.
#[derive(Clone)]
pub enum Drive {
    /// An NVMe SSD.
    Nvme(PathBuf),
    /// A rotating SATA disk; it must be among the first six.
    Sata(PathBuf),
    /// A paravirtual disk on an NBD export, by its URI: QEMU is the client.
    Nbd(String),
}

/// A running guest, ended when dropped.
pub struct Linux {
    child: Child,
    console: PathBuf,
    monitor: PathBuf,
    agent: BufReader<UnixStream>,
    _folder: Folder,
}

/// Additional hardware and files of a guest.
#[derive(Default)]
pub struct Machine {
    /// Files of this machine, with their paths in the guest.
    pub files: Vec<(PathBuf, String)>,
    /// Emulated drives.
    pub drives: Vec<Drive>,
    /// Sockets of vhost-user disks, which become `/dev/vdb` and so on.
    pub vhost_user: Vec<PathBuf>,
    /// True if the guest may be migrated; its own disk is then read-only.
    pub may_migrate: bool,
    /// Socket on which the guest awaits an incoming migration.
    pub incoming: Option<PathBuf>,
    /// URI of an export with the content of [`template`], from which the guest boots; writes to it stay.
    pub root_uri: Option<String>,
    /// Disk of an installed machine, from which systemd boots; writes to it stay; see [`installed`].
    pub installed: Option<PathBuf>,
}

/// Creates the disk of a freshly installed machine.
pub fn installed(disk: &Path) {
    let template = Kernel::open().folder().join("systemd.ext4");
    assert!(template.exists(), "{} is missing: `scripts/guest-root systemd` creates it", template.display());
    crate::tool::tool("cp").arg("--sparse=always").arg(template).arg(disk).ok();
}

/// The disk of a guest without systemd.
pub fn template() -> PathBuf {
    let disk = Kernel::open().folder().join("root.ext4");
    assert!(disk.exists(), "{} is missing: `scripts/guest-root` creates it", disk.display());
    disk
}

/// Number of queues of each vhost-user disk, and of CPUs, which use one queue each.
pub const QUEUES: usize = 4;

impl Linux {
    /// Boots a guest and waits until it accepts scripts.
    pub fn boot() -> Linux {
        Linux::boot_as(&Machine::default())
    }

    /// Boots a guest with files copied to the given paths of the guest, and with additional drives.
    pub fn boot_with(files: &[(&Path, &str)], drives: &[Drive]) -> Linux {
        let files = files.iter().map(|(from, to)| (from.to_path_buf(), (*to).to_owned())).collect();
        Linux::boot_as(&Machine { files, drives: drives.to_vec(), ..Machine::default() })
    }

    /// Boots a guest of this hardware. A guest that awaits a migration does not boot.
    pub fn boot_as(machine: &Machine) -> Linux {
        let (folder, kernel) = (Folder::new(), Kernel::open());
        let root = folder.join("root");
        for name in ["bin", "proc", "dev", "guest"] {
            fs::create_dir_all(root.join(name)).expect("the folder can be written");
        }
        fs::copy("/bin/busybox", root.join("bin/busybox")).expect("busybox-static is installed");
        std::os::unix::fs::symlink("busybox", root.join("bin/sh")).expect("a link can be created");
        kernel.put_modules(&["virtio_pci", "virtio_blk", "ext4", "crc32c_generic"], &root.join("modules"));
        let init = if machine.may_migrate { INIT.replace("-o noatime", "-o ro") } else { INIT.to_owned() };
        let (init, prepare) = match machine.installed {
            Some(_) => (init.replace("\nexec switch_root /guest /run/agent\n", INIT_INSTALLED), ""),
            None => (init, PREPARE),
        };
        let agent = format!("{AGENT_HEAD}{prepare}{AGENT}");
        for (name, text) in [("init", &init), ("agent", &agent)] {
            fs::write(root.join(name), text).expect("the folder can be written");
        }
        crate::tool::tool("chmod").arg("755").arg(root.join("agent")).ok();
        for (from, to) in &machine.files {
            let to = root.join("more").join(to.trim_start_matches('/'));
            fs::create_dir_all(to.parent().expect("the path has a parent")).expect("the folder can be written");
            fs::copy(from, to).unwrap_or_else(|error| panic!("{}: {error}", from.display()));
        }
        let (console, socket, monitor) = (folder.join("console"), folder.join("agent"), folder.join("monitor"));
        let mut command = Command::new("qemu-system-x86_64");
        command.args("-accel tcg,thread=multi -nodefaults -nographic -no-reboot".split(' '));
        command.arg("-monitor").arg(format!("unix:{},server=on,wait=off", monitor.display()));
        if let Some(from) = &machine.incoming {
            command.arg("-incoming").arg(format!("unix:{}", from.display()));
        }
        // An installed machine runs all services of the distribution.
        command.args(["-m", if machine.installed.is_some() { "1536" } else { "768" }]);
        let processors = if machine.vhost_user.is_empty() { 2 } else { QUEUES };
        command.args(["-smp", &processors.to_string()]);
        if !machine.vhost_user.is_empty() {
            command.args("-object memory-backend-memfd,id=mem,size=768M,share=on".split(' '));
            command.args("-machine q35,memory-backend=mem".split(' '));
        }
        command.arg("-kernel").arg(kernel.image()).arg("-initrd").arg(kernel::pack(&root));
        command.args(["-append", kernel::COMMAND_LINE]);
        command.arg("-serial").arg(format!("file:{}", console.display()));
        command.arg("-serial").arg(format!("unix:{},server=on,wait=off", socket.display()));
        let (disk, snapshot) = match (&machine.root_uri, &machine.installed) {
            (Some(uri), _) => (uri.clone(), "off"),
            (None, Some(disk)) => (disk.display().to_string(), "off"),
            (None, None) => (template().display().to_string(), "on"),
        };
        command.arg("-drive").arg(format!("file={disk},format=raw,if=none,id=root,snapshot={snapshot}"));
        command.args(["-device", "virtio-blk-pci,drive=root"]);
        command.args(["-netdev", "user,id=net", "-device", "virtio-net-pci,netdev=net,romfile="]);
        for (number, socket) in machine.vhost_user.iter().enumerate() {
            command.arg("-chardev").arg(format!("socket,id=v{number},path={},reconnect=1", socket.display()));
            command.args(["-device", &format!("vhost-user-blk-pci,chardev=v{number},num-queues={QUEUES}")]);
        }
        if machine.drives.iter().any(|drive| matches!(drive, Drive::Sata(_))) {
            command.args(["-device", "ich9-ahci,id=ahci"]);
        }
        for (number, drive) in machine.drives.iter().enumerate() {
            let (file, device) = match drive {
                Drive::Nvme(file) => (file.display().to_string(), "nvme".to_owned()),
                Drive::Sata(file) => {
                    (file.display().to_string(), format!("ide-hd,bus=ahci.{number},rotation_rate=7200"))
                }
                Drive::Nbd(uri) => (uri.clone(), "virtio-blk-pci".to_owned()),
            };
            command.arg("-drive").arg(format!("file={file},format=raw,cache=none,if=none,id=drive{number}"));
            command.arg("-device").arg(format!("{device},serial=SERIAL{number},drive=drive{number}"));
        }
        let child = command.stdin(Stdio::null()).spawn().expect("qemu runs");
        let agent = wait_at_most(BOOT_TIMEOUT, "the guest's serial line", || UnixStream::connect(&socket).ok());
        agent.set_read_timeout(Some(BOOT_TIMEOUT)).expect("a positive time");
        let mut guest = Linux { child, console, monitor, agent: BufReader::new(agent), _folder: folder };
        if machine.incoming.is_none() {
            let first = guest.read_line();
            assert_eq!(first, "READY", "unexpected first line of the guest");
        }
        guest
    }

    /// Sends a command to QEMU's monitor and returns its output.
    pub fn monitor(&self, command: &str) -> String {
        let mut monitor = UnixStream::connect(&self.monitor).expect("QEMU listens");
        monitor.set_read_timeout(Some(BOOT_TIMEOUT)).expect("a positive time");
        read_until_prompt(&mut monitor);
        writeln!(monitor, "{command}").expect("QEMU accepts commands");
        read_until_prompt(&mut monitor)
    }

    /// Waits for the end of a guest that reboots; QEMU does not restart it.
    pub fn wait_for_end(mut self) {
        wait_at_most(BOOT_TIMEOUT, "the guest's end", || self.child.try_wait().expect("QEMU is a child process"));
    }

    /// Process ID of QEMU.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Starts a background script in the guest.
    pub fn start_load(&mut self, script: &str) {
        self.run(&format!(
            "cat >/tmp/load <<'LOAD'\n{script}\nLOAD\nrm -f /tmp/load.status\n\
             setsid sh -c 'sh -e /tmp/load; echo $? >/tmp/load.status' >/tmp/load.output 2>&1 </dev/null &"
        ));
    }

    /// Waits for the end of the background script, which must succeed; returns its output.
    pub fn wait_for_load(&mut self) -> String {
        let (status, output) = self.try_run(
            "while ! [ -s /tmp/load.status ]; do sleep 0.2; done; cat /tmp/load.output; exit $(cat /tmp/load.status)",
        );
        assert_eq!(status, 0, "the load failed:\n{output}\n{}", self.run("dmesg | tail -n 40"));
        output
    }

    /// True while the background script runs.
    pub fn is_load_running(&mut self) -> bool {
        self.try_run("[ -s /tmp/load.status ]").0 != 0
    }

    /// Runs a script to its end; returns its exit status and its output.
    pub fn try_run(&mut self, script: &str) -> (i32, String) {
        write!(self.agent.get_mut(), "{}\n{script}", script.len()).expect("the guest accepts scripts");
        let reply = self.read_line();
        let mut words = reply.strip_prefix("DONE ").unwrap_or_else(|| panic!("unexpected reply: {reply}")).split(' ');
        let mut number = || words.next().and_then(|word| word.parse::<usize>().ok()).expect("two numbers");
        let (status, len) = (number(), number());
        let mut output = vec![0; len];
        self.agent.read_exact(&mut output).expect("the guest sends the announced output");
        (status as i32, String::from_utf8_lossy(&output).into_owned())
    }

    /// Runs a script, which must succeed; returns its output.
    pub fn run(&mut self, script: &str) -> String {
        let (status, output) = self.try_run(script);
        assert_eq!(status, 0, "{script}\n{output}\n{}", self.console_tail());
        output
    }

    fn read_line(&mut self) -> String {
        let mut line = String::new();
        let read = self.agent.read_line(&mut line);
        assert!(matches!(read, Ok(1..)), "the guest is silent: {read:?}\n{}", self.console_tail());
        line.trim_end().to_owned()
    }

    fn console_tail(&self) -> String {
        let log = String::from_utf8_lossy(&fs::read(Path::new(&self.console)).unwrap_or_default()).into_owned();
        let lines: Vec<_> = log.lines().collect();
        lines[lines.len().saturating_sub(40)..].join("\n")
    }
}

/// Reads the monitor's output up to its prompt.
fn read_until_prompt(monitor: &mut UnixStream) -> String {
    let (mut output, mut byte) = (Vec::new(), [0]);
    while !output.ends_with(b"(qemu) ") {
        monitor.read_exact(&mut byte).expect("QEMU sends output");
        output.push(byte[0]);
    }
    String::from_utf8_lossy(&output).into_owned()
}

impl Drop for Linux {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
