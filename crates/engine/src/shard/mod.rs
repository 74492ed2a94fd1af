//! A volume's part on one core: its blocks in memory, their way to the backing, and the requests that meet there.

pub mod admin;
pub mod allocation;
pub mod common;
pub mod division;
pub mod fill;
pub mod flush;
pub mod keep;
pub mod read;
pub mod recall;
pub mod state;
pub mod streams;
pub mod turns;
pub mod wait;
pub mod write;
pub mod zero;

use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::rc::Rc;

use qos::Cost;
use seam::{BLOCK_BYTES, Disk, Nanos, Seam};

use crate::backing::{AnyDisk, Cause, Datastore, Dispatch, Priority, Turn};
use crate::destage::throttle::Throttle;
use crate::destage::writer::Retry;
use crate::log::company::Company;
use crate::memory::{BlockNo, Memory, Sectors};
use crate::pages::Level;
use crate::pages::slow::SlowRequests;
use crate::policy::curve::Curves;
use crate::spec::Sabotage;
use crate::stats::Counters;
use crate::wait::Signal;
use crate::{CacheMode, MemoryShare, WritePolicy};
use common::Common;
use state::State;
use streams::Streams;

/// A volume's part on one core.
pub struct Shard<S: Seam> {
    /// What it shares with the others on its core.
    pub core: Rc<Common<S>>,
    /// The volume's number on this core.
    pub number: u32,
    /// The volume's identity.
    pub incarnation: u64,
    /// The storage.
    pub disk: AnyDisk<S>,
    /// The way to the storage: who may send how much.
    pub dispatch: Dispatch,
    /// Those with whom it shares the storage, if there are any.
    pub datastore: RefCell<Option<Rc<Datastore<S>>>>,
    /// Bytes that clients see.
    pub size_bytes: Cell<u64>,
    /// When writes are acknowledged.
    pub policy: Cell<WritePolicy>,
    /// Whether the cache takes part.
    pub mode: Cell<CacheMode>,
    /// Age at which dirty data is durable at the latest under `write-back-volatile`.
    pub defer: Nanos,
    /// State of blocks and ranges.
    pub state: RefCell<State>,
    /// What slows writers down.
    pub throttle: Throttle,
    /// Pauses between attempts on a backing that refuses writes.
    pub retry: Retry,
    /// Sequential streams.
    pub streams: RefCell<Streams>,
    /// Something for the destage pump to look at.
    pub work: Signal,
    /// Something that a request may wait for has happened.
    pub progress: Signal,
    /// Who asks the log for flushes.
    pub company: Company,
    /// What it has done.
    pub counters: Counters,
    /// What caches of other sizes would miss.
    pub curves: RefCell<Curves>,
    /// Its part of the memory.
    pub memory_share: Cell<MemoryShare>,
    /// Its clean pages on flash.
    pub level: Level<S>,
    /// Its slowest requests.
    pub slow: SlowRequests,
    /// The pump is to end.
    pub stopping: Cell<bool>,
    /// All that is dirty is to go.
    pub draining: Cell<bool>,
    /// Nothing is sent to the backing for now: its size is being changed.
    pub holding: Cell<bool>,
    /// A flush of the backing that nobody asked for is under way.
    pub flushing_alone: Cell<bool>,
    /// The log is being flushed without being asked.
    pub spilling: Cell<bool>,
    /// No earlier than then the log is flushed again without being asked.
    pub spill_after: Cell<Nanos>,
    /// It serves nobody and never will: what the log and earlier notes hold of it is for whoever takes it over.
    pub given_up: Cell<bool>,
    /// Last time the backing was flushed without being asked.
    pub last_sync: Cell<Nanos>,
    /// Last time a client asked for something; of hits alone, known to a tick while something is dirty.
    pub last_request: Cell<Nanos>,
}

impl<S: Seam> Shard<S> {
    /// The world.
    pub fn seam(&self) -> &S {
        self.core.seam()
    }

    /// True when this deliberate fault is built in.
    pub fn sabotage(&self, which: Sabotage) -> bool {
        self.core.spec().sabotage == which
    }

    /// Works on the states of blocks: the shard's and the core's memory together.
    pub fn with<R>(&self, work: impl FnOnce(&mut State, &mut Memory<S>) -> R) -> R {
        let (state, memory) = (&mut *self.state.borrow_mut(), &mut *self.core.memory().borrow_mut());
        let result = work(state, memory);
        memory.keep(self.incarnation, &mut state.zeroes, state.ledger.outdated());
        result
    }

    /// Blocks of the volume, the last one perhaps short.
    pub fn blocks(&self) -> u64 {
        self.size_bytes.get().div_ceil(BLOCK_BYTES as u64)
    }

    /// The sectors of a block that lie inside the volume.
    pub fn sectors_inside(&self, block: BlockNo) -> Sectors {
        let start = block.0 * BLOCK_BYTES as u64;
        let inside = self.size_bytes.get().saturating_sub(start).min(BLOCK_BYTES as u64) as usize;
        if inside == 0 { Sectors::NONE } else { Sectors::span(0, inside) }
    }

    /// Bytes of a block that lie inside the volume.
    pub fn bytes_inside(&self, block: u64) -> usize {
        let start = block * BLOCK_BYTES as u64;
        self.size_bytes.get().saturating_sub(start).min(BLOCK_BYTES as u64) as usize
    }

    /// Age at which dirty data is destaged.
    pub fn age_max(&self) -> Nanos {
        match self.policy.get() {
            // Half of what was promised, so that destage has the other half.
            WritePolicy::WriteBackVolatile => Nanos(self.defer.0 / 2),
            _ => self.core.spec().dirty_age_max,
        }
    }

    /// True when a read may leave something in memory.
    pub fn admits_reads(&self) -> bool {
        let policy = self.policy.get() != WritePolicy::None;
        policy && self.mode.get() == CacheMode::Active
    }

    /// True when a written block may stay in memory.
    pub fn keeps_writes(&self) -> bool {
        let policy = !matches!(self.policy.get(), WritePolicy::None | WritePolicy::WriteAround);
        policy && self.mode.get() == CacheMode::Active
    }

    /// True when a write is acknowledged from memory.
    pub fn defers_writes(&self) -> bool {
        self.policy.get().defers_writes() && self.mode.get() == CacheMode::Active
    }

    /// Dirty, in-flight and written blocks that this shard may have: an equal share of what is free of the bound, so that
    /// one volume alone gets two thirds and there is always room for another (dynamic thresholds, Choudhury and Hahne).
    pub fn unclean_limit(&self) -> u64 {
        let spec = self.core.spec();
        let bound = self.seam().blocks_total() as u64 * u64::from(spec.dirty_max_percent) / 100;
        let others = self.core.unclean().saturating_sub(self.state.borrow().unclean());
        let free = bound.saturating_sub(others);
        // What is not clean cannot leave: half of a maximum is enough of it.
        (free * 2 / 3).min(self.memory_max() / 2).max(1)
    }

    /// Its turn among those that share its storage, for one request of `len` bytes at `at`; held until that is done. `None`: it shares with nobody.
    pub async fn turn(&self, write: bool, at: u64, len: u64, priority: Priority) -> Option<Turn<S>> {
        let datastore = self.datastore.borrow().clone()?;
        let usual = if write { datastore.write_cost() } else { 1 };
        let cost = Cost::of(self.disk.accesses(write, at, len).unwrap_or(usual), len);
        Some(self.noting(datastore.turn(self.number, cost, priority).await))
    }

    /// Its turn among those that read from flash.
    pub async fn flash_turn(&self, bytes: u64, priority: Priority) -> Turn<S> {
        self.noting(self.core.flash_turns().turn(self.number, Cost::of(1, bytes), priority).await)
    }

    /// Whether a client waits for a read of this cause.
    pub fn priority_of_read(&self, cause: Cause) -> Priority {
        let is_waited_for = match cause {
            Cause::ClientRead => true,
            Cause::Destage => {
                let state = self.state.borrow();
                state.logging.turns.is_running() || self.is_destage_waited_for(&state)
            }
            Cause::Readahead | Cause::Promotion => false,
        };
        if is_waited_for { Priority::Foreground } else { Priority::Background }
    }

    /// A client waits for background work of the volume now.
    pub fn expedite(&self) {
        self.datastore.borrow().iter().for_each(|datastore| datastore.expedite(self.number));
        self.core.flash_turns().expedite(self.number);
    }

    fn noting(&self, turn: Turn<S>) -> Turn<S> {
        if turn.waited > Nanos::ZERO {
            self.counters.add(&self.counters.share_waits, 1);
            self.counters.add(&self.counters.share_waited_us, turn.waited.as_micros());
        }
        turn
    }

    /// Looks whether the backing has reconnected since; what was written and not flushed is dirty again then.
    pub fn notice_reconnect(&self) {
        let incarnation = self.disk.incarnation();
        let changed = {
            let mut state = self.state.borrow_mut();
            std::mem::replace(&mut state.incarnation, incarnation) != incarnation
        };
        if changed {
            let drop_them = self.sabotage(Sabotage::DropWrittenAtReconnect);
            let now = self.seam().now();
            self.with(|state, memory| match drop_them {
                true => drop(state.clean_written(memory, u64::MAX)),
                false => state.redirty_written(memory, now),
            });
            self.work.notify();
        }
    }
}

/// The blocks under `len` bytes from `at` on.
pub fn blocks_of(at: u64, len: u64) -> Range<u64> {
    let block = BLOCK_BYTES as u64;
    at / block..(at + len).div_ceil(block)
}

/// One block's part of a request.
#[derive(Clone, Copy, Debug)]
pub struct Span {
    /// Which block.
    pub block: BlockNo,
    /// First byte of the request that belongs to it.
    pub from: usize,
    /// First byte of the block that belongs to the request.
    pub start: usize,
    /// Bytes.
    pub len: usize,
}

impl Span {
    /// The block's sectors that it covers.
    pub fn sectors(&self) -> Sectors {
        Sectors::span(self.start, self.len)
    }
}

/// The blocks under `len` bytes from `at` on, with what of each belongs to the request.
pub fn spans(at: u64, len: usize) -> impl Iterator<Item = Span> {
    let mut from = 0;
    std::iter::from_fn(move || {
        let here = at + from as u64;
        let start = (here % BLOCK_BYTES as u64) as usize;
        let count = (BLOCK_BYTES - start).min(len - from);
        let span = Span { block: BlockNo(here / BLOCK_BYTES as u64), from, start, len: count };
        from += count;
        (count > 0).then_some(span)
    })
}

/// Handles to a shard are shared by the requests that it works on.
pub type ShardRef<S> = Rc<Shard<S>>;
