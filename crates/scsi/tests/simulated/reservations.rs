//! Reservations: every type of persistent reservation against holders, registrants and other initiators.

use std::rc::Rc;

use scsi::Status;

use crate::codes::{
    ALL_TG_PT, CACHING_PAGE, DISABLE_BLOCK_DESCRIPTORS, INQUIRY, INVALID_FIELD_IN_PARAMETER_LIST, INVALID_RELEASE,
    MODE_SENSE_6, PARAMETER_LIST_LENGTH_ERROR, PERSISTENT_RESERVE_IN, PERSISTENT_RESERVE_OUT, READ_10,
    READ_CAPACITY_10, RELEASE_6, RESERVATIONS_PREEMPTED, RESERVATIONS_RELEASED, RESERVE_6, SPEC_I_PT,
    SYNCHRONIZE_CACHE_10, TEST_UNIT_READY, UNMAP, WRITE_SAME_16,
};
use crate::fixture::{Fixture, with_target};
use crate::initiator::{Client, Response, cdb10, cdb16, content};

/// Service actions of PERSISTENT RESERVE IN.
const READ_KEYS: u8 = 0;
const READ_RESERVATION: u8 = 1;
const REPORT_CAPABILITIES: u8 = 2;
const READ_FULL_STATUS: u8 = 3;

/// Service actions of PERSISTENT RESERVE OUT.
pub const REGISTER: u8 = 0;
pub const RESERVE: u8 = 1;
pub const RELEASE: u8 = 2;
pub const CLEAR: u8 = 3;
pub const PREEMPT: u8 = 4;
pub const PREEMPT_AND_ABORT: u8 = 5;
pub const REGISTER_AND_IGNORE: u8 = 6;
pub const REGISTER_AND_MOVE: u8 = 7;

/// Reservation types.
pub const WRITE_EXCLUSIVE: u8 = 1;
pub const EXCLUSIVE: u8 = 3;
pub const WRITE_EXCLUSIVE_REGISTRANTS: u8 = 5;
pub const EXCLUSIVE_REGISTRANTS: u8 = 6;
pub const WRITE_EXCLUSIVE_ALL: u8 = 7;
pub const EXCLUSIVE_ALL: u8 = 8;
const TYPES: [u8; 6] = [
    WRITE_EXCLUSIVE,
    EXCLUSIVE,
    WRITE_EXCLUSIVE_REGISTRANTS,
    EXCLUSIVE_REGISTRANTS,
    WRITE_EXCLUSIVE_ALL,
    EXCLUSIVE_ALL,
];

/// PERSISTENT RESERVE OUT with flags and additional data in its parameter list.
pub async fn out_with(client: &Client, action: u8, kind: u8, key: u64, new: u64, flags: u8, more: &[u8]) -> Response {
    let mut list = [key.to_be_bytes(), new.to_be_bytes()].concat();
    list.extend([0, 0, 0, 0, flags, 0, 0, 0]);
    list.extend(more);
    let mut cdb = [PERSISTENT_RESERVE_OUT, action, kind, 0, 0, 0, 0, 0, 0, 0];
    cdb[5..9].copy_from_slice(&(list.len() as u32).to_be_bytes());
    client.send(&cdb, 0, &list).await
}

/// PERSISTENT RESERVE OUT without flags and additional data.
pub async fn out(client: &Client, action: u8, kind: u8, key: u64, new: u64) -> Status {
    out_with(client, action, kind, key, new, 0, &[]).await.status
}

/// PERSISTENT RESERVE IN.
pub async fn report(client: &Client, action: u8) -> Vec<u8> {
    client.send(&cdb10(PERSISTENT_RESERVE_IN, action, 0, 4_096), 4_096, &[]).await.good()
}

/// All registered keys.
pub async fn keys(client: &Client) -> Vec<u64> {
    let data = report(client, READ_KEYS).await;
    data[8..].chunks_exact(8).map(|key| u64::from_be_bytes(key.try_into().unwrap())).collect()
}

/// The key and type of the reservation.
pub async fn current_reservation(client: &Client) -> Option<(u64, u8)> {
    let data = report(client, READ_RESERVATION).await;
    (data.len() > 8).then(|| (u64::from_be_bytes(data[8..16].try_into().unwrap()), data[21]))
}

/// The later holder, another registrant and another initiator.
pub async fn three(fixture: &Rc<Fixture>) -> [Client; 3] {
    [
        Client::new(fixture, "iqn.a:holder").await,
        Client::new(fixture, "iqn.a:registrant").await,
        Client::new(fixture, "iqn.a:other").await,
    ]
}

/// The table of SPC-4: access (read, write) of a registrant that is not a holder, and of other initiators.
#[test]
fn each_type_allows_the_access_of_the_standard() {
    with_target(1, async |_, fixture| {
        let [holder, registrant, other] = three(&fixture).await;
        let t = true;
        let f = false;
        let table = [
            (WRITE_EXCLUSIVE, (t, f), (t, f)),
            (EXCLUSIVE, (f, f), (f, f)),
            (WRITE_EXCLUSIVE_REGISTRANTS, (t, t), (t, f)),
            (EXCLUSIVE_REGISTRANTS, (t, t), (f, f)),
            (WRITE_EXCLUSIVE_ALL, (t, t), (t, f)),
            (EXCLUSIVE_ALL, (t, t), (f, f)),
        ];
        assert_eq!(table.map(|row| row.0), TYPES);
        for (kind, of_registrant, of_other) in table {
            out(&holder, REGISTER_AND_IGNORE, 0, 0, 1).await;
            out(&registrant, REGISTER_AND_IGNORE, 0, 0, 2).await;
            assert_eq!(out(&holder, RESERVE, kind, 1, 0).await, Status::Good);
            for (initiator, (reads, writes)) in [(&holder, (t, t)), (&registrant, of_registrant), (&other, of_other)] {
                let expected = |allowed| if allowed { Status::Good } else { Status::ReservationConflict };
                let block = content([1]);
                assert_eq!(initiator.read(0, 0, 1).await.status, expected(reads), "type {kind}");
                assert_eq!(initiator.write(0, 0, &block).await.status, expected(writes), "type {kind}");
                assert_eq!(
                    initiator.send(&cdb10(SYNCHRONIZE_CACHE_10, 0, 0, 0), 0, &[]).await.status,
                    expected(writes)
                );
                assert_eq!(initiator.send(&cdb10(UNMAP, 0, 0, 0), 0, &[]).await.status, expected(writes));
                assert_eq!(initiator.send(&cdb16(WRITE_SAME_16, 0, 0, 1), 0, &block).await.status, expected(writes));
                assert_eq!(
                    initiator
                        .send(&[MODE_SENSE_6, DISABLE_BLOCK_DESCRIPTORS, CACHING_PAGE, 0, 255, 0], 255, &[])
                        .await
                        .status,
                    expected(reads)
                );
                // No reservation conflicts with these commands.
                for cdb in [
                    &TEST_UNIT_READY[..],
                    &[INQUIRY, 0, 0, 0, 96, 0],
                    &cdb10(READ_CAPACITY_10, 0, 0, 0),
                    &cdb10(PERSISTENT_RESERVE_IN, 1, 0, 64),
                ] {
                    assert_eq!(initiator.send(cdb, 96, &[]).await.status, Status::Good, "{cdb:x?}");
                }
            }
            let is_shared = kind >= WRITE_EXCLUSIVE_ALL;
            assert_eq!(current_reservation(&other).await, Some((if is_shared { 0 } else { 1 }, kind)));
            assert_eq!(out(&holder, CLEAR, 0, 1, 0).await, Status::Good);
            assert_eq!((current_reservation(&other).await, keys(&other).await), (None, vec![]));
            // CLEAR notifies the other registrant.
            assert_eq!(registrant.send(&TEST_UNIT_READY, 0, &[]).await.sense(), RESERVATIONS_PREEMPTED);
        }
    });
}

#[test]
fn registering_checks_the_key_and_counts_generations() {
    with_target(2, async |_, fixture| {
        let [one, two, _] = three(&fixture).await;
        assert_eq!(out(&one, REGISTER, 0, 5, 6).await, Status::ReservationConflict);
        assert_eq!(out(&one, REGISTER, 0, 0, 6).await, Status::Good);
        assert_eq!(out(&one, REGISTER, 0, 5, 7).await, Status::ReservationConflict);
        assert_eq!(out(&one, REGISTER, 0, 6, 7).await, Status::Good);
        assert_eq!(out(&one, REGISTER_AND_IGNORE, 0, 99, 8).await, Status::Good);
        assert_eq!(out(&two, REGISTER, 0, 0, 8).await, Status::Good);
        assert_eq!((keys(&one).await, report(&one, READ_KEYS).await[..4].to_vec()), (vec![8, 8], vec![0, 0, 0, 4]));
        assert_eq!(out(&two, RESERVE, EXCLUSIVE, 1, 0).await, Status::ReservationConflict);
        assert_eq!(out(&two, RESERVE, EXCLUSIVE, 8, 0).await, Status::Good);
        assert_eq!(out(&two, RESERVE, EXCLUSIVE, 8, 0).await, Status::Good);
        assert_eq!(out(&two, RESERVE, WRITE_EXCLUSIVE, 8, 0).await, Status::ReservationConflict);
        assert_eq!(out(&one, RESERVE, EXCLUSIVE, 8, 0).await, Status::ReservationConflict);
        // RELEASE by a non-holder does nothing; by a holder it needs the right type.
        assert_eq!(out(&one, RELEASE, EXCLUSIVE, 8, 0).await, Status::Good);
        assert_eq!(current_reservation(&one).await, Some((8, EXCLUSIVE)));
        assert_eq!(out_with(&two, RELEASE, WRITE_EXCLUSIVE, 8, 0, 0, &[]).await.sense(), INVALID_RELEASE);
        assert_eq!(out(&two, RELEASE, EXCLUSIVE, 8, 0).await, Status::Good);
        assert_eq!(
            (current_reservation(&one).await, report(&one, READ_KEYS).await[3]),
            (None, 4),
            "RESERVE and RELEASE keep the generation"
        );
        assert_eq!(out(&two, REGISTER, 0, 8, 0).await, Status::Good);
        assert_eq!(keys(&one).await, [8]);
    });
}

#[test]
fn unregistering_holder_releases_and_notifies_registrants() {
    with_target(3, async |_, fixture| {
        let [one, two, _] = three(&fixture).await;
        for kind in TYPES {
            out(&one, REGISTER_AND_IGNORE, 0, 0, 1).await;
            out(&two, REGISTER_AND_IGNORE, 0, 0, 2).await;
            out(&one, RESERVE, kind, 1, 0).await;
            assert_eq!(out(&one, REGISTER, 0, 1, 0).await, Status::Good);
            let ready = two.send(&TEST_UNIT_READY, 0, &[]).await;
            match kind {
                WRITE_EXCLUSIVE_ALL | EXCLUSIVE_ALL => {
                    assert_eq!(
                        (ready.status, current_reservation(&two).await),
                        (Status::Good, Some((0, kind))),
                        "others still hold"
                    );
                    assert_eq!(out(&two, REGISTER, 0, 2, 0).await, Status::Good);
                }
                WRITE_EXCLUSIVE_REGISTRANTS | EXCLUSIVE_REGISTRANTS => assert_eq!(ready.sense(), RESERVATIONS_RELEASED),
                _ => assert_eq!(ready.status, Status::Good),
            }
            assert_eq!(current_reservation(&two).await, None, "type {kind}");
            out(&two, REGISTER_AND_IGNORE, 0, 0, 0).await;
        }
    });
}

#[test]
fn other_initiators_are_registered_by_name_and_for_all_ports() {
    with_target(4, async |_, fixture| {
        let [one, two, three] = three(&fixture).await;
        let id = two.nexus.initiator().transport_id();
        let mut named = (id.len() as u32).to_be_bytes().to_vec();
        named.extend(&id);
        assert_eq!(
            out_with(&one, REGISTER_AND_IGNORE, 0, 0, 4, SPEC_I_PT, &named).await.sense(),
            PARAMETER_LIST_LENGTH_ERROR
        );
        // With ALL_TG_PT both initiators are registered at both target ports.
        assert_eq!(out_with(&one, REGISTER, 0, 0, 4, SPEC_I_PT | ALL_TG_PT, &named).await.status, Status::Good);
        assert_eq!(keys(&one).await, [4; 4]);
        assert_eq!(out(&two, RESERVE, EXCLUSIVE, 4, 0).await, Status::Good);
        let full = report(&one, READ_FULL_STATUS).await;
        let holder = full[8..].windows(id.len()).position(|bytes| bytes == id).expect("the holder is listed");
        let descriptor = &full[8 + holder - 24..];
        assert_eq!((descriptor[12], descriptor[13], descriptor[19]), (1, EXCLUSIVE, 1));
        assert_eq!(three.read(0, 0, 1).await.status, Status::ReservationConflict);
        assert_eq!(out_with(&one, REGISTER, 0, 4, 5, SPEC_I_PT, &named).await.sense(), INVALID_FIELD_IN_PARAMETER_LIST);
        assert_eq!(report(&one, REPORT_CAPABILITIES).await, [0, 8, 0x1d, 0x80, 0xea, 1, 0, 0]);
    });
}

#[test]
fn register_and_move_transfers_the_reservation() {
    with_target(5, async |_, fixture| {
        let [one, two, _] = three(&fixture).await;
        out(&one, REGISTER, 0, 0, 1).await;
        let id = two.nexus.initiator().transport_id();
        let register_and_move = async |client: &Client, key: u64, port: u8, unregister: u8| {
            let mut list = [key.to_be_bytes(), 2_u64.to_be_bytes()].concat();
            list.extend([0, unregister << 1, 0, port]);
            list.extend((id.len() as u32).to_be_bytes());
            list.extend(&id);
            let cdb = [PERSISTENT_RESERVE_OUT, REGISTER_AND_MOVE, 0, 0, 0, 0, 0, 0, list.len() as u8, 0];
            client.send(&cdb, 0, &list).await.status
        };
        assert_eq!(register_and_move(&one, 1, 1, 0).await, Status::ReservationConflict, "not the holder");
        out(&one, RESERVE, EXCLUSIVE, 1, 0).await;
        assert_ne!(register_and_move(&one, 1, 3, 0).await, Status::Good, "the port does not exist");
        assert_eq!(register_and_move(&one, 1, 1, 1).await, Status::Good);
        assert_eq!((current_reservation(&one).await, keys(&one).await), (Some((2, EXCLUSIVE)), vec![2]));
        assert_eq!(two.read(0, 0, 1).await.status, Status::Good);
        assert_eq!(one.read(0, 0, 1).await.status, Status::ReservationConflict);
    });
}

#[test]
fn session_reservation_ends_at_release_logout_or_reset() {
    with_target(6, async |_, fixture| {
        let [reserver, two, _] = three(&fixture).await;
        let (reserve, release) = ([RESERVE_6, 0, 0, 0, 0, 0], [RELEASE_6, 0, 0, 0, 0, 0]);
        let try_reserve = async |client: &Client| client.send(&reserve, 0, &[]).await.status;
        for end in 0..3 {
            let reserver = Client::new(&fixture, "iqn.a:reserver").await;
            assert_eq!((try_reserve(&reserver).await, try_reserve(&reserver).await), (Status::Good, Status::Good));
            assert_eq!(try_reserve(&two).await, Status::ReservationConflict);
            for cdb in [
                &TEST_UNIT_READY[..],
                &cdb10(READ_10, 0, 0, 1),
                &cdb10(PERSISTENT_RESERVE_IN, 0, 0, 64),
                &[MODE_SENSE_6, DISABLE_BLOCK_DESCRIPTORS, CACHING_PAGE, 0, 255, 0],
            ] {
                assert_eq!(two.send(cdb, 512, &[]).await.status, Status::ReservationConflict);
            }
            two.send(&[INQUIRY, 0, 0, 0, 96, 0], 96, &[]).await.good();
            two.send(&release, 0, &[]).await.good();
            assert_eq!(try_reserve(&two).await, Status::ReservationConflict, "RELEASE by another session does nothing");
            match end {
                0 => assert_eq!(reserver.send(&release, 0, &[]).await.status, Status::Good),
                1 => fixture.target.remove_nexus(&reserver.nexus),
                _ => {
                    fixture.target.reset(&two.nexus, None).await;
                    two.send(&TEST_UNIT_READY, 0, &[]).await;
                }
            }
            assert_eq!(
                (try_reserve(&two).await, two.send(&release, 0, &[]).await.status),
                (Status::Good, Status::Good)
            );
        }
        // With registrations RESERVE has no effect.
        reserver.send(&TEST_UNIT_READY, 0, &[]).await;
        out(&reserver, REGISTER, 0, 0, 1).await;
        assert_eq!(
            (try_reserve(&reserver).await, try_reserve(&two).await),
            (Status::Good, Status::ReservationConflict)
        );
        assert_eq!(two.read(0, 0, 1).await.status, Status::Good);
    });
}

#[test]
fn reset_keeps_persistent_reservations() {
    with_target(7, async |_, fixture| {
        let [one, two, _] = three(&fixture).await;
        out(&one, REGISTER, 0, 0, 1).await;
        out(&one, RESERVE, WRITE_EXCLUSIVE, 1, 0).await;
        fixture.target.reset(&two.nexus, None).await;
        two.send(&TEST_UNIT_READY, 0, &[]).await;
        assert_eq!((current_reservation(&two).await, keys(&two).await), (Some((1, WRITE_EXCLUSIVE)), vec![1]));
        // An initiator port is still the holder after its next login.
        fixture.target.remove_nexus(&one.nexus);
        let again = Client::new(&fixture, "iqn.a:holder").await;
        assert_eq!(again.write(0, 0, &content([1])).await.status, Status::Good);
    });
}
