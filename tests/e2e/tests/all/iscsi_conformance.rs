//! libiscsi's conformance suite against the target. That tool counts a skip as a pass, so the skips are checked as
//! well.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use e2e::fixture::{Fixture, TARGET};
use e2e::tool::tool;
use e2e::writer::StopOnDrop;

/// Suites that may skip: the unit is not removable, SANITIZE and WRITE ATOMIC are not implemented, READ DEFECT DATA is
/// obsolete.
const MAY_SKIP: [&str; 7] =
    ["StartStopUnit", "PreventAllow", "NoMedia", "ReadOnly", "Sanitize", "WriteAtomic16", "ReadDefectData"];
/// Tests in the suite.
const TESTS: u64 = 230;

/// Result of one run.
#[derive(Debug, PartialEq, Eq)]
struct SuiteResult {
    tests: u64,
    failed: u64,
    /// Suites in which a test was skipped.
    skipped: Vec<String>,
}

/// The tool disables header digests whatever its URL requests; this preloaded library makes it request CRC32C.
const REQUEST_DIGESTS: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
enum { CRC32C = 3 };
int iscsi_set_header_digest(void *iscsi, int wanted) {
    int (*set)(void *, int) = (int (*)(void *, int))dlsym(RTLD_NEXT, "iscsi_set_header_digest");
    (void)wanted;
    return set(iscsi, CRC32C);
}
"#;

fn digest_library(folder: &Path) -> String {
    let (source, library) = (folder.join("digests.c"), folder.join("digests.so"));
    std::fs::write(&source, REQUEST_DIGESTS).expect("the folder can be written");
    tool("cc").args("-shared -fPIC -o").arg(&library).arg(&source).arg("-ldl").ok();
    library.to_string_lossy().into_owned()
}

/// Runs `tests` of the suite. Both paths lead to the same unit, so that the tests for two paths run as well.
fn run_suite(uri: &str, tests: &str, library: &str) -> SuiteResult {
    let tool = tool("env").arg(format!("LD_PRELOAD={library}")).arg("iscsi-test-cu").args("-d -v -t");
    parse_output(&String::from_utf8_lossy(&tool.arg(tests).arg(uri).arg(uri).output().stdout))
}

fn parse_output(output: &str) -> SuiteResult {
    let mut result = SuiteResult { tests: 0, failed: 0, skipped: Vec::new() };
    let mut suite = String::new();
    for line in output.lines() {
        if let Some(name) = line.strip_prefix("Suite: ") {
            suite = name.trim().to_owned();
        }
        if line.contains("[SKIPPED]") && result.skipped.last() != Some(&suite) {
            result.skipped.push(suite.clone());
        }
        let mut words = line.split_whitespace();
        if words.next() == Some("tests") {
            let counts: Vec<u64> = words.filter_map(|word| word.parse().ok()).collect();
            let [_, run, _, failed, _] = counts[..] else { panic!("another form of summary: {line}") };
            (result.tests, result.failed) = (run, failed);
        }
    }
    result
}

fn is_allowed(suite: &str) -> bool {
    MAY_SKIP.iter().any(|family| suite.starts_with(family))
}

/// Pause between two looks at the sessions, so that the observer takes no processor time from the suite.
const OBSERVER_PAUSE: Duration = Duration::from_millis(50);

#[test]
fn libiscsi_suite_passes_with_expected_skips_only() {
    let mut fixture = Fixture::new();
    fixture.add_volume("plain", 1 << 30, "lun = 0");
    fixture.add_volume("checked", 1 << 30, "lun = 1");
    fixture.add_volume("read-only", 64 << 20, "lun = 2\nread_only = true");
    let address = fixture.add_iscsi_target("");
    let daemon = fixture.start();
    let digests = digest_library(fixture.folder.path());
    for (lun, library) in [(0, ""), (1, &digests)] {
        let uri = |lun| format!("iscsi://{address}/{TARGET}/{lun}");
        let has_ended = AtomicBool::new(false);
        let (result, had_digests) = std::thread::scope(|scope| {
            let observer = scope.spawn(|| {
                let mut has_digests = false;
                while !has_ended.load(Ordering::Relaxed) {
                    has_digests |= daemon.command(&["status", "--json"]).contains("\"header_digest\": true");
                    std::thread::sleep(OBSERVER_PAUSE);
                }
                has_digests
            });
            let _stop_guard = StopOnDrop(&has_ended);
            let result = run_suite(&uri(lun), "ALL", library);
            has_ended.store(true, Ordering::Relaxed);
            (result, observer.join().expect("the status command succeeds"))
        });
        println!(
            "{library}: {} of {} passed, skips in {:?}",
            result.tests - result.failed,
            result.tests,
            result.skipped
        );
        assert_eq!((result.tests, result.failed), (TESTS, 0));
        assert!(result.skipped.iter().all(|suite| is_allowed(suite)), "{:?}", result.skipped);
        assert_eq!(had_digests, !library.is_empty(), "header digests");
        let read_only = run_suite(&uri(2), "ALL.ReadOnly", library);
        assert_eq!(read_only, SuiteResult { tests: 1, failed: 0, skipped: Vec::new() });
    }
    daemon.stop();
}

#[test]
fn failures_and_unexpected_skips_are_noticed() {
    let output = "Suite: Read10\n  Test: Simple ...    [SKIPPED] READ10 is not implemented.\n\
                Suite: Sanitize\n  Test: Reset ...    [SKIPPED] flag is not set.\npassed\n\
                Run Summary:    Type  Total    Ran Passed Failed Inactive\n\
                     tests    230    230    228      2        0\n";
    let result = parse_output(output);
    assert_eq!((result.tests, result.failed), (230, 2));
    assert!(!result.skipped.iter().all(|suite| is_allowed(suite)) && is_allowed(&result.skipped[1]), "{result:?}");
}
