//! One queue of a guest: takes what the driver made available, serves it, gives it back.
//!
//! What the engine can serve at once is served where it was found; the rest are tasks. The driver is told once for what was given back in
//! one turn, and asked to keep silent as long as there is something to take.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use engine::pages::slow::Asked;
use engine::{HINTS_MAX, RequestError, WriteFlags, ZeroFlags};
use front::buffer_bytes;
use seam::{BLOCK_BYTES, Bell, Nanos, Piece, Seam};

use crate::device::Device;
use crate::inflight::Inflight;
use crate::memory::{DirtyLog, Memory};
use crate::request::{Given, ID_BYTES, Kind, Request, Status};
use crate::ring::{Broken, Chain, Layout, Ring};
use crate::room::Waiting;

/// Requests that are taken before the driver is told and other tasks of the core get their turn. Half of what drivers usually have under
/// way: with all of it in one batch a driver sleeps until the last is served, and then we wait until it has asked again; with a quarter it
/// is woken so often that a machine with no core to spare loses more than that.
const BATCH: usize = 16;
const _: () = assert!(BATCH <= HINTS_MAX, "one hint to the engine takes a batch");
/// Longest time that a queue is looked at again and again before the driver is asked to tell, in nanoseconds: a kick costs the guest more
/// than that, and us a wake-up.
const SPIN_NS: u64 = 20_000;
/// What a look costs in simulated time.
const LOOK_COST: Nanos = Nanos(200);
/// Below this it is not worth a look at the clock.
const SPIN_MIN_NS: u64 = 1_000;
/// So many times nothing came of it, or it was not tried, before it is tried again.
const SPIN_AGAIN: u32 = 32;
/// A longer read or write is served in pieces of this many bytes.
const PIECE_BYTES: usize = 256 << 10;

/// Where a queue's parts lie, by the front end's addresses, and what is to be logged of it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Addresses {
    pub(crate) descriptors: u64,
    pub(crate) available: u64,
    pub(crate) used: u64,
    /// The used ring's address in the log, where that is kept.
    pub(crate) logged_at: Option<u64>,
}

/// For how long a queue is looked at that was just found empty: as long as that has lately paid.
#[derive(Default)]
struct Spin {
    budget_ns: Cell<u64>,
    since: Cell<Option<Nanos>>,
    idle: Cell<u32>,
}

impl Spin {
    /// Something was found.
    fn found(&self) {
        if self.since.take().is_some() {
            self.budget_ns.set((self.budget_ns.get() * 2).clamp(SPIN_MIN_NS, SPIN_NS));
        }
    }

    /// Nothing was: true while it should be looked again before the driver is asked to tell.
    fn goes_on(&self, now: impl Fn() -> Nanos) -> bool {
        let Some(since) = self.since.get() else {
            if self.budget_ns.get() < SPIN_MIN_NS {
                self.idle.set(self.idle.get() + 1);
                if self.idle.get() < SPIN_AGAIN {
                    return false;
                }
                self.idle.set(0);
                self.budget_ns.set(SPIN_NS);
            }
            self.since.set(Some(now()));
            return true;
        };
        let goes_on = now().since(since).0 < self.budget_ns.get();
        if !goes_on {
            self.since.set(None);
            self.budget_ns.set(self.budget_ns.get() / 2);
        }
        goes_on
    }
}

/// One queue.
pub(crate) struct Queue<S: Seam> {
    device: Rc<Device<S>>,
    pub(crate) size: Cell<u16>,
    pub(crate) addresses: Cell<Addresses>,
    /// Where the front end wants it to begin.
    pub(crate) base: Cell<u16>,
    pub(crate) enabled: Cell<bool>,
    kick: RefCell<Option<Rc<dyn Bell>>>,
    pub(crate) call: RefCell<Option<Rc<dyn Bell>>>,
    pub(crate) err: RefCell<Option<Rc<dyn Bell>>>,
    ring: RefCell<Option<Ring>>,
    inflight: RefCell<Option<Inflight>>,
    /// Its task is there.
    running: Cell<bool>,
    stopping: Cell<bool>,
    broken: Cell<Option<Broken>>,
    /// Requests that are tasks.
    under_way: Cell<usize>,
    spin: Spin,
    /// Something was given back, and the driver has not been told.
    untold: Cell<bool>,
    waker: RefCell<Option<Waker>>,
    /// Who waits for its end.
    ended: Waiting,
    chain: RefCell<Chain>,
    /// Room for what is taken in one turn; empty in between.
    batch: RefCell<Vec<Request>>,
    pieces: RefCell<Vec<Piece<S::Block>>>,
}

impl<S: Seam> Queue<S> {
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
            under_way: Cell::default(),
            spin: Spin::default(),
            untold: Cell::default(),
            waker: RefCell::default(),
            ended: Waiting::default(),
            chain: RefCell::default(),
            batch: RefCell::default(),
            pieces: RefCell::default(),
        })
    }

    /// True while it is served.
    pub(crate) fn is_running(&self) -> bool {
        self.running.get()
    }

    /// Requests that are tasks.
    pub(crate) fn under_way(&self) -> usize {
        self.under_way.get()
    }

    /// What the driver did that no driver may, if it did.
    pub(crate) fn broken(&self) -> Option<Broken> {
        self.broken.get()
    }

    /// Has its task look again.
    pub(crate) fn wake(&self) {
        if let Some(waker) = &*self.waker.borrow() {
            waker.wake_by_ref();
        }
    }

    /// Serves it from now on, or listens to another bell if it is served already.
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

    /// Takes nothing more and waits for what is under way, unless `hurry` says not to; returns where the next device goes on.
    pub(crate) async fn stop(&self, hurry: impl Fn(&Context<'_>) -> bool) -> u16 {
        self.stopping.set(true);
        self.wake();
        poll_fn(|context| {
            self.ended.register(context);
            let is_done = !self.running.get() && self.under_way.get() == 0;
            if is_done || hurry(context) { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
        let ring = self.ring.take();
        self.kick.take();
        if let Some(ring) = ring {
            self.base.set(ring.next_available());
        }
        self.base.get()
    }

    /// The front end has gone: takes nothing more, and gives nothing back.
    pub(crate) fn abandon(&self) {
        self.stopping.set(true);
        self.ring.take();
        self.wake();
    }

    /// The guest's memory is another one.
    pub(crate) fn remap(&self) {
        let memory = self.device.memory();
        let remapped = self.ring.borrow_mut().as_mut().map_or(Ok(()), |ring| ring.remap(&memory));
        if let Err(broken) = remapped {
            self.break_off(broken);
        }
    }

    async fn run(self: &Rc<Self>) {
        let device = &self.device;
        poll_fn(|context| {
            self.register(context);
            if self.stopping.get() || device.orphans.are_gone(context) { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
        if self.stopping.get() {
            return;
        }
        if let Err(broken) = self.open() {
            return self.break_off(broken);
        }
        poll_fn(|context| self.serve_until_stopped(context)).await;
    }

    /// Finds the rings, and takes up what an earlier device left.
    fn open(self: &Rc<Self>) -> Result<(), Broken> {
        let (device, addresses) = (&self.device, self.addresses.get());
        let memory = device.memory();
        let guest = |user| memory.guest_of(user).ok_or(Broken::Rings);
        let layout = Layout {
            size: self.size.get(),
            descriptors: guest(addresses.descriptors)?,
            available: guest(addresses.available)?,
            used: guest(addresses.used)?,
            event_idx: device.features.get() & crate::config::feature::EVENT_IDX != 0,
        };
        let mut ring = Ring::new(layout, &memory)?;
        let left = match &mut *self.inflight.borrow_mut() {
            Some(inflight) => {
                let left = inflight.recover(ring.next_used()).map_err(Broken::Newer)?;
                ring.set_next_available(ring.next_used().wrapping_add(left.len() as u16));
                left
            }
            None => {
                ring.set_next_available(self.base.get());
                Vec::new()
            }
        };
        *self.ring.borrow_mut() = Some(ring);
        // The driver may wait for what was given back right before an end.
        self.untold.set(true);
        for head in left {
            let request = self.read_request(&memory, head);
            if self.has_lost_memory() {
                break;
            }
            self.begin(request?, true);
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
                self.tell();
                return Poll::Ready(());
            }
            let taken = if self.enabled.get() { self.take() } else { Ok(false) };
            self.tell();
            match taken {
                Ok(false) => {}
                Ok(true) => {
                    context.waker().wake_by_ref();
                    return Poll::Pending;
                }
                Err(broken) => {
                    self.break_off(broken);
                    return Poll::Ready(());
                }
            }
            if !self.enabled.get() {
                return Poll::Pending;
            }
            if self.spin.goes_on(|| self.device.seam.now()) {
                self.device.seam.spend(LOOK_COST);
                context.waker().wake_by_ref();
                return Poll::Pending;
            }
            if self.with_ring(|ring, log| ring.listen(log)) == Some(true) || self.has_lost_memory() {
                continue;
            }
            let Some(kick) = self.kick.borrow().clone() else { return Poll::Pending };
            match kick.poll_rung(context) {
                Poll::Ready(Ok(())) => {}
                // Nobody can tell any more: the front end has to begin anew.
                Poll::Ready(Err(_)) => return Poll::Ready(()),
                Poll::Pending => return Poll::Pending,
            }
        }
    }

    /// Does something to the ring, with the log of what is written to it.
    fn with_ring<T>(&self, work: impl FnOnce(&mut Ring, Option<(&DirtyLog, u64)>) -> T) -> Option<T> {
        let mut ring = self.ring.borrow_mut();
        let log = self.device.log.borrow();
        let log = log.as_deref().zip(self.addresses.get().logged_at);
        ring.as_mut().map(|ring| work(ring, log))
    }

    /// Takes what is available, at most a batch; true if there may be more. All of a batch is read before any of it is served, so that the
    /// engine brings near what it will touch at once: one request after the other would wait for memory anew.
    fn take(self: &Rc<Self>) -> Result<bool, Broken> {
        let mut batch = self.batch.take();
        let more = self.read_batch(&mut batch);
        if self.has_lost_memory() {
            // What was read may be zeroes in part.
            batch.clear();
        }
        self.hint(&batch);
        // What came before a broken request is served, and each in its turn: where the next device goes on follows from how many were used
        // and which are under way.
        batch.drain(..).for_each(|request| self.begin(request, false));
        self.batch.replace(batch);
        // Broken off already: what zeroes look like is not what the driver did.
        if self.has_lost_memory() { Ok(true) } else { more }
    }

    fn read_batch(&self, batch: &mut Vec<Request>) -> Result<bool, Broken> {
        self.with_ring(|ring, _| ring.unlisten());
        let memory = self.device.memory();
        while batch.len() < BATCH {
            let popped = self.with_ring(|ring, _| ring.pop());
            let Some(head) = popped.transpose()?.flatten() else { return Ok(false) };
            self.spin.found();
            batch.push(self.read_request(&memory, head)?);
        }
        Ok(true)
    }

    fn hint(&self, batch: &[Request]) {
        if batch.len() < 2 {
            return;
        }
        let (mut offsets, mut count) = ([0; BATCH], 0);
        for request in batch {
            if let Kind::Read { at, .. } | Kind::Write { at, .. } = request.kind {
                offsets[count] = at;
                count += 1;
            }
        }
        self.device.volume.hint(&offsets[..count]);
    }

    /// Tells the driver of what was given back, if it wants to know.
    fn tell(&self) {
        if self.untold.take()
            && self.with_ring(|ring, _| ring.wants_call()) == Some(true)
            && let Some(call) = &*self.call.borrow()
        {
            call.ring();
        }
    }

    /// Serves nothing of it any more, and says so to the front end. Everybody else goes on.
    fn break_off(&self, broken: Broken) {
        self.broken.set(Some(broken));
        self.ring.take();
        if let Some(err) = &*self.err.borrow() {
            err.ring();
        }
    }

    /// True once a page of the memory that the front end shares could not be had: nothing that was read since counts, and nothing is given
    /// back.
    fn has_lost_memory(&self) -> bool {
        let has = self.device.fault.is_set();
        if has && self.broken.get().is_none() {
            self.break_off(Broken::Lost);
            self.device.lost_memory.wake();
        }
        has
    }

    /// What the chain that begins at `head` asks for.
    fn read_request(&self, memory: &Rc<Memory>, head: u16) -> Result<Request, Broken> {
        let volume = &self.device.volume;
        let mut chain = self.chain.borrow_mut();
        self.with_ring(|ring, _| ring.read_chain(memory, head, &mut chain)).transpose()?;
        Request::read(memory, head, &mut chain, volume.size_bytes(), volume.spec().read_only)
    }

    /// Serves a request. `is_left`: an earlier device had begun it.
    fn begin(self: &Rc<Self>, request: Request, is_left: bool) {
        if self.has_lost_memory() {
            return;
        }
        self.note(&request);
        if let Some((status, written)) = self.serve_now(&request) {
            return self.give_back(&request, status, written);
        }
        if let Some(inflight) = &mut *self.inflight.borrow_mut()
            && !is_left
        {
            inflight.begin(request.head);
        }
        self.under_way.set(self.under_way.get() + 1);
        let queue = self.clone();
        self.device.seam.spawn(async move {
            let result = queue.serve(&request).await;
            queue.served(&request, result);
        });
    }

    fn note(&self, request: &Request) {
        let volume = &self.device.volume;
        match &request.kind {
            Kind::Read { at, len } => volume.asked(Asked::Read, *at, *len as u64),
            Kind::Write { at, len } => volume.asked(Asked::Write, *at, *len as u64),
            Kind::Zero(ranges) => ranges.iter().for_each(|range| volume.asked(Asked::Zero, range.at, range.len)),
            Kind::Flush => volume.asked(Asked::Flush, 0, 0),
            Kind::Identity | Kind::Refused(_) => {}
        }
    }

    /// What needs no waiting: its status, and how many bytes of its buffers were written.
    fn serve_now(&self, request: &Request) -> Option<(Status, usize)> {
        let (device, buffers) = (&self.device, &request.buffers);
        match request.kind {
            Kind::Read { at, len } if len <= PIECE_BYTES => {
                let mut pieces = self.pieces.borrow_mut();
                device.volume.read_now(at, len, &mut pieces).then(|| {
                    buffers.write_pieces(0, &pieces, |at, len| device.wrote(at, len));
                    pieces.clear();
                    (Status::Ok, len)
                })
            }
            Kind::Write { at, len } if len <= PIECE_BYTES && !device.writes_through() => {
                // A buffer that is gone reads as zeroes, which must not become the volume's content.
                buffers.touch();
                if device.fault.is_set() {
                    return None;
                }
                device.volume.write_now(at, len, &mut Given(buffers)).then_some((Status::Ok, 0))
            }
            Kind::Identity => {
                // What the volume is for its whole life, whatever it is called.
                let mut text = format!("{:016x}", device.volume.spec().incarnation).into_bytes();
                text.resize(ID_BYTES, 0);
                let wrote = buffers.write(0, &text, |at, len| device.wrote(at, len));
                wrote.expect("a request's buffers are in the memory that it holds, and as long as its data");
                Some((Status::Ok, ID_BYTES))
            }
            Kind::Refused(status) => Some((status, 0)),
            _ => None,
        }
    }

    /// What has to wait; `None` when the front end has gone before it was done.
    async fn serve(&self, request: &Request) -> Option<Result<usize, RequestError>> {
        let volume = &self.device.volume;
        Some(match &request.kind {
            Kind::Read { at, len } => return self.read(request, *at, *len).await,
            Kind::Write { at, len } => return self.write(request, *at, *len).await,
            Kind::Flush => self.device.flush().await.map(|()| 0),
            Kind::Zero(ranges) => {
                let fua = self.device.writes_through();
                for range in ranges.iter().filter(|range| range.len > 0) {
                    let flags = ZeroFlags { fua, may_unmap: range.may_unmap, fast_only: false };
                    if let Err(error) = volume.zero(range.at, range.len, flags).await {
                        return Some(Err(error));
                    }
                }
                Ok(0)
            }
            Kind::Identity | Kind::Refused(_) => unreachable!("these never wait"),
        })
    }

    async fn read(&self, request: &Request, at: u64, len: usize) -> Option<Result<usize, RequestError>> {
        let device = &self.device;
        let piece_max = (device.clients.share_bytes() / BLOCK_BYTES * BLOCK_BYTES).clamp(BLOCK_BYTES, PIECE_BYTES);
        let (mut done, mut data) = (0, Vec::new());
        while done < len {
            let from = at + done as u64;
            let count = (piece_max - (from % piece_max as u64) as usize).min(len - done);
            let wanted = || !device.has_ended.get();
            let _loan = device.account.borrow(&device.seam, buffer_bytes(from, count), wanted).await?;
            if let Err(error) = device.volume.read(from, count, &mut data).await {
                return Some(Err(error));
            }
            if device.has_ended.get() {
                return None;
            }
            request.buffers.write_pieces(done, &data, |at, len| device.wrote(at, len));
            data.clear();
            done += count;
        }
        Some(Ok(len))
    }

    /// The data are copied before they wait for the engine: once the front end has gone the guest may use its memory for something else.
    async fn write(&self, request: &Request, at: u64, len: usize) -> Option<Result<usize, RequestError>> {
        let device = &self.device;
        let flags = WriteFlags { fua: device.writes_through(), ..Default::default() };
        let mut done = 0;
        while done < len {
            let from = at + done as u64;
            let count = (PIECE_BYTES - (from % PIECE_BYTES as u64) as usize).min(len - done);
            let lent = poll_fn(|context| match device.has_ended.get() {
                true => Poll::Ready(None),
                false => device.room.lend(count, context).map_or(Poll::Pending, |lent| Poll::Ready(Some(lent))),
            });
            let _lent = lent.await?;
            let mut data = vec![0; count];
            let read = request.buffers.read(done, &mut data);
            read.expect("a request's buffers are in the memory that it holds, and as long as its data");
            if device.fault.is_set() {
                return None;
            }
            if let Err(error) = device.volume.write(from, count, flags, &mut &data[..]).await {
                return Some(Err(error));
            }
            done += count;
        }
        Some(Ok(0))
    }

    /// A task has ended.
    fn served(&self, request: &Request, result: Option<Result<usize, RequestError>>) {
        self.under_way.set(self.under_way.get() - 1);
        if self.device.has_ended.get() {
            return self.device.orphans.one_less();
        }
        match result {
            Some(Ok(written)) => self.give_back(request, Status::Ok, written),
            Some(Err(_)) => self.give_back(request, Status::IoError, 0),
            None => {}
        }
        if self.stopping.get() {
            self.tell();
            self.ended.wake();
        }
        self.wake();
    }

    /// Writes a request's status and gives its buffers back to the driver. Where memory is lost nothing is given back: the data may not be in it.
    fn give_back(&self, request: &Request, status: Status, written: usize) {
        if self.has_lost_memory() || self.ring.borrow().is_none() {
            return;
        }
        let wrote = request.buffers.memory.write(request.status_at, &[status as u8]);
        wrote.expect("a request's buffers are in the memory that it holds");
        self.device.wrote(request.status_at, 1);
        if status == Status::Ok && matches!(request.kind, Kind::Write { .. } | Kind::Zero(_)) {
            self.device.promise();
        }
        let inflight = self.inflight.borrow();
        if let Some(inflight) = &*inflight {
            inflight.ending(request.head);
        }
        // Nor is the driver told of what could not be noted.
        if self.has_lost_memory() {
            return;
        }
        let used = self.with_ring(|ring, log| {
            // The status is one byte more; of what is longer than a driver may ask for the count says no more than that.
            ring.push_used(request.head, u32::try_from(written + 1).unwrap_or(u32::MAX), log);
            ring.next_used()
        });
        if let (Some(inflight), Some(used)) = (&*inflight, used) {
            inflight.ended(request.head, used);
        }
        self.untold.set(true);
    }
}
