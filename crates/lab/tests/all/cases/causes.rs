//! Statistics of backing requests by operation and cause, and their latency without waits.

use engine::backing::{BackingOp, Cause};
use engine::{BackingCount, ByteOffset, Limits, WriteFlags};
use lab::fixture::{Fixture, read, write};
use seam::sim::{Latency, SimDiskSpec};
use seam::{Nanos, Seam};

const MIB: u64 = 1 << 20;

#[test]
fn backing_requests_are_counted_by_operation_and_cause() {
    let fixture = Fixture::with_memory(1, 16 * MIB);
    fixture.add_disk("disk", SimDiskSpec::new(64 * MIB));
    let volume = fixture.attach("disk", |_| ()).unwrap();
    fixture.world.block_on(write(&volume, 0, 128, 1)).unwrap();
    fixture.world.block_on(volume.discard(ByteOffset(8 * MIB), 4 * MIB, WriteFlags::default())).unwrap();
    fixture.world.block_on(volume.flush()).unwrap();
    fixture.world.block_on(read(&volume, 1_024, 8)).unwrap();
    fixture.world.block_on(volume.prefetch(ByteOffset(MIB), 64 << 10)).unwrap();
    fixture.world.run_for(Nanos::from_secs(1)).unwrap();
    let stats = volume.stats();
    let expected = [
        (BackingOp::Read, Cause::ClientRead, 4096),
        (BackingOp::Read, Cause::Readahead, 64 << 10),
        (BackingOp::Write, Cause::Destage, 64 << 10),
        (BackingOp::Zero, Cause::Destage, 4 * MIB),
        (BackingOp::Flush, Cause::Destage, 0),
    ];
    let count = |count: &BackingCount| (count.op, count.cause, count.bytes);
    assert_eq!(stats.backing.iter().map(count).collect::<Vec<_>>(), expected);
    for BackingCount { op, requests, latency, .. } in &stats.backing {
        assert_eq!((*requests, latency.all), (1, 1), "{op:?}");
        assert!((1..Nanos::from_secs(1).0).contains(&latency.sum_ns), "{op:?} took {} ns", latency.sum_ns);
    }
    assert_eq!((stats.backing_reads, stats.backing_writes, stats.backing_flushes), (2, 2, 1));
    assert_eq!((stats.backing_read_bytes, stats.backing_write_bytes), (68 << 10, 64 << 10));
}

#[test]
fn backing_latency_excludes_the_wait_for_a_queue_slot() {
    let fixture = Fixture::with_memory(1, 16 * MIB);
    let mut spec = SimDiskSpec::new(64 * MIB);
    let latency = Nanos::from_millis(20);
    (spec.geometry.queue_depth, spec.timing.read) = (4, Latency::fixed(latency));
    fixture.add_disk("disk", spec);
    let volume = fixture.attach("disk", |_| ()).unwrap();
    // More requests than queue slots: the later ones wait several times the latency.
    let reads = 64;
    for at in 0..reads {
        let volume = volume.clone();
        fixture.world.seam().spawn(async move { drop(read(&volume, at * 200, 8).await) });
    }
    fixture.world.run_for(Nanos::from_secs(2)).unwrap();
    let stats = volume.stats();
    let client_reads = stats.backing.iter().find(|count| count.cause == Cause::ClientRead).unwrap();
    assert_eq!(client_reads.requests, reads);
    let mean_ns = client_reads.latency.sum_ns / reads;
    assert!((latency.0..latency.0 * 11 / 10).contains(&mean_ns), "{mean_ns} ns");
    assert!(stats.read_latency.total.sum_ns > 2 * client_reads.latency.sum_ns, "{stats:?}");
}

#[test]
fn delay_by_a_limit_counts_as_held_time() {
    let fixture = Fixture::with_memory(1, 16 * MIB);
    fixture.add_disk("disk", SimDiskSpec::new(64 * MIB));
    let limits = Limits { iops: 500, ..Limits::default() };
    let volume = fixture.attach("disk", |spec| spec.qos.limits = limits).unwrap();
    let started_at = fixture.world.seam().now();
    let reads = 100;
    for _ in 0..reads {
        fixture.world.block_on(read(&volume, 0, 1)).unwrap();
    }
    // One client at a time: what it sees is the time that all reads took.
    let seen_ns = fixture.world.seam().now().since(started_at).0;
    let stats = volume.stats();
    let parts = stats.read_latency.parts.as_ref().unwrap();
    assert_eq!((stats.read_latency.total.total(), parts.service.total(), parts.held.total()), (reads, reads, reads));
    let counted_ns = stats.read_latency.total.sum_ns;
    assert!(counted_ns.abs_diff(seen_ns) < seen_ns / 100, "{counted_ns} ns counted, {seen_ns} ns seen");
    assert!(parts.held.sum_ns > seen_ns * 9 / 10, "{} ns of {seen_ns} ns held", parts.held.sum_ns);
    assert!(parts.held.sum_ns.abs_diff(stats.qos.limit_waited_us * 1_000) <= 100_000, "{stats:?}");
    assert!(parts.service.sum_ns < seen_ns / 10, "{} ns of service", parts.service.sum_ns);
}
