//! Log-ins: who gets in, whom a new session replaces, and what initiators are told of the target.

use iscsi::{ChapUser, Credentials, Options};
use iscsi_protocol::{NO_TAG, RequestBody, ResponseBody};
use scsi::AccessList;
use seam::{Nanos, Seam};

use crate::client::{Client, Manner, read_cdb};
use crate::setting::{TARGET, with_server};

async fn send_targets(client: &mut Client, which: &str) -> String {
    let tag = client.tag();
    let body = RequestBody::Text { is_final: true, continues: false, target_tag: NO_TAG, lun: [0; 8] };
    client.say(tag, true, body, format!("SendTargets={which}\0").as_bytes()).await;
    let (response, data) = client.take().await.expect("an answer");
    assert!(matches!(response.body, ResponseBody::Text { is_final: true, continues: false, .. }), "{response:?}");
    String::from_utf8(data).expect("text")
}

#[test]
fn whoever_asks_is_told_of_the_target_where_it_connected_to_or_where_it_is_announced() {
    let discovery = Manner { session: "Discovery", text: "", ..Manner::default() };
    with_server(1, Options::default(), async |seam, _, _| {
        let mut client = Client::log_in(&seam, &discovery).await.expect("it may");
        let told = format!("TargetName={TARGET}\0TargetAddress=10.0.0.7:3260,1\0");
        assert_eq!(send_targets(&mut client, "All").await, told);
        assert_eq!(send_targets(&mut client, TARGET).await, told);
        assert_eq!(send_targets(&mut client, "iqn.other").await, "");
        assert_eq!(send_targets(&mut client, "").await, "SendTargets=Reject\0");
        client.log_out().await;
    });
    let announce = vec!["203.0.113.5:3260".to_owned(), "[2001:db8::1]:860".to_owned()];
    with_server(2, Options { announce, ..Options::default() }, async |seam, _, _| {
        let mut client = Client::log_in(&seam, &discovery).await.expect("it may");
        let told = "TargetAddress=203.0.113.5:3260,1\0TargetAddress=[2001:db8::1]:860,1\0";
        assert_eq!(send_targets(&mut client, "All").await, format!("TargetName={TARGET}\0{told}"));
    });
}

#[test]
fn a_discovery_session_takes_no_commands() {
    with_server(3, Options::default(), async |seam, _, _| {
        let discovery = Manner { session: "Discovery", ..Manner::default() };
        let mut client = Client::log_in(&seam, &discovery).await.expect("it may");
        client.begin(&read_cdb(0, 1), 512, &[]).await;
        let (response, _) = client.take().await.expect("an answer");
        assert!(matches!(response.body, ResponseBody::Reject(_)));
    });
}

#[test]
fn who_is_in_no_list_stays_out() {
    let access = AccessList::new(["iqn.1998-01.com.vmware:*"]);
    with_server(4, Options { access, ..Options::default() }, async |seam, server, _| {
        assert_eq!(Client::log_in(&seam, &Manner::default()).await.err(), Some(Some((2, 2))));
        let esx = Manner { name: "iqn.1998-01.com.VMware:esx1", ..Manner::default() };
        assert!(Client::log_in(&seam, &esx).await.is_ok());
        assert_eq!(server.stats().failed_logins, 1);
    });
}

#[test]
fn without_the_secret_nobody_gets_in() {
    let credentials = Credentials { user: "esx".into(), secret: b"fourteen bytes".to_vec(), mutual: None };
    with_server(
        5,
        Options { chap_users: vec![ChapUser::of_all(credentials)], ..Options::default() },
        async |seam, server, _| {
            assert_eq!(Client::log_in(&seam, &Manner::default()).await.err(), Some(Some((2, 1))));
            assert_eq!(server.stats().sessions, 0);
        },
    );
}

#[test]
fn the_same_initiator_port_takes_its_old_sessions_place_and_another_one_stands_beside_it() {
    with_server(6, Options::default(), async |seam, server, _| {
        let mut first = Client::ready(&seam, &Manner::default()).await;
        let mut beside = Client::ready(&seam, &Manner { isid: 2, ..Manner::default() }).await;
        let mut again = Client::ready(&seam, &Manner::default()).await;
        assert!(first.is_closed().await);
        assert_eq!((server.stats().sessions, again.read(0, 1).await.len()), (2, 512));
        assert_eq!(beside.read(0, 1).await.len(), 512);
    });
}

#[test]
fn a_session_that_is_not_there_cannot_be_gone_on_with() {
    with_server(7, Options::default(), async |seam, _, _| {
        let mut client = Client::silent(&seam).await;
        client.say_login(1, 99, &format!("InitiatorName=iqn.a\0TargetName={TARGET}\0")).await;
        let (response, _) = client.take().await.expect("an answer");
        let ResponseBody::Login(login) = response.body else { panic!("{response:?}") };
        assert_eq!(login.status, (2, 0x0a));
        assert!(client.is_closed().await);
    });
}

#[test]
fn there_are_no_more_sessions_than_there_may_be() {
    with_server(8, Options { sessions_max: 2, ..Options::default() }, async |seam, _, _| {
        let _first = Client::ready(&seam, &Manner { isid: 1, ..Manner::default() }).await;
        let mut second = Client::ready(&seam, &Manner { isid: 2, ..Manner::default() }).await;
        let third = Manner { isid: 3, ..Manner::default() };
        assert_eq!(Client::log_in(&seam, &third).await.err(), Some(Some((3, 2))));
        second.log_out().await;
        seam.sleep(Nanos::from_millis(20)).await;
        assert!(Client::log_in(&seam, &third).await.is_ok());
    });
}

#[test]
fn who_asks_for_targets_takes_nobody_s_place_and_is_sent_away_after_a_minute() {
    with_server(9, Options { sessions_max: 1, ..Options::default() }, async |seam, server, _| {
        let mut asking = Vec::new();
        let names: Vec<u8> = (1..=17).collect();
        for isid in names {
            let discovery = Manner { session: "Discovery", text: "", isid, ..Manner::default() };
            asking.push(Client::log_in(&seam, &discovery).await);
        }
        assert_eq!(asking.pop().map(|last| last.err()), Some(Some(Some((3, 2)))), "there are sixteen");
        let mut client = Client::ready(&seam, &Manner::default()).await;
        assert_eq!(client.read(0, 1).await.len(), 512);
        seam.sleep(Nanos::from_secs(70)).await;
        assert_eq!(server.sessions().iter().filter(|session| session.discovery).count(), 0);
    });
}
