//! Handover: a client between two requests does not notice the change of server.

use std::cell::Cell;
use std::rc::Rc;

use engine::{Core, UnflushedLoss, VolumeId, VolumeSpec, WritePolicy};
use nbd::{HandedOverClient, NegotiatedTerms, Options, Server, TakeOverError};
use nbd_protocol::{Command, Errno, Request};
use seam::sim::SimSeam;
use seam::{Nanos, Seam};

use crate::client::{Client, ReplyPart, sectors};
use crate::fixture::{SIZE, connect, core, listen, plain, world};

/// Time limit of a handover.
const DRAIN_TIMEOUT: Nanos = Nanos::from_secs(5);
/// Number of requests that the client keeps in flight.
const DEPTH: u64 = 8;
/// Writes as (offset in bytes, length in sectors): short, inside a block, directly into blocks, in pieces.
const SHAPES: [(u64, usize); 8] = [
    (0, 8),
    (1 << 20, 64),
    (2 << 20, 1),
    ((3 << 20) + 512, 3),
    (4 << 20, 512),
    ((5 << 20) + 1024, 700),
    (6 << 20, 128),
    (7 << 20, 16),
];

fn server_of(seam: &SimSeam, core: &Core<SimSeam>) -> Server<SimSeam> {
    Server::new(seam.clone(), core.clone(), Options::default())
}

/// Runs `test` with a server of a volume and a client.
fn with_client<F: Future<Output = ()>>(
    seed: u64,
    test: impl FnOnce(SimSeam, Core<SimSeam>, Server<SimSeam>, Client) -> F,
) {
    let world = world(seed);
    let seam = world.seam();
    world.block_on(async {
        let core = core(&seam, VolumeSpec { policy: WritePolicy::WriteBack, ..plain() }).await;
        let server = server_of(&seam, &core);
        listen(&seam, &server).await;
        let mut client = connect(&seam).await;
        client.go("vm1").await;
        test(seam.clone(), core, server, client).await;
    });
    assert_eq!(world.violations(), Vec::<String>::new());
}

#[test]
fn busy_client_gets_each_reply_once_across_handovers() {
    for seed in 600..620 {
        with_client(seed, async |seam, core, first, mut client| {
            let (busy, handovers) = (Rc::new(Cell::new(true)), Rc::new(Cell::new(0)));
            let (is_busy, count, task_seam) = (busy.clone(), handovers.clone(), seam.clone());
            seam.spawn(async move {
                let mut server = first;
                while is_busy.get() {
                    task_seam.sleep(Nanos::from_micros(task_seam.random() % 3_000)).await;
                    let mut handed_over = server.hand_over(DRAIN_TIMEOUT).await;
                    assert_eq!(handed_over.len(), 1, "the client was disconnected");
                    server = server_of(&task_seam, &core);
                    server.take_over(handed_over.remove(0)).expect("the volume is served");
                    count.set(count.get() + 1);
                }
            });
            for round in 1..30_u64 {
                for (index, (offset, count)) in (0..DEPTH).zip(SHAPES) {
                    let data = sectors(round * DEPTH + index, count);
                    client.send_request(Command::Write, 0, offset, data.len() as u32, &data).await;
                }
                for _ in 0..DEPTH {
                    let reply = client.receive_part(0).await.map(|(_, part, last)| (part, last));
                    assert_eq!(reply, Some((ReplyPart::Done, true)), "seed {seed} round {round}");
                }
                for (index, (offset, count)) in (0..DEPTH).zip(SHAPES) {
                    let expected = sectors(round * DEPTH + index, count);
                    assert!(client.read(offset, expected.len() as u32).await == Ok(expected), "seed {seed}, {index}");
                }
            }
            busy.set(false);
            assert!(handovers.get() > 20, "only {} handovers", handovers.get());
        });
    }
}

#[test]
fn idle_client_is_handed_over_at_once_with_its_terms() {
    with_client(620, async |seam, core, first, mut client| {
        client.write(4096, &sectors(3, 8)).await.expect("written");
        let began = seam.now();
        let handed_over = first.hand_over(DRAIN_TIMEOUT).await;
        assert!(seam.now() < began + Nanos::from_millis(100), "the handover waited");
        let negotiated = NegotiatedTerms {
            volume_id: VolumeId(1),
            size_bytes: SIZE,
            read_only: false,
            structured: true,
            allocation: true,
            unreported_loss: false,
        };
        assert_eq!(handed_over.iter().map(|client| client.terms).collect::<Vec<_>>(), [negotiated]);
        let second = server_of(&seam, &core);
        // The successor replies to requests sent meanwhile.
        client.send_request(Command::Read, 0, 4096, 4096, b"").await;
        seam.sleep(Nanos::from_secs(60)).await;
        handed_over.into_iter().for_each(|client| second.take_over(client).expect("the volume is served"));
        assert_eq!(client.receive_part(0).await.map(|(_, part, _)| part), Some(ReplyPart::Data(4096, sectors(3, 8))));
        assert_eq!((second.clients_of("vm1"), first.stats().connections), (1, 0));
        let status = client.call(Command::BlockStatus, 0, 0, 4096, b"").await;
        assert!(matches!(status[..], [ReplyPart::Status(_)]), "{status:?}");
        second.stop(DRAIN_TIMEOUT).await;
        assert!(client.is_closed().await);
    });
}

#[test]
fn begun_request_is_finished_and_a_stalled_client_disconnected() {
    with_client(621, async |seam, core, first, mut slow| {
        let mut silent = connect(&seam).await;
        silent.go("vm1").await;
        let data = sectors(9, 64);
        let request = Request { flags: 0, command: Command::Write, cookie: 77, offset: 8192, len: data.len() as u32 };
        let bytes = [&request.encode()[..], &data].concat();
        slow.send(&bytes[..10]).await;
        silent.send(&bytes[..500]).await;
        // Until these bytes arrive, the clients are between two requests.
        seam.sleep(Nanos::from_millis(1)).await;
        let handed_over = Rc::new(Cell::new(None));
        let handed_over_by_task = handed_over.clone();
        seam.spawn(async move { handed_over_by_task.set(Some(first.hand_over(DRAIN_TIMEOUT).await)) });
        seam.sleep(Nanos::from_secs(1)).await;
        slow.send(&bytes[10..5_000]).await;
        seam.sleep(Nanos::from_secs(1)).await;
        // The first byte of the next request is left to the successor.
        slow.send(&[&bytes[5_000..], &bytes[..1]].concat()).await;
        assert_eq!(slow.receive_part(0).await, Some((77, ReplyPart::Done, true)));
        seam.sleep(DRAIN_TIMEOUT).await;
        let handed_over = handed_over.take().expect("the handover has ended");
        assert_eq!(handed_over.len(), 1);
        assert!(silent.is_closed().await);
        let second = server_of(&seam, &core);
        handed_over.into_iter().for_each(|client| second.take_over(client).expect("the volume is served"));
        slow.send(&bytes[1..]).await;
        assert_eq!(slow.receive_part(0).await, Some((77, ReplyPart::Done, true)));
        assert_eq!(slow.read(8192, data.len() as u32).await, Ok(data));
    });
}

#[test]
fn unreceived_replies_delay_a_handover_only_until_its_time_limit() {
    with_client(622, async |seam, _, first, mut client| {
        let data = sectors(1, 2048);
        client.write(0, &data).await.expect("written");
        client.send_request(Command::Read, 0, 0, data.len() as u32, b"").await;
        seam.sleep(Nanos::from_millis(1)).await;
        let began = seam.now();
        assert_eq!(first.hand_over(DRAIN_TIMEOUT).await.len(), 0);
        assert!(seam.now() < began + DRAIN_TIMEOUT + Nanos::from_millis(100));
    });
}

#[test]
fn client_is_disconnected_if_its_volume_changed() {
    let negotiated = NegotiatedTerms {
        volume_id: VolumeId(1),
        size_bytes: SIZE,
        read_only: false,
        structured: true,
        allocation: true,
        unreported_loss: false,
    };
    let others = [
        (NegotiatedTerms { volume_id: VolumeId(2), ..negotiated }, TakeOverError::NoVolume),
        (NegotiatedTerms { size_bytes: SIZE + 512, ..negotiated }, TakeOverError::Smaller),
        (NegotiatedTerms { read_only: true, ..negotiated }, TakeOverError::ReadOnly),
    ];
    for (other, reason) in others {
        with_client(623, async |seam, core, first, mut client| {
            let mut handed_over = first.hand_over(DRAIN_TIMEOUT).await;
            let HandedOverClient { stream, terms } = handed_over.remove(0);
            assert_eq!(terms, negotiated);
            assert_eq!(server_of(&seam, &core).take_over(HandedOverClient { stream, terms: other }), Err(reason));
            assert!(client.is_closed().await);
        });
    }
}

#[test]
fn client_in_the_handshake_phase_is_disconnected() {
    with_client(624, async |seam, _, first, _client| {
        let mut undecided = connect(&seam).await;
        assert_eq!(first.hand_over(DRAIN_TIMEOUT).await.len(), 1);
        assert!(undecided.is_closed().await);
    });
}

#[test]
fn loss_is_reported_once_to_each_client_across_servers() {
    let world = world(630);
    let seam = world.seam();
    world.block_on(async {
        let lossy = VolumeSpec { unflushed_loss: UnflushedLoss::AllClients, ..plain() };
        let core = core(&seam, lossy).await;
        let first = server_of(&seam, &core);
        listen(&seam, &first).await;
        let (mut unnotified, mut notified) = (connect(&seam).await, connect(&seam).await);
        unnotified.go("vm1").await;
        notified.go("vm1").await;
        unnotified.write(0, &sectors(1, 8)).await.expect("a plain write does not report the loss");
        assert_eq!(notified.call(Command::Flush, 0, 0, 0, b"").await, [ReplyPart::Failed(Errno::Io)]);
        assert_eq!(notified.call(Command::Flush, 0, 0, 0, b"").await, [ReplyPart::Done]);
        let handed_over = first.hand_over(DRAIN_TIMEOUT).await;
        assert_eq!(handed_over.iter().filter(|client| client.terms.unreported_loss).count(), 1);
        let second = server_of(&seam, &core);
        handed_over.into_iter().for_each(|client| second.take_over(client).expect("the volume is served"));
        assert_eq!(notified.call(Command::Flush, 0, 0, 0, b"").await, [ReplyPart::Done]);
        assert_eq!(unnotified.call(Command::Flush, 0, 0, 0, b"").await, [ReplyPart::Failed(Errno::Io)]);
        assert_eq!(unnotified.call(Command::Flush, 0, 0, 0, b"").await, [ReplyPart::Done]);
    });
    assert_eq!(world.violations(), Vec::<String>::new());
}
