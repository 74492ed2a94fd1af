//! The manifest: opaque data with which the owner of a store can recover from the devices alone.
//!
//! Every member keeps two copies, one behind each of its superblocks. A new manifest overwrites the older copy, so a
//! torn write leaves the newer one intact. It is written rarely.

use format_version::{NewerFormat, Release};
use seam::{BLOCK_BYTES, Seam};

use crate::device::{BufferSource, Device, Durability, block_of, raw};
use crate::error::StoreError;
use crate::format::Uuid;
use crate::member_disk::MemberDisk;
use crate::number::MemberNo;
use crate::state::Inner;
use crate::store::Store;

/// Byte offsets of the two copies.
const COPY_OFFSETS_BYTES: [u64; 2] = [4 << 10, 68 << 10];
/// Blocks of a copy.
const COPY_BLOCKS: usize = 15;
/// The first bytes of a manifest.
const MAGIC: [u8; 8] = *b"HOTSETMF";
/// The version of the manifest's format.
const VERSION: u32 = 1;
/// Bytes before the payload: magic (8), version (4), bytes of the payload (4), identity of the store (16), revision
/// (8), reserved (20), CRC32C of the preceding bytes and of the payload (4). All but the revision keep their places in
/// later formats.
const HEADER_BYTES: usize = 64;
/// Offset at which a later format names the first release that reads it ([`Release::unpack`]); 0 in this format.
const NEEDS_AT: usize = 40;
/// Offset of the checksum.
const CHECKSUM_AT: usize = 60;

/// The largest payload, in bytes.
pub const MANIFEST_BYTES_MAX: usize = COPY_BLOCKS * BLOCK_BYTES - HEADER_BYTES;

/// A manifest, as read from a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Manifest {
    /// The store that it belongs to.
    pub store: Uuid,
    /// Grows with each manifest.
    pub revision: u64,
    /// The owner's data.
    pub payload: Vec<u8>,
}

/// The reason why bytes are not a manifest that this version reads.
#[derive(Clone, Debug, PartialEq, Eq)]
enum ManifestError {
    /// Other data, or a damaged manifest.
    Other,
    /// An intact manifest of a later format.
    Newer(Uuid, NewerFormat),
}

impl Manifest {
    /// Encodes it as whole blocks: header, payload, zeroes.
    fn encode(&self) -> Vec<u8> {
        assert!(self.payload.len() <= MANIFEST_BYTES_MAX, "a manifest of {} bytes", self.payload.len());
        let mut bytes = vec![0; HEADER_BYTES];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..12].copy_from_slice(&VERSION.to_le_bytes());
        bytes[12..16].copy_from_slice(&(self.payload.len() as u32).to_le_bytes());
        bytes[16..32].copy_from_slice(&self.store);
        bytes[32..40].copy_from_slice(&self.revision.to_le_bytes());
        let checksum = crc32c::crc32c_append(crc32c::crc32c(&bytes[..CHECKSUM_AT]), &self.payload);
        bytes[CHECKSUM_AT..HEADER_BYTES].copy_from_slice(&checksum.to_le_bytes());
        bytes.extend_from_slice(&self.payload);
        bytes.resize(bytes.len().next_multiple_of(BLOCK_BYTES), 0);
        bytes
    }

    /// Decodes the bytes of a copy: the manifest may be followed by any other bytes.
    fn decode(bytes: &[u8]) -> Result<Manifest, ManifestError> {
        let u32_at =
            |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("a slice of 4 bytes is an array of 4"));
        let u64_at =
            |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("a slice of 8 bytes is an array of 8"));
        if bytes[..8] != MAGIC {
            return Err(ManifestError::Other);
        }
        // The length comes from the device, so it is checked before its use.
        let end = HEADER_BYTES.checked_add(u32_at(12) as usize);
        let payload = end.and_then(|end| bytes.get(HEADER_BYTES..end)).ok_or(ManifestError::Other)?;
        let checksum = crc32c::crc32c_append(crc32c::crc32c(&bytes[..CHECKSUM_AT]), payload);
        if checksum != u32_at(CHECKSUM_AT) || u32_at(8) < VERSION {
            return Err(ManifestError::Other);
        }
        let store = bytes[16..32].try_into().expect("a slice of 16 bytes is an array of 16");
        if u32_at(8) > VERSION {
            let needs = Release::unpack(u64_at(NEEDS_AT));
            return Err(ManifestError::Newer(store, NewerFormat::of_format(u32_at(8), VERSION, needs)));
        }
        Ok(Manifest { store, revision: u64_at(32), payload: payload.to_vec() })
    }
}

/// The newest manifest of `store` on `disks`, in any state of the store. Fails if one of them has a later format.
pub async fn read_manifest<S: Seam>(
    seam: &S,
    disks: &[MemberDisk<S>],
    store: Uuid,
) -> Result<Option<Manifest>, StoreError> {
    let mut newest: Option<Manifest> = None;
    for disk in disks {
        let device = Device::new(MemberNo(0), disk.clone());
        let copies = read_copies(seam, &device, store).await?;
        newest = copies.into_iter().flatten().chain(newest).max_by_key(|manifest| manifest.revision);
    }
    Ok(newest)
}

/// The two copies of the manifest on a device. A copy that is unreadable or of another store yields `None`.
async fn read_copies<S: Seam>(
    source: &impl BufferSource<S>,
    device: &Device<S>,
    store: Uuid,
) -> Result<[Option<Manifest>; 2], StoreError> {
    let mut copies = [None, None];
    for (copy_index, at) in COPY_OFFSETS_BYTES.into_iter().enumerate() {
        if let Ok(blocks) = device.read_blocks(source, at, COPY_BLOCKS).await {
            let bytes: Vec<u8> = blocks.iter().flat_map(|block| *raw(block)).collect();
            copies[copy_index] = match Manifest::decode(&bytes) {
                Ok(manifest) => Some(manifest).filter(|manifest| manifest.store == store),
                Err(ManifestError::Newer(of, newer)) if of == store => {
                    return Err(StoreError::Newer { device: device.name(), newer });
                }
                Err(_) => None,
            };
        }
    }
    Ok(copies)
}

impl<S: Seam> Store<S> {
    /// Writes the owner's manifest to every member in service; it is durable when this returns. Calls must not overlap.
    /// Fails without a write if a member holds a manifest of a later format.
    ///
    /// # Panics
    /// If the payload is longer than [`MANIFEST_BYTES_MAX`].
    pub async fn save_manifest(&self, payload: Vec<u8>) -> Result<(), StoreError> {
        let inner: &Inner<S> = &self.0;
        let store = self.uuid();
        let devices = inner.in_service();
        let (mut copy_indexes, mut revision) = (Vec::new(), 0);
        for device in &devices {
            let copies = read_copies(inner, device, store).await?;
            let revision_of = |index: usize| copies[index].as_ref().map_or(0, |copy| copy.revision);
            // Overwrite the older copy.
            copy_indexes.push(usize::from(revision_of(0) > revision_of(1)));
            revision = revision.max(revision_of(0)).max(revision_of(1));
        }
        let bytes = Manifest { store, revision: revision + 1, payload }.encode();
        for (device, copy_index) in devices.iter().zip(copy_indexes) {
            let mut blocks = Vec::new();
            for block in bytes.chunks(BLOCK_BYTES) {
                let block = block.try_into().expect("padded to whole blocks");
                blocks.push(block_of::<S>(inner.alloc_buffer().await, block));
            }
            device
                .write_with_retry(COPY_OFFSETS_BYTES[copy_index], blocks, Durability::Flushed)
                .await
                .map_err(|error| device.wrap_error(error))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Manifest {
        Manifest { store: [7; 16], revision: 9, payload: (0..9_000_u32).map(|number| number as u8).collect() }
    }

    #[test]
    fn manifest_round_trips_and_a_flipped_byte_is_rejected() {
        let bytes = sample().encode();
        assert_eq!(Manifest::decode(&bytes), Ok(sample()));
        for at in 0..HEADER_BYTES + sample().payload.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1;
            assert_eq!(Manifest::decode(&damaged), Err(ManifestError::Other), "byte {at}");
        }
    }

    #[test]
    fn length_past_the_end_is_rejected() {
        let mut bytes = sample().encode();
        for len in [u32::MAX, u32::MAX - 64, (bytes.len() - HEADER_BYTES + 1) as u32] {
            bytes[12..16].copy_from_slice(&len.to_le_bytes());
            assert_eq!(Manifest::decode(&bytes), Err(ManifestError::Other));
        }
    }

    #[test]
    fn copies_lie_between_the_superblocks_and_the_journal() {
        use crate::format::{journal, superblock};
        let copies = COPY_OFFSETS_BYTES.map(|at| at..at + (COPY_BLOCKS * BLOCK_BYTES) as u64);
        assert_eq!(copies[0].end, superblock::SUPERBLOCK_OFFSETS[1]);
        assert_eq!(copies[1].start, superblock::SUPERBLOCK_OFFSETS[1] + BLOCK_BYTES as u64);
        assert_eq!(copies[1].end, journal::JOURNAL_AT);
    }
}
