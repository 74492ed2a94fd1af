//! A deliberate fault by environment, so that tests outside this process can show that they notice. Builds with assertions alone
//! obey it.

use engine::spec::Sabotage;

/// The variable that names the fault, in words joined by hyphens.
const VARIABLE: &str = "HOTSET_SABOTAGE";

const ALL: [(&str, Sabotage); 9] = [
    ("flush-early", Sabotage::FlushEarly),
    ("lose-partial-write", Sabotage::LosePartialWrite),
    ("stale-after-discard", Sabotage::StaleAfterDiscard),
    ("drop-written-at-reconnect", Sabotage::DropWrittenAtReconnect),
    ("no-tickets", Sabotage::NoTickets),
    ("overwrite-in-flight", Sabotage::OverwriteInFlight),
    ("zero-for-dirty", Sabotage::ZeroForDirty),
    ("ack-before-log", Sabotage::AckBeforeLog),
    ("no-tombstones", Sabotage::NoTombstones),
];

/// The fault that the environment asks for.
pub fn from_environment() -> Sabotage {
    if !cfg!(debug_assertions) {
        return Sabotage::None;
    }
    let Ok(wanted) = std::env::var(VARIABLE) else { return Sabotage::None };
    let found = ALL.iter().find(|(name, _)| *name == wanted).map(|(_, sabotage)| *sabotage);
    crate::log::warn(format!("{VARIABLE}={wanted}: this daemon is broken on purpose"));
    found.unwrap_or_else(|| panic!("{VARIABLE} names no fault: {wanted}"))
}
