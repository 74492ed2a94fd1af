//! What goes wrong with a backing, as initiators are told of it.

use scsi::Status;
use seam::sim::{Fault, Ops, Rule, When};

use crate::initiator::{Client, cdb10, cdb16, content};
use crate::setting::{disk, lun, with_target};

#[test]
fn a_bad_sector_is_a_medium_error_that_names_its_block() {
    with_target(1, async |world, setting| {
        let client = Client::new(&setting, "iqn.a:1").await;
        disk(&world, "one").add_fault(Rule::medium_error(80 * 512..81 * 512));
        let answer = client.read(0, 80, 1).await;
        assert_eq!((answer.sense(), &answer.status.sense()[3..7]), ((3, 0x11, 0), &[0, 0, 0, 80][..]));
        assert_eq!(client.send(&cdb10(0x2f, 0, 80, 1), 0, &[]).await.sense(), (3, 0x11, 0));
        assert_eq!(client.read(0, 96, 8).await.status, Status::Good);
    });
}

#[test]
fn a_backing_that_is_full_says_so_and_one_that_fails_a_write_does() {
    with_target(2, async |world, setting| {
        let (client, disk) = (Client::new(&setting, "iqn.a:1").await, disk(&world, "one"));
        disk.add_fault(Rule::new(Fault::NoSpace, Ops::WRITE, When::Always));
        let fua = cdb16(0x8a, 0x08, 0, 8);
        assert_eq!(client.send(&fua, 0, &content([1; 8])).await.sense(), (7, 0x27, 7));
        disk.clear_faults();
        disk.add_fault(Rule::new(Fault::Error, Ops::WRITE, When::Always));
        assert_eq!(client.send(&fua, 0, &content([1; 8])).await.sense(), (3, 0x0c, 0));
        disk.clear_faults();
    });
}

#[test]
fn a_backing_that_is_away_is_not_ready_and_one_that_is_lost_is_no_unit() {
    with_target(3, async |world, setting| {
        let (client, disk) = (Client::new(&setting, "iqn.a:1").await, disk(&world, "one"));
        disk.vanish();
        assert_eq!(client.read(0, 80, 1).await.sense(), (2, 4, 0));
        disk.come_back();
        assert_eq!(client.read(0, 80, 1).await.status, Status::Good);
        setting.target.set_lost(lun(0), true);
        assert_eq!(client.read(0, 80, 1).await.sense(), (5, 0x25, 0));
        assert_eq!(client.send(&[0; 6], 0, &[]).await.sense(), (5, 0x25, 0));
        assert_eq!(client.send(&[0x12, 0, 0, 0, 96, 0], 96, &[]).await.good()[0], 0);
        setting.target.set_lost(lun(0), false);
        assert_eq!(client.read(0, 80, 1).await.status, Status::Good);
    });
}

#[test]
fn a_volume_that_is_being_removed_is_becoming_unready() {
    with_target(4, async |_, setting| {
        let client = Client::new(&setting, "iqn.a:1").await;
        setting.volume("one").drain().await.expect("nothing is dirty");
        for cdb in [&cdb16(0x88, 0, 80, 1)[..], &cdb16(0x9e, 0x10, 0, 32), &cdb10(0x25, 0, 0, 0), &[0; 6]] {
            assert_eq!(client.send(cdb, 512, &[]).await.sense(), (2, 4, 1));
        }
    });
}

#[test]
fn what_is_not_understood_is_refused_by_its_field() {
    with_target(5, async |_, setting| {
        let client = Client::new(&setting, "iqn.a:1").await;
        assert_eq!(client.send(&[0xc1; 16], 0, &[]).await.sense(), (5, 0x20, 0));
        assert_eq!(client.send(&[0x48; 16], 0, &[]).await.sense(), (5, 0x20, 0), "SANITIZE is left out");
        let protected = client.send(&cdb10(0x28, 0xe0, 0, 1), 512, &[]).await;
        assert_eq!((protected.sense(), &protected.status.sense()[15..]), ((5, 0x24, 0), &[0xcf, 0, 1][..]));
        assert_eq!(client.send(&cdb16(0x9e, 0x1f, 0, 1), 0, &[]).await.sense(), (5, 0x24, 0));
    });
}
