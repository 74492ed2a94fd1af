//! State shared by the queues of one front end: the volume, the guest's memory, and negotiated features.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use connection::{BufferAccount, Clients};
use engine::{RequestError, Volume, WritePolicy};
use seam::real::FaultFlag;
use seam::{DiskError, Seam};

use crate::config::feature;
use crate::inflight::InflightArea;
use crate::memory::{DirtyLog, Memory};
use crate::payload_pool::{PayloadPool, UnfinishedCount, WakerList};

/// A front end's view of a volume.
pub(crate) struct Device<S: Seam> {
    pub(crate) seam: S,
    pub(crate) volume: Volume<S>,
    pub(crate) memory: RefCell<Rc<Memory>>,
    /// Dirty log of a live migration, if the front end has set one.
    pub(crate) dirty_log: RefCell<Option<Rc<DirtyLog>>>,
    /// Features that the driver accepted.
    pub(crate) features: Cell<u64>,
    /// Inflight memory, which outlives the daemon, if the front end supports it.
    pub(crate) inflight_area: RefCell<Option<InflightArea>>,
    /// True if writes acknowledged by an earlier daemon are lost, so that the driver's next flush fails.
    pub(crate) has_lost_writes: Cell<bool>,
    /// Generation of this daemon, higher than those of earlier ones.
    pub(crate) daemon_generation: u64,
    /// True if the driver requires durable writes (write-through).
    pub(crate) write_through: Cell<bool>,
    pub(crate) clients: Rc<Clients>,
    pub(crate) buffer_account: BufferAccount,
    pub(crate) payload_pool: Rc<PayloadPool>,
    /// Requests of disconnected front ends of the volume.
    pub(crate) unfinished_requests: Rc<UnfinishedCount>,
    /// Set once an access to the front end's memory finds a page of it missing (SIGBUS).
    pub(crate) fault: FaultFlag,
    /// Tasks that disconnect the front end once a page of its memory is missing.
    pub(crate) lost_memory: WakerList,
    /// True once the front end has disconnected: the guest's memory is not written any more.
    pub(crate) has_ended: Cell<bool>,
}

impl<S: Seam> Device<S> {
    /// True if writes must be durable at acknowledgement: requested by the driver, or because the driver never flushes.
    pub(crate) fn writes_through(&self) -> bool {
        let features = self.features.get();
        let never_flushes = features & (feature::FLUSH | feature::CONFIG_WCE) == 0;
        never_flushes || self.write_through.get()
    }

    /// Counts a write before its acknowledgement if its data exist only in memory, which is lost with the daemon.
    pub(crate) fn count_acknowledged(&self) {
        if self.volume.policy() == WritePolicy::WriteBack
            && !self.writes_through()
            && let Some(area) = &*self.inflight_area.borrow()
        {
            area.count_acknowledged();
        }
    }

    /// Takes over the inflight memory. `lost_before`: writes acknowledged by daemons of lower generations may be lost.
    pub(crate) fn set_inflight_area(&self, area: InflightArea, lost_before: u64) {
        // Write-through stays in force if the driver required it of an earlier daemon or of this one.
        self.write_through.set(self.write_through.get() || area.is_write_through());
        area.set_write_through(self.write_through.get());
        if area.has_unflushed_writes_before(lost_before) {
            self.has_lost_writes.set(true);
        } else {
            area.take_over(self.daemon_generation);
        }
        *self.inflight_area.borrow_mut() = Some(area);
    }

    /// Makes acknowledged writes durable. Fails once if some of them are lost, which reports the loss to the guest.
    pub(crate) async fn flush(&self) -> Result<(), RequestError> {
        let acknowledged_count = self.inflight_area.borrow().as_ref().map(InflightArea::acknowledged_count);
        self.volume.flush().await?;
        let area = self.inflight_area.borrow();
        let Some((area, acknowledged_count)) = area.as_ref().zip(acknowledged_count) else { return Ok(()) };
        if self.has_lost_writes.take() {
            area.take_over(self.daemon_generation);
            return Err(RequestError::Disk(DiskError::Io(
                "writes that were acknowledged before a daemon ended are lost".to_owned(),
            )));
        }
        area.record_flushed(acknowledged_count);
        Ok(())
    }

    /// Marks `len` written bytes at the guest address `guest` in the dirty log, if there is one.
    pub(crate) fn mark_dirty(&self, guest: u64, len: usize) {
        if self.features.get() & feature::LOG_ALL != 0
            && let Some(log) = &*self.dirty_log.borrow()
        {
            log.mark(guest, len);
        }
    }

    /// The guest's memory as of now.
    pub(crate) fn memory(&self) -> Rc<Memory> {
        self.memory.borrow().clone()
    }
}
