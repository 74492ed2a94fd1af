//! Reads from memory, zero-ranges, flash and the backing.

use std::cell::RefCell;
use std::ops::Range;
use std::rc::Rc;

use seam::{BLOCK_BYTES, Disk, DiskError, Nanos, Piece, Seam};

use crate::backing::Cause;
use crate::fill::FillResult;
use crate::fill::reload::ReloadReason;
use crate::fill::sibling_read::read_sibling_flash;
use crate::flash_tier::counters::MissReason;
use crate::memory::{BlockNo, MemoryCache, PageNo, Sectors};
use crate::policy::InsertKind;
use crate::shard::fill_guard::FillGuard;
use crate::shard::siblings::{SiblingAllowance, SiblingCopy, SiblingSearch};
use crate::shard::state::State;
use crate::shard::write_wait::WriteWait;
use crate::shard::{Shard, ShardRef, Span, blocks_of, spans};
use crate::spec::Sabotage;
use crate::stats::{ReadKind, SourceBytes};
use crate::telemetry::{LatencyTrace, Step};
use crate::{ByteOffset, CacheMode, RequestError};

/// Longest read tried without waiting, in blocks.
const IMMEDIATE_READ_BLOCKS_MAX: usize = 64;
/// Longest single request to the backing for a miss, in blocks.
const FILL_BLOCKS_MAX: u64 = 64;

impl<S: Seam> Shard<S> {
    /// Appends all of the range to `out` if it is in memory, else leaves `out` as it was.
    pub fn try_read(self: &ShardRef<S>, at: ByteOffset, len_bytes: usize, out: &mut Vec<Piece<S::Block>>) -> bool {
        if len_bytes > IMMEDIATE_READ_BLOCKS_MAX * BLOCK_BYTES {
            return false;
        }
        let before = out.len();
        let prefetched = self.with_state(|state, memory| {
            memory.prefetch_run_entries(self.volume_number, blocks_of(at, len_bytes as u64));
            let mut is_read_ahead = false;
            let is_complete =
                spans(at, len_bytes).all(|span| match self.find_in_memory(state, memory, &span, &mut is_read_ahead) {
                    Some(piece) => {
                        out.push(piece);
                        true
                    }
                    None => false,
                });
            is_complete
                .then(|| if is_read_ahead { self.record_readahead_uses(memory, spans(at, len_bytes)) } else { 0 })
        });
        let Some(prefetched) = prefetched else {
            out.truncate(before);
            return false;
        };
        self.counters.count_immediate_read(len_bytes as u64, prefetched);
        self.curves.borrow_mut().record_use(at, len_bytes as u64);
        self.record_stream_read(at, len_bytes);
        true
    }

    /// Appends the range to `out`, split at block boundaries. `may_admit`: the read may admit blocks to memory and
    /// trigger readahead.
    pub async fn read(
        self: &ShardRef<S>,
        at: ByteOffset,
        len_bytes: usize,
        out: &mut Vec<Piece<S::Block>>,
        may_admit: bool,
        trace: &LatencyTrace,
    ) -> Result<(), RequestError> {
        let mut sources = ReadSources::default();
        let result = self.read_with_sources(at, len_bytes, out, may_admit, trace, &mut sources).await;
        // A use of a sibling's block counts in the curve of the sibling: memory of this volume would not help.
        if sources.sibling_read_bytes < len_bytes as u64 {
            self.curves.borrow_mut().record_use(at, len_bytes as u64);
        }
        self.count_read(len_bytes as u64, &sources, result.is_ok());
        if result.is_ok() {
            self.queue_promotions(sources.pages_to_promote);
        }
        result
    }

    /// Appends the range to `out` for a write that changes a part of it. It is not counted as a read.
    pub async fn read_for_partial_write(
        self: &ShardRef<S>,
        at: ByteOffset,
        len_bytes: usize,
        out: &mut Vec<Piece<S::Block>>,
        trace: &LatencyTrace,
    ) -> Result<(), RequestError> {
        self.read_with_sources(at, len_bytes, out, true, trace, &mut ReadSources::default()).await
    }

    /// Appends the range to `out`, and records in `sources` where its blocks came from. Each pass takes what memory
    /// serves, and reads or waits for the rest, until no block is missing.
    async fn read_with_sources(
        self: &ShardRef<S>,
        at: ByteOffset,
        len_bytes: usize,
        out: &mut Vec<Piece<S::Block>>,
        may_admit: bool,
        trace: &LatencyTrace,
        sources: &mut ReadSources,
    ) -> Result<(), RequestError> {
        let spans: Vec<Span> = spans(at, len_bytes).collect();
        let mut pieces: Vec<Option<Piece<S::Block>>> = Vec::new();
        pieces.resize_with(spans.len(), || None);
        let is_sequential = may_admit && self.record_stream_read(at, len_bytes);
        let sibling_allowance = SiblingAllowance::default();
        let mut read = ReadProgress { spans, pieces, may_admit, is_sequential, sibling_allowance, trace, sources };
        let mut is_first_pass = true;
        self.last_request_at.set(self.seam().now());
        loop {
            let (plan, prefetched_bytes) = self.plan_pass(&mut read);
            if std::mem::take(&mut is_first_pass) {
                self.record_first_pass(&mut read, &plan, prefetched_bytes);
            }
            let Some(mut buffers) = self.core.alloc_all(plan.block_count(), false).await else {
                // A read that waits for buffers holds none: otherwise concurrent reads could hold all buffers and wait
                // for each other.
                read.pieces.fill_with(|| None);
                self.core.wait_for_buffers().await;
                continue;
            };
            self.reload_spilled_runs(&mut read, plan.spilled_runs, &mut buffers).await?;
            let kind = if is_sequential { InsertKind::Stream } else { InsertKind::Normal };
            let admit = (may_admit && self.admits_reads()).then_some(kind);
            self.read_sibling_runs(&mut read, plan.sibling_flash_runs, &mut buffers, admit).await;
            if !plan.missing_runs.is_empty() {
                self.fill_missing_runs(&mut read, plan.missing_runs, buffers, admit).await?;
            } else if let Some(guard) = plan.joined_fill {
                self.join_fill(&mut read, self, &guard).await;
            } else if let Some((sibling, guard)) = plan.sibling_fill {
                self.join_fill(&mut read, &sibling, &guard).await;
                read.sibling_allowance.fills_left -= 1;
            } else if read.pieces.iter().all(Option::is_some) {
                break;
            }
        }
        out.extend(read.pieces.into_iter().map(|piece| piece.expect("the plan left nothing missing")));
        Ok(())
    }

    /// Takes the pieces that memory serves now, and plans the others. Also returns the bytes from blocks that readahead
    /// brought.
    fn plan_pass(&self, read: &mut ReadProgress<'_, S>) -> (ReadPlan<S>, u64) {
        self.with_state(|state, memory| {
            let (spans, pieces) = (&read.spans, &mut read.pieces);
            let plan = self.plan_read(state, memory, spans, pieces, read.sibling_allowance, read.may_admit);
            let cached = spans.iter().zip(pieces).filter(|(_, piece)| piece.is_some()).map(|(span, _)| *span);
            let bytes = if plan.is_read_ahead { self.record_readahead_uses(memory, cached) } else { 0 };
            (plan, bytes)
        })
    }

    /// Counts the pieces that the first pass found, and the misses that it left.
    fn record_first_pass(&self, read: &mut ReadProgress<'_, S>, plan: &ReadPlan<S>, prefetched_bytes: u64) {
        let (spans, pieces) = (&read.spans, &read.pieces);
        read.sources.requested_blocks = spans.len();
        read.sources.memory_blocks = pieces.iter().filter(|piece| piece.is_some()).count();
        read.sources.memory_bytes = pieces.iter().flatten().map(|piece| piece.len() as u64).sum();
        read.sources.prefetched_bytes = prefetched_bytes;
        read.sources.sibling_read_bytes = plan.sibling_read_bytes;
        for (sibling, run) in plan.sibling_memory_runs.iter().chain(&plan.sibling_flash_runs) {
            let bytes = BlockNo::count(run) * BLOCK_BYTES as u64;
            sibling.curves.borrow_mut().record_use(ByteOffset::of(run.start), bytes);
        }
        // Content that a sibling has on flash, or is reading, is not promoted once more.
        let is_own_miss = |span: &Span| read.may_admit && !plan.sibling_blocks.contains(&span.block);
        let missing = spans.iter().zip(pieces).filter(|(span, piece)| piece.is_none() && is_own_miss(span));
        read.sources.pages_to_promote = self.record_misses(missing.map(|(span, _)| span.block), read.is_sequential);
    }

    /// Reads runs of spilled blocks back from the log, into the last of the buffers.
    async fn reload_spilled_runs(
        self: &ShardRef<S>,
        read: &mut ReadProgress<'_, S>,
        runs: Vec<Range<BlockNo>>,
        buffers: &mut Vec<S::BlockMut>,
    ) -> Result<(), RequestError> {
        let has_spilled = !runs.is_empty();
        for run in runs {
            let run_buffers = buffers.split_off(buffers.len() - BlockNo::count(&run) as usize);
            // An unreadable block fails only the requests for it (R11, docs/rules.md).
            let filled = self.reload_into(run, run_buffers, ReloadReason::Read).await?;
            let Some(filled) = filled else { continue };
            read.sources.flash_blocks += filled.blocks.len();
            read.take_filled(&filled);
        }
        if has_spilled {
            read.trace.record(Step::Flash, self.seam().now());
        }
        Ok(())
    }

    /// Reads runs from the flash of siblings, into the last of the buffers.
    async fn read_sibling_runs(
        self: &ShardRef<S>,
        read: &mut ReadProgress<'_, S>,
        runs: Vec<SiblingRun<S>>,
        buffers: &mut Vec<S::BlockMut>,
        admit: Option<InsertKind>,
    ) {
        for (sibling, run) in runs {
            let run_buffers = buffers.split_off(buffers.len() - BlockNo::count(&run) as usize);
            let filled = read_sibling_flash(self, &sibling, run, run_buffers, admit).await;
            read.trace.record(Step::Flash, self.seam().now());
            let Some(filled) = filled else {
                read.sibling_allowance.may_use_flash = false;
                continue;
            };
            read.sources.flash_blocks += filled.blocks.len();
            read.trace.move_time(Step::Flash, Step::Shares, filled.slot_wait);
            read.sources.sibling_read_bytes += read.take_filled(&filled);
        }
    }

    /// Waits for the end of a fill of `filling`, this volume or a sibling.
    async fn join_fill(&self, read: &mut ReadProgress<'_, S>, filling: &Shard<S>, guard: &FillGuard) {
        filling.expedite();
        guard.wait_for_end().await;
        read.sources.has_joined = true;
        read.trace.record(Step::Joined, self.seam().now());
    }

    /// Fills runs from flash and the backing.
    async fn fill_missing_runs(
        self: &ShardRef<S>,
        read: &mut ReadProgress<'_, S>,
        runs: Vec<Range<BlockNo>>,
        buffers: Vec<S::BlockMut>,
        admit: Option<InsertKind>,
    ) -> Result<(), RequestError> {
        let filled = self.fill_all(runs, buffers, admit, &read.spans, &read.sources.pages_to_promote).await?;
        let is_all_flash = filled.iter().all(|filled| filled.flash_blocks == filled.blocks.len());
        for filled in &filled {
            read.sources.unreadable_blocks += filled.unreadable_blocks;
            read.sources.flash_blocks += filled.flash_blocks;
            read.sources.backing_blocks += filled.blocks.len() - filled.flash_blocks;
        }
        let step = if is_all_flash { Step::Flash } else { Step::Backing };
        read.trace.record(step, self.seam().now());
        let slot_wait = filled.iter().map(|filled| filled.slot_wait).max().unwrap_or(Nanos::ZERO);
        read.trace.move_time(step, Step::Shares, slot_wait);
        for filled in filled {
            read.take_filled(&filled);
        }
        Ok(())
    }

    /// Counts a read by its sources: as a hit, a partial hit or a miss with its reason.
    fn count_read(&self, request_bytes: u64, sources: &ReadSources, has_succeeded: bool) {
        let from_elsewhere = sources.backing_blocks > 0 || sources.has_joined || !has_succeeded;
        let from_cache = sources.memory_blocks + sources.flash_blocks;
        let kind = if sources.memory_blocks == sources.requested_blocks && has_succeeded && sources.prefetched_bytes > 0
        {
            ReadKind::Prefetched
        } else if sources.memory_blocks == sources.requested_blocks && has_succeeded {
            ReadKind::Memory
        } else if !from_elsewhere && sources.flash_blocks > 0 {
            ReadKind::Flash
        } else if from_cache > 0 {
            ReadKind::Partial
        } else {
            ReadKind::Miss
        };
        self.counters.count_read(request_bytes, kind, sources.source_bytes(request_bytes));
        self.counters.add(&self.counters.sibling_read_bytes, sources.sibling_read_bytes);
        let counters = &self.flash_tier.counters;
        match kind {
            ReadKind::Memory | ReadKind::Prefetched => {}
            ReadKind::Flash => self.core.promoter().budget().record_hit(),
            _ if !has_succeeded => counters.count_miss(MissReason::Failed),
            _ if sources.unreadable_blocks > 0 => counters.count_miss(MissReason::BadCopy),
            _ if sources.has_joined && sources.backing_blocks == 0 => counters.count_miss(MissReason::Joined),
            _ if self.flash_tier.has_flash_cache() && !self.flash_tier.is_checked() => {
                counters.count_miss(MissReason::Unchecked)
            }
            ReadKind::Partial => counters.count_miss(MissReason::Partial),
            ReadKind::Miss => counters.count_miss(MissReason::Absent),
        }
    }

    /// Bytes of these spans that are served from blocks that readahead brought; the blocks count as used.
    fn record_readahead_uses(&self, memory: &mut MemoryCache<S>, spans: impl Iterator<Item = Span>) -> u64 {
        let mut bytes = 0;
        for span in spans {
            if let Some(id) = memory.find(self.volume_number, span.block)
                && memory.record_readahead_use(id, span.offset_in_block + span.len_bytes)
            {
                bytes += span.len_bytes as u64;
            }
        }
        bytes
    }

    /// A block's part of the request, from memory or a zero-range. Sets `is_read_ahead` if the block was read ahead.
    fn find_in_memory(
        &self,
        state: &State,
        memory: &mut MemoryCache<S>,
        span: &Span,
        is_read_ahead: &mut bool,
    ) -> Option<Piece<S::Block>> {
        if let Some(id) = memory.find(self.volume_number, span.block) {
            let slot = memory.slot(id);
            let bypass = self.mode.get() == CacheMode::Paused && slot.is_clean();
            if bypass || !slot.present.contains(span.sectors()) {
                return None;
            }
            let data = slot.data.clone().expect("a slot in use has content");
            *is_read_ahead |= slot.was_read_ahead;
            memory.touch(id);
            return Some(Piece::new(data, span.offset_in_block, span.len_bytes));
        }
        let zero = state.zeroes.contains(span.block);
        zero.then(|| Piece::new(self.seam().zero_block(), span.offset_in_block, span.len_bytes))
    }

    /// Takes the pieces that memory serves, and determines the sources of the others. `sibling_allowance`: copies of
    /// siblings that the request may use. `may_admit`: the request may admit blocks to memory.
    fn plan_read(
        &self,
        state: &State,
        memory: &mut MemoryCache<S>,
        spans: &[Span],
        pieces: &mut [Option<Piece<S::Block>>],
        sibling_allowance: SiblingAllowance,
        may_admit: bool,
    ) -> ReadPlan<S> {
        let mut plan = ReadPlan::default();
        let mut search = SiblingSearch::default();
        for (span, piece) in spans.iter().zip(pieces) {
            if piece.is_none() {
                *piece = self.find_in_memory(state, memory, span, &mut plan.is_read_ahead);
            }
            if piece.is_some() {
                continue;
            }
            if let Some(guard) = state.fill_guard_for(span.block, span.sectors()) {
                plan.joined_fill = Some(Rc::clone(guard));
                continue;
            }
            let block = span.block;
            let is_spilled = state.log_tracker.is_spilled(block) && !self.has_sabotage(Sabotage::FillOverSpilled);
            if !is_spilled && memory.find(self.volume_number, block).is_none() {
                match self.find_sibling_copy(memory, &mut search, sibling_allowance, block) {
                    Some(SiblingCopy::Memory(sibling, content)) => {
                        *piece = Some(Piece::new(content, span.offset_in_block, span.len_bytes));
                        plan.sibling_read_bytes += span.len_bytes as u64;
                        add_to_run(&mut plan.sibling_memory_runs, sibling, block);
                        continue;
                    }
                    _ if self.is_on_flash(block) => {}
                    Some(SiblingCopy::Flash(sibling)) => {
                        plan.sibling_blocks.push(block);
                        add_to_run(&mut plan.sibling_flash_runs, sibling, block);
                        continue;
                    }
                    Some(SiblingCopy::Fill(sibling, guard)) => {
                        plan.sibling_blocks.push(block);
                        plan.sibling_fill = Some((sibling, guard));
                        continue;
                    }
                    None => {}
                }
                if may_admit && self.admits_reads() {
                    self.register_as_sibling(&search);
                }
            }
            let runs = if is_spilled { &mut plan.spilled_runs } else { &mut plan.missing_runs };
            match runs.last_mut() {
                Some(run) if run.end == block && BlockNo::count(run) < FILL_BLOCKS_MAX => run.end = run.end.next(),
                _ => runs.push(block.single()),
            }
        }
        plan
    }

    /// Fills all runs concurrently, into a buffer for each block. A failed run is retried block by block, and a failed
    /// block sector by sector, so that a bad sector fails only the requests for it. `pages_to_promote`: pages to be
    /// promoted.
    async fn fill_all(
        self: &ShardRef<S>,
        runs: Vec<Range<BlockNo>>,
        mut buffers: Vec<S::BlockMut>,
        admit: Option<InsertKind>,
        spans: &[Span],
        pages_to_promote: &[PageNo],
    ) -> Result<Vec<FillResult<S>>, RequestError> {
        let results: Vec<RunResult<S>> = match &runs[..] {
            [run] => {
                let result = match self.page_to_fill(run, pages_to_promote) {
                    Some(page) => self.fill_page(page, run.clone(), buffers, admit).await,
                    None => self.fill_into(run.clone(), buffers, admit, Cause::ClientRead).await,
                };
                vec![(run.clone(), result)]
            }
            _ => {
                let results = Rc::new(RefCell::new(Vec::new()));
                let completion = Rc::new(WriteWait::default());
                for run in runs {
                    completion.expect_one();
                    let run_buffers = buffers.split_off(buffers.len() - BlockNo::count(&run) as usize);
                    let (shard, results, completion) = (Rc::clone(self), Rc::clone(&results), Rc::clone(&completion));
                    self.seam().spawn(async move {
                        let result = shard.fill_into(run.clone(), run_buffers, admit, Cause::ClientRead).await;
                        results.borrow_mut().push((run, result));
                        completion.finish_one(Ok(&()));
                    });
                }
                completion.wait_for_all().await?;
                results.take()
            }
        };
        if results.iter().any(|(_, result)| result.is_err()) {
            self.counters.add(&self.counters.backing_errors, 1);
        }
        let mut filled = Vec::new();
        for (run, result) in results {
            match result {
                Ok(one) => filled.push(one),
                Err(DiskError::Gone) => return Err(DiskError::Gone.into()),
                Err(error) if BlockNo::count(&run) == 1 => {
                    filled.push(self.fill_sectors(run.start, spans, error).await?)
                }
                Err(_) => {
                    for block in BlockNo::each(&run) {
                        match self.fill(block.single(), admit, Cause::ClientRead).await {
                            Ok(one) => filled.push(one),
                            Err(error) => filled.push(self.fill_sectors(block, spans, error).await?),
                        }
                    }
                }
            }
        }
        Ok(filled)
    }

    /// Reads only the sectors of a block that the request needs, after the whole block failed.
    async fn fill_sectors(
        &self,
        block: BlockNo,
        spans: &[Span],
        error: DiskError,
    ) -> Result<FillResult<S>, RequestError> {
        let span = spans.iter().find(|span| span.block == block).expect("only blocks of the request are filled");
        let is_narrower =
            span.sectors() != Sectors::ALL && self.disk.geometry().logical_block as usize <= span.len_bytes;
        if !is_narrower || !(span.offset_in_block as u64).is_multiple_of(u64::from(self.disk.geometry().logical_block))
        {
            return Err(error.into());
        }
        Ok(self.read_sectors_from_backing(span).await?)
    }

    /// Records the read in its stream and starts readahead; true if the read is sequential.
    fn record_stream_read(self: &ShardRef<S>, at: ByteOffset, len_bytes: usize) -> bool {
        let ahead_max = self.core.spec().readahead_max_bytes;
        if ahead_max == 0 {
            return false;
        }
        let stream_read =
            self.read_streams.borrow_mut().record_read(at, len_bytes as u64, self.size_bytes.get(), ahead_max);
        if let Some(range) = stream_read.readahead
            && self.admits_reads()
            && self.dispatch.may_read_ahead()
        {
            let shard = Rc::clone(self);
            self.seam().spawn(async move { shard.read_ahead(range).await });
        }
        stream_read.is_sequential
    }

    /// Reads the absent ones of `blocks` into memory. Errors are dropped: a later client request reports them.
    pub async fn read_ahead(self: &ShardRef<S>, blocks: Range<BlockNo>) {
        self.fill_absent(blocks, InsertKind::Stream, Cause::Readahead).await;
    }

    /// Like [`Shard::read_ahead`], for another cause.
    pub async fn fill_absent(self: &ShardRef<S>, blocks: Range<BlockNo>, admit: InsertKind, cause: Cause) {
        let mut next = blocks.start;
        while next < blocks.end && self.admits_reads() {
            let run = self.with_state(|state, memory| {
                let mut search = SiblingSearch::default();
                let mut absent = |block: BlockNo| {
                    let is_absent = memory.find(self.volume_number, block).is_none()
                        && !state.zeroes.contains(block)
                        && !state.log_tracker.is_spilled(block)
                        && state.fill_guard_for(block, Sectors::ALL).is_none()
                        && self.find_sibling_copy(memory, &mut search, SiblingAllowance::default(), block).is_none();
                    if is_absent {
                        self.register_as_sibling(&search);
                    }
                    is_absent
                };
                let start = BlockNo::each(&(next..blocks.end)).find(|block| absent(*block))?;
                let run_end_max = blocks.end.min(start.plus(FILL_BLOCKS_MAX));
                let end = BlockNo::each(&(start..run_end_max)).find(|block| !absent(*block));
                Some(start..end.unwrap_or(run_end_max))
            });
            let Some(run) = run else { return };
            next = run.end;
            let bytes = BlockNo::count(&run) * BLOCK_BYTES as u64;
            if self.fill(run, Some(admit), cause).await.is_err() {
                return;
            }
            self.counters.add(&self.counters.readahead_bytes, bytes);
        }
    }
}

/// Sources of a read's blocks.
#[derive(Default)]
struct ReadSources {
    /// Blocks of the request.
    requested_blocks: usize,
    /// Blocks that the first pass found in memory.
    memory_blocks: usize,
    /// Blocks read from flash.
    flash_blocks: usize,
    /// Blocks read from the backing.
    backing_blocks: usize,
    /// Bytes from memory, blocks that were read ahead included.
    memory_bytes: u64,
    /// Bytes from blocks in memory that were read ahead.
    prefetched_bytes: u64,
    /// Bytes from the cache of a sibling; they count as memory or flash, too.
    sibling_read_bytes: u64,
    /// The read waited for the fill of another request.
    has_joined: bool,
    /// Blocks that flash failed to deliver.
    unreadable_blocks: usize,
    /// Pages to be promoted.
    pages_to_promote: Vec<PageNo>,
}

impl ReadSources {
    /// Bytes of a request of `request_bytes` bytes by source. A fill reads whole blocks: its parts are divided in
    /// proportion.
    fn source_bytes(&self, request_bytes: u64) -> SourceBytes {
        let not_memory = request_bytes - self.memory_bytes;
        let filled = (self.flash_blocks + self.backing_blocks) as u64;
        let flash = not_memory * self.flash_blocks as u64 / filled.max(1);
        SourceBytes {
            memory: self.memory_bytes - self.prefetched_bytes,
            prefetched: self.prefetched_bytes,
            flash,
            backing: not_memory - flash,
        }
    }
}

/// A read in progress.
struct ReadProgress<'a, S: Seam> {
    /// The blocks of the request, each with its part of it.
    spans: Vec<Span>,
    /// The content of each span that has been found so far.
    pieces: Vec<Option<Piece<S::Block>>>,
    /// The read may admit blocks to memory.
    may_admit: bool,
    /// The read continues a sequential stream.
    is_sequential: bool,
    /// Copies of siblings that the read may use.
    sibling_allowance: SiblingAllowance,
    trace: &'a LatencyTrace,
    sources: &'a mut ReadSources,
}

impl<S: Seam> ReadProgress<'_, S> {
    /// Takes the missing pieces from a fill, as far as it covers them and is still valid. Returns their bytes.
    fn take_filled(&mut self, filled: &FillResult<S>) -> u64 {
        let mut taken_bytes = 0;
        let end = filled.first_block.plus(filled.blocks.len() as u64);
        for (span, piece) in self.spans.iter().zip(&mut self.pieces) {
            if piece.is_none()
                && (filled.first_block..end).contains(&span.block)
                && let Some(data) = filled.content(span.block, span.sectors())
            {
                *piece = Some(Piece::new(data.clone(), span.offset_in_block, span.len_bytes));
                taken_bytes += span.len_bytes as u64;
            }
        }
        taken_bytes
    }
}

/// A run and the result of its fill.
type RunResult<S> = (Range<BlockNo>, Result<FillResult<S>, DiskError>);

/// Sources of the blocks that memory does not serve.
struct ReadPlan<S: Seam> {
    /// Runs to be read from the volume's pages on flash, or else from the backing.
    missing_runs: Vec<Range<BlockNo>>,
    /// Runs of spilled blocks on flash.
    spilled_runs: Vec<Range<BlockNo>>,
    /// Another request's fill that will install more of the blocks.
    joined_fill: Option<Rc<FillGuard>>,
    /// A block that was found had been read ahead.
    is_read_ahead: bool,
    /// Runs found in the memory of siblings, and runs on their flash, each in one page.
    sibling_memory_runs: Vec<SiblingRun<S>>,
    sibling_flash_runs: Vec<SiblingRun<S>>,
    /// The fill of a sibling that will bring more of the blocks.
    sibling_fill: Option<(ShardRef<S>, Rc<FillGuard>)>,
    /// Blocks that siblings have on flash, or are reading.
    sibling_blocks: Vec<BlockNo>,
    /// Bytes of the request found in the memory of siblings.
    sibling_read_bytes: u64,
}

impl<S: Seam> Default for ReadPlan<S> {
    fn default() -> Self {
        ReadPlan {
            missing_runs: Vec::new(),
            spilled_runs: Vec::new(),
            joined_fill: None,
            is_read_ahead: false,
            sibling_memory_runs: Vec::new(),
            sibling_flash_runs: Vec::new(),
            sibling_fill: None,
            sibling_blocks: Vec::new(),
            sibling_read_bytes: 0,
        }
    }
}

impl<S: Seam> ReadPlan<S> {
    /// Number of blocks to be read from flash and from the backing.
    fn block_count(&self) -> usize {
        let sibling_runs = self.sibling_flash_runs.iter().map(|(_, run)| run);
        self.missing_runs
            .iter()
            .chain(&self.spilled_runs)
            .chain(sibling_runs)
            .map(|run| BlockNo::count(run) as usize)
            .sum()
    }
}

/// Blocks of one page and the sibling that has them.
type SiblingRun<S> = (ShardRef<S>, Range<BlockNo>);

/// Adds a block to the last run if it continues it.
fn add_to_run<S: Seam>(runs: &mut Vec<SiblingRun<S>>, sibling: ShardRef<S>, block: BlockNo) {
    match runs.last_mut() {
        Some((last, run)) if Rc::ptr_eq(last, &sibling) && run.end == block && run.start.page().0 == block.page().0 => {
            run.end = block.next();
        }
        _ => runs.push((sibling, block.single())),
    }
}
