//! Dependencies between crates point one way: binary → daemon → front ends, lab → engine → flash → seam.

use std::collections::BTreeMap;

use super::at;
use crate::Violation;
use crate::source::Source;

/// Layer of every crate. A crate may depend only on crates of lower layers.
const LAYERS: [(&str, u32); 48] = [
    ("format-version", 0),
    ("metadata-block", 0),
    ("task-sync", 0),
    ("work-timer", 0),
    ("golden", 0),
    ("messages", 0),
    ("seam", 1),
    ("nbd-protocol", 1),
    ("iscsi-protocol", 1),
    ("trace", 1),
    ("units", 1),
    ("systemd", 1),
    ("connection", 2),
    ("control", 2),
    ("qos", 2),
    ("nbd-client", 2),
    ("rbd", 2),
    ("fleet", 2),
    ("flash", 3),
    ("pool", 3),
    ("engine", 4),
    ("tls", 5),
    ("nbd", 5),
    ("cache-transfer", 5),
    ("scsi", 5),
    ("iscsi", 6),
    ("vhost-user", 5),
    ("api", 6),
    ("fleet-link", 6),
    ("events", 6),
    ("history", 6),
    ("logging", 6),
    ("state", 6),
    ("lab", 7),
    ("config", 7),
    ("terminal", 7),
    ("kernel-nbd", 8),
    ("setup", 8),
    ("daemon", 8),
    ("demo", 9),
    ("hotset", 10),
    ("driver", 7),
    ("thread-stop", 7),
    ("bench", 11),
    ("fuzz", 11),
    ("tidy", 11),
    ("e2e", 11),
    ("powercut", 12),
];

/// Dependencies reserved for the real implementation of the seam and for the binary.
const SYSTEM_CRATES: [&str; 9] =
    ["compio", "tokio", "async-std", "io-uring", "libc", "rustix", "nix", "rand", "getrandom"];
/// Crates that may not depend on an executor or an operating-system crate.
const PURE: [&str; 15] = [
    "flash",
    "fleet",
    "engine",
    "connection",
    "nbd",
    "nbd-client",
    "nbd-protocol",
    "iscsi",
    "iscsi-protocol",
    "messages",
    "pool",
    "qos",
    "scsi",
    "trace",
    "units",
];

/// Dependencies against the direction, crates without a layer, and executors in crates that may not depend on one.
pub fn check(sources: &[Source]) -> Vec<Violation> {
    let layers: BTreeMap<&str, u32> = LAYERS.into();
    let mut violations = Vec::new();
    for source in sources.iter().filter(|source| source.path.ends_with("/Cargo.toml")) {
        let Ok(manifest) = source.text.parse::<toml::Table>() else {
            violations.push(at(source, 0, "cannot be parsed"));
            continue;
        };
        let Some(name) = manifest.get("package").and_then(|p| p.get("name")).and_then(|n| n.as_str()) else { continue };
        let Some(&own_layer) = layers.get(name) else {
            violations.push(at(source, 0, format!("{name} has no layer: add it to the list in {}", file!())));
            continue;
        };
        for dependency in dependencies(&manifest) {
            // A crate's tests may depend on the crate itself, with a feature that only tests have.
            if let Some(&layer) = layers.get(dependency.as_str())
                && dependency != name
                && layer >= own_layer
            {
                violations.push(at(
                    source,
                    0,
                    format!(
                        "{name} (layer {own_layer}) depends on {dependency} (layer {layer}): move \
                                                  the shared code to a lower layer"
                    ),
                ));
            }
            if PURE.contains(&name)
                && SYSTEM_CRATES
                    .iter()
                    .any(|system| dependency == *system || dependency.starts_with(&format!("{system}-")))
            {
                violations.push(at(
                    source,
                    0,
                    format!(
                        "{name} depends on {dependency}: it may not depend on an executor or an operating-system crate"
                    ),
                ));
            }
        }
    }
    violations
}

/// Names in all dependency tables, including those for tests, builds and single targets.
fn dependencies(manifest: &toml::Table) -> Vec<String> {
    const TABLES: [&str; 3] = ["dependencies", "dev-dependencies", "build-dependencies"];
    let targets = manifest.get("target").and_then(|target| target.as_table());
    let by_target = targets.into_iter().flat_map(|targets| targets.values().filter_map(|target| target.as_table()));
    let tables = std::iter::once(manifest)
        .chain(by_target)
        .flat_map(|parent| TABLES.iter().filter_map(|name| parent.get(*name)));
    tables.filter_map(|table| table.as_table()).flat_map(|table| table.keys().cloned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(name: &str, rest: &str) -> usize {
        check(&[Source::new("crates/a/Cargo.toml", &format!("[package]\nname = \"{name}\"\n{rest}"))]).len()
    }

    #[test]
    fn dependency_on_the_same_or_a_higher_layer_is_found_in_every_table() {
        assert_eq!(count("seam", "[dependencies]\nengine.workspace = true\n"), 1);
        assert_eq!(count("nbd", "[dev-dependencies]\nscsi = { path = \"..\" }\n"), 1);
        assert_eq!(count("engine", "[target.'cfg(unix)'.dependencies]\nhotset = \"1\"\n"), 1);
        assert_eq!(count("hotset", "[dependencies]\nnbd.workspace = true\nengine.workspace = true\n"), 0);
    }

    #[test]
    fn crate_without_a_layer_and_executor_in_the_engine_are_found() {
        assert_eq!(count("novel", ""), 1);
        assert_eq!(count("engine", "[dependencies]\ncompio-runtime = \"1\"\n"), 1);
        assert_eq!(count("hotset", "[dependencies]\nlibc = \"0.2\"\n"), 0);
    }
}
