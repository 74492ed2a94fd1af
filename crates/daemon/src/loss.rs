//! Records of acknowledged writes that are lost with a daemon ([`state::unflushed_loss`] has the rule).

use state::{BootRecord, State};

/// The kernel's identifier of the machine's boot.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// Records the boot, and the generation of the first daemon since.
pub(super) fn record_boot(state: &mut State) {
    // Without an identifier, every client may have outlived the last daemon.
    let id = std::fs::read_to_string(BOOT_ID).map(|id| id.trim().to_owned()).ok().filter(|id| !id.is_empty());
    if state.boot.as_ref().map(|boot| &boot.id) != id.as_ref() {
        state.boot = id.map(|id| BootRecord { id, generation: state.generation });
    }
}
