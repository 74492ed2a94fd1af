//! The heat of a pool in bytes, for a file of the caller: it outlives the process.
//!
//! | bytes | field |
//! |---|---|
//! | 0 to 7 | `HOTHEAT` and a zero byte |
//! | 8 to 11 | version: 1 |
//! | 12 to 15 | CRC32C of all later bytes |
//! | 16 to 31 | identity of the pool |
//! | 32 to 39 | wall-clock time of writing, in seconds since 1970 |
//! | 40 to 47 | bytes of a slice |
//! | 48 to 51 | number of chunks |
//! | from 52 | chunks: number of the volume (4), number of the chunk in it (4), 1,024 words (8 each, `heat/word.rs`) |
//!
//! All numbers are little-endian. Heat is a forecast: an image that does not fit is ignored, and the slices are cold.

use std::cmp::Reverse;
use std::rc::Rc;

use seam::{Disk, Nanos, Seam};

use crate::heat::ENCODED_BYTES;
use crate::number::{SliceAddress, SliceNo, VolumeId};
use crate::state::Inner;
use crate::volume_heat::CHUNK;

const MAGIC: [u8; 8] = *b"HOTHEAT\0";
const VERSION: u32 = 1;
const CHECKSUM_AT: usize = 12;
const HEADER_BYTES: usize = 52;
const CHUNK_BYTES: usize = 8 + CHUNK * ENCODED_BYTES;
/// Chunks of an image: 64 MiB, the heat of 32 TiB in slices of 4 MiB. The hottest ones are kept.
const CHUNKS_MAX: usize = 8_192;
/// Age from which on heat says nothing any more.
const AGE_MAX_SECONDS: u64 = 14 * 86_400;

/// Reasons why an image is ignored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HeatImageError {
    /// The bytes are no image, or one that was cut.
    #[error("it is damaged")]
    Damaged,
    /// Another version wrote it.
    #[error("it has version {0}, and this version reads {VERSION}")]
    Version(u32),
    /// Another pool, or one that was created again.
    #[error("it belongs to another pool")]
    OtherPool,
    /// It is too old.
    #[error("it was saved {} days ago", .0 / 86_400)]
    TooOld(u64),
}

/// The heat of all slices with load, as of now. `unix_seconds` is the wall-clock time.
pub(crate) async fn encode<S: Seam, D: Disk<S>>(inner: &Rc<Inner<S, D>>, unix_seconds: u64) -> Vec<u8> {
    let (pool, slice_bytes, volumes) = {
        let state = inner.state.borrow();
        let volumes: Vec<VolumeId> = state.volumes.keys().copied().collect();
        (state.superblock.pool, state.slice_bytes(), volumes)
    };
    let mut chunks = Vec::new();
    for id in volumes {
        let numbers = inner.state.borrow().volumes.get(&id).map(|volume| volume.heat.chunk_numbers());
        for number in numbers.into_iter().flatten() {
            let now = inner.seam.now();
            let load = inner.state.borrow().volumes.get(&id).map_or(0, |volume| volume.heat.chunk_load(number, now));
            if load > 0 {
                chunks.push((Reverse(load), id, number));
            }
            inner.seam.yield_now().await;
        }
    }
    chunks.sort_unstable();
    chunks.truncate(CHUNKS_MAX);
    let mut image = Vec::with_capacity(HEADER_BYTES + chunks.len() * CHUNK_BYTES);
    image.extend_from_slice(&MAGIC);
    image.extend_from_slice(&VERSION.to_le_bytes());
    image.extend_from_slice(&[0; 4]);
    image.extend_from_slice(&pool);
    image.extend_from_slice(&unix_seconds.to_le_bytes());
    image.extend_from_slice(&slice_bytes.to_le_bytes());
    image.extend_from_slice(&[0; 4]);
    assert_eq!(image.len(), HEADER_BYTES, "the header has its documented length");
    let mut count = 0_u32;
    for (_, id, number) in chunks {
        // A volume may have been removed meanwhile.
        if let Some(volume) = inner.state.borrow().volumes.get(&id) {
            image.extend_from_slice(&id.0.to_le_bytes());
            image.extend_from_slice(&number.to_le_bytes());
            volume.heat.encode_chunk(number, inner.seam.now(), &mut image);
            count += 1;
        }
        inner.seam.yield_now().await;
    }
    image[HEADER_BYTES - 4..HEADER_BYTES].copy_from_slice(&count.to_le_bytes());
    let checksum = crc32c::crc32c(&image[CHECKSUM_AT + 4..]);
    image[CHECKSUM_AT..CHECKSUM_AT + 4].copy_from_slice(&checksum.to_le_bytes());
    image
}

/// Takes over an image, aged by the wall-clock time since it was written, and returns that time in seconds. Slices
/// that are not allocated stay cold.
pub(crate) async fn load<S: Seam, D: Disk<S>>(
    inner: &Rc<Inner<S, D>>,
    image: &[u8],
    unix_seconds: u64,
) -> Result<u64, HeatImageError> {
    let number = |at: usize| u32::from_le_bytes(image[at..at + 4].try_into().expect("four bytes"));
    let long = |at: usize| u64::from_le_bytes(image[at..at + 8].try_into().expect("eight bytes"));
    if image.len() < HEADER_BYTES || image[..8] != MAGIC {
        return Err(HeatImageError::Damaged);
    }
    if number(8) != VERSION {
        return Err(HeatImageError::Version(number(8)));
    }
    let chunks = image[HEADER_BYTES..].chunks_exact(CHUNK_BYTES);
    let is_whole = chunks.remainder().is_empty() && chunks.len() == number(HEADER_BYTES - 4) as usize;
    if number(CHECKSUM_AT) != crc32c::crc32c(&image[CHECKSUM_AT + 4..]) || !is_whole {
        return Err(HeatImageError::Damaged);
    }
    {
        let state = inner.state.borrow();
        if image[16..32] != state.superblock.pool || long(40) != state.slice_bytes() {
            return Err(HeatImageError::OtherPool);
        }
    }
    // A clock that was set back makes the image no younger than new.
    let age_seconds = unix_seconds.saturating_sub(long(32));
    if age_seconds > AGE_MAX_SECONDS {
        return Err(HeatImageError::TooOld(age_seconds));
    }
    for chunk in chunks {
        let volume = VolumeId(u32::from_le_bytes(chunk[..4].try_into().expect("four bytes")));
        let number = u32::from_le_bytes(chunk[4..8].try_into().expect("four bytes"));
        take_over(inner, (volume, number), &chunk[8..], Nanos::from_secs(age_seconds));
        inner.seam.yield_now().await;
    }
    Ok(age_seconds)
}

/// Takes over a chunk of a volume. Clients' requests since the opening would be lost, so a chunk with some is left out.
fn take_over<S: Seam, D: Disk<S>>(inner: &Inner<S, D>, (id, number): (VolumeId, u32), words: &[u8], age: Nanos) {
    let mut state = inner.state.borrow_mut();
    let Some(first) = number.checked_mul(CHUNK as u32) else { return };
    let is_allocated: Vec<bool> = (0..CHUNK as u32)
        .map(|index| state.slot_of(SliceAddress { volume: id, slice: SliceNo(first + index) }).is_some())
        .collect();
    let Some(volume) = state.volumes.get_mut(&id) else { return };
    if is_allocated.contains(&true) {
        volume.heat.decode_chunk(number, words, inner.seam.now(), age, |index| is_allocated[index]);
    }
}
