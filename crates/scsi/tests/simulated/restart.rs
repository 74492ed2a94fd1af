//! Registrations with APTPL survive a restart from their acknowledgement on, whenever the crash comes.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use engine::VolumeId;
use scsi::{AddError, RecordError, Status};
use seam::{Nanos, Seam};

use crate::codes::{APTPL, INTERNAL_TARGET_FAILURE, TEST_UNIT_READY};
use crate::fixture::{Fixture, unit, with_target, world};
use crate::initiator::Client;
use crate::reservations::{
    EXCLUSIVE, EXCLUSIVE_ALL, PREEMPT, REGISTER, REGISTER_AND_IGNORE, RELEASE, RESERVE, current_reservation, keys,
    out_with,
};

/// All registered keys, and key and type of the reservation.
type ReservationView = (Vec<u64>, Option<(u64, u8)>);

/// Steps of two initiators: (initiator, service action, type, key, new key).
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

async fn reservation_view(client: &Client) -> ReservationView {
    (keys(client).await, current_reservation(client).await)
}

#[test]
fn crash_preserves_acknowledged_or_current_step() {
    // State after each step.
    let history: Rc<RefCell<Vec<ReservationView>>> = Rc::default();
    with_target(1, async |_, fixture| {
        let clients = [Client::new(&fixture, "iqn.a:1").await, Client::new(&fixture, "iqn.a:2").await];
        let reader = Client::new(&fixture, "iqn.a:3").await;
        let now = reservation_view(&reader).await;
        history.borrow_mut().push(now);
        for (client, action, kind, key, new) in STEPS {
            assert_eq!(out_with(&clients[client], action, kind, key, new, APTPL, &[]).await.status, Status::Good);
            clients[1 - client].send(&TEST_UNIT_READY, 0, &[]).await;
            let now = reservation_view(&reader).await;
            history.borrow_mut().push(now);
        }
    });
    let mut stored_unacknowledged = 0;
    for seed in 0..200 {
        let (stored, acknowledged) = (Rc::default(), Rc::new(Cell::new(0)));
        let first = world(seed);
        let seam = first.seam();
        first.block_on(async {
            let fixture = Rc::new(Fixture::empty(&seam, Rc::clone(&stored)).await);
            fixture.add(0, "one");
            let clients = [Client::new(&fixture, "iqn.a:1").await, Client::new(&fixture, "iqn.a:2").await];
            let acknowledged = Rc::clone(&acknowledged);
            seam.spawn(async move {
                for (client, action, kind, key, new) in STEPS {
                    out_with(&clients[client], action, kind, key, new, APTPL, &[]).await.good();
                    acknowledged.set(acknowledged.get() + 1);
                    clients[1 - client].send(&TEST_UNIT_READY, 0, &[]).await;
                }
            });
            seam.sleep(Nanos::from_micros(seam.random() % 4_000)).await;
        });
        // The crash: only stored records remain.
        let stored = Rc::new(RefCell::new(stored.take()));
        drop(first);
        let second = world(seed);
        let seam = second.seam();
        second.block_on(async {
            let fixture = Rc::new(Fixture::empty(&seam, stored).await);
            fixture.add(0, "one");
            let recovered = reservation_view(&Client::new(&fixture, "iqn.a:3").await).await;
            let (history, acknowledged) = (history.borrow(), acknowledged.get());
            let has_next_step = history.get(acknowledged + 1) == Some(&recovered);
            stored_unacknowledged += u32::from(has_next_step && history[acknowledged] != recovered);
            assert!(
                history[acknowledged] == recovered || has_next_step,
                "seed {seed} after {acknowledged} steps: {recovered:?}"
            );
        });
    }
    assert!(stored_unacknowledged > 10, "some crashes must come between storing and acknowledging");
}

#[test]
fn failed_store_fails_the_registration() {
    with_target(2, async |_, fixture| {
        let client = Client::new(&fixture, "iqn.a:1").await;
        *fixture.records.fails.borrow_mut() = true;
        assert_eq!(out_with(&client, REGISTER, 0, 0, 1, APTPL, &[]).await.sense(), INTERNAL_TARGET_FAILURE);
        assert_eq!(keys(&client).await, [0_u64; 0]);
        // A registration without APTPL stores nothing.
        assert_eq!(out_with(&client, REGISTER, 0, 0, 1, 0, &[]).await.status, Status::Good);
        assert_eq!(keys(&client).await, [1]);
    });
}

#[test]
fn register_without_aptpl_erases_stored_record() {
    with_target(3, async |_, fixture| {
        let client = Client::new(&fixture, "iqn.a:1").await;
        out_with(&client, REGISTER, 0, 0, 1, APTPL, &[]).await.good();
        assert!(!fixture.records.stored.borrow()[&VolumeId(11)].is_empty());
        out_with(&client, REGISTER, 0, 1, 2, 0, &[]).await.good();
        assert!(fixture.records.stored.borrow()[&VolumeId(11)].is_empty());
    });
}

#[test]
fn unit_with_damaged_record_is_not_added() {
    with_target(4, async |_, fixture| {
        let damaged = unit(fixture.volume("one"), 7, b"HSPR and something else".to_vec());
        assert_eq!(fixture.target.add(damaged), Err(AddError::Record(RecordError::Damaged)));
    });
}
