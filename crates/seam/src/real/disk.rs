//! A file or block device behind io_uring, with direct I/O from and to blocks.
//!
//! An operation owns its descriptor and its buffers, so both live until the kernel has finished with them. The lock
//! lives as long, because it is on the descriptor that the ring uses.

use std::cell::{Cell, RefCell};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use compio::runtime::Runtime;

use super::claims::Claim;
use super::core::Core;
use super::disk_open::{
    CLOSING_TIMEOUT, Kind, LOCK_PAUSE_MAX, LOCK_PAUSE_MIN, LockWait, OpenedDisk, disk_error, size_of_file, try_open,
};
use super::footprint::KernelNbdDevice;
use super::op::{Action, IOV_MAX, Operation, submit_detached};
use super::path_call::PathCall;
use super::preallocate::preallocate;
use super::submitter::Submitter;
use super::{RealBlock, RealBlockMut, RealSeam};
use crate::block::pieces_len;
use crate::model::{Access, Ssd, SsdSpec};
use crate::{AllocationExtent, Disk, DiskError, DiskOpen, DiskResult, Geometry, Nanos, Piece, PieceMut, Seam};

/// Maximum number of runs returned by one allocation query.
const RUNS_MAX: usize = 1024;

/// An open file or block device.
#[derive(Clone)]
pub struct RealDisk {
    core: Rc<Core>,
    inner: Rc<Inner>,
    submitter: Rc<Submitter>,
    /// Model whose latency is a lower bound for reads and writes.
    ssd: Option<Rc<RefCell<Ssd>>>,
}

struct Inner {
    file: File,
    kind: Kind,
    identities: Vec<String>,
    is_unique: bool,
    instance: Option<String>,
    open_warning: Option<String>,
    geometry: Cell<Geometry>,
    claim: Claim,
}

/// Converts the panic of a helper thread into an error.
pub(super) fn helper_failed<E>(_: E) -> DiskError {
    DiskError::Io("a helper thread failed".into())
}

impl RealDisk {
    /// Opens a disk as [`Seam::open_disk`] does. Fails with [`DiskError::Hung`] when its path has not answered for
    /// `limit`.
    pub async fn open_within(seam: &RealSeam, spec: &DiskOpen, limit: Duration) -> DiskResult<RealDisk> {
        let lock_deadline = Instant::now() + Duration::from_millis(spec.lock_wait_ms);
        let closing_deadline = lock_deadline.min(Instant::now() + CLOSING_TIMEOUT);
        let sleep = async |time: Duration| seam.sleep(Nanos(time.as_nanos() as u64)).await;
        let mut pause = LOCK_PAUSE_MIN;
        let (mut wait, holder) = (LockWait::new(Duration::from_millis(spec.lock_wait_ms)), Arc::new(AtomicU32::new(0)));
        let opened = loop {
            let (attempt, lock_holder) = (spec.clone(), Arc::clone(&holder));
            let call = PathCall::start(&spec.path, move |call| try_open(&attempt, call, &lock_holder));
            let opened = call.answer(limit, sleep).await.map_err(|hung| DiskError::Hung(hung.to_string()))?;
            let retries_until = match &opened {
                Err(DiskError::Busy(_)) => lock_deadline,
                // The requests in flight of a disk that is being closed hold its claim.
                Err(DiskError::Shared { .. }) => closing_deadline,
                _ => break opened?,
            };
            if Instant::now() >= retries_until {
                break opened?;
            }
            if matches!(opened, Err(DiskError::Busy(_))) {
                wait.report_if_long(&spec.path, holder.load(Ordering::Relaxed));
            }
            sleep(pause).await;
            pause = (pause * 2).min(LOCK_PAUSE_MAX);
        };
        let OpenedDisk {
            file,
            kind,
            is_in_memory,
            device,
            identities,
            is_unique,
            instance,
            open_warning,
            geometry,
            claim,
        } = opened;
        let ring = Runtime::with_current(|runtime| runtime.as_raw_fd());
        let submitter = Rc::new(Submitter::new(seam.core.domains.get_or_create(device, ring), is_in_memory));
        let geometry = Cell::new(geometry);
        let inner = Rc::new(Inner { file, kind, identities, is_unique, instance, open_warning, geometry, claim });
        Ok(RealDisk { core: seam.core.clone(), inner, submitter, ssd: None })
    }

    /// The same disk, whose reads and writes take at least the time of the modelled SSD, like a simulated disk with
    /// [`Timing::of_ssd`](crate::sim::Timing::of_ssd).
    pub fn with_ssd_latency(self, ssd: SsdSpec) -> RealDisk {
        // The file checks its own bounds, and may grow.
        let ssd = SsdSpec { capacity_bytes: u64::MAX, ..ssd };
        RealDisk { ssd: Some(Rc::new(RefCell::new(Ssd::new(ssd)))), ..self }
    }

    /// Submits a request to the model, if there is one; the future completes at the modelled completion time.
    fn modelled_completion(&self, access: Access, at: u64, len: usize) -> impl Future<Output = ()> + use<> {
        let seam = RealSeam { core: self.core.clone() };
        let serve = |ssd: &Rc<RefCell<Ssd>>| ssd.borrow_mut().serve(seam.now(), access, at, len as u64);
        let completion_time = self.ssd.as_ref().filter(|_| len > 0).map(serve);
        async move {
            if let Some(completion_time) =
                completion_time.filter(|completion_time: &Nanos| *completion_time > seam.now())
            {
                seam.sleep_until(completion_time).await;
            }
        }
    }

    /// A warning for the operator about the way of opening (no direct I/O), if any.
    pub fn open_warning(&self) -> Option<&str> {
        self.inner.open_warning.as_deref()
    }

    /// Allocates all blocks of a file, so that no later write needs space. A block device needs no allocation.
    pub async fn reserve(&self, path: &Path) -> DiskResult<()> {
        if self.inner.kind == Kind::Device {
            return Ok(());
        }
        let (file, path) = (self.file()?, path.to_owned());
        self.submitter.run_blocking(move || preallocate(&file, &path)).await
    }

    /// The kernel's NBD devices below this disk.
    pub fn nbd_devices_below(&self) -> &[KernelNbdDevice] {
        &self.inner.claim.nbd
    }

    /// A second handle to the open file, for a helper thread.
    fn file(&self) -> DiskResult<File> {
        self.inner.file.try_clone().map_err(|error| disk_error(&error))
    }

    /// Runs one operation on the disk's descriptor to its completion.
    ///
    /// # Safety
    ///
    /// As for [`Operation::new`].
    async unsafe fn run<K: 'static>(
        &self,
        action: Action,
        iov: Vec<libc::iovec>,
        keep: K,
    ) -> (io::Result<usize>, Vec<libc::iovec>, K) {
        // SAFETY: the descriptor is open while `inner` lives; the caller guarantees the rest.
        let operation = unsafe { Operation::new(action, self.inner.file.as_raw_fd(), self.inner.clone(), iov, keep) };
        let (result, operation) = submit_detached(&self.core, &self.submitter, operation).await;
        let (iov, keep, _) = operation.into_parts();
        (result, iov, keep)
    }

    /// Transfers all of `iov` at byte `at`, resubmitting after short transfers.
    ///
    /// # Safety
    ///
    /// As for [`Operation::new`]; `action` returns a read or a write at the given offset.
    async unsafe fn transfer<K: 'static>(
        &self,
        action: fn(u64) -> Action,
        mut at: u64,
        mut iov: Vec<libc::iovec>,
        mut keep: K,
    ) -> (DiskResult<()>, K) {
        while !iov.is_empty() {
            let mut remaining_iov = if iov.len() > IOV_MAX { iov.split_off(IOV_MAX) } else { Vec::new() };
            let result;
            // SAFETY: guaranteed by the caller.
            (result, iov, keep) = unsafe { self.run(action(at), iov, keep) }.await;
            match result {
                Ok(0) => {
                    let text = format!("nothing at byte {at}: the file is shorter than it was");
                    return (Err(DiskError::Io(text)), keep);
                }
                Ok(count) => {
                    at += count as u64;
                    super::stream::advance(&mut iov, count);
                }
                Err(error) if matches!(error.kind(), io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock) => {}
                Err(error) => return (Err(disk_error(&error)), keep),
            }
            iov.append(&mut remaining_iov);
        }
        (Ok(()), keep)
    }

    /// Checks the bounds: a write past a file's end would extend the file.
    fn check(&self, at: u64, len: u64) -> DiskResult<()> {
        let Geometry { logical_block, size_bytes, .. } = self.inner.geometry.get();
        let unit = u64::from(logical_block);
        assert!(at.is_multiple_of(unit) && len.is_multiple_of(unit), "{at}+{len} is not aligned to {unit} bytes");
        match at.checked_add(len) {
            Some(end) if end <= size_bytes => Ok(()),
            _ => Err(DiskError::Io(format!("{len} bytes at {at} are past the end at {size_bytes}"))),
        }
    }
}

/// Appends memory to a list of buffers and merges it with an adjacent last entry; the pool often hands out neighbours.
fn push(iov: &mut Vec<libc::iovec>, data: *mut u8, len: usize) {
    match iov.last_mut() {
        Some(last) if last.iov_base.cast::<u8>().wrapping_add(last.iov_len) == data => last.iov_len += len,
        _ => iov.push(libc::iovec { iov_base: data.cast(), iov_len: len }),
    }
}

impl Disk<RealSeam> for RealDisk {
    fn geometry(&self) -> Geometry {
        self.inner.geometry.get()
    }

    fn identity(&self) -> String {
        self.inner.identities[0].clone()
    }

    fn former_identities(&self) -> Vec<String> {
        self.inner.identities[1..].to_vec()
    }

    fn is_identity_unique(&self) -> bool {
        self.inner.is_unique
    }

    fn instance(&self) -> Option<String> {
        self.inner.instance.clone()
    }

    fn connection_epoch(&self) -> u64 {
        // A local disk reports lost writes by a failed flush.
        0
    }

    fn oldest_unanswered(&self) -> Option<Nanos> {
        self.submitter.pending.oldest_started_at()
    }

    async fn read(&self, at: u64, into: Vec<PieceMut<RealBlockMut>>) -> (DiskResult<()>, Vec<PieceMut<RealBlockMut>>) {
        let len = pieces_len(&into);
        if let Err(error) = self.check(at, len as u64) {
            return (Err(error), into);
        }
        let model_wait = self.modelled_completion(Access::Read, at, len);
        let mut iov = Vec::with_capacity(into.len().min(IOV_MAX));
        // SAFETY: a piece lies inside its block.
        into.iter().for_each(|piece| push(&mut iov, unsafe { piece.block.data().add(piece.start()) }, piece.len()));
        // SAFETY: the buffers are blocks that `into` owns alone.
        let result = unsafe { self.transfer(Action::Read, at, iov, into) }.await;
        model_wait.await;
        result
    }

    async fn write(&self, at: u64, from: Vec<Piece<RealBlock>>) -> DiskResult<()> {
        let len = pieces_len(&from);
        self.check(at, len as u64)?;
        let model_wait = self.modelled_completion(Access::Write, at, len);
        let mut iov = Vec::with_capacity(from.len().min(IOV_MAX));
        // SAFETY: a piece lies inside its block.
        from.iter().for_each(|piece| push(&mut iov, unsafe { piece.block.data().add(piece.start()) }, piece.len()));
        // SAFETY: the buffers are frozen blocks that `from` holds.
        let result = unsafe { self.transfer(Action::Write, at, iov, from) }.await.0;
        model_wait.await;
        result
    }

    async fn flush(&self) -> DiskResult<()> {
        // SAFETY: no buffers.
        let (result, ..) = unsafe { self.run(Action::DataSync, Vec::new(), ()) }.await;
        result.map(drop).map_err(|error| disk_error(&error))
    }

    async fn zero(&self, at: u64, len: u64, may_unmap: bool) -> DiskResult<()> {
        self.check(at, len)?;
        // The mode that keeps the space comes first if space must be kept, and last if it may be released. Both modes
        // also work on devices.
        const ZERO_RANGE: i32 = libc::FALLOC_FL_ZERO_RANGE | libc::FALLOC_FL_KEEP_SIZE;
        const PUNCH_HOLE: i32 = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        let modes: &[i32] = if may_unmap { &[PUNCH_HOLE, ZERO_RANGE] } else { &[ZERO_RANGE] };
        for mode in modes {
            loop {
                // SAFETY: no buffers.
                let (result, ..) = unsafe { self.run(Action::Allocate(*mode, at, len), Vec::new(), ()) }.await;
                match result.as_ref().map_err(|error| (error.kind(), error.raw_os_error())) {
                    Ok(_) => return Ok(()),
                    Err((io::ErrorKind::Interrupted, _)) => {}
                    Err((_, Some(libc::EOPNOTSUPP | libc::ENOSYS | libc::EINVAL))) => break,
                    Err(_) => return result.map(drop).map_err(|error| disk_error(&error)),
                }
            }
        }
        if !may_unmap {
            self.inner.geometry.set(Geometry { fast_zero: false, ..self.inner.geometry.get() });
        }
        Err(DiskError::Unsupported)
    }

    async fn allocation(&self, at: u64, len: u64) -> DiskResult<Vec<AllocationExtent>> {
        if self.inner.kind == Kind::Device || len == 0 {
            return Ok(vec![AllocationExtent { len_bytes: len, hole: false, zero: false }]);
        }
        let file = self.file()?;
        let runs = move || allocation_of(&file, at, len).map_err(|error| disk_error(&error));
        self.submitter.run_blocking(runs).await
    }

    async fn refresh_size(&self) -> DiskResult<u64> {
        let (file, kind) = (self.file()?, self.inner.kind);
        let size = move || size_of_file(&file, kind).map_err(|error| disk_error(&error));
        let size = self.submitter.run_blocking(size).await?;
        let mut geometry = self.inner.geometry.get();
        // Bytes of an incomplete last logical block do not count.
        geometry.size_bytes = size - size % u64::from(geometry.logical_block);
        self.inner.geometry.set(geometry);
        Ok(geometry.size_bytes)
    }

    async fn set_size(&self, size_bytes: u64) -> DiskResult<()> {
        let unit = u64::from(self.inner.geometry.get().logical_block);
        assert!(size_bytes.is_multiple_of(unit), "a size of {size_bytes} is no multiple of {unit} bytes");
        if self.inner.kind == Kind::Device {
            return Err(DiskError::Unsupported);
        }
        let file = self.file()?;
        let resize = move || {
            let result = file.set_len(size_bytes).and_then(|()| file.sync_all());
            result.map_err(|error| disk_error(&error))
        };
        self.submitter.run_blocking(resize).await?;
        self.refresh_size().await.map(drop)
    }
}

/// Data and holes of a file from `at` on, at most [`RUNS_MAX`] of them. A range past the end of the file is a hole.
pub(super) fn allocation_of(file: &File, at: u64, len: u64) -> io::Result<Vec<AllocationExtent>> {
    let end = at + len;
    // Start of the next run of the kind `whence`; `end` if none begins before it.
    let seek = |from: u64, whence: i32| {
        // SAFETY: a system call on an open descriptor. No code uses the file's own position.
        let offset = unsafe { libc::lseek(file.as_raw_fd(), from as i64, whence) };
        if offset >= 0 {
            return Ok((offset as u64).min(end));
        }
        let error = io::Error::last_os_error();
        // ENXIO: no data, or no file, from that offset on.
        if error.raw_os_error() == Some(libc::ENXIO) { Ok(end) } else { Err(error) }
    };
    let mut runs = Vec::new();
    let mut from = at;
    while from < end && runs.len() < RUNS_MAX {
        let data = match seek(from, libc::SEEK_DATA) {
            // A file system without this query reports EINVAL; all of the file then counts as data.
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => from,
            other => other?,
        };
        let hole = data > from;
        let next = if hole { data } else { seek(from, libc::SEEK_HOLE)?.max(from + 1) };
        runs.push(AllocationExtent { len_bytes: next - from, hole, zero: hole });
        from = next;
    }
    Ok(runs)
}
