//! The heat map of a volume, as a report.

use std::rc::Rc;

use engine::volume::heat::{HEAT_ROW_DURATION, HEAT_ROWS_MAX};
use messages::report::{HeatReport, HeatRow};
use messages::{Answer, Failure, unix_time};
use seam::{Nanos, Seam};

use super::super::cores::CoreLocal;
use super::super::cores::core_ended;
use super::Daemon;

impl Daemon {
    /// The requests per part of a volume in the last hour.
    pub(super) async fn heat(&self, name: &str) -> Result<Answer, Failure> {
        let placement = self.volumes.placement(name)?;
        let volume = name.to_owned();
        let called = self.cores[placement.core].call(async move |local: Rc<CoreLocal>| {
            local.engine.find(&volume).map(|volume| (volume.heat(), volume.size_bytes(), local.seam.now()))
        });
        let (heat, size_bytes, now) = called.await.map_err(core_ended)?.ok_or_else(|| Failure::no_volume(name))?;
        // A clock that shows a time before the machine's boot yields 0.
        let began_ms = (unix_time::now().as_millis() as u64).saturating_sub(now.as_millis());
        let seconds = |time: Nanos| time.as_millis() / 1_000;
        let row = |row: engine::volume::heat::HeatRow| HeatRow {
            at_unix_seconds: (began_ms + Nanos(row.minute * HEAT_ROW_DURATION.0).as_millis()) / 1_000,
            reads: row.reads.to_vec(),
            writes: row.writes.to_vec(),
        };
        Ok(Answer::Heat(Box::new(HeatReport {
            size_bytes,
            part_bytes: heat.part_bytes,
            step_seconds: seconds(HEAT_ROW_DURATION),
            keep_seconds: seconds(HEAT_ROW_DURATION) * HEAT_ROWS_MAX as u64,
            rows: heat.rows.into_iter().map(row).collect(),
        })))
    }
}
