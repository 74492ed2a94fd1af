//! Recognises disks that belong to another storage stack: members of md, LVM, ZFS and others that are not active now.
//! An active one is in use, and cannot be opened.
//!
//! Such a disk has no content of its own, or one that its owner changes when it starts again: an array finds its
//! superblock at the end of an imported disk as before.

use seam::{BLOCK_BYTES, Block, Disk, DiskResult, Seam};

use crate::buffers::Buffers;
use crate::device::read_each;

/// A signature: bytes at a place that follows from the size of the disk.
struct Signature {
    /// A disk with this signature, for messages.
    name: &'static str,
    /// Byte offset of the area, from the size of the disk; `None` if the disk is too small.
    area: fn(u64) -> Option<u64>,
    /// Offset of the bytes in the area.
    offset: usize,
    /// Distance between two places in the area.
    stride: usize,
    /// Number of places in the area.
    count: usize,
    bytes: &'static [u8],
}

const KIB: u64 = 1 << 10;
const ZFS_LABEL: u64 = 256 * KIB;
const MD: &str = "a member of an md array";
const LVM: &str = "a physical volume of LVM";
const ZFS: &str = "a member of a ZFS pool";
const DRBD: &str = "a backing device of DRBD";

/// Bytes at a fixed offset.
const fn at(name: &'static str, area: fn(u64) -> Option<u64>, offset: usize, bytes: &'static [u8]) -> Signature {
    Signature { name, area, offset, stride: 0, count: 1, bytes }
}

/// The uberblocks of a ZFS label, whatever their size.
const fn zfs(area: fn(u64) -> Option<u64>, bytes: &'static [u8]) -> Signature {
    Signature { name: ZFS, area, offset: 0, stride: 1 << 10, count: 128, bytes }
}

/// Magic numbers of ZFS uberblocks, of either byte order.
const UBERBLOCK: [[u8; 8]; 2] = [0x00ba_b10c_u64.to_le_bytes(), 0x00ba_b10c_u64.to_be_bytes()];
/// Magic number and major version of md superblocks 1.x.
const MD_1: [u8; 8] = [0xfc, 0x4e, 0x2b, 0xa9, 1, 0, 0, 0];

/// All signatures. The areas are those of the programs' own documentation and of libblkid.
const SIGNATURES: &[Signature] = &[
    at(MD, start::<0>, 0, &MD_1),
    at(MD, start::<4096>, 0, &MD_1),
    // Version 1.0: at least 8 KiB before the end, at a multiple of 4 KiB.
    at(MD, |size| Some((size / 512).checked_sub(16)? / 8 * 8 * 512), 0, &MD_1),
    // Version 0.90: in the last whole 64 KiB.
    at(MD, md_90, 0, &[0xfc, 0x4e, 0x2b, 0xa9, 0, 0, 0, 0]),
    at(MD, md_90, 0, &[0xa9, 0x2b, 0x4e, 0xfc, 0, 0, 0, 0]),
    at("a member of an Intel RAID array", |size| size.checked_sub(4096), 3072, b"Intel Raid ISM Cfg Sig. "),
    at("a member of a DDF RAID array", |size| size.checked_sub(4096), 3584, &[0xde, 0x11, 0xde, 0x11]),
    Signature { name: LVM, area: start::<0>, offset: 0, stride: 512, count: 4, bytes: b"LABELONE" },
    // The uberblocks of four labels: two at the start, two at the end of the whole 256 KiB.
    zfs(start::<{ 128 * KIB }>, &UBERBLOCK[0]),
    zfs(start::<{ 128 * KIB }>, &UBERBLOCK[1]),
    zfs(start::<{ ZFS_LABEL + 128 * KIB }>, &UBERBLOCK[0]),
    zfs(start::<{ ZFS_LABEL + 128 * KIB }>, &UBERBLOCK[1]),
    zfs(zfs_end::<2>, &UBERBLOCK[0]),
    zfs(zfs_end::<2>, &UBERBLOCK[1]),
    zfs(zfs_end::<1>, &UBERBLOCK[0]),
    zfs(zfs_end::<1>, &UBERBLOCK[1]),
    at(
        "a device of bcache",
        start::<4096>,
        24,
        &[0xc6, 0x85, 0x73, 0xf6, 0x4e, 0x1a, 0x45, 0xca, 0x82, 0x65, 0xf5, 0x7f, 0x48, 0xba, 0x6d, 0x81],
    ),
    at(DRBD, drbd, 60, &[0x83, 0x74, 0x02, 0x6b]),
    at(DRBD, drbd, 60, &[0x83, 0x74, 0x02, 0x6c]),
    at(DRBD, drbd, 60, &[0x83, 0x74, 0x02, 0x6d]),
    at("a device of dm-integrity", start::<0>, 0, b"integrt\0"),
    at("a LUKS container", start::<0>, 0, b"LUKS\xba\xbe"),
    at("a device of VDO", start::<0>, 0, b"dmvdo001"),
    at("a device of Ceph BlueStore", start::<0>, 0, b"bluestore block device\n"),
];

fn start<const AT: u64>(_: u64) -> Option<u64> {
    Some(AT)
}

fn md_90(size: u64) -> Option<u64> {
    (size & !(64 * KIB - 1)).checked_sub(64 * KIB)
}

fn zfs_end<const LABELS: u64>(size: u64) -> Option<u64> {
    let label = (size / ZFS_LABEL * ZFS_LABEL).checked_sub(LABELS * ZFS_LABEL)?;
    Some(label + 128 * KIB)
}

fn drbd(size: u64) -> Option<u64> {
    (size / 4096 * 4096).checked_sub(4096)
}

impl Signature {
    /// Bytes of the area.
    fn len(&self) -> usize {
        self.offset + self.stride * (self.count - 1) + self.bytes.len()
    }

    fn is_in(&self, area: &[u8]) -> bool {
        let mut places = (0..self.count).map(|place| self.offset + place * self.stride);
        places.any(|at| area[at..].starts_with(self.bytes))
    }
}

/// The first signature on a disk, in words. Nothing is written.
pub(crate) async fn find_signature<S: Seam, D: Disk<S>>(
    buffers: &Buffers<S>,
    disk: &D,
) -> DiskResult<Option<&'static str>> {
    let size = disk.geometry().size_bytes;
    let mut last: Option<(u64, Vec<u8>)> = None;
    for signature in SIGNATURES {
        let Some(at) = (signature.area)(size) else { continue };
        let blocks = signature.len().div_ceil(BLOCK_BYTES);
        if at + (blocks * BLOCK_BYTES) as u64 > size {
            continue;
        }
        // Neighbours in the table share their area.
        if last.as_ref().is_none_or(|(last_at, area)| *last_at != at || area.len() < blocks * BLOCK_BYTES) {
            let mut area = vec![0; blocks * BLOCK_BYTES];
            let copy = |index, block: &S::Block| {
                block.read_bytes(0, &mut area[index * BLOCK_BYTES..][..BLOCK_BYTES]);
            };
            read_each(buffers, disk, at, blocks, copy).await?;
            last = Some((at, area));
        }
        if last.as_ref().is_some_and(|(_, area)| signature.is_in(area)) {
            return Ok(Some(signature.name));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use seam::sim::{SimDisk, SimDiskSpec, World, WorldSpec};
    use seam::{BlockMut, DiskOpen, Piece};

    /// No whole 64 KiB or 256 KiB, as most disks.
    const SIZE: u64 = (3 << 20) + (40 << 10) + 512;

    /// The signature that is found on a disk with these bytes at an offset that a block begins at.
    fn found_with(at: u64, bytes: &[u8]) -> Option<&'static str> {
        let world = World::new(WorldSpec::new(1));
        world.add_disk("disk", SimDiskSpec::new(SIZE));
        let seam = world.seam();
        world.block_on(async {
            let options = DiskOpen { path: "disk".into(), create_bytes: None, read_only: false, lock_wait_ms: 0 };
            let disk: SimDisk = seam.open_disk(&options).await.expect("the disk exists");
            let mut block = seam.alloc().expect("a buffer is free");
            let mut raw = [0; BLOCK_BYTES];
            raw[..bytes.len()].copy_from_slice(bytes);
            block.write_metadata(0, &raw);
            disk.write(at, vec![Piece::whole(block.freeze())]).await.expect("a sound disk");
            find_signature(&Buffers::new(&seam), &disk).await.expect("a sound disk")
        })
    }

    fn after(zeroes: usize, bytes: &[u8]) -> Vec<u8> {
        [vec![0; zeroes], bytes.to_vec()].concat()
    }

    #[test]
    fn each_signature_is_found_at_its_place() {
        // Written out, as the programs compute them.
        let bcache = [0xc6, 0x85, 0x73, 0xf6, 0x4e, 0x1a, 0x45, 0xca, 0x82, 0x65, 0xf5, 0x7f, 0x48, 0xba, 0x6d, 0x81];
        let cases: [(u64, Vec<u8>, &str); 22] = [
            (0, MD_1.to_vec(), MD),
            (4096, MD_1.to_vec(), MD),
            (3_178_496, MD_1.to_vec(), MD),
            (3_080_192, vec![0xfc, 0x4e, 0x2b, 0xa9], MD),
            (3_080_192, vec![0xa9, 0x2b, 0x4e, 0xfc], MD),
            (0, after(512, b"LABELONE"), LVM),
            (0, after(1536, b"LABELONE"), LVM),
            (131_072, vec![0x0c, 0xb1, 0xba, 0, 0, 0, 0, 0], ZFS),
            (131_072 + 126_976, after(3072, &[0, 0, 0, 0, 0, 0xba, 0xb1, 0x0c]), ZFS),
            (393_216, vec![0x0c, 0xb1, 0xba, 0, 0, 0, 0, 0], ZFS),
            (2_752_512, vec![0x0c, 0xb1, 0xba, 0, 0, 0, 0, 0], ZFS),
            (3_014_656, vec![0x0c, 0xb1, 0xba, 0, 0, 0, 0, 0], ZFS),
            (3_182_592, after(60, &[0x83, 0x74, 0x02, 0x6d]), DRBD),
            (0, b"LUKS\xba\xbe\0\x02".to_vec(), "a LUKS container"),
            (SIZE - 4096, after(3584, &[0xde, 0x11, 0xde, 0x11]), "a member of a DDF RAID array"),
            (0, b"integrt\0".to_vec(), "a device of dm-integrity"),
            (SIZE - 4096, after(3072, b"Intel Raid ISM Cfg Sig. "), "a member of an Intel RAID array"),
            (4096, after(24, &bcache), "a device of bcache"),
            (0, b"dmvdo001".to_vec(), "a device of VDO"),
            (0, b"bluestore block device\n".to_vec(), "a device of Ceph BlueStore"),
            (3_182_592, after(60, &[0x83, 0x74, 0x02, 0x6b]), DRBD),
            (3_182_592, after(60, &[0x83, 0x74, 0x02, 0x6c]), DRBD),
        ];
        for (at, bytes, name) in cases {
            assert_eq!(found_with(at, &bytes), Some(name), "{name} at byte {at}");
        }
    }

    #[test]
    fn other_content_has_no_signature() {
        assert_eq!(found_with(0, b"EFI PART"), None);
        assert_eq!(found_with(4096, b"LABELONE"), None);
        assert_eq!(found_with(0, &[0xfc, 0x4e, 0x2b, 0xa9, 2, 0, 0, 0]), None, "an unknown version");
    }
}
