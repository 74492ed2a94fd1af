//! What is to outlast a restart does, from the moment on that it was acknowledged, whenever the crash comes.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use scsi::{AddError, RecordError, Status};
use seam::{Nanos, Seam};

use crate::initiator::Client;
use crate::reserving::{
    EXCLUSIVE, EXCLUSIVE_ALL, PREEMPT, REGISTER, REGISTER_AND_IGNORE, RELEASE, RESERVE, held, keys, out_with,
};
use crate::setting::{Setting, unit, with_target, world};

/// Bit of a parameter list: it is to outlast a restart.
const APTPL: u8 = 1;

type Seen = (Vec<u64>, Option<(u64, u8)>);

/// What one step of an initiator makes of registrations.
const STEPS: [(usize, u8, u8, u64, u64); 8] = [
    (0, REGISTER, 0, 0, 1),
    (1, REGISTER, 0, 0, 2),
    (0, RESERVE, EXCLUSIVE, 1, 0),
    (1, PREEMPT, EXCLUSIVE_ALL, 2, 1),
    (0, REGISTER_AND_IGNORE, 0, 0, 3),
    (1, RELEASE, EXCLUSIVE_ALL, 2, 0),
    (0, RESERVE, EXCLUSIVE, 3, 0),
    (1, REGISTER, 0, 2, 0),
];

async fn seen(client: &Client) -> Seen {
    (keys(client).await, held(client).await)
}

#[test]
fn a_crash_finds_what_was_acknowledged_or_the_step_under_way() {
    // What each step makes of it.
    let history: Rc<RefCell<Vec<Seen>>> = Rc::default();
    with_target(1, async |_, setting| {
        let clients = [Client::new(&setting, "iqn.a:1").await, Client::new(&setting, "iqn.a:2").await];
        let reader = Client::new(&setting, "iqn.a:3").await;
        let now = seen(&reader).await;
        history.borrow_mut().push(now);
        for (who, action, kind, key, new) in STEPS {
            assert_eq!(out_with(&clients[who], action, kind, key, new, APTPL, &[]).await.status, Status::Good);
            clients[1 - who].send(&[0; 6], 0, &[]).await;
            let now = seen(&reader).await;
            history.borrow_mut().push(now);
        }
    });
    let mut between = 0;
    for seed in 0..200 {
        let (kept, acknowledged) = (Rc::default(), Rc::new(Cell::new(0)));
        let first = world(seed);
        let seam = first.seam();
        first.block_on(async {
            let setting = Rc::new(Setting::empty(&seam, Rc::clone(&kept)).await);
            setting.add(0, "one");
            let clients = [Client::new(&setting, "iqn.a:1").await, Client::new(&setting, "iqn.a:2").await];
            let acknowledged = Rc::clone(&acknowledged);
            seam.spawn(async move {
                for (who, action, kind, key, new) in STEPS {
                    out_with(&clients[who], action, kind, key, new, APTPL, &[]).await.good();
                    acknowledged.set(acknowledged.get() + 1);
                    clients[1 - who].send(&[0; 6], 0, &[]).await;
                }
            });
            seam.sleep(Nanos::from_micros(seam.random() % 4_000)).await;
        });
        // The crash: what was kept by now is all that is left.
        let kept = Rc::new(RefCell::new(kept.take()));
        drop(first);
        let second = world(seed);
        let seam = second.seam();
        second.block_on(async {
            let setting = Rc::new(Setting::empty(&seam, kept).await);
            setting.add(0, "one");
            let found = seen(&Client::new(&setting, "iqn.a:3").await).await;
            let (history, at) = (history.borrow(), acknowledged.get());
            let under_way = history.get(at + 1) == Some(&found);
            between += u32::from(under_way && history[at] != found);
            assert!(history[at] == found || under_way, "seed {seed} after {at} steps: {found:?}");
        });
    }
    assert!(between > 10, "crashes between keeping and answering were tried");
}

#[test]
fn what_cannot_be_kept_is_not_done() {
    with_target(2, async |_, setting| {
        let client = Client::new(&setting, "iqn.a:1").await;
        *setting.shelf.fails.borrow_mut() = true;
        assert_eq!(out_with(&client, REGISTER, 0, 0, 1, APTPL, &[]).await.sense(), (4, 0x44, 0));
        assert_eq!(keys(&client).await, [0_u64; 0]);
        // What need not outlast a restart needs nothing kept.
        assert_eq!(out_with(&client, REGISTER, 0, 0, 1, 0, &[]).await.status, Status::Good);
        assert_eq!(keys(&client).await, [1]);
    });
}

#[test]
fn what_is_not_to_outlast_a_restart_any_more_is_forgotten_by_the_keeper() {
    with_target(3, async |_, setting| {
        let client = Client::new(&setting, "iqn.a:1").await;
        out_with(&client, REGISTER, 0, 0, 1, APTPL, &[]).await.good();
        assert!(!setting.shelf.kept.borrow()[&11].is_empty());
        out_with(&client, REGISTER, 0, 1, 2, 0, &[]).await.good();
        assert!(setting.shelf.kept.borrow()[&11].is_empty());
    });
}

#[test]
fn a_unit_whose_record_is_damaged_is_not_served_as_if_it_had_none() {
    with_target(4, async |_, setting| {
        let damaged = unit(setting.volume("one"), 7, b"HSPR and something else".to_vec());
        assert_eq!(setting.target.add(damaged), Err(AddError::Kept(RecordError::Damaged)));
    });
}
