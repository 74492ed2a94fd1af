//! The axioms about Ceph on which the fleet's ownership of volumes rests (docs/design/fleet.md), on a real cluster.

use std::io::Write;

use e2e::ceph::cluster;
use e2e::tool::{tool, tool_within};

const CASE: &str = "axioms of the fleet on RBD";
/// The checks take three minutes on two busy cores.
const SECONDS_MAX: u64 = 900;

#[test]
#[ignore = "long: about four minutes"]
fn ceph_confirms_the_axioms_of_the_fleet() {
    if !tool("/usr/bin/python3").arg("-c").arg("import rados, rbd").output().status.success() {
        // Written to the real stderr, past the capture of a passing test's output, because the skip must be visible.
        let text = "python3-rados or python3-rbd is not installed (scripts/packages torture)";
        let _ = writeln!(std::io::stderr(), "SKIPPED: {CASE}: {text}");
        return;
    }
    let Some(cluster) = cluster(CASE) else { return };
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scripts/rbd-axioms");
    let report = tool_within(SECONDS_MAX, script).arg(cluster.conf()).arg("all").ok();
    println!("{report}");
    assert!(report.lines().count() >= 16 && report.lines().all(|line| line.starts_with("PASS ")), "{report}");
}
