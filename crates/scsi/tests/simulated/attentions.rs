//! What initiators are told of what others did, once each.

use scsi::{AccessList, Cancel, Status};
use seam::sim::{Fault, Ops, Rule, When};
use seam::{Nanos, Seam};

use crate::initiator::{Client, cdb16, content};
use crate::setting::{disk, lun, unit, with_target};

const READY: [u8; 6] = [0; 6];

async fn told(client: &Client, number: u16) -> Option<(u8, u8)> {
    let answer = client.at(number, &READY, 0, &[]).await;
    (answer.status != Status::Good).then(|| {
        let (key, asc, ascq) = answer.sense();
        assert_eq!(key, 6);
        (asc, ascq)
    })
}

#[test]
fn whoever_is_new_hears_of_the_start_once() {
    with_target(1, async |_, setting| {
        let client = Client::fresh(&setting, "iqn.a:1");
        // INQUIRY answers before.
        client.send(&[0x12, 0, 0, 0, 96, 0], 96, &[]).await.good();
        assert_eq!((told(&client, 0).await, told(&client, 0).await), (Some((0x29, 0)), None));
        // REQUEST SENSE tells it as data.
        let data = client.at(1, &[0x03, 1, 0, 0, 252, 0], 252, &[]).await.good();
        assert_eq!((data[1], data[2], told(&client, 1).await), (6, 0x29, None));
    });
}

#[test]
fn all_hear_of_a_new_size_and_of_units_that_come_and_go() {
    with_target(2, async |_, setting| {
        let clients = [Client::new(&setting, "iqn.a:1").await, Client::new(&setting, "iqn.a:2").await];
        setting.target.resized(lun(0));
        for client in &clients {
            assert_eq!((told(client, 0).await, told(client, 0).await), (Some((0x2a, 9)), None));
        }
        setting.target.remove(lun(1));
        setting.target.add(unit(setting.volume("two"), 2, Vec::new())).expect("the number is free");
        assert_eq!((told(&clients[0], 0).await, told(&clients[0], 0).await), (Some((0x3f, 0x0e)), None));
        // Whoever has read the list need not be told.
        clients[1].send(&[0xa0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0], 256, &[]).await.good();
        assert_eq!(told(&clients[1], 0).await, None);
    });
}

#[test]
fn a_change_of_access_concerns_only_those_that_it_concerns() {
    with_target(3, async |_, setting| {
        let (kept, lost) = (Client::new(&setting, "iqn.a:1").await, Client::new(&setting, "iqn.b:1").await);
        setting.target.change(lun(1), AccessList::new(["iqn.a:1"]), false);
        assert_eq!((told(&kept, 0).await, told(&lost, 0).await), (None, Some((0x3f, 0x0e))));
        assert_eq!(lost.at(1, &READY, 0, &[]).await.sense(), (5, 0x25, 0));
    });
}

#[test]
fn others_hear_of_changed_modes_and_all_of_a_reset() {
    with_target(4, async |_, setting| {
        let (one, two) = (Client::new(&setting, "iqn.a:1").await, Client::new(&setting, "iqn.a:2").await);
        let mut list = one.send(&[0x1a, 0x08, 0x0a, 0, 255, 0], 255, &[]).await.good();
        (list[0], list[2]) = (0, 0);
        list[6] |= 4;
        one.send(&[0x15, 0x10, 0, 0, list.len() as u8, 0], 0, &list).await.good();
        assert_eq!(told(&one, 0).await, None);
        // From now on sense data come in descriptors.
        let answer = two.send(&READY, 0, &[]).await;
        assert_eq!(answer.status.sense()[..4], [0x72, 6, 0x2a, 1]);
        assert!(setting.target.reset(&one.nexus, Some([0; 8])).await);
        for client in [&one, &two] {
            assert_eq!(client.send(&READY, 0, &[]).await.status.sense()[..4], [0x72, 6, 0x29, 3]);
        }
        assert_eq!(told(&two, 1).await, None, "the other unit was not reset");
        assert!(!setting.target.reset(&one.nexus, Some([0, 9, 0, 0, 0, 0, 0, 0])).await);
    });
}

#[test]
fn whoever_has_left_is_not_kept_in_mind() {
    with_target(5, async |_, setting| {
        let client = Client::fresh(&setting, "iqn.a:1");
        setting.target.leave(&client.nexus);
        setting.target.resized(lun(0));
        // Nothing was kept: the old session, were it still there, would hear nothing.
        assert_eq!(told(&client, 0).await, None);
    });
}

#[test]
fn a_reset_of_all_units_ends_nothing_that_came_after_it() {
    with_target(7, async |world, setting| {
        let (one, seam) = (Client::new(&setting, "iqn.a:1").await, setting.seam.clone());
        for (name, seconds) in [("one", 1), ("two", 2)] {
            let stall = Fault::Stall(Nanos::from_secs(seconds));
            disk(&world, name).add_fault(Rule::new(stall, Ops::ALL, When::Always));
        }
        let (writer, resetter) = (one.clone(), one.clone());
        seam.spawn(async move { drop(writer.send(&cdb16(0x8a, 8, 0, 1), 0, &content([7])).await) });
        seam.sleep(Nanos::from_millis(10)).await;
        seam.spawn(async move { assert!(resetter.setting.target.reset(&resetter.nexus, None).await) });
        seam.sleep(Nanos::from_millis(10)).await;
        let began = seam.now();
        assert_eq!(one.read(1, 0, 8).await.status, Status::Good, "the first unit's write was waited for meanwhile");
        assert!(seam.now().since(began) >= Nanos::from_secs(1));
    });
}

#[test]
fn a_command_that_nobody_waits_for_takes_no_attention_away() {
    with_target(8, async |_, setting| {
        let (fresh, cancelled) = (Client::fresh(&setting, "iqn.a:1"), Cancel::default());
        cancelled.cancel();
        assert_eq!(fresh.with([0; 8], &[0; 6], 0, &[], &cancelled).await.status, Status::Aborted);
        assert_eq!(fresh.send(&[0; 6], 0, &[]).await.sense(), (6, 0x29, 0));
    });
}
