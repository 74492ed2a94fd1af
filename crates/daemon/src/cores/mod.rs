//! The data cores of the daemon, and calls to one or all of them.

mod attach;
mod data_core;
mod datastores;
mod detach;
mod evidence;
mod hang;
mod memory_images;
mod open;
mod pools;
mod release;
mod standby;
mod transfer;
mod volume;
mod watchdog;

use std::ops::Index;
use std::slice::Iter;
use std::time::Duration;

use messages::{ErrorKind, Failure};

pub use self::attach::{AttachOutcome, AttachRequest, LateAttach, OpenedBacking};
pub use self::data_core::{CoreEnded, CoreLocal, DataCore, DataCoreSpec};
pub use self::detach::{CLIENTS_TIMEOUT, CachedData, ConnectedClients};
pub use self::evidence::{ExaminationError, ExaminationResult, ExaminedVolume};
pub use self::hang::unless_hung;
pub use self::open::{BackingTarget, OpenFacts, OpenPlan, connect_image, image_options};
pub use self::pools::{NewDevice, PoolTarget, PoolVolume, heat_path};
pub use self::transfer::{Handover, TRANSFER_TIME, TransferTarget};

/// Time-out for a core's answer to a report; a core that exceeds it is reported as unresponsive.
pub const CORE_TIMEOUT: Duration = Duration::from_secs(2);

/// The data cores, by number. There is at least one.
pub struct Cores(Vec<DataCore>);

/// The failure of an action whose core has ended.
pub fn core_ended(error: CoreEnded) -> Failure {
    Failure::new(ErrorKind::Failed, error.to_string())
}

impl Cores {
    /// Running cores.
    pub fn new(cores: Vec<DataCore>) -> Cores {
        assert!(!cores.is_empty(), "a daemon has a data core");
        Cores(cores)
    }

    /// The core of everything that exists once: the flash log, the iSCSI target, the listeners.
    pub fn first(&self) -> &DataCore {
        &self.0[0]
    }

    /// All cores.
    pub fn iter(&self) -> Iter<'_, DataCore> {
        self.0.iter()
    }

    /// Their number.
    pub fn count(&self) -> usize {
        self.0.len()
    }
}

impl Index<usize> for Cores {
    type Output = DataCore;

    fn index(&self, core: usize) -> &DataCore {
        &self.0[core]
    }
}
