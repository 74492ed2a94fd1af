//! Random bytes as commands: every command gets a response.

use scsi::{CancelToken, Command, ExpectedLengths};
use seam::Seam;
use seam::sim::SimSeam;

use crate::codes::{
    ALL_PAGES, APTPL, COMPARE_AND_WRITE, EXTENDED_COPY, IDENTIFICATION_DESCRIPTOR, MAINTENANCE_IN, MODE_SELECT_10,
    MODE_SENSE_6, OR_WRITE, PAGE_FORMAT, PERSISTENT_RESERVE_OUT, REPORT_OPCODES, SPEC_I_PT, UNMAP, VERIFY_10,
    VERIFY_12, VERIFY_16, WRITE_6, WRITE_10, WRITE_12, WRITE_16, WRITE_AND_VERIFY_10, WRITE_AND_VERIFY_12,
    WRITE_AND_VERIFY_16, WRITE_SAME_10, WRITE_SAME_16,
};
use crate::fixture::with_target;
use crate::initiator::{Client, content};
use crate::reservations::REGISTER_AND_MOVE;

/// Random bytes, many of them zero.
fn random_bytes(seam: &SimSeam, len: usize) -> Vec<u8> {
    (0..len)
        .map(|_| match seam.random() % 4 {
            0 => seam.random() as u8,
            1 => 1 << (seam.random() % 8),
            _ => 0,
        })
        .collect()
}

/// The usage data of every command, as reported by the target.
async fn usages(client: &Client) -> Vec<Vec<u8>> {
    let report = |option, code, action| [MAINTENANCE_IN, REPORT_OPCODES, option, code, 0, action, 0, 0, 16, 0, 0, 0];
    let list = client.send(&report(ALL_COMMANDS, 0, 0), 4_096, &[]).await.good();
    let mut usages = Vec::new();
    for command in list[4..].chunks_exact(8) {
        let usage = client.send(&report(ONE_COMMAND, command[0], command[3]), 4_096, &[]).await.good();
        usages.push(usage[4..].to_vec());
    }
    usages
}

/// Reporting options of REPORT SUPPORTED OPERATION CODES.
const ALL_COMMANDS: u8 = 0;
const ONE_COMMAND: u8 = 3;

/// Operation codes whose data is blocks: in the simulated world a block is a repeated tag, not random bytes.
const BLOCKS_OUT: [u8; 14] = [
    WRITE_6,
    WRITE_10,
    WRITE_AND_VERIFY_10,
    VERIFY_10,
    WRITE_SAME_10,
    COMPARE_AND_WRITE,
    WRITE_16,
    OR_WRITE,
    WRITE_AND_VERIFY_16,
    VERIFY_16,
    WRITE_SAME_16,
    WRITE_12,
    WRITE_AND_VERIFY_12,
    VERIFY_12,
];

#[test]
fn random_commands_are_answered() {
    for seed in 0..4 {
        with_target(seed, async |_, fixture| {
            let clients = [Client::new(&fixture, "iqn.a:1").await, Client::new(&fixture, "iqn.a:2").await];
            let (seam, usages) = (&fixture.seam, usages(&clients[0]).await);
            let mut good = 0;
            for _ in 0..6_000 {
                let len = 6 + seam.random() as usize % 11;
                let mut cdb = random_bytes(seam, len);
                let usage = &usages[seam.random() as usize % usages.len()];
                if seam.random() % 8 > 0 {
                    cdb = random_bytes(seam, usage.len());
                    cdb.iter_mut().zip(usage).for_each(|(byte, usage)| *byte &= usage);
                    (cdb[0], cdb[1]) = (usage[0], if seam.random() % 2 == 0 { usage[1] } else { cdb[1] });
                }
                let data_len = match seam.random() % 3 {
                    0 => 0,
                    _ => seam.random() as usize % 2_000,
                };
                let out = match BLOCKS_OUT.contains(&cdb[0]) {
                    true => content((0..data_len as u64 / 100).map(|_| seam.random() % 3)),
                    false => random_bytes(seam, data_len),
                };
                let lun = if seam.random() % 16 == 0 { random_bytes(seam, 8).try_into().unwrap() } else { [0; 8] };
                let client = &clients[seam.random() as usize % 2];
                let (expected_len, cancel) = (seam.random() % 5_000, CancelToken::default());
                let expected = ExpectedLengths { out_bytes: out.len() as u64, in_bytes: expected_len };
                let command = Command { lun, cdb: &cdb, expected, cancel: &cancel };
                fixture.target.try_read(&client.nexus, &command, &mut Vec::new());
                fixture.target.try_write(&client.nexus, &command, &out);
                let response = client.send_cancellable(lun, &cdb, expected_len, &out, &cancel).await;
                good += u32::from(response.status.code() == 0);
            }
            assert!(good > 500, "only {good} of the commands succeeded");
        });
    }
}

/// Valid parameter lists with a few changed bytes; fully random lists seldom pass the first checks.
#[test]
fn corrupted_parameter_lists_are_answered() {
    with_target(9, async |_, fixture| {
        let client = Client::new(&fixture, "iqn.a:1").await;
        let seam = &fixture.seam;
        let id = client.nexus.initiator().transport_id();
        // PERSISTENT RESERVE OUT: reservation key, service action key, flags, one TransportID with its length.
        let mut register = [1_u64.to_be_bytes(), 2_u64.to_be_bytes()].concat();
        register.extend([0, 0, 0, 0, SPEC_I_PT | APTPL, 0, 0, 0]);
        register.extend((id.len() as u32).to_be_bytes());
        register.extend(&id);
        // EXTENDED COPY: header, one CSCD descriptor of 32 bytes that identifies the unit, one block-to-block segment
        // descriptor of 28 bytes.
        let mut copy =
            vec![1, 0, 0, 32, 0, 0, 0, 0, 0, 0, 0, 28, 0, 0, 0, 0, IDENTIFICATION_DESCRIPTOR, 0, 0, 0, 1, 3, 0, 16];
        copy.extend(scsi::Identity::of(77, 11).naa);
        copy.extend([0, 0, 0, 0, 0, 0, 2, 0]);
        copy.extend([2, 0, 0, 24, 0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 1, 0]);
        // MODE SELECT: all mode pages, as MODE SENSE returns them.
        let mode = client.send(&[MODE_SENSE_6, 0, ALL_PAGES, 0, 255, 0], 255, &[]).await.good();
        // UNMAP: header, one block descriptor.
        let unmap = [&[0, 0, 0, 16, 0, 0, 0, 0][..], &[0; 6], &[7, 7, 0, 0, 0, 9, 0, 0, 0, 0]].concat();
        for _ in 0..20_000 {
            let (code, action, list) = match seam.random() % 5 {
                0 => (PERSISTENT_RESERVE_OUT, (seam.random() % 8) as u8, &register),
                1 => (PERSISTENT_RESERVE_OUT, REGISTER_AND_MOVE, &register),
                2 => (EXTENDED_COPY, 0, &copy),
                3 => (UNMAP, 0, &unmap),
                _ => (MODE_SELECT_10, PAGE_FORMAT, &mode),
            };
            let mut list = list.clone();
            for _ in 0..seam.random() % 4 {
                let at = seam.random() as usize % list.len();
                list[at] = random_bytes(seam, 1)[0];
            }
            list.truncate(list.len() - (seam.random() % 12).saturating_sub(6) as usize);
            let len = list.len() as u8;
            let mut cdb = [0; 16];
            (cdb[0], cdb[1]) = (code, action);
            match code {
                EXTENDED_COPY => cdb[13] = len,
                _ => cdb[8] = len,
            }
            client.send(&cdb, 64, &list).await;
        }
    });
}
