//! Units whose volumes are not attached now: initiators get "not ready" and wait, never "no unit".

use scsi::{AbsentUnit, AccessList, Identity, Status};

use crate::fixture::{lun, with_target};
use crate::initiator::{Client, cdb10};

const READY: [u8; 6] = [0; 6];
const NOT_READY: (u8, u8, u8) = (2, 4, 0);
const NO_UNIT: (u8, u8, u8) = (5, 0x25, 0);

async fn listed(client: &Client) -> Vec<u8> {
    let data = client.send(&[0xa0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0], 256, &[]).await.good();
    data[8..].chunks(8).map(|unit| unit[1]).collect()
}

#[test]
fn absent_unit_is_listed_and_not_ready_until_forgotten() {
    with_target(1, async |_, fixture| {
        let client = Client::new(&fixture, "iqn.a:1").await;
        let absent = |number, access| AbsentUnit { lun: lun(number), identity: Identity::of(77, 5), access };
        fixture.target.set_absent(absent(5, AccessList::default()));
        fixture.target.set_absent(absent(6, AccessList::new(["iqn.b:*"])));
        assert_eq!(listed(&client).await, [0, 1, 5], "units of other initiators are not listed");
        assert_eq!(client.at(6, &READY, 0, &[]).await.sense(), NO_UNIT);
        assert_eq!(client.at(5, &READY, 0, &[]).await.sense(), NOT_READY);
        assert_eq!(client.at(5, &cdb10(0x28, 0, 0, 1), 512, &[]).await.sense(), NOT_READY);
        // The identity is that of the volume.
        assert_eq!(client.at(5, &[0x12, 0, 0, 0, 96, 0], 96, &[]).await.good()[0], 0);
        let serial = client.at(5, &[0x12, 1, 0x80, 0, 96, 0], 96, &[]).await.good();
        assert_eq!(&serial[4..], Identity::of(77, 5).serial().as_bytes());
        assert_eq!(client.at(5, &[0x12, 1, 0xb0, 0, 96, 0], 96, &[]).await.sense(), NOT_READY);
        // An attached unit does not become absent.
        fixture.target.set_absent(absent(1, AccessList::default()));
        assert_eq!(client.at(1, &READY, 0, &[]).await.status, Status::Good);
        fixture.target.forget_absent(lun(5));
        assert_eq!(client.at(5, &READY, 0, &[]).await.sense(), NO_UNIT);
    });
}

#[test]
fn restored_unit_drops_reservations_of_initiators_that_left() {
    with_target(2, async |_, fixture| {
        let [one, two] = [Client::new(&fixture, "iqn.a:1").await, Client::new(&fixture, "iqn.a:2").await];
        assert_eq!(one.at(1, &[0x16, 0, 0, 0, 0, 0], 0, &[]).await.status, Status::Good, "RESERVE");
        assert_eq!(two.at(1, &READY, 0, &[]).await.status, Status::ReservationConflict);
        let removed = fixture.target.remove(lun(1)).expect("the unit exists");
        fixture.target.set_absent(removed.absent());
        assert_eq!(two.at(1, &READY, 0, &[]).await.sense(), NOT_READY);
        fixture.target.remove_nexus(&one.nexus);
        fixture.target.put_back(removed);
        while two.at(1, &READY, 0, &[]).await.status != Status::Good {}
        assert_eq!(listed(&two).await, [0, 1]);
    });
}
