//! Reports on a volume and on the whole daemon; the fields carry their units in their names.

mod advice;
mod alert;
mod certificate;
mod configuration;
mod curve;
mod drive;
mod event;
mod flash;
mod heat;
mod history;
mod iscsi;
mod job;
mod latency;
mod qos;
mod status;
mod volume;

pub use advice::{AdvicePage, Assumptions, AssumptionsReport, SideAdvice, StepAdvice, TodayAdvice, VolumeAdvice};
pub use alert::{AlertKind, AlertReport, Notice, Severity, WebhookHealth};
pub use certificate::CertificateReport;
pub use configuration::{ConfigurationReport, EntryReport, KeyReport, KeySource, TakesEffect};
pub use curve::{Curve, MissRatioCurve, Point};
pub use drive::DriveReport;
pub use event::{DaemonPhase, EventKind, EventReport, EventsHealth, EventsPage};
pub use flash::{
    FlashDeviceReport, FlashJobReport, FlashReport, LostBlockReport, PagesReport, ScrubReport, WrittenReport,
};
pub use heat::{HeatReport, HeatRow};
pub use history::{FigureReport, HistoryHealth, HistoryReport, LatencyFigures, TierReport};
pub use iscsi::{IscsiReport, IscsiSessionReport, SlowCommandReport, UnitReport};
pub use job::{EndedJobReport, JobOutcome, JobReport};
pub use latency::{BackingRequests, Counts, CountsBelow, LatencyCountsReport};
pub use qos::{DatastoreReport, EpisodeReport, MemberReport, QosUse};
pub use status::{CoreReport, OverrideReport, StatusReport};
pub use volume::{
    FlashUse, LatencyReport, LostRange, MemoryUse, Quantiles, SlowReport, SourceBytes, TraceOpened, Traced,
    VolumeReport, VolumeState,
};
