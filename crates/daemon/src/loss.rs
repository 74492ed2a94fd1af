//! The record of the machine's boot. It decides which clients may have acknowledged writes that a killed daemon lost
//! ([`state::unflushed_loss`]).

use state::{BootRecord, State};

/// The kernel's identifier of the machine's boot.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// Records the boot, and the generation of the first daemon since.
pub(super) fn record_boot(state: &mut State) {
    // Without an identifier no boot is recorded, and every client may have outlived the last daemon.
    let id = std::fs::read_to_string(BOOT_ID).map(|id| id.trim().to_owned()).ok().filter(|id| !id.is_empty());
    if state.boot.as_ref().map(|boot| &boot.id) != id.as_ref() {
        state.boot = id.map(|id| BootRecord { id, generation: state.generation });
    }
}
