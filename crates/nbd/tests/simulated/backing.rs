//! The NBD client as a disk, against the front end: connections that break, servers that forget what was not flushed.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use engine::Core;
use engine::backing::nbd::{NbdDisk, NbdOptions, NbdTarget};
use nbd::{Options, Server};
use seam::sim::{SimSeam, World};
use seam::{BLOCK_BYTES, Disk, DiskError, Nanos, Piece, PieceMut, Seam};

use crate::setting::{SIZE, address, core, disk, listen, plain, serve, world};

fn target() -> NbdTarget {
    "nbd+unix:///vm1?socket=/run/nbd".parse().expect("a URI")
}

async fn open(seam: &SimSeam) -> NbdDisk<SimSeam> {
    NbdDisk::open(seam, target(), NbdOptions::default()).await.expect("the server listens")
}

fn block(world: &World, tag: u64) -> Piece<<SimSeam as Seam>::Block> {
    use seam::BlockMut;
    Piece::whole(world.block([tag; 8]).expect("the pool is large enough").freeze())
}

fn empty(seam: &SimSeam, count: usize) -> Vec<PieceMut<<SimSeam as Seam>::BlockMut>> {
    (0..count).map(|_| Piece::whole(seam.alloc().expect("the pool is large enough"))).collect()
}

#[test]
fn an_export_is_a_disk_like_any_other() {
    let world = world(51);
    let seam = world.seam();
    world.block_on(async {
        serve(&seam, plain(), Options::default()).await;
        let export = open(&seam).await;
        let geometry = export.geometry();
        assert_eq!((geometry.size_bytes, geometry.logical_block, geometry.fast_zero), (SIZE, 512, true));

        let blocks = (1..=600).map(|tag| block(&world, tag)).collect();
        export.write(4096, blocks).await.expect("written");
        let (result, pieces) = export.read(0, empty(&seam, 602)).await;
        assert_eq!(result, Ok(()));
        for (number, piece) in pieces.iter().enumerate() {
            let expected = if number == 601 { 0 } else { number as u64 };
            assert_eq!(piece.block.tags(), [expected; 8]);
        }
        assert_eq!(disk(&world).durable_tag(8), 0);
        export.flush().await.expect("flushed");
        assert_eq!(disk(&world).durable_tag(8), 1);

        export.zero(4096, 8192, true).await.expect("zeroed");
        let (result, pieces) = export.read(8192, empty(&seam, 1)).await;
        assert_eq!((result, pieces[0].block.tags()), (Ok(()), [0; 8]));
        let extents = export.allocation(0, 1 << 20).await.expect("extents");
        assert_eq!(extents.iter().map(|extent| extent.len_bytes).sum::<u64>(), 1 << 20);
        assert!(extents[0].zero);

        assert_eq!(export.set_size(0).await, Err(DiskError::Unsupported));
        disk(&world).resize(SIZE * 2);
        assert_eq!(export.incarnation(), 0);
    });
}

#[test]
fn an_export_that_is_not_there_is_named() {
    let world = world(52);
    let seam = world.seam();
    world.block_on(async {
        let Err(DiskError::Open(text)) = NbdDisk::open(&seam, target(), NbdOptions::default()).await else {
            panic!("nobody listens")
        };
        assert!(text.starts_with("cannot connect to nbd+unix:///vm1?socket=/run/nbd: "), "{text}");
        serve(&seam, plain(), Options::default()).await;
        let other = NbdTarget { export: "vm2".into(), ..target() };
        let Err(DiskError::Open(text)) = NbdDisk::open(&seam, other, NbdOptions::default()).await else {
            panic!("no such export")
        };
        assert!(text.contains("no export is named \"vm2\""), "{text}");
    });
}

#[test]
fn requests_wait_for_a_server_that_comes_back_and_fail_when_it_stays_away() {
    let world = world(53);
    let seam = world.seam();
    world.block_on(async {
        let core = core(&seam, plain()).await;
        let server = serve_again(&seam, &core).await;
        let export = open(&seam).await;
        server.stop(Nanos::ZERO).await;
        let (late, reader) = (export.clone(), seam.clone());
        let read = Rc::new(Cell::new(false));
        let done = Rc::clone(&read);
        seam.spawn(async move {
            let (result, _) = late.read(0, empty(&reader, 1)).await;
            assert_eq!(result, Ok(()));
            done.set(true);
        });
        seam.sleep(Nanos::from_secs(30)).await;
        assert!(!read.get());
        let server = serve_again(&seam, &core).await;
        seam.sleep(Nanos::from_secs(3)).await;
        assert!(read.get(), "back in less than the longest pause");

        server.stop(Nanos::ZERO).await;
        let (result, pieces) = export.read(0, empty(&seam, 3)).await;
        assert_eq!((result, pieces.len()), (Err(DiskError::Gone), 3));
        assert_eq!(export.write(0, vec![block(&world, 1)]).await, Err(DiskError::Gone), "at once from then on");
        serve_again(&seam, &core).await;
        seam.sleep(Nanos::from_secs(3)).await;
        assert_eq!(export.write(0, vec![block(&world, 1)]).await, Ok(()));
    });
}

/// A new server of the same volume, which holds nothing that its disk does not.
async fn serve_again(seam: &SimSeam, core: &Core<SimSeam>) -> Server<SimSeam> {
    let server = Server::new(seam.clone(), core.clone(), Options::default());
    listen(seam, &server).await;
    server
}

#[test]
fn a_flush_that_spans_a_reconnect_claims_nothing() {
    let world = world(54);
    let seam = world.seam();
    world.block_on(async {
        serve(&seam, plain(), Options::default()).await;
        let export = open(&seam).await;
        export.write(0, vec![block(&world, 1)]).await.expect("written");
        let before = export.incarnation();
        let cutter = async {
            seam.yield_now().await;
            world.cut(&address());
        };
        let (flushed, ()) = both(export.flush(), cutter).await;
        assert_eq!(flushed, Err(DiskError::Io("connection lost during flush".into())));
        assert_ne!(export.incarnation(), before);
        export.flush().await.expect("the next one stands alone");
    });
}

#[test]
fn a_server_that_falls_silent_is_left() {
    let world = world(55);
    let seam = world.seam();
    world.block_on(async {
        // A peer that completes the handshake and then never answers.
        let listener = seam.listen(&address()).await.expect("the address is free");
        let (mute, mutes) = (seam.clone(), Rc::new(Cell::new(0)));
        let counted = Rc::clone(&mutes);
        seam.spawn(async move {
            let server = Server::new(mute.clone(), core(&mute, plain()).await, Options::default());
            loop {
                use seam::{ByteStream, Listener, StreamReader};
                let stream = listener.accept().await.expect("a client");
                counted.set(counted.get() + 1);
                if counted.get() > 1 {
                    let server = server.clone();
                    mute.spawn(async move { server.serve(stream).await });
                    continue;
                }
                let (mut reader, mut writer) = stream.split();
                mute.spawn(async move {
                    crate::client::mute_server(&mut writer, SIZE).await;
                    while !matches!(reader.read(Vec::with_capacity(4096)).await.0, Ok(0) | Err(_)) {}
                });
            }
        });
        let export = open(&seam).await;
        let (result, _) = export.read(0, empty(&seam, 1)).await;
        assert_eq!((result, mutes.get(), export.incarnation()), (Ok(()), 2, 1));
    });
}

/// Both of two futures.
async fn both<A, B>(first: impl Future<Output = A>, second: impl Future<Output = B>) -> (A, B) {
    use std::task::Poll;
    let (mut first, mut second) = (std::pin::pin!(first), std::pin::pin!(second));
    let (mut one, mut other) = (None, None);
    std::future::poll_fn(|context| {
        if one.is_none()
            && let Poll::Ready(done) = first.as_mut().poll(context)
        {
            one = Some(done);
        }
        if other.is_none()
            && let Poll::Ready(done) = second.as_mut().poll(context)
        {
            other = Some(done);
        }
        if one.is_some() && other.is_some() { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    (one.expect("ready"), other.expect("ready"))
}

/// What one of the test's writers knows of a block: what was written last, and whether a flush has made that durable.
#[derive(Clone, Copy, Debug, Default)]
struct Known {
    sequence: u64,
    /// The disk's incarnation when the write was submitted.
    incarnation: u64,
    acknowledged: bool,
    durable: u64,
}

/// The server's machine has lost what its disk had not flushed, and its engine knows nothing of that.
fn forget_unflushed(world: &World, blocks: u64) {
    let disk = disk(world);
    (0..blocks * 8).for_each(|sector| disk.set_tags(sector, &[disk.durable_tag(sector)]));
}

/// Writes, flushes, breaks connections and crashes the server, and counts how often what a flush had promised was gone.
/// `believes_incarnation`: whether the writer takes a new incarnation as word that unflushed data may be lost, as it must.
fn broken_promises(seed: u64, believes_incarnation: bool) -> usize {
    const BLOCKS: u64 = 64;
    let world = world(seed);
    let seam = world.seam();
    world.block_on(async {
        let core = core(&seam, plain()).await;
        let mut server = serve_again(&seam, &core).await;
        let export = open(&seam).await;
        let known: Rc<RefCell<BTreeMap<u64, Known>>> = Rc::default();
        let (sequence, writers) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(0)));
        let rng = Rc::new(seam::sim::Rng::new(seed, 77));
        let flush = |known: Rc<RefCell<BTreeMap<u64, Known>>>, export: NbdDisk<SimSeam>| async move {
            let before: Vec<_> = known.borrow().iter().map(|(number, known)| (*number, *known)).collect();
            let result = export.flush().await;
            let now = export.incarnation();
            for (number, then) in before.into_iter().filter(|(_, then)| result.is_ok() && then.acknowledged) {
                if then.incarnation == now || !believes_incarnation {
                    let mut known = known.borrow_mut();
                    let known = known.entry(number).or_default();
                    known.durable = known.durable.max(then.sequence);
                }
            }
        };
        for writer in 0..8 {
            let (export, known, sequence, rng) = (export.clone(), known.clone(), sequence.clone(), rng.clone());
            let (writers, seam) = (writers.clone(), seam.clone());
            writers.set(writers.get() + 1);
            let block = |tag| {
                use seam::BlockMut;
                let mut block = seam.alloc().expect("the pool is large enough");
                block.write_bytes(0, &crate::client::sectors(tag, 8));
                Piece::whole(block.freeze())
            };
            let pieces: Vec<_> = (0..60)
                .map(|_| {
                    sequence.set(sequence.get() + 1);
                    (sequence.get(), block(sequence.get()))
                })
                .collect();
            let spawner = seam.clone();
            spawner.spawn(async move {
                for (sequence, piece) in pieces {
                    // Each writer has blocks of its own, so that no two writes of one block are under way.
                    let number = writer + 8 * rng.below(BLOCKS / 8);
                    known.borrow_mut().entry(number).or_default().acknowledged = false;
                    // Asked before the write: afterwards the connection that carried it may be lost already.
                    let incarnation = export.incarnation();
                    export.write(number * BLOCK_BYTES as u64, vec![piece]).await.expect("the server comes back");
                    let mut known = known.borrow_mut();
                    let entry = known.entry(number).or_default();
                    *entry = Known { sequence, incarnation, acknowledged: true, ..*entry };
                }
                writers.set(writers.get() - 1);
            });
        }
        while writers.get() > 0 {
            seam.sleep(Nanos(rng.below(3_000_000))).await;
            match rng.below(6) {
                0 => world.cut(&address()),
                1 => {
                    server.stop(Nanos::ZERO).await;
                    world.cut(&address());
                    forget_unflushed(&world, BLOCKS);
                    server = serve_again(&seam, &core).await;
                }
                _ => flush(known.clone(), export.clone()).await,
            }
        }
        // Whatever was not flushed goes now, and what was promised has to be there.
        server.stop(Nanos::ZERO).await;
        forget_unflushed(&world, BLOCKS);
        let known = known.borrow();
        let lost = known.iter().filter(|(number, known)| disk(&world).tag(**number * 8) < known.durable);
        lost.count()
    })
}

#[test]
fn what_a_flush_has_acknowledged_outlives_reconnects_and_crashes_of_the_server() {
    let broken: usize = (0..60).map(|seed| broken_promises(1000 + seed, true)).sum();
    assert_eq!(broken, 0);
}

#[test]
fn the_same_check_notices_a_writer_that_ignores_the_incarnation() {
    let broken: usize = (0..60).map(|seed| broken_promises(1000 + seed, false)).sum();
    assert!(broken > 0);
}

#[test]
fn an_answered_request_is_never_repeated_and_none_is_forgotten() {
    let world = world(56);
    let seam = world.seam();
    world.block_on(async {
        let server = serve(&seam, plain(), Options::default()).await;
        let export = open(&seam).await;
        let done = Rc::new(Cell::new(0));
        for number in 0..200_u64 {
            let (export, done, piece) = (export.clone(), Rc::clone(&done), block(&world, number + 1));
            seam.spawn(async move {
                export.write(number * BLOCK_BYTES as u64, vec![piece]).await.expect("written in the end");
                done.set(done.get() + 1);
            });
        }
        for _ in 0..20 {
            seam.sleep(Nanos::from_micros(300)).await;
            world.cut(&address());
        }
        seam.sleep(Nanos::from_secs(5)).await;
        assert_eq!(done.get(), 200);
        let (result, pieces) = export.read(0, empty(&seam, 200)).await;
        assert_eq!(result, Ok(()));
        assert!(pieces.iter().zip(1..).all(|(piece, tag)| piece.block.tags() == [tag; 8]));
        drop((export, pieces));
        seam.sleep(Nanos::from_millis(10)).await;
        assert_eq!(server.stats().connections, 0, "the last handle takes the connection with it");
    });
}
