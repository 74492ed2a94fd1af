//! Identity of a file as storage: its file system, inode and birth time. A copy of the file differs; a renamed file
//! does not.

use std::ffi::c_ulong;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;

use super::disk_open::statfs;

type Uuid = [u8; 16];

/// Identities of an open file: the current one, then the ones that earlier versions assigned.
///
/// The identity contains the file system's UUID. On XFS, F2FS and others `f_fsid` is derived from the device number,
/// which may change at a reboot. On Btrfs it is stable, and distinguishes subvolumes, several of which may have an
/// inode with the same number and birth time.
pub(super) fn file_identities(file: &File, stat: &libc::statx) -> Vec<String> {
    let statfs = statfs(file);
    let is_btrfs = statfs.is_some_and(|stat| stat.f_type as u64 == libc::BTRFS_SUPER_MAGIC as u64);
    // `f_fsid` consists of two ints, whose fields libc hides.
    let fsid = statfs.map_or([0u8; 8], |stat| {
        // SAFETY: `fsid_t` is eight bytes without padding.
        unsafe { std::mem::transmute::<libc::fsid_t, [u8; 8]>(stat.f_fsid) }
    });
    let uuid = if is_btrfs { None } else { uuid_of(file) };
    let birth =
        if stat.stx_mask & libc::STATX_BTIME == 0 { (0, 0) } else { (stat.stx_btime.tv_sec, stat.stx_btime.tv_nsec) };
    let fsid = u64::from_ne_bytes(fsid);
    if uuid.is_none() && fsid == 0 {
        return vec![identity_by_path(file, stat.stx_ino)];
    }
    identities(uuid, fsid, stat.stx_ino, birth)
}

/// The identity of a file whose file system has none, as on FUSE: two such file systems may use one inode number.
fn identity_by_path(file: &File, inode: u64) -> String {
    let path = std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd()));
    format!("file:{}:{inode}", path.unwrap_or_default().display())
}

fn identities(uuid: Option<Uuid>, fsid: u64, inode: u64, birth: (i64, u32)) -> Vec<String> {
    let identity = |filesystem: String| format!("file:{filesystem}:{inode}:{}.{:09}", birth.0, birth.1);
    let by_uuid = uuid.map(|uuid| identity(uuid.iter().map(|byte| format!("{byte:02x}")).collect()));
    by_uuid.into_iter().chain([identity(format!("{fsid:016x}"))]).collect()
}

/// UUID of the file's file system.
fn uuid_of(file: &File) -> Option<Uuid> {
    let uuid = uuid_by_ioctl(file).or_else(|| uuid_by_udev(file.metadata().ok()?.dev()));
    uuid.filter(|uuid| *uuid != Uuid::default())
}

/// UUID from an ioctl of the file system: a generic one since Linux 6.9, a separate one per file system before.
fn uuid_by_ioctl(file: &File) -> Option<Uuid> {
    const FS_IOC_GETFSUUID: c_ulong = 0x8011_1500;
    const EXT4_IOC_GETFSUUID: c_ulong = 0x8008_662c;
    const XFS_IOC_FSGEOMETRY_V1: c_ulong = 0x8070_5864;
    // The request, the offset of the UUID in the result, and the result's first byte on input.
    let requests: [(c_ulong, usize, u8); 3] =
        [(FS_IOC_GETFSUUID, 1, 0), (EXT4_IOC_GETFSUUID, 8, 16), (XFS_IOC_FSGEOMETRY_V1, 64, 0)];
    requests.into_iter().find_map(|(request, offset, first_byte)| {
        let mut result = IoctlResult { bytes: [0; 256] };
        result.bytes[0] = first_byte;
        // SAFETY: each request writes at most 112 bytes; the result is larger, and aligned for each of them.
        let status = unsafe { libc::ioctl(file.as_raw_fd(), request as libc::Ioctl, &raw mut result) };
        let is_valid = status == 0 && (request != FS_IOC_GETFSUUID || result.bytes[0] == 16);
        is_valid.then(|| result.bytes[offset..offset + 16].try_into().expect("sixteen bytes"))
    })
}

#[repr(C, align(8))]
struct IoctlResult {
    bytes: [u8; 256],
}

/// UUID that udev has found on the device.
fn uuid_by_udev(device: u64) -> Option<Uuid> {
    let links = std::fs::read_dir("/dev/disk/by-uuid").ok()?;
    let link = links.flatten().find(|link| std::fs::metadata(link.path()).is_ok_and(|meta| meta.rdev() == device))?;
    parse_uuid(link.file_name().to_str()?)
}

fn parse_uuid(text: &str) -> Option<Uuid> {
    let digits: String = text.chars().filter(|c| *c != '-').collect();
    let number = u128::from_str_radix(&digits, 16).ok().filter(|_| digits.len() == 32)?;
    Some(number.to_be_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identity_has_the_uuid_and_then_the_former_fsid_form() {
        let uuid = parse_uuid("0123abcd-0123-4567-89ab-0123456789ab");
        let new = "file:0123abcd0123456789ab0123456789ab:7:5.000000009";
        assert_eq!(identities(uuid, 0x801, 7, (5, 9)), [new, "file:0000000000000801:7:5.000000009"]);
        assert_eq!(identities(uuid, 0x811, 7, (5, 9))[0], new, "another device number is no other file");
        assert_eq!(identities(None, 0x801, 7, (5, 9)), ["file:0000000000000801:7:5.000000009"]);
        assert_eq!(parse_uuid("ABCD-1234"), None, "no UUID of 16 bytes");
    }

    #[test]
    fn uuid_of_a_file_system_is_stable_and_not_nil() {
        let file = tempfile::tempfile().expect("a temporary file");
        let uuid = uuid_of(&file);
        assert_eq!(uuid, uuid_of(&tempfile::tempfile().expect("another one")));
        assert_ne!(uuid, Some(Uuid::default()));
    }
}
