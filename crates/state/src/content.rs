//! Checks that a backing is the one to which a volume's dirty data belongs.
//!
//! An identity is a proof only if it lies in the storage itself (a serial number, a file's inode and birth time). A
//! device number or an export's name is an address, at which another disk may have appeared since. Before any dirty
//! data is destaged, the content is therefore compared with two records: checksums of the blocks destaged last, and
//! samples taken when the volume was last served.

use std::fmt;

use engine::BlockNo;
use serde::{Deserialize, Serialize};

const BLOCK_BYTES: u64 = 4096;
/// Number of sampled blocks of a backing.
const SAMPLES: u64 = 24;
/// Blocks with partition tables and file system headers, which are always sampled.
const HEADER_BLOCKS: [u64; 3] = [0, 1, 16];
/// Number of matching samples with content that identify a backing without other proof.
const MATCHES_MIN: usize = 3;
/// Sample of a zero block. It proves nothing, because every new disk has zeroes.
const ZERO_BLOCK: u32 = 0;

/// Recorded content of a backing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContentRecord {
    /// Size in bytes.
    pub size_bytes: u64,
    /// Identifies this attachment of the device among all attachments of one boot, if the kernel reports it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instance: Option<String>,
    /// Identifiers of the partition tables and file systems in it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ids: Vec<String>,
    /// CRC32C of the blocks at [`sampled_blocks`], eight hexadecimal digits each; 0 for a zero block.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub samples: String,
    /// The lineage of the ownership of storage that several machines may own ([`seam::Lineage`]).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lineage: Option<String>,
    /// Number of destaged blocks whose checksums the flash store held when the volume was stopped. The next start must
    /// find some of them.
    #[serde(default, skip_serializing_if = "super::fields::is_zero")]
    pub destaged: u64,
}

/// The sampled blocks of a backing of `size_bytes`, in order.
pub fn sampled_blocks(size_bytes: u64) -> Vec<BlockNo> {
    let blocks = size_bytes / BLOCK_BYTES;
    if blocks <= SAMPLES {
        return (0..blocks).map(BlockNo).collect();
    }
    let interior_samples = SAMPLES - HEADER_BLOCKS.len() as u64 - 1;
    let mut sampled: Vec<u64> = HEADER_BLOCKS.into_iter().chain([blocks - 1]).collect();
    // Unequal distances, so that samples do not hit the same position in each part of a regular layout.
    sampled.extend((0..interior_samples).map(|index| {
        blocks * index / interior_samples + index.wrapping_mul(2_654_435_761) % (blocks / interior_samples)
    }));
    sampled.sort_unstable();
    sampled.dedup();
    sampled.into_iter().map(BlockNo).collect()
}

/// The first block past the end of a backing of `size_bytes`. A partial last block is included. After a shrink it is
/// not, because its cached copies have content past the new end.
pub fn end_block(size_bytes: u64, size_before: Option<u64>) -> BlockNo {
    match size_before.is_some_and(|before| before > size_bytes) {
        true => BlockNo(size_bytes / BLOCK_BYTES),
        false => BlockNo(size_bytes.div_ceil(BLOCK_BYTES)),
    }
}

/// The block that was a partial last block before the backing grew. Cached copies of that block may have content past
/// the former end, from a time when the backing was larger.
pub fn former_partial_block(size_bytes: u64, size_before: Option<u64>) -> Option<BlockNo> {
    let before = size_before.filter(|before| *before < size_bytes && !before.is_multiple_of(BLOCK_BYTES))?;
    Some(BlockNo(before / BLOCK_BYTES))
}

/// True if the [`former_partial_block`] is dirty. `dirty_from` counts the dirty blocks from a block on.
pub fn is_partial_block_dirty(size_bytes: u64, size_before: Option<u64>, dirty_from: impl Fn(BlockNo) -> u64) -> bool {
    former_partial_block(size_bytes, size_before).is_some_and(|block| dirty_from(block) > dirty_from(block.next()))
}

/// Text form of samples, as in the record.
pub fn show_samples(checksums: &[u32]) -> String {
    checksums.iter().map(|checksum| format!("{checksum:08x}")).collect()
}

fn samples_of(text: &str) -> Vec<u32> {
    let digits = text.as_bytes().chunks(8).map(|digits| std::str::from_utf8(digits).unwrap_or_default());
    digits.filter_map(|digits| u32::from_str_radix(digits, 16).ok()).collect()
}

/// Findings about a volume and its backing at a start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Evidence {
    /// True if the backing's identity lies in the storage itself.
    pub has_stored_identity: bool,
    /// Present content of the backing, with the blocks sampled that its present size determines.
    pub content: ContentRecord,
    /// Why the lineage before the one in `content` ended, as a clause.
    pub lineage_reason: String,
    /// Samples of the blocks that the recorded size determines, if that size differs from the present one.
    pub samples_before: Option<String>,
    /// Blocks of the volume in the flash log.
    pub blocks_in_log: u64,
    /// Blocks of the volume in the memory of a killed daemon.
    pub blocks_in_memory: u64,
    /// Blocks of both kinds that lie past the backing's end.
    pub blocks_past_end: u64,
    /// True if the backing has grown, and the block that was partial before ([`former_partial_block`]) is dirty.
    pub is_partial_block_dirty: bool,
    /// Blocks destaged last whose content is unchanged. Zero blocks prove nothing and do not count.
    pub destaged_unchanged: u64,
    /// Blocks destaged last whose content has changed.
    pub destaged_changed: u64,
    /// Blocks destaged last that lie past the backing's end, without zero blocks.
    pub destaged_past_end: u64,
    /// True if the backing has the content of most destaged blocks that may have been written again before a crash. A
    /// difference would prove nothing.
    pub matches_unproven: bool,
}

impl Evidence {
    /// True if another process may have written to the backing since its content was recorded. A record without a
    /// lineage, as after a rebuild of the records, proves none.
    pub fn has_other_lineage(&self, recorded: Option<&ContentRecord>) -> bool {
        recorded.and_then(|recorded| recorded.lineage.as_ref()) != self.content.lineage.as_ref()
    }

    /// True if data waits to be destaged.
    pub fn has_dirty(&self) -> bool {
        self.blocks_in_log + self.blocks_in_memory > 0
    }

    /// Compares the backing with the one that a volume had before, whose record is `former`, by the blocks destaged
    /// last. A smaller backing counts as unproven.
    pub fn compare_copy(&self, former: Option<&ContentRecord>) -> CopyVerdict {
        let is_smaller = former.is_none_or(|former| self.content.size_bytes < former.size_bytes)
            || self.blocks_past_end + self.destaged_past_end > 0;
        match (self.destaged_changed, self.destaged_unchanged) {
            (0, 0) => CopyVerdict::Unproven,
            (0, _) if is_smaller || self.is_partial_block_dirty => CopyVerdict::Unproven,
            (0, unchanged) => CopyVerdict::Current(unchanged),
            (changed, _) => CopyVerdict::Differs(changed),
        }
    }

    /// Dirty bytes in the log and in memory.
    pub fn dirty_bytes(&self) -> u64 {
        (self.blocks_in_log + self.blocks_in_memory) * BLOCK_BYTES
    }
}

/// Verdict whether a backing is a copy of the one that a volume had before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyVerdict {
    /// The backing has the same content in all compared blocks, of which there are this many.
    Current(u64),
    /// The backing has another content in this number of the blocks destaged last.
    Differs(u64),
    /// No evidence shows that the backing is a copy.
    Unproven,
}

/// Verdict whether a backing is the one to which a volume's dirty data belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ContentVerdict {
    /// It is, as far as the evidence shows.
    Same,
    /// It is not: this number of the blocks destaged last have another content.
    Differs(u64),
    /// It is the same storage, but another process may have written to it since.
    OwnerChanged,
    /// No evidence shows that it is.
    Unproven(MissingProof),
}

/// The evidence that a backing without proof lacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MissingProof {
    /// The identity is an address, and the content proves nothing.
    Identity,
    /// The flash store has no usable checksum of the blocks destaged last.
    RecentWritesLost,
    /// The blocks destaged last whose checksums are known lie past the end of the backing.
    RecentWritesPastEnd,
    /// The blocks destaged last are not compared before pages from before a change of size are dropped.
    RecentWritesOutdated,
}

impl fmt::Display for MissingProof {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let recent_writes = match self {
            MissingProof::Identity => {
                return write!(
                    f,
                    "it is identified only by its device number, path or export name, there is no destaged block to \
                     compare, and its partition table, file systems and sampled blocks prove nothing either"
                );
            }
            MissingProof::RecentWritesLost => "the flash store has no usable checksum of the blocks destaged last",
            MissingProof::RecentWritesPastEnd => "the blocks destaged last with a known content lie past its end",
            MissingProof::RecentWritesOutdated => {
                "the blocks destaged last are not compared, because the flash store still has pages from before a \
                 change of the backing or of its size"
            }
        };
        write!(f, "{recent_writes}, and without them older content of the same disk cannot be excluded")
    }
}

/// Compares `evidence` with the record of the volume's backing. `others` are the records of other volumes' backings:
/// content shared with one of them, as among copies of one template, proves nothing.
pub fn compare_content(
    recorded: Option<&ContentRecord>,
    evidence: &Evidence,
    others: &[&ContentRecord],
) -> ContentVerdict {
    if evidence.destaged_changed > 0 {
        return ContentVerdict::Differs(evidence.destaged_changed);
    }
    // The blocks destaged last are few: equal content in all of them does not exclude other writes.
    if evidence.has_other_lineage(recorded) {
        return ContentVerdict::OwnerChanged;
    }
    if evidence.destaged_unchanged == 0 && recorded.is_some_and(|recorded| recorded.destaged > 0) {
        // Older content of the same disk could not be detected.
        let missing = match evidence.destaged_past_end {
            0 => MissingProof::RecentWritesLost,
            _ => MissingProof::RecentWritesPastEnd,
        };
        return ContentVerdict::Unproven(missing);
    }
    let instance = evidence.content.instance.as_ref();
    let same_instance = instance.is_some() && recorded.is_some_and(|recorded| recorded.instance.as_ref() == instance);
    let has_own_content = evidence.destaged_unchanged > 0 || evidence.matches_unproven;
    if evidence.has_stored_identity || same_instance || has_own_content {
        return ContentVerdict::Same;
    }
    let unproven = ContentVerdict::Unproven(MissingProof::Identity);
    let Some(recorded) = recorded else { return unproven };
    let is_shared = |id: &String| others.iter().any(|other| other.ids.contains(id));
    if recorded.ids.iter().any(|id| evidence.content.ids.contains(id) && !is_shared(id)) {
        return ContentVerdict::Same;
    }
    let (recorded_samples, current_samples) = (
        samples_of(&recorded.samples),
        samples_of(evidence.samples_before.as_ref().unwrap_or(&evidence.content.samples)),
    );
    let others: Vec<_> = others.iter().map(|other| samples_of(&other.samples)).collect();
    let is_own = |sample: u32| sample != ZERO_BLOCK && !others.iter().any(|samples| samples.contains(&sample));
    let matches =
        recorded_samples.iter().zip(&current_samples).filter(|(old, new)| old == new && is_own(**old)).count();
    if matches >= MATCHES_MIN { ContentVerdict::Same } else { unproven }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: u64 = 1 << 30;

    const UNPROVEN: ContentVerdict = ContentVerdict::Unproven(MissingProof::Identity);

    fn recorded(samples: &[u32]) -> ContentRecord {
        ContentRecord { size_bytes: SIZE, samples: show_samples(samples), ..ContentRecord::default() }
    }

    fn evidence(samples: &[u32]) -> Evidence {
        Evidence { content: recorded(samples), blocks_in_log: 1, ..Evidence::default() }
    }

    #[test]
    fn sampled_blocks_are_inside_and_depend_only_on_the_size() {
        for size in [0, 4096, 5 * 4096, 24 * 4096, 25 * 4096, 100 * 4096 + 512, SIZE, 16 << 40] {
            let sampled = sampled_blocks(size);
            assert_eq!(sampled, sampled_blocks(size));
            assert!(sampled.iter().all(|block| block.next().offset() <= size), "{size}: {sampled:?}");
            assert!(sampled.windows(2).all(|pair| pair[0] < pair[1]), "{size}: {sampled:?}");
        }
        assert!(sampled_blocks(SIZE).len() >= 20);
    }

    #[test]
    fn changed_destaged_block_outweighs_every_proof() {
        let evidence =
            Evidence { has_stored_identity: true, destaged_unchanged: 31, destaged_changed: 1, ..evidence(&[1, 2, 3]) };
        assert_eq!(compare_content(Some(&recorded(&[1, 2, 3])), &evidence, &[]), ContentVerdict::Differs(1));
    }

    #[test]
    fn other_lineage_outweighs_equal_content() {
        let with =
            |lineage: Option<&str>| ContentRecord { lineage: lineage.map(str::to_owned), ..recorded(&[1, 2, 3]) };
        let now = |lineage| Evidence {
            has_stored_identity: true,
            content: with(lineage),
            blocks_in_log: 1,
            destaged_unchanged: 31,
            ..Evidence::default()
        };
        assert_eq!(compare_content(Some(&with(Some("a"))), &now(Some("a")), &[]), ContentVerdict::Same);
        assert_eq!(compare_content(Some(&with(Some("a"))), &now(Some("b")), &[]), ContentVerdict::OwnerChanged);
        assert_eq!(compare_content(Some(&with(Some("a"))), &now(None), &[]), ContentVerdict::OwnerChanged);
        assert_eq!(compare_content(Some(&with(None)), &now(None), &[]), ContentVerdict::Same);
        assert_eq!(compare_content(Some(&with(None)), &now(Some("b")), &[]), ContentVerdict::OwnerChanged);
        assert_eq!(compare_content(None, &now(Some("b")), &[]), ContentVerdict::OwnerChanged);
        let changed = Evidence { destaged_changed: 1, ..now(Some("b")) };
        assert_eq!(compare_content(Some(&with(Some("a"))), &changed, &[]), ContentVerdict::Differs(1));
    }

    #[test]
    fn store_without_its_checksums_leaves_a_backing_unproven() {
        let recorded = ContentRecord { destaged: 5, ..recorded(&[1, 2, 3]) };
        let evidence = Evidence { has_stored_identity: true, ..evidence(&[1, 2, 3]) };
        let lost = ContentVerdict::Unproven(MissingProof::RecentWritesLost);
        assert_eq!(compare_content(Some(&recorded), &evidence, &[]), lost);
        let past_end = Evidence { destaged_past_end: 1, ..evidence.clone() };
        let verdict = compare_content(Some(&recorded), &past_end, &[]);
        assert_eq!(verdict, ContentVerdict::Unproven(MissingProof::RecentWritesPastEnd));
        assert_eq!(
            compare_content(Some(&recorded), &Evidence { destaged_unchanged: 1, ..evidence }, &[]),
            ContentVerdict::Same
        );
    }

    #[test]
    fn matching_content_is_a_proof_and_an_address_alone_is_none() {
        assert_eq!(compare_content(None, &evidence(&[1, 2, 3]), &[]), UNPROVEN);
        assert_eq!(compare_content(Some(&recorded(&[7, 8, 9])), &evidence(&[1, 2, 3]), &[]), UNPROVEN);
        assert_eq!(
            compare_content(Some(&recorded(&[1, 2, 3, 9])), &evidence(&[1, 2, 3, 4]), &[]),
            ContentVerdict::Same
        );
        let zeroes = [ZERO_BLOCK; 24];
        assert_eq!(compare_content(Some(&recorded(&zeroes)), &evidence(&zeroes), &[]), UNPROVEN);
        let clone = recorded(&[1, 2]);
        let of_clone = compare_content(Some(&recorded(&[1, 2, 3, 9])), &evidence(&[1, 2, 3, 9]), &[&clone]);
        assert_eq!(of_clone, UNPROVEN, "two of four samples are another volume's too");
        let destaged = Evidence { destaged_unchanged: 1, ..evidence(&[4]) };
        assert_eq!(compare_content(Some(&recorded(&[1])), &destaged, &[]), ContentVerdict::Same);
    }

    #[test]
    fn identifier_or_same_attachment_is_a_proof() {
        let with = |instance: Option<&str>, id: &str| ContentRecord {
            instance: instance.map(str::to_owned),
            ids: vec![id.to_owned()],
            ..recorded(&[1])
        };
        let now = |instance, id| Evidence { content: with(instance, id), blocks_in_log: 1, ..Evidence::default() };
        let mut other = now(Some("boot:8"), "ext:b");
        other.content.samples = show_samples(&[2]);
        assert_eq!(compare_content(Some(&with(Some("boot:7"), "ext:a")), &other, &[]), UNPROVEN);
        assert_eq!(compare_content(Some(&with(Some("boot:8"), "ext:a")), &other, &[]), ContentVerdict::Same);
        assert_eq!(compare_content(Some(&with(Some("boot:7"), "ext:b")), &other, &[]), ContentVerdict::Same);
        other.content.instance = None;
        assert_eq!(compare_content(Some(&with(None, "ext:a")), &other, &[]), UNPROVEN);
    }
}
