//! Acknowledged writes that ended with a daemon: what the daemon notes for the next one ([`state::unflushed_loss`] has the rule).

use super::daemon::{Daemon, Placed, state_failed};
use control::Failure;
use state::{BootRecord, State};

/// Where the kernel names the machine's start.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// Notes whether the daemon that has begun is the first since the machine's start.
pub(super) fn note_boot(state: &mut State) {
    // Where the kernel does not say, every client may have outlived the last daemon.
    let id = std::fs::read_to_string(BOOT_ID).map(|id| id.trim().to_owned()).ok().filter(|id| !id.is_empty());
    if state.boot.as_ref().map(|boot| &boot.id) != id.as_ref() {
        state.boot = id.map(|id| BootRecord { id, generation: state.generation });
    }
}

impl Daemon {
    /// Notes that a volume defers writes from now on: a kill loses some.
    pub(super) fn note_deferring(&self, placed: &Placed) -> Result<(), Failure> {
        let noted = self.state.borrow_mut().change(|state| {
            if let Some(record) = state.by_incarnation_mut(placed.incarnation) {
                record.durable_writes = false;
            }
        });
        noted.map_err(state_failed)
    }
}
