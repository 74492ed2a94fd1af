//! Calibration of the models: prints one table of measured figures and asserts their targets.

use super::array::{Array, ArraySpec};
use super::layout::RaidLevel;
use super::{Access, DiskType};
use crate::Nanos;
use crate::rng::Rng;

/// Requests per second of `depth` clients; each sends its next request on completion of its last.
pub(super) fn closed_loop(
    array: &mut Array,
    depth: u64,
    count: u64,
    mut next_request: impl FnMut() -> (Access, u64, u64),
) -> u64 {
    let (mut completed, mut finished, mut submitted, mut now) = (Vec::new(), 0, depth, Nanos::ZERO);
    for token in 0..depth {
        let (access, at, len) = next_request();
        array.submit(now, token, access, at, len);
    }
    while finished < count {
        now = now.max(array.next_event().expect("requests are in flight"));
        array.advance(now, &mut completed);
        for token in completed.drain(..) {
            finished += 1;
            submitted += 1;
            let (access, at, len) = next_request();
            array.submit(now, token, access, at, len);
        }
    }
    assert_eq!(submitted, finished + depth);
    finished * 1_000_000_000 / now.0
}

fn random(array: &Array, access: Access, len: u64, rng: Rng) -> impl FnMut() -> (Access, u64, u64) + use<> {
    let offset_count = array.spec().size_bytes() / len;
    move || (access, rng.below(offset_count) * len, len)
}

fn random_iops(spec: ArraySpec, access: Access, depth: u64) -> u64 {
    let mut array = Array::new(spec).expect("a plain array");
    let next_request = random(&array, access, 8 << 10, Rng::new(1, depth));
    closed_loop(&mut array, depth, 6_000, next_request)
}

#[test]
fn disks_match_their_calibration() {
    println!(
        "8 KiB random reads over the whole disk, a second:\n{:<8} {:>6} {:>6} {:>6}",
        "disk", "qd1", "qd32", "ratio"
    );
    for (kind, expected) in [(DiskType::Sas10k, 150), (DiskType::Sas15k, 180), (DiskType::NlSas, 90)] {
        let spec = ArraySpec::new(RaidLevel::Raid0, 1, kind);
        let (single, queued) = (random_iops(spec, Access::Read, 1), random_iops(spec, Access::Read, 32));
        println!(
            "{:<8} {single:>6} {queued:>6} {:>3}.{:02}",
            kind.to_string(),
            queued / single,
            queued * 100 / single % 100
        );
        assert!(
            (single * 100).abs_diff(expected * 100) <= expected * 3,
            "{kind}: {single} a second at depth 1, not {expected}"
        );
        assert!(
            (single * 150..=single * 200).contains(&(queued * 100)),
            "{kind}: {queued} at depth 32, {single} at depth 1"
        );
    }
    let ssd = ArraySpec::new(RaidLevel::Raid0, 1, DiskType::Ssd);
    let (single, queued) = (random_iops(ssd, Access::Read, 1), random_iops(ssd, Access::Read, 32));
    println!("{:<8} {single:>6} {queued:>6} {:>3}.{:02}", "ssd", queued / single, queued * 100 / single % 100);
    assert!(single > 5_000 && queued > 5 * single, "a flash device serves many requests at once: {single}, {queued}");
}

#[test]
fn arrays_pay_for_parity_and_profit_from_full_stripes() {
    let raid5 = ArraySpec::new(RaidLevel::Raid5, 5, DiskType::Sas15k);
    let (reads, writes) = (random_iops(raid5, Access::Read, 32), random_iops(raid5, Access::Write, 32));
    let mut array = Array::new(raid5).expect("a plain array");
    let (len, mut at) = (1 << 20, 0);
    let per_second = closed_loop(&mut array, 8, 2_000, || {
        at += len;
        (Access::Write, at - len, len)
    });
    println!("RAID 5 of five sas15k: 8 KiB random reads {reads} a second, random writes {writes}, both at depth 32;");
    println!("sequential writes of whole stripes {} MB/s", per_second * len / 1_000_000);
    assert!(
        (reads * 20..reads * 40).contains(&(writes * 100)),
        "a small write costs four operations: {reads}, {writes}"
    );
    assert!((300..800).contains(&(per_second * len / 1_000_000)), "{per_second} writes a second");

    let cached = ArraySpec { write_cache_bytes: 512 << 20, ..raid5 };
    let buffered = random_iops(cached, Access::Write, 1);
    let through = random_iops(raid5, Access::Write, 1);
    println!("random writes at depth 1: {through} a second, with a write cache {buffered}");
    assert!(buffered > 3 * through, "a write cache completes writes: {buffered}, {through}");
}

#[test]
fn mirrors_share_reads_and_both_take_writes() {
    let single = random_iops(ArraySpec::new(RaidLevel::Raid0, 1, DiskType::Sas10k), Access::Read, 16);
    let mirror = ArraySpec::new(RaidLevel::Raid1, 2, DiskType::Sas10k);
    let (reads, writes) = (random_iops(mirror, Access::Read, 32), random_iops(mirror, Access::Write, 16));
    assert!(reads * 10 > single * 18, "two mirrors read {reads}, one disk {single}");
    assert!(writes < single * 11 / 10, "both mirrors write: {writes}, one disk {single}");
}

#[test]
fn repeated_run_takes_the_same_time() {
    let run = || {
        let mut array = Array::new(ArraySpec::new(RaidLevel::Raid6, 8, DiskType::NlSas)).expect("a plain array");
        let next_request = random(&array, Access::Write, 12 << 10, Rng::new(9, 9));
        closed_loop(&mut array, 16, 2_000, next_request)
    };
    assert_eq!(run(), run());
}
