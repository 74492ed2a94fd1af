//! The model of a store: each block's versions in the order in which they were submitted, which is the order of the
//! log.

use std::collections::BTreeMap;

use flash::{BlockAddress, Position, RecoveredContent, RecoveredRecord, Store};
use seam::Seam;
use seam::sim::SimSeam;

/// The content of a block's version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockContent {
    /// Data with a unique tag.
    Data(u64),
    Zero,
    /// The log has no content: a tombstone, or never written.
    Absent,
}

#[derive(Clone, Debug)]
struct Version {
    content: BlockContent,
    /// The record that it belongs to.
    record: usize,
    acked: bool,
    /// No part of it was written.
    is_unwritten: bool,
    /// Its owner has destaged or superseded it.
    dropped: bool,
}

/// A record with its position, and the number of its blocks that are still live.
#[derive(Clone, Debug)]
struct RecordState {
    position: Option<Position>,
    blocks_left: usize,
    addresses: Vec<BlockAddress>,
}

/// The expected content of the log.
#[derive(Default)]
pub struct LogModel {
    blocks: BTreeMap<BlockAddress, Vec<Version>>,
    records: Vec<RecordState>,
    /// Records with a live block, oldest first.
    live: std::collections::BTreeSet<usize>,
    tags: u64,
}

/// The content of each block after recovery.
pub type RecoveredBlocks = BTreeMap<BlockAddress, BlockContent>;

impl LogModel {
    /// An unused tag.
    pub fn tag(&mut self) -> u64 {
        self.tags += 1;
        self.tags << 20 | 0x7a6
    }

    /// Adds a record before its append. Returns its number.
    pub fn submit(&mut self, address: BlockAddress, blocks: u32, content: BlockContent) -> usize {
        let record = self.records.len();
        let addresses: Vec<_> =
            (0..u64::from(blocks)).map(|index| BlockAddress { block: address.block.plus(index), ..address }).collect();
        for address in &addresses {
            let version = Version { content, record, acked: false, is_unwritten: false, dropped: false };
            self.blocks.entry(*address).or_default().push(version);
        }
        self.records.push(RecordState { position: None, blocks_left: addresses.len(), addresses });
        record
    }

    /// Marks the record as not written, in whole or in part.
    pub fn mark_unwritten(&mut self, record: usize) {
        self.change_versions(record, |version| version.is_unwritten = true);
    }

    /// Marks the record as durable. Returns the positions to retire.
    pub fn ack(&mut self, record: usize, position: Position) -> Vec<Position> {
        self.records[record].position = Some(position);
        self.live.insert(record);
        self.change_versions(record, |version| version.acked = true);
        let mut dead = Vec::new();
        for address in self.records[record].addresses.clone() {
            let versions = &self.blocks[&address];
            let newest = versions.iter().rposition(|version| version.acked).expect("a version was just acknowledged");
            let old = versions[..newest].iter().filter(|version| version.acked && !version.dropped);
            let mut old: Vec<_> = old.map(|version| version.record).collect();
            if versions[newest].content == BlockContent::Absent && !versions[newest].dropped {
                old.push(versions[newest].record);
            }
            for record in old {
                dead.extend(self.drop_version(address, record));
            }
        }
        dead
    }

    /// Destages the oldest live record. Returns its position.
    pub fn destage_oldest(&mut self) -> Option<Position> {
        let record = *self.live.first()?;
        let mut position = None;
        for address in self.records[record].addresses.clone() {
            position = position.or(self.drop_version(address, record));
        }
        position
    }

    /// Drops a block's version of a record. Returns the position to retire after the record's last block.
    fn drop_version(&mut self, address: BlockAddress, record: usize) -> Option<Position> {
        let version = self.blocks.get_mut(&address)?.iter_mut().find(|version| version.record == record)?;
        if std::mem::replace(&mut version.dropped, true) {
            return None;
        }
        let state = &mut self.records[record];
        state.blocks_left -= 1;
        (state.blocks_left == 0).then(|| {
            self.live.remove(&record);
            state.position.expect("only acknowledged versions are dropped")
        })
    }

    /// Applies `change` to the versions of a record.
    fn change_versions(&mut self, record: usize, mut change: impl FnMut(&mut Version)) {
        for address in self.records[record].addresses.clone() {
            let versions = self.blocks.get_mut(&address).expect("a submitted record has versions");
            versions.iter_mut().filter(|version| version.record == record).for_each(&mut change);
        }
    }

    /// The number of records with a live block.
    pub fn live(&self) -> usize {
        self.live.len()
    }

    /// A block whose newest version is acknowledged data, chosen by `draw`.
    pub fn readable(&self, draw: u64) -> Option<(BlockAddress, Position, u64)> {
        let candidates = self.blocks.iter().filter_map(|(address, versions)| {
            let version = versions.last().filter(|version| version.acked && !version.dropped)?;
            match version.content {
                BlockContent::Data(tag) => Some((*address, self.records[version.record].position?, tag)),
                _ => None,
            }
        });
        let candidates: Vec<_> = candidates.collect();
        (!candidates.is_empty()).then(|| candidates[(draw % candidates.len() as u64) as usize])
    }

    /// True when the block's version with this tag is still live.
    pub fn is_current(&self, address: BlockAddress, tag: u64) -> bool {
        self.blocks[&address].iter().any(|version| version.content == BlockContent::Data(tag) && !version.dropped)
    }

    /// Checks the blocks that recovery found.
    pub fn check(&self, recovered: &RecoveredBlocks) -> Result<(), String> {
        if let Some(address) = recovered.keys().find(|address| !self.blocks.contains_key(address)) {
            return Err(format!("foreign: {address:?} was never written"));
        }
        for (address, versions) in &self.blocks {
            let recovered = recovered.get(address).copied().unwrap_or(BlockContent::Absent);
            let newest = versions.iter().rposition(|version| version.acked);
            let is_allowed = versions[newest.unwrap_or(0)..]
                .iter()
                .any(|version| !version.is_unwritten && version.content == recovered);
            let may_be_absent = newest.is_none_or(|newest| versions[newest].dropped);
            if !is_allowed && (recovered != BlockContent::Absent || !may_be_absent) {
                return Err(format!("{address:?}: found {recovered:?} of {versions:?}"));
            }
        }
        Ok(())
    }

    /// Replaces the model by the recovered content. Recovery has decided which unacknowledged writes survive.
    pub fn adopt_recovered(&mut self, recovered: &[RecoveredRecord], content: &RecoveredBlocks) {
        self.blocks.clear();
        self.records.clear();
        self.live.clear();
        for entry in recovered {
            let blocks = match entry.content {
                RecoveredContent::Data => 1,
                RecoveredContent::Zero { blocks, .. } => blocks,
            };
            let record = self.submit(entry.address, blocks, content[&entry.address]);
            let dead = self.ack(record, entry.position);
            assert!(dead.is_empty(), "recovery returns each block once");
        }
    }
}

/// Reads all recovered records, block by block.
pub async fn read_all(
    seam: &SimSeam,
    store: &Store<SimSeam>,
    recovered: &[RecoveredRecord],
) -> Result<RecoveredBlocks, String> {
    let mut recovered_blocks = RecoveredBlocks::new();
    for entry in recovered {
        let (blocks, content) = match entry.content {
            RecoveredContent::Zero { blocks, .. } => (blocks, BlockContent::Zero),
            RecoveredContent::Data => {
                let buffer = seam.alloc().ok_or("the pool is empty")?;
                let block =
                    store.read(entry.address, entry.position, buffer).await.map_err(|error| error.to_string())?;
                let tags = block.tags();
                if tags != [tags[0]; 8] {
                    return Err(format!("{:?} is torn: {tags:x?}", entry.address));
                }
                (1, BlockContent::Data(tags[0]))
            }
        };
        for index in 0..u64::from(blocks) {
            let address = BlockAddress { block: entry.address.block.plus(index), ..entry.address };
            if recovered_blocks.insert(address, content).is_some() {
                return Err(format!("{address:?} was recovered twice"));
            }
        }
    }
    Ok(recovered_blocks)
}
