//! Reads with simple replies that are too long to be held.

use nbd::Options;
use nbd_protocol::{Command, Errno};
use seam::BLOCK_BYTES;
use seam::sim::{Rule, SimDiskSpec, WorldSpec};

use crate::client::{ReplyPart, sectors};
use crate::fixture::{SIZE, connect, disk, plain, serve, with_server, world, world_with};

const MIB: u64 = 1 << 20;

#[test]
fn simple_reads_of_any_length_fit_a_small_pool() {
    let blocks = (8 * MIB) as usize / BLOCK_BYTES;
    let world = world_with(SimDiskSpec::new(SIZE), WorldSpec { blocks, ..WorldSpec::new(13) });
    let seam = world.seam();
    world.block_on(async {
        serve(&seam, plain(), Options::default()).await;
        let mut client = connect(&seam).await;
        client.go_simple("vm1").await;
        for at in [0, 5 * MIB, 17 * MIB - 4096, 40 * MIB] {
            let cookie = client.send_request(Command::Write, 0, at, 4096, &sectors(at + 1, 8)).await;
            assert_eq!(client.receive_part(0).await, Some((cookie, ReplyPart::Done, true)));
        }
        for (offset, len) in [(0, 4 * MIB), (0, 17 * MIB), (4096, 32 * MIB), (0, SIZE)] {
            let cookie = client.send_request(Command::Read, 0, offset, len as u32, b"").await;
            let Some((reply_cookie, ReplyPart::Data(_, data), true)) = client.receive_part(len as usize).await else {
                panic!("no data")
            };
            assert_eq!(reply_cookie, cookie);
            for at in [0, 5 * MIB, 17 * MIB - 4096, 40 * MIB] {
                if (offset..offset + len).contains(&at) {
                    assert_eq!(data[(at - offset) as usize..][..4096], sectors(at + 1, 8), "{offset}+{len}: {at}");
                }
            }
        }
    });
    assert_eq!(world.violations(), Vec::<String>::new());
}

#[test]
fn other_replies_do_not_interrupt_a_long_simple_read() {
    with_server(14, Options::default(), async |seam, _| {
        let mut client = connect(&seam).await;
        client.go_simple("vm1").await;
        client.send_request(Command::Write, 0, 0, 1024, &sectors(6, 2)).await;
        client.send_request(Command::Flush, 0, 0, 0, b"").await;
        client.send_request(Command::Read, 0, 0, 20 << 20, b"").await;
        client.send_request(Command::Write, 0, 4096, 512, &sectors(7, 1)).await;
        client.send_request(Command::Read, 0, 0, 18 << 20, b"").await;
        client.send_request(Command::Flush, 0, 0, 0, b"").await;
        for cookie in 1..=6 {
            let len = [0, 0, 0, 20 << 20, 0, 18 << 20, 0][cookie as usize];
            // Requests before the long read are answered in any order, but none inside its reply.
            let (answered, part, _) = client.receive_part(len).await.expect("a reply");
            assert!(if cookie < 3 { answered < 3 } else { answered == cookie }, "{answered} instead of {cookie}");
            if let ReplyPart::Data(_, data) = part {
                assert_eq!(data[..1024], sectors(6, 2));
                assert_eq!(data[4096..4608], sectors(if cookie == 3 { 0 } else { 7 }, 1));
            }
        }
    });
}

#[test]
fn error_inside_a_long_simple_read_ends_only_its_connection() {
    let world = world(19);
    let seam = world.seam();
    world.block_on(async {
        serve(&seam, plain(), Options::default()).await;
        let (mut client, mut other) = (connect(&seam).await, connect(&seam).await);
        client.go_simple("vm1").await;
        other.go("vm1").await;
        disk(&world).add_fault(Rule::medium_error(9 * MIB..9 * MIB + 4096));
        client.send_request(Command::Read, 0, 9 * MIB, 20 << 20, b"").await;
        assert_eq!(
            client.receive_part(0).await,
            Some((1, ReplyPart::Failed(Errno::Io), true)),
            "the error precedes all data"
        );
        client.send_request(Command::Read, 0, 0, 20 << 20, b"").await;
        assert_eq!(client.receive_part(20 << 20).await, None, "a partial reply cannot be withdrawn");
        assert_eq!(other.read(0, 512).await, Ok(sectors(0, 1)));
    });
}
