//! What the queues of one front end share: its volume, the guest's memory, what was agreed on.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use engine::{RequestError, Volume, WritePolicy};
use front::{Account, Clients};
use seam::real::FaultFlag;
use seam::{DiskError, Seam};

use crate::config::feature;
use crate::inflight::Area;
use crate::memory::{DirtyLog, Memory};
use crate::room::{Orphans, Room, Waiting};

/// One front end's view of a volume.
pub(crate) struct Device<S: Seam> {
    pub(crate) seam: S,
    pub(crate) volume: Volume<S>,
    pub(crate) memory: RefCell<Rc<Memory>>,
    pub(crate) log: RefCell<Option<Rc<DirtyLog>>>,
    /// What the driver has taken of what was offered.
    pub(crate) features: Cell<u64>,
    /// What outlives the daemon, if the front end keeps anything.
    pub(crate) area: RefCell<Option<Area>>,
    /// The daemon before this one acknowledged writes that are lost: the driver is told at its next flush.
    pub(crate) in_doubt: Cell<bool>,
    /// The number of this daemon; earlier ones had lower numbers.
    pub(crate) daemon: u64,
    /// The driver wants what is acknowledged to be durable.
    pub(crate) write_through: Cell<bool>,
    pub(crate) clients: Rc<Clients>,
    pub(crate) account: Account,
    pub(crate) room: Rc<Room>,
    pub(crate) orphans: Rc<Orphans>,
    /// Set once a page of the memory that the front end shares could not be had.
    pub(crate) fault: FaultFlag,
    /// Who ends the front end then.
    pub(crate) lost_memory: Waiting,
    /// The front end has gone: nothing is written to its guest's memory any more.
    pub(crate) has_ended: Cell<bool>,
}

impl<S: Seam> Device<S> {
    /// True when a write is acknowledged only once it is durable: the driver said so, or knows nothing of flushes.
    pub(crate) fn writes_through(&self) -> bool {
        let features = self.features.get();
        let never_flushes = features & (feature::FLUSH | feature::CONFIG_WCE) == 0;
        never_flushes || self.write_through.get()
    }

    /// A write is about to be acknowledged. Where it is in memory alone, a daemon that ends takes it away.
    pub(crate) fn promise(&self) {
        if self.volume.policy() == WritePolicy::WriteBack
            && !self.writes_through()
            && let Some(area) = &*self.area.borrow()
        {
            area.promise();
        }
    }

    /// Takes over what the front end has kept. `lost_before`: what daemons of lower numbers acknowledged may be lost.
    pub(crate) fn adopt(&self, area: Area, lost_before: u64) {
        // What an earlier daemon promised the driver holds, and so does what was promised since.
        self.write_through.set(self.write_through.get() || area.is_write_through());
        area.set_write_through(self.write_through.get());
        if area.is_in_doubt(lost_before) {
            self.in_doubt.set(true);
        } else {
            area.adopt(self.daemon);
        }
        *self.area.borrow_mut() = Some(area);
    }

    /// Makes durable what was acknowledged. Fails once where some of it is lost: the guest must not believe that it is safe.
    pub(crate) async fn flush(&self) -> Result<(), RequestError> {
        let promised = self.area.borrow().as_ref().map(Area::promised);
        self.volume.flush().await?;
        let area = self.area.borrow();
        let Some((area, promised)) = area.as_ref().zip(promised) else { return Ok(()) };
        if self.in_doubt.take() {
            area.adopt(self.daemon);
            return Err(RequestError::Disk(DiskError::Io(
                "writes that were acknowledged before a daemon ended are lost".to_owned(),
            )));
        }
        area.keep(promised);
        Ok(())
    }

    /// Notes what was written of the guest's memory, where somebody keeps a log of that.
    pub(crate) fn wrote(&self, at: u64, len: usize) {
        if self.features.get() & feature::LOG_ALL != 0
            && let Some(log) = &*self.log.borrow()
        {
            log.mark(at, len);
        }
    }

    pub(crate) fn memory(&self) -> Rc<Memory> {
        self.memory.borrow().clone()
    }
}
