//! Records of acknowledged writes that are lost with a daemon ([`state::unflushed_loss`] has the rule).

use super::daemon::{Daemon, Placed, state_failed};
use messages::Failure;
use state::{BootRecord, State};

/// The kernel's identifier of the machine's boot.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// Records the boot, and the generation of the first daemon since.
pub(super) fn note_boot(state: &mut State) {
    // Without an identifier, every client may have outlived the last daemon.
    let id = std::fs::read_to_string(BOOT_ID).map(|id| id.trim().to_owned()).ok().filter(|id| !id.is_empty());
    if state.boot.as_ref().map(|boot| &boot.id) != id.as_ref() {
        state.boot = id.map(|id| BootRecord { id, generation: state.generation });
    }
}

impl Daemon {
    /// Records that a volume defers writes from now on: a kill loses some.
    pub(super) fn note_deferring(&self, placed: &Placed) -> Result<(), Failure> {
        let noted = self.state.borrow_mut().change(|state| {
            if let Some(record) = state.by_incarnation_mut(placed.incarnation) {
                record.durable_writes = false;
            }
        });
        noted.map_err(state_failed)
    }
}
