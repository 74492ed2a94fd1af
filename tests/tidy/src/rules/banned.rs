//! Code below the binary reaches the operating system only through the seam, and simulated code depends on neither
//! randomness nor the clock.
//!
//! Clippy refuses the same by name resolution (`clippy.toml`); this rule also catches what an `allow` would let
//! through.

use super::{at, has_word};
use crate::Violation;
use crate::source::Source;

/// Directories under the ban.
const FOLDERS: [&str; 7] = [
    "crates/engine/src/",
    "crates/nbd/src/",
    "crates/nbd-protocol/src/",
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

/// Uses of banned names in production code where the ban holds.
pub fn check(sources: &[Source]) -> Vec<Violation> {
    let mut violations = Vec::new();
    for source in sources.iter().filter(|source| FOLDERS.iter().any(|folder| source.path.starts_with(folder))) {
        for (index, code) in source.production_code().iter().enumerate() {
            for (name, instead) in BANNED.iter().filter(|(name, _)| has_word(code, name)) {
                violations.push(at(source, index, format!("{name} is banned here: use {instead}")));
            }
        }
    }
    violations
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn banned_names_are_found_only_in_folders_under_the_ban() {
        for (name, _) in BANNED {
            let text = format!("use {name};\n");
            assert_eq!(check(&[Source::new("crates/engine/src/a.rs", &text)]).len(), 1, "{name}");
            assert_eq!(check(&[Source::new("crates/hotset/src/a.rs", &text)]), [], "{name}");
        }
    }

    #[test]
    fn longer_name_containing_a_banned_one_passes() {
        assert_eq!(check(&[Source::new("crates/engine/src/a.rs", "use rustc_hash::FxHashMap; // HashMap\n")]), []);
    }
}
