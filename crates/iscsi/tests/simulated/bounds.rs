//! Resource limits: a misbehaving initiator does not affect other initiators.

use iscsi::Options;
use iscsi_protocol::request::{Attribute, Command};
use iscsi_protocol::{RequestBody, ResponseBody};
use seam::{Nanos, Seam};

use crate::client::{Client, GOOD, LoginSpec, numbered_sectors, read_cdb, write_cdb};
use crate::fixture::with_server;

/// Status of a command beyond the write quota.
const TASK_SET_FULL: u8 = 0x28;

/// Login of another initiator port.
fn login_with_isid(isid: u8) -> LoginSpec {
    LoginSpec { isid, ..LoginSpec::default() }
}

#[test]
fn silent_connections_make_room_for_a_login() {
    let options = Options { logins_max: 8, ..Options::default() };
    with_server(30, options, async |seam, server, _| {
        let mut silent = Vec::new();
        for _ in 0..100 {
            silent.push(Client::connect_without_login(&seam).await);
        }
        seam.sleep(Nanos::from_millis(5)).await;
        assert!(server.stats().half_open <= 8);
        let mut client = Client::ready(&seam, &LoginSpec::default()).await;
        assert_eq!(client.read(0, 1).await.len(), 512);
        seam.sleep(Nanos::from_secs(20)).await;
        assert_eq!((server.stats().half_open, server.stats().sessions), (0, 1), "silent connections time out");
    });
}

#[test]
fn garbage_ends_only_its_own_connection() {
    with_server(31, Options::default(), async |seam, server, _| {
        let mut healthy = Client::ready(&seam, &LoginSpec::default()).await;
        for seed in 0..100_u64 {
            let mut client = match seed % 2 {
                0 => Client::connect_without_login(&seam).await,
                _ => Client::ready(&seam, &login_with_isid(2)).await,
            };
            let mut random = seed;
            let garbage = std::iter::repeat_with(|| {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                // Valid opcodes reach deeper code than invalid ones.
                (random >> 56) as u8 & 0x47
            });
            client.send(&garbage.take(2000).collect::<Vec<_>>()).await;
            assert_eq!(healthy.read(0, 1).await.len(), 512);
        }
        seam.sleep(Nanos::from_secs(60)).await;
        healthy.ping(b"").await;
        assert!(server.stats().sessions <= 2);
    });
}

#[test]
fn initiator_that_reads_no_replies_is_bounded_by_its_quota() {
    with_server(32, Options::default(), async |seam, _, _| {
        let mut healthy = Client::ready(&seam, &LoginSpec::default()).await;
        healthy.write(0, &numbered_sectors(1, 8)).await;
        let mut stalled = Vec::new();
        for isid in 2..6 {
            let mut client = Client::ready(&seam, &login_with_isid(isid)).await;
            for number in 0..100 {
                client.begin(&read_cdb(number % 60 * 2048, 2048), 1 << 20, &[]).await;
            }
            stalled.push(client);
        }
        seam.sleep(Nanos::from_secs(5)).await;
        assert_eq!(healthy.read(0, 8).await, numbered_sectors(1, 8));
        let used = seam.blocks_total() - seam.blocks_free();
        assert!(used <= seam.blocks_total() / 2, "{used} of {} buffers are in use", seam.blocks_total());
    });
}

#[test]
fn writes_beyond_the_limit_get_their_r2ts_one_after_another() {
    let options = Options { payload_bytes_max: 2 << 20, ..Options::default() };
    with_server(33, options, async |seam, _, _| {
        let mut client = Client::ready(&seam, &LoginSpec::default()).await;
        let mut outstanding = std::collections::BTreeMap::new();
        for number in 0..16_u32 {
            let data = numbered_sectors(u64::from(number) * 10_000 + 1, 4096);
            let tag = client.begin(&write_cdb(number * 4096, 4096), 0, &data).await;
            outstanding.insert(tag, data);
        }
        seam.sleep(Nanos::from_secs(1)).await;
        let ping = client.ping(b"").await;
        let (mut requested, mut requested_bytes, mut is_counted) = (std::collections::VecDeque::new(), 0, false);
        while !outstanding.is_empty() {
            let (response, _) = client.receive().await.expect("the session is open");
            match response.body {
                ResponseBody::ReadyToTransfer { target_tag, offset, len, .. } => {
                    requested.push_back((response.task_tag, target_tag, offset as usize, len as usize));
                    requested_bytes += len as usize;
                }
                ResponseBody::NopIn { .. } => {
                    assert_eq!(response.task_tag, ping);
                    // At least one R2T of 256 KiB. At most `payload_bytes_max`, 2 MiB, less the unsolicited data of the
                    // 16 writes, 64 KiB each.
                    let (min, max) = (256 << 10, 1 << 20);
                    assert!((min..=max).contains(&requested_bytes), "{requested_bytes} bytes were requested at once");
                    is_counted = true;
                }
                ResponseBody::Command { status, .. } => {
                    assert_eq!(status, GOOD);
                    outstanding.remove(&response.task_tag);
                }
                other => panic!("{other:?}"),
            }
            while is_counted && let Some((tag, target_tag, offset, len)) = requested.pop_front() {
                let part = outstanding[&tag][offset..][..len].to_vec();
                client.send_data(tag, target_tag, offset, &part).await;
            }
        }
        for number in 0..16 {
            assert_eq!(client.read(number * 4096, 100).await, numbered_sectors(u64::from(number) * 10_000 + 1, 100));
        }
    });
}

#[test]
fn unsolicited_data_is_limited_even_if_it_comes_late() {
    let options = Options { payload_bytes_max: 1 << 20, ..Options::default() };
    with_server(36, options, async |seam, _, _| {
        let text = "InitialR2T=No\0ImmediateData=No\0FirstBurstLength=262144\0";
        let mut client = Client::ready(&seam, &LoginSpec { text, ..LoginSpec::default() }).await;
        for number in 0..16 {
            let command = Command {
                is_final: false,
                reads: false,
                writes: true,
                attribute: Attribute::Simple,
                lun: [0; 8],
                expected_len: 256 << 10,
                expected_read_len: None,
                cdb: write_cdb(number * 512, 512),
            };
            client.send_pdu(100 + number, false, RequestBody::Command(command), &[]).await;
        }
        let ping = client.ping(b"").await;
        let mut refused = 0;
        loop {
            let (response, _) = client.receive().await.expect("the session is open");
            match response.body {
                ResponseBody::Command { status, .. } => {
                    assert_eq!(status, TASK_SET_FULL);
                    refused += 1;
                }
                _ if response.task_tag == ping => break,
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(refused, 12, "4 MiB were announced, 1 MiB fits");
    });
}

#[test]
fn commands_outside_the_window_are_ignored_and_others_served() {
    with_server(34, Options { commands_max: 4, ..Options::default() }, async |seam, _, _| {
        let mut client = Client::ready(&seam, &LoginSpec::default()).await;
        let first = client.cmd_sn;
        assert_eq!(client.max_cmd_sn.wrapping_sub(first).wrapping_add(1), 4);
        client.cmd_sn = client.max_cmd_sn.wrapping_add(1);
        client.begin(&read_cdb(0, 1), 512, &[]).await;
        client.cmd_sn = first.wrapping_sub(1);
        client.begin(&read_cdb(0, 1), 512, &[]).await;
        client.cmd_sn = first;
        for _ in 0..100 {
            assert_eq!(client.read(0, 1).await.len(), 512);
        }
        client.cmd_sn = client.cmd_sn.wrapping_add(1);
        client.begin(&read_cdb(0, 1), 512, &[]).await;
        assert!(client.is_closed().await, "a gap in CmdSN ends the session: TCP delivers in order");
    });
}

#[test]
fn too_many_immediate_commands_are_rejected() {
    with_server(35, Options::default(), async |seam, _, world| {
        use seam::sim::{Fault, Ops, Rule, When};
        let mut client = Client::ready(&seam, &LoginSpec::default()).await;
        let stall = Fault::Stall(Nanos::from_secs(5));
        crate::fixture::disk(world).add_fault(Rule::new(stall, Ops::READ, When::Always));
        for number in 0..40 {
            let (tag, cdb) = (client.tag(), read_cdb(number * 2048, 8));
            let command = Command {
                is_final: true,
                reads: true,
                writes: false,
                attribute: Attribute::Simple,
                lun: [0; 8],
                expected_len: 4096,
                expected_read_len: None,
                cdb,
            };
            client.send_pdu(tag, true, RequestBody::Command(command), &[]).await;
        }
        let (mut rejected, mut served) = (0, 0);
        while rejected + served < 40 {
            match client.receive().await.expect("the session is open").0.body {
                ResponseBody::Reject(_) => rejected += 1,
                ResponseBody::DataIn(head) => served += u32::from(head.status.is_some()),
                other => panic!("{other:?}"),
            }
        }
        assert_eq!((served, rejected), (16, 24));
    });
}

#[test]
fn data_for_a_hung_disk_counts_against_the_limit() {
    let options = Options { payload_bytes_max: 1 << 20, ..Options::default() };
    with_server(37, options, async |seam, _, world| {
        use seam::sim::{Fault, Ops, Rule, When};
        let mut client = Client::ready(&seam, &LoginSpec::default()).await;
        let stall = Fault::Stall(Nanos::from_secs(5));
        crate::fixture::disk(world).add_fault(Rule::new(stall, Ops::WRITE, When::Always));
        for number in 0..16 {
            client.begin(&write_cdb(number * 512, 512), 0, &numbered_sectors(1, 512)).await;
        }
        let (began, mut requested) = (seam.now(), 0);
        while seam.now().since(began) < Nanos::from_secs(4) {
            let ping = client.ping(b"").await;
            loop {
                let (response, _) = client.receive().await.expect("the session is open");
                match response.body {
                    ResponseBody::ReadyToTransfer { target_tag, offset, len, .. } => {
                        requested += len;
                        let part = &numbered_sectors(1, 512)[offset as usize..][..len as usize];
                        client.send_data(response.task_tag, target_tag, offset as usize, part).await;
                    }
                    _ if response.task_tag == ping => break,
                    other => panic!("{other:?}"),
                }
            }
            seam.sleep(Nanos::from_millis(50)).await;
        }
        assert!((256 << 10..=1 << 20).contains(&requested), "{requested} bytes were requested");
    });
}
