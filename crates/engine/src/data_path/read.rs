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
use crate::policy::Admit;
use crate::shard::fill_guard::FillGuard;
use crate::shard::siblings::{SiblingCopy, SiblingSearch, SiblingUse};
use crate::shard::state::State;
use crate::shard::wait::WriteWait;
use crate::shard::{Shard, ShardRef, Span, blocks_of, spans};
use crate::spec::Sabotage;
use crate::stats::{ReadKind, SourceBytes};
use crate::telemetry::{LatencyTrace, Step};
use crate::{ByteOffset, CacheMode, RequestError};

/// Longest read tried without waiting, in blocks.
const NOW_BLOCKS_MAX: usize = 64;
/// Longest single request to the backing for a miss, in blocks.
const FILL_BLOCKS_MAX: u64 = 64;

impl<S: Seam> Shard<S> {
    /// Appends all of the range to `out` if it is in memory, else leaves `out` as it was.
    pub fn read_now(self: &ShardRef<S>, at: ByteOffset, len: usize, out: &mut Vec<Piece<S::Block>>) -> bool {
        if len > NOW_BLOCKS_MAX * BLOCK_BYTES {
            return false;
        }
        let before = out.len();
        let prefetched = self.with(|state, memory| {
            memory.prefetch_run_entries(self.number, blocks_of(at, len as u64));
            let mut is_read_ahead = false;
            let is_complete =
                spans(at, len).all(|span| match self.find_in_memory(state, memory, &span, &mut is_read_ahead) {
                    Some(piece) => {
                        out.push(piece);
                        true
                    }
                    None => false,
                });
            is_complete.then(|| if is_read_ahead { self.record_readahead_uses(memory, spans(at, len)) } else { 0 })
        });
        let Some(prefetched) = prefetched else {
            out.truncate(before);
            return false;
        };
        self.counters.count_immediate_read(len as u64, prefetched);
        self.curves.borrow_mut().record_use(at, len as u64);
        self.record_stream_read(at, len);
        true
    }

    /// Appends the range to `out`, split at block boundaries. `keep`: the read may admit blocks to memory and trigger
    /// readahead.
    pub async fn read(
        self: &ShardRef<S>,
        at: ByteOffset,
        len: usize,
        out: &mut Vec<Piece<S::Block>>,
        keep: bool,
        trace: &LatencyTrace,
    ) -> Result<(), RequestError> {
        let mut sources = ReadSources::default();
        let result = self.read_with_sources(at, len, out, keep, trace, &mut sources).await;
        // A use of a sibling's block counts in the curve of the sibling: memory of this volume would not help.
        if sources.sibling_read_bytes < len as u64 {
            self.curves.borrow_mut().record_use(at, len as u64);
        }
        self.count_read(len as u64, &sources, result.is_ok());
        if result.is_ok() {
            self.queue_promotions(sources.to_promote);
        }
        result
    }

    /// Appends the range to `out` for a write that changes a part of it. It is not counted as a read.
    pub async fn read_for_partial_write(
        self: &ShardRef<S>,
        at: ByteOffset,
        len: usize,
        out: &mut Vec<Piece<S::Block>>,
        trace: &LatencyTrace,
    ) -> Result<(), RequestError> {
        self.read_with_sources(at, len, out, true, trace, &mut ReadSources::default()).await
    }

    async fn read_with_sources(
        self: &ShardRef<S>,
        at: ByteOffset,
        len: usize,
        out: &mut Vec<Piece<S::Block>>,
        keep: bool,
        trace: &LatencyTrace,
        sources: &mut ReadSources,
    ) -> Result<(), RequestError> {
        let spans: Vec<Span> = spans(at, len).collect();
        let mut pieces: Vec<Option<Piece<S::Block>>> = Vec::new();
        pieces.resize_with(spans.len(), || None);
        let sequential = keep && self.record_stream_read(at, len);
        let mut is_first_pass = true;
        let mut sibling_use = SiblingUse::default();
        self.last_request.set(self.seam().now());
        loop {
            let (plan, prefetched_bytes) = self.with(|state, memory| {
                let plan = self.plan(state, memory, &spans, &mut pieces, (sibling_use, keep));
                let cached = spans.iter().zip(&pieces).filter(|(_, piece)| piece.is_some()).map(|(span, _)| *span);
                let bytes = if plan.is_read_ahead { self.record_readahead_uses(memory, cached) } else { 0 };
                (plan, bytes)
            });
            if std::mem::take(&mut is_first_pass) {
                sources.requested = spans.len();
                sources.from_memory = pieces.iter().filter(|piece| piece.is_some()).count();
                sources.memory_bytes = pieces.iter().flatten().map(|piece| piece.len() as u64).sum();
                sources.prefetched_bytes = prefetched_bytes;
                sources.sibling_read_bytes = plan.sibling_read_bytes;
                for (sibling, run) in plan.sibling_memory.iter().chain(&plan.sibling_flash) {
                    let bytes = BlockNo::count(run) * BLOCK_BYTES as u64;
                    sibling.curves.borrow_mut().record_use(ByteOffset::of(run.start), bytes);
                }
                // Content that a sibling has on flash, or is reading, is not promoted once more.
                let is_own_miss = |span: &Span| keep && !plan.sibling_blocks.contains(&span.block);
                let missing = spans.iter().zip(&pieces).filter(|(span, piece)| piece.is_none() && is_own_miss(span));
                sources.to_promote = self.record_misses(missing.map(|(span, _)| span.block), sequential);
            }
            let Some(mut buffers) = self.core.alloc_all(plan.block_count(), false).await else {
                // A read that waits for buffers holds none: otherwise concurrent reads could hold all buffers and wait
                // for each other.
                pieces.fill_with(|| None);
                self.core.wait_for_buffers().await;
                continue;
            };
            let has_reloaded = !plan.spilled.is_empty();
            for run in plan.spilled {
                let run_buffers = buffers.split_off(buffers.len() - BlockNo::count(&run) as usize);
                // An unreadable block fails only the requests for it (R11, docs/rules.md).
                let filled = self.reload_into(run, run_buffers, ReloadReason::Read).await?;
                let Some(filled) = filled else { continue };
                sources.from_flash += filled.blocks.len();
                for (span, piece) in spans.iter().zip(&mut pieces) {
                    take_filled(&filled, span, piece);
                }
            }
            if has_reloaded {
                trace.record(Step::Flash, self.seam().now());
            }
            let admit = (keep && self.admits_reads()).then_some(if sequential { Admit::Stream } else { Admit::Normal });
            for (sibling, run) in plan.sibling_flash {
                let run_buffers = buffers.split_off(buffers.len() - BlockNo::count(&run) as usize);
                let filled = read_sibling_flash(self, &sibling, run, run_buffers, admit).await;
                trace.record(Step::Flash, self.seam().now());
                let Some(filled) = filled else {
                    sibling_use.flash = false;
                    continue;
                };
                sources.from_flash += filled.blocks.len();
                trace.move_time(Step::Flash, Step::Shares, filled.waited);
                for (span, piece) in spans.iter().zip(&mut pieces) {
                    let was_missing = piece.is_none();
                    take_filled(&filled, span, piece);
                    sources.sibling_read_bytes += if was_missing && piece.is_some() { span.len as u64 } else { 0 };
                }
            }
            if plan.missing.is_empty() {
                if let Some((sibling, guard)) = plan.sibling_fill.filter(|_| plan.join.is_none()) {
                    sibling.expedite();
                    guard.wait_for_end().await;
                    sibling_use.joins_left -= 1;
                    sources.joined = true;
                    trace.record(Step::Joined, self.seam().now());
                    continue;
                }
                match plan.join {
                    Some(guard) => {
                        self.expedite();
                        guard.wait_for_end().await;
                        sources.joined = true;
                        trace.record(Step::Joined, self.seam().now());
                    }
                    None if pieces.iter().all(Option::is_some) => break,
                    None => {}
                }
                continue;
            }
            let filled = self.fill_all(plan.missing, buffers, admit, &spans, &sources.to_promote).await?;
            let from_flash: usize = filled.iter().map(|filled| filled.from_flash).sum();
            sources.unreadable += filled.iter().map(|filled| filled.unreadable).sum::<usize>();
            let all_flash = filled.iter().all(|filled| filled.from_flash == filled.blocks.len());
            sources.from_flash += from_flash;
            sources.from_backing += filled.iter().map(|filled| filled.blocks.len() - filled.from_flash).sum::<usize>();
            let step = if all_flash { Step::Flash } else { Step::Backing };
            trace.record(step, self.seam().now());
            let waited = filled.iter().map(|filled| filled.waited).max().unwrap_or(Nanos::ZERO);
            trace.move_time(step, Step::Shares, waited);
            for filled in filled {
                for (span, piece) in spans.iter().zip(&mut pieces) {
                    take_filled(&filled, span, piece);
                }
            }
        }
        out.extend(pieces.into_iter().map(|piece| piece.expect("the plan left nothing missing")));
        Ok(())
    }

    fn count_read(&self, bytes: u64, sources: &ReadSources, succeeded: bool) {
        let from_elsewhere = sources.from_backing > 0 || sources.joined || !succeeded;
        let from_cache = sources.from_memory + sources.from_flash;
        let kind = if sources.from_memory == sources.requested && succeeded && sources.prefetched_bytes > 0 {
            ReadKind::Prefetched
        } else if sources.from_memory == sources.requested && succeeded {
            ReadKind::Memory
        } else if !from_elsewhere && sources.from_flash > 0 {
            ReadKind::Flash
        } else if from_cache > 0 {
            ReadKind::Part
        } else {
            ReadKind::Miss
        };
        self.counters.count_read(bytes, kind, sources.bytes(bytes));
        self.counters.add(&self.counters.sibling_read_bytes, sources.sibling_read_bytes);
        let counters = &self.flash_tier.counters;
        match kind {
            ReadKind::Memory | ReadKind::Prefetched => {}
            ReadKind::Flash => self.core.promoter().budget().record_hit(),
            _ if !succeeded => counters.count_miss(MissReason::Failed),
            _ if sources.unreadable > 0 => counters.count_miss(MissReason::BadCopy),
            _ if sources.joined && sources.from_backing == 0 => counters.count_miss(MissReason::Joined),
            _ if self.flash_tier.is_used() && !self.flash_tier.is_checked() => {
                counters.count_miss(MissReason::Unchecked)
            }
            ReadKind::Part => counters.count_miss(MissReason::Part),
            ReadKind::Miss => counters.count_miss(MissReason::Absent),
        }
    }

    /// Bytes of these spans that are served from blocks that readahead brought; the blocks count as used.
    fn record_readahead_uses(&self, memory: &mut MemoryCache<S>, spans: impl Iterator<Item = Span>) -> u64 {
        let mut bytes = 0;
        for span in spans {
            if let Some(id) = memory.find(self.number, span.block)
                && memory.record_readahead_use(id, span.start + span.len)
            {
                bytes += span.len as u64;
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
        if let Some(id) = memory.find(self.number, span.block) {
            let slot = memory.slot(id);
            let bypass = self.mode.get() == CacheMode::Paused && slot.is_clean();
            if bypass || !slot.present.contains(span.sectors()) {
                return None;
            }
            let data = slot.data.clone().expect("a slot in use has content");
            *is_read_ahead |= slot.read_ahead;
            memory.touch(id);
            return Some(Piece::new(data, span.start, span.len));
        }
        let zero = state.zeroes.contains(span.block);
        zero.then(|| Piece::new(self.seam().zero_block(), span.start, span.len))
    }

    /// Takes the pieces that memory serves, and determines the sources of the others. The last argument says which
    /// copies of siblings the request may use, and whether it admits blocks to memory.
    fn plan(
        &self,
        state: &State,
        memory: &mut MemoryCache<S>,
        spans: &[Span],
        pieces: &mut [Option<Piece<S::Block>>],
        (sibling_use, keep): (SiblingUse, bool),
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
                plan.join = Some(Rc::clone(guard));
                continue;
            }
            let block = span.block;
            let is_spilled = state.log_tracker.is_spilled(block) && !self.sabotage(Sabotage::FillOverSpilled);
            if !is_spilled && memory.find(self.number, block).is_none() {
                match self.find_sibling_copy(memory, &mut search, sibling_use, block) {
                    Some(SiblingCopy::Memory(sibling, content)) => {
                        *piece = Some(Piece::new(content, span.start, span.len));
                        plan.sibling_read_bytes += span.len as u64;
                        add_to_run(&mut plan.sibling_memory, sibling, block);
                        continue;
                    }
                    _ if self.is_on_flash(block) => {}
                    Some(SiblingCopy::Flash(sibling)) => {
                        plan.sibling_blocks.push(block);
                        add_to_run(&mut plan.sibling_flash, sibling, block);
                        continue;
                    }
                    Some(SiblingCopy::Fill(sibling, guard)) => {
                        plan.sibling_blocks.push(block);
                        plan.sibling_fill = Some((sibling, guard));
                        continue;
                    }
                    None => {}
                }
                if keep && self.admits_reads() {
                    self.register_as_sibling(&search);
                }
            }
            let runs = if is_spilled { &mut plan.spilled } else { &mut plan.missing };
            match runs.last_mut() {
                Some(run) if run.end == block && BlockNo::count(run) < FILL_BLOCKS_MAX => run.end = run.end.next(),
                _ => runs.push(block.single()),
            }
        }
        plan
    }

    /// Fills all runs concurrently, into a buffer for each block. A failed run is retried block by block, and a failed
    /// block sector by sector, so that a bad sector fails only the requests for it. `to_promote`: pages to be promoted.
    async fn fill_all(
        self: &ShardRef<S>,
        runs: Vec<Range<BlockNo>>,
        mut buffers: Vec<S::BlockMut>,
        admit: Option<Admit>,
        spans: &[Span],
        to_promote: &[PageNo],
    ) -> Result<Vec<FillResult<S>>, RequestError> {
        let results: Vec<RunResult<S>> = match &runs[..] {
            [run] => {
                let result = match self.page_to_fill(run, to_promote) {
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
        let is_narrower = span.sectors() != Sectors::ALL && self.disk.geometry().logical_block as usize <= span.len;
        if !is_narrower || !(span.start as u64).is_multiple_of(u64::from(self.disk.geometry().logical_block)) {
            return Err(error.into());
        }
        Ok(self.fill_span(span).await?)
    }

    /// Records the read in its stream and starts readahead; true if the read is sequential.
    fn record_stream_read(self: &ShardRef<S>, at: ByteOffset, len: usize) -> bool {
        let ahead_max = self.core.spec().readahead_max_bytes;
        if ahead_max == 0 {
            return false;
        }
        let stream_read = self.streams.borrow_mut().record_read(at, len as u64, self.size_bytes.get(), ahead_max);
        if let Some(range) = stream_read.ahead
            && self.admits_reads()
            && self.dispatch.may_read_ahead()
        {
            let shard = Rc::clone(self);
            self.seam().spawn(async move { shard.read_ahead(range).await });
        }
        stream_read.sequential
    }

    /// Reads the absent ones of `blocks` into memory. Errors are dropped: a later client request reports them.
    pub async fn read_ahead(self: &ShardRef<S>, blocks: Range<BlockNo>) {
        self.fill_absent(blocks, Admit::Stream, Cause::Readahead).await;
    }

    /// Like [`Shard::read_ahead`], for another cause.
    pub async fn fill_absent(self: &ShardRef<S>, blocks: Range<BlockNo>, admit: Admit, cause: Cause) {
        let mut next = blocks.start;
        while next < blocks.end && self.admits_reads() {
            let run = self.with(|state, memory| {
                let mut search = SiblingSearch::default();
                let mut absent = |block: BlockNo| {
                    let is_absent = memory.find(self.number, block).is_none()
                        && !state.zeroes.contains(block)
                        && !state.log_tracker.is_spilled(block)
                        && state.fill_guard_for(block, Sectors::ALL).is_none()
                        && self.find_sibling_copy(memory, &mut search, SiblingUse::default(), block).is_none();
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
    requested: usize,
    from_memory: usize,
    from_flash: usize,
    from_backing: usize,
    /// Bytes from memory, those of blocks that were read ahead included.
    memory_bytes: u64,
    prefetched_bytes: u64,
    /// Bytes from the cache of a sibling; they count as memory or flash, too.
    sibling_read_bytes: u64,
    joined: bool,
    /// Blocks that flash failed to deliver.
    unreadable: usize,
    /// Pages to be promoted.
    to_promote: Vec<PageNo>,
}

impl ReadSources {
    /// Bytes of a request of `request_bytes` bytes by source. A fill reads whole blocks: its parts are divided in
    /// proportion.
    fn bytes(&self, request_bytes: u64) -> SourceBytes {
        let not_memory = request_bytes - self.memory_bytes;
        let filled = (self.from_flash + self.from_backing) as u64;
        let flash = not_memory * self.from_flash as u64 / filled.max(1);
        SourceBytes {
            memory: self.memory_bytes - self.prefetched_bytes,
            prefetched: self.prefetched_bytes,
            flash,
            backing: not_memory - flash,
        }
    }
}

/// A run and the result of its fill.
type RunResult<S> = (Range<BlockNo>, Result<FillResult<S>, DiskError>);

/// Sources of the blocks that memory does not serve.
struct ReadPlan<S: Seam> {
    /// Runs to be read from the backing.
    missing: Vec<Range<BlockNo>>,
    /// Runs of spilled blocks on flash.
    spilled: Vec<Range<BlockNo>>,
    /// Another request's fill that will install more of the blocks.
    join: Option<Rc<FillGuard>>,
    /// A block that was found had been read ahead.
    is_read_ahead: bool,
    /// Runs found in the memory of siblings, and runs on their flash, each in one page.
    sibling_memory: Vec<SiblingRun<S>>,
    sibling_flash: Vec<SiblingRun<S>>,
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
            missing: Vec::new(),
            spilled: Vec::new(),
            join: None,
            is_read_ahead: false,
            sibling_memory: Vec::new(),
            sibling_flash: Vec::new(),
            sibling_fill: None,
            sibling_blocks: Vec::new(),
            sibling_read_bytes: 0,
        }
    }
}

impl<S: Seam> ReadPlan<S> {
    /// Number of blocks to be read from flash and from the backing.
    fn block_count(&self) -> usize {
        let sibling_runs = self.sibling_flash.iter().map(|(_, run)| run);
        self.missing.iter().chain(&self.spilled).chain(sibling_runs).map(|run| BlockNo::count(run) as usize).sum()
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

/// Takes the content of `span` from a fill, if it covers the span and is still valid.
fn take_filled<S: Seam>(filled: &FillResult<S>, span: &Span, piece: &mut Option<Piece<S::Block>>) {
    let last = filled.first.plus(filled.blocks.len() as u64);
    if piece.is_none()
        && (filled.first..last).contains(&span.block)
        && let Some(data) = filled.content(span.block, span.sectors())
    {
        *piece = Some(Piece::new(data.clone(), span.start, span.len));
    }
}
