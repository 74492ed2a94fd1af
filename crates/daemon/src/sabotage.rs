//! A deliberate fault set by the environment, so that tests outside this process can prove that they detect it. Only
//! builds with the feature `sabotage` have it.

use engine::spec::Sabotage;

/// The variable that names the fault, in words joined by hyphens.
const VARIABLE: &str = "HOTSET_SABOTAGE";

/// Faults of the engine, by the name in the variable.
const ENGINE_FAULTS: [(&str, Sabotage); 9] = [
    ("flush-early", Sabotage::FlushEarly),
    ("lose-partial-write", Sabotage::LosePartialWrite),
    ("stale-after-discard", Sabotage::StaleAfterDiscard),
    ("drop-written-at-reconnect", Sabotage::DropWrittenAtReconnect),
    ("no-tickets", Sabotage::NoFillGuards),
    ("overwrite-in-flight", Sabotage::OverwriteInFlight),
    ("zero-for-dirty", Sabotage::ZeroForDirty),
    ("ack-before-log", Sabotage::AckBeforeLog),
    ("no-tombstones", Sabotage::NoTombstones),
];

/// Faults of the flash store, by the name in the variable.
const FLASH_FAULTS: [(&str, flash::Sabotage); 2] =
    [("flash-skip-flush", flash::Sabotage::SkipFlush), ("flash-ack-before-mirror", flash::Sabotage::AckBeforeMirror)];

/// The engine's fault that the environment requests.
pub fn from_environment() -> Sabotage {
    let Some(requested) = fault_name() else { return Sabotage::None };
    logging::warn!(target: logging::DAEMON, "{VARIABLE}={requested}: this daemon is broken on purpose");
    let is_flash_fault = FLASH_FAULTS.iter().any(|(name, _)| *name == requested);
    let sabotage = ENGINE_FAULTS.iter().find(|(name, _)| *name == requested).map(|(_, sabotage)| *sabotage);
    sabotage.unwrap_or_else(|| {
        if is_flash_fault { Sabotage::None } else { panic!("{VARIABLE} names no fault: {requested}") }
    })
}

/// The flash store's fault that the environment requests.
pub fn flash_fault() -> flash::Sabotage {
    let fault = fault_name().and_then(|requested| FLASH_FAULTS.iter().find(|(name, _)| *name == requested));
    fault.map_or(flash::Sabotage::None, |(_, sabotage)| *sabotage)
}

fn fault_name() -> Option<String> {
    std::env::var(VARIABLE).ok()
}
