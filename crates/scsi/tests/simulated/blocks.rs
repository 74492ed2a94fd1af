//! READ and WRITE in every CDB length, with and without waiting.

use scsi::{CancelToken, Command, ExpectedLengths, Status};
use seam::Block;

use crate::codes::{
    COMPARE_AND_WRITE, DPO, FUA, INVALID_FIELD_IN_INFORMATION_UNIT, LBA_OUT_OF_RANGE, OR_WRITE, PRE_FETCH_10,
    PRE_FETCH_16, READ_6, READ_10, READ_12, READ_16, RESERVE_6, START_STOP_UNIT, SYNCHRONIZE_CACHE_10, TEST_UNIT_READY,
    WRITE_6, WRITE_10, WRITE_12, WRITE_16, WRITE_AND_VERIFY_16,
};
use crate::fixture::{BLOCKS, disk, with_target};
use crate::initiator::{Client, cdb10, cdb16, content};

fn cdb6(code: u8, first: u32, count: u8) -> [u8; 6] {
    let [_, a, b, c] = first.to_be_bytes();
    [code, a, b, c, count, 0]
}

fn cdb12(code: u8, flags: u8, first: u32, count: u32) -> [u8; 12] {
    let mut cdb = [0; 12];
    (cdb[0], cdb[1]) = (code, flags);
    cdb[2..6].copy_from_slice(&first.to_be_bytes());
    cdb[6..10].copy_from_slice(&count.to_be_bytes());
    cdb
}

#[test]
fn data_written_by_any_cdb_length_is_read_by_every_other() {
    with_target(1, async |_, fixture| {
        let client = Client::new(&fixture, "iqn.a:1").await;
        for (number, first) in [3_u32, 100, 2_000, 9_999].into_iter().enumerate() {
            let data = content((0..20).map(|n| u64::from(first) * 100 + n));
            let writes: [&[u8]; 4] = [
                &cdb6(WRITE_6, first, 20),
                &cdb10(WRITE_10, 0, first, 20),
                &cdb12(WRITE_12, 0, first, 20),
                &cdb16(WRITE_16, 0, first.into(), 20),
            ];
            client.send(writes[number], 0, &data).await.good();
            let reads: [&[u8]; 6] = [
                &cdb6(READ_6, first, 20),
                &cdb10(READ_10, 0, first, 20),
                &cdb12(READ_12, 0, first, 20),
                &cdb16(READ_16, 0, first.into(), 20),
                // With FUA, and with DPO.
                &cdb16(READ_16, FUA, first.into(), 20),
                &cdb10(READ_10, DPO, first, 20),
            ];
            for read in reads {
                assert_eq!(client.send(read, data.len() as u64, &[]).await.good(), data, "{read:02x?}");
            }
        }
        // A one-byte length of 0 means 256 blocks.
        assert_eq!(client.send(&cdb6(READ_6, 0, 0), 256 * 512, &[]).await.transfer_bytes, 256 * 512);
    });
}

#[test]
fn long_transfers_succeed_and_ranges_beyond_the_unit_fail() {
    with_target(2, async |_, fixture| {
        let client = Client::new(&fixture, "iqn.a:1").await;
        let data = content(1..4_001);
        client.write(0, 7, &data).await.good();
        assert_eq!(client.read(0, 7, 4_000).await.good(), data);
        assert_eq!(client.send(&cdb16(READ_16, 0, 0, BLOCKS as u32 + 1), 512, &[]).await.sense(), LBA_OUT_OF_RANGE);
        assert_eq!(client.send(&cdb16(READ_16, 0, u64::MAX, 1), 512, &[]).await.sense(), LBA_OUT_OF_RANGE);
        assert_eq!(client.send(&cdb16(READ_16, 0, BLOCKS, 0), 0, &[]).await.status, Status::Good);
        assert_eq!(client.send(&cdb16(READ_16, 0, BLOCKS + 1, 0), 0, &[]).await.sense(), LBA_OUT_OF_RANGE);
    });
}

#[test]
fn expected_length_bounds_transfer_and_residual_is_reported() {
    with_target(3, async |_, fixture| {
        let client = Client::new(&fixture, "iqn.a:1").await;
        client.write(0, 0, &content([1, 2])).await.good();
        for (expected_len, received_len) in [(0, 0), (200, 200), (1024, 1024), (10_000, 1024)] {
            let response = client.send(&cdb16(READ_16, 0, 0, 2), expected_len, &[]).await;
            assert_eq!(
                (response.status.clone(), response.transfer_bytes, response.data.len()),
                (Status::Good, 1024, received_len)
            );
            assert_eq!(response.data, content([1, 2])[..received_len]);
        }
        // A short transfer writes the whole blocks that it covers; a long one writes the command's blocks.
        for code in [WRITE_16, WRITE_AND_VERIFY_16] {
            for (len, expected) in [(0, [1, 2]), (200, [1, 2]), (512, [7, 2]), (800, [7, 2])] {
                client.write(0, 0, &content([1, 2])).await.good();
                let response = client.send(&cdb16(code, 0, 0, 2), 0, &content([7, 7])[..len]).await;
                assert_eq!((response.status, response.transfer_bytes), (Status::Good, 1024));
                assert_eq!(client.read(0, 0, 2).await.good(), content(expected));
            }
        }
        // COMPARE AND WRITE and ORWRITE need their full data length.
        for code in [OR_WRITE, COMPARE_AND_WRITE] {
            let mut cdb = cdb16(code, 0, 0, 2);
            cdb[13] = 2;
            assert_eq!(client.send(&cdb, 0, &content([7])).await.sense(), INVALID_FIELD_IN_INFORMATION_UNIT);
        }
        let response = client.send(&cdb16(WRITE_16, 0, 0, 2), 0, &content([8, 9, 10])).await;
        assert_eq!((response.transfer_bytes, client.read(0, 0, 3).await.good()), (1024, content([8, 9, 0])));
    });
}

#[test]
fn immediate_path_serves_only_commands_that_need_no_waiting() {
    with_target(4, async |_, fixture| {
        let client = Client::new(&fixture, "iqn.a:1").await;
        let cancel = CancelToken::default();
        let (read, write) = (cdb10(READ_10, 0, 8, 8), cdb10(WRITE_10, 0, 8, 8));
        let (with_fua, across_blocks) = (cdb10(WRITE_10, FUA, 8, 8), cdb10(WRITE_10, 0, 9, 8));
        let command = |cdb, out_bytes, in_bytes| Command {
            lun: [0; 8],
            cdb,
            expected: ExpectedLengths { out_bytes, in_bytes },
            cancel: &cancel,
        };
        let data = content(1..9);
        let (target, nexus) = (&fixture.target, &client.nexus);
        let mut pieces = Vec::new();
        assert!(!target.try_read(nexus, &command(&read, 0, 4096), &mut pieces), "the block is not in memory");
        assert!(target.try_write(nexus, &command(&write, 4096, 0), &data));
        assert!(target.try_read(nexus, &command(&read, 0, 4096), &mut pieces));
        let mut read_data = vec![0; 4096];
        pieces[0].block.read_bytes(0, &mut read_data);
        assert_eq!((pieces.len(), read_data), (1, data.clone()));
        // Another expected length, FUA, two blocks of the engine, and a LUN without a unit need the normal path.
        assert!(!target.try_read(nexus, &command(&read, 0, 4095), &mut pieces));
        assert!(!target.try_write(nexus, &command(&with_fua, 4096, 0), &data));
        assert!(!target.try_write(nexus, &command(&across_blocks, 4096, 0), &data));
        let absent = Command { lun: [0, 9, 0, 0, 0, 0, 0, 0], ..command(&read, 0, 4096) };
        assert!(!target.try_read(nexus, &absent, &mut pieces));
        // A pending attention and a reservation conflict need the normal path as well.
        target.report_capacity_change(crate::fixture::lun(0));
        assert!(!target.try_read(nexus, &command(&read, 0, 4096), &mut pieces));
        client.send(&TEST_UNIT_READY, 0, &[]).await;
        assert!(target.try_read(nexus, &command(&read, 0, 4096), &mut pieces));
        Client::new(&fixture, "iqn.a:2").await.send(&[RESERVE_6, 0, 0, 0, 0, 0], 0, &[]).await.good();
        assert!(!target.try_read(nexus, &command(&read, 0, 4096), &mut pieces));
        assert!(!target.try_write(nexus, &command(&write, 4096, 0), &data));
    });
}

#[test]
fn flush_and_fua_are_durable_at_acknowledgement() {
    with_target(5, async |world, fixture| {
        let (client, disk) = (Client::new(&fixture, "iqn.a:1").await, disk(&world, "one"));
        client.write(0, 0, &content([1])).await.good();
        assert_eq!(disk.durable_tag(0), 0);
        client.send(&cdb10(SYNCHRONIZE_CACHE_10, 0, 0, 0), 0, &[]).await.good();
        assert_eq!(disk.durable_tag(0), 1);
        client.send(&cdb16(WRITE_16, FUA, 1, 1), 0, &content([2])).await.good();
        assert_eq!(disk.durable_tag(1), 2);
        client.write(0, 2, &content([3])).await.good();
        client.send(&cdb10(READ_10, FUA, 2, 1), 512, &[]).await.good();
        assert_eq!(disk.durable_tag(2), 3, "a block read with FUA is on the medium");
        client.write(0, 3, &content([4])).await.good();
        client.send(&[START_STOP_UNIT, 0, 0, 0, 0, 0], 0, &[]).await.good();
        assert_eq!(disk.durable_tag(3), 4, "START STOP UNIT flushes at a stop");
    });
}

#[test]
fn blocks_accessed_with_dpo_are_not_kept_in_memory() {
    with_target(6, async |_, fixture| {
        let (client, volume) = (Client::new(&fixture, "iqn.a:1").await, fixture.volume("one"));
        let memory_bytes = || volume.stats().memory_bytes;
        client.send(&cdb10(READ_10, DPO, 64, 8), 4096, &[]).await.good();
        assert_eq!(memory_bytes(), 0);
        client.send(&cdb10(WRITE_10, DPO, 128, 8), 0, &content([1; 8])).await.good();
        client.send(&cdb10(SYNCHRONIZE_CACHE_10, 0, 0, 0), 0, &[]).await.good();
        assert_eq!(memory_bytes(), 0);
        client.send(&cdb10(READ_10, 0, 1024, 8), 4096, &[]).await.good();
        assert_eq!(memory_bytes(), 4096);
    });
}

#[test]
fn pre_fetch_loads_blocks_into_memory() {
    with_target(7, async |_, fixture| {
        let (client, volume) = (Client::new(&fixture, "iqn.a:1").await, fixture.volume("one"));
        client.send(&cdb10(PRE_FETCH_10, 0, 0, 64), 0, &[]).await.good();
        assert_eq!(volume.stats().memory_bytes, 64 * 512);
        assert_eq!(client.send(&cdb16(PRE_FETCH_16, 0, BLOCKS, 1), 0, &[]).await.sense(), LBA_OUT_OF_RANGE);
    });
}
