//! Fail write k: for each management operation change number 0, 1, 2, … of the backing fails, until the operation
//! succeeds; then the world crashes. The state afterwards is old or new, and flushed data is there.

use engine::{CacheMode, RequestError, Volume, WritePolicy};
use lab::fixture::{Fixture, read, write};
use seam::sim::{CrashMode, Fault, Ops, Rule, SimDiskSpec, SimSeam, When, WorldSpec};

const MIB: u64 = 1 << 20;

/// Fails change `k` during `action`; true when the action succeeded anyway.
fn succeeds_despite_failure(
    k: u64,
    action: impl AsyncFnOnce(&Fixture, &Volume<SimSeam>) -> Result<(), RequestError>,
) -> bool {
    let fixture = Fixture::with_memory(1, 16 * MIB);
    let disk = fixture.add_disk("disk", SimDiskSpec::new(8 * MIB));
    let volume = fixture.attach("disk", |_| ()).unwrap();
    fixture.world.block_on(write(&volume, 0, 64, 1)).unwrap();
    fixture.world.block_on(volume.flush()).unwrap();
    // The blocks are far apart, so that each is a separate backing write; one overwrites flushed data.
    fixture.world.block_on(write(&volume, 0, 8, 2)).unwrap();
    for position in 1..5 {
        fixture.world.block_on(write(&volume, position * 1_024, 3, 2)).unwrap();
    }
    disk.add_fault(Rule::new(Fault::Error, Ops::CHANGE | Ops::FLUSH, When::Nth(k)));
    let result = fixture.world.block_on(action(&fixture, &volume));
    drop(volume);
    let fixture = fixture.crash(CrashMode::LoseAll, WorldSpec::new(2));
    let volume = fixture.attach("disk", |_| ()).unwrap();
    let first = fixture.world.block_on(read(&volume, 0, 64)).unwrap();
    assert!(first[8..].iter().all(|tag| *tag == 1), "change {k}: flushed data is lost: {first:?}");
    assert!(first[..8].iter().all(|tag| [1, 2].contains(tag)), "change {k}: neither old nor new: {first:?}");
    for position in 1..5 {
        let content = fixture.world.block_on(read(&volume, position * 1_024, 3)).unwrap();
        assert!(content.iter().all(|tag| [0, 2].contains(tag)), "change {k}: neither old nor new: {content:?}");
        assert!(
            result.is_err() || content == [2; 3],
            "change {k}: reported success, but the backing holds {content:?}"
        );
    }
    result.is_ok()
}

fn check_every_change(action: impl AsyncFn(&Fixture, &Volume<SimSeam>) -> Result<(), RequestError>) {
    let first_success = (0..100).find(|k| succeeds_despite_failure(*k, &action));
    assert!(
        first_success.is_some_and(|k| k > 0),
        "no change failed, or the operation never succeeded: {first_success:?}"
    );
}

#[test]
fn case_1_detach_is_old_or_new_whichever_write_fails() {
    check_every_change(async |fixture, _| fixture.core.detach("disk").await);
}

#[test]
fn case_1_destage_all_is_old_or_new_whichever_write_fails() {
    check_every_change(async |_, volume| volume.destage_all().await);
}

#[test]
fn case_1_policy_change_is_old_or_new_whichever_write_fails() {
    check_every_change(async |_, volume| volume.set_policy(WritePolicy::WriteThrough).await);
}

#[test]
fn case_1_pause_is_old_or_new_whichever_write_fails() {
    check_every_change(async |_, volume| volume.set_mode(CacheMode::Paused).await);
}

#[test]
fn case_1_resize_is_old_or_new_whichever_write_fails() {
    check_every_change(async |_, volume| volume.resize(Some(6 * MIB), false).await.map(drop));
}
