//! Bad clients: what they do costs nobody else anything.

use nbd::Options;
use nbd_protocol::{Command, Request};
use seam::sim::SimSeam;
use seam::{Nanos, Seam};

use crate::client::{Client, Part, sectors};
use crate::setting::{SIZE, connect, listen, plain, serve, with_server, world};

fn write_of(len: u32) -> [u8; 28] {
    Request { flags: 0, command: Command::Write, cookie: 1, offset: 0, len }.encode()
}

#[test]
fn a_healthy_client_does_not_notice_two_hundred_that_stall_half_way_through_a_request() {
    with_server(31, Options::default(), async |seam, server| {
        let mut stalled = Vec::new();
        for number in 0..200 {
            let mut client = connect(&seam).await;
            client.go("vm1").await;
            match number % 3 {
                0 => client.send(&write_of(4096)[..20]).await,
                1 => client.send(&[&write_of(65_536)[..], &[0; 10_000]].concat()).await,
                _ => client.send(&[&write_of(32 << 20)[..], &[0; 10_000]].concat()).await,
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
        assert!(seam.now().since(before) < Nanos::from_millis(200), "virtual time, the same on every machine");
        assert_eq!(server.stats().connections, 201);
    });
}

#[test]
fn a_client_that_does_not_read_its_replies_is_held_to_its_share() {
    let world = world(32);
    let seam = world.seam();
    world.block_on(async {
        serve(&seam, plain(), Options::default()).await;
        let mut deaf = Vec::new();
        for _ in 0..4 {
            let mut client = connect(&seam).await;
            client.go("vm1").await;
            let reads = (0..1000).flat_map(|cookie| {
                let (offset, len) = ((cookie % 60) << 20, 1 << 20);
                Request { flags: 0, command: Command::Read, cookie, offset, len }.encode()
            });
            client.send(&reads.collect::<Vec<_>>()).await;
            deaf.push(client);
        }
        // Data, so that no chunk shrinks to a hole.
        let mut client = connect(&seam).await;
        client.go("vm1").await;
        client.write(0, &sectors(1, 8)).await.expect("written");
        seam.sleep(Nanos::from_secs(5)).await;
        assert_eq!(client.read(0, 4096).await, Ok(sectors(1, 8)), "somebody else is served");
        let held = seam.blocks_total() - seam.blocks_free();
        assert!(held <= seam.blocks_total() / 2, "{held} of {} buffers are held", seam.blocks_total());

        // And once they read, they get all they asked for.
        let mut client = deaf.pop().expect("four of them");
        let mut answered = 0;
        while answered < 1000 {
            let (_, _, last) = client.part(0).await.expect("the connection lives");
            answered += u32::from(last);
        }
    });
}

/// A client that wants simple replies, each of which has to be held whole.
async fn simple_client(seam: &SimSeam) -> Client {
    let mut client = connect(seam).await;
    client.go_simple("vm1").await;
    client
}

/// Clients that ask for a whole read each and never take the answer.
async fn deaf_clients(seam: &SimSeam, count: u64) -> Vec<Client> {
    let mut deaf = Vec::new();
    for number in 0..count {
        let mut client = simple_client(seam).await;
        client.ask(Command::Read, 0, number * u64::from(WHOLE) % SIZE, WHOLE, b"").await;
        deaf.push(client);
    }
    deaf
}

/// The longest read that is answered whole.
const WHOLE: u32 = 4 << 20;

#[test]
fn whole_reads_whose_answers_nobody_takes_leave_three_quarters_of_the_memory_to_others() {
    with_server(38, Options::default(), async |seam, _| {
        // Together they ask for more than the pool has.
        let deaf = deaf_clients(&seam, 20).await;
        seam.sleep(Nanos::from_secs(1)).await;
        let (total, free) = (seam.blocks_total(), seam.blocks_free());
        assert!(free >= total * 3 / 4, "{free} of {total} buffers are free");
        let mut client = simple_client(&seam).await;
        let before = seam.now();
        client.ask(Command::Write, 0, 0, 4096, &sectors(1, 8)).await;
        assert_eq!(client.part(0).await, Some((1, Part::Done, true)));
        client.ask(Command::Read, 0, 0, 65_536, b"").await;
        assert!(matches!(client.part(65_536).await, Some((2, Part::Data(..), true))));
        assert!(seam.now().since(before) < Nanos::from_millis(200), "virtual time, the same on every machine");
        drop(deaf);
    });
}

#[test]
fn whole_reads_that_together_need_more_than_the_memory_wait_for_each_other_and_all_end() {
    with_server(39, Options::default(), async |seam, _| {
        let mut clients = deaf_clients(&seam, 20).await;
        for client in &mut clients {
            let Some((1, Part::Data(_, data), true)) = client.part(WHOLE as usize).await else { panic!("an answer") };
            assert_eq!(data.len(), WHOLE as usize);
        }
    });
}

#[test]
fn who_keeps_others_waiting_is_sent_away_and_who_is_merely_slow_stays() {
    with_server(40, Options::default(), async |seam, server| {
        let mut slow = deaf_clients(&seam, 1).await;
        seam.sleep(Nanos::from_secs(600)).await;
        assert_eq!(server.stats().connections, 1, "nobody waits for what it holds");
        let mut taken = slow.pop().expect("there is one");
        assert!(matches!(taken.part(WHOLE as usize).await, Some((1, Part::Data(..), true))));

        let _deaf = deaf_clients(&seam, 20).await;
        let mut client = simple_client(&seam).await;
        let before = seam.now();
        client.ask(Command::Read, 0, 0, WHOLE, b"").await;
        assert!(matches!(client.part(WHOLE as usize).await, Some((1, Part::Data(..), true))));
        assert!(seam.now().since(before) < Nanos::from_secs(600), "as many rounds of patience as the line is long");
    });
}

#[test]
fn garbage_ends_its_own_connection_alone() {
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
fn a_client_that_vanishes_with_requests_under_way_leaves_nothing_behind() {
    let world = world(34);
    let seam = world.seam();
    world.block_on(async {
        let server = serve(&seam, plain(), Options::default()).await;
        let before = seam.blocks_free();
        for round in 0..20 {
            let mut client = connect(&seam).await;
            client.go("vm1").await;
            for request in 0..30 {
                client.ask(Command::Read, 0, request * (1 << 20), 1 << 20, b"").await;
            }
            client.send(&[&write_of(8 << 20)[..], &sectors(1, 300)].concat()).await;
            seam.sleep(Nanos::from_micros(round * 100)).await;
            match round % 2 {
                0 => drop(client),
                _ => world.cut(&crate::setting::address()),
            }
        }
        seam.sleep(Nanos::from_secs(1)).await;
        assert_eq!((server.stats().connections, seam.blocks_free()), (0, before));
    });
}

#[test]
fn a_client_that_has_said_all_still_gets_its_answers() {
    with_server(35, Options::default(), async |seam, _| {
        let mut client = connect(&seam).await;
        client.go("vm1").await;
        for request in 0..10 {
            client.ask(Command::Read, 0, request * 4096, 4096, b"").await;
        }
        client.ask(Command::Disconnect, 0, 0, 0, b"").await;
        for _ in 0..10 {
            assert!(matches!(client.part(0).await, Some((_, Part::Data(..), true))));
        }
        assert!(client.is_closed().await);
    });
}

#[test]
fn a_stopping_server_answers_what_is_under_way_and_leaves_a_stalled_client_at_the_end_of_its_patience() {
    with_server(36, Options::default(), async |seam, server| {
        let (mut busy, mut deaf) = (connect(&seam).await, connect(&seam).await);
        busy.go("vm1").await;
        deaf.go("vm1").await;
        deaf.write(0, &sectors(1, 8192)).await.expect("written");
        deaf.ask(Command::Read, 0, 0, 4 << 20, b"").await;
        busy.ask(Command::Write, 0, 0, SIZE as u32 / 2, &sectors(1, SIZE as usize / 1024)).await;
        seam.sleep(Nanos::from_millis(50)).await;
        busy.ask(Command::Flush, 0, 0, 0, b"").await;
        seam.sleep(Nanos::from_millis(50)).await;
        server.stop(Nanos::from_secs(2)).await;
        assert_eq!(server.stats().connections, 0);
        assert_eq!(busy.part(0).await, Some((1, Part::Done, true)));
        assert_eq!(busy.part(0).await, Some((2, Part::Done, true)));
        assert!(busy.is_closed().await);
        assert!(seam.connect(&crate::setting::address()).await.is_err(), "nobody listens");
        listen(&seam, &server).await;
    });
}

#[test]
fn clients_of_a_volume_that_goes_leave_with_half_a_write_sent_and_with_replies_not_taken() {
    with_server(41, Options::default(), async |seam, server| {
        let (mut half, mut other) = (connect(&seam).await, connect(&seam).await);
        half.go("vm1").await;
        half.send(&[&write_of(32 << 20)[..], &sectors(1, 1000)].concat()).await;
        other.go("vm1").await;
        other.send(&write_of(65_536)[..20]).await;
        seam.sleep(Nanos::from_millis(100)).await;
        let before = seam.now();
        server.disconnect("vm1", Nanos::from_secs(5)).await;
        assert_eq!(server.clients_of("vm1"), 0);
        assert!(seam.now().since(before) < Nanos::from_secs(1), "what is not whole is not waited for");

        let _deaf = deaf_clients(&seam, 3).await;
        seam.sleep(Nanos::from_millis(100)).await;
        server.disconnect("vm1", Nanos::from_secs(5)).await;
        assert_eq!((server.clients_of("vm1"), server.stats().connections), (0, 0));
        seam.sleep(Nanos::from_secs(1)).await;
        assert_eq!(seam.blocks_free(), seam.blocks_total());
    });
}

#[test]
fn clients_of_a_volume_that_goes_are_sent_away_and_others_stay() {
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
