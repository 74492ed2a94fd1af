//! The files of `packaging/libvirt`: checked against libvirt's schemas, and, in the long form, started by libvirt's own
//! driver with QEMU.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use e2e::client::Client;
use e2e::daemon::{text_of, wait_at_most, wait_for};
use e2e::fixture::Fixture;
use e2e::folder::Folder;
use e2e::kernel::{self, BOOT_TIMEOUT, Kernel};
use e2e::tool::tool;

const MIB: u64 = 1 << 20;
/// The user of libvirt and QEMU where the test runs as root: another user than the daemon's, as in production. `nobody`
/// and `nogroup` of Debian.
const NOBODY: u32 = 65534;

/// Exercises the disk like a guest, and prints the outcome.
const INIT: &str = r#"#!/bin/sh
/bin/busybox --install -s /bin
mount -t proc proc /proc
mount -t devtmpfs devtmpfs /dev
for module in /modules/*; do insmod $module; done
echo "GUEST-SIZE $(blockdev --getsize64 /dev/vda)"
[ "$(dd if=/dev/vda bs=1M skip=1 count=1 2>/dev/null | tr -d r | wc -c)" = 0 ] && echo GUEST-READ
dd if=/dev/zero bs=1M count=1 2>/dev/null | tr '\0' w |
  dd of=/dev/vda bs=1M seek=2 iflag=fullblock conv=fsync 2>/dev/null && echo GUEST-WROTE
poweroff -f
"#;

fn packaged(file: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/libvirt").join(file);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// A guest with this disk and the elements it requires.
fn domain(disk: &str, memory_backing: &str, boot: &str, console: &str) -> String {
    format!(
        "<domain type='qemu'>\n<name>hotset-test</name>\n<memory unit='MiB'>256</memory>\n{memory_backing}\n\
         <os><type arch='x86_64' machine='q35'>hvm</type>{boot}</os>\n<features><acpi/></features>\n<devices>\n{disk}\n\
         <serial type='file'><source path='{console}'/></serial>\n<memballoon model='none'/>\n</devices>\n</domain>\n"
    )
}

/// The two front ends: name, disk element, and the required element for the guest's memory.
fn front_ends() -> [(&'static str, String, String); 2] {
    let vhost_user = ("vhost-user", packaged("vhost-user-disk.xml"), packaged("vhost-user-memory.xml"));
    [("nbd", packaged("nbd-disk.xml"), String::new()), vhost_user]
}

#[test]
fn libvirt_disks_match_its_schemas() {
    let folder = Folder::new();
    let file = folder.join("domain.xml");
    let validate = || tool("virt-xml-validate").arg(&file).arg("domain");
    for (front_end, disk, memory) in front_ends() {
        let domain = domain(&disk, &memory, "", "/dev/null");
        fs::write(&file, &domain).expect("the folder can be written");
        validate().ok();
        // A schema that accepts anything would have accepted the valid file as well.
        fs::write(&file, domain.replace("<source", "<sauce").replace("</source", "</sauce"))
            .expect("the file can be written");
        let output = validate().fails();
        assert!(output.contains("fails to validate"), "{front_end}: {output}");
    }
}

/// Elements of a domain that boot a kernel with an initramfs running [`INIT`]. Both lie in the folder, readable for
/// QEMU's user.
fn boot(folder: &Folder) -> String {
    let kernel = Kernel::open();
    let root = folder.join("root");
    for name in ["bin", "proc", "dev"] {
        fs::create_dir_all(root.join(name)).expect("the folder can be written");
    }
    fs::copy("/bin/busybox", root.join("bin/busybox")).expect("busybox-static is installed");
    std::os::unix::fs::symlink("busybox", root.join("bin/sh")).expect("a link can be created");
    kernel.put_modules(&["virtio_pci", "virtio_blk"], &root.join("modules"));
    fs::write(root.join("init"), INIT).expect("the folder can be written");
    let image = folder.join("kernel");
    fs::copy(kernel.image(), &image).expect("the kernel package has a kernel");
    format!(
        "<kernel>{}</kernel><initrd>{}</initrd><cmdline>{}</cmdline>",
        image.display(),
        kernel::pack(&root).display(),
        kernel::COMMAND_LINE
    )
}

/// A libvirtd of the test's own, with all its files in one folder; it ends with its guest when dropped.
struct Libvirt {
    child: Child,
    root: PathBuf,
}

impl Libvirt {
    fn start(folder: &Folder) -> Libvirt {
        let root = folder.join("libvirt");
        let config = root.join("config/libvirt");
        fs::create_dir_all(&config).expect("the folder can be written");
        // Otherwise libvirtd starts another daemon for QEMU's output.
        fs::write(config.join("qemu.conf"), "stdio_handler = \"file\"\n").expect("the folder can be written");
        if is_root() {
            tool("chown").args(&format!("-R {NOBODY}:{NOBODY}")).arg(&root).ok();
            fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755))
                .expect("the file belongs to this user");
        }
        let out = fs::File::create(folder.join("libvirtd.log")).expect("the folder can be written");
        let mut command = as_nobody("libvirtd", &root);
        command.arg("--pid-file").arg(root.join("pid")).stdin(Stdio::null());
        let command = command.stdout(out.try_clone().expect("a descriptor is left")).stderr(out);
        let libvirt = Libvirt { child: command.spawn().expect("libvirtd runs"), root };
        wait_for("libvirtd", || libvirt.virsh(&["list"]).status.success().then_some(()));
        libvirt
    }

    fn virsh(&self, args: &[&str]) -> Output {
        as_nobody("virsh", &self.root).args(["--connect", "qemu:///session"]).args(args).output().expect("virsh runs")
    }
}

impl Drop for Libvirt {
    fn drop(&mut self) {
        // After a failed test the guest still runs.
        self.virsh(&["destroy", "hotset-test"]);
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A libvirt program with all its paths in this folder.
fn as_nobody(program: &str, root: &Path) -> Command {
    let mut command = Command::new(if is_root() { "setpriv" } else { "env" });
    if is_root() {
        command.args([&format!("--reuid={NOBODY}"), &format!("--regid={NOBODY}"), "--clear-groups"]);
    }
    let path = std::env::var("PATH").unwrap_or_default();
    // A virsh that finds no daemon yet must not start another one.
    command.arg(program).env("LIBVIRT_AUTOSTART", "0").env("HOME", root).env("PATH", format!("/usr/sbin:{path}"));
    for (name, folder) in
        [("RUNTIME_DIR", "run"), ("CONFIG_HOME", "config"), ("CACHE_HOME", "cache"), ("DATA_HOME", "data")]
    {
        command.env(format!("XDG_{name}"), root.join(folder));
    }
    command
}

/// Starts a guest with libvirt, waits until the guest has powered itself off, and returns its console output.
fn run_guest(folder: &Folder, disk: &str, memory: &str) -> String {
    let libvirt = Libvirt::start(folder);
    let (file, console) = (folder.join("domain.xml"), libvirt.root.join("console"));
    fs::write(&file, domain(disk, memory, &boot(folder), &console.to_string_lossy())).expect("the file can be written");
    let created = libvirt.virsh(&["create", &file.to_string_lossy()]);
    assert!(created.status.success(), "{}", text_of(&created));
    let output = || fs::read_to_string(&console).unwrap_or_default();
    wait_at_most(BOOT_TIMEOUT, "the guest's end", || {
        let listed = libvirt.virsh(&["list", "--name"]);
        (listed.status.success() && listed.stdout.trim_ascii().is_empty()).then_some(())
    });
    assert!(output().contains("GUEST-WROTE"), "{}", output());
    output()
}

fn is_root() -> bool {
    fs::metadata("/proc/self").expect("Linux has it").uid() == 0
}

/// A fixture with the volume that the packaged files name.
fn fixture() -> Fixture {
    let mut fixture = Fixture::new();
    fixture.add_volume("web01", 64 * MIB, "");
    if is_root() {
        fixture.nbd = "socket_owner = \"nobody\"".to_owned();
    }
    fixture
}

/// Checks that a guest on that disk finds the data written before, and that its own writes are in the volume. The disk
/// element names `packaged_socket`, which `socket` replaces.
fn check_guest_io(fixture: &Fixture, (packaged_socket, socket): (&str, PathBuf), disk: &str, memory: &str) {
    assert!(disk.contains(packaged_socket), "{disk}");
    let daemon = fixture.start();
    let mut client = Client::connect(&fixture.endpoint(), "web01").expect("the volume is served");
    client.write(MIB, &vec![b'r'; MIB as usize]).expect("the write succeeds");
    let console = run_guest(&fixture.folder, &disk.replace(packaged_socket, &socket.to_string_lossy()), memory);
    for expected in [&format!("GUEST-SIZE {}", 64 * MIB), "GUEST-READ"] {
        assert!(console.contains(expected), "{expected}:\n{console}");
    }
    assert!(client.read(2 * MIB, MIB as usize).expect("the read succeeds") == vec![b'w'; MIB as usize]);
    drop(client);
    daemon.stop();
}

#[test]
#[ignore = "boots a guest: `make torture`"]
fn libvirt_starts_a_guest_on_a_volume_over_nbd() {
    let [(_, disk, memory), _] = front_ends();
    let fixture = fixture();
    let socket = fixture.socket();
    check_guest_io(&fixture, ("/run/hotset/nbd.sock", socket), &disk, &memory);
}

#[test]
#[ignore = "boots a guest: `make torture`"]
fn libvirt_starts_a_guest_on_a_volume_over_vhost_user() {
    let [_, (_, disk, memory)] = front_ends();
    let mut fixture = fixture();
    let directory = fixture.folder.join("vhost");
    let owner = if is_root() { "socket_owner = \"nobody\"\n" } else { "" };
    fixture.tables = format!("[vhost_user]\ndirectory = {directory:?}\n{owner}");
    check_guest_io(&fixture, ("/run/hotset/vhost/web01.sock", directory.join("web01.sock")), &disk, &memory);
}
