//! `hotset workload run` against the real daemon: by name, and from files of other generators.

use e2e::daemon::hotset;
use e2e::fixture::Fixture;

const MIB: u64 = 1 << 20;

/// The first number after `"name":`.
fn json_number(json: &str, name: &str) -> f64 {
    let value = json.split_once(&format!("\"{name}\":")).unwrap_or_else(|| panic!("no {name} in {json}")).1;
    let end = value.find([',', '\n', '}']).unwrap_or(value.len());
    value[..end].trim().parse().unwrap_or_else(|_| panic!("{name} is no number in {json}"))
}

fn run_workload(spec: &str, uri: &str) -> String {
    let output = hotset(&["workload", "run", spec, "--to", uri, "--seconds", "1", "--json"]);
    assert!(output.status.success(), "{spec}: {}", e2e::daemon::text_of(&output));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn named_workload_runs_on_a_live_volume_with_its_mix() {
    let fixture = Fixture::with_volume(64 * MIB);
    let daemon = fixture.start();
    for (name, reads) in [("database", 0.67), ("web-server", 1.0), ("consolidation", 0.24)] {
        let json = run_workload(name, &fixture.uri("v"));
        assert!(json_number(&json, "requests") > 50.0, "{json}");
        assert!((json_number(&json, "read_ratio") - reads).abs() < 0.1, "{json}");
    }
    let shown = daemon.command(&["volume", "show", "v", "--json"]);
    assert!(json_number(&shown, "reads") > 100.0 && json_number(&shown, "writes") > 100.0, "{shown}");
    daemon.stop();
}

#[test]
fn iometer_and_fio_files_run_and_a_bad_line_is_named() {
    let fixture = Fixture::with_volume(256 * MIB);
    let daemon = fixture.start();
    let write = |name: &str, text: &str| {
        let path = fixture.folder.join(name);
        std::fs::write(&path, text).expect("the folder can be written");
        path.display().to_string()
    };
    let icf = include_str!("../../../../crates/lab/src/workload/fixtures/two-workers.icf");
    let json = run_workload(&write("two.icf", icf), &fixture.uri("v"));
    assert!(json.contains("\"File Server\"") && json_number(&json, "requests") > 50.0, "{json}");
    let fio = "[data]\nrw=randrw\nrwmixread=75\nbs=4k\niodepth=8\n";
    let json = run_workload(&write("data.fio", fio), &fixture.uri("v"));
    assert!((json_number(&json, "read_ratio") - 0.75).abs() < 0.1, "{json}");
    let wrong = write("wrong.fio", "[data]\nrw=randrw\nzonemode=zbd\n");
    let output = hotset(&["workload", "run", &wrong, "--to", &fixture.uri("v")]);
    let message = e2e::daemon::text_of(&output);
    assert!(output.status.code() == Some(2) && message.contains("line 3"), "{message}");
    let output = hotset(&["workload", "run", "databse", "--to", &fixture.uri("v")]);
    assert!(output.status.code() == Some(2), "{}", e2e::daemon::text_of(&output));
    daemon.stop();
}
