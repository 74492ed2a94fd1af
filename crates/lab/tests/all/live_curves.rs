//! Miss-ratio curves of a live volume, compared with the exact curves of the same requests.

use engine::policy::curve::{CurvePoint, CurveStats, VolumeCurveStats};
use engine::{CoreSpec, WritePolicy};
use lab::curve::LruCurve;
use lab::fixture::{Fixture, Target};
use lab::replay::{PageTrace, Recording};
use seam::Nanos;
use seam::sim::{SimDiskSpec, StoredContent, Timing, WorldSpec};
use trace::{Op, Request};

/// Block accesses after which a trace is cut off, to bound the time of the test.
const ACCESSES_MAX: usize = 1_000_000;
/// Distance between the devices of a trace on the volume.
const DEVICE_BYTES: u64 = 1 << 40;

const TRACES: [&str; 6] = [
    "arc-P2.lis.zst",
    "arc-P3.lis.zst",
    "arc-P6.lis.zst",
    "cloudphysics-vm.vscsi",
    "cloudphysics-w106.u32le.xz",
    "tpcc-small.mqsim",
];

fn requests(directory: &std::path::Path, name: &str) -> Vec<Request> {
    #[expect(clippy::disallowed_types, reason = "the test reads its input")]
    let file = std::fs::File::open(directory.join(name)).expect("the directory contains every trace");
    let mut blocks = 0;
    let requests = trace::open(name, Box::new(file), None).expect("the trace format is known");
    let taken = requests.take_while(|request| {
        blocks += request.as_ref().map_or(0, |request| request.len.div_ceil(4096) as usize);
        blocks <= ACCESSES_MAX
    });
    let moved = |request: Request| Request { at: request.at + u64::from(request.device) * DEVICE_BYTES, ..request };
    taken.map(|request| moved(request.expect("the trace is intact"))).collect()
}

/// Sends all requests in sequence to a volume with 16 MiB of memory, and returns its curves.
fn measure_live(requests: &[Request]) -> VolumeCurveStats {
    let world = WorldSpec {
        blocks: 4_096,
        content: StoredContent::MetadataOnly,
        time_max: Nanos::from_secs(1 << 30),
        ..WorldSpec::new(1)
    };
    let fixture = Fixture::new(world, CoreSpec::default());
    let end = requests.iter().map(|request| request.at + request.len).max().unwrap_or(0);
    fixture
        .add_disk("disk", SimDiskSpec { timing: Timing::INSTANT, ..SimDiskSpec::new(end.next_multiple_of(1 << 20)) });
    let volume = fixture
        .attach("disk", |spec| spec.policy = WritePolicy::WriteThrough)
        .expect("the first volume can be attached");
    let target = Target::Volume(volume.clone());
    for request in requests {
        let (at, len) = (request.at, request.len as usize);
        let completion = match request.op {
            Op::Read => fixture.world.block_on(target.read(&fixture.seam, at, len)),
            Op::Write => fixture.world.block_on(target.write(&fixture.seam, at, len, 1)),
            Op::Discard | Op::Flush => Ok(()),
        };
        completion.expect("a disk without faults does not fail");
    }
    volume.curves()
}

/// Interpolates linearly between the reported points.
fn miss_ratio(curve: &CurveStats, size_bytes: u64) -> f64 {
    let index = curve.points.partition_point(|point| point.size_bytes < size_bytes);
    let before =
        index.checked_sub(1).map_or(CurvePoint { size_bytes: 0, miss_ratio: 1.0 }, |index| curve.points[index]);
    let Some(after) = curve.points.get(index) else { return before.miss_ratio };
    let fraction = (size_bytes - before.size_bytes) as f64 / (after.size_bytes - before.size_bytes) as f64;
    before.miss_ratio + (after.miss_ratio - before.miss_ratio) * fraction
}

fn mean_error(curve: &CurveStats, pages: &PageTrace) -> f64 {
    let exact = LruCurve::of(pages);
    let error_at = |percent: u64| {
        let slots = pages.percent_of_footprint(percent).max(1);
        (miss_ratio(curve, slots as u64 * curve.unit_bytes) - exact.miss_ratio(slots)).abs()
    };
    (1..=100).map(error_at).sum::<f64>() / 100.0
}

#[test]
fn live_curves_are_close_to_the_exact_ones() {
    let Some(directory) = std::env::var_os("HOTSET_TRACES").map(std::path::PathBuf::from) else {
        println!("not measured: HOTSET_TRACES is not set to the directory of the traces");
        return;
    };
    for name in TRACES {
        let requests = requests(&directory, name);
        let (recording, _) = Recording::of(requests.iter().copied().map(Ok::<_, ()>));
        let curves = measure_live(&requests);
        for (curve, pages) in [(&curves.memory, &recording.blocks), (&curves.flash, &recording.pages)] {
            let (unit, error) = (curve.unit_bytes / 1024, mean_error(curve, pages));
            println!("{name:28} {unit:>3} KiB: off by {error:.4} in {} accesses", pages.accesses.len());
            assert_eq!(curve.uses, pages.accesses.len() as u64, "{name}: each access is counted once");
            assert!(error <= 0.03, "{name}: the curve of {unit} KiB is off by {error:.4}");
        }
    }
}
