//! A volume of the pool as a disk.

use std::ops::Range;
use std::rc::Rc;

use seam::block::pieces_len;
use seam::{
    AllocationExtent, ContentKey, Disk, DiskError, DiskResult, Geometry, Nanos, PendingRequest, Piece, PieceMut, Seam,
};

use crate::change::locate;
use crate::detached::{detached, detached_on_drop};
use crate::error::PoolError;
use crate::format::uuid_text;
use crate::io::{allocate, parts, read, slice_range, write, zero};
use crate::journal;
use crate::number::{SliceAddress, VolumeId};
use crate::policy::Provisioning;
use crate::resize;
use crate::state::{CommitScope, Inner};

/// A volume of an open pool, or a snapshot, which is read-only. A clone is another handle to the same volume.
pub struct PoolDisk<S: Seam, D: Disk<S>> {
    inner: Rc<Inner<S, D>>,
    volume: VolumeId,
}

impl<S: Seam, D: Disk<S>> Clone for PoolDisk<S, D> {
    fn clone(&self) -> Self {
        PoolDisk { inner: Rc::clone(&self.inner), volume: self.volume }
    }
}

impl<S: Seam, D: Disk<S>> PoolDisk<S, D> {
    pub(crate) fn new(inner: &Rc<Inner<S, D>>, volume: VolumeId) -> Self {
        PoolDisk { inner: Rc::clone(inner), volume }
    }

    /// The volume's number.
    pub fn volume(&self) -> VolumeId {
        self.volume
    }

    /// Allocates every slice of a range. When this returns, the allocation is durable: a later write to the range needs
    /// no space. Fails with [`DiskError::NoSpace`] when the pool is full.
    pub async fn reserve(&self, at: u64, len: u64) -> DiskResult<()> {
        let request = self.begin_change(at, len)?;
        let (inner, volume) = (Rc::clone(&self.inner), self.volume);
        let work = async move {
            let _request = request;
            allocate::reserve(&inner, volume, at, len).await
        };
        detached(&self.inner.seam, work).await
    }

    /// Allocates every slice that has no slot, durably. Shared slices stay shared.
    pub async fn fill_holes(&self) -> DiskResult<()> {
        let request = self.begin_change(0, 0)?;
        let (inner, volume) = (Rc::clone(&self.inner), self.volume);
        let work = async move {
            let _request = request;
            allocate::fill_holes(&inner, volume).await
        };
        detached(&self.inner.seam, work).await
    }

    /// Checks a request at the door and counts it. A misaligned request is a bug of the caller.
    fn begin(&self, at: u64, len: u64) -> DiskResult<PendingRequest> {
        let state = self.inner.state.borrow();
        let block = u64::from(state.superblock.logical_block);
        assert!(
            at.is_multiple_of(block) && len.is_multiple_of(block),
            "{at}+{len} is not aligned to the logical block of {block} bytes"
        );
        state.require_imported(self.volume).map_err(PoolError::into_disk_error)?;
        let volume = state.volumes.get(&self.volume).ok_or(DiskError::Gone)?;
        if at.checked_add(len).is_none_or(|end| end > volume.limit_bytes) {
            return Err(DiskError::Io(format!("{at}+{len} lies past the end of volume {}", self.volume)));
        }
        Ok(volume.requests.begin(self.inner.seam.now()))
    }

    /// As [`PoolDisk::begin`]; refuses a snapshot.
    fn begin_change(&self, at: u64, len: u64) -> DiskResult<PendingRequest> {
        if self.is_snapshot() { Err(DiskError::ReadOnly) } else { self.begin(at, len) }
    }

    fn is_snapshot(&self) -> bool {
        let state = self.inner.state.borrow();
        state.volumes.get(&self.volume).is_some_and(|volume| volume.lineage.snapshot.is_some())
    }
}

impl<S: Seam, D: Disk<S>> Disk<S> for PoolDisk<S, D> {
    fn geometry(&self) -> Geometry {
        let state = self.inner.state.borrow();
        let disks = || state.groups.iter().filter_map(|group| Some(group.disk.as_ref()?.geometry()));
        let volume = state.volumes.get(&self.volume);
        let stripe_bytes = disks().map(|geometry| geometry.stripe_bytes).max().unwrap_or(0);
        let fits = stripe_bytes > 0 && state.slice_bytes().is_multiple_of(u64::from(stripe_bytes));
        Geometry {
            size_bytes: volume.map_or(0, |volume| volume.limit_bytes),
            logical_block: state.superblock.logical_block,
            physical_block: disks()
                .map(|geometry| geometry.physical_block)
                .fold(state.superblock.logical_block, u32::max),
            stripe_bytes: if fits { stripe_bytes } else { 0 },
            queue_depth: disks().map(|geometry| geometry.queue_depth).sum(),
            fast_zero: volume.is_some_and(|volume| volume.spec.provisioning == Provisioning::Thin)
                && disks().all(|geometry| geometry.fast_zero),
        }
    }

    fn identity(&self) -> String {
        format!("pool:{}/{}", uuid_text(&self.inner.state.borrow().superblock.pool), self.volume)
    }

    fn is_identity_unique(&self) -> bool {
        true
    }

    fn connection_epoch(&self) -> u64 {
        self.inner.state.borrow().connection_epoch()
    }

    fn oldest_unanswered(&self) -> Option<Nanos> {
        self.inner.state.borrow().volumes.get(&self.volume)?.requests.oldest_started_at()
    }

    fn accesses(&self, write: bool, at: u64, len: u64) -> Option<u64> {
        let state = self.inner.state.borrow();
        let parts = parts::ranges(&state, at, len);
        let accesses =
            parts.map(|(slice, offset, len)| match state.slot_of(SliceAddress { volume: self.volume, slice }) {
                Some(slot) => {
                    let (disk, at) = locate(&state, slot, offset).ok()?;
                    disk.accesses(write, at, len)
                }
                None => Some(0),
            });
        accesses.sum()
    }

    async fn read(&self, at: u64, into: Vec<PieceMut<S::BlockMut>>) -> (DiskResult<()>, Vec<PieceMut<S::BlockMut>>) {
        match self.begin(at, pieces_len(&into) as u64) {
            Ok(_request) => read::read(&self.inner, self.volume, at, into).await,
            Err(error) => (Err(error), into),
        }
    }

    async fn write(&self, at: u64, from: Vec<Piece<S::Block>>) -> DiskResult<()> {
        let request = self.begin_change(at, pieces_len(&from) as u64)?;
        let (inner, volume) = (Rc::clone(&self.inner), self.volume);
        let work = async move {
            let _request = request;
            write::write(&inner, volume, at, from).await
        };
        detached_on_drop(&self.inner.seam, work).await
    }

    async fn flush(&self) -> DiskResult<()> {
        let _request = self.begin(0, 0)?;
        let flush = journal::commit(&self.inner, CommitScope::VolumeWrites(self.volume), Vec::new());
        flush.await.map_err(PoolError::into_disk_error)
    }

    fn allocates_at_first_write(&self) -> bool {
        true
    }

    fn has_space_for(&self, at: u64, len: u64) -> bool {
        let state = self.inner.state.borrow();
        let (first, end) = slice_range(&state, at, len);
        !state.releases.overlaps(self.volume, &(first..end)) && allocate::are_durable(&state, self.volume, first, end)
    }

    fn part_to_reserve_for_zeroes(&self, at: u64, len: u64) -> Option<Range<u64>> {
        let state = self.inner.state.borrow();
        zero::shared_edge(&state, self.volume, at, len)
    }

    fn shared_content(&self, at: u64, len: u64) -> Option<ContentKey> {
        let mut state = self.inner.state.borrow_mut();
        let (slice, offset) = state.slice_at(at);
        let is_inside = at + len <= state.volumes.get(&self.volume)?.limit_bytes;
        if !is_inside || offset + len > state.slice_bytes() {
            return None;
        }
        let slot = state.shared_slot(SliceAddress { volume: self.volume, slice })?;
        // The address identifies the open pool: both disks of a comparison keep it open.
        let store = Rc::as_ptr(&self.inner) as usize as u64;
        Some(ContentKey { store, place: u64::from(slot.group.0) << 32 | u64::from(slot.slot.0) })
    }

    async fn reserve(&self, at: u64, len: u64) -> DiskResult<()> {
        PoolDisk::reserve(self, at, len).await
    }

    async fn zero(&self, at: u64, len: u64, may_unmap: bool) -> DiskResult<()> {
        let request = self.begin_change(at, len)?;
        let (inner, volume) = (Rc::clone(&self.inner), self.volume);
        let release = may_unmap.then(|| {
            let mut state = inner.state.borrow_mut();
            let (first, end) = slice_range(&state, at, len);
            state.releases.begin(volume, first..end)
        });
        let work = async move {
            let _request = request;
            let result = zero::zero(&inner, volume, (at, len), may_unmap).await;
            if let Some(number) = release {
                inner.state.borrow_mut().releases.end(number);
            }
            result
        };
        detached(&self.inner.seam, work).await
    }

    async fn allocation(&self, at: u64, len: u64) -> DiskResult<Vec<AllocationExtent>> {
        let _request = self.begin(at, len)?;
        read::allocation(&self.inner, self.volume, at, len).await
    }

    async fn refresh_size(&self) -> DiskResult<u64> {
        let state = self.inner.state.borrow();
        state.volumes.get(&self.volume).map(|volume| volume.limit_bytes).ok_or(DiskError::Gone)
    }

    async fn set_size(&self, size_bytes: u64) -> DiskResult<()> {
        if self.is_snapshot() {
            return Err(DiskError::ReadOnly);
        }
        let inner = Rc::clone(&self.inner);
        let volume = self.volume;
        let work = async move {
            let grown = resize::resize(&inner, volume, size_bytes).await.map_err(PoolError::into_disk_error)?;
            if grown.provisioning == Provisioning::Thick {
                let reserved = allocate::reserve(&inner, volume, grown.from_bytes, grown.len_bytes).await;
                if reserved.is_err() {
                    // A thick volume has no range without space.
                    resize::resize(&inner, volume, grown.from_bytes).await.map_err(PoolError::into_disk_error)?;
                }
                reserved?;
            }
            Ok(())
        };
        detached(&self.inner.seam, work).await
    }
}
