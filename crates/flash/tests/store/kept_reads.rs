//! Retired records stay readable until their segments are reused.

use flash::{BlockAddress, BlockNo, OpenOptions, PageReadError, Position, ReadRequest, Sabotage, Store, VolumeId};
use seam::sim::{Fault, Ops, Rule, SimSeam, When};
use seam::{Nanos, Seam};

use crate::service::append;
use crate::world::{NAMES, SMALL, formatted, open, read_across};

/// The tag of a block's content, or the reason why it was not read.
type Read = Result<u64, &'static str>;

async fn read_kept(seam: &SimSeam, store: &Store<SimSeam>, records: &[(u64, Position)]) -> Vec<Read> {
    let address = |block| BlockAddress { volume_id: VolumeId(5), block: BlockNo(block) };
    let requests = records.iter().map(|(block, position)| ReadRequest {
        address: address(*block),
        position: *position,
        buffer: seam.alloc().expect("the pool has a free buffer"),
    });
    let read = store.read_kept(requests.collect()).await;
    let outcome = |result| match result {
        Ok(block) => Ok(block_tag(&block)),
        Err(PageReadError::Absent(_)) => Err("absent"),
        Err(PageReadError::Bad(_)) => Err("bad"),
    };
    read.into_iter().map(outcome).collect()
}

fn block_tag(block: &seam::sim::SimBlock) -> u64 {
    block.tags()[0]
}

#[test]
fn retired_record_is_read_until_its_segment_is_reused() {
    let world = formatted(1, SMALL);
    let seam = world.seam();
    world.block_on(async {
        let (store, _) = open(&world, &seam, OpenOptions::default()).await.unwrap();
        let mut records: Vec<(u64, Position)> = Vec::new();
        let mut had_absent = false;
        for block in 0..120 {
            let position = append(&seam, &store, block).await;
            store.retire(&[position]);
            records.push((block, position));
            let read = read_kept(&seam, &store, &records).await;
            let absent = read.iter().take_while(|read| **read == Err("absent")).count();
            let expected: Vec<Read> = (absent as u64..=block).map(|block| Ok(block + 100)).collect();
            assert_eq!(read[absent..], expected, "the oldest records are the first to go");
            // A segment holds four records, each behind its header. The newest segments are not reused.
            assert!(read.len() - absent >= read.len().min(12), "{absent} of {} are gone", read.len());
            had_absent |= absent > 0;
        }
        assert!(had_absent && store.expiries() > 20, "{} segments were reused", store.expiries());
    });
}

/// A read during which the segment is reused. The expiry and the checksum reject it, each by itself.
#[test]
fn read_across_a_reuse_of_the_segment_returns_nothing() {
    for (sabotage, reason) in
        [(Sabotage::None, "absent"), (Sabotage::SkipChecksum, "absent"), (Sabotage::SkipExpiryCheck, "bad")]
    {
        let world = formatted(1, SMALL);
        let seam = world.seam();
        world.block_on(async {
            let options = OpenOptions { sabotage, ..OpenOptions::default() };
            let (store, _) = open(&world, &seam, options).await.unwrap();
            let position = append(&seam, &store, 7).await;
            store.retire(&[position]);
            let stall = Rule::new(Fault::Stall(Nanos::from_millis(900)), Ops::READ, When::Nth(0));
            NAMES.iter().for_each(|name| world.disk(name).unwrap().add_fault(stall.clone()));
            let records = [(7, position)];
            let reading = read_kept(&seam, &store, &records);
            let writing = async {
                let before = store.expiries();
                while store.expiries() < before + 8 {
                    let position = append(&seam, &store, 9).await;
                    store.retire(&[position]);
                }
            };
            let read = read_across(reading, writing).await;
            assert_eq!(read, [Err(reason)], "{sabotage:?}");
        });
    }
}
