//! The model of a store: each block's versions in the order in which they were submitted, which is the order of the
//! log.

use std::collections::BTreeMap;

use flash::{Owner, Position, Recovered, RecoveredContent, Store};
use seam::Seam;
use seam::sim::SimSeam;

/// The content of a block's version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// Data with a unique tag.
    Data(u64),
    Zero,
    /// Nothing in the log: a tombstone, or never written.
    Gone,
}

#[derive(Clone, Debug)]
struct Version {
    what: What,
    /// The record that it belongs to.
    record: usize,
    acked: bool,
    /// Nothing of it was written.
    void: bool,
    /// Its owner has retired it.
    dropped: bool,
}

/// A record with its position, and the number of its blocks that are still live.
#[derive(Clone, Debug)]
struct Rec {
    position: Option<Position>,
    blocks_left: usize,
    owners: Vec<Owner>,
}

/// The expected content of the log.
#[derive(Default)]
pub struct Model {
    blocks: BTreeMap<Owner, Vec<Version>>,
    records: Vec<Rec>,
    /// Records with a live block, oldest first.
    live: std::collections::BTreeSet<usize>,
    tags: u64,
}

/// The content of each block after recovery.
pub type Found = BTreeMap<Owner, What>;

impl Model {
    /// An unused tag.
    pub fn tag(&mut self) -> u64 {
        self.tags += 1;
        self.tags << 20 | 0x7a6
    }

    /// Adds a record before its append. Returns its number.
    pub fn submit(&mut self, owner: Owner, blocks: u32, what: What) -> usize {
        let record = self.records.len();
        let owners: Vec<_> =
            (0..u64::from(blocks)).map(|more| Owner { block: owner.block.plus(more), ..owner }).collect();
        for owner in &owners {
            let version = Version { what, record, acked: false, void: false, dropped: false };
            self.blocks.entry(*owner).or_default().push(version);
        }
        self.records.push(Rec { position: None, blocks_left: owners.len(), owners });
        record
    }

    /// Notes that nothing of the record was written.
    pub fn void(&mut self, record: usize) {
        self.versions(record, |version| version.void = true);
    }

    /// Notes that the record is durable. Returns the positions to retire.
    pub fn ack(&mut self, record: usize, position: Position) -> Vec<Position> {
        self.records[record].position = Some(position);
        self.live.insert(record);
        self.versions(record, |version| version.acked = true);
        let mut dead = Vec::new();
        for owner in self.records[record].owners.clone() {
            let versions = &self.blocks[&owner];
            let newest = versions.iter().rposition(|version| version.acked).expect("one was just acknowledged");
            let old = versions[..newest].iter().filter(|version| version.acked && !version.dropped);
            let mut old: Vec<_> = old.map(|version| version.record).collect();
            if versions[newest].what == What::Gone && !versions[newest].dropped {
                old.push(versions[newest].record);
            }
            for record in old {
                dead.extend(self.drop_version(owner, record));
            }
        }
        dead
    }

    /// Destages the oldest live record. Returns its position.
    pub fn destage_oldest(&mut self) -> Option<Position> {
        let record = *self.live.first()?;
        let mut position = None;
        for owner in self.records[record].owners.clone() {
            position = position.or(self.drop_version(owner, record));
        }
        position
    }

    fn drop_version(&mut self, owner: Owner, record: usize) -> Option<Position> {
        let version = self.blocks.get_mut(&owner)?.iter_mut().find(|version| version.record == record)?;
        if std::mem::replace(&mut version.dropped, true) {
            return None;
        }
        let rec = &mut self.records[record];
        rec.blocks_left -= 1;
        (rec.blocks_left == 0).then(|| {
            self.live.remove(&record);
            rec.position.expect("only acknowledged versions are dropped")
        })
    }

    fn versions(&mut self, record: usize, mut change: impl FnMut(&mut Version)) {
        for owner in self.records[record].owners.clone() {
            let versions = self.blocks.get_mut(&owner).expect("a submitted record has versions");
            versions.iter_mut().filter(|version| version.record == record).for_each(&mut change);
        }
    }

    /// The number of records with a live block.
    pub fn live(&self) -> usize {
        self.live.len()
    }

    /// A block whose newest version is acknowledged data, chosen by `draw`.
    pub fn readable(&self, draw: u64) -> Option<(Owner, Position, u64)> {
        let all = self.blocks.iter().filter_map(|(owner, versions)| {
            let version = versions.last().filter(|version| version.acked && !version.dropped)?;
            match version.what {
                What::Data(tag) => Some((*owner, self.records[version.record].position?, tag)),
                _ => None,
            }
        });
        let all: Vec<_> = all.collect();
        (!all.is_empty()).then(|| all[(draw % all.len() as u64) as usize])
    }

    /// True when the block's version with this tag is still live.
    pub fn is_current(&self, owner: Owner, tag: u64) -> bool {
        self.blocks[&owner].iter().any(|version| version.what == What::Data(tag) && !version.dropped)
    }

    /// Checks the blocks that recovery found.
    pub fn check(&self, found: &Found) -> Result<(), String> {
        if let Some(owner) = found.keys().find(|owner| !self.blocks.contains_key(owner)) {
            return Err(format!("foreign: {owner:?} was never written"));
        }
        for (owner, versions) in &self.blocks {
            let found = found.get(owner).copied().unwrap_or(What::Gone);
            let newest = versions.iter().rposition(|version| version.acked);
            let may = versions[newest.unwrap_or(0)..].iter().any(|version| !version.void && version.what == found);
            let may_be_gone = newest.is_none_or(|newest| versions[newest].dropped);
            if !may && (found != What::Gone || !may_be_gone) {
                return Err(format!("{owner:?}: found {found:?} of {versions:?}"));
            }
        }
        Ok(())
    }

    /// Adopts what recovery found: unacknowledged versions are decided now.
    pub fn settle(&mut self, recovered: &[Recovered], found: &Found) {
        self.blocks.clear();
        self.records.clear();
        self.live.clear();
        for one in recovered {
            let blocks = match one.content {
                RecoveredContent::Data => 1,
                RecoveredContent::Zero { blocks, .. } => blocks,
            };
            let record = self.submit(one.owner, blocks, found[&one.owner]);
            let dead = self.ack(record, one.position);
            assert!(dead.is_empty(), "recovery gives each block once");
        }
    }
}

/// Reads all recovered records, block by block.
pub async fn read_all(seam: &SimSeam, store: &Store<SimSeam>, recovered: &[Recovered]) -> Result<Found, String> {
    let mut found = Found::new();
    for one in recovered {
        let (blocks, what) = match one.content {
            RecoveredContent::Zero { blocks, .. } => (blocks, What::Zero),
            RecoveredContent::Data => {
                let buffer = seam.alloc().ok_or("the pool is empty")?;
                let block = store.read(one.owner, one.position, buffer).await.map_err(|error| error.to_string())?;
                let tags = block.tags();
                if tags != [tags[0]; 8] {
                    return Err(format!("{:?} is torn: {tags:x?}", one.owner));
                }
                (1, What::Data(tags[0]))
            }
        };
        for more in 0..u64::from(blocks) {
            let owner = Owner { block: one.owner.block.plus(more), ..one.owner };
            if found.insert(owner, what).is_some() {
                return Err(format!("{owner:?} was recovered twice"));
            }
        }
    }
    Ok(found)
}
