//! An administrator of a volume at work while clients are: policies, modes, drains, detaching, resizing.

use std::rc::Rc;

use engine::{Backing, CacheMode, RequestError, VolumeSpec, WritePolicy};
use seam::{BLOCK_BYTES, Nanos, SECTOR_BYTES, Seam};

use super::bench::{Life, Subject};
use super::content::Tag;
use super::history::OpKind;
use super::model::Finding;
use crate::random::Random;

const SECTOR: u64 = SECTOR_BYTES as u64;

/// Number under which administrators go in the history.
const ADMIN: u16 = 100;

/// The administrator of subject `index` at work until clients have nothing more to begin.
pub async fn run(life: Rc<Life>, index: usize, mut random: Random) {
    let subject = &life.subjects[index];
    let pause_max_us = random.pick(&[1_000, 10_000, 100_000]);
    while !life.spent() {
        let pause = Nanos::from_micros(random.between(10, pause_max_us));
        life.seam.sleep(pause).await;
        match random.below(10) {
            0 | 1 => set_policy(&life, subject, random.pick(&WritePolicy::ALL).1).await,
            2 | 3 => {
                let mode = random.pick(&[CacheMode::Active, CacheMode::Active, CacheMode::Paused, CacheMode::Frozen]);
                set_mode(&life, subject, mode).await;
            }
            4 | 5 => {
                let bytes = subject.volume().invalidate();
                subject.model.borrow_mut().event(format!("invalidate dropped {bytes} bytes"), life.seam.now());
            }
            6 | 7 => {
                destage_all(&life, subject).await;
            }
            8 if life.options.resizes => resize(&life, subject, &mut random).await,
            _ => {
                if detach(&life, subject).await {
                    attach(&life, subject).await;
                }
            }
        }
    }
    life.leave();
}

async fn set_policy(life: &Life, subject: &Subject, policy: WritePolicy) {
    let volume = subject.volume();
    subject.expect_change(policy, volume.mode());
    event(life, subject, OpKind::Event(format!("set policy {policy}")), || volume.set_policy(policy)).await;
    subject.settle();
}

async fn set_mode(life: &Life, subject: &Subject, mode: CacheMode) {
    let volume = subject.volume();
    subject.expect_change(volume.policy(), mode);
    event(life, subject, OpKind::Event(format!("set mode {mode}")), || volume.set_mode(mode)).await;
    subject.settle();
}

/// Destages and holds the backing against the model; true when the destage succeeded.
pub async fn destage_all(life: &Life, subject: &Subject) -> bool {
    let volume = subject.volume();
    let (op, ok) = event(life, subject, OpKind::Drain("destage all".into()), || volume.destage_all()).await;
    if ok {
        check_drained(life, subject, op);
    }
    ok
}

/// Detaches and holds the backing against the model; true when the volume is gone.
pub async fn detach(life: &Life, subject: &Subject) -> bool {
    let name = subject.volume().name().to_owned();
    subject.detaching.set(true);
    let (op, ok) = event(life, subject, OpKind::Drain("detach".into()), || life.core.detach(&name)).await;
    if ok {
        check_drained(life, subject, op);
        if life.core.find(&name).is_some() {
            let what = format!("volume {name} is still there after it was detached");
            life.report(subject, Err(Finding { what, sector: None }));
        }
    } else {
        subject.detaching.set(false);
    }
    ok
}

async fn attach(life: &Life, subject: &Subject) {
    let old = subject.volume();
    let spec = VolumeSpec { policy: old.policy(), ..old.spec().clone() };
    drop(old);
    let disk = subject.disk.clone();
    match life.core.attach(spec, Backing::plain(disk)) {
        Ok(volume) => *subject.volume.borrow_mut() = volume,
        Err(error) => life.report(subject, Err(Finding { what: format!("attach failed: {error}"), sector: None })),
    }
    subject.settle();
    subject.detaching.set(false);
    subject.model.borrow_mut().event("attached again".into(), life.seam.now());
}

async fn resize(life: &Life, subject: &Subject, random: &mut Random) {
    subject.close(&life.seam).await;
    let discard = random.percent(50);
    // What is discarded is discarded in whole blocks.
    let unit = if discard { BLOCK_BYTES as u64 } else { u64::from(subject.options.logical_block) };
    let largest = subject.options.size_bytes / unit;
    let size = random.between(largest / 2, largest) * unit;
    let volume = subject.volume();
    let old = volume.size_bytes();
    subject.resizing.set(Some(size / SECTOR));
    let text = format!("resize to {size} bytes (discard dirty: {discard})");
    let (op, marks) = life.begin(subject, ADMIN, OpKind::Event(text), 0..0, false);
    let result = volume.resize(Some(size), discard).await.map(drop);
    let refused = result.is_err() && size < old && !discard;
    if refused {
        let outcome = super::history::Outcome::Failed("refused".into());
        subject.model.borrow_mut().end(op, outcome, false, life.seam.now());
    } else {
        life.end(subject, op, &marks, &result);
    }
    let now = subject.volume().size_bytes();
    let expected = if result.is_ok() { size } else { old };
    if now != expected {
        let what = format!("after a resize the volume has {now} bytes instead of {expected}");
        life.report(subject, Err(Finding { what, sector: None }));
    }
    subject.model.borrow_mut().resize(now / SECTOR, life.seam.now());
    subject.resizing.set(None);
    subject.open();
}

/// Runs `action` as an event of the history.
async fn event<F: Future<Output = Result<(), RequestError>>>(
    life: &Life,
    subject: &Subject,
    kind: OpKind,
    action: impl FnOnce() -> F,
) -> (u32, bool) {
    let (op, marks) = life.begin(subject, ADMIN, kind, 0..0, false);
    let result = action().await;
    let ok = life.end(subject, op, &marks, &result);
    (op, ok)
}

fn check_drained(life: &Life, subject: &Subject, op: u32) {
    let checked = subject.model.borrow().check_drained(op, |sector| Tag(subject.control.durable_tag(sector)));
    life.report(subject, checked);
}

/// Holds the counters of a volume that was drained and that nobody writes to against what they must say.
pub fn check_nothing_dirty(life: &Life, subject: &Subject) {
    let stats = subject.volume().stats();
    if stats.dirty_bytes + stats.written_bytes > 0 {
        let what = format!("drained, yet {} bytes dirty and {} written", stats.dirty_bytes, stats.written_bytes);
        life.report(subject, Err(Finding { what, sector: None }));
    }
}
