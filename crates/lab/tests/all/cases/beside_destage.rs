//! Misses concurrent with destage: tail latency of reads on a volume with a cache and on the same array without one, in
//! virtual time.

use std::cell::RefCell;
use std::rc::Rc;

use engine::{CoreSpec, VolumeSpec, WritePolicy};
use lab::fixture::{Fixture, FlashPlan, Target};
use lab::random::Random;
use lab::workload::quantile;
use seam::model::{ArraySpec, DiskType, RaidLevel};
use seam::sim::{Content, WorldSpec};
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
    fn draw(&mut self, passed: f64) -> (u64, bool) {
        let blocks = VOLUME_BYTES / REQUEST_BYTES;
        let read = self.random.percent(80);
        if !self.random.percent(99) {
            return (self.random.below(blocks), read);
        }
        let (hot, apart) = (64 * MIB / REQUEST_BYTES / 8, blocks / 8);
        let stretch = self.random.below(8);
        let moved = ((passed - 0.35) / 0.1 * 4.0).ceil().clamp(0.0, 4.0) as u64;
        let hot = if self.random.percent(80) { hot / 4 } else { hot };
        let away = if stretch < moved { apart / 2 } else { 0 };
        (stretch * apart + away + self.random.below(hot), read)
    }
}

/// Sorted read latencies of one side.
#[derive(Default)]
struct Side {
    reads_us: Vec<u32>,
}

fn play(seed: u64, policy: WritePolicy) -> Side {
    let blocks = (32 * MIB / seam::BLOCK_BYTES as u64) as usize;
    let fixture = Fixture::new(WorldSpec { blocks, keep: Content::None, ..WorldSpec::new(seed) }, CoreSpec::default());
    fixture.open_flash(&FlashPlan { devices: 2, bytes: 512 * MIB, iops: 20_000 });
    let array = ArraySpec::new(RaidLevel::Raid5, 5, DiskType::Sas15k);
    let disk = fixture.add_disks_on_array(array, &[VOLUME_BYTES]).remove(0);
    let edit = |spec: &mut VolumeSpec| spec.policy = policy;
    let volume = fixture.attach_disk("volume", disk, edit).expect("a new volume");
    fixture.wait_until_checked(std::slice::from_ref(&volume));
    let side = Rc::new(RefCell::new(Side::default()));
    let (begun, end) = (fixture.seam.now(), fixture.seam.now() + Nanos::from_secs(SECONDS));
    for lane in 0..16 {
        let (seam, side, target) = (fixture.seam.clone(), Rc::clone(&side), Target::Volume(volume.clone()));
        let mut demo = Demo { random: Random::new(seed, lane) };
        fixture.seam.spawn(async move {
            while seam.now() < end {
                let began = seam.now();
                let (block, read) = demo.draw(began.since(begun).as_secs_f64() / SECONDS as f64);
                seam.spend(NBD_COST);
                let (at, len) = (block * REQUEST_BYTES, REQUEST_BYTES as usize);
                let result =
                    if read { target.read(&seam, at, len).await } else { target.write(&seam, at, len, 1).await };
                result.expect("nothing fails");
                let took = seam.now().since(began).as_micros() as u32;
                if read {
                    side.borrow_mut().reads_us.push(took);
                }
                seam.yield_now().await;
            }
        });
    }
    fixture.world.block_on(fixture.seam.sleep_until(end));
    let mut side = side.take();
    side.reads_us.sort_unstable();
    side
}

#[test]
fn demo_read_tail_is_no_slower_than_on_the_bare_array() {
    for seed in 1..=2 {
        let tails = |policy| {
            let side = play(seed, policy);
            [990, 999].map(|per_mille| quantile(&side.reads_us, per_mille))
        };
        let ([p99, p999], [bare_p99, bare_p999]) = (tails(WritePolicy::WriteBack), tails(WritePolicy::None));
        println!("seed {seed}: reads p99 {p99} us, p99.9 {p999} us; on the array alone {bare_p99} us, {bare_p999} us");
        assert!(p99 <= bare_p99, "p99 of reads: {p99} us, {bare_p99} us on the array alone");
        assert!(u64::from(p999) * 10 <= u64::from(bare_p999) * 11, "p99.9 of reads: {p999} us, {bare_p999} us alone");
    }
}
