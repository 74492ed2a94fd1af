//! The file of an image's owner record: locked by one process at a time, and replaced atomically.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};

use super::locality::LockFileId;
use super::owner_record::{KnownRecord, OwnerRecord};

/// Time for which another process of this machine may still hold the file: that of a daemon that has just ended.
const WAIT_MAX: Duration = Duration::from_secs(6);
/// Longest name of a file without its ending and a hash; file systems have 255 bytes.
const NAME_BYTES_MAX: usize = 200;
/// Pause between two attempts.
const PAUSE: Duration = Duration::from_millis(50);

/// The file of one image. While it is open, no other `hotset-rbd` of this state directory acquires the image's lock.
pub struct RecordFile {
    path: PathBuf,
    id: LockFileId,
    /// Held for the life of the process.
    _lock: File,
}

impl RecordFile {
    /// Locks the file of the image with this identity; `None` if another process holds it for too long, or if `wait`
    /// returns false. It is called before each pause.
    pub fn open(folder: &Path, identity: &str, mut wait: impl FnMut() -> bool) -> io::Result<Option<RecordFile>> {
        DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
        let name = file_name(identity);
        let mut options = OpenOptions::new();
        let lock =
            options.create(true).truncate(false).write(true).mode(0o600).open(folder.join(name.clone() + ".lock"))?;
        let started_at = Instant::now();
        loop {
            match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => {
                    let id = LockFileId::of(&lock)?;
                    return Ok(Some(RecordFile { path: folder.join(name + ".owner"), id, _lock: lock }));
                }
                Err(rustix::io::Errno::WOULDBLOCK) if started_at.elapsed() < WAIT_MAX => {}
                Err(rustix::io::Errno::WOULDBLOCK) => return Ok(None),
                Err(rustix::io::Errno::INTR) => continue,
                Err(error) => return Err(error.into()),
            }
            if !wait() {
                return Ok(None);
            }
            std::thread::sleep(PAUSE);
        }
    }

    /// The record as it is now, while another process may hold the file; `None` as for [`RecordFile::read`].
    pub fn peek(folder: &Path, identity: &str) -> io::Result<Option<KnownRecord>> {
        let name = file_name(identity);
        match File::open(folder.join(name.clone() + ".lock")) {
            Ok(lock) => {
                RecordFile { path: folder.join(name + ".owner"), id: LockFileId::of(&lock)?, _lock: lock }.read()
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The ID of the lock file, for new records.
    pub fn id(&self) -> &LockFileId {
        &self.id
    }

    /// The record; `None` if there is none, or it is damaged.
    pub fn read(&self) -> io::Result<Option<KnownRecord>> {
        let record = match std::fs::read(&self.path) {
            Ok(bytes) => OwnerRecord::parse(&String::from_utf8_lossy(&bytes)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(error),
        };
        Ok(record.map(|record| KnownRecord { locality: record.written_under.locality(&self.id), record }))
    }

    /// Replaces the record durably.
    pub fn write(&self, record: &OwnerRecord) -> io::Result<()> {
        let next = self.path.with_extension("new");
        let mut file = File::create(&next)?;
        file.write_all(record.encode().as_bytes())?;
        file.sync_all()?;
        std::fs::rename(&next, &self.path)?;
        self.path.parent().map_or(Ok(()), |folder| File::open(folder)?.sync_all())
    }
}

/// The name of the files of an image. A namespace may be longer than a file name, so a hash ends a long one.
fn file_name(identity: &str) -> String {
    let name = identity.replace(['/', ':'], "_");
    if name.len() <= NAME_BYTES_MAX {
        return name;
    }
    // FNV-1a, 64 bits.
    let hash = identity
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3));
    format!("{}-{hash:016x}", &name[..name.floor_char_boundary(NAME_BYTES_MAX)])
}

#[cfg(test)]
mod tests {
    use super::super::locality::Locality;
    use super::*;

    #[test]
    fn images_of_long_namespaces_have_short_names_of_their_own() {
        let name = |image| file_name(&format!("rbd:f/1/{}/{image}", "n".repeat(300)));
        assert!(name("a").len() + ".owner".len() < 255 && name("a") != name("b"));
        assert_eq!(file_name("rbd:f/1/a"), "rbd_f_1_a");
    }

    #[test]
    fn record_is_read_back_and_a_second_process_is_kept_out() {
        let folder = tempfile::tempdir().expect("a folder can be created");
        let open = || RecordFile::open(folder.path(), "rbd:f/1/a", || true).expect("the folder can be written");
        let file = open().expect("no process holds it");
        assert_eq!(file.read().expect("it is readable"), None);
        let record = OwnerRecord {
            lineage: 1,
            reason: String::new(),
            token: 2,
            address: "a:0/1".to_owned(),
            released: Some(5),
            ..OwnerRecord::unowned(file.id().clone())
        };
        file.write(&record).expect("it can be written");
        let lock = File::open(folder.path().join("rbd_f_1_a.lock")).expect("it exists");
        assert!(flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err());
        let mut waits = 0;
        let stopped = RecordFile::open(folder.path(), "rbd:f/1/a", || {
            waits += 1;
            waits < 3
        });
        assert!(stopped.expect("the folder can be written").is_none());
        assert_eq!(waits, 3, "a stop of the daemon ends the wait");
        drop(file);
        let known = Some(KnownRecord { record, locality: Locality::SameBoot });
        assert_eq!(open().expect("no process holds it").read().expect("it is readable"), known);
        let copy = folder.path().join("copy");
        std::fs::create_dir(&copy).expect("it can be created");
        std::fs::copy(folder.path().join("rbd_f_1_a.owner"), copy.join("rbd_f_1_a.owner")).expect("it can be copied");
        let copied = RecordFile::open(&copy, "rbd:f/1/a", || true).expect("it can be written").expect("it is free");
        let locality = copied.read().expect("it is readable").map(|known| known.locality);
        assert_eq!(locality, Some(Locality::Copied), "a copied record names no processes of this directory");
        std::fs::write(folder.path().join("rbd_f_1_a.owner"), "junk").expect("it can be written");
        assert_eq!(open().expect("no process holds it").read().expect("it is readable"), None);
    }
}
