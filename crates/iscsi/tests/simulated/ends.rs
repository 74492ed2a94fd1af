//! Ends of sessions: logout, silence, a lost connection, a stop.

use iscsi::Options;
use iscsi_protocol::response::AsyncEvent;
use iscsi_protocol::{NO_TAG, RequestBody, ResponseBody};
use seam::sim::{Fault, Ops, Rule, When};
use seam::{Nanos, Seam};

use crate::client::{Client, LoginSpec, numbered_sectors, read_cdb, write_cdb};
use crate::fixture::{address, disk, with_server};

#[test]
fn logout_is_answered_after_all_commands() {
    with_server(60, Options::default(), async |seam, server, world| {
        let mut client = Client::ready(&seam, &LoginSpec::default()).await;
        disk(world).add_fault(Rule::new(Fault::Stall(Nanos::from_secs(3)), Ops::WRITE, When::Always));
        client.begin(&write_cdb(0, 8), 0, &numbered_sectors(1, 8)).await;
        seam.sleep(Nanos::from_millis(5)).await;
        let before = seam.now();
        client.log_out().await;
        assert!(seam.now().since(before) > Nanos::from_secs(2));
        seam.sleep(Nanos::from_millis(20)).await;
        assert_eq!(server.stats().sessions, 0);
    });
}

#[test]
fn session_reinstatement_waits_for_effects_of_the_old_session() {
    with_server(61, Options::default(), async |seam, _, world| {
        let mut old = Client::ready(&seam, &LoginSpec::default()).await;
        disk(world).add_fault(Rule::new(Fault::Stall(Nanos::from_secs(8)), Ops::WRITE, When::Nth(0)));
        old.begin(&write_cdb(0, 8), 0, &numbered_sectors(1, 8)).await;
        seam.sleep(Nanos::from_millis(5)).await;
        world.cut(&address());
        let mut fresh = Client::ready(&seam, &LoginSpec::default()).await;
        fresh.write(0, &numbered_sectors(100, 8)).await;
        seam.sleep(Nanos::from_secs(20)).await;
        assert_eq!((fresh.read(0, 8).await, disk(world).tag(0)), (numbered_sectors(100, 8), 100));
    });
}

#[test]
fn stopping_server_asks_for_logouts_and_waits_for_them() {
    with_server(62, Options::default(), async |seam, server, _| {
        let mut responsive = Client::ready(&seam, &LoginSpec::default()).await;
        let mut unresponsive = Client::ready(&seam, &LoginSpec { isid: 2, ..LoginSpec::default() }).await;
        let (stopping, before) = (server.clone(), seam.now());
        seam.spawn(async move { stopping.stop(Nanos::from_secs(5)).await });
        let (response, _) = responsive.receive().await.expect("a logout request");
        assert_eq!(response.body, ResponseBody::Async(AsyncEvent::LogOutWithin(5)));
        responsive.write(0, &numbered_sectors(1, 8)).await;
        responsive.log_out().await;
        assert!(seam.now().since(before) < Nanos::from_secs(1));
        assert!(seam.connect(&address()).await.is_err(), "the server does not listen");
        assert!(matches!(unresponsive.receive().await.expect("a logout request").0.body, ResponseBody::Async(_)));
        assert!(unresponsive.is_closed().await);
        // An idle session that does not log out is closed after 2 s (`IDLE_LOGOUT_TIMEOUT`), before the time-out
        // of the stop.
        let waited = seam.now().since(before);
        assert!(
            waited >= Nanos::from_secs(2) && waited < Nanos::from_secs(3),
            "the idle session was closed after {waited}"
        );
    });
}

#[test]
fn silent_initiator_is_pinged_and_disconnected() {
    with_server(63, Options::default(), async |seam, server, _| {
        let mut alive = Client::ready(&seam, &LoginSpec::default()).await;
        let _dead = Client::ready(&seam, &LoginSpec { isid: 2, ..LoginSpec::default() }).await;
        let until = seam.now() + Nanos::from_secs(300);
        while seam.now() < until {
            let (response, _) = alive.receive().await.expect("the session stays open");
            let ResponseBody::NopIn { target_tag, lun } = response.body else { panic!("{response:?}") };
            assert!(response.task_tag == NO_TAG && target_tag != NO_TAG);
            alive.send_pdu(NO_TAG, true, RequestBody::NopOut { lun, target_tag }, &[]).await;
        }
        assert_eq!(server.stats().sessions, 1);
    });
}

#[test]
fn vanished_initiator_leaves_no_commands_or_buffers_behind() {
    with_server(64, Options::default(), async |seam, server, world| {
        let before = seam.blocks_free();
        for round in 0..20 {
            let mut client = Client::ready(&seam, &LoginSpec::default()).await;
            for number in 0..30 {
                client.begin(&read_cdb(number * 2048, 2048), 1 << 20, &[]).await;
                client.begin(&write_cdb(number * 64, 2048), 0, &numbered_sectors(1, 2048)).await;
            }
            seam.sleep(Nanos::from_micros(round * 300)).await;
            match round % 2 {
                0 => drop(client),
                _ => world.cut(&address()),
            }
        }
        seam.sleep(Nanos::from_secs(5)).await;
        assert_eq!((server.stats().sessions, seam.blocks_free()), (0, before));
        assert_eq!(server.stats().half_open, 0);
    });
}
