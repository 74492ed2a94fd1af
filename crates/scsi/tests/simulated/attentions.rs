//! Unit attentions: each initiator learns of changes by others exactly once.

use scsi::{AccessList, CancelToken, SoftThreshold, Status};
use seam::sim::{Fault, Ops, Rule, When};
use seam::{Nanos, Seam};

use crate::codes::{
    CONTROL_PAGE, DESCRIPTOR_CURRENT, DISABLE_BLOCK_DESCRIPTORS, FUA, INQUIRY, MODE_CHANGED, MODE_SELECT_6,
    MODE_SENSE_6, PAGE_FORMAT, POWER_ON, REPORT_LUNS, REQUEST_SENSE, RESET, TEST_UNIT_READY, UNIT_ATTENTION,
    UNIT_NOT_SUPPORTED, WRITE_16,
};
use crate::fixture::{POOL, disk, lun, unit, with_target};
use crate::initiator::{Client, cdb16, content};

/// Additional sense codes and qualifiers of unit attentions.
const POWER_ON_CODE: (u8, u8) = (0x29, 0x00);
const CAPACITY_CHANGED_CODE: (u8, u8) = (0x2a, 0x09);
const LUNS_CHANGED_CODE: (u8, u8) = (0x3f, 0x0e);
const SOFT_THRESHOLD_REACHED_CODE: (u8, u8) = (0x38, 0x07);

/// Additional sense code and qualifier of a unit's pending attention.
async fn attention(client: &Client, number: u16) -> Option<(u8, u8)> {
    let response = client.send_to(number, &TEST_UNIT_READY, 0, &[]).await;
    (response.status != Status::Good).then(|| {
        let (key, asc, ascq) = response.sense();
        assert_eq!(key, UNIT_ATTENTION);
        (asc, ascq)
    })
}

#[test]
fn new_initiator_gets_power_on_attention_once() {
    with_target(1, async |_, fixture| {
        let client = Client::fresh(&fixture, "iqn.a:1");
        // INQUIRY succeeds despite a pending attention.
        client.send(&[INQUIRY, 0, 0, 0, 96, 0], 96, &[]).await.good();
        assert_eq!((attention(&client, 0).await, attention(&client, 0).await), (Some(POWER_ON_CODE), None));
        // REQUEST SENSE returns the attention as data.
        let data = client.send_to(1, &[REQUEST_SENSE, 1, 0, 0, 252, 0], 252, &[]).await.good();
        assert_eq!((data[1], data[2], attention(&client, 1).await), (UNIT_ATTENTION, POWER_ON_CODE.0, None));
    });
}

#[test]
fn size_and_unit_changes_reach_all_initiators() {
    with_target(2, async |_, fixture| {
        let clients = [Client::new(&fixture, "iqn.a:1").await, Client::new(&fixture, "iqn.a:2").await];
        fixture.target.report_capacity_change(lun(0));
        for client in &clients {
            assert_eq!((attention(client, 0).await, attention(client, 0).await), (Some(CAPACITY_CHANGED_CODE), None));
        }
        fixture.target.remove(lun(1));
        fixture.target.add(unit(fixture.volume("two"), 2, Vec::new())).expect("the number is free");
        assert_eq!((attention(&clients[0], 0).await, attention(&clients[0], 0).await), (Some(LUNS_CHANGED_CODE), None));
        // REPORT LUNS clears the attention.
        clients[1].send(&[REPORT_LUNS, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0], 256, &[]).await.good();
        assert_eq!(attention(&clients[1], 0).await, None);
    });
}

#[test]
fn access_change_reaches_only_affected_initiators() {
    with_target(3, async |_, fixture| {
        let (remaining, removed) = (Client::new(&fixture, "iqn.a:1").await, Client::new(&fixture, "iqn.b:1").await);
        fixture.target.set_access(lun(1), AccessList::new(["iqn.a:1"]), false);
        assert_eq!((attention(&remaining, 0).await, attention(&removed, 0).await), (None, Some(LUNS_CHANGED_CODE)));
        assert_eq!(removed.send_to(1, &TEST_UNIT_READY, 0, &[]).await.sense(), UNIT_NOT_SUPPORTED);
    });
}

#[test]
fn mode_change_reaches_other_initiators_and_reset_reaches_all() {
    with_target(4, async |_, fixture| {
        let (first, second) = (Client::new(&fixture, "iqn.a:1").await, Client::new(&fixture, "iqn.a:2").await);
        let mut list =
            first.send(&[MODE_SENSE_6, DISABLE_BLOCK_DESCRIPTORS, CONTROL_PAGE, 0, 255, 0], 255, &[]).await.good();
        // Clears the mode data length and the device-specific parameter, and sets D_SENSE in the control page.
        (list[0], list[2]) = (0, 0);
        list[6] |= 4;
        first.send(&[MODE_SELECT_6, PAGE_FORMAT, 0, 0, list.len() as u8, 0], 0, &list).await.good();
        assert_eq!(attention(&first, 0).await, None);
        // Sense data use descriptor format from here on.
        let response = second.send(&TEST_UNIT_READY, 0, &[]).await;
        assert_eq!(response.status.sense()[..4], [DESCRIPTOR_CURRENT, UNIT_ATTENTION, MODE_CHANGED.1, MODE_CHANGED.2]);
        assert!(fixture.target.reset(&first.nexus, Some([0; 8])).await);
        for client in [&first, &second] {
            assert_eq!(
                client.send(&TEST_UNIT_READY, 0, &[]).await.status.sense()[..4],
                [DESCRIPTOR_CURRENT, UNIT_ATTENTION, RESET.1, RESET.2]
            );
        }
        assert_eq!(attention(&second, 1).await, None, "the other unit was not reset");
        assert!(!fixture.target.reset(&first.nexus, Some([0, 9, 0, 0, 0, 0, 0, 0])).await);
    });
}

#[test]
fn attentions_of_lost_initiators_are_dropped() {
    with_target(5, async |_, fixture| {
        let client = Client::fresh(&fixture, "iqn.a:1");
        fixture.target.remove_nexus(&client.nexus);
        fixture.target.report_capacity_change(lun(0));
        // A session that still existed would get the attention.
        assert_eq!(attention(&client, 0).await, None);
    });
}

#[test]
fn target_reset_leaves_later_commands_alone() {
    with_target(7, async |world, fixture| {
        let (client, seam) = (Client::new(&fixture, "iqn.a:1").await, fixture.seam.clone());
        for (name, seconds) in [("one", 1), ("two", 2)] {
            let stall = Fault::Stall(Nanos::from_secs(seconds));
            disk(&world, name).add_fault(Rule::new(stall, Ops::ALL, When::Always));
        }
        let (writer, resetter) = (client.clone(), client.clone());
        seam.spawn(async move { drop(writer.send(&cdb16(WRITE_16, FUA, 0, 1), 0, &content([7])).await) });
        seam.sleep(Nanos::from_millis(10)).await;
        seam.spawn(async move { assert!(resetter.fixture.target.reset(&resetter.nexus, None).await) });
        seam.sleep(Nanos::from_millis(10)).await;
        let began = seam.now();
        assert_eq!(client.read(1, 0, 8).await.status, Status::Good, "the read came after the reset of its unit");
        assert!(seam.now().since(began) >= Nanos::from_secs(1));
    });
}

#[test]
fn cancelled_command_consumes_no_attention() {
    with_target(8, async |_, fixture| {
        let (fresh, cancelled) = (Client::fresh(&fixture, "iqn.a:1"), CancelToken::default());
        cancelled.cancel();
        assert_eq!(fresh.send_cancellable([0; 8], &TEST_UNIT_READY, 0, &[], &cancelled).await.status, Status::Aborted);
        assert_eq!(fresh.send(&TEST_UNIT_READY, 0, &[]).await.sense(), POWER_ON);
    });
}

#[test]
fn reached_threshold_is_reported_once_to_each_initiator() {
    with_target(6, async |_, fixture| {
        let clients = [Client::new(&fixture, "iqn.a:1").await, Client::new(&fixture, "iqn.a:2").await];
        let [first, second, _] = SoftThreshold::ALL;
        fixture.target.report_soft_threshold("another", first);
        assert_eq!(attention(&clients[0], 0).await, None);
        for _ in 0..2 {
            // A threshold that is reached again before its attention was reported is reported once.
            for threshold in [first, second, first] {
                fixture.target.report_soft_threshold(POOL, threshold);
            }
            for client in &clients {
                for _ in 0..2 {
                    assert_eq!(attention(client, 0).await, Some(SOFT_THRESHOLD_REACHED_CODE));
                }
                assert_eq!((attention(client, 0).await, attention(client, 1).await), (None, None));
            }
        }
    });
}
