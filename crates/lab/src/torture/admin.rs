//! An administrator that acts on a volume while clients use it: policies, modes, drains, detach, resize.

use std::rc::Rc;

use engine::{Backing, CacheMode, RequestError, VolumeSpec, WritePolicy};
use seam::{BLOCK_BYTES, Nanos, SECTOR_BYTES, Seam};

use super::history::OpKind;
use super::model::Finding;
use super::session::{Session, TestVolume};
use crate::content::Tag;
use crate::random::Random;

const SECTOR: u64 = SECTOR_BYTES as u64;

/// Client number of administrators in the history.
const ADMIN_CLIENT: u16 = 100;

/// Runs the administrator of test volume `index` until the clients have no operations left.
pub async fn run(session: Rc<Session>, index: usize, mut random: Random) {
    let test_volume = &session.test_volumes[index];
    let pause_max_us = random.pick(&[1_000, 10_000, 100_000]);
    while !session.is_exhausted() {
        let pause = Nanos::from_micros(random.between(10, pause_max_us));
        session.seam.sleep(pause).await;
        match random.below(10) {
            0 | 1 => set_policy(&session, test_volume, random.pick(&WritePolicy::ALL).1).await,
            2 | 3 => {
                let mode = random.pick(&[CacheMode::Active, CacheMode::Active, CacheMode::Paused, CacheMode::Frozen]);
                set_mode(&session, test_volume, mode).await;
            }
            4 | 5 => {
                let bytes = test_volume.volume().invalidate();
                test_volume.model.borrow_mut().event(format!("invalidate dropped {bytes} bytes"), session.seam.now());
            }
            6 | 7 => {
                destage_all(&session, test_volume).await;
            }
            8 if session.options.resizes => resize(&session, test_volume, &mut random).await,
            _ => {
                if detach(&session, test_volume).await {
                    attach(&session, test_volume).await;
                }
            }
        }
    }
    session.leave();
}

async fn set_policy(session: &Session, test_volume: &TestVolume, policy: WritePolicy) {
    let volume = test_volume.volume();
    test_volume.expect_either(policy, volume.mode());
    run_as_event(session, test_volume, OpKind::Event(format!("set policy {policy}")), || volume.set_policy(policy))
        .await;
    test_volume.sync_expectations();
}

async fn set_mode(session: &Session, test_volume: &TestVolume, mode: CacheMode) {
    let volume = test_volume.volume();
    test_volume.expect_either(volume.policy(), mode);
    run_as_event(session, test_volume, OpKind::Event(format!("set mode {mode}")), || volume.set_mode(mode)).await;
    test_volume.sync_expectations();
}

/// Destages all dirty data and checks the backing against the model; true when the destage succeeded.
pub async fn destage_all(session: &Session, test_volume: &TestVolume) -> bool {
    let volume = test_volume.volume();
    let (op, ok) =
        run_as_event(session, test_volume, OpKind::Drain("destage all".into()), || volume.destage_all()).await;
    if ok {
        check_drained(session, test_volume, op);
    }
    ok
}

/// Detaches the volume and checks the backing against the model; true when it succeeded.
pub async fn detach(session: &Session, test_volume: &TestVolume) -> bool {
    let name = test_volume.volume().name().to_owned();
    test_volume.detaching.set(true);
    let (op, ok) =
        run_as_event(session, test_volume, OpKind::Drain("detach".into()), || session.core.detach(&name)).await;
    if ok {
        check_drained(session, test_volume, op);
        if session.core.find(&name).is_some() {
            let message = format!("volume {name} is still attached after a detach");
            session.report(test_volume, Err(Finding { message, sector: None }));
        }
    } else {
        test_volume.detaching.set(false);
    }
    ok
}

async fn attach(session: &Session, test_volume: &TestVolume) {
    let old = test_volume.volume();
    let spec = VolumeSpec { policy: old.policy(), ..old.spec().clone() };
    drop(old);
    let disk = test_volume.disk.clone();
    match session.core.attach_recovered(spec, Backing::plain(disk)).await {
        Ok(volume) => *test_volume.volume.borrow_mut() = volume,
        Err(error) => {
            session.report(test_volume, Err(Finding { message: format!("attach failed: {error}"), sector: None }))
        }
    }
    test_volume.sync_expectations();
    test_volume.detaching.set(false);
    test_volume.model.borrow_mut().event("attached again".into(), session.seam.now());
}

async fn resize(session: &Session, test_volume: &TestVolume, random: &mut Random) {
    test_volume.close(&session.seam).await;
    let discard = random.percent(50);
    // The engine discards dirty data in whole blocks.
    let unit = if discard { BLOCK_BYTES as u64 } else { u64::from(test_volume.options.logical_block) };
    let units_max = test_volume.options.size_bytes / unit;
    let size = random.between(units_max / 2, units_max) * unit;
    let volume = test_volume.volume();
    let size_before = volume.size_bytes();
    test_volume.resizing.set(Some(size / SECTOR));
    let text = format!("resize to {size} bytes (discard dirty: {discard})");
    let (op, at_start) = session.begin(test_volume, ADMIN_CLIENT, OpKind::Event(text), 0..0, false);
    let result = volume.resize(Some(size), discard).await.map(drop);
    let refused = result.is_err() && size < size_before && !discard;
    if refused {
        let outcome = super::history::Outcome::Failed("refused".into());
        test_volume.model.borrow_mut().end(op, outcome, false, session.seam.now());
    } else {
        session.end(test_volume, op, &at_start, &result);
    }
    let size_after = test_volume.volume().size_bytes();
    let expected = if result.is_ok() { size } else { size_before };
    if size_after != expected {
        let message = format!("after a resize the volume has {size_after} bytes instead of {expected}");
        session.report(test_volume, Err(Finding { message, sector: None }));
    }
    test_volume.model.borrow_mut().resize(size_after / SECTOR, session.seam.now());
    test_volume.resizing.set(None);
    test_volume.open();
}

/// Runs `action` and records it in the history; returns its number and whether it succeeded.
async fn run_as_event<F: Future<Output = Result<(), RequestError>>>(
    session: &Session,
    test_volume: &TestVolume,
    kind: OpKind,
    action: impl FnOnce() -> F,
) -> (u32, bool) {
    let (op, at_start) = session.begin(test_volume, ADMIN_CLIENT, kind, 0..0, false);
    let result = action().await;
    let ok = session.end(test_volume, op, &at_start, &result);
    (op, ok)
}

fn check_drained(session: &Session, test_volume: &TestVolume, op: u32) {
    let checked = test_volume.model.borrow().check_drained(op, |sector| Tag(test_volume.control.durable_tag(sector)));
    session.report(test_volume, checked);
}

/// Checks that the counters of a drained, idle volume show no dirty data.
pub fn check_nothing_dirty(session: &Session, test_volume: &TestVolume) {
    let stats = test_volume.volume().stats();
    if stats.dirty_bytes + stats.written_bytes > 0 {
        let message = format!("drained, yet {} bytes dirty and {} written", stats.dirty_bytes, stats.written_bytes);
        session.report(test_volume, Err(Finding { message, sector: None }));
    }
}
