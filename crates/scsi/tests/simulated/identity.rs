//! INQUIRY, READ CAPACITY, REPORT LUNS and mode pages.

use scsi::{AccessList, Status};

use crate::codes::{
    ALL_PAGES, CACHING_PAGE, DEVICE_IDENTIFICATION, DISABLE_BLOCK_DESCRIPTORS, INQUIRY, INVALID_FIELD_IN_CDB,
    LONG_LBA_ACCEPTED, MODE_CHANGED, MODE_SELECT_6, MODE_SENSE_6, MODE_SENSE_10, NO_DEVICE, OR_WRITE, PAGE_FORMAT,
    READ_16, READ_CAPACITY_10, READ_CAPACITY_16, REPORT_LUNS, REQUEST_SENSE, SAVED_VALUES, SAVING_NOT_SUPPORTED,
    SERVICE_ACTION_IN_16, TEST_UNIT_READY, UNIT_NOT_SUPPORTED, UNMAP, WRITE_PROTECTED, WRITE_SAME_16,
};
use crate::fixture::{BLOCKS, lun, unit, with_target};
use crate::initiator::{Client, cdb16};

fn inquiry(page: Option<u8>, expected_len: u16) -> [u8; 6] {
    let [high, low] = expected_len.to_be_bytes();
    [INQUIRY, page.is_some().into(), page.unwrap_or(0), high, low, 0]
}

#[test]
fn every_listed_page_is_readable_with_its_stated_length() {
    with_target(1, async |_, fixture| {
        let client = Client::new(&fixture, "iqn.a:1").await;
        let pages = client.send(&inquiry(Some(0), 255), 255, &[]).await.good();
        assert!(pages[4..].is_sorted() && pages.len() == 4 + usize::from(pages[3]));
        for page in &pages[4..] {
            let data = client.send(&inquiry(Some(*page), 512), 512, &[]).await.good();
            assert_eq!(data[1], *page);
            assert_eq!(usize::from(u16::from_be_bytes([data[2], data[3]])), data.len() - 4, "{page:02x}");
        }
        assert_eq!(client.send(&inquiry(Some(0x01), 255), 255, &[]).await.sense(), INVALID_FIELD_IN_CDB);
    });
}

#[test]
fn designators_name_the_volume_and_the_port() {
    with_target(2, async |_, fixture| {
        let client = Client::new(&fixture, "iqn.a:1").await;
        let names =
            async |number| client.send_to(number, &inquiry(Some(DEVICE_IDENTIFICATION), 512), 512, &[]).await.good();
        let (first, second) = (names(0).await, names(1).await);
        // The first designator is the unit's: binary, NAA, sixteen bytes.
        assert_eq!(first[4..8], [1, 3, 0, 16]);
        assert_eq!(first[8] >> 4, 6);
        assert_ne!(first[8..24], second[8..24]);
        let text = String::from_utf8_lossy(&first).into_owned();
        assert!(text.contains("iqn.2026-11.io.hotset:lab,t,0x0001\0"), "{text}");
        // The designators do not depend on the unit's number.
        fixture.target.remove(lun(1));
        fixture.target.add(unit(fixture.volume("two"), 5, Vec::new())).expect("the number is free");
        client.send_to(0, &TEST_UNIT_READY, 0, &[]).await;
        assert_eq!(names(5).await, second);
    });
}

#[test]
fn capacity_is_reported_in_both_lengths_and_as_thin() {
    with_target(3, async |_, fixture| {
        let client = Client::new(&fixture, "iqn.a:1").await;
        let short = client.send(&[READ_CAPACITY_10, 0, 0, 0, 0, 0, 0, 0, 0, 0], 8, &[]).await.good();
        assert_eq!(short, [(BLOCKS as u32 - 1).to_be_bytes(), 512_u32.to_be_bytes()].concat());
        let mut cdb = cdb16(SERVICE_ACTION_IN_16, READ_CAPACITY_16, 0, 32);
        let long = client.send(&cdb, 32, &[]).await.good();
        assert_eq!((&long[..8], &long[12..16]), (&(BLOCKS - 1).to_be_bytes()[..], &[0, 3, 0xc0, 0][..]));
        // The allocation length truncates the data.
        cdb[13] = 12;
        let response = client.send(&cdb, 32, &[]).await;
        assert_eq!((response.transfer_bytes, response.good().len()), (12, 12));
    });
}

#[test]
fn initiator_sees_only_its_own_units() {
    with_target(4, async |_, fixture| {
        fixture.target.remove(lun(0));
        let mut spec = unit(fixture.volume("one"), 300, Vec::new());
        spec.access = AccessList::new(["iqn.a:*"]);
        fixture.target.add(spec).expect("the number is free");
        let report_luns = [REPORT_LUNS, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0];
        let (mine, others) = (Client::fresh(&fixture, "iqn.a:1"), Client::fresh(&fixture, "iqn.b:1"));
        let addresses = [[0, 1, 0, 0, 0, 0, 0, 0], [0x41, 44, 0, 0, 0, 0, 0, 0]].concat();
        assert_eq!(
            mine.send_to(0, &report_luns, 256, &[]).await.good(),
            [&[0, 0, 0, 16, 0, 0, 0, 0][..], &addresses].concat()
        );
        assert_eq!(
            others.send_to(0, &report_luns, 256, &[]).await.good(),
            [&[0, 0, 0, 8, 0, 0, 0, 0][..], &addresses[..8]].concat()
        );
        // LUN 0 supports INQUIRY and REPORT LUNS only.
        let standard = others.send_to(0, &inquiry(None, 96), 96, &[]).await.good();
        assert_eq!(standard[0], NO_DEVICE);
        assert_eq!(others.send_to(0, &TEST_UNIT_READY, 0, &[]).await.sense(), UNIT_NOT_SUPPORTED);
        assert_eq!(others.send_to(300, &cdb16(READ_16, 0, 0, 1), 512, &[]).await.sense(), UNIT_NOT_SUPPORTED);
        let sense = others.send_to(300, &[REQUEST_SENSE, 0, 0, 0, 252, 0], 252, &[]).await.good();
        assert_eq!((sense[2], sense[12]), (UNIT_NOT_SUPPORTED.0, UNIT_NOT_SUPPORTED.1));
        assert_ne!(mine.send_to(300, &inquiry(None, 96), 96, &[]).await.good()[0], NO_DEVICE);
    });
}

#[test]
fn caching_page_reports_and_sets_write_cache() {
    with_target(5, async |world, fixture| {
        let client = Client::new(&fixture, "iqn.a:1").await;
        let mode_sense = [MODE_SENSE_6, DISABLE_BLOCK_DESCRIPTORS, CACHING_PAGE, 0, 255, 0];
        let page = client.send(&mode_sense, 255, &[]).await.good();
        assert_eq!((page[2], page[4], page[6] & 4), (0x10, 0x08, 4));
        // Without the write cache each write is durable at acknowledgement.
        let mut list = page.clone();
        // Clears the mode data length, the device-specific parameter and, in the caching page, WCE.
        (list[0], list[2], list[6]) = (0, 0, 0);
        client.send(&[MODE_SELECT_6, PAGE_FORMAT, 0, 0, list.len() as u8, 0], 0, &list).await.good();
        assert_eq!(client.send(&mode_sense, 255, &[]).await.good()[6] & 4, 0);
        client.write(0, 9, &crate::initiator::content([5])).await.good();
        assert_eq!(crate::fixture::disk(&world, "one").durable_tag(9), 5);
    });
}

#[test]
fn write_protected_unit_reports_it_and_refuses_writes() {
    with_target(6, async |_, fixture| {
        let client = Client::new(&fixture, "iqn.a:1").await;
        fixture.target.set_access(lun(0), AccessList::default(), true);
        assert_eq!(client.send(&TEST_UNIT_READY, 0, &[]).await.sense(), MODE_CHANGED);
        assert_eq!(
            client.send(&[MODE_SENSE_6, DISABLE_BLOCK_DESCRIPTORS, ALL_PAGES, 0, 255, 0], 255, &[]).await.good()[2]
                & 0x80,
            0x80
        );
        let refused = WRITE_PROTECTED;
        let block = crate::initiator::content([1]);
        assert_eq!(client.write(0, 0, &block).await.sense(), refused);
        assert_eq!(client.send(&cdb16(WRITE_SAME_16, 0, 0, 1), 0, &block).await.sense(), refused);
        assert_eq!(client.send(&[UNMAP, 0, 0, 0, 0, 0, 0, 0, 0, 0], 0, &[]).await.sense(), refused);
        assert_eq!(client.send(&cdb16(OR_WRITE, 0, 0, 1), 0, &block).await.sense(), refused);
        assert_eq!(client.read(0, 0, 1).await.status, Status::Good);
    });
}

#[test]
fn mode_pages_have_their_stated_lengths() {
    with_target(7, async |_, fixture| {
        let client = Client::new(&fixture, "iqn.a:1").await;
        for control in 0..3 {
            let short = client.send(&[MODE_SENSE_6, 0, control << 6 | ALL_PAGES, 0, 255, 0], 255, &[]).await.good();
            assert_eq!((usize::from(short[0]) + 1, short[3]), (short.len(), 8));
            let mut cdb = [MODE_SENSE_10, LONG_LBA_ACCEPTED, control << 6 | ALL_PAGES, 0, 0, 0, 0, 1, 0, 0];
            let long = client.send(&cdb, 256, &[]).await.good();
            assert_eq!((usize::from(long[1]) + 2, long[7], long[4]), (long.len(), 16, 1));
            assert_eq!(long[24..], short[12..]);
            cdb[1] = DISABLE_BLOCK_DESCRIPTORS;
            assert_eq!(client.send(&cdb, 256, &[]).await.good()[8..], short[12..]);
        }
        assert_eq!(
            client.send(&[MODE_SENSE_6, 0, SAVED_VALUES | CACHING_PAGE, 0, 255, 0], 255, &[]).await.sense(),
            SAVING_NOT_SUPPORTED
        );
        assert_eq!(client.send(&[MODE_SENSE_6, 0, 0x09, 0, 255, 0], 255, &[]).await.sense(), INVALID_FIELD_IN_CDB);
    });
}
