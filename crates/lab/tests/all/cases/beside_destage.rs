//! Misses concurrent with destage: tail latency of reads on a volume with a cache and on the same array without one, in
//! virtual time.

use std::cell::RefCell;
use std::rc::Rc;

use engine::{CoreSpec, VolumeSpec, WritePolicy};
use lab::fixture::{Fixture, FlashPlan, Target};
use lab::random::Random;
use lab::scenario::write_tail;
use lab::workload::quantile;
use seam::model::{ArraySpec, DiskType, RaidLevel};
use seam::sim::{StoredContent, WorldSpec};
use seam::{Nanos, Seam};

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
const VOLUME_BYTES: u64 = 4 * GIB;
const REQUEST_BYTES: u64 = 8 << 10;
const SECONDS: u64 = 20;
/// CPU time of a request over NBD.
const NBD_COST: Nanos = Nanos(20_000);

/// The load of `hotset demo`: 99 of 100 requests go to 64 MiB in eight regions, and four fifths of these to a quarter
/// of each region. Half of the regions move during the run.
struct Demo {
    random: Random,
}

impl Demo {
    fn draw(&mut self, fraction: f64) -> (u64, bool) {
        let blocks = VOLUME_BYTES / REQUEST_BYTES;
        let read = self.random.percent(80);
        if !self.random.percent(99) {
            return (self.random.below(blocks), read);
        }
        let (hot, distance) = (64 * MIB / REQUEST_BYTES / 8, blocks / 8);
        let region = self.random.below(8);
        let moved_regions = ((fraction - 0.35) / 0.1 * 4.0).ceil().clamp(0.0, 4.0) as u64;
        let hot = if self.random.percent(80) { hot / 4 } else { hot };
        let offset = if region < moved_regions { distance / 2 } else { 0 };
        (region * distance + offset + self.random.below(hot), read)
    }
}

/// Sorted read latencies of a run.
#[derive(Default)]
struct ReadLatencies {
    reads_us: Vec<u32>,
}

fn run_demo_load(seed: u64, policy: WritePolicy) -> ReadLatencies {
    let blocks = (32 * MIB / seam::BLOCK_BYTES as u64) as usize;
    let fixture = Fixture::new(
        WorldSpec { blocks, content: StoredContent::MetadataOnly, ..WorldSpec::new(seed) },
        CoreSpec::default(),
    );
    fixture.open_flash(&FlashPlan { devices: 2, bytes: 512 * MIB, iops: 20_000 });
    let array = ArraySpec::new(RaidLevel::Raid5, 5, DiskType::Sas15k);
    let disk = fixture.add_disks_on_array(array, &[VOLUME_BYTES]).remove(0);
    let edit = |spec: &mut VolumeSpec| spec.policy = policy;
    let volume = fixture.attach_disk("volume", disk, edit).expect("volume names are unique");
    fixture.wait_until_checked(std::slice::from_ref(&volume));
    let latencies = Rc::new(RefCell::new(ReadLatencies::default()));
    let (start, end) = (fixture.seam.now(), fixture.seam.now() + Nanos::from_secs(SECONDS));
    for client in 0..16 {
        let (seam, latencies, target) = (fixture.seam.clone(), Rc::clone(&latencies), Target::Volume(volume.clone()));
        let mut demo = Demo { random: Random::new(seed, client) };
        fixture.seam.spawn(async move {
            while seam.now() < end {
                let began = seam.now();
                let (block, read) = demo.draw(began.since(start).as_secs_f64() / SECONDS as f64);
                seam.spend(NBD_COST);
                let (at, len) = (block * REQUEST_BYTES, REQUEST_BYTES as usize);
                let result =
                    if read { target.read(&seam, at, len).await } else { target.write(&seam, at, len, 1).await };
                result.expect("devices without faults do not fail");
                let elapsed = seam.now().since(began).as_micros() as u32;
                if read {
                    latencies.borrow_mut().reads_us.push(elapsed);
                }
                seam.yield_now().await;
            }
        });
    }
    fixture.world.block_on(fixture.seam.sleep_until(end));
    let mut latencies = latencies.take();
    latencies.reads_us.sort_unstable();
    latencies
}

#[test]
fn demo_read_tail_is_no_slower_than_on_the_bare_array() {
    for seed in 1..=2 {
        let tails = |policy| {
            let latencies = run_demo_load(seed, policy);
            [990, 999].map(|per_mille| quantile(&latencies.reads_us, per_mille))
        };
        let ([p99, p999], [bare_p99, bare_p999]) = (tails(WritePolicy::WriteBack), tails(WritePolicy::None));
        println!("seed {seed}: reads p99 {p99} us, p99.9 {p999} us; on the array alone {bare_p99} us, {bare_p999} us");
        assert!(p99 <= bare_p99, "p99 of reads: {p99} us, {bare_p99} us on the array alone");
        assert!(u64::from(p999) * 10 <= u64::from(bare_p999) * 11, "p99.9 of reads: {p999} us, {bare_p999} us alone");
    }
}

#[test]
fn misses_seconds_apart_find_no_queue_of_destage() {
    let [with, without] = [true, false].map(|cached| write_tail::DEMO.run(1, cached, 3, 4));
    assert!(with.misses > 500, "{} misses", with.misses);
    let ([with, _], [without, _]) = (with.misses_ms, without.misses_ms);
    assert!(with * 2.0 < without * 3.0, "p99 of misses {with} ms, of the array alone {without} ms");
}
