//! Locality of an owner record: whether this machine has written it, and in this boot.
//!
//! A state directory can be copied: a backup, a cloned machine, `cp` to another machine. The record of the copy names a
//! living owner that is no predecessor of this process. Only a record whose lock file is this very file in this very
//! boot names clients of processes that this one knows to have ended.

use std::fmt;
use std::fs::{File, read_to_string};
use std::io;
use std::os::unix::fs::MetadataExt;

/// File with the ID of the boot.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";
/// File with the ID of the machine; absent in some containers.
const MACHINE_ID: &str = "/etc/machine-id";

/// Identifies the lock file of a record among all machines and boots.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LockFileId {
    /// The boot of the kernel.
    pub boot: String,
    /// The installation of the system; `-` if it has no ID.
    pub machine: String,
    /// Number of the file system's device. It may be another one after a boot.
    pub device: u64,
    /// The file's inode.
    pub inode: u64,
}

/// Locality of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Locality {
    /// Written under this lock file in this boot: the processes that it names have ended, since they held the file's
    /// lock.
    SameBoot,
    /// Written under this lock file before a boot of this machine. A clone of the machine looks the same, so an owner
    /// in it may live.
    EarlierBoot,
    /// A copy.
    Copied,
}

impl LockFileId {
    /// The ID of an open lock file.
    pub fn of(lock: &File) -> io::Result<LockFileId> {
        let metadata = lock.metadata()?;
        let word = |text: String| text.split_whitespace().next().unwrap_or("-").to_owned();
        Ok(LockFileId {
            boot: word(read_to_string(BOOT_ID)?),
            machine: word(read_to_string(MACHINE_ID).unwrap_or_default()),
            device: metadata.dev(),
            inode: metadata.ino(),
        })
    }

    /// The ID in its text form.
    pub fn parse(text: &str) -> Option<LockFileId> {
        let mut words = text.split(' ');
        let [boot, machine] = [words.next()?.to_owned(), words.next()?.to_owned()];
        let [device, inode] = [words.next()?.parse().ok()?, words.next()?.parse().ok()?];
        Some(LockFileId { boot, machine, device, inode })
    }

    /// The locality of a record that was written under `self`, for a process that has the lock file `now`.
    pub fn locality(&self, now: &LockFileId) -> Locality {
        if self == now {
            Locality::SameBoot
        } else if self.boot != now.boot && self.machine == now.machine && self.inode == now.inode {
            Locality::EarlierBoot
        } else {
            Locality::Copied
        }
    }
}

impl fmt::Display for LockFileId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {} {}", self.boot, self.machine, self.device, self.inode)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id() -> LockFileId {
        LockFileId { boot: "b1".to_owned(), machine: "m1".to_owned(), device: 5, inode: 7 }
    }

    #[test]
    fn only_the_same_file_in_the_same_boot_is_local() {
        assert_eq!(LockFileId::parse(&id().to_string()), Some(id()));
        assert_eq!(LockFileId::parse("b1 m1 5"), None);
        assert_eq!(id().locality(&id()), Locality::SameBoot);
        let rebooted = LockFileId { boot: "b2".to_owned(), device: 6, ..id() };
        assert_eq!(id().locality(&rebooted), Locality::EarlierBoot);
        for copy in [
            LockFileId { inode: 8, ..id() },
            LockFileId { device: 6, ..id() },
            LockFileId { machine: "m2".to_owned(), ..id() },
            LockFileId { boot: "b2".to_owned(), machine: "m2".to_owned(), ..id() },
            LockFileId { boot: "b2".to_owned(), inode: 8, ..id() },
        ] {
            assert_eq!(id().locality(&copy), Locality::Copied, "{copy}");
        }
    }
}
