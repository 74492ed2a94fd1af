//! `snapshot list`: the snapshots of a volume.

use std::time::Duration;

use messages::report::SnapshotsReport;
use messages::unix_time;

use super::style::Style;
use super::table::{Side, Table};
use units::show_bytes;

/// A table of the snapshots.
pub fn table(report: &SnapshotsReport, style: Style) -> String {
    if report.snapshots.is_empty() {
        return format!("volume {} of pool {} has no snapshots\n", report.volume, report.pool);
    }
    let mut table = Table::new(&[
        ("snapshot", Side::Left),
        ("created", Side::Left),
        ("size", Side::Right),
        ("allocated", Side::Right),
        ("freed by its deletion", Side::Right),
    ]);
    for snapshot in &report.snapshots {
        table.row(vec![
            snapshot.name.clone(),
            unix_time::format(Duration::from_secs(snapshot.created_unix_seconds)),
            show_bytes(snapshot.size_bytes),
            show_bytes(snapshot.allocated_bytes),
            show_bytes(snapshot.own_bytes),
        ]);
    }
    table.render(style)
}
