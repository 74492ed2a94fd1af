//! Presentation of advice: for a volume in service (command and HTTP interface alike), and for a trace.

use crate::advice::{LiveMeasurements, PresentCache, Side, Step};
use engine::policy::curve::{CurvePoint, CurveStats, VolumeCurves};
use messages::report::{Assumptions, Curve, MissRatioCurve, SideAdvice, StepAdvice, TodayAdvice, VolumeAdvice};
use messages::{VolumeReport, VolumeState};

/// Converts the assumptions for the computation.
pub fn to_assumptions(assumptions: &Assumptions) -> crate::advice::Assumptions {
    let Assumptions { spindle_iops, array_ns, flash_ns, memory_ns } = *assumptions;
    crate::advice::Assumptions { spindle_rate: f64::from(spindle_iops), array_ns, flash_ns, memory_ns }
}

/// The gain of additional memory and flash for a volume, from its miss-ratio curves.
pub fn of_volume(report: &VolumeReport, curve: &MissRatioCurve, assumptions: &Assumptions) -> VolumeAdvice {
    let requests = report.reads + report.writes;
    if requests == 0 {
        let text = "nothing was read or written yet, so there is no advice";
        return VolumeAdvice { nothing: Some(text.to_owned()), ..empty_advice(report) };
    }
    let ratio = |hits: u64| hits as f64 / report.reads.max(1) as f64;
    let seconds = curve.observed_ms as f64 / 1e3;
    let advice = crate::advice::of_volume(
        &LiveMeasurements {
            curves: VolumeCurves { memory: curve_stats(&curve.memory), flash: curve_stats(&curve.flash) },
            rate: (seconds > 0.0).then(|| requests as f64 / seconds),
            memory: PresentCache { size_bytes: report.memory_bytes, hit_ratio: ratio(report.memory_hits) },
            flash: PresentCache { size_bytes: report.flash.cached_bytes, hit_ratio: ratio(report.flash_hits) },
        },
        &to_assumptions(assumptions),
    );
    VolumeAdvice {
        footprint_bytes: curve.memory.working_set_bytes,
        requests_per_s: advice.rate,
        memory: side(&advice.memory),
        flash: side(&advice.flash),
        ..empty_advice(report)
    }
}

/// Advice for a volume without curves, or whose core does not answer.
pub fn without_curves(report: &VolumeReport) -> VolumeAdvice {
    let reason = match report.state {
        VolumeState::Refused => format!("it is {}: it has no miss-ratio curve", report.state.name()),
        _ => "its data core does not answer".to_owned(),
    };
    VolumeAdvice { nothing: Some(reason), ..empty_advice(report) }
}

fn empty_advice(report: &VolumeReport) -> VolumeAdvice {
    let requests = report.reads + report.writes;
    VolumeAdvice { volume: report.name.clone(), requests, ..VolumeAdvice::default() }
}

/// Advice for one kind of cache.
pub fn side(side: &Side) -> SideAdvice {
    let step = |step: &Step| StepAdvice {
        size_bytes: step.size_bytes,
        hit_ratio: step.hit_ratio,
        miss_ratio: step.miss_ratio,
        lru_miss_ratio: step.lru_miss_ratio,
        latency_us: step.latency_ns / 1e3,
        saved_spindles: step.saved_spindles,
    };
    SideAdvice {
        today: side.today.map(|PresentCache { size_bytes, hit_ratio }| TodayAdvice { size_bytes, hit_ratio }),
        knee_bytes: side.knee.map(|at| side.steps[at].size_bytes),
        steps: side.steps.iter().map(step).collect(),
    }
}

fn curve_stats(curve: &Curve) -> CurveStats {
    let Curve { unit_bytes, accesses, working_set_bytes, ref points } = *curve;
    let points = points.iter().map(|point| CurvePoint { size_bytes: point.size_bytes, miss_ratio: point.miss_ratio });
    CurveStats { unit_bytes, accesses, working_set_bytes, points: points.collect() }
}

#[cfg(test)]
mod tests {
    use messages::report::Point;

    use super::*;

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
        let advice = of_volume(&report, &curve, &Assumptions { spindle_iops: 50, ..Assumptions::default() });
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
            saved_spindles: Some(1.0),
        };
        assert_eq!((advice.memory.steps.len(), advice.memory.steps[0]), (4, first));
        assert_eq!((advice.flash.knee_bytes, advice.flash.steps), (None, vec![]));
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
            reason(of_volume(&report, &curve, &Assumptions::default())).contains("nothing was read or written yet")
        );
    }

    #[test]
    fn default_assumptions_are_the_same_everywhere() {
        let (messages_default, lab_default) =
            (to_assumptions(&Assumptions::default()), crate::advice::Assumptions::default());
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
