//! Data transfers under all negotiated parameters.

use iscsi::Options;
use iscsi_protocol::request::{Attribute, Command, DataOut};
use iscsi_protocol::response::Residual;
use iscsi_protocol::{NO_TAG, RequestBody, ResponseBody};

use crate::client::{CHECK_CONDITION, Client, GOOD, LoginSpec, numbered_sectors, read_cdb, write_cdb};
use crate::fixture::with_server;

/// Status, sense key ABORTED COMMAND and additional sense code of data out of order.
const DATA_PHASE_ERROR: (u8, u8, u8) = (CHECK_CONDITION, 0x0b, 0x4b);

#[test]
fn written_data_read_back_under_any_parameters() {
    const TEXTS: [&str; 6] = [
        "",
        "InitialR2T=Yes\0ImmediateData=No\0MaxBurstLength=512\0MaxRecvDataSegmentLength=512\0",
        "InitialR2T=No\0ImmediateData=No\0FirstBurstLength=4096\0MaxOutstandingR2T=2\0MaxBurstLength=8192\0",
        "InitialR2T=No\0ImmediateData=Yes\0HeaderDigest=CRC32C\0MaxOutstandingR2T=8\0MaxRecvDataSegmentLength=5000\0",
        "InitialR2T=No\0ImmediateData=Yes\0DataDigest=CRC32C\0FirstBurstLength=512\0MaxRecvDataSegmentLength=1028\0",
        "InitialR2T=Yes\0ImmediateData=Yes\0HeaderDigest=CRC32C\0DataDigest=CRC32C\0MaxBurstLength=12288\0",
    ];
    for (seed, text) in (10..).zip(TEXTS) {
        with_server(seed, Options::default(), async |seam, _, _| {
            let mut client = Client::ready(&seam, &LoginSpec { text, ..LoginSpec::default() }).await;
            for (number, (sector, count)) in [(0, 1), (7, 8), (1, 100), (13, 2047), (8, 8)].into_iter().enumerate() {
                let data = numbered_sectors(number as u64 * 10_000 + 1, count);
                client.write(sector, &data).await;
                assert_eq!(client.read(sector, count as u16).await, data, "{count} sectors with {text}");
            }
        });
    }
}

#[test]
fn commands_run_concurrently() {
    with_server(20, Options::default(), async |seam, _, _| {
        let mut client = Client::ready(&seam, &LoginSpec::default()).await;
        for number in 0..32 {
            client.write(number * 64, &numbered_sectors(u64::from(number) * 100 + 1, 16)).await;
        }
        let mut expected = Vec::new();
        for number in 0..32 {
            expected.push((client.begin(&read_cdb(number * 64, 16), 16 * 512, &[]).await, number));
        }
        let mut data: std::collections::BTreeMap<u32, Vec<u8>> = Default::default();
        let mut outstanding = 32;
        while outstanding > 0 {
            let (response, part) = client.receive().await.expect("the server responds");
            let ResponseBody::DataIn(head) = response.body else { panic!("{response:?}") };
            data.entry(response.task_tag).or_default().extend(part);
            outstanding -= u32::from(head.status.is_some());
        }
        for (tag, number) in expected {
            assert_eq!(data[&tag], numbered_sectors(u64::from(number) * 100 + 1, 16));
        }
    });
}

#[test]
fn residual_is_reported_for_other_expected_lengths() {
    with_server(21, Options::default(), async |seam, _, _| {
        let mut client = Client::ready(&seam, &LoginSpec::default()).await;
        client.write(0, &numbered_sectors(1, 4)).await;
        for (len, residual) in [(512, Residual::Overflow(512)), (4096, Residual::Underflow(3072))] {
            let result = client.call(&read_cdb(0, 2), len, &[]).await.expect("the server responds");
            assert_eq!((result.status, result.residual), (GOOD, residual));
            assert_eq!(result.data, numbered_sectors(1, 2)[..1024.min(len as usize)]);
        }
    });
}

#[test]
fn write_with_data_out_of_order_fails_alone() {
    with_server(22, Options::default(), async |seam, _, _| {
        let mut client = Client::ready(&seam, &LoginSpec::default()).await;
        client.write(0, &numbered_sectors(1, 8)).await;
        let tag = client.tag();
        let command = Command {
            is_final: false,
            reads: false,
            writes: true,
            attribute: Attribute::Simple,
            lun: [0; 8],
            expected_len: 4096,
            expected_read_len: None,
            cdb: write_cdb(0, 8),
        };
        client.send_pdu(tag, false, RequestBody::Command(command), &[]).await;
        let pdu = DataOut { is_final: false, lun: [0; 8], target_tag: NO_TAG, data_sn: 1, offset: 0 };
        client.send_pdu(tag, false, RequestBody::DataOut(pdu), &numbered_sectors(900, 4)).await;
        let result = client.end(tag, &[]).await.expect("the connection stays open");
        assert_eq!((result.status, result.sense[2], result.sense[12]), DATA_PHASE_ERROR);
        // Further data of the command are ignored.
        client
            .send_pdu(tag, false, RequestBody::DataOut(DataOut { data_sn: 0, ..pdu }), &numbered_sectors(900, 4))
            .await;
        assert_eq!(client.read(0, 8).await, numbered_sectors(1, 8));
    });
}

#[test]
fn write_with_data_at_a_wrong_offset_fails_alone() {
    with_server(24, Options::default(), async |seam, _, _| {
        let mut client = Client::ready(&seam, &LoginSpec::default()).await;
        let data = numbered_sectors(1, 256);
        let tag = client.begin(&write_cdb(0, 256), 0, &data).await;
        let (response, _) = client.receive().await.expect("an R2T");
        let ResponseBody::ReadyToTransfer { target_tag, offset, len, .. } = response.body else {
            panic!("{response:?}")
        };
        let (offset, len) = (offset as usize, len as usize);
        client.send_data(tag, target_tag, offset + 512, &data[offset..][..len]).await;
        let (status, data_segment) = loop {
            let (response, part) = client.receive().await.expect("the connection stays open");
            match response.body {
                ResponseBody::ReadyToTransfer { .. } => (),
                ResponseBody::Command { status, .. } => break (status, part),
                other => panic!("{other:?}"),
            }
        };
        // The sense data follows its length of two bytes.
        assert_eq!((status, data_segment[2 + 2], data_segment[2 + 12]), DATA_PHASE_ERROR);
        client.write(0, &data).await;
        assert_eq!(client.read(0, 256).await, data);
    });
}

#[test]
fn damaged_pdu_ends_the_session_without_effect() {
    with_server(23, Options::default(), async |seam, server, world| {
        let text = "InitialR2T=No\0HeaderDigest=CRC32C\0DataDigest=CRC32C\0";
        for bit in [3, 400, 48 * 8 + 40, 3000] {
            let mut client = Client::ready(&seam, &LoginSpec { text, ..LoginSpec::default() }).await;
            client.write(0, &numbered_sectors(1, 8)).await;
            let (data, tag) = (numbered_sectors(900, 8), client.tag());
            let command = Command {
                is_final: true,
                reads: false,
                writes: true,
                attribute: Attribute::Simple,
                lun: [0; 8],
                expected_len: 4096,
                expected_read_len: None,
                cdb: write_cdb(0, 8),
            };
            let mut bytes = client.pdu(tag, false, RequestBody::Command(command), &data);
            bytes[bit / 8] ^= 1 << (bit % 8);
            client.send(&bytes).await;
            while let Some((response, _)) = client.receive().await {
                assert!(matches!(response.body, ResponseBody::Reject(_)), "{response:?}");
            }
            assert_eq!(crate::fixture::disk(world).tag(0), 1, "bit {bit}");
        }
        assert_eq!(server.stats().sessions, 0);
    });
}
