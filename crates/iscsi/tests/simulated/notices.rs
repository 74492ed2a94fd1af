//! Asynchronous events, and the list of slow commands.

use iscsi::Options;
use iscsi_protocol::ResponseBody;
use iscsi_protocol::response::AsyncEvent;
use scsi::Lun;
use seam::Nanos;
use seam::sim::{Fault, Ops, Rule, When};

use crate::client::{CHECK_CONDITION, Client, LoginSpec};
use crate::fixture::{disk, with_server};

/// Receives an asynchronous SCSI event: its unit and additional sense code.
async fn receive_event(client: &mut Client) -> (Option<Lun>, [u8; 2]) {
    let (response, data) = client.receive().await.expect("an event");
    let ResponseBody::Async(AsyncEvent::Scsi { lun }) = response.body else { panic!("{response:?}") };
    let (len, sense) = data.split_at(2);
    assert_eq!((usize::from(u16::from_be_bytes([len[0], len[1]])), sense[2] & 0xf), (sense.len(), 6));
    (Lun::decode(lun), [sense[12], sense[13]])
}

#[test]
fn size_and_unit_changes_are_sent_as_events_and_attentions() {
    with_server(11, Options::default(), async |seam, server, _| {
        let mut client = Client::ready(&seam, &LoginSpec::default()).await;
        server.target().report_capacity_change(Lun::ZERO);
        assert_eq!(receive_event(&mut client).await, (Some(Lun::ZERO), [0x2a, 0x09]));
        let result = client.call(&[0; 16], 0, &[]).await.expect("the server responds");
        assert_eq!((result.status, &result.sense[12..14]), (CHECK_CONDITION, &[0x2a, 0x09][..]));
        let removed = server.target().remove(Lun::ZERO).expect("the unit exists");
        assert_eq!(receive_event(&mut client).await, (Some(Lun::ZERO), [0x3f, 0x0e]));
        server.target().reinsert(removed);
        assert_eq!(receive_event(&mut client).await, (Some(Lun::ZERO), [0x3f, 0x0e]));
        let mut codes = Vec::new();
        while let Some(result) = client.call(&[0; 16], 0, &[]).await.filter(|result| result.status == CHECK_CONDITION) {
            codes.push([result.sense[12], result.sense[13]]);
        }
        assert_eq!(codes, [[0x29, 0x00], [0x3f, 0x0e]]);
        assert_eq!(client.read(0, 1).await.len(), 512);
    });
}

#[test]
fn slowest_commands_of_a_session_are_reported() {
    with_server(12, Options::default(), async |seam, server, world| {
        let mut client = Client::ready(&seam, &LoginSpec::default()).await;
        disk(world).add_fault(Rule::new(Fault::Stall(Nanos::from_secs(3)), Ops::READ, When::Nth(0)));
        client.read(9, 1).await;
        client.read(900, 1).await;
        let sessions = server.sessions();
        let slowest = &sessions[0].slowest[0];
        assert_eq!((slowest.name, slowest.lun), ("READ", Some(0)));
        assert!(slowest.latency >= Nanos::from_secs(3), "{slowest:?}");
    });
}
