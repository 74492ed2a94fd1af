//! Units whose volumes are not there now: initiators wait for them, and never hear that there is none.

use scsi::{Absent, AccessList, Identity, Status};

use crate::initiator::{Client, cdb10};
use crate::setting::{lun, with_target};

const READY: [u8; 6] = [0; 6];
const NOT_READY: (u8, u8, u8) = (2, 4, 0);
const NO_UNIT: (u8, u8, u8) = (5, 0x25, 0);

async fn listed(client: &Client) -> Vec<u8> {
    let told = client.send(&[0xa0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0], 256, &[]).await.good();
    told[8..].chunks(8).map(|unit| unit[1]).collect()
}

#[test]
fn a_unit_that_is_not_there_now_is_listed_known_and_not_ready_until_it_comes_or_is_given_up() {
    with_target(1, async |_, setting| {
        let client = Client::new(&setting, "iqn.a:1").await;
        let absent = |number, access| Absent { lun: lun(number), identity: Identity::of(77, 5), access };
        setting.target.set_absent(absent(5, AccessList::default()));
        setting.target.set_absent(absent(6, AccessList::new(["iqn.b:*"])));
        assert_eq!(listed(&client).await, [0, 1, 5], "others' are not");
        assert_eq!(client.at(6, &READY, 0, &[]).await.sense(), NO_UNIT);
        assert_eq!(client.at(5, &READY, 0, &[]).await.sense(), NOT_READY);
        assert_eq!(client.at(5, &cdb10(0x28, 0, 0, 1), 512, &[]).await.sense(), NOT_READY);
        // It is the disk that it was.
        assert_eq!(client.at(5, &[0x12, 0, 0, 0, 96, 0], 96, &[]).await.good()[0], 0);
        let serial = client.at(5, &[0x12, 1, 0x80, 0, 96, 0], 96, &[]).await.good();
        assert_eq!(&serial[4..], Identity::of(77, 5).serial().as_bytes());
        assert_eq!(client.at(5, &[0x12, 1, 0xb0, 0, 96, 0], 96, &[]).await.sense(), NOT_READY);
        // One that is there is not gone because of that.
        setting.target.set_absent(absent(1, AccessList::default()));
        assert_eq!(client.at(1, &READY, 0, &[]).await.status, Status::Good);
        setting.target.forget_absent(lun(5));
        assert_eq!(client.at(5, &READY, 0, &[]).await.sense(), NO_UNIT);
    });
}

#[test]
fn a_unit_on_its_way_out_is_not_ready_and_comes_back_without_what_left_initiators_had_reserved() {
    with_target(2, async |_, setting| {
        let [one, two] = [Client::new(&setting, "iqn.a:1").await, Client::new(&setting, "iqn.a:2").await];
        assert_eq!(one.at(1, &[0x16, 0, 0, 0, 0, 0], 0, &[]).await.status, Status::Good, "RESERVE");
        assert_eq!(two.at(1, &READY, 0, &[]).await.status, Status::ReservationConflict);
        let removed = setting.target.remove(lun(1)).expect("it is there");
        setting.target.set_absent(removed.absent());
        assert_eq!(two.at(1, &READY, 0, &[]).await.sense(), NOT_READY);
        setting.target.leave(&one.nexus);
        setting.target.put_back(removed);
        while two.at(1, &READY, 0, &[]).await.status != Status::Good {}
        assert_eq!(listed(&two).await, [0, 1]);
    });
}
