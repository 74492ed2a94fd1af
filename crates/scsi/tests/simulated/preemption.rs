//! Preemption of a reservation and of its holder's commands.

use std::cell::RefCell;
use std::rc::Rc;

use scsi::{CancelToken, Cancelled, Command, DataOut, ExpectedLengths, Status};
use seam::{Nanos, Seam};

use crate::codes::{
    COMMANDS_CLEARED, FUA, INVALID_FIELD_IN_PARAMETER_LIST, REGISTRATIONS_PREEMPTED, RESERVATIONS_RELEASED, RESET,
    TEST_UNIT_READY, WRITE_16,
};
use crate::fixture::{with_small_pool, with_target};
use crate::initiator::{Client, Sink, cdb16, content};
use crate::reservations::{
    CLEAR, EXCLUSIVE, EXCLUSIVE_ALL, PREEMPT, PREEMPT_AND_ABORT, REGISTER, REGISTER_AND_IGNORE, RESERVE,
    WRITE_EXCLUSIVE, WRITE_EXCLUSIVE_REGISTRANTS, current_reservation, keys, out, out_with, three,
};

#[test]
fn preempting_the_holder_takes_reservation_and_notifies_victims() {
    with_target(1, async |_, fixture| {
        let [one, two, three] = three(&fixture).await;
        for (client, key) in [(&one, 1), (&two, 2), (&three, 3)] {
            out(client, REGISTER, 0, 0, key).await;
        }
        out(&one, RESERVE, WRITE_EXCLUSIVE_REGISTRANTS, 1, 0).await;
        assert_eq!(out(&two, PREEMPT, EXCLUSIVE, 9, 1).await, Status::ReservationConflict);
        assert_eq!(out(&two, PREEMPT, EXCLUSIVE, 2, 9).await, Status::ReservationConflict);
        assert_eq!(out_with(&two, PREEMPT, EXCLUSIVE, 2, 0, 0, &[]).await.sense(), INVALID_FIELD_IN_PARAMETER_LIST);
        assert_eq!(out(&two, PREEMPT, EXCLUSIVE, 2, 1).await, Status::Good);
        assert_eq!((current_reservation(&two).await, keys(&two).await), (Some((2, EXCLUSIVE)), vec![2, 3]));
        assert_eq!(one.send(&TEST_UNIT_READY, 0, &[]).await.sense(), REGISTRATIONS_PREEMPTED);
        assert_eq!(three.send(&TEST_UNIT_READY, 0, &[]).await.sense(), RESERVATIONS_RELEASED);
        assert_eq!(one.read(0, 0, 1).await.status, Status::ReservationConflict);
        // Preempting another registrant removes its registration and leaves the reservation alone.
        assert_eq!(out(&two, PREEMPT, WRITE_EXCLUSIVE, 2, 3).await, Status::Good);
        assert_eq!((current_reservation(&two).await, keys(&two).await), (Some((2, EXCLUSIVE)), vec![2]));
        assert_eq!(out(&two, PREEMPT, WRITE_EXCLUSIVE, 2, 2).await, Status::Good, "the holder changes the type");
        assert_eq!((current_reservation(&two).await, keys(&two).await), (Some((2, WRITE_EXCLUSIVE)), vec![2]));
    });
}

#[test]
fn all_registrants_reservation_is_preempted_with_key_zero() {
    with_target(2, async |_, fixture| {
        let [one, two, three] = three(&fixture).await;
        for (client, key) in [(&one, 1), (&two, 2), (&three, 3)] {
            out(client, REGISTER, 0, 0, key).await;
        }
        out(&one, RESERVE, EXCLUSIVE_ALL, 1, 0).await;
        assert_eq!(out(&two, PREEMPT, EXCLUSIVE, 2, 1).await, Status::Good);
        assert_eq!((current_reservation(&two).await, keys(&two).await), (Some((0, EXCLUSIVE_ALL)), vec![2, 3]));
        assert_eq!(out(&two, PREEMPT, EXCLUSIVE, 2, 0).await, Status::Good);
        assert_eq!((current_reservation(&two).await, keys(&two).await), (Some((2, EXCLUSIVE)), vec![2]));
        assert_eq!(out(&two, CLEAR, 0, 2, 0).await, Status::Good);
    });
}

#[test]
fn preempt_without_reservation_removes_registrations_by_key() {
    with_target(3, async |_, fixture| {
        let [one, two, _] = three(&fixture).await;
        out(&one, REGISTER, 0, 0, 1).await;
        out(&two, REGISTER, 0, 0, 2).await;
        assert_eq!(out(&two, PREEMPT, EXCLUSIVE, 2, 7).await, Status::ReservationConflict);
        assert_eq!(out(&two, PREEMPT, EXCLUSIVE, 2, 1).await, Status::Good);
        assert_eq!((current_reservation(&two).await, keys(&two).await), (None, vec![2]));
    });
}

/// An initiator that never sends its data.
struct SilentInitiator(CancelToken);

impl DataOut for SilentInitiator {
    async fn take(&mut self, _: usize, _: &mut Vec<u8>) -> Result<(), Cancelled> {
        std::future::poll_fn(|context| {
            self.0.wake_when_cancelled(context.waker());
            if self.0.is_cancelled() { std::task::Poll::Ready(Err(Cancelled)) } else { std::task::Poll::Pending }
        })
        .await
    }
}

/// Writes of a fenced node are in flight: after PREEMPT AND ABORT none of them has an effect.
#[test]
fn preempt_and_abort_stops_all_writes_of_the_victim() {
    for seed in 0..30 {
        with_small_pool(seed, async |_, fixture| {
            let (victim, other) = (Client::new(&fixture, "iqn.a:1").await, Client::new(&fixture, "iqn.a:2").await);
            out(&victim, REGISTER_AND_IGNORE, 0, 0, 1).await;
            out(&other, REGISTER_AND_IGNORE, 0, 0, 2).await;
            out(&victim, RESERVE, WRITE_EXCLUSIVE_REGISTRANTS, 1, 0).await;
            let ends: Rc<RefCell<Vec<Status>>> = Rc::default();
            for number in 0..6 {
                let (victim, ends) = (victim.clone(), Rc::clone(&ends));
                fixture.seam.spawn(async move {
                    let cdb = cdb16(WRITE_16, 0, number * 1_000, 1_000);
                    let status = victim.send(&cdb, 0, &content([5; 1_000])).await.status;
                    ends.borrow_mut().push(status);
                });
            }
            fixture.seam.spawn({
                let (victim, ends) = (victim.clone(), Rc::clone(&ends));
                async move {
                    let cancel = CancelToken::default();
                    let cdb = cdb16(WRITE_16, 0, 9_000, 8);
                    let expected = ExpectedLengths { out_bytes: 4096, in_bytes: 0 };
                    let command = Command { lun: [0; 8], cdb: &cdb, expected, cancel: &cancel };
                    let mut silent = SilentInitiator(cancel.clone());
                    let target = victim.fixture.target.clone();
                    let outcome = target.execute(&victim.nexus, command, &mut silent, &mut Sink::default()).await;
                    ends.borrow_mut().push(outcome.status);
                }
            });
            fixture.seam.sleep(Nanos::from_micros(fixture.seam.random() % 2_000)).await;
            assert_eq!(out(&other, PREEMPT_AND_ABORT, EXCLUSIVE, 2, 1).await, Status::Good);
            other.write(0, 0, &content([7; 6_000])).await.good();
            fixture.seam.sleep(Nanos::from_secs(1)).await;
            assert_eq!(other.read(0, 0, 6_000).await.good(), content([7; 6_000]), "seed {seed}");
            assert_eq!(ends.borrow().len(), 7, "every command has ended, including the one without data");
            assert!(ends.borrow().contains(&Status::Aborted));
            assert_eq!(victim.send(&TEST_UNIT_READY, 0, &[]).await.sense(), REGISTRATIONS_PREEMPTED);
            assert_eq!(victim.send(&TEST_UNIT_READY, 0, &[]).await.sense(), COMMANDS_CLEARED);
        });
    }
}

#[test]
fn reset_and_clear_task_set_end_commands_of_all_initiators() {
    for reset in [false, true] {
        with_target(9, async |_, fixture| {
            let (first, second) = (Client::new(&fixture, "iqn.a:1").await, Client::new(&fixture, "iqn.a:2").await);
            let ends: Rc<RefCell<Vec<Status>>> = Rc::default();
            for client in [&first, &second] {
                let (client, ends) = (client.clone(), Rc::clone(&ends));
                fixture.seam.spawn(async move {
                    let fua = cdb16(WRITE_16, FUA, 0, 4_000);
                    let status = client.send(&fua, 0, &content([5; 4_000])).await.status;
                    ends.borrow_mut().push(status);
                });
            }
            fixture.seam.sleep(Nanos::from_micros(100)).await;
            match reset {
                true => assert!(fixture.target.reset(&first.nexus, None).await),
                false => assert!(fixture.target.clear_commands(&first.nexus, [0; 8]).await),
            }
            let responses = [first.send(&TEST_UNIT_READY, 0, &[]).await, second.send(&TEST_UNIT_READY, 0, &[]).await];
            match reset {
                true => assert_eq!(responses.map(|response| response.sense()), [RESET; 2]),
                // The initiator of CLEAR TASK SET gets no attention.
                false => assert_eq!((&responses[0].status, responses[1].sense()), (&Status::Good, COMMANDS_CLEARED)),
            }
            let after_abort = first.read(0, 0, 4_000).await.good();
            fixture.seam.sleep(Nanos::from_secs(1)).await;
            assert_eq!(first.read(0, 0, 4_000).await.good(), after_abort);
            assert_eq!(*ends.borrow(), [Status::Aborted, Status::Aborted]);
        });
    }
}
