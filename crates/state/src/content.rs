//! What proves that a backing is the one that a volume's dirty data belongs to.
//!
//! An identity proves that only where it lies in the storage itself (a serial number, a file's inode and birth). A device number or the
//! name of an export is a place, and another disk may be there by now. So whatever waits to be destaged is held against the content first:
//! the blocks that were destaged last, and samples that were taken when the volume was served before.

use serde::{Deserialize, Serialize};

const BLOCK_BYTES: u64 = 4096;
/// Blocks that are sampled of a backing.
const SAMPLES: u64 = 24;
/// Blocks that tell partition tables and file systems, sampled always.
const HEAD: [u64; 3] = [0, 1, 16];
/// Samples with content that have to be as they were for a backing to be recognised by them alone.
const MATCHES_MIN: usize = 3;
/// The sample of a block that says nothing: zeroes are on every new disk.
const NOTHING: u32 = 0;

/// What a backing held.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContentRecord {
    /// Its size.
    pub size_bytes: u64,
    /// Tells this attachment of the device from every other one of the same boot, where the kernel says it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instance: Option<String>,
    /// Identifiers of partition tables and file systems in it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ids: Vec<String>,
    /// CRC32C of the blocks at [`sample_places`], eight hexadecimal digits each; 0 for one that says nothing.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub samples: String,
    /// Destaged blocks of which the flash store had noted the content when the volume was stopped: the next start has to find some of them.
    #[serde(default, skip_serializing_if = "super::fields::is_zero")]
    pub destaged: u64,
}

/// The blocks of which a backing of that size is sampled, in order.
pub fn sample_places(size_bytes: u64) -> Vec<u64> {
    let blocks = size_bytes / BLOCK_BYTES;
    if blocks <= SAMPLES {
        return (0..blocks).collect();
    }
    let spread = SAMPLES - HEAD.len() as u64 - 1;
    let mut places: Vec<u64> = HEAD.into_iter().chain([blocks - 1]).collect();
    // Unlike distances, so that a regular layout is not met in the same place of each of its parts.
    places.extend(
        (0..spread).map(|index| blocks * index / spread + index.wrapping_mul(2_654_435_761) % (blocks / spread)),
    );
    places.sort_unstable();
    places.dedup();
    places
}

/// The first block that is past the end of a backing of `size_bytes`. A last block in part is one of its own, unless the backing had more of
/// it before.
pub fn end_block(size_bytes: u64, size_before: Option<u64>) -> u64 {
    match size_before.is_some_and(|before| before > size_bytes) {
        true => size_bytes / BLOCK_BYTES,
        false => size_bytes.div_ceil(BLOCK_BYTES),
    }
}

/// Samples as they are kept.
pub fn show_samples(checksums: &[u32]) -> String {
    checksums.iter().map(|checksum| format!("{checksum:08x}")).collect()
}

fn samples_of(text: &str) -> Vec<u32> {
    let digits = text.as_bytes().chunks(8).map(|digits| std::str::from_utf8(digits).unwrap_or_default());
    digits.filter_map(|digits| u32::from_str_radix(digits, 16).ok()).collect()
}

/// What a start found of a volume and its backing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Evidence {
    /// The backing's identity lies in the storage itself.
    pub is_unique: bool,
    /// What the backing holds now; its samples at the places of its size now.
    pub content: ContentRecord,
    /// Samples at the places of the size that was noted, where that is another one.
    pub samples_before: Option<String>,
    /// Blocks of it in the flash log.
    pub blocks_in_log: u64,
    /// Blocks of it that a killed daemon left in memory.
    pub blocks_in_memory: u64,
    /// Of both, those that lie past the backing's end.
    pub blocks_past_end: u64,
    /// Of the blocks that were destaged last, those that are as they were. Zeroes prove nothing, and are not counted.
    pub destaged_found: u64,
    /// Of the blocks that were destaged last, those that are not.
    pub destaged_missing: u64,
}

impl Evidence {
    /// True when something waits to be written to the backing.
    pub fn has_dirty(&self) -> bool {
        self.blocks_in_log + self.blocks_in_memory > 0
    }

    /// Bytes that wait to be written to the backing, in the log and in memory.
    pub fn dirty_bytes(&self) -> u64 {
        (self.blocks_in_log + self.blocks_in_memory) * BLOCK_BYTES
    }
}

/// Whether a backing holds what a volume's dirty data was written over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ContentVerdict {
    /// It does, as far as can be told.
    Same,
    /// It does not: so many of the blocks that were destaged last hold something else.
    Differs(u64),
    /// Nothing shows that it does.
    Unproven,
}

/// Judges `evidence` against what was noted of the volume's backing. `others`: what was noted of other volumes' backings: what one of them has too, as
/// copies of one template do, proves nothing.
pub fn judge_content(noted: Option<&ContentRecord>, evidence: &Evidence, others: &[&ContentRecord]) -> ContentVerdict {
    if evidence.destaged_missing > 0 {
        return ContentVerdict::Differs(evidence.destaged_missing);
    }
    if evidence.destaged_found == 0 && noted.is_some_and(|noted| noted.destaged > 0) {
        // The store has lost what it had noted: an older content of the same disk would look the same.
        return ContentVerdict::Unproven;
    }
    let instance = evidence.content.instance.as_ref();
    let same_instance = instance.is_some() && noted.is_some_and(|noted| noted.instance.as_ref() == instance);
    if evidence.is_unique || same_instance || evidence.destaged_found > 0 {
        return ContentVerdict::Same;
    }
    let Some(noted) = noted else { return ContentVerdict::Unproven };
    let is_shared = |id: &String| others.iter().any(|other| other.ids.contains(id));
    if noted.ids.iter().any(|id| evidence.content.ids.contains(id) && !is_shared(id)) {
        return ContentVerdict::Same;
    }
    let (then, now) =
        (samples_of(&noted.samples), samples_of(evidence.samples_before.as_ref().unwrap_or(&evidence.content.samples)));
    let others: Vec<_> = others.iter().map(|other| samples_of(&other.samples)).collect();
    let is_own = |sample: u32| sample != NOTHING && !others.iter().any(|samples| samples.contains(&sample));
    let matches = then.iter().zip(&now).filter(|(then, now)| then == now && is_own(**then)).count();
    if matches >= MATCHES_MIN { ContentVerdict::Same } else { ContentVerdict::Unproven }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: u64 = 1 << 30;

    fn noted(samples: &[u32]) -> ContentRecord {
        ContentRecord { size_bytes: SIZE, samples: show_samples(samples), ..ContentRecord::default() }
    }

    fn found(samples: &[u32]) -> Evidence {
        Evidence { content: noted(samples), blocks_in_log: 1, ..Evidence::default() }
    }

    #[test]
    fn samples_lie_inside_and_are_the_same_for_the_same_size() {
        for size in [0, 4096, 5 * 4096, 24 * 4096, 25 * 4096, 100 * 4096 + 512, SIZE, 16 << 40] {
            let places = sample_places(size);
            assert_eq!(places, sample_places(size));
            assert!(places.iter().all(|place| (place + 1) * BLOCK_BYTES <= size), "{size}: {places:?}");
            assert!(places.windows(2).all(|pair| pair[0] < pair[1]), "{size}: {places:?}");
        }
        assert!(sample_places(SIZE).len() >= 20);
    }

    #[test]
    fn a_destaged_block_that_is_missing_outweighs_every_proof() {
        let found = Evidence { is_unique: true, destaged_found: 31, destaged_missing: 1, ..found(&[1, 2, 3]) };
        assert_eq!(judge_content(Some(&noted(&[1, 2, 3])), &found, &[]), ContentVerdict::Differs(1));
    }

    #[test]
    fn a_store_that_has_forgotten_what_was_destaged_leaves_a_backing_unproven() {
        let noted = ContentRecord { destaged: 5, ..noted(&[1, 2, 3]) };
        let found = Evidence { is_unique: true, ..found(&[1, 2, 3]) };
        assert_eq!(judge_content(Some(&noted), &found, &[]), ContentVerdict::Unproven);
        assert_eq!(judge_content(Some(&noted), &Evidence { destaged_found: 1, ..found }, &[]), ContentVerdict::Same);
    }

    #[test]
    fn a_place_alone_proves_nothing_and_content_does() {
        assert_eq!(judge_content(None, &found(&[1, 2, 3]), &[]), ContentVerdict::Unproven);
        assert_eq!(judge_content(Some(&noted(&[7, 8, 9])), &found(&[1, 2, 3]), &[]), ContentVerdict::Unproven);
        assert_eq!(judge_content(Some(&noted(&[1, 2, 3, 9])), &found(&[1, 2, 3, 4]), &[]), ContentVerdict::Same);
        let zeroes = [NOTHING; 24];
        assert_eq!(judge_content(Some(&noted(&zeroes)), &found(&zeroes), &[]), ContentVerdict::Unproven);
        let clone = noted(&[1, 2]);
        let of_clone = judge_content(Some(&noted(&[1, 2, 3, 9])), &found(&[1, 2, 3, 9]), &[&clone]);
        assert_eq!(of_clone, ContentVerdict::Unproven, "two of four samples are another volume's too");
        let destaged = Evidence { destaged_found: 1, ..found(&[4]) };
        assert_eq!(judge_content(Some(&noted(&[1])), &destaged, &[]), ContentVerdict::Same);
    }

    #[test]
    fn an_identifier_or_the_same_attachment_is_a_proof() {
        let with = |instance: Option<&str>, id: &str| ContentRecord {
            instance: instance.map(str::to_owned),
            ids: vec![id.to_owned()],
            ..noted(&[1])
        };
        let now = |instance, id| Evidence { content: with(instance, id), blocks_in_log: 1, ..Evidence::default() };
        let mut other = now(Some("boot:8"), "ext:b");
        other.content.samples = show_samples(&[2]);
        assert_eq!(judge_content(Some(&with(Some("boot:7"), "ext:a")), &other, &[]), ContentVerdict::Unproven);
        assert_eq!(judge_content(Some(&with(Some("boot:8"), "ext:a")), &other, &[]), ContentVerdict::Same);
        assert_eq!(judge_content(Some(&with(Some("boot:7"), "ext:b")), &other, &[]), ContentVerdict::Same);
        other.content.instance = None;
        assert_eq!(judge_content(Some(&with(None, "ext:a")), &other, &[]), ContentVerdict::Unproven);
    }
}
