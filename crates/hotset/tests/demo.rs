//! The demo as its users run it: daemons, modelled arrays, real connections.

use std::process::Command;

use serde_json::Value;

#[test]
fn demo_measures_both_sides_and_checks_every_read() {
    let output =
        Command::new(env!("CARGO_BIN_EXE_hotset")).args(["demo", "--headless", "--seconds", "2", "--json"]).output();
    let output = output.expect("the binary was built");
    // A read with wrong data fails the command.
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let summary: Value = serde_json::from_slice(&output.stdout).expect("JSON and nothing else");
    for side in ["with", "without"] {
        assert!(summary[side]["requests"].as_u64().expect("a count") > 0, "{summary}");
    }
    assert!(summary["with"]["read_hit_ratio"].as_f64().expect("a ratio") > 0.0, "{summary}");
    assert_eq!(summary["without"]["read_hit_ratio"].as_f64(), Some(0.0), "{summary}");
}

#[test]
fn first_line_is_a_login_link_to_the_web_console() {
    let output = Command::new(env!("CARGO_BIN_EXE_hotset")).args(["demo", "--headless", "--seconds", "2"]).output();
    let text = String::from_utf8(output.expect("the binary was built").stdout).expect("text");
    let first = text.lines().next().expect("the demo prints a line");
    assert!(first.starts_with("http://127.0.0.1:") && first.contains("/login?key="), "{text}");
}

/// The published setup of a scenario.
struct PublishedSetup {
    name: &'static str,
    memory_bytes: u64,
    flash_devices: usize,
    /// Bytes of each flash device.
    flash_bytes: u64,
    policy: &'static str,
    volumes: usize,
    /// True if the side without the cache has memory of its own.
    has_own_cache: bool,
}

const GB: u64 = 1_000_000_000;
const GIB: u64 = 1 << 30;

/// A setup with the most common values.
const SETUP: PublishedSetup = PublishedSetup {
    name: "",
    memory_bytes: 4 * GB,
    flash_devices: 0,
    flash_bytes: 0,
    policy: "write-back",
    volumes: 1,
    has_own_cache: false,
};

/// The vnx-flash scenarios simulate one of three RAID groups, with a third of memory and flash.
const VNX_FLASH: PublishedSetup = PublishedSetup {
    memory_bytes: 4 * GB / 3,
    flash_devices: 2,
    flash_bytes: 100 * GB / 3,
    has_own_cache: true,
    ..SETUP
};

const PUBLISHED: [PublishedSetup; 9] = [
    PublishedSetup {
        name: "autocache",
        memory_bytes: 0,
        flash_devices: 1,
        flash_bytes: 120 * GB,
        policy: "write-through",
        ..SETUP
    },
    PublishedSetup { name: "vnx-dram", volumes: 3, ..SETUP },
    PublishedSetup { name: "vnx-spill", volumes: 3, ..SETUP },
    PublishedSetup { name: "vnx-flash-fits", ..VNX_FLASH },
    PublishedSetup { name: "vnx-flash-spills", ..VNX_FLASH },
    PublishedSetup { name: "vnx-flash-just-fits", ..VNX_FLASH },
    PublishedSetup { name: "vdi-200", memory_bytes: 12 * GB, flash_devices: 2, flash_bytes: 100 * GB, ..SETUP },
    PublishedSetup {
        name: "consolidation",
        flash_devices: 2,
        flash_bytes: 92 * GB,
        volumes: 3,
        has_own_cache: true,
        ..SETUP
    },
    PublishedSetup { name: "deferred-writes", memory_bytes: 16 * GIB, policy: "write-back-volatile", ..SETUP },
];

#[test]
fn every_scenario_matches_its_publication_and_ends_clean() {
    // Three at a time, to limit the load on the machine.
    std::thread::scope(|scope| {
        for thread in 0..3 {
            scope.spawn(move || PUBLISHED.iter().skip(thread).step_by(3).for_each(check_scenario));
        }
    });
}

fn check_scenario(setup: &PublishedSetup) {
    let &PublishedSetup { name, memory_bytes, flash_devices, flash_bytes, policy, volumes, has_own_cache } = setup;
    let folder = tempfile::tempdir().expect("a temporary directory");
    let mut command = Command::new(env!("CARGO_BIN_EXE_hotset"));
    let args = ["demo", "--scenario", name, "--headless", "--seconds", "3", "--json"];
    let output = command.args(args).env("TMPDIR", folder.path()).output().expect("the binary was built");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && errors.is_empty(), "{name}: {errors}");
    let summary: Value = serde_json::from_slice(&output.stdout).expect("JSON and nothing else");
    let number = |value: &Value| value.as_u64().unwrap_or_else(|| panic!("{name}: no count: {value}"));
    let byte_divisor = number(&summary["byte_divisor"]);
    let is_scaled = |whole: u64, scaled: &Value| number(scaled).abs_diff(whole / byte_divisor) <= 2 << 20;
    let (with, without) = (&summary["with"], &summary["without"]);
    // A daemon has at least 16 MiB.
    assert!(is_scaled(memory_bytes.max(byte_divisor * (16 << 20)), &with["memory_bytes"]), "{name}: {with}");
    let devices = with["flash_bytes"].as_array().expect("a list");
    assert_eq!(devices.len(), flash_devices, "{name}: {with}");
    assert!(devices.iter().all(|bytes| is_scaled(flash_bytes, bytes)), "{name}: {with}");
    for (side, policy) in [(with, policy), (without, if has_own_cache { policy } else { "none" })] {
        let served = side["volumes"].as_array().expect("a list");
        assert_eq!(served.len(), volumes, "{name}: {side}");
        assert!(served.iter().all(|volume| volume["policy"] == policy), "{name}: {side}");
    }
    assert_eq!((&without["flash_bytes"], number(&summary["errors"])), (&Value::Array(Vec::new()), 0), "{name}");
    let memory_without = if has_own_cache { number(&with["memory_bytes"]) } else { 16 << 20 };
    assert_eq!(number(&without["memory_bytes"]), memory_without, "{name}: {summary}");
    let phases = summary["phases"].as_array().expect("a list");
    // A phase lasts a fraction of a second: a busy machine may complete no request in one of them.
    let served = |side: &str| phases.iter().map(|phase| number(&phase[side]["requests"])).sum::<u64>();
    assert!(served("with") > 0 && served("without") > 0, "{name}: {summary}");
    let checks = summary["checks"].as_array().expect("a list");
    let is_figure = |check: &Value| check["value"].is_f64() && (check["low"].is_f64() || check["high"].is_f64());
    assert!(!checks.is_empty() && checks.iter().all(is_figure), "{name}: {summary}");
    // A shortened scenario has no verdict; every other scenario has one for each check.
    let shortened = summary["shortened"].as_bool().expect("a truth value");
    assert!(checks.iter().all(|check| check["reached"].is_null() == shortened), "{name}: {summary}");
}

#[test]
fn scenario_prints_its_setting_first_and_published_figures_last() {
    let args = ["demo", "--scenario", "vnx-dram", "--headless", "--seconds", "2"];
    let output = Command::new(env!("CARGO_BIN_EXE_hotset")).args(args).output().expect("the binary was built");
    let text = String::from_utf8(output.stdout).expect("text");
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines[0].contains("/login?key=") && lines[1].contains("/login?key="), "{text}");
    for expected in [
        "hotset demo, vnx-dram: a file of 2 GB in 4 GB of memory",
        "divided by 75, and a minute is 27 ms",
        "3 x 9 MiB on RAID 5 of 5 sas10k",
        "192 outstanding",
        "requests per second at 192 outstanding  at least 28600",
        "No verdict: in ",
        "seconds the cache does not warm up as in the publication",
    ] {
        assert!(text.contains(expected), "{expected} is not in:\n{text}");
    }
    assert!(!text.contains("not reached"), "{text}");
}

#[test]
fn impossible_demos_are_refused_with_a_remedy() {
    let refused = |args: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_hotset")).args(args).output().expect("the binary was built");
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        String::from_utf8(output.stderr).expect("text")
    };
    let unknown = refused(&["demo", "--scenario", "vnx-drum"]);
    assert!(PUBLISHED.iter().all(|setup| unknown.contains(setup.name)), "{unknown}");
    assert!(refused(&["demo", "--scenario", "vnx-dram", "--socket", "/run/x.sock"]).contains("omit --socket"));
}
