//! Fail write k: for each management operation the backing's change number 0, 1, 2, … fails, until the operation passes
//! unharmed; then a crash. The state is old or new, and what was flushed before is there.

use engine::{CacheMode, RequestError, Volume, WritePolicy};
use lab::rig::{Rig, read, write};
use seam::sim::{CrashMode, Fault, Ops, Rule, SimDiskSpec, SimSeam, When, WorldSpec};

const MIB: u64 = 1 << 20;

/// Fails change `k` under `action`; true when the action passed unharmed.
fn survives(k: u64, action: impl AsyncFnOnce(&Rig, &Volume<SimSeam>) -> Result<(), RequestError>) -> bool {
    let rig = Rig::with_memory(1, 16 * MIB);
    let disk = rig.add_disk("disk", SimDiskSpec::new(8 * MIB));
    let volume = rig.attach("disk", |_| ()).unwrap();
    rig.world.block_on(write(&volume, 0, 64, 1)).unwrap();
    rig.world.block_on(volume.flush()).unwrap();
    // Far apart, so that each goes to the backing alone; and one over what was flushed.
    rig.world.block_on(write(&volume, 0, 8, 2)).unwrap();
    for place in 1..5 {
        rig.world.block_on(write(&volume, place * 1_024, 3, 2)).unwrap();
    }
    disk.add_fault(Rule::new(Fault::Error, Ops::CHANGE | Ops::FLUSH, When::Nth(k)));
    let result = rig.world.block_on(action(&rig, &volume));
    drop(volume);
    let rig = rig.crash(CrashMode::LoseAll, WorldSpec::new(2));
    let volume = rig.attach("disk", |_| ()).unwrap();
    let first = rig.world.block_on(read(&volume, 0, 64)).unwrap();
    assert!(first[8..].iter().all(|tag| *tag == 1), "change {k}: what was flushed is gone: {first:?}");
    assert!(first[..8].iter().all(|tag| [1, 2].contains(tag)), "change {k}: neither old nor new: {first:?}");
    for place in 1..5 {
        let here = rig.world.block_on(read(&volume, place * 1_024, 3)).unwrap();
        assert!(here.iter().all(|tag| [0, 2].contains(tag)), "change {k}: neither old nor new: {here:?}");
        assert!(result.is_err() || here == [2; 3], "change {k}: reported done, and {here:?} is on the backing");
    }
    result.is_ok()
}

fn all(action: impl AsyncFn(&Rig, &Volume<SimSeam>) -> Result<(), RequestError>) {
    let passed = (0..100).find(|k| survives(*k, &action));
    assert!(passed.is_some_and(|k| k > 0), "no change failed, or none ever passed: {passed:?}");
}

#[test]
fn case_1_removing_a_volume_is_old_or_new_whichever_write_fails() {
    all(async |rig, _| rig.core.detach("disk").await);
}

#[test]
fn case_1_destaging_all_is_old_or_new_whichever_write_fails() {
    all(async |_, volume| volume.destage_all().await);
}

#[test]
fn case_1_changing_the_policy_is_old_or_new_whichever_write_fails() {
    all(async |_, volume| volume.set_policy(WritePolicy::WriteThrough).await);
}

#[test]
fn case_1_pausing_is_old_or_new_whichever_write_fails() {
    all(async |_, volume| volume.set_mode(CacheMode::Paused).await);
}

#[test]
fn case_1_resizing_is_old_or_new_whichever_write_fails() {
    all(async |_, volume| volume.resize(Some(6 * MIB), false).await.map(drop));
}
