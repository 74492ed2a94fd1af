//! An unpacked kernel package, and the parts of a guest's boot image.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::tool::tool;

/// Timeout of a boot: 5 to 15 s on an emulated CPU, several times that on a busy machine.
pub const BOOT_TIMEOUT: Duration = Duration::from_secs(300);

/// Command line of a guest's kernel. On a busy machine the emulated timer may fail the kernel's timer check, so that
/// check is off.
pub const COMMAND_LINE: &str = "console=ttyS0 quiet panic=-1 mitigations=off no_timer_check";

/// An unpacked kernel package.
pub struct Kernel {
    folder: PathBuf,
    version: String,
}

impl Kernel {
    /// The package that `scripts/guest-kernel` has unpacked.
    pub fn open() -> Kernel {
        let folder = std::env::var_os("HOTSET_GUEST").map(PathBuf::from);
        let folder = folder.expect(
            "HOTSET_GUEST names an unpacked kernel package: run `make torture`, or see docs/develop/testing.md",
        );
        let version = only_entry(&folder.join("lib/modules"));
        Kernel { folder, version }
    }

    /// Folder of the unpacked package.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Path of the kernel image.
    pub fn image(&self) -> PathBuf {
        self.folder.join(format!("boot/vmlinuz-{}", self.version))
    }

    /// Copies modules to `to`, with their dependencies, named in load order.
    pub fn put_modules(&self, names: &[&str], to: &Path) {
        let mut modules: Vec<PathBuf> = Vec::new();
        for name in names {
            let show =
                tool("modprobe").arg("-d").arg(&self.folder).args("--show-depends -S").arg(&self.version).arg(name);
            for path in show.ok().lines().filter_map(|line| line.strip_prefix("insmod ")) {
                let path = PathBuf::from(path.trim());
                if !modules.contains(&path) {
                    modules.push(path);
                }
            }
        }
        fs::create_dir_all(to).expect("the folder can be written");
        for (index, module) in modules.iter().enumerate() {
            let name = module.file_name().expect("a module is a file").to_string_lossy().into_owned();
            let to = to.join(format!("{index:02}-{name}"));
            fs::copy(module, to).unwrap_or_else(|error| panic!("{}: {error}", module.display()));
        }
    }
}

/// Packs `root`, whose `init` is made executable, into an initramfs beside it.
pub fn pack(root: &Path) -> PathBuf {
    tool("chmod").arg("755").arg(root.join("init")).ok();
    tool("sh").arg("-c").arg("find . | cpio --quiet -o -H newc > ../initramfs").within(root).ok();
    root.with_file_name("initramfs")
}

fn only_entry(folder: &Path) -> String {
    let mut entries = fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let entry = entries.next().expect("the kernel package has modules").expect("a readable folder");
    entry.file_name().to_string_lossy().into_owned()
}
