//! The demo as its users run it: a daemon, two modelled arrays, two real connections.

use std::process::Command;

use serde_json::Value;

#[test]
fn the_demo_measures_both_sides_and_checks_every_read() {
    let output =
        Command::new(env!("CARGO_BIN_EXE_hotset")).args(["demo", "--headless", "--seconds", "2", "--json"]).output();
    let output = output.expect("the binary was built");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let summary: Value = serde_json::from_slice(&output.stdout).expect("JSON and nothing else");
    for side in ["with", "without"] {
        assert!(summary[side]["requests"].as_u64().expect("a count") > 0, "{summary}");
    }
    assert!(summary["with"]["read_hit_ratio"].as_f64().expect("a ratio") > 0.0, "{summary}");
    assert_eq!(summary["without"]["read_hit_ratio"].as_f64(), Some(0.0), "{summary}");
}

#[test]
fn the_first_line_leads_to_the_page() {
    let output = Command::new(env!("CARGO_BIN_EXE_hotset")).args(["demo", "--headless", "--seconds", "2"]).output();
    let text = String::from_utf8(output.expect("the binary was built").stdout).expect("text");
    let first = text.lines().next().expect("it says something");
    assert!(first.starts_with("http://127.0.0.1:") && first.contains("/login?key="), "{text}");
}
