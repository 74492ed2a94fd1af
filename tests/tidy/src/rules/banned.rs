//! Simulated crates reach the operating system only through the seam, and depend on neither randomness nor the clock.
//!
//! Clippy refuses the same by name resolution (`clippy.toml`); this rule also catches what an `allow` would let
//! through.

use super::{at, has_word};
use crate::Violation;
use crate::source::Source;

/// Directories that this rule checks.
const CHECKED_DIRECTORIES: [&str; 14] = [
    "crates/connection/src/",
    "crates/engine/src/",
    "crates/flash/src/",
    "crates/fleet/src/",
    "crates/iscsi/src/",
    "crates/iscsi-protocol/src/",
    "crates/nbd/src/",
    "crates/nbd-client/src/",
    "crates/nbd-protocol/src/",
    "crates/pool/src/",
    "crates/qos/src/",
    "crates/scsi/src/",
    "crates/seam/src/sim",
    "crates/seam/src/model",
];

/// Banned names, with their replacements.
const BANNED: [(&str, &str); 17] = [
    ("Instant", "the seam's clock"),
    ("SystemTime", "the seam's clock"),
    ("HashMap", "a BTreeMap, or FxHashMap without iterating"),
    ("HashSet", "a BTreeSet, or FxHashSet without iterating"),
    ("RandomState", "a hasher without a random seed"),
    ("thread_rng", "the seam's random numbers"),
    ("thread_local", "a value owned by the core"),
    ("std::fs", "the seam's disks"),
    ("std::net", "the seam's streams"),
    ("std::os", "the seam"),
    ("std::env", "a parameter"),
    ("std::process", "an error returned to the caller"),
    ("std::thread", "the seam's spawner"),
    ("tokio", "the seam's spawner"),
    ("compio", "the seam"),
    ("rustix", "the seam"),
    ("libc", "the seam"),
];

/// Uses of banned names in production code in the checked directories.
pub fn check(sources: &[Source]) -> Vec<Violation> {
    let mut violations = Vec::new();
    for source in sources.iter().filter(|source| is_checked(&source.path)) {
        for (index, code) in source.production_code().iter().enumerate() {
            for (name, instead) in BANNED.iter().filter(|(name, _)| has_word(code, name)) {
                violations.push(at(source, index, format!("{name} is banned here: use {instead}")));
            }
        }
    }
    violations
}

fn is_checked(path: &str) -> bool {
    CHECKED_DIRECTORIES.iter().any(|directory| path.starts_with(directory))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn banned_names_are_reported_only_in_checked_directories() {
        for (name, _) in BANNED {
            let text = format!("use {name};\n");
            for directory in CHECKED_DIRECTORIES {
                assert_eq!(check(&[Source::new(&format!("{directory}/a.rs"), &text)]).len(), 1, "{directory}: {name}");
            }
            assert_eq!(check(&[Source::new("crates/hotset/src/a.rs", &text)]), [], "{name}");
        }
    }

    #[test]
    fn longer_name_containing_a_banned_one_passes() {
        assert_eq!(check(&[Source::new("crates/engine/src/a.rs", "use rustc_hash::FxHashMap; // HashMap\n")]), []);
    }
}
