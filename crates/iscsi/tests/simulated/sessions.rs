//! Logins: access, authentication, session reinstatement and discovery.

use iscsi::{ChapUser, Credentials, Options};
use iscsi_protocol::login::Refusal;
use iscsi_protocol::{NO_TAG, RequestBody, ResponseBody};
use scsi::AccessList;
use seam::{Nanos, Seam};

use crate::client::{Client, LoginSpec, read_cdb};
use crate::fixture::{TARGET, with_server};

/// Login status classes and details.
const AUTHENTICATION_FAILED: (u8, u8) = (2, 0x01);
const NOT_AUTHORIZED: (u8, u8) = (2, 0x02);
const NO_SUCH_SESSION: (u8, u8) = (2, 0x0a);
const OUT_OF_RESOURCES: (u8, u8) = (3, 0x02);

async fn send_targets(client: &mut Client, value: &str) -> String {
    let tag = client.tag();
    let body = RequestBody::Text { is_final: true, continues: false, target_tag: NO_TAG, lun: [0; 8] };
    client.send_pdu(tag, true, body, format!("SendTargets={value}\0").as_bytes()).await;
    let (response, data) = client.receive().await.expect("the server responds");
    assert!(matches!(response.body, ResponseBody::Text { is_final: true, continues: false, .. }), "{response:?}");
    String::from_utf8(data).expect("text")
}

#[test]
fn send_targets_reports_connected_or_announced_portals() {
    let discovery = LoginSpec { session: "Discovery", text: "", ..LoginSpec::default() };
    with_server(1, Options::default(), async |seam, _, _| {
        let mut client = Client::log_in(&seam, &discovery).await.expect("the login succeeds");
        let expected = format!("TargetName={TARGET}\0TargetAddress=10.0.0.7:3260,1\0");
        assert_eq!(send_targets(&mut client, "All").await, expected);
        assert_eq!(send_targets(&mut client, TARGET).await, expected);
        assert_eq!(send_targets(&mut client, "iqn.other").await, "");
        assert_eq!(send_targets(&mut client, "").await, "SendTargets=Reject\0");
        client.log_out().await;
    });
    let announce = vec!["203.0.113.5:3260".to_owned(), "[2001:db8::1]:860".to_owned()];
    with_server(2, Options { announce, ..Options::default() }, async |seam, _, _| {
        let mut client = Client::log_in(&seam, &discovery).await.expect("the login succeeds");
        let expected = "TargetAddress=203.0.113.5:3260,1\0TargetAddress=[2001:db8::1]:860,1\0";
        assert_eq!(send_targets(&mut client, "All").await, format!("TargetName={TARGET}\0{expected}"));
    });
}

#[test]
fn discovery_session_rejects_commands() {
    with_server(3, Options::default(), async |seam, _, _| {
        let discovery = LoginSpec { session: "Discovery", ..LoginSpec::default() };
        let mut client = Client::log_in(&seam, &discovery).await.expect("the login succeeds");
        client.begin(&read_cdb(0, 1), 512, &[]).await;
        let (response, _) = client.receive().await.expect("the server responds");
        assert!(matches!(response.body, ResponseBody::Reject(_)));
    });
}

#[test]
fn unlisted_initiator_is_refused() {
    let access = AccessList::new(["iqn.1998-01.com.vmware:*"]);
    with_server(4, Options { access, ..Options::default() }, async |seam, server, _| {
        assert_eq!(Client::log_in(&seam, &LoginSpec::default()).await.err(), Some(Some(NOT_AUTHORIZED)));
        let esx = LoginSpec { name: "iqn.1998-01.com.VMware:esx1", ..LoginSpec::default() };
        assert!(Client::log_in(&seam, &esx).await.is_ok());
        assert_eq!(server.stats().failed_logins, 1);
    });
}

#[test]
fn login_without_secret_is_refused() {
    let credentials = Credentials { user: "esx".into(), secret: b"fourteen bytes".to_vec(), mutual: None };
    with_server(
        5,
        Options { chap_users: vec![ChapUser::of_all(credentials)], ..Options::default() },
        async |seam, server, _| {
            assert_eq!(Client::log_in(&seam, &LoginSpec::default()).await.err(), Some(Some(AUTHENTICATION_FAILED)));
            assert_eq!(server.stats().sessions, 0);
            let refused: Vec<_> =
                server.refused_logins().into_iter().map(|login| (login.refusal, login.count)).collect();
            assert_eq!(refused, [(Refusal::ChapRequired, 1)]);
        },
    );
}

#[test]
fn second_login_of_initiator_port_replaces_its_session() {
    with_server(6, Options::default(), async |seam, server, _| {
        let mut first = Client::ready(&seam, &LoginSpec::default()).await;
        let mut other_port = Client::ready(&seam, &LoginSpec { isid: 2, ..LoginSpec::default() }).await;
        let mut reinstated = Client::ready(&seam, &LoginSpec::default()).await;
        assert!(first.is_closed().await);
        assert_eq!((server.stats().sessions, reinstated.read(0, 1).await.len()), (2, 512));
        assert_eq!(other_port.read(0, 1).await.len(), 512);
    });
}

#[test]
fn login_to_unknown_session_is_refused() {
    with_server(7, Options::default(), async |seam, _, _| {
        let mut client = Client::connect_without_login(&seam).await;
        client.send_login(1, 99, &format!("InitiatorName=iqn.a\0TargetName={TARGET}\0")).await;
        let (response, _) = client.receive().await.expect("the server responds");
        let ResponseBody::Login(login) = response.body else { panic!("{response:?}") };
        assert_eq!(login.status, NO_SUCH_SESSION);
        assert!(client.is_closed().await);
    });
}

#[test]
fn logins_beyond_the_session_limit_are_refused() {
    with_server(8, Options { sessions_max: 2, ..Options::default() }, async |seam, _, _| {
        let _first = Client::ready(&seam, &LoginSpec { isid: 1, ..LoginSpec::default() }).await;
        let mut second = Client::ready(&seam, &LoginSpec { isid: 2, ..LoginSpec::default() }).await;
        let third = LoginSpec { isid: 3, ..LoginSpec::default() };
        assert_eq!(Client::log_in(&seam, &third).await.err(), Some(Some(OUT_OF_RESOURCES)));
        second.log_out().await;
        seam.sleep(Nanos::from_millis(20)).await;
        assert!(Client::log_in(&seam, &third).await.is_ok());
    });
}

#[test]
fn discovery_sessions_have_their_own_limit_and_end_after_a_minute() {
    with_server(9, Options { sessions_max: 1, ..Options::default() }, async |seam, server, _| {
        let mut logins = Vec::new();
        let isids: Vec<u8> = (1..=17).collect();
        for isid in isids {
            let discovery = LoginSpec { session: "Discovery", text: "", isid, ..LoginSpec::default() };
            logins.push(Client::log_in(&seam, &discovery).await);
        }
        assert_eq!(logins.pop().map(|last| last.err()), Some(Some(Some(OUT_OF_RESOURCES))), "the limit is sixteen");
        let mut client = Client::ready(&seam, &LoginSpec::default()).await;
        assert_eq!(client.read(0, 1).await.len(), 512);
        seam.sleep(Nanos::from_secs(70)).await;
        assert_eq!(server.sessions().iter().filter(|session| session.discovery).count(), 0);
    });
}
