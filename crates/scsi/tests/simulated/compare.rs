//! COMPARE AND WRITE is atomic against other writers; VERIFY and ORWRITE.

use std::cell::Cell;
use std::rc::Rc;

use engine::WritePolicy;
use scsi::Status;
use seam::{Nanos, Seam};

use crate::codes::{
    COMPARE_AND_WRITE, FUA, INVALID_FIELD_IN_CDB, INVALID_FIELD_IN_INFORMATION_UNIT, LBA_OUT_OF_RANGE, MISCOMPARE,
    OR_WRITE, VERIFY_10, VERIFY_16, WRITE_16, WRITE_AND_VERIFY_10,
};
use crate::fixture::{BLOCKS, with_target};
use crate::initiator::{Client, cdb10, cdb16, content};

/// BYTCHK values in the flags of VERIFY.
const COMPARE_EACH: u8 = 0x02;
const COMPARE_SAME: u8 = 0x06;
const INVALID_BYTCHK: u8 = 0x04;

/// COMPARE AND WRITE of `blocks` blocks with the tags `old` and `new`.
async fn compare_and_write(client: &Client, first: u64, old: u64, new: u64, blocks: u8) -> Status {
    let mut cdb = cdb16(COMPARE_AND_WRITE, 0, first, 0);
    cdb[13] = blocks;
    let count = usize::from(blocks);
    client.send(&cdb, 0, &content([vec![old; count], vec![new; count]].concat())).await.status
}

/// Eight initiators increment a counter by COMPARE AND WRITE over two blocks of the engine.
#[test]
fn counter_of_eight_initiators_is_exact() {
    for seed in 0..40 {
        with_target(seed, async |_, fixture| {
            let first = 7;
            // Without caching, each comparison reads the disk, which leaves time for a race.
            fixture.volume("one").set_policy(WritePolicy::None).await.expect("nothing is dirty");
            let (running, completed) = (Rc::new(Cell::new(8)), Rc::new(Cell::new(0_u64)));
            for number in 0..8 {
                let client = Client::new(&fixture, &format!("iqn.a:{number}")).await;
                let (running, completed, seam) = (Rc::clone(&running), Rc::clone(&completed), fixture.seam.clone());
                fixture.seam.spawn(async move {
                    for _ in 0..12 {
                        loop {
                            let known =
                                u64::from_le_bytes(client.read(0, first, 1).await.good()[..8].try_into().unwrap());
                            match compare_and_write(&client, first, known, known + 1, 2).await {
                                Status::Good => break,
                                status => {
                                    assert_eq!((status.sense()[2], status.sense()[12]), (MISCOMPARE.0, MISCOMPARE.1))
                                }
                            }
                        }
                        completed.set(completed.get() + 1);
                        seam.yield_now().await;
                    }
                    running.set(running.get() - 1);
                });
            }
            while running.get() > 0 {
                fixture.seam.sleep(Nanos::from_micros(100)).await;
            }
            let reader = Client::new(&fixture, "iqn.a:reader").await;
            assert_eq!(completed.get(), 96);
            assert_eq!(reader.read(0, first, 2).await.good(), content([96, 96]), "seed {seed}");
        });
    }
}

/// A WRITE and a COMPARE AND WRITE are serialised: the comparison never sees part of the write.
#[test]
fn write_is_ordered_before_or_after_compare_and_write() {
    for seed in 0..60 {
        with_target(seed, async |_, fixture| {
            let (first, second) = (Client::new(&fixture, "iqn.a:1").await, Client::new(&fixture, "iqn.a:2").await);
            fixture.volume("one").set_policy(WritePolicy::None).await.expect("nothing is dirty");
            first.write(0, 4, &content([1; 60])).await.good();
            let (ended, seam) = (Rc::new(Cell::new(false)), fixture.seam.clone());
            fixture.seam.spawn({
                let ended = Rc::clone(&ended);
                async move {
                    seam.sleep(Nanos::from_micros(seam.random() % 100)).await;
                    let fua = cdb16(WRITE_16, FUA, 4, 60);
                    second.send(&fua, 0, &content([2; 60])).await.good();
                    ended.set(true);
                }
            });
            let swapped = compare_and_write(&first, 4, 1, 3, 60).await;
            while !ended.get() {
                fixture.seam.sleep(Nanos::from_micros(10)).await;
            }
            let actual = first.read(0, 4, 60).await.good();
            // If the write is first, the comparison fails; if it is last, it overwrites.
            assert_eq!(actual, content([2; 60]), "seed {seed}: {swapped:?}");
        });
    }
}

#[test]
fn miscompare_reports_offset_and_writes_nothing() {
    with_target(1, async |_, fixture| {
        let client = Client::new(&fixture, "iqn.a:1").await;
        client.write(0, 0, &content([1, 2, 3])).await.good();
        let mut cdb = cdb16(COMPARE_AND_WRITE, 0, 0, 0);
        cdb[13] = 3;
        let response = client.send(&cdb, 0, &content([1, 2, 4, 7, 7, 7])).await;
        assert_eq!(response.sense(), MISCOMPARE);
        assert_eq!(response.status.sense()[3..7], 1024_u32.to_be_bytes());
        assert_eq!(client.read(0, 0, 3).await.good(), content([1, 2, 3]));
        // Data of another length than the command's are refused.
        for blocks in [2_u64, 4, 8] {
            assert_eq!(
                client.send(&cdb, 0, &content(vec![1; blocks as usize])).await.sense(),
                INVALID_FIELD_IN_INFORMATION_UNIT
            );
        }
        let none = cdb16(COMPARE_AND_WRITE, 0, 0, 0);
        assert_eq!(
            client.send(&none, 0, &content([0; 512])).await.sense(),
            INVALID_FIELD_IN_CDB,
            "256 blocks do not fit"
        );
        assert_eq!(client.send(&none, 0, &[]).await.status, Status::Good);
        cdb[2..10].copy_from_slice(&(BLOCKS - 2).to_be_bytes());
        assert_eq!(client.send(&cdb, 0, &content([0; 6])).await.sense(), LBA_OUT_OF_RANGE);
    });
}

#[test]
fn verify_compares_each_block_or_one_block_or_only_reads() {
    with_target(2, async |_, fixture| {
        let client = Client::new(&fixture, "iqn.a:1").await;
        client.write(0, 100, &content([5, 5, 6])).await.good();
        for (flags, data, difference) in [
            (COMPARE_EACH, content([5, 5, 6]), None),
            (COMPARE_EACH, content([5, 7, 6]), Some(512_u32)),
            (COMPARE_SAME, content([5]), Some(1024)),
            (0, Vec::new(), None),
        ] {
            for cdb in [&cdb10(VERIFY_10, flags, 100, 3)[..], &cdb16(VERIFY_16, flags, 100, 3)] {
                let response = client.send(cdb, 0, &data).await;
                match difference {
                    None => assert_eq!(response.status, Status::Good),
                    Some(difference) => {
                        assert_eq!(response.sense(), MISCOMPARE);
                        assert_eq!(response.status.sense()[3..7], difference.to_be_bytes());
                    }
                }
            }
        }
        assert_eq!(client.send(&cdb10(VERIFY_10, INVALID_BYTCHK, 100, 3), 0, &[]).await.sense(), INVALID_FIELD_IN_CDB);
    });
}

#[test]
fn or_write_sets_bits_and_clears_none() {
    with_target(3, async |_, fixture| {
        let client = Client::new(&fixture, "iqn.a:1").await;
        client.write(0, 6, &content([0b0011, 0b0101, 0])).await.good();
        client.send(&cdb16(OR_WRITE, 0, 6, 3), 0, &content([0b1001, 0b1010, 0b1])).await.good();
        assert_eq!(client.read(0, 6, 3).await.good(), content([0b1011, 0b1111, 0b1]));
    });
}

#[test]
fn write_and_verify_writes_its_data() {
    with_target(4, async |world, fixture| {
        let client = Client::new(&fixture, "iqn.a:1").await;
        for (flags, first) in [(0, 8), (COMPARE_EACH, 16)] {
            client.send(&cdb10(WRITE_AND_VERIFY_10, flags, first, 2), 0, &content([8, 9])).await.good();
            // The data is on the medium at acknowledgement.
            let disk = crate::fixture::disk(&world, "one");
            assert_eq!((disk.durable_tag(first.into()), disk.durable_tag(u64::from(first) + 1)), (8, 9));
        }
    });
}
