//! The transmission phase: every command, valid and invalid.

use engine::{CacheMode, VolumeSpec, WritePolicy};
use nbd::Options;
use nbd_protocol::{Command, Errno, command, flags};
use seam::sim::{Fault, Ops, Rule, When};
use seam::{Nanos, Seam};

use crate::client::{ReplyPart, sectors};
use crate::fixture::{SIZE, connect, disk, plain, serve, with_server, world};

#[test]
fn written_data_read_back_in_any_size() {
    with_server(11, Options::default(), async |seam, _| {
        let mut client = connect(&seam).await;
        client.go("vm1").await;
        for (tag, offset, count) in [(1, 512, 1), (2, 4096, 8), (3, 65_536 + 1024, 100), (4, 1 << 20, 8192)] {
            let data = sectors(tag, count);
            assert_eq!(client.write(offset, &data).await, Ok(()));
            assert!(client.read(offset, data.len() as u32).await == Ok(data), "tag {tag}");
        }
        assert_eq!(client.read(0, 1536).await, Ok([sectors(0, 1), sectors(1, 1), sectors(0, 1)].concat()));
    });
}

#[test]
fn pipelined_long_and_short_writes_reach_their_offsets() {
    for (seed, policy) in [(40, WritePolicy::WriteBack), (41, WritePolicy::WriteThrough), (42, WritePolicy::WriteBack)]
    {
        let world = world(seed);
        let seam = world.seam();
        world.block_on(async {
            serve(&seam, VolumeSpec { policy, ..plain() }, Options::default()).await;
            let mut client = connect(&seam).await;
            client.go("vm1").await;
            // Long writes of whole blocks, short writes, and long writes with unaligned ends.
            let shapes = [(0, 128), (1 << 17, 256), (1 << 18, 8), (1 << 19, 64), (786_432 + 512, 128), (1 << 20, 129)];
            for round in 1..4 {
                for (index, (offset, count)) in (0_u64..).zip(shapes) {
                    let data = sectors(round * 10 + index, count);
                    client.send_request(Command::Write, 0, offset, data.len() as u32, &data).await;
                }
                for _ in shapes {
                    let reply = client.receive_part(0).await.map(|(_, part, last)| (part, last));
                    assert_eq!(reply, Some((ReplyPart::Done, true)));
                }
                for (index, (offset, count)) in (0_u64..).zip(shapes) {
                    let expected = sectors(round * 10 + index, count);
                    assert!(client.read(offset, expected.len() as u32).await == Ok(expected), "{index} of {round}");
                }
            }
        });
        assert_eq!(world.violations(), Vec::<String>::new());
    }
}

#[test]
fn longest_requests_are_served_in_pieces_and_longer_ones_refused() {
    with_server(12, Options::default(), async |seam, _| {
        let mut client = connect(&seam).await;
        client.go("vm1").await;
        let data = sectors(7, (32 << 20) / 512);
        assert_eq!(client.write(16 << 20, &data).await, Ok(()));
        let parts = client.call(Command::Read, 0, 0, SIZE as u32, b"").await;
        assert!(parts.len() > 100, "a read of the whole volume arrives in many chunks");
        assert!(client.read(16 << 20, 32 << 20).await == Ok(data));

        let too_long = sectors(8, (65 << 20) / 512);
        assert_eq!(client.write(0, &too_long).await, Err(Errno::Inval));
        assert_eq!(client.read(0, 512).await, Ok(sectors(0, 1)), "the connection stays open and the disk unchanged");
    });
}

#[test]
fn do_not_fragment_gives_one_chunk_or_an_error() {
    with_server(14, Options::default(), async |seam, _| {
        let mut client = connect(&seam).await;
        client.go("vm1").await;
        client.write(0, &sectors(5, 8)).await.expect("written");
        let parts = client.call(Command::Read, command::DF, 0, 4 << 20, b"").await;
        assert!(matches!(&parts[..], [ReplyPart::Data(0, data)] if data.len() == 4 << 20));
        assert_eq!(
            client.call(Command::Read, command::DF, 0, 8 << 20, b"").await,
            [ReplyPart::Failed(Errno::Overflow)]
        );
    });
}

#[test]
fn invalid_requests_get_errors_and_the_connection_stays_open() {
    with_server(15, Options::default(), async |seam, _| {
        let mut client = connect(&seam).await;
        client.go("vm1").await;
        let end = SIZE;
        let cases = [
            (Command::Read, 0, 0, 0, Errno::Inval),
            (Command::Read, 0, end - 100, 101, Errno::Inval),
            (Command::Read, 0, u64::MAX, 1, Errno::Inval),
            (Command::Read, 0, end, 512, Errno::Inval),
            (Command::Read, 0, u64::MAX - 511, 512, Errno::Inval),
            (Command::Read, command::NO_HOLE, 0, 512, Errno::Inval),
            (Command::Trim, 0, end - 512, 1024, Errno::Inval),
            (Command::Trim, 1 << 9, 0, 512, Errno::Inval),
            (Command::WriteZeroes, 0, end - 512, 1024, Errno::NoSpace),
            (Command::Cache, 0, end, 512, Errno::Inval),
            (Command::BlockStatus, 0, end, 512, Errno::Inval),
            (Command::Unknown(8), 0, 0, 512, Errno::Inval),
            (Command::Unknown(99), 0, 0, 0, Errno::Inval),
        ];
        for (command, flags, offset, len, error) in cases {
            let reply = client.call(command, flags, offset, len, b"").await;
            assert_eq!(reply, [ReplyPart::Failed(error)], "{command:?} {flags:#x} {offset}+{len}");
        }
        assert_eq!(client.write(end - 512, &[0; 1024]).await, Err(Errno::NoSpace));
        assert_eq!(client.write(end - 1, &[0; 2]).await, Err(Errno::NoSpace));
        assert_eq!(client.read(0, 512).await, Ok(sectors(0, 1)));
    });
}

#[test]
fn zero_trim_cache_and_flush_commands_take_effect() {
    with_server(16, Options::default(), async |seam, _| {
        let mut client = connect(&seam).await;
        client.go("vm1").await;
        client.write(0, &sectors(9, 64)).await.expect("written");
        for (command, flags, at) in [
            (Command::WriteZeroes, 0, 0),
            (Command::WriteZeroes, command::NO_HOLE, 4096),
            (Command::WriteZeroes, command::FUA, 8192),
            (Command::Trim, command::FUA, 12288),
        ] {
            assert_eq!(client.call(command, flags, at, 4096, b"").await, [ReplyPart::Done]);
            assert_eq!(client.read(at, 4096).await, Ok(sectors(0, 8)), "{command:?}");
        }
        assert_eq!(client.read(16384, 4096).await, Ok(sectors(9, 8)));
        assert_eq!(client.call(Command::Cache, 0, 0, 1 << 20, b"").await, [ReplyPart::Done]);
        assert_eq!(client.call(Command::Flush, 0, 0, 0, b"").await, [ReplyPart::Done]);
    });
}

#[test]
fn data_acknowledged_by_fua_or_any_flush_are_durable() {
    let world = world(17);
    let seam = world.seam();
    world.block_on(async {
        serve(&seam, plain(), Options::default()).await;
        let (mut first_client, mut second_client) = (connect(&seam).await, connect(&seam).await);
        first_client.go("vm1").await;
        second_client.go("vm1").await;
        first_client.write(0, &sectors(1, 8)).await.expect("written");
        assert_eq!(second_client.call(Command::Flush, 0, 0, 0, b"").await, [ReplyPart::Done]);
        assert_eq!(disk(&world).durable_tag(0), 1, "a flush on one connection covers all connections");
        let fua = second_client.call(Command::Write, command::FUA, 4096, 4096, &sectors(2, 8)).await;
        assert_eq!((fua, disk(&world).durable_tag(8)), (vec![ReplyPart::Done], 2));
        let long = sectors(3, 1024);
        let fua = second_client.call(Command::Write, command::FUA, 1 << 20, long.len() as u32, &long).await;
        assert_eq!((fua, disk(&world).durable_tag(2048 + 1023)), (vec![ReplyPart::Done], 3));
    });
}

#[test]
fn block_status_reports_distinct_extents_and_one_if_requested() {
    with_server(18, Options::default(), async |seam, _| {
        let mut client = connect(&seam).await;
        client.go("vm1").await;
        client.write(1 << 20, &sectors(1, 2048)).await.expect("written");
        let [ReplyPart::Status(all)] = &client.call(Command::BlockStatus, 0, 0, 4 << 20, b"").await[..] else {
            panic!("no block status");
        };
        assert_eq!(all.iter().map(|(len, _)| len).sum::<u32>(), 4 << 20);
        assert!(all.windows(2).all(|pair| pair[0].1 != pair[1].1), "{all:?}");
        let data = all.iter().filter(|(_, state)| *state & (flags::STATE_HOLE | flags::STATE_ZERO) == 0);
        assert_eq!(data.map(|(len, _)| len).sum::<u32>(), 1 << 20);
        let first_extent = client.call(Command::BlockStatus, command::REQ_ONE, 0, 4 << 20, b"").await;
        assert_eq!(first_extent, [ReplyPart::Status(all[..1].to_vec())]);
    });
}

#[test]
fn error_after_chunks_is_an_error_chunk_and_requests_continue() {
    let world = world(19);
    let seam = world.seam();
    world.block_on(async {
        serve(&seam, plain(), Options::default()).await;
        let mut client = connect(&seam).await;
        client.go("vm1").await;
        client.write(0, &sectors(1, 4096)).await.expect("written");
        client.call(Command::Flush, 0, 0, 0, b"").await;
        disk(&world).add_fault(Rule::medium_error(1 << 20..(1 << 20) + 4096));
        let parts = client.call(Command::Read, 0, 0, 2 << 20, b"").await;
        assert!(parts.last() == Some(&ReplyPart::Failed(Errno::Io)));
        assert!(parts.len() > 1, "chunks before the error are sent");
        disk(&world).clear_faults();
        assert!(client.read(0, 2 << 20).await == Ok(sectors(1, 4096)));
    });
}

#[test]
fn slow_request_does_not_delay_later_ones() {
    let world = world(20);
    let seam = world.seam();
    world.block_on(async {
        serve(&seam, plain(), Options::default()).await;
        let mut client = connect(&seam).await;
        client.go("vm1").await;
        let slow = Fault::Stall(Nanos::from_secs(5));
        disk(&world).add_fault(Rule::new(slow, Ops::READ, When::Nth(0)));
        let late = client.send_request(Command::Read, 0, 0, 4096, b"").await;
        seam.sleep(Nanos::from_millis(10)).await;
        let early = client.send_request(Command::Read, 0, 8192, 4096, b"").await;
        assert_eq!(client.receive_part(0).await.map(|(cookie, _, _)| cookie), Some(early));
        assert_eq!(client.receive_part(0).await.map(|(cookie, _, _)| cookie), Some(late));
    });
}

#[test]
fn paused_volume_is_served_even_if_its_backing_cannot_flush() {
    let world = world(24);
    let seam = world.seam();
    world.block_on(async {
        disk(&world).add_fault(Rule::new(Fault::Error, Ops::FLUSH, When::Always));
        let paused = VolumeSpec { mode: CacheMode::Paused, ..plain() };
        let core = crate::fixture::core(&seam, paused).await;
        assert_eq!(core.find("vm1").expect("the volume is attached").mode(), CacheMode::Paused);
    });
}
