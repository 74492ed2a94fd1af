//! Injects the drawn faults, one at a time per backing, and records each in the history before it starts.

use std::rc::Rc;

use seam::sim::{Fault, Ops, Rule, When};
use seam::{Nanos, SECTOR_BYTES, Seam};

use super::history::OpKind;
use super::options::FaultKind;
use super::session::{Session, TestVolume};
use crate::random::Random;

const SECTOR: u64 = SECTOR_BYTES as u64;
/// Faults per backing in one session. Afterwards the backing stays healthy, so that every session can end.
const FAULTS_MAX: u32 = 60;

/// Injects faults into the backing of test volume `index` until the clients have no operations left.
pub async fn run(session: Rc<Session>, index: usize, mut random: Random) {
    let test_volume = &session.test_volumes[index];
    // A backing that reconnects before it completes a request makes no progress, nor does a cache in front of it.
    let pause_max = session.options.fault_pause.0.max(test_volume.options.latency.1.0 * 4);
    for _ in 0..FAULTS_MAX {
        if session.is_exhausted() {
            break;
        }
        let pause = Nanos(random.between(1, pause_max));
        session.seam.sleep(pause).await;
        let fault = random.pick(&session.options.faults);
        begin_fault(&session, test_volume, fault, &mut random);
        let duration = Nanos(random.between(1, pause_max * 2));
        session.seam.sleep(duration).await;
        end_faults(&session, test_volume);
    }
    session.leave();
}

fn begin_fault(session: &Session, test_volume: &TestVolume, fault: FaultKind, random: &mut Random) {
    let text = format!("fault begins: {fault:?}");
    let kind = if fault == FaultKind::Reconnects { OpKind::Event(text) } else { OpKind::Fault(text) };
    test_volume.model.borrow_mut().record(kind, session.seam.now());
    match fault {
        FaultKind::Errors => {
            let per_million = random.pick(&[10_000, 100_000, 500_000]);
            inject(test_volume, Rule::new(Fault::Error, Ops::ALL, When::PerMillion(per_million)));
        }
        FaultKind::Outage => inject(test_volume, Rule::new(Fault::Error, Ops::ALL, When::Always)),
        FaultKind::FlushErrors => {
            let per_million = random.pick(&[300_000, 1_000_000]);
            inject(test_volume, Rule::new(Fault::Error, Ops::FLUSH, When::PerMillion(per_million)));
        }
        FaultKind::Stalls => {
            let time = Nanos::from_millis(random.pick(&[5, 50, 1_000]));
            test_volume.control.add_fault(Rule::new(Fault::Stall(time), Ops::ALL, When::PerMillion(200_000)));
        }
        FaultKind::Hangs => test_volume.control.add_fault(Rule::new(Fault::Hang, Ops::ALL, When::Always)),
        FaultKind::UnreadableSectors | FaultKind::BadSectors => {
            let unwritable = fault == FaultKind::BadSectors;
            let unit = u64::from(test_volume.options.logical_block);
            let blocks = test_volume.options.size_bytes / unit;
            let region = (blocks * u64::from(test_volume.options.region_percent) / 100).max(1);
            let first = random.below(region);
            let count = random.pick(&[1, 1, 2, 16]).min(blocks - first);
            let range = first * unit..(first + count) * unit;
            let ops = if unwritable { Ops::READ | Ops::CHANGE } else { Ops::READ };
            let rule = Rule { fault: Fault::Error, ops, when: When::Always, range: Some(range.clone()) };
            let text = format!("sectors {}..{} are bad", range.start / SECTOR, range.end / SECTOR);
            test_volume.model.borrow_mut().record(OpKind::Fault(text), session.seam.now());
            test_volume.bad_ranges.borrow_mut().push((range, unwritable));
            test_volume.control.add_fault(rule);
        }
        FaultKind::Reconnects => {
            test_volume.may_fail_requests.set(true);
            test_volume.control.reconnect();
            test_volume.model.borrow_mut().backing_lost_unflushed();
        }
    }
}

/// Adds a rule that may fail any request.
fn inject(test_volume: &TestVolume, rule: Rule) {
    test_volume.may_fail_requests.set(true);
    test_volume.control.add_fault(rule);
}

/// Ends all faults of a test volume.
pub fn end_faults(session: &Session, test_volume: &TestVolume) {
    test_volume.control.clear_faults();
    test_volume.control.complete_hung(test_volume.options.latency.1);
    add_canary(session, test_volume);
    let was_bad = !test_volume.bad_ranges.borrow().is_empty();
    if test_volume.may_fail_requests.is_on() || was_bad {
        test_volume.may_fail_requests.set(false);
        test_volume.fault_ended.set(Some(session.seam.now()));
    }
    test_volume.bad_ranges.borrow_mut().clear();
    test_volume.model.borrow_mut().record(OpKind::Fault("fault ends".into()), session.seam.now());
}

/// Adds the canary's fault, if there is a canary, to the test volume's backing.
pub fn add_canary(session: &Session, test_volume: &TestVolume) {
    if let Some(fault) = session.options.canary {
        test_volume.control.add_fault(Rule::new(fault, Ops::ALL, When::PerMillion(20_000)));
    }
}
