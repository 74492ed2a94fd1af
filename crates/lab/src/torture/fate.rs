//! Fate: makes the trouble that was drawn, one at a time on each backing, and says so before it does.

use std::rc::Rc;

use seam::sim::{Fault, Ops, Rule, When};
use seam::{Nanos, Seam};

use super::bench::{Life, Subject};
use super::history::OpKind;
use super::options::Trouble;
use crate::random::Random;

/// Troubles of a backing in one life; then it is left in peace, so that everything can end.
const TROUBLES_MAX: u32 = 60;

/// Trouble for subject `index` until clients have nothing more to begin.
pub async fn run(life: Rc<Life>, index: usize, mut random: Random) {
    let subject = &life.subjects[index];
    // A backing that reconnects faster than it answers never gets anywhere, and neither does a cache in front of it.
    let pause_max = life.options.trouble_pause.0.max(subject.options.latency.1.0 * 4);
    for _ in 0..TROUBLES_MAX {
        if life.spent() {
            break;
        }
        let pause = Nanos(random.between(1, pause_max));
        life.seam.sleep(pause).await;
        let trouble = random.pick(&life.options.troubles);
        begin(&life, subject, trouble, &mut random);
        let length = Nanos(random.between(1, pause_max * 2));
        life.seam.sleep(length).await;
        calm(&life, subject);
    }
    life.leave();
}

fn begin(life: &Life, subject: &Subject, trouble: Trouble, random: &mut Random) {
    let text = format!("trouble begins: {trouble:?}");
    let kind = if trouble == Trouble::Reconnects { OpKind::Event(text) } else { OpKind::Trouble(text) };
    subject.model.borrow_mut().note(kind, life.seam.now());
    match trouble {
        Trouble::Errors => {
            let share = random.pick(&[10_000, 100_000, 500_000]);
            strike(subject, Rule::new(Fault::Error, Ops::ALL, When::PerMillion(share)));
        }
        Trouble::Outage => strike(subject, Rule::new(Fault::Error, Ops::ALL, When::Always)),
        Trouble::FlushErrors => {
            let share = random.pick(&[300_000, 1_000_000]);
            strike(subject, Rule::new(Fault::Error, Ops::FLUSH, When::PerMillion(share)));
        }
        Trouble::Stalls => {
            let time = Nanos::from_millis(random.pick(&[5, 50, 1_000]));
            subject.control.add_fault(Rule::new(Fault::Stall(time), Ops::ALL, When::PerMillion(200_000)));
        }
        Trouble::Hangs => subject.control.add_fault(Rule::new(Fault::Hang, Ops::ALL, When::Always)),
        Trouble::UnreadableSectors | Trouble::BadSectors => {
            let unwritable = trouble == Trouble::BadSectors;
            let unit = u64::from(subject.options.logical_block);
            let blocks = subject.options.size_bytes / unit;
            let region = (blocks * u64::from(subject.options.region_percent) / 100).max(1);
            let first = random.below(region);
            let count = random.pick(&[1, 1, 2, 16]).min(blocks - first);
            let range = first * unit..(first + count) * unit;
            let ops = if unwritable { Ops::READ | Ops::CHANGE } else { Ops::READ };
            let rule = Rule { fault: Fault::Error, ops, when: When::Always, range: Some(range.clone()) };
            let text = format!("sectors {}..{} are bad", range.start / 512, range.end / 512);
            subject.model.borrow_mut().note(OpKind::Trouble(text), life.seam.now());
            subject.bad.borrow_mut().push((range, unwritable));
            subject.control.add_fault(rule);
        }
        Trouble::Reconnects => {
            subject.trouble.set(true);
            subject.control.reconnect();
            subject.model.borrow_mut().backing_forgot();
        }
    }
}

fn strike(subject: &Subject, rule: Rule) {
    subject.trouble.set(true);
    subject.control.add_fault(rule);
}

/// Ends all trouble of a subject.
pub fn calm(life: &Life, subject: &Subject) {
    subject.control.clear_faults();
    subject.control.answer_hung(subject.options.latency.1);
    sing(life, subject);
    let was_bad = !subject.bad.borrow().is_empty();
    if subject.trouble.is_on() || was_bad {
        subject.trouble.set(false);
        subject.trouble_ended.set(Some(life.seam.now()));
    }
    subject.bad.borrow_mut().clear();
    subject.model.borrow_mut().note(OpKind::Trouble("trouble ends".into()), life.seam.now());
}

/// Lets the canary, if there is one, spoil the subject's backing.
pub fn sing(life: &Life, subject: &Subject) {
    if let Some(fault) = life.options.canary {
        subject.control.add_fault(Rule::new(fault, Ops::ALL, When::PerMillion(20_000)));
    }
}
