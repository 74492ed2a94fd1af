//! Checks the repository against its rules and aims.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use tidy::{aims, licences, rules, source};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("the crate is in the repository")
}

#[test]
fn repository_obeys_its_rules() {
    let sources = source::read_all(&root()).expect("the repository can be read");
    assert!(sources.len() > 20, "only {} files found: the walk is broken", sources.len());
    let mut report = String::new();
    for (name, rule) in rules::ALL {
        for violation in rule(&sources) {
            report.push_str(&format!("{violation} [{name}]\n"));
        }
    }
    // Written directly, so that the test runner's capture does not hide the aims.
    let _ = std::io::stderr().write_all(aims::describe(&sources).as_bytes());
    assert!(report.is_empty(), "\n{report}");
}

#[test]
fn every_dependency_has_a_permitted_licence() {
    let deny =
        std::fs::read_to_string(root().join("deny.toml")).expect("deny.toml exists").parse().expect("valid TOML");
    let allowed = licences::allowed(&deny);
    assert!(allowed.len() > 3);
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
    let target = "x86_64-unknown-linux-gnu";
    let mut command = Command::new(cargo);
    command.args(["metadata", "--format-version=1", "--offline", "--locked", "--filter-platform", target]);
    let output = command.current_dir(root()).output().expect("cargo runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata = serde_json::from_slice(&output.stdout).expect("cargo metadata writes JSON");
    assert_eq!(licences::refused(&metadata, &allowed), Vec::<String>::new());
}

#[test]
fn every_dependency_of_the_workspace_is_explained() {
    let manifest = std::fs::read_to_string(root().join("Cargo.toml")).expect("the file exists");
    let manifest: toml::Table = manifest.parse().expect("valid TOML");
    let explained = std::fs::read_to_string(root().join("docs/develop/dependencies.md")).expect("the file exists");
    let table = manifest["workspace"]["dependencies"].as_table().expect("a table");
    let foreign = table.iter().filter(|(_, value)| value.get("path").is_none());
    let missing: Vec<_> =
        foreign.map(|(name, _)| name).filter(|name| !explained.contains(&format!("**{name}**"))).collect();
    assert!(missing.is_empty(), "docs/develop/dependencies.md has no sentence for {missing:?}");
}
