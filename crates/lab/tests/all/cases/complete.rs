//! Work for which requests of a volume wait until its backing is complete, as for a snapshot.

use engine::{CoreSpec, Volume};
use lab::fixture::{Fixture, durable_tags, read, write, write_evidence};
use lab::torture::flash::FlashOptions;
use seam::sim::{CrashMode, Fault, Ops, Rule, SimDiskSpec, SimSeam, When, WorldSpec};
use seam::{Nanos, Seam};

const LIMIT: Nanos = Nanos::from_secs(10);

fn log() -> FlashOptions {
    FlashOptions::plain(2, 64 << 10, 64)
}

fn world(seed: u64) -> WorldSpec {
    WorldSpec { blocks: 4096, ..WorldSpec::new(seed) }
}

fn served(seed: u64) -> (Fixture, Volume<SimSeam>) {
    let fixture = Fixture::new(world(seed), CoreSpec::default());
    fixture.add_disk("disk", SimDiskSpec::new(64 << 20));
    log().add_disks(&fixture.world);
    let volume = log().serve(&fixture, true);
    fixture.world.block_on(write_evidence(&fixture.seam, &volume, 8_000));
    (fixture, volume)
}

#[test]
fn work_finds_all_acknowledged_data_on_the_backing() {
    let (fixture, volume) = served(1);
    let on_disk = fixture.world.block_on(async {
        write(&volume, 0, 80, 5).await.unwrap();
        volume.flush().await.unwrap();
        write(&volume, 800, 8, 6).await.unwrap();
        let disk = fixture.world.disk("disk").expect("the disk was added");
        let work = async || (durable_tags(&disk, 0, 80), durable_tags(&disk, 800, 8));
        volume.run_while_complete(LIMIT, work).await.unwrap()
    });
    assert_eq!(on_disk, Some((vec![5; 80], vec![6; 8])));
}

/// The destage goes on after the time-out. Data that is written and flushed meanwhile stays in the log.
#[test]
fn flushed_data_survives_a_crash_after_a_destage_that_took_too_long() {
    for seconds in (2..120).step_by(3) {
        let (fixture, volume) = served(2);
        let (writing, seam) = (volume.clone(), fixture.seam.clone());
        fixture.seam.spawn(async move {
            // Dirty data until the requests wait.
            for number in 0..4_000 {
                if write(&writing, 800 + number % 50 * 8, 8, 100 + number).await.is_err() {
                    return;
                }
                seam.sleep(Nanos::from_millis(50)).await;
            }
        });
        fixture.world.block_on(async {
            fixture.seam.sleep(Nanos::from_millis(200)).await;
            let stall = Rule::new(Fault::Stall(Nanos::from_secs(25)), Ops::CHANGE, When::Always);
            fixture.world.disk("disk").expect("the disk was added").add_fault(stall);
            let outcome = volume.run_while_complete(LIMIT, async || ()).await.expect("a slow disk fails no destage");
            assert_eq!(outcome, None, "the destage takes longer");
            write(&volume, 0, 80, 7).await.unwrap();
            volume.flush().await.unwrap();
            fixture.seam.sleep(Nanos::from_secs(seconds)).await;
        });
        drop(volume);
        let fixture = fixture.crash(CrashMode::LoseAll, world(3));
        let volume = log().serve(&fixture, false);
        assert_eq!(fixture.world.block_on(read(&volume, 0, 80)).unwrap(), [7; 80], "a crash after {seconds} s");
    }
}
