//! One queue of a guest: takes available requests, serves them, and returns them to the driver.
//!
//! Requests that the engine serves without waiting are served at once; others become tasks. The driver gets one
//! notification for all requests returned in a run, and sends none while requests remain to be taken.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use connection::buffer_bytes;
use engine::telemetry::OpKind;
use engine::{ByteOffset, PREFETCHED_ENTRIES_MAX, RequestError, WriteFlags, ZeroFlags};
use seam::{BLOCK_BYTES, Bell, Nanos, Piece, Seam};

use crate::device::Device;
use crate::inflight::Inflight;
use crate::memory::{DirtyLog, Memory};
use crate::payload_pool::WakerList;
use crate::request::{GuestData, ID_BYTES, Kind, Request, Status};
use crate::ring::{Chain, Layout, QueueError, Ring};

/// Requests taken before the driver is notified and other tasks of the core run. This is half of the usual queue depth
/// of drivers. With the full depth in one batch, the driver sleeps until the last request is served, and then the queue
/// waits for the driver. With a quarter of the depth, the driver's extra wake-ups cost more than the overlap gains on a
/// machine without an idle core.
const BATCH_REQUESTS: usize = 16;
const _: () = assert!(BATCH_REQUESTS <= PREFETCHED_ENTRIES_MAX, "one call prefetches the index entries of a batch");
/// Longest time of polling an empty queue before the driver's notifications are enabled, in nanoseconds. A notification
/// costs the guest more than this time, and this process a wake-up.
const POLL_MAX_NS: u64 = 20_000;
/// Simulated processor time of one poll.
const POLL_COST: Nanos = Nanos(200);
/// Smallest polling budget; below it, reading the clock costs more than it gains.
const POLL_MIN_NS: u64 = 1_000;
/// Idle runs without polling after which polling is retried.
const POLL_RETRY_RUNS: u32 = 32;
/// Longer reads and writes are split into pieces of at most this many bytes.
const PIECE_BYTES: usize = 256 << 10;

/// Addresses of a queue's descriptor table and rings in the front end's address space, and of its dirty log.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Addresses {
    pub(crate) descriptor_table: u64,
    pub(crate) available: u64,
    pub(crate) used: u64,
    /// Guest address of the used ring for the dirty log, if the ring is logged.
    pub(crate) logged_at: Option<u64>,
}

/// Adaptive polling of an empty queue: the budget doubles when polling finds a request and halves otherwise.
#[derive(Default)]
struct PollBudget {
    budget_ns: Cell<u64>,
    /// When polling of the empty queue began.
    started_at: Cell<Option<Nanos>>,
    /// Runs without polling since the budget fell below its minimum.
    idle_runs: Cell<u32>,
}

impl PollBudget {
    /// Records that a request was found.
    fn record_found(&self) {
        if self.started_at.take().is_some() {
            self.budget_ns.set((self.budget_ns.get() * 2).clamp(POLL_MIN_NS, POLL_MAX_NS));
        }
    }

    /// Records that the queue is empty; returns true while polling should continue.
    fn should_continue(&self, now: impl Fn() -> Nanos) -> bool {
        let Some(started_at) = self.started_at.get() else {
            if self.budget_ns.get() < POLL_MIN_NS {
                self.idle_runs.set(self.idle_runs.get() + 1);
                if self.idle_runs.get() < POLL_RETRY_RUNS {
                    return false;
                }
                self.idle_runs.set(0);
                self.budget_ns.set(POLL_MAX_NS);
            }
            self.started_at.set(Some(now()));
            return true;
        };
        let is_within_budget = now().since(started_at).0 < self.budget_ns.get();
        if !is_within_budget {
            self.started_at.set(None);
            self.budget_ns.set(self.budget_ns.get() / 2);
        }
        is_within_budget
    }
}

/// One queue.
pub(crate) struct Queue<S: Seam> {
    device: Rc<Device<S>>,
    pub(crate) size: Cell<u16>,
    pub(crate) addresses: Cell<Addresses>,
    /// Index of the first request, as set by the front end.
    pub(crate) base: Cell<u16>,
    pub(crate) enabled: Cell<bool>,
    kick: RefCell<Option<Rc<dyn Bell>>>,
    pub(crate) call: RefCell<Option<Rc<dyn Bell>>>,
    pub(crate) err: RefCell<Option<Rc<dyn Bell>>>,
    ring: RefCell<Option<Ring>>,
    inflight: RefCell<Option<Inflight>>,
    /// True while the queue's task runs.
    running: Cell<bool>,
    stopping: Cell<bool>,
    broken: Cell<Option<QueueError>>,
    /// Number of requests that are tasks.
    in_flight_count: Cell<usize>,
    polling: PollBudget,
    /// True if requests were returned and the driver has not been notified.
    notification_pending: Cell<bool>,
    waker: RefCell<Option<Waker>>,
    /// Tasks that wait for the end of the queue.
    ended: WakerList,
    chain: RefCell<Chain>,
    /// Buffer for the requests of one batch; empty between batches.
    batch: RefCell<Vec<Request>>,
    pieces: RefCell<Vec<Piece<S::Block>>>,
}

impl<S: Seam> Queue<S> {
    /// A queue that is not yet served.
    pub(crate) fn new(device: Rc<Device<S>>) -> Rc<Queue<S>> {
        Rc::new(Queue {
            device,
            size: Cell::default(),
            addresses: Cell::default(),
            base: Cell::default(),
            enabled: Cell::default(),
            kick: RefCell::default(),
            call: RefCell::default(),
            err: RefCell::default(),
            ring: RefCell::default(),
            inflight: RefCell::default(),
            running: Cell::default(),
            stopping: Cell::default(),
            broken: Cell::default(),
            in_flight_count: Cell::default(),
            polling: PollBudget::default(),
            notification_pending: Cell::default(),
            waker: RefCell::default(),
            ended: WakerList::default(),
            chain: RefCell::default(),
            batch: RefCell::default(),
            pieces: RefCell::default(),
        })
    }

    /// True while the queue is served.
    pub(crate) fn is_running(&self) -> bool {
        self.running.get()
    }

    /// Number of requests that are tasks.
    pub(crate) fn in_flight_count(&self) -> usize {
        self.in_flight_count.get()
    }

    /// Protocol violation by the driver, or loss of memory, if any.
    pub(crate) fn broken(&self) -> Option<QueueError> {
        self.broken.get()
    }

    /// Wakes the queue's task.
    pub(crate) fn wake(&self) {
        if let Some(waker) = &*self.waker.borrow() {
            waker.wake_by_ref();
        }
    }

    /// Starts serving the queue, or replaces the kick eventfd of a running queue.
    pub(crate) fn start(self: &Rc<Self>, kick: Rc<dyn Bell>, inflight: Option<Inflight>) {
        *self.kick.borrow_mut() = Some(kick);
        if self.running.replace(true) {
            return self.wake();
        }
        self.stopping.set(false);
        self.broken.set(None);
        *self.inflight.borrow_mut() = inflight;
        let queue = self.clone();
        self.device.seam.spawn(async move {
            queue.run().await;
            queue.running.set(false);
            queue.ended.wake();
        });
    }

    /// Stops taking requests and waits for inflight ones, unless `stop_now` is true. Returns the index at which the
    /// next server continues.
    pub(crate) async fn stop(&self, stop_now: impl Fn(&Context<'_>) -> bool) -> u16 {
        self.stopping.set(true);
        self.wake();
        poll_fn(|context| {
            self.ended.register(context);
            let is_done = !self.running.get() && self.in_flight_count.get() == 0;
            if is_done || stop_now(context) { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
        let ring = self.ring.take();
        self.kick.take();
        if let Some(ring) = ring {
            self.base.set(ring.next_available());
        }
        self.base.get()
    }

    /// Stops the queue without returning requests, because the front end has disconnected.
    pub(crate) fn abandon(&self) {
        self.stopping.set(true);
        self.ring.take();
        self.wake();
    }

    /// Updates the rings after a change of the guest's memory.
    pub(crate) fn remap(&self) {
        let memory = self.device.memory();
        let remapped = self.ring.borrow_mut().as_mut().map_or(Ok(()), |ring| ring.remap(&memory));
        if let Err(broken) = remapped {
            self.mark_broken(broken);
        }
    }

    /// Serves the queue until it must stop or is broken.
    async fn run(self: &Rc<Self>) {
        let device = &self.device;
        // Requests of an earlier front end come first: one of their writes could overwrite newer data.
        poll_fn(|context| {
            self.register(context);
            if self.stopping.get() || device.unfinished_requests.is_zero_or_register(context) {
                Poll::Ready(())
            } else {
                Poll::Pending
            }
        })
        .await;
        if self.stopping.get() {
            return;
        }
        if let Err(broken) = self.open() {
            return self.mark_broken(broken);
        }
        poll_fn(|context| self.serve_until_stopped(context)).await;
    }

    /// Opens the rings and resumes requests of an earlier daemon.
    fn open(self: &Rc<Self>) -> Result<(), QueueError> {
        let (device, addresses) = (&self.device, self.addresses.get());
        let memory = device.memory();
        let guest = |user| memory.guest_of(user).ok_or(QueueError::Rings);
        let layout = Layout {
            size: self.size.get(),
            descriptor_table: guest(addresses.descriptor_table)?,
            available: guest(addresses.available)?,
            used: guest(addresses.used)?,
            event_idx: device.features.get() & crate::config::feature::EVENT_IDX != 0,
        };
        let mut ring = Ring::new(layout, &memory)?;
        let resumed = match &mut *self.inflight.borrow_mut() {
            Some(inflight) => {
                let resumed = inflight.recover(ring.next_used()).map_err(QueueError::Newer)?;
                ring.set_next_available(ring.next_used().wrapping_add(resumed.len() as u16));
                resumed
            }
            None => {
                ring.set_next_available(self.base.get());
                Vec::new()
            }
        };
        *self.ring.borrow_mut() = Some(ring);
        // The driver may wait for a request that was returned right before the earlier daemon ended.
        self.notification_pending.set(true);
        for head in resumed {
            let request = self.read_request(&memory, head);
            if self.has_lost_memory() {
                break;
            }
            self.start_request(request?, true);
        }
        Ok(())
    }

    fn register(&self, context: &Context<'_>) {
        let mut waker = self.waker.borrow_mut();
        if !waker.as_ref().is_some_and(|known| known.will_wake(context.waker())) {
            *waker = Some(context.waker().clone());
        }
    }

    fn serve_until_stopped(self: &Rc<Self>, context: &mut Context<'_>) -> Poll<()> {
        self.register(context);
        loop {
            if self.has_lost_memory() || self.stopping.get() || self.broken.get().is_some() {
                self.notify_driver();
                return Poll::Ready(());
            }
            let taken = if self.enabled.get() { self.take_batch() } else { Ok(false) };
            self.notify_driver();
            match taken {
                Ok(false) => {}
                Ok(true) => {
                    context.waker().wake_by_ref();
                    return Poll::Pending;
                }
                Err(broken) => {
                    self.mark_broken(broken);
                    return Poll::Ready(());
                }
            }
            if !self.enabled.get() {
                return Poll::Pending;
            }
            if self.polling.should_continue(|| self.device.seam.now()) {
                self.device.seam.spend(POLL_COST);
                context.waker().wake_by_ref();
                return Poll::Pending;
            }
            if self.with_ring(|ring, log| ring.enable_notifications(log)) == Some(true) || self.has_lost_memory() {
                continue;
            }
            let Some(kick) = self.kick.borrow().clone() else { return Poll::Pending };
            match kick.poll_rung(context) {
                Poll::Ready(Ok(())) => {}
                // The kick eventfd failed: the front end has to set up the queue again.
                Poll::Ready(Err(_)) => return Poll::Ready(()),
                Poll::Pending => return Poll::Pending,
            }
        }
    }

    /// Calls `work` with the ring and the dirty log of the used ring.
    fn with_ring<T>(&self, work: impl FnOnce(&mut Ring, Option<(&DirtyLog, u64)>) -> T) -> Option<T> {
        let mut ring = self.ring.borrow_mut();
        let log = self.device.dirty_log.borrow();
        let log = log.as_deref().zip(self.addresses.get().logged_at);
        ring.as_mut().map(|ring| work(ring, log))
    }

    /// Takes available requests, at most a batch; returns true if there may be more. The whole batch is read before it
    /// is served, so that the engine prefetches its index entries at once instead of waiting for memory at each
    /// request.
    fn take_batch(self: &Rc<Self>) -> Result<bool, QueueError> {
        let mut batch = self.batch.take();
        let may_have_more = self.read_batch(&mut batch);
        if self.has_lost_memory() {
            // A missing page reads as zeroes, so these requests may be corrupt.
            batch.clear();
        }
        self.announce(&batch);
        // Requests before a broken one are served in order: the index for the next server follows from the number of
        // used requests and the inflight ones.
        batch.drain(..).for_each(|request| self.start_request(request, false));
        self.batch.replace(batch);
        // With lost memory the error may be caused by zeroes instead of by the driver.
        if self.has_lost_memory() { Ok(true) } else { may_have_more }
    }

    /// Reads available requests into `batch` until it is full; returns true if it is.
    fn read_batch(&self, batch: &mut Vec<Request>) -> Result<bool, QueueError> {
        self.with_ring(|ring, _| ring.disable_notifications());
        let memory = self.device.memory();
        while batch.len() < BATCH_REQUESTS {
            let popped = self.with_ring(|ring, _| ring.pop());
            let Some(head) = popped.transpose()?.flatten() else { return Ok(false) };
            self.polling.record_found();
            batch.push(self.read_request(&memory, head)?);
        }
        Ok(true)
    }

    /// Announces the batch's offsets to the engine, which prefetches their index entries.
    fn announce(&self, batch: &[Request]) {
        if batch.len() < 2 {
            return;
        }
        let (mut offsets, mut count) = ([ByteOffset::ZERO; BATCH_REQUESTS], 0);
        for request in batch {
            if let Kind::Read { offset, .. } | Kind::Write { offset, .. } = request.kind {
                offsets[count] = offset;
                count += 1;
            }
        }
        self.device.volume.prefetch_index_entries(&offsets[..count]);
    }

    /// Notifies the driver of returned requests, unless it has disabled notifications.
    fn notify_driver(&self) {
        if self.notification_pending.take()
            && self.with_ring(|ring, _| ring.must_notify()) == Some(true)
            && let Some(call) = &*self.call.borrow()
        {
            call.ring();
        }
    }

    /// Stops the queue after an error and signals the front end. Other queues are not affected.
    fn mark_broken(&self, broken: QueueError) {
        self.broken.set(Some(broken));
        self.ring.take();
        if let Some(err) = &*self.err.borrow() {
            err.ring();
        }
    }

    /// True once a page of the front end's memory is missing: data read since are invalid, and no request is returned.
    fn has_lost_memory(&self) -> bool {
        let is_lost = self.device.fault.is_set();
        if is_lost && self.broken.get().is_none() {
            self.mark_broken(QueueError::Lost);
            self.device.lost_memory.wake();
        }
        is_lost
    }

    /// Reads the request whose chain begins at `head`.
    fn read_request(&self, memory: &Rc<Memory>, head: u16) -> Result<Request, QueueError> {
        let volume = &self.device.volume;
        let mut chain = self.chain.borrow_mut();
        self.with_ring(|ring, _| ring.read_chain(memory, head, &mut chain)).transpose()?;
        Request::read(memory, head, &mut chain, volume.size_bytes(), volume.spec().read_only)
    }

    /// Starts a request. `is_resumed`: an earlier daemon had started it.
    fn start_request(self: &Rc<Self>, request: Request, is_resumed: bool) {
        if self.has_lost_memory() {
            return;
        }
        self.count_request(&request);
        if let Some((status, written)) = self.serve_now(&request) {
            return self.complete_request(&request, status, written);
        }
        if let Some(inflight) = &mut *self.inflight.borrow_mut()
            && !is_resumed
        {
            inflight.record_start(request.head);
        }
        self.in_flight_count.set(self.in_flight_count.get() + 1);
        let queue = self.clone();
        self.device.seam.spawn(async move {
            let result = queue.serve(&request).await;
            queue.finish_request(&request, result);
        });
    }

    /// Counts a request in the volume's statistics.
    fn count_request(&self, request: &Request) {
        let volume = &self.device.volume;
        match &request.kind {
            Kind::Read { offset, len } => volume.record_request(OpKind::Read, *offset, *len as u64),
            Kind::Write { offset, len } => volume.record_request(OpKind::Write, *offset, *len as u64),
            Kind::Zero(ranges) => {
                ranges.iter().for_each(|range| volume.record_request(OpKind::Zero, range.offset, range.len))
            }
            Kind::Flush => volume.record_request(OpKind::Flush, ByteOffset::ZERO, 0),
            Kind::Identity | Kind::Refused(_) => {}
        }
    }

    /// Serves a request that needs no waiting: status, and bytes written to its buffers.
    fn serve_now(&self, request: &Request) -> Option<(Status, usize)> {
        let (device, buffers) = (&self.device, &request.buffers);
        match request.kind {
            Kind::Read { offset, len } if len <= PIECE_BYTES => {
                let mut pieces = self.pieces.borrow_mut();
                device.volume.try_read(offset, len, &mut pieces).then(|| {
                    buffers.write_pieces(0, &pieces, |guest, len| device.mark_dirty(guest, len));
                    pieces.clear();
                    (Status::Ok, len)
                })
            }
            Kind::Write { offset, len } if len <= PIECE_BYTES && !device.writes_through() => {
                // A missing page reads as zeroes, which must not reach the volume.
                buffers.touch();
                if device.fault.is_set() {
                    return None;
                }
                device.volume.try_write(offset, len, &mut GuestData(buffers)).then_some((Status::Ok, 0))
            }
            Kind::Identity => {
                // The volume ID is constant for the life of the volume, unlike its name.
                let mut text = format!("{:016x}", device.volume.spec().volume_id).into_bytes();
                text.resize(ID_BYTES, 0);
                let wrote = buffers.write(0, &text, |guest, len| device.mark_dirty(guest, len));
                wrote.expect("the buffers are in the request's memory and as long as its data");
                Some((Status::Ok, ID_BYTES))
            }
            Kind::Refused(status) => Some((status, 0)),
            _ => None,
        }
    }

    /// Serves a request that has to wait; `None` if the front end disconnects before the end.
    async fn serve(&self, request: &Request) -> Option<Result<usize, RequestError>> {
        let volume = &self.device.volume;
        Some(match &request.kind {
            Kind::Read { offset, len } => return self.read(request, *offset, *len).await,
            Kind::Write { offset, len } => return self.write(request, *offset, *len).await,
            Kind::Flush => self.device.flush().await.map(|()| 0),
            Kind::Zero(ranges) => {
                let fua = self.device.writes_through();
                for range in ranges.iter().filter(|range| range.len > 0) {
                    let flags = ZeroFlags { fua, may_unmap: range.may_unmap, fast_only: false };
                    if let Err(error) = volume.zero(range.offset, range.len, flags).await {
                        return Some(Err(error));
                    }
                }
                Ok(0)
            }
            Kind::Identity | Kind::Refused(_) => unreachable!("these requests never wait"),
        })
    }

    /// Reads a request's data piece by piece; `None` if the front end disconnects before the end.
    async fn read(&self, request: &Request, offset: ByteOffset, len: usize) -> Option<Result<usize, RequestError>> {
        let device = &self.device;
        let piece_max =
            (device.clients.client_quota_bytes() / BLOCK_BYTES * BLOCK_BYTES).clamp(BLOCK_BYTES, PIECE_BYTES);
        let (mut read_bytes, mut data) = (0, Vec::new());
        while read_bytes < len {
            let from = offset.plus(read_bytes as u64);
            let count = (piece_max - (from.0 % piece_max as u64) as usize).min(len - read_bytes);
            let is_needed = || !device.has_ended.get();
            let _loan = device.buffer_account.borrow(&device.seam, buffer_bytes(from.0, count), is_needed).await?;
            if let Err(error) = device.volume.read(from, count, &mut data).await {
                return Some(Err(error));
            }
            if device.has_ended.get() {
                return None;
            }
            request.buffers.write_pieces(read_bytes, &data, |guest, len| device.mark_dirty(guest, len));
            data.clear();
            read_bytes += count;
        }
        Some(Ok(len))
    }

    /// Writes a request's data. Copies each piece before its write waits for the engine: after a disconnect the guest
    /// may reuse its memory.
    async fn write(&self, request: &Request, offset: ByteOffset, len: usize) -> Option<Result<usize, RequestError>> {
        let device = &self.device;
        let flags = WriteFlags { fua: device.writes_through(), ..Default::default() };
        let mut written = 0;
        while written < len {
            let from = offset.plus(written as u64);
            let count = (PIECE_BYTES - (from.0 % PIECE_BYTES as u64) as usize).min(len - written);
            let loan = poll_fn(|context| match device.has_ended.get() {
                true => Poll::Ready(None),
                false => device.payload_pool.lend(count, context).map_or(Poll::Pending, |loan| Poll::Ready(Some(loan))),
            });
            let _loan = loan.await?;
            let mut data = vec![0; count];
            let read = request.buffers.read(written, &mut data);
            read.expect("the buffers are in the request's memory and as long as its data");
            if device.fault.is_set() {
                return None;
            }
            if let Err(error) = device.volume.write(from, count, flags, &mut &data[..]).await {
                return Some(Err(error));
            }
            written += count;
        }
        Some(Ok(0))
    }

    /// Ends a request that was served by a task.
    fn finish_request(&self, request: &Request, result: Option<Result<usize, RequestError>>) {
        self.in_flight_count.set(self.in_flight_count.get() - 1);
        if self.device.has_ended.get() {
            return self.device.unfinished_requests.request_ended();
        }
        match result {
            Some(Ok(written)) => self.complete_request(request, Status::Ok, written),
            Some(Err(_)) => self.complete_request(request, Status::IoError, 0),
            None => {}
        }
        if self.stopping.get() {
            self.notify_driver();
            self.ended.wake();
        }
        self.wake();
    }

    /// Writes a request's status and returns it to the driver. After a loss of memory the request is not returned,
    /// because its data may be missing.
    fn complete_request(&self, request: &Request, status: Status, written: usize) {
        if self.has_lost_memory() || self.ring.borrow().is_none() {
            return;
        }
        let wrote = request.buffers.memory.write(request.status_address, &[status as u8]);
        wrote.expect("the status is in the request's memory");
        self.device.mark_dirty(request.status_address, 1);
        if status == Status::Ok && matches!(request.kind, Kind::Write { .. } | Kind::Zero(_)) {
            self.device.count_acknowledged();
        }
        let inflight = self.inflight.borrow();
        if let Some(inflight) = &*inflight {
            inflight.record_completing(request.head);
        }
        // A failed inflight record must not be followed by a used entry.
        if self.has_lost_memory() {
            return;
        }
        let used = self.with_ring(|ring, log| {
            // The length includes the status byte; it saturates for requests beyond the limits of drivers.
            ring.push_used(request.head, u32::try_from(written + 1).unwrap_or(u32::MAX), log);
            ring.next_used()
        });
        if let (Some(inflight), Some(used)) = (&*inflight, used) {
            inflight.record_completed(request.head, used);
        }
        self.notification_pending.set(true);
    }
}
