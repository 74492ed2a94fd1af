//! Metric families in Prometheus's text format, a file for each subject.
//!
//! The values come from [`StatusReport`]. A test requires each family's name in `docs/admin/api.md`.

mod alerts;
mod daemon;
mod datastores;
mod lines;
mod pools;
mod volumes;

use messages::StatusReport;

pub use self::lines::CONTENT_TYPE;
use self::lines::Lines;

/// All families of `status`. With more than `volumes_max` volumes, their own families are left out and only the sums
/// remain.
pub fn text(status: &StatusReport, volumes_max: usize) -> String {
    let mut lines = Lines::default();
    let left_out = if status.volumes.len() > volumes_max { status.volumes.len() } else { 0 };
    daemon::write(&mut lines, status, left_out);
    alerts::write(&mut lines, status);
    datastores::write(&mut lines, status);
    pools::write(&mut lines, status);
    if left_out == 0 {
        volumes::write(&mut lines, status);
    }
    lines.into_text()
}

#[cfg(test)]
mod tests;
