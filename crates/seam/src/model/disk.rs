//! A disk with the latency of a modelled array: the `sim://` backing.
//!
//! The content lies on any other disk: a simulated one in virtual time, a sparse file in real time. A request goes to
//! the array and to the content at once, and completes when both have completed.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::future::{Future, poll_fn};
use std::marker::PhantomData;
use std::pin::pin;
use std::rc::Rc;
use std::task::{Poll, Waker};

use super::Access;
use super::array::{Array, ArraySpec, ModelError};
use crate::block::pieces_len;
use crate::{AllocationExtent, Disk, DiskError, DiskResult, Geometry, Nanos, Piece, PieceMut, Seam};

/// Duration of a flush or unmap. An array has no volatile data, so the time covers only the reply.
const REPLY_TIME: Nanos = Nanos::from_micros(80);
/// Size of the pieces in which a zero-range is written.
const ZERO_PIECE_BYTES: u64 = 16 << 20;

/// State of a request at the array.
enum RequestState {
    Free,
    Waiting(Option<Waker>),
    Done,
    /// The future was dropped; the completion frees the slot.
    Abandoned,
}

struct Inner<S: Seam> {
    seam: S,
    array: RefCell<Array>,
    slots: RefCell<Vec<RequestState>>,
    free: RefCell<Vec<usize>>,
    /// The task that waits for the array's next event: the time of that event, and the waker for an earlier one.
    driver: RefCell<Option<(Nanos, Option<Waker>)>>,
    /// Extents of the volumes on the array: offset and length in bytes.
    extents: RefCell<BTreeMap<u64, u64>>,
    /// Scratch of the driver task: slots of completed requests.
    completed: RefCell<Vec<u64>>,
}

/// An array that several volumes share. A clone is another handle to the same spindles.
pub struct SharedArray<S: Seam>(Rc<Inner<S>>);

impl<S: Seam> Clone for SharedArray<S> {
    fn clone(&self) -> Self {
        SharedArray(Rc::clone(&self.0))
    }
}

impl<S: Seam> SharedArray<S> {
    /// An idle array in the world of `seam`.
    pub fn new(seam: S, spec: ArraySpec) -> Result<Self, ModelError> {
        let array = RefCell::new(Array::new(spec)?);
        let (slots, free, completed) = (RefCell::default(), RefCell::default(), RefCell::default());
        let (driver, extents) = (RefCell::new(None), RefCell::default());
        Ok(SharedArray(Rc::new(Inner { seam, array, slots, free, driver, extents, completed })))
    }

    /// The array's configuration.
    pub fn spec(&self) -> ArraySpec {
        *self.0.array.borrow().spec()
    }

    /// Total busy time of all disks; divided by the number of disks and the elapsed time, it is the utilisation.
    pub fn busy(&self) -> Nanos {
        self.0.array.borrow().busy()
    }

    /// Start of the first gap between volumes with at least `room_bytes`.
    fn find_gap(&self, room_bytes: u64) -> Option<u64> {
        let (extents, mut start) = (self.0.extents.borrow(), 0);
        for (offset, taken) in extents.iter() {
            if offset - start >= room_bytes {
                return Some(start);
            }
            start = offset + taken;
        }
        (start + room_bytes <= self.spec().size_bytes()).then_some(start)
    }

    /// Start of the next volume after `offset`, or the end of the array.
    fn gap_end(&self, offset: u64) -> u64 {
        let extents = self.0.extents.borrow();
        extents.range(offset + 1..).next().map_or(self.spec().size_bytes(), |(next, _)| *next)
    }

    /// Submits a request to the array at once; the future is ready on its completion.
    fn request(&self, access: Access, at: u64, len: u64) -> RequestWait<S> {
        let inner = &self.0;
        let (mut slots, now) = (inner.slots.borrow_mut(), inner.seam.now());
        let slot = inner.free.borrow_mut().pop().unwrap_or(slots.len());
        if slot == slots.len() {
            slots.push(RequestState::Free);
        }
        slots[slot] = RequestState::Waiting(None);
        drop(slots);
        let next = {
            let mut array = inner.array.borrow_mut();
            array.submit(now, slot as u64, access, at, len);
            array.next_event()
        };
        self.ensure_driver(next.expect("an array with a request has a next event"));
        RequestWait { array: self.clone(), slot }
    }

    /// Ensures that a task processes the array's events at `next`.
    fn ensure_driver(&self, next: Nanos) {
        let mut driver = self.0.driver.borrow_mut();
        match &mut *driver {
            Some((until, waker)) if next < *until => {
                let waker = waker.take();
                drop(driver);
                waker.into_iter().for_each(Waker::wake);
            }
            Some(_) => {}
            None => {
                *driver = Some((next, None));
                drop(driver);
                let array = self.clone();
                self.0.seam.spawn(async move { array.drive().await });
            }
        }
    }

    /// Processes events and wakes the waiters of completed requests, until the array is idle.
    async fn drive(self) {
        let inner = &self.0;
        loop {
            let next = inner.array.borrow().next_event();
            let Some(next) = next else {
                *inner.driver.borrow_mut() = None;
                return;
            };
            if next > inner.seam.now() {
                let mut sleep = pin!(inner.seam.sleep_until(next));
                poll_fn(|context| {
                    if inner.array.borrow().next_event().is_some_and(|earlier| earlier < next) {
                        return Poll::Ready(());
                    }
                    *inner.driver.borrow_mut() = Some((next, Some(context.waker().clone())));
                    sleep.as_mut().poll(context)
                })
                .await;
            }
            let mut completed = inner.completed.take();
            inner.array.borrow_mut().advance(inner.seam.now(), &mut completed);
            for slot in completed.drain(..) {
                let slot = slot as usize;
                let previous_state = std::mem::replace(&mut inner.slots.borrow_mut()[slot], RequestState::Done);
                match previous_state {
                    RequestState::Waiting(waker) => waker.into_iter().for_each(Waker::wake),
                    RequestState::Abandoned => self.release(slot),
                    RequestState::Free | RequestState::Done => unreachable!("a request is done once"),
                }
            }
            inner.completed.replace(completed);
        }
    }

    fn release(&self, slot: usize) {
        self.0.slots.borrow_mut()[slot] = RequestState::Free;
        self.0.free.borrow_mut().push(slot);
    }
}

/// Waits for the completion of one request.
struct RequestWait<S: Seam> {
    array: SharedArray<S>,
    slot: usize,
}

impl<S: Seam> RequestWait<S> {
    async fn done(self) {
        poll_fn(|context| {
            let slot = &mut self.array.0.slots.borrow_mut()[self.slot];
            if matches!(slot, RequestState::Done) {
                return Poll::Ready(());
            }
            *slot = RequestState::Waiting(Some(context.waker().clone()));
            Poll::Pending
        })
        .await;
    }
}

impl<S: Seam> Drop for RequestWait<S> {
    fn drop(&mut self) {
        let is_completed = matches!(self.array.0.slots.borrow()[self.slot], RequestState::Done);
        if is_completed {
            self.array.release(self.slot);
        } else {
            self.array.0.slots.borrow_mut()[self.slot] = RequestState::Abandoned;
        }
    }
}

/// The extent of one volume on the array, and the disk with its content.
struct VolumeExtent<S: Seam, D> {
    array: SharedArray<S>,
    content: D,
    offset: u64,
}

impl<S: Seam, D> Drop for VolumeExtent<S, D> {
    fn drop(&mut self) {
        self.array.0.extents.borrow_mut().remove(&self.offset);
    }
}

/// A range of an array, with its content on a separate disk. A clone is another handle to the same range.
pub struct ModelledDisk<S: Seam, D: Disk<S>>(Rc<VolumeExtent<S, D>>, PhantomData<S>);

impl<S: Seam, D: Disk<S>> Clone for ModelledDisk<S, D> {
    fn clone(&self) -> Self {
        ModelledDisk(Rc::clone(&self.0), PhantomData)
    }
}

impl<S: Seam, D: Disk<S>> ModelledDisk<S, D> {
    /// Places `content` in a gap of the array; dropping the last handle frees the range.
    pub fn new(array: &SharedArray<S>, content: D) -> Result<Self, ModelError> {
        let spec = array.spec();
        let wanted_bytes = content.geometry().size_bytes;
        let room_bytes = wanted_bytes.next_multiple_of(spec.stripe_bytes());
        let Some(offset) = array.find_gap(room_bytes) else {
            let used_bytes = array.0.extents.borrow().values().sum();
            return Err(ModelError::Full { array_bytes: spec.size_bytes(), used_bytes, wanted_bytes });
        };
        array.0.extents.borrow_mut().insert(offset, room_bytes);
        Ok(ModelledDisk(Rc::new(VolumeExtent { array: array.clone(), content, offset }), PhantomData))
    }

    /// The disk with the content.
    pub fn content(&self) -> &D {
        &self.0.content
    }

    /// The array that provides the latency.
    pub fn array(&self) -> &SharedArray<S> {
        &self.0.array
    }

    fn request(&self, access: Access, at: u64, len: u64) -> DiskResult<RequestWait<S>> {
        if at + len > self.geometry().size_bytes {
            return Err(DiskError::Io(format!("{at}+{len} lies past the end of {}", self.identity())));
        }
        Ok(self.0.array.request(access, self.0.offset + at, len))
    }

    /// Runs submitted work to its end, even if its future is dropped.
    async fn detached<T: 'static>(&self, work: impl Future<Output = T> + 'static) -> T {
        let shared = Rc::new(RefCell::new((None, None::<Waker>)));
        let result = Rc::clone(&shared);
        self.0.array.0.seam.spawn(async move {
            let value = work.await;
            let waker = {
                let mut result = result.borrow_mut();
                result.0 = Some(value);
                result.1.take()
            };
            waker.into_iter().for_each(Waker::wake);
        });
        poll_fn(|context| {
            let mut shared = shared.borrow_mut();
            match shared.0.take() {
                Some(value) => Poll::Ready(value),
                None => {
                    shared.1 = Some(context.waker().clone());
                    Poll::Pending
                }
            }
        })
        .await
    }
}

impl<S: Seam, D: Disk<S>> Disk<S> for ModelledDisk<S, D> {
    fn geometry(&self) -> Geometry {
        let spec = self.0.array.spec();
        let stripe_bytes = u32::try_from(spec.stripe_bytes()).expect("64 disks of 1 MiB stripes fit in 32 bits");
        let queue_depth = 32 * u32::try_from(spec.disks).expect("an array has at most 64 disks");
        Geometry { stripe_bytes, queue_depth, fast_zero: false, ..self.0.content.geometry() }
    }

    fn identity(&self) -> String {
        self.0.content.identity()
    }

    fn is_identity_unique(&self) -> bool {
        self.0.content.is_identity_unique()
    }

    fn instance(&self) -> Option<String> {
        self.0.content.instance()
    }

    fn former_identities(&self) -> Vec<String> {
        self.0.content.former_identities()
    }

    fn connection_epoch(&self) -> u64 {
        self.0.content.connection_epoch()
    }

    fn oldest_unanswered(&self) -> Option<Nanos> {
        self.0.content.oldest_unanswered()
    }

    fn accesses(&self, write: bool, at: u64, len: u64) -> Option<u64> {
        let access = if write { Access::Write } else { Access::Read };
        Some(self.0.array.spec().count_accesses(access, self.0.offset + at, len))
    }

    async fn read(&self, at: u64, into: Vec<PieceMut<S::BlockMut>>) -> (DiskResult<()>, Vec<PieceMut<S::BlockMut>>) {
        let wait = match self.request(Access::Read, at, pieces_len(&into) as u64) {
            Ok(wait) => wait,
            Err(error) => return (Err(error), into),
        };
        let result = self.0.content.read(at, into).await;
        wait.done().await;
        result
    }

    async fn write(&self, at: u64, from: Vec<Piece<S::Block>>) -> DiskResult<()> {
        let wait = self.request(Access::Write, at, pieces_len(&from) as u64)?;
        let content = self.0.content.clone();
        let work = async move {
            let result = content.write(at, from).await;
            wait.done().await;
            result
        };
        self.detached(work).await
    }

    async fn flush(&self) -> DiskResult<()> {
        let content = self.0.content.clone();
        let seam = self.0.array.0.seam.clone();
        let work = async move {
            let reply_at = seam.now() + REPLY_TIME;
            let result = content.flush().await;
            seam.sleep_until(reply_at).await;
            result
        };
        self.detached(work).await
    }

    async fn zero(&self, at: u64, len: u64, may_unmap: bool) -> DiskResult<()> {
        let disk = self.clone();
        let work = async move {
            let seam = disk.0.array.0.seam.clone();
            let reply_at = seam.now() + REPLY_TIME;
            let result = disk.0.content.zero(at, len, may_unmap).await;
            let mut zeroed = 0;
            while !may_unmap && zeroed < len && result.is_ok() {
                let count = ZERO_PIECE_BYTES.min(len - zeroed);
                disk.request(Access::Write, at + zeroed, count)?.done().await;
                zeroed += count;
            }
            seam.sleep_until(reply_at).await;
            result
        };
        self.detached(work).await
    }

    async fn allocation(&self, at: u64, len: u64) -> DiskResult<Vec<AllocationExtent>> {
        self.0.content.allocation(at, len).await
    }

    async fn refresh_size(&self) -> DiskResult<u64> {
        self.0.content.refresh_size().await
    }

    async fn set_size(&self, size_bytes: u64) -> DiskResult<()> {
        let extent = &self.0;
        let array = &extent.array;
        let room_bytes = size_bytes.next_multiple_of(array.spec().stripe_bytes());
        if extent.offset + room_bytes > array.gap_end(extent.offset) {
            return Err(DiskError::NoSpace);
        }
        let allocated_bytes = array.0.extents.borrow().get(&extent.offset).copied().unwrap_or(0);
        array.0.extents.borrow_mut().insert(extent.offset, room_bytes.max(allocated_bytes));
        extent.content.set_size(size_bytes).await
    }
}
