//! Requests of any offset and length, from clients that request no block size.

use engine::{VolumeSpec, WritePolicy};
use nbd::Options;
use nbd_protocol::info::{Info, InfoRequest};
use nbd_protocol::{Command, Errno, OptionKind, OptionReplyKind, command};
use seam::sim::{Latency, Rng, SimDiskSpec, TaskOrder, WorldSpec};
use seam::{Geometry, Nanos};

use crate::client::{ReplyPart, sectors};
use crate::fixture::{SIZE, connect, plain, serve, with_server, world_with};

/// Size of the area of random requests.
const AREA_BYTES: usize = 600_000;

fn disk_of(logical_block: u32) -> SimDiskSpec {
    let spec = SimDiskSpec::new(SIZE);
    SimDiskSpec { geometry: Geometry { logical_block, physical_block: logical_block, ..spec.geometry }, ..spec }
}

#[test]
fn requests_at_any_byte_behave_as_an_array_of_bytes() {
    let policies = [WritePolicy::None, WritePolicy::WriteThrough, WritePolicy::WriteBack];
    for (seed, logical_block) in [(61, 512), (62, 4096)] {
        for policy in policies {
            let world = world_with(disk_of(logical_block), WorldSpec::new(seed));
            let seam = world.seam();
            world.block_on(async {
                serve(&seam, VolumeSpec { policy, ..plain() }, Options::default()).await;
                let mut client = connect(&seam).await;
                client.go("vm1").await;
                let (rng, mut array) = (Rng::new(seed, 1), vec![0; AREA_BYTES]);
                for number in 1..400 {
                    let len_max = if number % 50 == 0 { 300_000 } else { 5000 };
                    let len = 1 + rng.below(len_max) as usize;
                    let at = rng.below((AREA_BYTES - len) as u64) as usize;
                    let range = at..at + len;
                    match rng.below(5) {
                        0 | 1 => {
                            array[range].fill(number as u8);
                            let flags = if rng.coin() { command::FUA } else { 0 };
                            let data = vec![number as u8; len];
                            let reply = client.call(Command::Write, flags, at as u64, len as u32, &data).await;
                            assert_eq!(reply, [ReplyPart::Done], "write {at}+{len}");
                        }
                        2 => {
                            array[range].fill(0);
                            let flags = if rng.coin() { command::NO_HOLE } else { 0 };
                            let reply = client.call(Command::WriteZeroes, flags, at as u64, len as u32, b"").await;
                            assert_eq!(reply, [ReplyPart::Done], "zeroes {at}+{len}");
                        }
                        3 => {
                            // Whole sectors read as zeroes afterwards; partial sectors keep their content.
                            let (first, last) = (at.next_multiple_of(512), (at + len) / 512 * 512);
                            array[first.min(last)..last].fill(0);
                            let reply = client.call(Command::Trim, 0, at as u64, len as u32, b"").await;
                            assert_eq!(reply, [ReplyPart::Done], "trim {at}+{len}");
                        }
                        _ => {
                            let cached = client.call(Command::Cache, 0, at as u64, len as u32, b"").await;
                            assert_eq!(cached, [ReplyPart::Done], "cache {at}+{len}");
                        }
                    }
                    let len = 1 + rng.below(5000) as usize;
                    let at = rng.below((AREA_BYTES - len) as u64) as usize;
                    let read = client.read(at as u64, len as u32).await;
                    assert!(read.as_deref() == Ok(&array[at..at + len]), "{policy:?} {number}: read {at}+{len}");
                }
                assert!(client.read(0, AREA_BYTES as u32).await == Ok(array), "{policy:?} on {logical_block}");
            });
            assert_eq!(world.violations(), Vec::<String>::new());
        }
    }
}

#[test]
fn partial_sector_writes_by_several_clients_lose_no_byte() {
    for seed in 70..90 {
        let policy = if seed % 2 == 0 { WritePolicy::WriteBack } else { WritePolicy::WriteThrough };
        // A slow disk and little memory, which another client fills: a write waits between its read and its write.
        let mut spec = disk_of(if seed % 4 < 2 { 512 } else { 4096 });
        spec.timing.write = Latency::between(Nanos::from_micros(100), Nanos::from_millis(3));
        let world = world_with(spec, WorldSpec { blocks: 512, ..WorldSpec::new(seed) });
        let seam = world.seam();
        world.block_on(async {
            serve(&seam, VolumeSpec { policy, ..plain() }, Options::default()).await;
            let mut clients = Vec::new();
            for _ in 0..5 {
                let mut client = connect(&seam).await;
                client.go("vm1").await;
                clients.push(client);
            }
            let mut flood = connect(&seam).await;
            flood.go("vm1").await;
            // One client writes whole sectors, four clients write 100 bytes each of the same sectors, concurrently.
            for round in 0..20_u64 {
                let at = round / 4 * 4608;
                for number in 0..8 {
                    flood
                        .send_request(Command::Write, 0, (32 << 20) + (number << 17), 1 << 17, &sectors(round, 256))
                        .await;
                }
                let whole = client_byte(round, 4);
                clients[4].send_request(Command::Write, 0, at, 512, &[whole; 512]).await;
                for (number, client) in (0..4).zip(&mut clients) {
                    let part = [client_byte(round, number); 100];
                    client.send_request(Command::Write, 0, at + 100 * number, 100, &part).await;
                }
                for client in &mut clients {
                    assert_eq!(client.receive_part(0).await.map(|(_, part, _)| part), Some(ReplyPart::Done));
                }
                for _ in 0..8 {
                    assert_eq!(flood.receive_part(0).await.map(|(_, part, _)| part), Some(ReplyPart::Done));
                }
                let sector = clients[0].read(at, 512).await.expect("the read succeeds");
                for number in 0..4 {
                    let part = &sector[100 * number as usize..][..100];
                    let is_filled_with = |byte| part.iter().all(|other| *other == byte);
                    assert!(
                        is_filled_with(whole) || is_filled_with(client_byte(round, number)),
                        "seed {seed} round {round}: {part:?}"
                    );
                }
                assert!(sector[400..] == [whole; 112], "seed {seed} round {round}: bytes of the whole write");
            }
        });
        assert_eq!(world.violations(), Vec::<String>::new());
    }
}

fn client_byte(round: u64, number: u64) -> u8 {
    (1 + round * 5 + number) as u8
}

#[test]
fn block_status_with_unaligned_ends_covers_the_requested_bytes() {
    with_server(63, Options::default(), async |seam, _| {
        let mut client = connect(&seam).await;
        client.go("vm1").await;
        client.write(1 << 20, &sectors(1, 2048)).await.expect("written");
        for (at, len) in [(1, 1), (511, 2), ((1 << 20) - 700, 1400), (3, 4 << 20), ((2 << 20) - 1, 513)] {
            let [ReplyPart::Status(extents)] = &client.call(Command::BlockStatus, 0, at, len, b"").await[..] else {
                panic!("no block status");
            };
            assert_eq!(extents.iter().map(|(len, _)| len).sum::<u32>(), len, "{at}+{len}: {extents:?}");
            let mut offset = at;
            for (len, state) in extents {
                let end = offset + u64::from(*len);
                let written = offset < 2 << 20 && end > 1 << 20;
                assert!(!written || *state == 0, "data has state {state:#x} in {offset}..{end}");
                offset = end;
            }
        }
    });
}

#[test]
fn last_bytes_of_a_volume_are_writable_and_none_beyond() {
    with_server(64, Options::default(), async |seam, _| {
        let mut client = connect(&seam).await;
        client.go("vm1").await;
        assert_eq!(client.write(SIZE - 3, b"end").await, Ok(()));
        assert_eq!(client.read(SIZE - 5, 5).await, Ok(b"\0\0end".to_vec()));
        assert_eq!(client.write(SIZE - 3, b"past").await, Err(Errno::NoSpace));
        assert_eq!(client.read(SIZE - 3, 4).await, Err(Errno::Inval));
        let zeroes = client.call(Command::WriteZeroes, 0, SIZE - 3, 4, b"").await;
        assert_eq!(zeroes, [ReplyPart::Failed(Errno::NoSpace)]);
        assert_eq!(client.read(SIZE - 3, 3).await, Ok(b"end".to_vec()));
    });
}

#[test]
fn block_sizes_are_sent_only_on_request() {
    with_server(65, Options::default(), async |seam, _| {
        for wants_block_size in [true, false] {
            let mut client = connect(&seam).await;
            let request = InfoRequest { name: "vm1", wants_block_size, wants_name: false, wants_description: false };
            let replies = client.option(OptionKind::Info, &request.encode()).await;
            let infos = replies.iter().filter(|(kind, _)| *kind == OptionReplyKind::Info);
            let infos: Vec<_> = infos.map(|(_, payload)| Info::parse(payload).expect("valid info")).collect();
            let is_sent = infos.contains(&Info::BlockSize { min: 512, preferred: 4096, max: 64 << 20 });
            assert_eq!(is_sent, wants_block_size, "{infos:?}");
        }
    });
}

#[test]
fn unaligned_write_waits_for_its_sector_in_fifo_task_order() {
    let spec = WorldSpec { order: TaskOrder::Fifo, ..WorldSpec::new(66) };
    let world = world_with(disk_of(4096), spec);
    let seam = world.seam();
    world.block_on(async {
        serve(&seam, plain(), Options::default()).await;
        let mut client = connect(&seam).await;
        client.go("vm1").await;
        // The old content comes from the disk while both requests are in flight.
        let (first, second) = (b"first".to_vec(), b"second".to_vec());
        client.send_request(Command::Write, 0, 10, 5, &first).await;
        client.send_request(Command::Write, 0, 15, 6, &second).await;
        for _ in 0..2 {
            assert_eq!(client.receive_part(0).await.map(|(_, part, _)| part), Some(ReplyPart::Done));
        }
        assert_eq!(client.read(9, 13).await, Ok(b"\0firstsecond\0".to_vec()));
    });
}
