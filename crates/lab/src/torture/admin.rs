//! An administrator that acts on a volume while clients use it: policies, modes, drains, detach, resize.

use std::rc::Rc;

use engine::{Backing, CacheMode, RequestError, VolumeSpec, WritePolicy};
use seam::{BLOCK_BYTES, Nanos, SECTOR_BYTES, Seam};

use super::history::OpKind;
use super::model::Finding;
use super::session::{Session, Subject};
use crate::content::Tag;
use crate::random::Random;

const SECTOR: u64 = SECTOR_BYTES as u64;

/// Client number of administrators in the history.
const ADMIN: u16 = 100;

/// Runs the administrator of subject `index` until the clients have no operations left.
pub async fn run(session: Rc<Session>, index: usize, mut random: Random) {
    let subject = &session.subjects[index];
    let pause_max_us = random.pick(&[1_000, 10_000, 100_000]);
    while !session.is_exhausted() {
        let pause = Nanos::from_micros(random.between(10, pause_max_us));
        session.seam.sleep(pause).await;
        match random.below(10) {
            0 | 1 => set_policy(&session, subject, random.pick(&WritePolicy::ALL).1).await,
            2 | 3 => {
                let mode = random.pick(&[CacheMode::Active, CacheMode::Active, CacheMode::Paused, CacheMode::Frozen]);
                set_mode(&session, subject, mode).await;
            }
            4 | 5 => {
                let bytes = subject.volume().invalidate();
                subject.model.borrow_mut().event(format!("invalidate dropped {bytes} bytes"), session.seam.now());
            }
            6 | 7 => {
                destage_all(&session, subject).await;
            }
            8 if session.options.resizes => resize(&session, subject, &mut random).await,
            _ => {
                if detach(&session, subject).await {
                    attach(&session, subject).await;
                }
            }
        }
    }
    session.leave();
}

async fn set_policy(session: &Session, subject: &Subject, policy: WritePolicy) {
    let volume = subject.volume();
    subject.expect_either(policy, volume.mode());
    event(session, subject, OpKind::Event(format!("set policy {policy}")), || volume.set_policy(policy)).await;
    subject.sync_expectations();
}

async fn set_mode(session: &Session, subject: &Subject, mode: CacheMode) {
    let volume = subject.volume();
    subject.expect_either(volume.policy(), mode);
    event(session, subject, OpKind::Event(format!("set mode {mode}")), || volume.set_mode(mode)).await;
    subject.sync_expectations();
}

/// Destages all dirty data and checks the backing against the model; true when the destage succeeded.
pub async fn destage_all(session: &Session, subject: &Subject) -> bool {
    let volume = subject.volume();
    let (op, ok) = event(session, subject, OpKind::Drain("destage all".into()), || volume.destage_all()).await;
    if ok {
        check_drained(session, subject, op);
    }
    ok
}

/// Detaches the volume and checks the backing against the model; true when it succeeded.
pub async fn detach(session: &Session, subject: &Subject) -> bool {
    let name = subject.volume().name().to_owned();
    subject.detaching.set(true);
    let (op, ok) = event(session, subject, OpKind::Drain("detach".into()), || session.core.detach(&name)).await;
    if ok {
        check_drained(session, subject, op);
        if session.core.find(&name).is_some() {
            let message = format!("volume {name} is still attached after a detach");
            session.report(subject, Err(Finding { message, sector: None }));
        }
    } else {
        subject.detaching.set(false);
    }
    ok
}

async fn attach(session: &Session, subject: &Subject) {
    let old = subject.volume();
    let spec = VolumeSpec { policy: old.policy(), ..old.spec().clone() };
    drop(old);
    let disk = subject.disk.clone();
    match session.core.attach(spec, Backing::plain(disk)) {
        Ok(volume) => *subject.volume.borrow_mut() = volume,
        Err(error) => {
            session.report(subject, Err(Finding { message: format!("attach failed: {error}"), sector: None }))
        }
    }
    subject.sync_expectations();
    subject.detaching.set(false);
    subject.model.borrow_mut().event("attached again".into(), session.seam.now());
}

async fn resize(session: &Session, subject: &Subject, random: &mut Random) {
    subject.close(&session.seam).await;
    let discard = random.percent(50);
    // The engine discards dirty data in whole blocks.
    let unit = if discard { BLOCK_BYTES as u64 } else { u64::from(subject.options.logical_block) };
    let largest = subject.options.size_bytes / unit;
    let size = random.between(largest / 2, largest) * unit;
    let volume = subject.volume();
    let old = volume.size_bytes();
    subject.resizing.set(Some(size / SECTOR));
    let text = format!("resize to {size} bytes (discard dirty: {discard})");
    let (op, marks) = session.begin(subject, ADMIN, OpKind::Event(text), 0..0, false);
    let result = volume.resize(Some(size), discard).await.map(drop);
    let refused = result.is_err() && size < old && !discard;
    if refused {
        let outcome = super::history::Outcome::Failed("refused".into());
        subject.model.borrow_mut().end(op, outcome, false, session.seam.now());
    } else {
        session.end(subject, op, &marks, &result);
    }
    let now = subject.volume().size_bytes();
    let expected = if result.is_ok() { size } else { old };
    if now != expected {
        let message = format!("after a resize the volume has {now} bytes instead of {expected}");
        session.report(subject, Err(Finding { message, sector: None }));
    }
    subject.model.borrow_mut().resize(now / SECTOR, session.seam.now());
    subject.resizing.set(None);
    subject.open();
}

/// Runs `action` as an event of the history.
async fn event<F: Future<Output = Result<(), RequestError>>>(
    session: &Session,
    subject: &Subject,
    kind: OpKind,
    action: impl FnOnce() -> F,
) -> (u32, bool) {
    let (op, marks) = session.begin(subject, ADMIN, kind, 0..0, false);
    let result = action().await;
    let ok = session.end(subject, op, &marks, &result);
    (op, ok)
}

fn check_drained(session: &Session, subject: &Subject, op: u32) {
    let checked = subject.model.borrow().check_drained(op, |sector| Tag(subject.control.durable_tag(sector)));
    session.report(subject, checked);
}

/// Checks that the counters of a drained, idle volume show no dirty data.
pub fn check_nothing_dirty(session: &Session, subject: &Subject) {
    let stats = subject.volume().stats();
    if stats.dirty_bytes + stats.written_bytes > 0 {
        let message = format!("drained, yet {} bytes dirty and {} written", stats.dirty_bytes, stats.written_bytes);
        session.report(subject, Err(Finding { message, sector: None }));
    }
}
