//! Resource limits: a misbehaving client does not affect other clients.

use nbd::Options;
use nbd_protocol::{Command, Request};
use seam::sim::SimSeam;
use seam::{Nanos, Seam};

use crate::client::{Client, ReplyPart, sectors};
use crate::fixture::{SIZE, connect, listen, plain, serve, with_server, world};

/// Header of a write of `len` bytes at offset 0.
fn write_header(len: u32) -> [u8; 28] {
    Request { flags: 0, command: Command::Write, cookie: 1, offset: 0, len }.encode()
}

#[test]
fn two_hundred_stalled_clients_do_not_slow_a_healthy_one() {
    with_server(31, Options::default(), async |seam, server| {
        let mut stalled = Vec::new();
        for number in 0..200 {
            let mut client = connect(&seam).await;
            client.go("vm1").await;
            match number % 3 {
                0 => client.send(&write_header(4096)[..20]).await,
                1 => client.send(&[&write_header(65_536)[..], &[0; 10_000]].concat()).await,
                _ => client.send(&[&write_header(32 << 20)[..], &[0; 10_000]].concat()).await,
            }
            stalled.push(client);
        }
        let mut client = connect(&seam).await;
        client.go("vm1").await;
        let before = seam.now();
        for number in 0..50 {
            client.write(number * 4096, &sectors(number + 1, 8)).await.expect("written");
            assert_eq!(client.read(number * 4096, 4096).await, Ok(sectors(number + 1, 8)));
        }
        assert!(seam.now().since(before) < Nanos::from_millis(200), "simulated time, equal on every machine");
        assert_eq!(server.stats().connections, 201);
    });
}

#[test]
fn client_that_reads_no_replies_is_held_to_its_quota() {
    let world = world(32);
    let seam = world.seam();
    world.block_on(async {
        serve(&seam, plain(), Options::default()).await;
        let mut stalled = Vec::new();
        for _ in 0..4 {
            let mut client = connect(&seam).await;
            client.go("vm1").await;
            let reads = (0..1000).flat_map(|cookie| {
                let (offset, len) = ((cookie % 60) << 20, 1 << 20);
                Request { flags: 0, command: Command::Read, cookie, offset, len }.encode()
            });
            client.send(&reads.collect::<Vec<_>>()).await;
            stalled.push(client);
        }
        // Data other than zeroes, which would be sent as a hole.
        let mut client = connect(&seam).await;
        client.go("vm1").await;
        client.write(0, &sectors(1, 8)).await.expect("written");
        seam.sleep(Nanos::from_secs(5)).await;
        assert_eq!(client.read(0, 4096).await, Ok(sectors(1, 8)), "another client is served");
        let held = seam.blocks_total() - seam.blocks_free();
        assert!(held <= seam.blocks_total() / 2, "{held} of {} buffers are held", seam.blocks_total());

        // A client that reads again gets all of its replies.
        let mut client = stalled.pop().expect("there are four clients");
        let mut answered = 0;
        while answered < 1000 {
            let (_, _, last) = client.receive_part(0).await.expect("the connection stays open");
            answered += u32::from(last);
        }
    });
}

/// A client with simple replies, each of which is held whole.
async fn simple_client(seam: &SimSeam) -> Client {
    let mut client = connect(seam).await;
    client.go_simple("vm1").await;
    client
}

/// Clients that each request a whole read and never receive the reply.
async fn stalled_clients(seam: &SimSeam, count: u64) -> Vec<Client> {
    let mut stalled = Vec::new();
    for number in 0..count {
        let mut client = simple_client(seam).await;
        client.send_request(Command::Read, 0, number * u64::from(WHOLE_BYTES) % SIZE, WHOLE_BYTES, b"").await;
        stalled.push(client);
    }
    stalled
}

/// Longest read whose simple reply is held whole.
const WHOLE_BYTES: u32 = 4 << 20;

#[test]
fn unreceived_whole_reads_leave_three_quarters_of_memory_free() {
    with_server(38, Options::default(), async |seam, _| {
        // The reads together exceed the pool.
        let stalled = stalled_clients(&seam, 20).await;
        seam.sleep(Nanos::from_secs(1)).await;
        let (total, free) = (seam.blocks_total(), seam.blocks_free());
        assert!(free >= total * 3 / 4, "{free} of {total} buffers are free");
        let mut client = simple_client(&seam).await;
        let before = seam.now();
        client.send_request(Command::Write, 0, 0, 4096, &sectors(1, 8)).await;
        assert_eq!(client.receive_part(0).await, Some((1, ReplyPart::Done, true)));
        client.send_request(Command::Read, 0, 0, 65_536, b"").await;
        assert!(matches!(client.receive_part(65_536).await, Some((2, ReplyPart::Data(..), true))));
        assert!(seam.now().since(before) < Nanos::from_millis(200), "simulated time, equal on every machine");
        drop(stalled);
    });
}

#[test]
fn whole_reads_beyond_the_memory_wait_and_all_complete() {
    with_server(39, Options::default(), async |seam, _| {
        let mut clients = stalled_clients(&seam, 20).await;
        for client in &mut clients {
            let Some((1, ReplyPart::Data(_, data), true)) = client.receive_part(WHOLE_BYTES as usize).await else {
                panic!("a reply")
            };
            assert_eq!(data.len(), WHOLE_BYTES as usize);
        }
    });
}

#[test]
fn slow_client_is_disconnected_only_if_others_wait() {
    with_server(40, Options::default(), async |seam, server| {
        let mut slow = stalled_clients(&seam, 1).await;
        seam.sleep(Nanos::from_secs(600)).await;
        assert_eq!(server.stats().connections, 1, "no other client waits for its buffers");
        let mut receiving = slow.pop().expect("there is one client");
        assert!(matches!(receiving.receive_part(WHOLE_BYTES as usize).await, Some((1, ReplyPart::Data(..), true))));

        let _stalled = stalled_clients(&seam, 20).await;
        let mut client = simple_client(&seam).await;
        let before = seam.now();
        client.send_request(Command::Read, 0, 0, WHOLE_BYTES, b"").await;
        assert!(matches!(client.receive_part(WHOLE_BYTES as usize).await, Some((1, ReplyPart::Data(..), true))));
        assert!(seam.now().since(before) < Nanos::from_secs(600), "at most one stall time-out per waiting client");
    });
}

#[test]
fn garbage_ends_only_its_own_connection() {
    with_server(33, Options::default(), async |seam, server| {
        let mut healthy = connect(&seam).await;
        healthy.go("vm1").await;
        for seed in 0..50_u64 {
            let mut client = connect(&seam).await;
            if seed % 2 == 0 {
                client.go("vm1").await;
            }
            let mut random = seed;
            let garbage = std::iter::repeat_with(|| {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                (random >> 56) as u8
            });
            client.send(&garbage.take(200).collect::<Vec<_>>()).await;
            assert!(client.is_closed().await);
            assert_eq!(healthy.read(0, 512).await, Ok(sectors(0, 1)));
        }
        seam.sleep(Nanos::from_millis(1)).await;
        assert_eq!(server.stats().connections, 1);
    });
}

#[test]
fn vanished_client_leaves_no_connections_or_buffers_behind() {
    let world = world(34);
    let seam = world.seam();
    world.block_on(async {
        let server = serve(&seam, plain(), Options::default()).await;
        let before = seam.blocks_free();
        for round in 0..20 {
            let mut client = connect(&seam).await;
            client.go("vm1").await;
            for request in 0..30 {
                client.send_request(Command::Read, 0, request * (1 << 20), 1 << 20, b"").await;
            }
            client.send(&[&write_header(8 << 20)[..], &sectors(1, 300)].concat()).await;
            seam.sleep(Nanos::from_micros(round * 100)).await;
            match round % 2 {
                0 => drop(client),
                _ => world.cut(&crate::fixture::address()),
            }
        }
        seam.sleep(Nanos::from_secs(1)).await;
        assert_eq!((server.stats().connections, seam.blocks_free()), (0, before));
    });
}

#[test]
fn disconnecting_client_still_gets_its_replies() {
    with_server(35, Options::default(), async |seam, _| {
        let mut client = connect(&seam).await;
        client.go("vm1").await;
        for request in 0..10 {
            client.send_request(Command::Read, 0, request * 4096, 4096, b"").await;
        }
        client.send_request(Command::Disconnect, 0, 0, 0, b"").await;
        for _ in 0..10 {
            assert!(matches!(client.receive_part(0).await, Some((_, ReplyPart::Data(..), true))));
        }
        assert!(client.is_closed().await);
    });
}

#[test]
fn stop_answers_requests_in_flight_and_drops_stalled_clients_in_time() {
    with_server(36, Options::default(), async |seam, server| {
        let (mut busy, mut stalled) = (connect(&seam).await, connect(&seam).await);
        busy.go("vm1").await;
        stalled.go("vm1").await;
        stalled.write(0, &sectors(1, 8192)).await.expect("written");
        stalled.send_request(Command::Read, 0, 0, 4 << 20, b"").await;
        busy.send_request(Command::Write, 0, 0, SIZE as u32 / 2, &sectors(1, SIZE as usize / 1024)).await;
        seam.sleep(Nanos::from_millis(50)).await;
        busy.send_request(Command::Flush, 0, 0, 0, b"").await;
        seam.sleep(Nanos::from_millis(50)).await;
        server.stop(Nanos::from_secs(2)).await;
        assert_eq!(server.stats().connections, 0);
        assert_eq!(busy.receive_part(0).await, Some((1, ReplyPart::Done, true)));
        assert_eq!(busy.receive_part(0).await, Some((2, ReplyPart::Done, true)));
        assert!(busy.is_closed().await);
        assert!(seam.connect(&crate::fixture::address()).await.is_err(), "the server does not listen");
        listen(&seam, &server).await;
    });
}

#[test]
fn disconnect_does_not_wait_for_half_sent_writes_or_unread_replies() {
    with_server(41, Options::default(), async |seam, server| {
        let (mut half, mut other) = (connect(&seam).await, connect(&seam).await);
        half.go("vm1").await;
        half.send(&[&write_header(32 << 20)[..], &sectors(1, 1000)].concat()).await;
        other.go("vm1").await;
        other.send(&write_header(65_536)[..20]).await;
        seam.sleep(Nanos::from_millis(100)).await;
        let before = seam.now();
        server.disconnect("vm1", Nanos::from_secs(5)).await;
        assert_eq!(server.clients_of("vm1"), 0);
        assert!(seam.now().since(before) < Nanos::from_secs(1), "an incomplete request is not waited for");

        let _stalled = stalled_clients(&seam, 3).await;
        seam.sleep(Nanos::from_millis(100)).await;
        server.disconnect("vm1", Nanos::from_secs(5)).await;
        assert_eq!((server.clients_of("vm1"), server.stats().connections), (0, 0));
        seam.sleep(Nanos::from_secs(1)).await;
        assert_eq!(seam.blocks_free(), seam.blocks_total());
    });
}

#[test]
fn disconnect_ends_clients_of_the_export_and_leaves_others() {
    with_server(37, Options::default(), async |seam, server| {
        let (mut client, mut idle) = (connect(&seam).await, connect(&seam).await);
        client.go("vm1").await;
        assert_eq!(server.clients_of("vm1"), 1);
        server.disconnect("vm1", Nanos::from_secs(5)).await;
        assert!(client.is_closed().await);
        idle.go("vm1").await;
        assert!(idle.read(0, 512).await.is_ok());
    });
}

#[test]
fn closed_export_admits_no_client_until_it_is_opened() {
    with_server(43, Options::default(), async |seam, server| {
        let (mut current, mut in_handshake) = (connect(&seam).await, connect(&seam).await);
        current.go("vm1").await;
        let closed = server.close_export("vm1");
        assert!(current.read(0, 512).await.is_ok(), "a current client stays");
        in_handshake.go("vm1").await;
        assert!(in_handshake.is_closed().await);
        assert_eq!(server.clients_of("vm1"), 1);
        drop(closed);
        let mut other = connect(&seam).await;
        other.go("vm1").await;
        assert!(other.read(0, 512).await.is_ok());
        assert_eq!(server.clients_of("vm1"), 2);
    });
}
