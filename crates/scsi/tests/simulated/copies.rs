//! EXTENDED COPY within a unit and between units.

use std::rc::Rc;

use scsi::{CancelToken, Identity, Status};
use seam::{Nanos, Seam};

use crate::codes::{
    BLOCKS_TO_BLOCKS, BYTES_TO_BYTES, CACHING_PAGE, COPY_ABORTED, DISABLE_BLOCK_DESCRIPTORS, EXTENDED_COPY,
    IDENTIFICATION_DESCRIPTOR, INVALID_FIELD_IN_CDB, MODE_SELECT_6, MODE_SENSE_6, OPERATING_PARAMETERS, PAGE_FORMAT,
    PARAMETER_LIST_LENGTH_ERROR, RECEIVE_COPY_RESULTS, RELEASE_6, RESERVE_6, SYNCHRONIZE_CACHE_10, TEST_UNIT_READY,
    UNREACHABLE_COPY_TARGET, WRITE_PROTECTED,
};
use crate::fixture::{BLOCKS, disk, lun, with_target};
use crate::initiator::{Client, Response, cdb16, content};

/// A parameter list for units 0 and 1. A segment is (index of the source unit, index of the destination unit, first
/// source block, first destination block, blocks).
fn parameter_list(id: u8, usage: u8, segments: &[(u16, u16, u64, u64, u16)]) -> Vec<u8> {
    let mut list = vec![id, usage << 3, 0, 64, 0, 0, 0, 0];
    list.extend((segments.len() as u32 * 28).to_be_bytes());
    list.extend([0; 4]);
    for volume_id in [11, 12] {
        let mut device = vec![IDENTIFICATION_DESCRIPTOR, 0, 0, 0, 1, 3, 0, 16];
        device.extend(Identity::of(77, volume_id).naa);
        device.resize(29, 0);
        device.extend([0, 2, 0]);
        list.extend(device);
    }
    for (source, destination, source_lba, destination_lba, blocks) in segments {
        list.extend([BLOCKS_TO_BLOCKS, 0, 0, 24]);
        list.extend(source.to_be_bytes());
        list.extend(destination.to_be_bytes());
        list.extend([0, 0]);
        list.extend(blocks.to_be_bytes());
        list.extend(source_lba.to_be_bytes());
        list.extend(destination_lba.to_be_bytes());
    }
    list
}

async fn copy(client: &Client, list: &[u8]) -> Response {
    client.send(&cdb16(EXTENDED_COPY, 0, 0, list.len() as u32), 0, list).await
}

/// Disables a unit's write cache, so that a copy to it takes time.
async fn write_through(client: &Client, lun: u16) {
    let mut mode =
        client.send_to(lun, &[MODE_SENSE_6, DISABLE_BLOCK_DESCRIPTORS, CACHING_PAGE, 0, 255, 0], 255, &[]).await.good();
    // Clears the mode data length, the device-specific parameter and, in the caching page, WCE.
    (mode[0], mode[2], mode[6]) = (0, 0, 0);
    client.send_to(lun, &[MODE_SELECT_6, PAGE_FORMAT, 0, 0, mode.len() as u8, 0], 0, &mode).await.good();
}

async fn receive_copy_status(client: &Client, id: u8) -> Response {
    let mut cdb = cdb16(RECEIVE_COPY_RESULTS, 0, 0, 64);
    cdb[2] = id;
    client.send(&cdb, 64, &[]).await
}

#[test]
fn blocks_are_copied_within_and_between_units_at_any_alignment() {
    with_target(1, async |_, fixture| {
        let client = Client::new(&fixture, "iqn.a:1").await;
        let data = content(1..3_001);
        client.write(0, 5, &data).await.good();
        // Unaligned to the engine's blocks and to another unit; then overlapping its source in both directions.
        copy(&client, &parameter_list(1, 2, &[(0, 1, 5, 10, 3_000), (0, 0, 5, 4_096, 3_000)])).await.good();
        assert_eq!(client.read(1, 10, 3_000).await.good(), data);
        assert_eq!(client.read(0, 4_096, 3_000).await.good(), data);
        for (from, to) in [(4_096, 4_100), (4_100, 4_093)] {
            copy(&client, &parameter_list(1, 2, &[(0, 0, from, to, 3_000)])).await.good();
            assert_eq!(client.read(0, to, 3_000).await.good(), data, "{from} to {to}");
        }
    });
}

#[test]
fn holes_stay_holes() {
    with_target(2, async |world, fixture| {
        let client = Client::new(&fixture, "iqn.a:1").await;
        client.write(1, 0, &content([7; 64])).await.good();
        client.send(&[SYNCHRONIZE_CACHE_10, 0, 0, 0, 0, 0, 0, 0, 0, 0], 0, &[]).await.good();
        client.send_to(1, &[SYNCHRONIZE_CACHE_10, 0, 0, 0, 0, 0, 0, 0, 0, 0], 0, &[]).await.good();
        let before = disk(&world, "two").counts().writes;
        copy(&client, &parameter_list(1, 2, &[(0, 1, 0, 0, 64)])).await.good();
        client.send_to(1, &[SYNCHRONIZE_CACHE_10, 0, 0, 0, 0, 0, 0, 0, 0, 0], 0, &[]).await.good();
        assert_eq!(
            (client.read(1, 0, 64).await.good(), disk(&world, "two").counts().writes),
            (content([0; 64]), before)
        );
    });
}

#[test]
fn failed_segment_ends_copy_and_reports_progress() {
    with_target(3, async |_, fixture| {
        let client = Client::new(&fixture, "iqn.a:1").await;
        client.write(0, 0, &content([7; 8])).await.good();
        let outside = copy(&client, &parameter_list(9, 0, &[(0, 1, 0, 0, 8), (0, 1, 0, BLOCKS - 1, 8)])).await;
        assert_eq!(outside.sense(), COPY_ABORTED);
        assert_eq!(receive_copy_status(&client, 9).await.good(), [0, 0, 0, 8, 2, 0, 1, 1, 0, 0, 0, 4]);
        assert_eq!(receive_copy_status(&client, 9).await.sense(), INVALID_FIELD_IN_CDB);
        assert_eq!(copy(&client, &parameter_list(1, 0, &[(0, 2, 0, 0, 8)])).await.sense(), UNREACHABLE_COPY_TARGET);
        // A unit that the initiator may not see does not exist for a copy.
        fixture.target.set_access(lun(1), scsi::AccessList::new(["iqn.b:*"]), false);
        // TEST UNIT READY consumes the unit attention of the change.
        client.send(&TEST_UNIT_READY, 0, &[]).await;
        assert_eq!(copy(&client, &parameter_list(1, 0, &[(0, 1, 0, 0, 8)])).await.sense(), UNREACHABLE_COPY_TARGET);
    });
}

#[test]
fn copy_respects_reservations_and_write_protection() {
    with_target(4, async |_, fixture| {
        let (client, other) = (Client::new(&fixture, "iqn.a:1").await, Client::new(&fixture, "iqn.a:2").await);
        other.send_to(1, &[RESERVE_6, 0, 0, 0, 0, 0], 0, &[]).await.good();
        let between_units = parameter_list(1, 2, &[(0, 1, 0, 0, 8)]);
        assert_eq!(copy(&client, &between_units).await.status, Status::ReservationConflict);
        other.send_to(1, &[RELEASE_6, 0, 0, 0, 0, 0], 0, &[]).await.good();
        fixture.target.set_access(lun(1), scsi::AccessList::default(), true);
        assert_eq!(copy(&client, &between_units).await.sense(), WRITE_PROTECTED);
    });
}

#[test]
fn cancelled_copy_stops_early() {
    with_target(5, async |_, fixture| {
        let client = Rc::new(Client::new(&fixture, "iqn.a:1").await);
        client.write(0, 0, &content(1..8_001)).await.good();
        write_through(&client, 1).await;
        let cancel = CancelToken::default();
        fixture.seam.spawn({
            let (cancel, seam) = (cancel.clone(), fixture.seam.clone());
            async move {
                seam.sleep(Nanos::from_micros(300)).await;
                cancel.cancel();
            }
        });
        let segments = [(0, 1, 0, 0, 8_000), (0, 1, 0, 8_000, 8_000), (0, 1, 0, 16_000, 8_000)];
        let list = parameter_list(3, 0, &segments);
        let response =
            client.send_cancellable([0; 8], &cdb16(EXTENDED_COPY, 0, 0, list.len() as u32), 0, &list, &cancel).await;
        assert_eq!(response.status, Status::Aborted);
        let destination = client.read(1, 23_900, 100).await.good();
        fixture.seam.sleep(Nanos::from_secs(1)).await;
        assert_eq!(client.read(1, 23_900, 100).await.good(), destination, "the copy has no effect after its end");
        assert_eq!(destination, content([0; 100]));
    });
}

#[test]
fn operating_parameters_are_reported_and_empty_list_succeeds() {
    with_target(6, async |_, fixture| {
        let client = Client::new(&fixture, "iqn.a:1").await;
        let parameters = client.send(&cdb16(RECEIVE_COPY_RESULTS, OPERATING_PARAMETERS, 0, 256), 256, &[]).await.good();
        assert_eq!(u32::from_be_bytes(parameters[..4].try_into().unwrap()) as usize, parameters.len() - 4);
        let segment_max = u32::from_be_bytes(parameters[16..20].try_into().unwrap());
        assert!(
            segment_max >= 16 << 20
                && parameters[44..] == [BLOCKS_TO_BLOCKS, BYTES_TO_BYTES, IDENTIFICATION_DESCRIPTOR]
        );
        copy(&client, &[]).await.good();
        assert_eq!(
            copy(&client, &parameter_list(1, 0, &[(0, 0, 0, 8, 8)])[..40]).await.sense(),
            PARAMETER_LIST_LENGTH_ERROR
        );
    });
}

#[test]
fn reset_of_destination_ends_copy_and_waits_for_it() {
    with_target(9, async |world, fixture| {
        let [copier, other] = [Client::new(&fixture, "iqn.a:1").await, Client::new(&fixture, "iqn.a:2").await];
        copier.write(0, 0, &content(1..8_193)).await.good();
        write_through(&copier, 1).await;
        let segments = parameter_list(1, 2, &[(0, 1, 0, 0, 8_192)]);
        let (running, seam) = (copier.clone(), fixture.seam.clone());
        let final_status = Rc::new(std::cell::Cell::new(None));
        let status_cell = Rc::clone(&final_status);
        seam.spawn(async move { status_cell.set(Some(copy(&running, &segments).await.status)) });
        seam.sleep(Nanos::from_micros(300)).await;
        assert!(fixture.target.reset(&other.nexus, Some(lun(1).encode())).await);
        fixture.volume("two").flush().await.expect("the disk works");
        let at_reset: Vec<u64> = (0..8_192).map(|block| disk(&world, "two").tag(block)).collect();
        seam.sleep(Nanos::from_secs(5)).await;
        fixture.volume("two").flush().await.expect("the disk works");
        let later: Vec<u64> = (0..8_192).map(|block| disk(&world, "two").tag(block)).collect();
        assert_eq!(final_status.take(), Some(Status::Aborted));
        assert!(at_reset == later, "the copy continued after the reset");
        assert!(at_reset.contains(&0), "the copy had ended before the reset");
    });
}
