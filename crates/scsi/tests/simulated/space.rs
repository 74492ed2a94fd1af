//! UNMAP, WRITE SAME, GET LBA STATUS and the provisioning log page.

use scsi::{PoolSpace, Status};
use seam::sim::DiskControl;

use crate::codes::{
    ALL_PAGES, ALL_SUBPAGES, CACHING_PAGE, DISABLE_BLOCK_DESCRIPTORS, GET_LBA_STATUS, INFORMATIONAL_EXCEPTIONS_PAGE,
    INVALID_FIELD_IN_CDB, INVALID_FIELD_IN_INFORMATION_UNIT, LBA_OUT_OF_RANGE, LOG_SENSE, MODE_SENSE_6,
    PARAMETER_LIST_LENGTH_ERROR, PROVISIONING_SUBPAGE, SERVICE_ACTION_IN_16, SYNCHRONIZE_CACHE_10, TEST_UNIT_READY,
    UNMAP, WRITE_SAME_10, WRITE_SAME_16,
};
use crate::fixture::{BLOCKS, POOL, disk, with_target};
use crate::initiator::{Client, cdb10, cdb16, content};

/// Flags of WRITE SAME.
const UNMAP_FLAG: u8 = 0x08;
const NDOB: u8 = 0x01;
const ANCHOR: u8 = 0x10;
/// Log page codes.
const SUPPORTED_PAGES: u8 = 0x00;
const PROVISIONING_PAGE: u8 = 0x0c;

/// The parameter list of UNMAP for ranges (first block, number of blocks).
fn unmap_list(ranges: &[(u64, u32)]) -> Vec<u8> {
    let mut list = vec![0, 0];
    list.extend((ranges.len() as u16 * 16).to_be_bytes());
    list.extend([0; 4]);
    for (first, count) in ranges {
        list.extend(first.to_be_bytes());
        list.extend(count.to_be_bytes());
        list.extend([0; 4]);
    }
    list
}

fn unmap_cdb(len: usize) -> [u8; 10] {
    cdb10(UNMAP, 0, 0, len as u16)
}

/// Space of a pool with so many MiB, and thresholds at 7, 8 and 9 MiB.
fn space(used_mib: u64, available_mib: u64) -> PoolSpace {
    PoolSpace {
        used_bytes: used_mib << 20,
        available_bytes: available_mib << 20,
        soft_thresholds: [7 << 20, 8 << 20, 9 << 20],
    }
}

/// Number of writes to the disk so far.
fn writes(disk: &DiskControl) -> u64 {
    disk.counts().writes
}

#[test]
fn unmapped_blocks_read_as_zeroes_and_invalid_lists_unmap_nothing() {
    with_target(1, async |_, fixture| {
        let client = Client::new(&fixture, "iqn.a:1").await;
        client.write(0, 0, &content([1; 64])).await.good();
        let list = unmap_list(&[(3, 2), (16, 32), (BLOCKS, 0)]);
        client.send(&unmap_cdb(list.len()), 0, &list).await.good();
        let expected = (0..64).map(|block| if [3, 4].contains(&block) || (16..48).contains(&block) { 0 } else { 1 });
        assert_eq!(client.read(0, 0, 64).await.good(), content(expected.clone()));
        let list = unmap_list(&[(0, 8), (BLOCKS - 1, 2)]);
        assert_eq!(client.send(&unmap_cdb(list.len()), 0, &list).await.sense(), LBA_OUT_OF_RANGE);
        assert_eq!(client.read(0, 0, 64).await.good(), content(expected));
        client.send(&unmap_cdb(0), 0, &[]).await.good();
        assert_eq!(client.send(&unmap_cdb(7), 0, &[0; 7]).await.sense(), PARAMETER_LIST_LENGTH_ERROR);
    });
}

#[test]
fn write_same_fills_and_zeroes_write_no_block() {
    with_target(2, async |world, fixture| {
        let (client, disk) = (Client::new(&fixture, "iqn.a:1").await, disk(&world, "one"));
        client.send(&cdb16(WRITE_SAME_16, 0, 5, 3_000), 0, &content([9])).await.good();
        assert_eq!(client.read(0, 4, 3_002).await.good(), content([vec![0], vec![9; 3_000], vec![0]].concat()));
        client.send(&cdb10(SYNCHRONIZE_CACHE_10, 0, 0, 0), 0, &[]).await.good();
        let before = writes(&disk);
        for (flags, data) in [
            (0, content([0])),
            (UNMAP_FLAG, content([0])),
            (NDOB, Vec::new()),
            (UNMAP_FLAG | NDOB, Vec::new()),
            (UNMAP_FLAG, Vec::new()),
        ] {
            client.send(&cdb16(WRITE_SAME_16, flags, 8, 2_048), 0, &data).await.good();
        }
        client.send(&cdb10(SYNCHRONIZE_CACHE_10, 0, 0, 0), 0, &[]).await.good();
        assert_eq!(writes(&disk), before);
        assert_eq!(client.read(0, 8, 2_048).await.good(), content([0; 2_048]));
        assert_eq!(client.read(0, 5, 3).await.good(), content([9; 3]));
    });
}

#[test]
fn write_same_needs_one_block_and_a_valid_range() {
    with_target(3, async |_, fixture| {
        let client = Client::new(&fixture, "iqn.a:1").await;
        for code in [WRITE_SAME_10, WRITE_SAME_16] {
            let cdb = |flags, first: u64, count: u16| match code {
                WRITE_SAME_10 => cdb10(code, flags, first as u32, count).to_vec(),
                _ => cdb16(code, flags, first, count.into()).to_vec(),
            };
            for data in [content([1])[..256].to_vec(), content([1, 1])] {
                assert_eq!(
                    client.send(&cdb(UNMAP_FLAG, 0, 1), 0, &data).await.sense(),
                    INVALID_FIELD_IN_INFORMATION_UNIT
                );
            }
            // A length of zero means all blocks to the end.
            client.send(&cdb(0, BLOCKS - 3, 0), 0, &content([code.into()])).await.good();
            assert_eq!(client.read(0, BLOCKS - 4, 4).await.good(), content([0, code.into(), code.into(), code.into()]));
            client.send(&cdb(0, BLOCKS, 0), 0, &content([1])).await.good();
            // UNMAP with other content writes it, except to the end of the unit, which is unmapped whatever the
            // content.
            client.send(&cdb(UNMAP_FLAG, 0, 1), 0, &content([3])).await.good();
            assert_eq!(client.read(0, 0, 1).await.good(), content([3]));
            client.send(&cdb(UNMAP_FLAG, BLOCKS - 2, 0), 0, &content([3])).await.good();
            assert_eq!(client.read(0, BLOCKS - 3, 3).await.good(), content([code.into(), 0, 0]));
            assert_eq!(client.send(&cdb(ANCHOR, 0, 1), 0, &content([1])).await.sense(), INVALID_FIELD_IN_CDB);
            assert_eq!(client.send(&cdb(0, BLOCKS, 1), 0, &content([1])).await.sense(), LBA_OUT_OF_RANGE);
        }
    });
}

#[test]
fn lba_status_shows_dirty_blocks_as_mapped() {
    with_target(4, async |_, fixture| {
        let client = Client::new(&fixture, "iqn.a:1").await;
        client.write(0, 800, &content([1; 64])).await.good();
        let status = async |first, expected_len: u32| {
            let mut cdb = cdb16(SERVICE_ACTION_IN_16, GET_LBA_STATUS, first, expected_len);
            cdb[14] = 0;
            let data = client.send(&cdb, expected_len.into(), &[]).await.good();
            assert_eq!(u32::from_be_bytes(data[..4].try_into().unwrap()) as usize, data.len() - 4);
            let decode_descriptor = |bytes: &[u8]| {
                let first = u64::from_be_bytes(bytes[..8].try_into().unwrap());
                (first, u32::from_be_bytes(bytes[8..12].try_into().unwrap()), bytes[12])
            };
            data[8..].chunks_exact(16).map(decode_descriptor).collect::<Vec<_>>()
        };
        assert_eq!(status(0, 8 + 16 * 9).await, [(0, 800, 1), (800, 64, 0), (864, BLOCKS as u32 - 864, 1)]);
        assert_eq!(status(808, 24).await, [(808, 56, 0)]);
        // Ranges consist of whole physical blocks.
        assert_eq!(status(801, 24).await, [(808, 56, 0)]);
        assert_eq!(status(BLOCKS - 1, 24).await, [(BLOCKS - 1, 1, 1)]);
        assert_eq!(
            client.send(&cdb16(SERVICE_ACTION_IN_16, GET_LBA_STATUS, BLOCKS, 24), 24, &[]).await.sense(),
            LBA_OUT_OF_RANGE
        );
    });
}

#[test]
fn log_page_reports_used_and_free_space_of_the_pool() {
    with_target(5, async |_, fixture| {
        let client = Client::new(&fixture, "iqn.a:1").await;
        let log_sense = async |page: u8| client.send(&[LOG_SENSE, 0, 0x40 | page, 0, 0, 0, 0, 1, 0, 0], 256, &[]).await;
        assert_eq!(log_sense(SUPPORTED_PAGES).await.good(), [0, 0, 0, 2, SUPPORTED_PAGES, PROVISIONING_PAGE]);
        assert_eq!(log_sense(PROVISIONING_PAGE).await.good(), [PROVISIONING_PAGE, 0, 0, 0]);
        fixture.target.set_pool_space(POOL, space(5, 9));
        let (free, used) = ([0, 1, 3, 8, 0, 0, 0, 9, 2, 0, 0, 0], [0, 2, 3, 8, 0, 0, 0, 5, 2, 0, 0, 0]);
        assert_eq!(
            log_sense(PROVISIONING_PAGE).await.good(),
            [vec![PROVISIONING_PAGE, 0, 0, 24], [free, used].concat()].concat()
        );
        let from_used = [LOG_SENSE, 0, 0x40 | PROVISIONING_PAGE, 0, 0, 0, 2, 1, 0, 0];
        assert_eq!(client.send(&from_used, 256, &[]).await.good()[4..], used);
        let other_unit = client.send_to(1, &[LOG_SENSE, 0, 0x40 | PROVISIONING_PAGE, 0, 0, 0, 0, 1, 0, 0], 256, &[]);
        assert_eq!(other_unit.await.good(), [PROVISIONING_PAGE, 0, 0, 0]);
        assert_eq!(log_sense(0x0d).await.sense(), INVALID_FIELD_IN_CDB);
        assert_eq!(client.send(&TEST_UNIT_READY, 0, &[]).await.status, Status::Good);
    });
}

#[test]
fn mode_page_lists_thresholds_of_thin_units_only() {
    with_target(6, async |_, fixture| {
        let client = Client::new(&fixture, "iqn.a:1").await;
        let mode_sense = async |lun, page, subpage| {
            client.send_to(lun, &[MODE_SENSE_6, DISABLE_BLOCK_DESCRIPTORS, page, subpage, 255, 0], 255, &[]).await
        };
        let (page, subpage) = (INFORMATIONAL_EXCEPTIONS_PAGE, PROVISIONING_SUBPAGE);
        assert_eq!(mode_sense(0, page, subpage).await.sense(), INVALID_FIELD_IN_CDB);
        fixture.target.set_pool_space(POOL, space(5, 9));
        let thresholds = mode_sense(0, page, subpage).await.good().split_off(4);
        assert_eq!((&thresholds[..4], thresholds.len()), (&[0x5c, 2, 0, 36][..], 40));
        let counts: Vec<_> = thresholds[16..].chunks_exact(8).map(|descriptor| descriptor[7]).collect();
        assert_eq!(counts, [7, 8, 9]);
        let with_subpages = mode_sense(0, ALL_PAGES, ALL_SUBPAGES).await.good();
        let without_subpages = mode_sense(0, ALL_PAGES, 0).await.good();
        assert_eq!(with_subpages[4..], [&without_subpages[4..], &thresholds[..]].concat());
        for (lun, page, subpage) in [(1, page, subpage), (0, CACHING_PAGE, subpage), (0, ALL_PAGES, subpage)] {
            assert_eq!(mode_sense(lun, page, subpage).await.sense(), INVALID_FIELD_IN_CDB, "{lun} {page} {subpage}");
        }
    });
}
