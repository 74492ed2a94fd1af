//! Flushes answered from the mirrored flash log. A flush appends the changes since the last one and is acknowledged
//! when they are durable on every device in service (R6). Destage runs independently; once content is durable on the
//! backing, its log records are retired (`ledger.rs`).
//!
//! A block that became durable on the backing without a record of its newest content gets a tombstone before the flush
//! is acknowledged. Otherwise a recovery could restore an older record over it (R8). Zero-ranges go through the backing
//! and get tombstones.

pub mod company;
pub mod ledger;
mod oldest;
pub mod outdated;
mod recover;
pub mod rest;
mod shelf;

use std::collections::BTreeSet;
use std::ops::Range;

use flash::{Content, Owner, Record, Store, StoreError};
use seam::{BLOCK_BYTES, DiskError, Nanos, Seam};

use crate::backing::Cause;
use crate::memory::{BlockNo, Memory, Sectors};
use crate::shard::state::State;
use crate::shard::turns::Turns;
use crate::shard::{Shard, ShardRef};
use crate::spec::Sabotage;
use crate::{CacheMode, RequestError, WritePolicy};
use ledger::{Changed, Way};

/// Pause after each attempt to free space in a full log.
const FULL_PAUSE: Nanos = Nanos::from_millis(50);
/// Attempts to free space before the volume bypasses the log.
const FULL_TRIES: u32 = 2;
/// Attempts to append the last tombstones, which cannot bypass the log.
const FULL_PATIENCE: u32 = 1_200;
/// More blocks than any volume has: a recovery may find records past an end that has moved.
const BLOCKS_EVER: BlockNo = BlockNo(1 << 34);
/// Longest range of one tombstone, in blocks.
const TOMBSTONE_BLOCKS_MAX: u64 = 1 << 31;

/// State of the log flushes of one shard.
#[derive(Default)]
pub struct Logging {
    /// Single flight of flushes: a flush number counts as done when every change before that flush began is durable.
    pub turns: Turns<RequestError>,
    begun: u64,
}

/// Where a flush made its blocks durable.
#[derive(PartialEq, Eq)]
enum Reached {
    /// In the log, or on the backing if requested.
    This,
    /// On the backing, with the rest of the volume; the log holds no record of the volume any more.
    All,
}

/// Result of preparing a chunk of blocks for the log.
enum Chunk<S: Seam> {
    Records(Vec<Record<S>>),
    /// Partial blocks that must be filled first (R3).
    Fill(Vec<BlockNo>),
    /// A block of the chunk can only go through the backing.
    ThroughBacking,
}

/// The parts of `range` outside `blocks`.
fn without(range: Range<BlockNo>, blocks: &BTreeSet<BlockNo>) -> Vec<Range<BlockNo>> {
    let (mut left, mut start) = (Vec::new(), range.start);
    for block in blocks.range(range.clone()).copied().chain([range.end]) {
        left.extend((start < block).then_some(start..block));
        start = block.next();
    }
    left
}

/// `range` in pieces of at most one tombstone each.
fn pieces_of(range: Range<BlockNo>) -> impl Iterator<Item = Range<BlockNo>> {
    // Steps over numbers: a step over mapped ones takes as long as 2^31 single steps.
    let starts = (range.start.0..range.end.0).step_by(TOMBSTONE_BLOCKS_MAX as usize).map(BlockNo);
    starts.map(move |start| start..range.end.min(start.plus(TOMBSTONE_BLOCKS_MAX)))
}

fn failed(error: &StoreError) -> RequestError {
    DiskError::Io(error.to_string()).into()
}

impl<S: Seam> Shard<S> {
    /// Returns `None` for an abandoned volume: a flush in progress can no longer trust what it knows about the backing.
    fn store(&self) -> Option<Store<S>> {
        self.core.log().filter(|_| !self.given_up.get())
    }

    /// True if the log answers flushes.
    pub fn logs(&self) -> bool {
        self.core.has_log() && self.policy.get() == WritePolicy::WriteBack && self.mode.get() == CacheMode::Active
    }

    /// True if durability involves the log: the log answers flushes, or a recovery may find records of the volume.
    pub fn log_matters(&self) -> bool {
        self.core.has_log() && (self.logs() || self.state.borrow().ledger.has_records())
    }

    /// Makes all writes acknowledged before this call durable, in the log or on the backing.
    pub async fn flush_log(self: &ShardRef<S>) -> Result<(), RequestError> {
        let target = self.state.borrow().logging.begun + 1;
        self.company.ask();
        self.take_turns(|state| &state.logging.turns, target, async || self.lead_log_flush().await).await
    }

    async fn lead_log_flush(self: &ShardRef<S>) -> Result<(), RequestError> {
        self.state.borrow_mut().logging.turns.begin();
        self.company.gather(self.seam()).await;
        let begun = self.seam().now();
        let (number, changed) = self.with(|state, _| {
            state.logging.begun += 1;
            (state.logging.begun, state.ledger.take_changed())
        });
        let result = self.make_durable(&changed).await;
        let now = self.seam().now();
        self.company.ran(now, now.since(begun));
        self.with(|state, _| {
            state.logging.turns.end(result.clone().map(|()| number));
            state.ledger.settle(&changed, result.is_ok());
        });
        if result.is_ok() {
            self.rest_if_full();
        }
        self.let_go();
        self.progress.notify();
        result
    }

    /// Destages the whole volume and appends tombstones, so that a recovery finds none of its records.
    pub async fn leave_log(self: &ShardRef<S>) -> Result<(), RequestError> {
        self.flush_all().await?;
        self.bury_from(BlockNo::ZERO).await
    }

    /// Appends tombstones of all blocks from `first` on, whose content is durable on the backing or given up.
    pub async fn bury_from(self: &ShardRef<S>, first: BlockNo) -> Result<(), RequestError> {
        if !self.state.borrow().ledger.has_records() {
            return Ok(());
        }
        self.progress.wait_for(|| (!self.state.borrow().logging.turns.is_running()).then_some(())).await;
        self.state.borrow_mut().logging.turns.begin();
        let result = match first {
            BlockNo::ZERO => self.bury_all().await,
            first => self.bury(std::iter::once(first..BLOCKS_EVER)).await.map(drop),
        };
        self.with(|state, _| state.logging.turns.end_aside());
        self.let_go();
        self.progress.notify();
        result
    }

    /// Like [`Shard::bury_from`], but together with the next flush.
    pub fn bury_later(&self, first: BlockNo) {
        self.with(|state, _| {
            state.ledger.change_range(first..BLOCKS_EVER);
            state.ledger.cleaned(first..BLOCKS_EVER);
        });
    }

    /// Retires the records that are no longer needed.
    pub fn let_go(&self) {
        let freed = self.state.borrow_mut().ledger.take_freed();
        if let Some(store) = self.store().filter(|_| !freed.is_empty()) {
            store.retire(&freed);
        }
    }

    async fn make_durable(self: &ShardRef<S>, changed: &Changed) -> Result<(), RequestError> {
        if changed.everything {
            self.flush_all().await?;
            return self.bury_all().await;
        }
        let mut blocks = changed.blocks.clone();
        if !changed.ranges.is_empty() {
            self.flush_zeroes().await?;
            // A block written over the zeroes is perhaps not on the backing yet, so its old record must stay until a
            // new one is durable. Such a block is logged instead; its new content satisfies the flush in place of the
            // zeroes.
            let written = self.state.borrow().ledger.written_within(&changed.ranges);
            match written {
                Some(written) => blocks.extend(written),
                None => self.flush_all().await?,
            }
            let ranges = changed.ranges.iter().flat_map(|(start, end)| without(*start..*end, &blocks));
            if self.bury(ranges).await? == Reached::All {
                return Ok(());
            }
        }
        let blocks: Vec<BlockNo> = blocks.into_iter().collect();
        let most = self.store().map_or(1, |store| store.records_max());
        for chunk in blocks.chunks(most) {
            if self.log_chunk(chunk).await? == Reached::All {
                break;
            }
        }
        Ok(())
    }

    async fn log_chunk(self: &ShardRef<S>, blocks: &[BlockNo]) -> Result<Reached, RequestError> {
        let mut tried = 0;
        loop {
            let had_records = self.state.borrow().ledger.has_records();
            let records = match self.with(|state, memory| self.take_chunk(state, memory, blocks)) {
                Chunk::Records(records) if records.is_empty() => return Ok(Reached::This),
                Chunk::Records(records) => records,
                // If the fill fails, the present sectors go to the backing.
                Chunk::Fill(partial) if self.fill_partials(&partial).await.is_ok() => continue,
                Chunk::Fill(_) | Chunk::ThroughBacking => {
                    self.flush_all().await?;
                    let runs = blocks.chunk_by(|block, next| block.next() == *next);
                    return self.bury(runs.map(|run| run[0].run(run.len() as u64))).await;
                }
            };
            let taken: Vec<Option<BlockNo>> = records
                .iter()
                .map(|record| matches!(record.content, Content::Data(_)).then_some(record.owner.block))
                .collect();
            let tombstones: Vec<Range<BlockNo>> = records
                .iter()
                .filter_map(|record| match record.content {
                    Content::Retire { blocks } => Some(record.owner.block.run(u64::from(blocks))),
                    _ => None,
                })
                .collect();
            let Some(store) = self.store() else { return Err(RequestError::ShuttingDown) };
            if self.sabotage(Sabotage::AckBeforeLog) {
                drop(records);
                self.with(|state, _| taken.into_iter().flatten().for_each(|block| state.ledger.not_logged(block)));
                return Ok(Reached::This);
            }
            // A batch whose membership change is not yet recorded must not be acknowledged, but its records are in the
            // log (R10).
            let (result, unnoted) = match store.append(records).await {
                Err(StoreError::Unrecorded { why, positions }) => {
                    (Ok(positions), Some(StoreError::Unrecorded { why, positions: Vec::new() }))
                }
                result => (result, None),
            };
            if result.is_ok() {
                let blocks = taken.iter().flatten().count() as u64;
                self.counters.add(&self.counters.logged_bytes, blocks * BLOCK_BYTES as u64);
            }
            self.with(|state, _| match &result {
                Ok(positions) => {
                    for (block, position) in taken.iter().zip(positions) {
                        if let Some(block) = block {
                            state.ledger.logged(*block, *position);
                        }
                    }
                    tombstones.iter().for_each(|blocks| state.ledger.buried(blocks.clone()));
                }
                Err(error) => {
                    taken.iter().flatten().for_each(|block| state.ledger.not_logged(*block));
                    if *error == StoreError::Full && !had_records {
                        state.ledger.nothing_logged();
                    }
                }
            });
            self.let_go();
            match result {
                Ok(_) => return unnoted.map_or(Ok(Reached::This), |error| Err(failed(&error))),
                Err(StoreError::Full) if tried < FULL_TRIES && !self.core.log_stays_full() => {
                    // Content on the backing needs no space in the log.
                    self.make_log_room(tried > 0).await?;
                    tried += 1;
                }
                Err(StoreError::Full) => return self.do_without_log().await,
                Err(error) => return Err(failed(&error)),
            }
        }
    }

    /// Fills the partial blocks one after the other: several at once could hold all buffers and I/O slots that they
    /// wait for.
    async fn fill_partials(&self, blocks: &[BlockNo]) -> Result<(), DiskError> {
        for block in blocks {
            self.fill(block.single(), None, Cause::Destage).await?;
        }
        Ok(())
    }

    /// Builds the records of a chunk of blocks from their present content.
    fn take_chunk(&self, state: &mut State, memory: &mut Memory<S>, blocks: &[BlockNo]) -> Chunk<S> {
        let may_log = self.logs();
        let mut partial = Vec::new();
        for block in blocks {
            match memory.find(self.number, *block).map(|id| memory.slot(id)) {
                None if state.zeroes.contains(*block) => return Chunk::ThroughBacking,
                Some(slot) if !slot.is_clean() && !may_log => return Chunk::ThroughBacking,
                Some(slot) if !slot.is_clean() && slot.present != Sectors::ALL => partial.push(*block),
                _ => {}
            }
        }
        if !partial.is_empty() {
            return Chunk::Fill(partial);
        }
        let mut records: Vec<Record<S>> = Vec::new();
        for block in blocks {
            let owner = Owner { incarnation: self.incarnation, block: *block };
            let epoch = state.epochs.current();
            let slot = memory.find(self.number, *block).map(|id| memory.slot(id));
            let Some(slot) = slot.filter(|slot| !slot.is_clean()) else {
                // The newest content is durable on the backing: a tombstone replaces the record.
                if state.ledger.has_records() && !self.sabotage(Sabotage::NoTombstones) {
                    records.push(Record { owner, epoch, content: Content::Retire { blocks: 1 } });
                }
                continue;
            };
            let way = match (slot.dirty, slot.in_flight, slot.written) {
                (None, None, Some(written)) => Way::Written(written.sequence),
                (None, Some(_), _) => Way::Sent,
                // A write in flight carries older content than this record, so it proves nothing about it.
                (Some(_), Some(_), _) if self.sabotage(Sabotage::TrustOldWrite) => Way::Sent,
                _ => Way::Here,
            };
            let data = slot.data.clone().expect("a slot in use has content");
            state.ledger.take(*block, way);
            records.push(Record { owner, epoch, content: Content::Data(data) });
        }
        Chunk::Records(records)
    }

    /// Makes tombstones of the ranges durable, if a recovery could find records of the volume. The content of the
    /// ranges must be durable on the backing or given up.
    async fn bury(
        self: &ShardRef<S>,
        ranges: impl IntoIterator<Item = Range<BlockNo>>,
    ) -> Result<Reached, RequestError> {
        let pieces: Vec<Range<BlockNo>> = ranges.into_iter().flat_map(pieces_of).collect();
        let most = self.store().map_or(1, |store| store.records_max());
        for pieces in pieces.chunks(most) {
            if !self.state.borrow().ledger.has_records() || self.sabotage(Sabotage::NoTombstones) {
                return Ok(Reached::This);
            }
            let mut tried = 0;
            loop {
                let Some(store) = self.store() else { return Err(RequestError::ShuttingDown) };
                match store.append(self.tombstones(pieces)).await {
                    Ok(_) => break,
                    Err(StoreError::Full) if tried < FULL_TRIES && !self.core.log_stays_full() => {
                        self.make_log_room(tried > 0).await?;
                        tried += 1;
                    }
                    Err(StoreError::Full) => return self.do_without_log().await,
                    Err(error) => return Err(failed(&error)),
                }
            }
            self.with(|state, _| pieces.iter().for_each(|piece| state.ledger.buried(piece.clone())));
        }
        Ok(Reached::This)
    }

    /// Bypasses the log: destages the whole volume and appends its tombstones. Other volumes fill the log, perhaps for
    /// long, because their backing does not answer or because they are not attached. Until the log has more room, the
    /// next flushes do not wait for it either.
    async fn do_without_log(self: &ShardRef<S>) -> Result<Reached, RequestError> {
        self.core.note_full_log();
        self.flush_all().await?;
        self.bury_all().await?;
        Ok(Reached::All)
    }

    /// Like [`Shard::bury`] for the whole volume: a recovery then finds none of its records.
    async fn bury_all(self: &ShardRef<S>) -> Result<(), RequestError> {
        if !self.state.borrow().ledger.has_records() || self.sabotage(Sabotage::NoTombstones) {
            return Ok(());
        }
        let pieces: Vec<Range<BlockNo>> = pieces_of(BlockNo::ZERO..BLOCKS_EVER).collect();
        let most = self.store().map_or(1, |store| store.records_max());
        for pieces in pieces.chunks(most) {
            let mut patience = FULL_PATIENCE;
            loop {
                let Some(store) = self.store() else { return Err(RequestError::ShuttingDown) };
                match store.append_tombstones(self.tombstones(pieces)).await {
                    Ok(_) => break,
                    // The space reserved for these tombstones is used up; a log of few segments reserves none.
                    Err(StoreError::Full) if patience > 0 => {
                        self.make_log_room(false).await?;
                        patience -= 1;
                    }
                    Err(error) => return Err(failed(&error)),
                }
            }
        }
        self.with(|state, _| state.ledger.buried_all());
        Ok(())
    }

    fn tombstones(&self, pieces: &[Range<BlockNo>]) -> Vec<Record<S>> {
        let epoch = self.state.borrow().epochs.current();
        let record = |piece: &Range<BlockNo>| {
            let owner = Owner { incarnation: self.incarnation, block: piece.start };
            Record { owner, epoch, content: Content::Retire { blocks: BlockNo::count(piece) as u32 } }
        };
        pieces.iter().map(record).collect()
    }

    /// Frees space in a full log: asks all volumes to destage their oldest records, and destages this volume's. With
    /// `before`, an earlier attempt has failed, and the whole volume is destaged.
    async fn make_log_room(self: &ShardRef<S>, before: bool) -> Result<(), RequestError> {
        self.core.press_log();
        if before {
            self.flush_all().await?;
        } else {
            self.bring_oldest().await?;
        }
        // A clean block has its newest content durable on the backing. If a recovery restores its record before the
        // tail has passed it, that content still satisfies the last flush.
        self.with(|state, memory| {
            let clean = |block: BlockNo| match memory.find(self.number, block) {
                Some(id) => memory.slot(id).is_clean(),
                None => !state.zeroes.contains(block),
            };
            state.ledger.let_go_if(clean);
        });
        self.let_go();
        self.seam().sleep(FULL_PAUSE).await;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_possible_blocks_are_few_tombstones() {
        let pieces: Vec<_> = pieces_of(BlockNo(7)..BLOCKS_EVER).collect();
        assert_eq!(pieces.len(), 8);
        assert_eq!((pieces[0].start, pieces[7].end), (BlockNo(7), BLOCKS_EVER));
        assert!(pieces.windows(2).all(|pair| pair[0].end == pair[1].start));
        assert!(pieces.iter().all(|piece| BlockNo::count(piece) <= TOMBSTONE_BLOCKS_MAX));
    }
}
