//! Errors of backings and the sense data that report them.

use scsi::Status;
use seam::sim::{Fault, Ops, Rule, When};

use crate::codes::{
    BECOMING_READY, FUA, INQUIRY, INVALID_FIELD_IN_CDB, INVALID_OPCODE, NOT_READY, READ_10, READ_16, READ_CAPACITY_10,
    READ_CAPACITY_16, SANITIZE, SERVICE_ACTION_IN_16, SPACE_ALLOCATION_FAILED, TEST_UNIT_READY, UNIT_NOT_SUPPORTED,
    UNRECOVERED_READ_ERROR, VERIFY_10, WRITE_16, WRITE_ERROR,
};
use crate::fixture::{disk, lun, with_target};
use crate::initiator::{Client, cdb10, cdb16, content};

#[test]
fn bad_sector_is_a_medium_error_with_its_block() {
    with_target(1, async |world, fixture| {
        let client = Client::new(&fixture, "iqn.a:1").await;
        disk(&world, "one").add_fault(Rule::medium_error(80 * 512..81 * 512));
        let response = client.read(0, 80, 1).await;
        assert_eq!((response.sense(), &response.status.sense()[3..7]), (UNRECOVERED_READ_ERROR, &[0, 0, 0, 80][..]));
        assert_eq!(client.send(&cdb10(VERIFY_10, 0, 80, 1), 0, &[]).await.sense(), UNRECOVERED_READ_ERROR);
        assert_eq!(client.read(0, 96, 8).await.status, Status::Good);
    });
}

#[test]
fn full_backing_and_failed_write_have_their_own_sense_codes() {
    with_target(2, async |world, fixture| {
        let (client, disk) = (Client::new(&fixture, "iqn.a:1").await, disk(&world, "one"));
        disk.add_fault(Rule::new(Fault::NoSpace, Ops::WRITE, When::Always));
        let fua = cdb16(WRITE_16, FUA, 0, 8);
        assert_eq!(client.send(&fua, 0, &content([1; 8])).await.sense(), SPACE_ALLOCATION_FAILED);
        disk.clear_faults();
        disk.add_fault(Rule::new(Fault::Error, Ops::WRITE, When::Always));
        assert_eq!(client.send(&fua, 0, &content([1; 8])).await.sense(), WRITE_ERROR);
        disk.clear_faults();
    });
}

#[test]
fn absent_backing_is_not_ready_and_lost_backing_is_no_unit() {
    with_target(3, async |world, fixture| {
        let (client, disk) = (Client::new(&fixture, "iqn.a:1").await, disk(&world, "one"));
        disk.vanish();
        assert_eq!(client.read(0, 80, 1).await.sense(), NOT_READY);
        disk.come_back();
        assert_eq!(client.read(0, 80, 1).await.status, Status::Good);
        fixture.target.set_declared_lost(lun(0), true);
        assert_eq!(client.read(0, 80, 1).await.sense(), UNIT_NOT_SUPPORTED);
        assert_eq!(client.send(&TEST_UNIT_READY, 0, &[]).await.sense(), UNIT_NOT_SUPPORTED);
        assert_eq!(client.send(&[INQUIRY, 0, 0, 0, 96, 0], 96, &[]).await.good()[0], 0);
        fixture.target.set_declared_lost(lun(0), false);
        assert_eq!(client.read(0, 80, 1).await.status, Status::Good);
    });
}

#[test]
fn volume_in_removal_is_becoming_ready() {
    with_target(4, async |_, fixture| {
        let client = Client::new(&fixture, "iqn.a:1").await;
        fixture.volume("one").drain().await.expect("nothing is dirty");
        for cdb in [
            &cdb16(READ_16, 0, 80, 1)[..],
            &cdb16(SERVICE_ACTION_IN_16, READ_CAPACITY_16, 0, 32),
            &cdb10(READ_CAPACITY_10, 0, 0, 0),
            &TEST_UNIT_READY,
        ] {
            assert_eq!(client.send(cdb, 512, &[]).await.sense(), BECOMING_READY);
        }
    });
}

#[test]
fn unsupported_commands_and_fields_are_refused() {
    with_target(5, async |_, fixture| {
        let client = Client::new(&fixture, "iqn.a:1").await;
        assert_eq!(client.send(&[0xc1; 16], 0, &[]).await.sense(), INVALID_OPCODE);
        assert_eq!(client.send(&[SANITIZE; 16], 0, &[]).await.sense(), INVALID_OPCODE, "SANITIZE is not supported");
        // RDPROTECT: protection information is not supported.
        let protected = client.send(&cdb10(READ_10, 0xe0, 0, 1), 512, &[]).await;
        assert_eq!((protected.sense(), &protected.status.sense()[15..]), (INVALID_FIELD_IN_CDB, &[0xcf, 0, 1][..]));
        assert_eq!(client.send(&cdb16(SERVICE_ACTION_IN_16, 0x1f, 0, 1), 0, &[]).await.sense(), INVALID_FIELD_IN_CDB);
    });
}
