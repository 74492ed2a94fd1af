//! The NBD client as a disk, against the front end: lost connections and servers that lose unflushed writes.

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::BTreeMap;
use std::future::{Future, poll_fn};
use std::rc::Rc;
use std::task::Poll;

use engine::{Backing, ByteOffset, Core, CoreSpec, RequestError, VolumeId, VolumeProblem, VolumeSpec, WriteFlags};
use nbd::{Options, Server};
use nbd_client::{Change, DedicatedServer, NbdDisk, NbdOptions, NbdTarget};
use seam::sim::{Fault, Ops, Rule, SimSeam, When, World};
use seam::{BLOCK_BYTES, Disk, DiskError, DiskResult, Lineage, Nanos, Piece, PieceMut, Seam};

use crate::fixture::{SIZE, address, core, disk, listen, plain, serve, world};

fn target() -> NbdTarget {
    "nbd+unix:///vm1?socket=/run/nbd".parse().expect("a valid URI")
}

async fn open(seam: &SimSeam) -> NbdDisk<SimSeam> {
    NbdDisk::open(seam, target(), NbdOptions::default()).await.expect("the server listens")
}

fn block(world: &World, tag: u64) -> Piece<<SimSeam as Seam>::Block> {
    use seam::BlockMut;
    Piece::whole(world.block([tag; 8]).expect("the pool is large enough").freeze())
}

fn buffers(seam: &SimSeam, count: usize) -> Vec<PieceMut<<SimSeam as Seam>::BlockMut>> {
    (0..count).map(|_| Piece::whole(seam.alloc().expect("the pool is large enough"))).collect()
}

#[test]
fn export_behaves_as_a_disk() {
    let world = world(51);
    let seam = world.seam();
    world.block_on(async {
        serve(&seam, plain(), Options::default()).await;
        let export = open(&seam).await;
        let geometry = export.geometry();
        assert_eq!((geometry.size_bytes, geometry.logical_block, geometry.fast_zero), (SIZE, 512, true));

        let blocks = (1..=600).map(|tag| block(&world, tag)).collect();
        export.write(4096, blocks).await.expect("written");
        let (result, pieces) = export.read(0, buffers(&seam, 602)).await;
        assert_eq!(result, Ok(()));
        for (number, piece) in pieces.iter().enumerate() {
            let expected = if number == 601 { 0 } else { number as u64 };
            assert_eq!(piece.block.tags(), [expected; 8]);
        }
        assert_eq!(disk(&world).durable_tag(8), 0);
        export.flush().await.expect("flushed");
        assert_eq!(disk(&world).durable_tag(8), 1);

        export.zero(4096, 8192, true).await.expect("zeroed");
        let (result, pieces) = export.read(8192, buffers(&seam, 1)).await;
        assert_eq!((result, pieces[0].block.tags()), (Ok(()), [0; 8]));
        let extents = export.allocation(0, 1 << 20).await.expect("extents");
        assert_eq!(extents.iter().map(|extent| extent.len_bytes).sum::<u64>(), 1 << 20);
        assert!(extents[0].zero);

        assert_eq!(export.set_size(0).await, Err(DiskError::Unsupported));
        disk(&world).resize(SIZE * 2);
        assert_eq!(export.connection_epoch(), 0);
    });
}

#[test]
fn missing_server_and_unknown_export_are_named() {
    let world = world(52);
    let seam = world.seam();
    world.block_on(async {
        let Err(DiskError::Open(text)) = NbdDisk::open(&seam, target(), NbdOptions::default()).await else {
            panic!("the server does not listen yet")
        };
        assert!(text.starts_with("cannot connect to nbd+unix:///vm1?socket=/run/nbd: "), "{text}");
        serve(&seam, plain(), Options::default()).await;
        let other = NbdTarget { export: "vm2".into(), ..target() };
        let Err(DiskError::Open(text)) = NbdDisk::open(&seam, other, NbdOptions::default()).await else {
            panic!("the export does not exist")
        };
        assert!(text.contains("no export is named \"vm2\""), "{text}");
    });
}

#[test]
fn requests_wait_for_a_returning_server_and_fail_after_a_time_out() {
    let world = world(53);
    let seam = world.seam();
    world.block_on(async {
        let core = core(&seam, plain()).await;
        let server = serve_again(&seam, &core).await;
        let export = open(&seam).await;
        server.stop(Nanos::ZERO).await;
        let (late, reader) = (export.clone(), seam.clone());
        let read = Rc::new(Cell::new(false));
        let has_read = Rc::clone(&read);
        seam.spawn(async move {
            let (result, _) = late.read(0, buffers(&reader, 1)).await;
            assert_eq!(result, Ok(()));
            has_read.set(true);
        });
        seam.sleep(Nanos::from_secs(30)).await;
        assert!(!read.get());
        let server = serve_again(&seam, &core).await;
        seam.sleep(Nanos::from_secs(3)).await;
        assert!(read.get(), "the client reconnects within its longest pause");

        server.stop(Nanos::ZERO).await;
        let (result, pieces) = export.read(0, buffers(&seam, 3)).await;
        assert_eq!((result, pieces.len()), (Err(DiskError::Gone), 3));
        assert_eq!(export.write(0, vec![block(&world, 1)]).await, Err(DiskError::Gone), "later requests fail at once");
        serve_again(&seam, &core).await;
        seam.sleep(Nanos::from_secs(3)).await;
        assert_eq!(export.write(0, vec![block(&world, 1)]).await, Ok(()));
    });
}

/// A new server of the same volume without state of its own.
async fn serve_again(seam: &SimSeam, core: &Core<SimSeam>) -> Server<SimSeam> {
    let server = Server::new(seam.clone(), core.clone(), Options::default());
    listen(seam, &server).await;
    server
}

/// The result of a flush whose connection is cut.
async fn flush_while_cut(world: &World, seam: &SimSeam, export: &NbdDisk<SimSeam>) -> DiskResult<()> {
    let cutter = async {
        seam.yield_now().await;
        world.cut(&address());
    };
    join(export.flush(), cutter).await.0
}

#[test]
fn flush_across_a_reconnect_fails() {
    let world = world(54);
    let seam = world.seam();
    world.block_on(async {
        serve(&seam, plain(), Options::default()).await;
        let export = open(&seam).await;
        export.write(0, vec![block(&world, 1)]).await.expect("written");
        let before = export.connection_epoch();
        let flushed = flush_while_cut(&world, &seam, &export).await;
        assert_eq!(flushed, Err(DiskError::Io("connection lost during flush".into())));
        assert_ne!(export.connection_epoch(), before);
        export.flush().await.expect("the next flush succeeds");
    });
}

#[test]
fn flush_of_a_dedicated_server_is_repeated_after_a_reconnect() {
    let world = world(54);
    let seam = world.seam();
    world.block_on(async {
        serve(&seam, plain(), Options::default()).await;
        let server = Box::new(Dedicated::new(&Rc::default()));
        let export = NbdDisk::open_dedicated(&seam, target(), NbdOptions::default(), server).await.expect("it listens");
        export.write(0, vec![block(&world, 1)]).await.expect("written");
        let before = export.connection_epoch();
        let flushed = flush_while_cut(&world, &seam, &export).await;
        assert_eq!((flushed, export.connection_epoch()), (Ok(()), before + 1));
    });
}

#[test]
fn silent_server_is_replaced_by_a_new_connection() {
    let world = world(55);
    let seam = world.seam();
    world.block_on(async {
        // A peer that completes the handshake and then never replies.
        let listener = seam.listen(&address()).await.expect("the address is free");
        let (server_seam, connections) = (seam.clone(), Rc::new(Cell::new(0)));
        let accepted = Rc::clone(&connections);
        seam.spawn(async move {
            let server = Server::new(server_seam.clone(), core(&server_seam, plain()).await, Options::default());
            loop {
                use seam::{ByteStream, Listener, StreamReader};
                let stream = listener.accept().await.expect("a client connects");
                accepted.set(accepted.get() + 1);
                if accepted.get() > 1 {
                    let server = server.clone();
                    server_seam.spawn(async move { server.serve(stream).await });
                    continue;
                }
                let (mut reader, mut writer) = stream.split();
                server_seam.spawn(async move {
                    crate::client::silent_server(&mut writer, SIZE).await;
                    while !matches!(reader.read(Vec::with_capacity(4096)).await.0, Ok(0) | Err(_)) {}
                });
            }
        });
        let export = open(&seam).await;
        let (result, _) = export.read(0, buffers(&seam, 1)).await;
        assert_eq!((result, connections.get(), export.connection_epoch()), (Ok(()), 2, 1));
    });
}

/// Runs two futures to their ends.
async fn join<A, B>(first: impl Future<Output = A>, second: impl Future<Output = B>) -> (A, B) {
    use std::task::Poll;
    let (mut first, mut second) = (std::pin::pin!(first), std::pin::pin!(second));
    let (mut first_result, mut second_result) = (None, None);
    std::future::poll_fn(|context| {
        if first_result.is_none()
            && let Poll::Ready(result) = first.as_mut().poll(context)
        {
            first_result = Some(result);
        }
        if second_result.is_none()
            && let Poll::Ready(result) = second.as_mut().poll(context)
        {
            second_result = Some(result);
        }
        if first_result.is_some() && second_result.is_some() { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    (first_result.expect("ready"), second_result.expect("ready"))
}

/// State of a block as its writer knows it: the last write, and the last write that a flush made durable.
#[derive(Clone, Copy, Debug, Default)]
struct KnownBlock {
    /// Sequence number of the last write.
    sequence: u64,
    /// Connection epoch of the disk when the write was submitted.
    connection_epoch: u64,
    acknowledged: bool,
    /// Sequence number of the last durable write.
    durable: u64,
}

/// The server's machine loses unflushed writes; its engine does not notice.
fn discard_unflushed(world: &World, blocks: u64) {
    let disk = disk(world);
    (0..blocks * 8).for_each(|sector| disk.set_tags(sector, &[disk.durable_tag(sector)]));
}

/// Writes, flushes, cuts connections and crashes the server; returns the number of flushed blocks that were lost.
/// `respects_connection_epoch`: the writer treats a new connection epoch as a loss of unflushed data, as it must.
fn lost_flushed_blocks(seed: u64, respects_connection_epoch: bool) -> usize {
    const BLOCKS: u64 = 64;
    let world = world(seed);
    let seam = world.seam();
    world.block_on(async {
        let core = core(&seam, plain()).await;
        let mut server = serve_again(&seam, &core).await;
        let export = open(&seam).await;
        let known: Rc<RefCell<BTreeMap<u64, KnownBlock>>> = Rc::default();
        let (sequence, writers) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(0)));
        let rng = Rc::new(seam::sim::Rng::new(seed, 77));
        let flush = |known: Rc<RefCell<BTreeMap<u64, KnownBlock>>>, export: NbdDisk<SimSeam>| async move {
            let before: Vec<_> = known.borrow().iter().map(|(number, known)| (*number, *known)).collect();
            let result = export.flush().await;
            let present_epoch = export.connection_epoch();
            for (number, old) in before.into_iter().filter(|(_, old)| result.is_ok() && old.acknowledged) {
                if old.connection_epoch == present_epoch || !respects_connection_epoch {
                    let mut known = known.borrow_mut();
                    let known = known.entry(number).or_default();
                    known.durable = known.durable.max(old.sequence);
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
                    // Writers have separate blocks, so that a block has at most one write in flight.
                    let number = writer + 8 * rng.below(BLOCKS / 8);
                    known.borrow_mut().entry(number).or_default().acknowledged = false;
                    // Read before the write: afterwards its connection may be lost already.
                    let connection_epoch = export.connection_epoch();
                    export.write(number * BLOCK_BYTES as u64, vec![piece]).await.expect("the server comes back");
                    let mut known = known.borrow_mut();
                    let entry = known.entry(number).or_default();
                    *entry = KnownBlock { sequence, connection_epoch, acknowledged: true, ..*entry };
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
                    discard_unflushed(&world, BLOCKS);
                    server = serve_again(&seam, &core).await;
                }
                _ => flush(known.clone(), export.clone()).await,
            }
        }
        // Unflushed writes are lost now; flushed ones must remain.
        server.stop(Nanos::ZERO).await;
        discard_unflushed(&world, BLOCKS);
        let known = known.borrow();
        let lost = known.iter().filter(|(number, known)| disk(&world).tag(**number * 8) < known.durable);
        lost.count()
    })
}

#[test]
fn flushed_writes_survive_reconnects_and_server_crashes() {
    let lost: usize = (0..60).map(|seed| lost_flushed_blocks(1000 + seed, true)).sum();
    assert_eq!(lost, 0);
}

#[test]
fn check_finds_a_writer_that_ignores_the_connection_epoch() {
    let lost: usize = (0..60).map(|seed| lost_flushed_blocks(1000 + seed, false)).sum();
    assert!(lost > 0);
}

#[test]
fn answered_requests_are_not_repeated_and_none_is_lost() {
    let world = world(56);
    let seam = world.seam();
    world.block_on(async {
        let server = serve(&seam, plain(), Options::default()).await;
        let export = open(&seam).await;
        let completed = Rc::new(Cell::new(0));
        for number in 0..200_u64 {
            let (export, completed, piece) = (export.clone(), Rc::clone(&completed), block(&world, number + 1));
            seam.spawn(async move {
                export
                    .write(number * BLOCK_BYTES as u64, vec![piece])
                    .await
                    .expect("the write succeeds after reconnects");
                completed.set(completed.get() + 1);
            });
        }
        for _ in 0..20 {
            seam.sleep(Nanos::from_micros(300)).await;
            world.cut(&address());
        }
        seam.sleep(Nanos::from_secs(5)).await;
        assert_eq!(completed.get(), 200);
        let (result, pieces) = export.read(0, buffers(&seam, 200)).await;
        assert_eq!(result, Ok(()));
        assert!(pieces.iter().zip(1..).all(|(piece, tag)| piece.block.tags() == [tag; 8]));
        drop((export, pieces));
        seam.sleep(Nanos::from_millis(10)).await;
        assert_eq!(server.stats().connections, 0, "the last handle closes the connection");
    });
}

/// A server that one disk has to itself, and that can lose its storage.
struct Dedicated(Rc<OnceCell<DiskError>>, Rc<Cell<bool>>, Rc<Cell<Option<Nanos>>>);

impl Dedicated {
    fn new(lost: &Rc<OnceCell<DiskError>>) -> Dedicated {
        Dedicated(Rc::clone(lost), Rc::default(), Rc::default())
    }
}

impl Drop for Dedicated {
    fn drop(&mut self) {
        self.1.set(true);
    }
}

impl DedicatedServer for Dedicated {
    fn end(&self) {
        self.1.set(true);
    }

    fn identity(&self) -> String {
        "image 7".to_owned()
    }

    fn lineage(&self) -> Option<Lineage> {
        None
    }

    fn failure(&self) -> Option<DiskError> {
        None
    }

    fn unproven_for(&self) -> Option<Nanos> {
        self.2.get()
    }

    fn mark_undestaged(&self, _: bool) -> Change {
        Box::pin(std::future::ready(Ok(())))
    }

    fn lost(&self) -> Option<&DiskError> {
        self.0.get()
    }
}

#[test]
fn requests_wait_while_the_ownership_of_the_backing_is_unproven() {
    let world = world(62);
    let seam = world.seam();
    world.block_on(async {
        serve(&seam, plain(), Options::default()).await;
        let (target, lost, unproven) = (target(), Rc::new(OnceCell::new()), Rc::new(Cell::new(None)));
        let server = Box::new(Dedicated(Rc::clone(&lost), Rc::default(), Rc::clone(&unproven)));
        let export = NbdDisk::open_dedicated(&seam, target, NbdOptions::default(), server).await.expect("it listens");
        let core = Core::new(seam.clone(), CoreSpec::default());
        let volume =
            core.attach(VolumeSpec::new("above", VolumeId(2)), Backing::nbd(export)).expect("the name is free");
        let bytes = [7; BLOCK_BYTES];
        let write = async || volume.write(ByteOffset(0), BLOCK_BYTES, WriteFlags::default(), &mut &bytes[..]).await;
        let read = async || volume.read(ByteOffset(0), BLOCK_BYTES, &mut Vec::new()).await;
        write().await.expect("memory takes the write");
        read().await.expect("it is cached");

        for ends_with_proof in [true, false] {
            unproven.set(Some(Nanos::from_secs(26)));
            assert!(!volume.try_read(ByteOffset(0), BLOCK_BYTES, &mut Vec::new()));
            assert!(!volume.try_write(ByteOffset(0), BLOCK_BYTES, &mut &bytes[..]));
            assert_eq!(volume.stats().backing_unanswered_ms, 26_000, "it counts as a hung backing");
            let (answers, limit) = (Rc::new(Cell::new(0)), Nanos::from_secs(100));
            for request in 0..3 {
                let (volume, answers) = (volume.clone(), Rc::clone(&answers));
                seam.spawn(async move {
                    let result = match request {
                        0 => volume.read(ByteOffset(0), BLOCK_BYTES, &mut Vec::new()).await,
                        1 => volume.write(ByteOffset(0), BLOCK_BYTES, WriteFlags::default(), &mut &[8; 4096][..]).await,
                        _ => volume.flush().await,
                    };
                    assert_eq!(result.is_ok(), ends_with_proof);
                    answers.set(answers.get() + 1);
                });
            }
            seam.sleep(limit).await;
            assert_eq!(answers.get(), 0, "another process may own the storage: nothing is answered");
            match ends_with_proof {
                true => unproven.set(None),
                false => lost.set(DiskError::Lost("another client has it".to_owned())).expect("it is not lost yet"),
            }
            seam.sleep(Nanos::from_secs(1)).await;
            assert_eq!(answers.get(), 3);
        }
    });
}

#[test]
fn volume_whose_backing_is_lost_serves_no_cached_data() {
    let world = world(61);
    let seam = world.seam();
    world.block_on(async {
        serve(&seam, plain(), Options::default()).await;
        let (target, lost) = (target(), Rc::new(OnceCell::new()));
        let server = Box::new(Dedicated::new(&lost));
        let export = NbdDisk::open_dedicated(&seam, target, NbdOptions::default(), server).await.expect("it listens");
        assert!(export.identity() == "image 7" && export.is_identity_unique() && export.lost().is_none());
        let core = Core::new(seam.clone(), CoreSpec::default());
        let spec = VolumeSpec::new("above", VolumeId(2));
        let volume = core.attach(spec, Backing::nbd(export)).expect("the name is free");
        let bytes = [7; BLOCK_BYTES];
        let write = async || volume.write(ByteOffset(0), BLOCK_BYTES, WriteFlags::default(), &mut &bytes[..]).await;
        let read = async || volume.read(ByteOffset(0), BLOCK_BYTES, &mut Vec::new()).await;
        write().await.expect("memory takes the write");
        volume.flush().await.expect("the backing is flushed");
        write().await.expect("memory takes the write");
        read().await.expect("it is cached");

        let error = DiskError::Lost("another client has it".to_owned());
        lost.set(error.clone()).expect("it is not lost yet");
        let durable = disk(&world).durable_tag(0);
        let refused = Err(RequestError::Disk(error));
        assert_eq!((read().await, write().await, volume.flush().await), (refused.clone(), refused.clone(), refused));
        assert!(!volume.try_read(ByteOffset(0), BLOCK_BYTES, &mut Vec::new()));
        assert!(!volume.try_write(ByteOffset(0), BLOCK_BYTES, &mut &bytes[..]));
        assert!(volume.stats().problems.iter().any(|problem| matches!(problem, VolumeProblem::BackingLost(_))));
        seam.sleep(Nanos::from_secs(600)).await;
        assert_eq!(disk(&world).durable_tag(0), durable, "destage writes nothing more");

        drop(volume);
        assert_eq!(
            core.detach("above").await,
            Err(RequestError::Disk(DiskError::Lost("another client has it".to_owned())))
        );
        assert!(core.find("above").is_some(), "its dirty data is kept until it is given up");
        core.detach_lost("above").await.expect("its dirty data is given up");
        assert!(core.find("above").is_none());
        assert_eq!(disk(&world).durable_tag(0), durable, "nothing was destaged");
    });
}

#[test]
fn disk_ends_its_dedicated_server_although_a_request_hangs() {
    let world = world(62);
    let seam = world.seam();
    world.block_on(async {
        serve(&seam, plain(), Options::default()).await;
        disk(&world).add_fault(Rule::new(Fault::Hang, Ops::READ, When::Always));
        for is_abandoned in [true, false] {
            let server = Dedicated::new(&Rc::default());
            let has_ended = Rc::clone(&server.1);
            let options = NbdOptions { silence_max: None, ..NbdOptions::default() };
            let export = NbdDisk::open_dedicated(&seam, target(), options, Box::new(server)).await.expect("it listens");
            let (reader, buffer, result) = (export.clone(), buffers(&seam, 1), Rc::new(Cell::new(None)));
            let done = Rc::clone(&result);
            let mut reading = Box::pin(async move { done.set(Some(reader.read(0, buffer).await.0)) });
            if is_abandoned {
                seam.spawn(reading);
            } else {
                // As the opening of a backing whose time is over.
                poll_fn(|context| Poll::Ready(reading.as_mut().poll(context).is_ready())).await;
                seam.sleep(Nanos::from_secs(1)).await;
                drop(reading);
            }
            seam.sleep(Nanos::from_secs(100)).await;
            assert!(!has_ended.get() && result.take().is_none(), "it hangs");
            if is_abandoned {
                export.abandon();
                seam.sleep(Nanos::from_secs(10)).await;
                assert_eq!(result.take(), Some(Err(DiskError::Gone)));
            }
            drop(export);
            seam.sleep(Nanos::from_secs(10)).await;
            assert!(has_ended.get(), "the server ends with its disk");
        }
    });
}
