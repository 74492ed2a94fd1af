//! Reports on a volume and on the whole daemon; the fields carry their units in their names.

mod advice;
mod alert;
mod certificate;
mod configuration;
mod curve;
mod drive;
mod event;
mod flash;
mod fleet;
mod heat;
mod history;
mod iscsi;
mod job;
mod latency;
mod pool;
mod qos;
mod status;
mod volume;

pub use advice::{
    ARRAY_NS, AdvicePage, Assumptions, AssumptionsReport, PurchaseAdvice, QuotaAdvice, SideAdvice, StepAdvice,
    TodayAdvice, VolumeAdvice,
};
pub use alert::{
    AlertAcknowledgement, AlertChannel, AlertKind, AlertReport, ChannelTestReport, DeliveryHealth, Severity,
    SilenceReport, StatusProblem,
};
pub use certificate::CertificateReport;
pub use configuration::{ConfigurationReport, EntryReport, KeyReport, KeySource, TakesEffect};
pub use curve::{Curve, MissRatioCurve, Point};
pub use drive::DriveReport;
pub use event::{DaemonPhase, EventKind, EventReport, EventsHealth, EventsPage};
pub use flash::{
    FlashDeviceReport, FlashJobReport, FlashPlanReport, FlashReport, LostBlockReport, PagesReport, ScrubReport,
    WrittenReport,
};
pub use fleet::{FleetHostReport, FleetPeerReport, FleetReport, FleetVolumeReport};
pub use heat::{HeatReport, HeatRow};
pub use history::{FigureReport, HistoryHealth, HistoryReport, LatencyFigures, TierReport};
pub use iscsi::{IscsiReport, IscsiSessionReport, RefusedLoginReport, SlowCommandReport, UnitReport};
pub use job::{EndedJobReport, JobKind, JobOutcome, JobReport};
pub use latency::{BackingRequests, Bucket, Counts, CountsBelow, LatencyCountsReport, percentile_us};
pub use pool::{
    PoolCellsReport, PoolClassReport, PoolCurveReport, PoolDrainReport, PoolGroupReport, PoolHeatReport,
    PoolLoadReport, PoolLostRangeReport, PoolLostReport, PoolLostVolumeReport, PoolMoveReason, PoolMoveReport,
    PoolPlanReport, PoolProvisioning, PoolQueueReport, PoolRelocationReport, PoolRelocationState, PoolReport,
    PoolTierReport, PoolVolumeReport, SnapshotReport, SnapshotsReport,
};
pub use qos::{DatastoreReport, EpisodeReport, MemberReport, QosUse};
pub use status::{CoreReport, OverrideReport, StatusReport};
pub use volume::{
    FlashUse, LatencyReport, LostRange, MemoryUse, Quantiles, SlowReport, SourceBytes, TraceOpened, Traced,
    VolumeReport, VolumeState,
};

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde::Serialize;
    use utoipa::ToSchema;

    use super::*;

    /// Compares the fields that the OpenAPI document requires with those of an answer without optional content.
    fn check<T: Serialize + ToSchema>(answer: T) {
        let schema = serde_json::to_value(T::schema()).expect("a schema has only text keys");
        let answer = serde_json::to_value(answer).expect("a report has only text keys");
        let required = schema["required"].as_array().expect("a report has fields that it always contains");
        let required: BTreeSet<_> = required.iter().filter_map(|name| name.as_str()).collect();
        let present: BTreeSet<_> = answer.as_object().expect("a report").keys().map(String::as_str).collect();
        assert_eq!(required, present, "{}: `#[schema(required)]` for fields that are never omitted", T::name());
    }

    #[test]
    fn document_requires_the_fields_that_every_answer_contains() {
        check(AdvicePage::default());
        check(VolumeAdvice::default());
        check(SideAdvice::default());
        check(StepAdvice::default());
        check(AlertReport::default());
        check(DeliveryHealth::default());
        check(CertificateReport::default());
        check(KeyReport::default());
        check(DriveReport::default());
        check(EventReport::default());
        check(EventsPage::default());
        check(EventsHealth::default());
        check(FlashReport::default());
        check(FlashDeviceReport::default());
        check(FlashJobReport::default());
        check(PagesReport::default());
        check(HistoryReport::default());
        check(FigureReport::default());
        check(HistoryHealth::default());
        check(TierReport::default());
        check(SlowCommandReport::default());
        check(JobReport::default());
        check(BackingRequests::default());
        check(LatencyCountsReport::default());
        check(LatencyReport::default());
        check(DatastoreReport::default());
        check(EpisodeReport::default());
        check(StatusReport::default());
        check(VolumeReport::idle("a", VolumeState::Active, "none", "/x"));
        check(MemoryUse::default());
        check(FlashUse::default());
    }
}
