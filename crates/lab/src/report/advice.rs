//! Presentation of advice: for a volume in service (command and HTTP interface alike), and for a trace.

use crate::advice::{
    Advice, CacheAdvice, Confidence, LimitAdvice, LimitSetting, Limits, LiveMeasurements, PresentCache, PresentLoad,
    Purchase, Step,
};
use crate::replay::recording::PAGE_BYTES;
use engine::policy::curve::{CurvePoint, CurveStats, VolumeCurveStats};
use messages::report::{
    ARRAY_NS, Assumptions, BackingRequests, Counts, Curve, MissRatioCurve, PurchaseAdvice, QuotaAdvice, SideAdvice,
    StepAdvice, TodayAdvice, VolumeAdvice,
};
use messages::{VolumeReport, VolumeState};

/// Minimum reads of clients at a backing for their mean latency to count as its latency.
const MEASURED_READS_MIN: u64 = 100;

/// Memory and flash of the daemon, shared by all volumes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Capacity {
    /// Unused bytes of memory and of flash.
    pub free_bytes: [u64; 2],
    /// Bytes of blocks that memory can hold.
    pub memory_bytes: u64,
    /// Size of all flash devices in service.
    pub flash_bytes: u64,
    /// Bytes of pages that they can hold.
    pub flash_page_bytes: u64,
}

/// Converts the assumptions for the computation; `measured_ns` is the measured latency of the array.
pub fn to_assumptions(assumptions: &Assumptions, measured_ns: Option<u64>) -> crate::advice::Assumptions {
    let Assumptions { spindle_iops, array_ns, flash_ns, memory_ns } = *assumptions;
    let array_ns = array_ns.or(measured_ns).unwrap_or(ARRAY_NS);
    crate::advice::Assumptions { spindle_rate: f64::from(spindle_iops), array_ns, flash_ns, memory_ns }
}

/// Reads of the backing that clients caused.
fn array_reads(report: &VolumeReport) -> u64 {
    let is_of_clients = |counts: &&BackingRequests| {
        counts.op == "read" && ["client-read", "readahead"].contains(&counts.cause.as_str())
    };
    report.backing_requests.iter().filter(is_of_clients).map(|counts| counts.requests).sum()
}

/// Mean latency of clients' reads at the backing of a volume.
fn measured_array_ns(report: &VolumeReport) -> Option<u64> {
    let reads = report.backing_requests.iter().find(|counts| counts.op == "read" && counts.cause == "client-read")?;
    let Counts { all, sum_us, .. } = reads.latency;
    (all >= MEASURED_READS_MIN).then(|| (sum_us * 1e3 / all as f64) as u64)
}

/// The gain of additional memory and flash for a volume within its `limits`, from its miss-ratio curves.
pub fn of_volume(
    report: &VolumeReport,
    curve: &MissRatioCurve,
    capacity: &Capacity,
    limits: Limits,
    assumptions: &Assumptions,
) -> VolumeAdvice {
    let requests = report.reads + report.writes;
    if requests == 0 {
        let text = "nothing was read or written yet, so there is no advice";
        return VolumeAdvice { nothing: Some(text.to_owned()), ..empty_advice(report) };
    }
    let ratio = |hits: u64| hits as f64 / report.reads.max(1) as f64;
    let seconds = curve.observed_ms as f64 / 1e3;
    let per_second = |count: u64| (seconds > 0.0).then(|| count as f64 / seconds);
    let live = LiveMeasurements {
        curves: VolumeCurveStats { memory: curve_stats(&curve.memory), flash: curve_stats(&curve.flash) },
        seconds,
        rate: per_second(requests),
        present: PresentLoad {
            memory_hits: ratio(report.memory_hits),
            flash_hits: ratio(report.flash_hits),
            prefetched: ratio(report.prefetched_hits),
            reads: report.reads,
            reads_per_s: per_second(report.reads),
            array_reads_per_s: per_second(array_reads(report)),
            used_bytes: [report.memory_bytes, report.flash.cached_bytes],
            held_bytes: [report.memory_bytes, report.flash.pages * PAGE_BYTES],
            free_bytes: capacity.free_bytes,
            memory_bytes: capacity.memory_bytes,
            flash_bytes: capacity.flash_bytes,
            flash_page_bytes: capacity.flash_page_bytes,
            limits,
        },
    };
    let measured_ns = measured_array_ns(report).filter(|_| assumptions.array_ns.is_none());
    let assumptions = to_assumptions(assumptions, measured_ns);
    let advice = crate::advice::of_volume(&live, &assumptions);
    let load = of_load(&advice, &assumptions, empty_advice(report));
    VolumeAdvice {
        footprint_bytes: curve.memory.working_set_bytes,
        array_latency_measured: measured_ns.is_some(),
        memory: SideAdvice { quota: quota(&advice.memory, report), ..load.memory },
        flash: SideAdvice { quota: quota(&advice.flash, report), ..load.flash },
        ..load
    }
}

/// The quota of a volume in one kind of cache.
fn quota(cache: &CacheAdvice, report: &VolumeReport) -> Option<QuotaAdvice> {
    let LimitAdvice { setting, bytes, raise } = cache.limit?;
    let (setting, value) = match setting {
        LimitSetting::MemoryMax => ("memory_max", report.memory.max.as_str()),
        LimitSetting::FlashMax => ("flash_max", report.flash.max.as_str()),
        LimitSetting::FlashDisabled => ("flash", "false"),
    };
    let (setting, value) = (setting.to_owned(), value.to_owned());
    Some(QuotaAdvice { setting, value, limit_bytes: bytes, raise: raise.map(purchase_advice) })
}

/// Fills the results of `advice` into `base`, which names the load.
pub fn of_load(advice: &Advice, assumptions: &crate::advice::Assumptions, base: VolumeAdvice) -> VolumeAdvice {
    VolumeAdvice {
        requests_per_s: advice.rate,
        reads_per_s: advice.present.reads_per_s,
        hit_ratio: advice.present.hit_ratio(),
        latency_us: advice.present.latency_ns(assumptions) / 1e3,
        array_latency_us: assumptions.array_ns as f64 / 1e3,
        confidence: confidence_name(advice.confidence).to_owned(),
        memory: side(&advice.memory),
        flash: side(&advice.flash),
        ..base
    }
}

fn confidence_name(confidence: Confidence) -> &'static str {
    match confidence {
        Confidence::High => "high",
        Confidence::Medium => "medium",
        Confidence::Low => "low",
        Confidence::FewAccesses => "few-accesses",
        Confidence::Deviation => "deviation",
    }
}

/// Advice for a volume without curves, or whose core does not answer.
pub fn without_curves(report: &VolumeReport) -> VolumeAdvice {
    let reason = match report.state {
        VolumeState::Refused | VolumeState::Standby => {
            format!("it is {}: it has no miss-ratio curve", report.state.name())
        }
        _ => "its data core does not answer".to_owned(),
    };
    VolumeAdvice { nothing: Some(reason), ..empty_advice(report) }
}

fn empty_advice(report: &VolumeReport) -> VolumeAdvice {
    let requests = report.reads + report.writes;
    VolumeAdvice { volume: report.name.clone(), requests, ..VolumeAdvice::default() }
}

/// Advice for one kind of cache.
fn side(cache: &CacheAdvice) -> SideAdvice {
    let step = |step: &Step| StepAdvice {
        size_bytes: step.size_bytes,
        hit_ratio: step.hit_ratio,
        miss_ratio: step.miss_ratio,
        lru_miss_ratio: step.lru_miss_ratio,
        latency_us: step.latency_ns / 1e3,
        saved_spindles: step.saved_spindles,
    };
    SideAdvice {
        today: cache.present.map(|PresentCache { size_bytes, hit_ratio }| TodayAdvice { size_bytes, hit_ratio }),
        knee_bytes: cache.knee.map(|step| cache.steps[step].size_bytes),
        purchase: cache.purchase.map(purchase_advice),
        quota: None,
        steps: cache.steps.iter().map(step).collect(),
    }
}

fn purchase_advice(purchase: Purchase) -> PurchaseAdvice {
    PurchaseAdvice {
        size_bytes: purchase.size_bytes,
        hit_ratio_before: purchase.hit_ratio_before,
        latency_before_us: purchase.latency_before_ns / 1e3,
        hit_ratio: purchase.hit_ratio,
        latency_us: purchase.latency_ns / 1e3,
        saved_reads_per_s: purchase.saved_reads_per_s,
        saved_spindles: purchase.saved_spindles,
    }
}

fn curve_stats(curve: &Curve) -> CurveStats {
    let Curve { unit_bytes, accesses, working_set_bytes, ref points } = *curve;
    let points = points.iter().map(|point| CurvePoint { size_bytes: point.size_bytes, miss_ratio: point.miss_ratio });
    CurveStats { unit_bytes, uses: accesses, working_set_bytes, points: points.collect() }
}

#[cfg(test)]
mod tests {
    use messages::report::Point;

    use super::*;
    use crate::advice::Limit;

    /// A volume that was read for ten seconds, half of it from 1 MiB of memory.
    fn read_volume() -> (VolumeReport, MissRatioCurve) {
        let report = VolumeReport {
            reads: 900,
            writes: 100,
            memory_hits: 450,
            memory_bytes: 1 << 20,
            ..VolumeReport::idle("v", VolumeState::Active, "none", "/x")
        };
        let points = [(1_u64, 0.5), (2, 0.1), (4, 0.08), (8, 0.05)];
        let points = points.map(|(mib, miss_ratio)| Point { size_bytes: mib << 20, miss_ratio }).to_vec();
        let memory = Curve { unit_bytes: 4096, accesses: 1_000, working_set_bytes: 9 << 20, points };
        (report, MissRatioCurve { observed_ms: 10_000, memory, flash: Curve::default() })
    }

    #[test]
    fn step_reports_its_gain_in_hits_latency_and_disks() {
        let (report, curve) = read_volume();
        let advice = of_volume(
            &report,
            &curve,
            &Capacity::default(),
            Limits::default(),
            &Assumptions { spindle_iops: 50, ..Assumptions::default() },
        );
        assert_eq!((advice.nothing, advice.requests, advice.requests_per_s), (None, 1_000, Some(100.0)));
        assert_eq!((advice.footprint_bytes, advice.memory.knee_bytes), (9 << 20, Some(2 << 20)));
        assert_eq!(advice.memory.today, Some(TodayAdvice { size_bytes: 1 << 20, hit_ratio: 0.5 }));
        let first = StepAdvice {
            size_bytes: 1 << 20,
            hit_ratio: 0.5,
            miss_ratio: 0.5,
            lru_miss_ratio: 0.5,
            // Half of the reads from memory in 20 µs, half from the array in 8 ms.
            latency_us: 4_010.0,
            saved_spindles: Some(0.0),
        };
        assert_eq!((advice.memory.steps.len(), advice.memory.steps[0]), (4, first));
        // Of 90 reads per second 0.4 are hits of the second MiB.
        assert!(advice.memory.steps[1].saved_spindles.is_some_and(|saved| (saved - 0.72).abs() < 1e-9));
        assert_eq!((advice.flash.knee_bytes, advice.flash.steps), (None, vec![]));
        // A flash of the same curve saves nothing until it holds more than memory.
        let curve = MissRatioCurve { flash: curve.memory.clone(), ..curve };
        let flash = of_volume(&report, &curve, &Capacity::default(), Limits::default(), &Assumptions::default()).flash;
        let saved: Vec<bool> = flash.steps.iter().map(|step| step.saved_spindles > Some(0.0)).collect();
        assert_eq!(saved, [false, true, true, true]);
        // Half of 900 reads from memory; no recommendation from 1,000 accesses.
        assert_eq!((advice.hit_ratio, advice.latency_us, advice.confidence.as_str()), (0.5, 4_010.0, "few-accesses"));
        assert_eq!((advice.memory.purchase, advice.flash.purchase), (None, None));
    }

    #[test]
    fn measured_latency_of_the_backing_takes_the_place_of_the_default() {
        let (mut report, curve) = read_volume();
        let latency = |report: &VolumeReport, array_ns| {
            let assumptions = Assumptions { array_ns, ..Assumptions::default() };
            let advice = of_volume(report, &curve, &Capacity::default(), Limits::default(), &assumptions);
            (advice.array_latency_us, advice.array_latency_measured)
        };
        assert_eq!(latency(&report, None), (8_000.0, false));
        let requests = |op: &str, cause: &str, all, sum_us| BackingRequests {
            op: op.to_owned(),
            cause: cause.to_owned(),
            latency: Counts { all, sum_us, ..Counts::default() },
            ..BackingRequests::default()
        };
        report.backing_requests =
            vec![requests("read", "readahead", 1_000, 9e6), requests("read", "client-read", 200, 500_000.0)];
        assert_eq!(latency(&report, None), (2_500.0, true));
        assert_eq!(latency(&report, Some(1_000_000)), (1_000.0, false));
        report.backing_requests[1].latency.all = MEASURED_READS_MIN - 1;
        assert_eq!(latency(&report, None), (8_000.0, false));
    }

    #[test]
    fn recommendation_is_a_purchase_with_its_effect() {
        let (mut report, mut curve) = read_volume();
        curve.memory.accesses = 20_000;
        curve.observed_ms = 7_200_000;
        for point in &mut curve.memory.points {
            point.size_bytes <<= 10;
        }
        report.memory_bytes = 1 << 30;
        (report.reads, report.memory_hits) = (9_000, 4_500);
        let clients = |cause: &str, requests| BackingRequests {
            op: "read".to_owned(),
            cause: cause.to_owned(),
            requests,
            ..BackingRequests::default()
        };
        report.backing_requests =
            vec![clients("client-read", 3_000), clients("readahead", 600), clients("promotion", 900)];
        let advice = of_volume(&report, &curve, &Capacity::default(), Limits::default(), &Assumptions::default());
        let purchase = advice.memory.purchase.expect("more memory helps");
        // The curve promises 0.91 with 2 GiB more, and at most 0.95.
        assert_eq!((advice.confidence.as_str(), purchase.size_bytes), ("medium", 2 << 30));
        assert!((purchase.hit_ratio - 0.91).abs() < 1e-9 && purchase.latency_us < 740.0, "{purchase:?}");
        // Of the 3,600 array reads in two hours.
        assert!(purchase.saved_reads_per_s.is_some_and(|saved| (saved - 0.5 * 0.82).abs() < 1e-9), "{purchase:?}");
    }

    /// A volume in service for a day, with half of its reads from 8 GiB of memory and 400 GiB of hot data.
    fn volume_with_hot_data() -> (VolumeReport, MissRatioCurve) {
        let (mut report, mut curve) = read_volume();
        report.memory_bytes = 8 << 30;
        (report.reads, report.memory_hits) = (9_000, 4_500);
        let points = [(8_u64, 0.5), (100, 0.3), (400, 0.1), (800, 0.09)];
        curve.memory.points = points.map(|(gib, miss_ratio)| Point { size_bytes: gib << 30, miss_ratio }).to_vec();
        curve.memory.accesses = 20_000;
        curve.flash = curve.memory.clone();
        curve.observed_ms = 86_400_000;
        (report, curve)
    }

    #[test]
    fn binding_memory_quota_is_named_with_the_effect_of_a_raise() {
        let (mut report, curve) = volume_with_hot_data();
        let advice = |report: &VolumeReport, limits: Limits| {
            let capacity = Capacity { memory_bytes: 16 << 30, ..Capacity::default() };
            of_volume(report, &curve, &capacity, limits, &Assumptions::default())
        };
        let unlimited = advice(&report, Limits::default());
        assert_eq!(
            (unlimited.memory.purchase.map(|purchase| purchase.size_bytes), unlimited.memory.quota),
            (Some(512 << 30), None)
        );
        report.memory.max = "8 GiB".to_owned();
        let limited = advice(&report, Limits { memory_max: Limit::Bytes(8 << 30), ..Limits::default() });
        assert_eq!((limited.memory.purchase, limited.flash.quota), (None, None));
        assert_eq!(limited.flash.purchase, unlimited.flash.purchase);
        let quota = QuotaAdvice {
            setting: "memory_max".to_owned(),
            value: "8 GiB".to_owned(),
            limit_bytes: Some(8 << 30),
            raise: unlimited.memory.purchase,
        };
        assert_eq!(limited.memory.quota, Some(quota));
        // Hits above the quota save no disks.
        assert!(limited.memory.steps.iter().all(|step| step.saved_spindles == Some(0.0)));
        assert!(limited.flash.steps.iter().any(|step| step.saved_spindles > Some(0.0)));
    }

    #[test]
    fn volumes_with_disabled_flash_get_no_flash_purchase() {
        let (report, curve) = volume_with_hot_data();
        let flash_advice = |is_flash_disabled: &bool| {
            let limits = Limits { is_flash_disabled: *is_flash_disabled, ..Limits::default() };
            of_volume(&report, &curve, &Capacity::default(), limits, &Assumptions::default()).flash
        };
        for disabled in [[false, true], [true, true]] {
            let [first, second] = disabled.each_ref().map(flash_advice);
            assert_eq!([&first, &second].map(|flash| flash.purchase.is_none()), disabled);
            let quota = second.quota.expect("the second volume may not use flash");
            assert_eq!((quota.setting.as_str(), quota.value.as_str(), quota.limit_bytes), ("flash", "false", Some(0)));
            assert_eq!(quota.raise.map(|raise| raise.size_bytes), Some(480_000_000_000));
        }
    }

    #[test]
    fn missing_advice_has_a_reason() {
        let (mut report, curve) = read_volume();
        let reason = |advice: VolumeAdvice| advice.nothing.expect("there is a reason");
        assert!(reason(without_curves(&report)).contains("core does not answer"));
        report.state = VolumeState::Refused;
        assert!(reason(without_curves(&report)).contains("refused"));
        (report.reads, report.writes) = (0, 0);
        assert!(
            reason(of_volume(&report, &curve, &Capacity::default(), Limits::default(), &Assumptions::default()))
                .contains("nothing was read or written yet")
        );
    }

    #[test]
    fn default_assumptions_are_the_same_everywhere() {
        let (messages_default, lab_default) =
            (to_assumptions(&Assumptions::default(), None), crate::advice::Assumptions::default());
        assert_eq!(
            (
                messages_default.spindle_rate,
                messages_default.array_ns,
                messages_default.flash_ns,
                messages_default.memory_ns
            ),
            (lab_default.spindle_rate, lab_default.array_ns, lab_default.flash_ns, lab_default.memory_ns)
        );
    }
}
