//! Injects the drawn faults, one at a time per backing, and records each in the history before it starts.

use std::rc::Rc;

use seam::sim::{Fault, Ops, Rule, When};
use seam::{Nanos, Seam};

use super::history::OpKind;
use super::options::FaultKind;
use super::session::{Session, Subject};
use crate::random::Random;

/// Faults per backing in one session. Afterwards the backing stays healthy, so that every session can end.
const FAULTS_MAX: u32 = 60;

/// Injects faults into the backing of subject `index` until the clients have no operations left.
pub async fn run(session: Rc<Session>, index: usize, mut random: Random) {
    let subject = &session.subjects[index];
    // A backing that reconnects before it completes a request makes no progress, nor does a cache in front of it.
    let pause_max = session.options.fault_pause.0.max(subject.options.latency.1.0 * 4);
    for _ in 0..FAULTS_MAX {
        if session.is_exhausted() {
            break;
        }
        let pause = Nanos(random.between(1, pause_max));
        session.seam.sleep(pause).await;
        let fault = random.pick(&session.options.faults);
        begin_fault(&session, subject, fault, &mut random);
        let length = Nanos(random.between(1, pause_max * 2));
        session.seam.sleep(length).await;
        end_faults(&session, subject);
    }
    session.leave();
}

fn begin_fault(session: &Session, subject: &Subject, fault: FaultKind, random: &mut Random) {
    let text = format!("fault begins: {fault:?}");
    let kind = if fault == FaultKind::Reconnects { OpKind::Event(text) } else { OpKind::Fault(text) };
    subject.model.borrow_mut().record(kind, session.seam.now());
    match fault {
        FaultKind::Errors => {
            let share = random.pick(&[10_000, 100_000, 500_000]);
            inject(subject, Rule::new(Fault::Error, Ops::ALL, When::PerMillion(share)));
        }
        FaultKind::Outage => inject(subject, Rule::new(Fault::Error, Ops::ALL, When::Always)),
        FaultKind::FlushErrors => {
            let share = random.pick(&[300_000, 1_000_000]);
            inject(subject, Rule::new(Fault::Error, Ops::FLUSH, When::PerMillion(share)));
        }
        FaultKind::Stalls => {
            let time = Nanos::from_millis(random.pick(&[5, 50, 1_000]));
            subject.control.add_fault(Rule::new(Fault::Stall(time), Ops::ALL, When::PerMillion(200_000)));
        }
        FaultKind::Hangs => subject.control.add_fault(Rule::new(Fault::Hang, Ops::ALL, When::Always)),
        FaultKind::UnreadableSectors | FaultKind::BadSectors => {
            let unwritable = fault == FaultKind::BadSectors;
            let unit = u64::from(subject.options.logical_block);
            let blocks = subject.options.size_bytes / unit;
            let region = (blocks * u64::from(subject.options.region_percent) / 100).max(1);
            let first = random.below(region);
            let count = random.pick(&[1, 1, 2, 16]).min(blocks - first);
            let range = first * unit..(first + count) * unit;
            let ops = if unwritable { Ops::READ | Ops::CHANGE } else { Ops::READ };
            let rule = Rule { fault: Fault::Error, ops, when: When::Always, range: Some(range.clone()) };
            let text = format!("sectors {}..{} are bad", range.start / 512, range.end / 512);
            subject.model.borrow_mut().record(OpKind::Fault(text), session.seam.now());
            subject.bad.borrow_mut().push((range, unwritable));
            subject.control.add_fault(rule);
        }
        FaultKind::Reconnects => {
            subject.may_fail_requests.set(true);
            subject.control.reconnect();
            subject.model.borrow_mut().backing_lost_unflushed();
        }
    }
}

fn inject(subject: &Subject, rule: Rule) {
    subject.may_fail_requests.set(true);
    subject.control.add_fault(rule);
}

/// Ends all faults of a subject.
pub fn end_faults(session: &Session, subject: &Subject) {
    subject.control.clear_faults();
    subject.control.complete_hung(subject.options.latency.1);
    add_canary(session, subject);
    let was_bad = !subject.bad.borrow().is_empty();
    if subject.may_fail_requests.is_on() || was_bad {
        subject.may_fail_requests.set(false);
        subject.fault_ended.set(Some(session.seam.now()));
    }
    subject.bad.borrow_mut().clear();
    subject.model.borrow_mut().record(OpKind::Fault("fault ends".into()), session.seam.now());
}

/// Adds the canary's fault, if there is a canary, to the subject's backing.
pub fn add_canary(session: &Session, subject: &Subject) {
    if let Some(fault) = session.options.canary {
        subject.control.add_fault(Rule::new(fault, Ops::ALL, When::PerMillion(20_000)));
    }
}
