//! Units whose volumes are not attached now: initiators get NOT READY and wait, never LOGICAL UNIT NOT
//! SUPPORTED.

use scsi::{AbsentUnit, AccessList, Identity, Status};

use crate::codes::{
    BLOCK_LIMITS, INQUIRY, NOT_READY, READ_10, REPORT_LUNS, RESERVE_6, TEST_UNIT_READY, UNIT_NOT_SUPPORTED,
    UNIT_SERIAL_NUMBER,
};
use crate::fixture::{lun, with_target};
use crate::initiator::{Client, cdb10};

/// Numbers of the units in REPORT LUNS.
async fn reported_luns(client: &Client) -> Vec<u8> {
    let data = client.send(&[REPORT_LUNS, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0], 256, &[]).await.good();
    data[8..].chunks(8).map(|address| address[1]).collect()
}

#[test]
fn absent_unit_is_listed_and_not_ready_until_forgotten() {
    with_target(1, async |_, fixture| {
        let client = Client::new(&fixture, "iqn.a:1").await;
        let absent = |number, access| AbsentUnit { lun: lun(number), identity: Identity::of(77, 5), access };
        fixture.target.set_absent(absent(5, AccessList::default()));
        fixture.target.set_absent(absent(6, AccessList::new(["iqn.b:*"])));
        assert_eq!(reported_luns(&client).await, [0, 1, 5], "units of other initiators are not listed");
        assert_eq!(client.send_to(6, &TEST_UNIT_READY, 0, &[]).await.sense(), UNIT_NOT_SUPPORTED);
        assert_eq!(client.send_to(5, &TEST_UNIT_READY, 0, &[]).await.sense(), NOT_READY);
        assert_eq!(client.send_to(5, &cdb10(READ_10, 0, 0, 1), 512, &[]).await.sense(), NOT_READY);
        // The identity is that of the volume.
        assert_eq!(client.send_to(5, &[INQUIRY, 0, 0, 0, 96, 0], 96, &[]).await.good()[0], 0);
        let serial = client.send_to(5, &[INQUIRY, 1, UNIT_SERIAL_NUMBER, 0, 96, 0], 96, &[]).await.good();
        assert_eq!(&serial[4..], Identity::of(77, 5).naa_hex().as_bytes());
        assert_eq!(client.send_to(5, &[INQUIRY, 1, BLOCK_LIMITS, 0, 96, 0], 96, &[]).await.sense(), NOT_READY);
        // An attached unit does not become absent.
        fixture.target.set_absent(absent(1, AccessList::default()));
        assert_eq!(client.send_to(1, &TEST_UNIT_READY, 0, &[]).await.status, Status::Good);
        fixture.target.remove_absent(lun(5));
        assert_eq!(client.send_to(5, &TEST_UNIT_READY, 0, &[]).await.sense(), UNIT_NOT_SUPPORTED);
    });
}

#[test]
fn restored_unit_drops_reservations_of_initiators_that_left() {
    with_target(2, async |_, fixture| {
        let [one, two] = [Client::new(&fixture, "iqn.a:1").await, Client::new(&fixture, "iqn.a:2").await];
        assert_eq!(one.send_to(1, &[RESERVE_6, 0, 0, 0, 0, 0], 0, &[]).await.status, Status::Good, "RESERVE");
        assert_eq!(two.send_to(1, &TEST_UNIT_READY, 0, &[]).await.status, Status::ReservationConflict);
        let removed = fixture.target.remove(lun(1)).expect("the unit exists");
        fixture.target.set_absent(removed.absent());
        assert_eq!(two.send_to(1, &TEST_UNIT_READY, 0, &[]).await.sense(), NOT_READY);
        fixture.target.remove_nexus(&one.nexus);
        fixture.target.reinsert(removed);
        // Unit attentions come first.
        while two.send_to(1, &TEST_UNIT_READY, 0, &[]).await.status != Status::Good {}
        assert_eq!(reported_luns(&two).await, [0, 1]);
    });
}
