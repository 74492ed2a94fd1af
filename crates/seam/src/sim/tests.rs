//! Tests of the simulated world.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use super::*;
use crate::{
    BLOCK_BYTES, Block, BlockMut, ByteStream, Disk, DiskError, Gather, Listener, Piece, StreamReader, StreamWriter,
};

const SIZE: u64 = 1 << 20;

fn world(seed: u64) -> World {
    World::new(WorldSpec { trace: TraceMode::Log, order: TaskOrder::Seeded, ..WorldSpec::new(seed) })
}

fn open_spec(name: &str) -> DiskOpen {
    DiskOpen { path: name.into(), create_bytes: None, read_only: false, lock_wait_ms: 0 }
}

fn pieces(world: &World, tag: u64, blocks: usize) -> Vec<Piece<SimBlock>> {
    (0..blocks).map(|_| Piece::whole(world.block([tag; 8]).expect("the pool has a free buffer").freeze())).collect()
}

async fn write(world: &World, disk: &SimDisk, at: u64, tag: u64) -> DiskResult<()> {
    disk.write(at, pieces(world, tag, 1)).await
}

async fn read(seam: &SimSeam, disk: &SimDisk, at: u64) -> [u64; 8] {
    let buffer = Piece::whole(seam.alloc().expect("the pool has a free buffer"));
    let (result, pieces) = disk.read(at, vec![buffer]).await;
    result.expect("no fault was injected");
    pieces[0].block.tags()
}

/// Runs eight tasks that write, read and flush at random offsets, and returns the trace.
fn trace_of_busy_world(seed: u64) -> Trace {
    let world = world(seed);
    world.add_disk("d", SimDiskSpec { timing: Timing::between(Nanos(1_000), Nanos(90_000)), ..SimDiskSpec::new(SIZE) });
    let seam = world.seam();
    world.block_on(async {
        let disk = seam.open_disk(&open_spec("d")).await.unwrap();
        let remaining = Rc::new(Cell::new(8));
        for task in 0..8 {
            let (seam, disk, remaining) = (seam.clone(), disk.clone(), Rc::clone(&remaining));
            seam.clone().spawn(async move {
                for _ in 0..20 {
                    let at = seam.random() % (SIZE / 4096) * 4096;
                    let mut block = seam.alloc().unwrap();
                    (0..8).for_each(|sector| block.set_tag(sector, task + 1));
                    disk.write(at, vec![Piece::whole(block.freeze())]).await.unwrap();
                    read(&seam, &disk, at).await;
                    disk.flush().await.unwrap();
                }
                remaining.set(remaining.get() - 1);
            });
        }
        while remaining.get() > 0 {
            seam.sleep(Nanos::from_millis(1)).await;
        }
    });
    assert_eq!(world.blocks_out(), 0);
    world.trace()
}

#[test]
fn same_seed_gives_the_same_trace_byte_for_byte() {
    let (first, second) = (trace_of_busy_world(7), trace_of_busy_world(7));
    assert_eq!(first.bytes(), second.bytes());
    assert_eq!(first.bytes().len(), 8 * 20 * 3 * 2 * 40);
    assert_eq!(first.text(), second.text());
    let other = trace_of_busy_world(8);
    assert_ne!(first.bytes(), other.bytes());
    assert_ne!(first.hash(), other.hash());
}

#[test]
fn tasks_run_in_order_or_in_an_order_of_the_seed() {
    let order = |seed, order| {
        let world = World::new(WorldSpec { order, ..WorldSpec::new(seed) });
        let (seam, ran) = (world.seam(), Rc::new(RefCell::new(Vec::new())));
        for number in 0..10 {
            let ran = Rc::clone(&ran);
            seam.spawn(async move { ran.borrow_mut().push(number) });
        }
        world.block_on(seam.sleep(Nanos(1)));
        ran.take()
    };
    assert_eq!(order(1, TaskOrder::Fifo), (0..10).collect::<Vec<_>>());
    assert_eq!(order(1, TaskOrder::Seeded), order(1, TaskOrder::Seeded));
    assert_ne!(order(1, TaskOrder::Seeded), order(2, TaskOrder::Seeded));
}

#[test]
fn time_passes_only_by_sleeping_and_spending() {
    let world = world(1);
    let seam = world.seam();
    world.block_on(async {
        seam.sleep(Nanos::from_secs(3600)).await;
        assert_eq!(seam.now(), Nanos::from_secs(3600));
        seam.spend(Nanos(7));
        seam.yield_now().await;
        assert_eq!(seam.now(), Nanos::from_secs(3600) + Nanos(7));
    });
    world.run_for(Nanos::from_secs(1)).unwrap();
    assert_eq!(world.now(), Nanos::from_secs(3601) + Nanos(7));
}

#[test]
fn deadlock_and_passed_time_limit_are_reported_as_such() {
    let world = World::new(WorldSpec { time_max: Nanos::from_secs(9), ..WorldSpec::new(1) });
    let seam = world.seam();
    assert_eq!(world.run_until(std::future::pending::<()>()), Err(Stop::Deadlock { now: Nanos::ZERO, tasks: 0 }));
    let ticking = seam.clone();
    seam.spawn(async move {
        loop {
            ticking.sleep(Nanos::from_secs(1)).await;
        }
    });
    let stop = world.run_until(std::future::pending::<()>());
    assert_eq!(stop, Err(Stop::OutOfTime { now: Nanos::from_secs(9) }));
}

#[test]
fn a_dropped_sleep_does_not_hold_the_clock() {
    let world = world(1);
    let seam = world.seam();
    world.block_on(async {
        let mut long = Box::pin(seam.sleep(Nanos::from_secs(100)));
        std::future::poll_fn(|context| {
            assert!(long.as_mut().poll(context).is_pending());
            Poll::Ready(())
        })
        .await;
        drop(long);
        seam.sleep(Nanos(1)).await;
    });
    assert!(matches!(world.run_until(std::future::pending::<()>()), Err(Stop::Deadlock { now: Nanos(1), .. })));
}

#[test]
fn a_dropped_write_completes_and_keeps_its_buffer_until_then() {
    let world = world(1);
    let control = world.add_disk("d", SimDiskSpec::new(SIZE));
    let seam = world.seam();
    world.block_on(async {
        let disk = seam.open_disk(&open_spec("d")).await.unwrap();
        let mut writing = Box::pin(write(&world, &disk, 4096, 5));
        std::future::poll_fn(|context| {
            assert!(writing.as_mut().poll(context).is_pending());
            Poll::Ready(())
        })
        .await;
        drop(writing);
        assert_eq!((control.in_flight(), world.blocks_out(), control.tag(8)), (1, 1, 0));
        seam.sleep(Nanos::from_millis(1)).await;
        assert_eq!((control.in_flight(), world.blocks_out(), control.tag(8)), (0, 0, 5));
    });
}

#[test]
fn write_is_durable_only_after_a_flush() {
    let world = world(1);
    let control = world.add_disk("d", SimDiskSpec::new(SIZE));
    let seam = world.seam();
    world.block_on(async {
        let disk = seam.open_disk(&open_spec("d")).await.unwrap();
        write(&world, &disk, 0, 1).await.unwrap();
        assert_eq!((control.tag(0), control.durable_tag(0)), (1, 0));
        disk.flush().await.unwrap();
        write(&world, &disk, 0, 2).await.unwrap();
        assert_eq!((control.tag(0), control.durable_tag(0)), (2, 1));
    });
}

#[test]
fn flush_covers_only_writes_completed_before_it() {
    let world = world(1);
    let control = world.add_disk("d", SimDiskSpec::new(SIZE));
    let seam = world.seam();
    world.block_on(async {
        let disk = seam.open_disk(&open_spec("d")).await.unwrap();
        write(&world, &disk, 0, 1).await.unwrap();
        let (flusher, other) = (disk.clone(), disk.clone());
        seam.spawn(async move { flusher.flush().await.unwrap() });
        seam.sleep(Nanos(1)).await;
        write(&world, &other, 4096, 2).await.unwrap();
        seam.sleep(Nanos::from_millis(5)).await;
        assert_eq!((control.durable_tag(0), control.durable_tag(8), control.unflushed()), (1, 0, 1));
    });
}

/// Content of two blocks after a crash, and true if writes are still unflushed. The first block had three writes, of
/// which the first was flushed; the write of the second block was in flight.
fn crash_and_read(mode: CrashMode, seed: u64) -> ([u64; 8], [u64; 8], bool) {
    let first = world(seed);
    first.add_disk("d", SimDiskSpec::new(SIZE));
    let seam = first.seam();
    first.block_on(async {
        let disk = seam.open_disk(&open_spec("d")).await.unwrap();
        write(&first, &disk, 0, 1).await.unwrap();
        disk.flush().await.unwrap();
        write(&first, &disk, 0, 2).await.unwrap();
        write(&first, &disk, 0, 3).await.unwrap();
        let block = first.block([4; 8]).unwrap().freeze();
        let in_flight = disk.clone();
        seam.spawn(async move { in_flight.write(4096, vec![Piece::whole(block)]).await.unwrap() });
        seam.sleep(Nanos(1)).await;
    });
    drop(seam);
    let images = first.crash(mode);
    let second = world(seed);
    second.adopt(images);
    let control = second.disk("d").unwrap();
    let seam = second.seam();
    second.block_on(async {
        let disk = seam.open_disk(&open_spec("d")).await.unwrap();
        (read(&seam, &disk, 0).await, read(&seam, &disk, 4096).await, control.unflushed() > 0)
    })
}

#[test]
fn each_crash_mode_leaves_its_defined_state() {
    let runs = |mode| (0..64).map(|seed| crash_and_read(mode, seed)).collect::<Vec<_>>();
    let any_run =
        |runs: &[([u64; 8], [u64; 8], bool)], wanted: fn(&[u64; 8]) -> bool| runs.iter().any(|run| wanted(&run.0));
    let torn = |tags: &[u64; 8]| tags.iter().any(|tag| *tag != tags[0]);

    assert!(runs(CrashMode::LoseAll).iter().all(|run| *run == ([1; 8], [0; 8], false)));
    assert!(runs(CrashMode::KeepAll).iter().all(|run| *run == ([3; 8], [4; 8], false)));

    let killed = runs(CrashMode::Kill);
    assert!(killed.iter().all(|run| run.0 == [3; 8] && run.2), "a killed process loses nothing that completed");
    assert!(killed.iter().any(|run| torn(&run.1)), "a write in flight lands in part");

    let prefix = runs(CrashMode::Prefix);
    assert!(
        any_run(&prefix, |tags| *tags == [1; 8])
            && any_run(&prefix, |tags| *tags == [2; 8])
            && any_run(&prefix, |tags| *tags == [3; 8])
    );
    assert!(!any_run(&prefix, torn) && prefix.iter().all(|run| run.1 == [0; 8]));

    let subset = runs(CrashMode::Subset);
    assert!(subset.iter().any(|run| run.0 == [1; 8] && run.1 == [4; 8]) && !any_run(&subset, torn));

    let reordered = runs(CrashMode::Reordered);
    assert!(reordered.iter().any(|run| run.0 == [2; 8] && run.1 == [4; 8]), "an older write lands last");

    assert!(any_run(&runs(CrashMode::Torn), torn) && any_run(&runs(CrashMode::Scattered), torn));
    for mode in CrashMode::ALL {
        assert!(
            runs(mode).iter().flat_map(|run| run.0).all(|tag| (1..=3).contains(&tag)),
            "{mode:?} loses a flushed write"
        );
    }
}

#[test]
fn nothing_is_torn_inside_a_physical_block() {
    for seed in 0..64 {
        let first = world(seed);
        let mut spec = SimDiskSpec::new(SIZE);
        spec.geometry.physical_block = 4096;
        first.add_disk("d", spec);
        let seam = first.seam();
        first.block_on(async {
            let disk = seam.open_disk(&open_spec("d")).await.unwrap();
            disk.write(0, pieces(&first, 9, 8)).await.unwrap();
        });
        let mode = if seed % 2 == 0 { CrashMode::Torn } else { CrashMode::Scattered };
        let second = world(seed);
        second.adopt(first.crash(mode));
        let control = second.disk("d").unwrap();
        for block in 0..8 {
            let tags: Vec<_> = (0..8).map(|sector| control.tag(block * 8 + sector)).collect();
            assert!(tags.iter().all(|tag| *tag == tags[0]), "seed {seed}, block {block}: {tags:?}");
        }
    }
}

#[test]
#[should_panic(expected = "not aligned to the logical block of 4096")]
fn a_4kn_disk_refuses_half_a_block() {
    let world = world(1);
    let mut spec = SimDiskSpec::new(SIZE);
    (spec.geometry.logical_block, spec.geometry.physical_block) = (4096, 4096);
    world.add_disk("d", spec);
    let seam = world.seam();
    world.block_on(async {
        let disk = seam.open_disk(&open_spec("d")).await.unwrap();
        let block = world.block([1; 8]).unwrap().freeze();
        disk.write(512, vec![Piece::new(block, 0, 512)]).await.unwrap();
    });
}

#[test]
fn faults_follow_the_fault_plan() {
    let world = world(3);
    let control = world.add_disk("d", SimDiskSpec::new(SIZE));
    let seam = world.seam();
    let fault = |fault, ops| {
        control.clear_faults();
        control.add_fault(Rule::new(fault, ops, When::Nth(0)));
    };
    world.block_on(async {
        let disk = seam.open_disk(&open_spec("d")).await.unwrap();
        write(&world, &disk, 0, 1).await.unwrap();
        disk.flush().await.unwrap();

        fault(Fault::Lost, Ops::WRITE);
        write(&world, &disk, 0, 2).await.unwrap();
        assert_eq!(read(&seam, &disk, 0).await, [1; 8]);

        fault(Fault::Torn, Ops::WRITE);
        write(&world, &disk, 0, 2).await.unwrap();
        assert_eq!(read(&seam, &disk, 0).await[7], 1);

        fault(Fault::BitFlip, Ops::READ);
        write(&world, &disk, 0, 2).await.unwrap();
        let seen = read(&seam, &disk, 0).await;
        assert_eq!(seen.iter().filter(|tag| **tag != 2).map(|tag| (tag ^ 2).count_ones()).collect::<Vec<_>>(), [1]);
        assert_eq!(read(&seam, &disk, 0).await, [2; 8]);

        fault(Fault::Misdirected, Ops::WRITE);
        write(&world, &disk, 0, 3).await.unwrap();
        assert_eq!((control.tag(0), control.tag(1), control.tag(8)), (2, 3, 3));

        fault(Fault::FlushLies, Ops::FLUSH);
        disk.flush().await.unwrap();
        assert_eq!(control.durable_tag(1), 1);

        fault(Fault::NoSpace, Ops::WRITE);
        assert_eq!(write(&world, &disk, 0, 4).await, Err(DiskError::NoSpace));

        fault(Fault::Error, Ops::FLUSH);
        assert!(matches!(disk.flush().await, Err(DiskError::Io(_))));

        fault(Fault::Stall(Nanos::from_secs(2)), Ops::READ);
        let before = seam.now();
        read(&seam, &disk, 0).await;
        assert!(seam.now().since(before) >= Nanos::from_secs(2));

        control.clear_faults();
        control.add_fault(Rule::medium_error(8192..8704));
        assert!(write(&world, &disk, 4096, 1).await.is_ok() && write(&world, &disk, 8192, 1).await.is_err());

        fault(Fault::Vanish, Ops::ALL);
        assert_eq!(write(&world, &disk, 0, 5).await, Err(DiskError::Gone));
        assert_eq!(disk.flush().await, Err(DiskError::Gone));
        let connection_epoch = disk.connection_epoch();
        control.come_back();
        assert_ne!(disk.connection_epoch(), connection_epoch);
        assert!(write(&world, &disk, 0, 5).await.is_ok());
    });
}

#[test]
fn reconnect_may_lose_only_unflushed_writes() {
    let mut lost = 0;
    for seed in 0..64 {
        let world = world(seed);
        let control = world.add_disk("d", SimDiskSpec::new(SIZE));
        let seam = world.seam();
        world.block_on(async {
            let disk = seam.open_disk(&open_spec("d")).await.unwrap();
            write(&world, &disk, 0, 1).await.unwrap();
            disk.flush().await.unwrap();
            write(&world, &disk, 4096, 2).await.unwrap();
            let connection_epoch = disk.connection_epoch();
            control.reconnect();
            assert_ne!(disk.connection_epoch(), connection_epoch);
            assert_eq!(control.tag(0), 1);
            lost += u32::from(control.tag(8) != 2);
        });
    }
    assert!((10..54).contains(&lost), "lost {lost} of 64");
}

#[test]
fn buffer_changed_during_its_write_is_a_violation() {
    let world = world(1);
    world.add_disk("d", SimDiskSpec::new(SIZE));
    let seam = world.seam();
    world.block_on(async {
        let disk = seam.open_disk(&open_spec("d")).await.unwrap();
        let block = world.block([1; 8]).unwrap().freeze();
        let alias = block.clone();
        seam.spawn(async move { disk.write(0, vec![Piece::whole(block)]).await.unwrap() });
        seam.sleep(Nanos(1)).await;
        assert!(alias.clone().thaw().is_err());
        alias.sabotage_thaw().set_tag(3, 2);
        seam.sleep(Nanos::from_millis(1)).await;
    });
    assert_eq!(world.violations().len(), 1);
    assert!(world.violations()[0].starts_with("R1"));
}

#[test]
fn world_stops_at_the_requested_io() {
    for count in 1..=5 {
        let world = world(1);
        world.add_disk("d", SimDiskSpec::new(SIZE));
        let seam = world.seam();
        world.crash_at_io(count);
        let stop = world.run_until(async {
            let disk = seam.open_disk(&open_spec("d")).await.unwrap();
            write(&world, &disk, 0, 1).await.unwrap();
            write(&world, &disk, 0, 2).await.unwrap();
        });
        assert_eq!(stop, if count < 5 { Err(Stop::CrashPoint) } else { Ok(()) });
        assert_eq!(world.io_count(), count.min(4));
    }
}

#[test]
fn crash_runs_no_task_and_returns_every_buffer() {
    let first = world(1);
    first.add_disk("d", SimDiskSpec::new(SIZE));
    let (seam, ran) = (first.seam(), Rc::new(Cell::new(0)));
    let (inner, count) = (seam.clone(), Rc::clone(&ran));
    seam.spawn(async move {
        let disk = inner.open_disk(&open_spec("d")).await.unwrap();
        loop {
            let block = inner.alloc().unwrap().freeze();
            disk.write(0, vec![Piece::whole(block)]).await.unwrap();
            count.set(count.get() + 1);
        }
    });
    first.run_for(Nanos::from_micros(250)).unwrap();
    assert_eq!((ran.get(), first.blocks_out()), (2, 1));
    let images = first.crash(CrashMode::LoseAll);
    assert_eq!((ran.get(), seam.blocks_free()), (2, seam.blocks_total()));
    let second = world(1);
    second.adopt(images);
    assert!(second.block_on(second.seam().open_disk(&open_spec("d"))).is_ok(), "an ended world holds no lock");
}

#[test]
fn two_writers_of_one_disk_are_refused() {
    let world = world(1);
    world.add_disk("d", SimDiskSpec::new(SIZE));
    let seam = world.seam();
    world.block_on(async {
        let first = seam.open_disk(&open_spec("d")).await.unwrap();
        assert!(matches!(seam.open_disk(&open_spec("d")).await, Err(DiskError::Busy(_))));
        let later = seam.clone();
        seam.spawn(async move {
            later.sleep(Nanos::from_millis(20)).await;
            drop(first);
        });
        let waiting = DiskOpen { lock_wait_ms: 1_000, ..open_spec("d") };
        assert!(seam.open_disk(&waiting).await.is_ok());
        assert!(matches!(seam.open_disk(&open_spec("missing")).await, Err(DiskError::Open(_))));
    });
}

#[test]
fn stream_delivers_delayed_chunks_completely_and_in_order() {
    let world = world(5);
    let delay = Latency::between(Nanos(10), Nanos(9_000));
    world.set_wires(WireSpec { delay, chunk_bytes_max: 700, window_bytes: 3_000 });
    let (seam, at) = (world.seam(), Address::Unix("/run/test.sock".into()));
    world.block_on(async {
        assert!(seam.connect(&at).await.is_err());
        let listener = seam.listen(&at).await.unwrap();
        assert!(seam.listen(&at).await.is_err());
        let (client, server_seam) = (seam.clone(), seam.clone());
        let block = world.block([1, 2, 3, 4, 5, 6, 7, 8]).unwrap().freeze();
        let to = at.clone();
        seam.spawn(async move {
            let (_reader, mut writer) = client.connect(&to).await.unwrap().split();
            let mut gather = Gather::default();
            gather.push_bytes(b"header");
            gather.push_piece(Piece::whole(block));
            writer.send(gather).await.0.unwrap();
        });
        let (mut reader, _writer) = listener.accept().await.unwrap().split();
        let mut header = Vec::with_capacity(6);
        while header.len() < 6 {
            let (result, back) = reader.read(header).await;
            assert!(result.unwrap() > 0);
            header = back;
        }
        assert_eq!(header, b"header");
        let (result, pieces) = reader.read_pieces(vec![Piece::whole(server_seam.alloc().unwrap())]).await;
        result.unwrap();
        assert_eq!(pieces[0].block.tags(), [1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(reader.read(Vec::with_capacity(1)).await.0.unwrap(), 0);
    });
}

#[test]
fn a_cut_or_closed_connection_ends_both_sides() {
    let world = world(5);
    let (seam, at) = (world.seam(), Address::Tcp("store".into(), 10809));
    world.block_on(async {
        let listener = seam.listen(&at).await.unwrap();
        let (mut reader, mut writer) = seam.connect(&at).await.unwrap().split();
        let (mut server_reader, mut server_writer) = listener.accept().await.unwrap().split();
        writer.shutdown();
        assert_eq!(reader.read(Vec::with_capacity(1)).await.0.unwrap(), 0);
        assert_eq!(server_reader.read(Vec::with_capacity(1)).await.0.unwrap(), 0);
        let mut gather = Gather::default();
        gather.push_bytes(b"x");
        assert!(server_writer.send(gather).await.0.is_err());

        let (mut reader, _writer) = seam.connect(&at).await.unwrap().split();
        let _far = listener.accept().await.unwrap();
        world.cut(&at);
        assert!(reader.read(Vec::with_capacity(1)).await.0.is_err());
    });
}

#[test]
fn allocation_reports_holes_and_zeroes_exactly() {
    let world = world(1);
    world.add_disk("d", SimDiskSpec::new(SIZE));
    let seam = world.seam();
    world.block_on(async {
        let disk = seam.open_disk(&open_spec("d")).await.unwrap();
        write(&world, &disk, 128 << 10, 1).await.unwrap();
        let runs = disk.allocation(0, SIZE).await.unwrap();
        let shape: Vec<_> = runs.iter().map(|run| (run.len_bytes, run.hole, run.zero)).collect();
        let remainder = SIZE - (192 << 10);
        assert_eq!(
            shape,
            [(128 << 10, true, true), (4096, false, false), (60 << 10, false, true), (remainder, true, true)]
        );
        disk.zero(0, SIZE, true).await.unwrap();
        assert!(disk.allocation(0, SIZE).await.unwrap().iter().all(|run| run.hole && run.zero));
    });
}

#[test]
fn a_world_without_content_still_counts_its_buffers() {
    let world = World::new(WorldSpec { content: StoredContent::MetadataOnly, ..WorldSpec::new(1) });
    world.add_disk("d", SimDiskSpec { timing: Timing::INSTANT, ..SimDiskSpec::new(SIZE) });
    let seam = world.seam();
    world.block_on(async {
        let disk = seam.open_disk(&open_spec("d")).await.unwrap();
        let block = seam.alloc().unwrap().freeze();
        assert_eq!(world.blocks_out(), 1);
        disk.write(0, vec![Piece::whole(block)]).await.unwrap();
        let mut bytes = vec![1; BLOCK_BYTES];
        seam.zero_block().read_bytes(0, &mut bytes);
        assert!(bytes.iter().all(|byte| *byte == 0));
    });
    assert_eq!((world.blocks_out(), world.now()), (0, Nanos::ZERO));
}

#[test]
fn simulated_disk_passes_the_conformance_suite() {
    for (seed, block) in [(1, 512), (2, 4096)] {
        let world = world(seed);
        let mut spec = SimDiskSpec::new(SIZE);
        (spec.geometry.logical_block, spec.geometry.physical_block) = (block, block);
        spec.timing = Timing::between(Nanos(1), Nanos::from_millis(2));
        world.add_disk("d", spec);
        let seam = world.seam();
        world.block_on(async {
            let disk = seam.open_disk(&open_spec("d")).await.unwrap();
            crate::conformance::disk(&seam, &disk).await;
        });
        assert_eq!(world.blocks_out(), 0);
    }
}

#[test]
fn snapshot_offers_every_survival_while_the_world_continues() {
    let first = world(3);
    let control = first.add_disk("d", SimDiskSpec::new(SIZE));
    let seam = first.seam();
    let snapshot = first.block_on(async {
        let disk = seam.open_disk(&open_spec("d")).await.unwrap();
        write(&first, &disk, 0, 1).await.unwrap();
        disk.flush().await.unwrap();
        write(&first, &disk, 0, 2).await.unwrap();
        let (seam, block) = (seam.clone(), first.block([3; 8]).unwrap().freeze());
        let writing = disk.clone();
        seam.spawn(async move { writing.write(4096, vec![Piece::whole(block)]).await.unwrap() });
        seam.sleep(Nanos(1)).await;
        let snapshot = first.snapshot();
        seam.sleep(Nanos::from_millis(1)).await;
        snapshot
    });
    assert_eq!((control.tag(0), control.tag(8)), (2, 3));
    let shape: Vec<_> =
        snapshot.changes().map(|change| (change.sector, change.completed, change.last_of_disk)).collect();
    assert_eq!(shape, [(0, true, false), (8, false, true)]);
    let after_crash = |survival: &dyn Fn(usize) -> Survival| {
        let next = world(4);
        next.adopt(snapshot.images(survival));
        let disk = next.disk("d").unwrap();
        [disk.tag(0), disk.tag(7), disk.tag(8), disk.tag(15)]
    };
    assert_eq!(after_crash(&|_| Survival::Lost), [1, 1, 0, 0]);
    assert_eq!(after_crash(&|_| Survival::Whole), [2, 2, 3, 3]);
    assert_eq!(after_crash(&|number| if number == 0 { Survival::First(1) } else { Survival::AllBut(1) }), [2, 1, 0, 3]);
    assert_eq!(after_crash(&|_| Survival::Scattered(1 << 7)), [1, 2, 0, 3]);
}

#[test]
fn metadata_survives_a_crash_and_a_flipped_bit_is_one_bit() {
    let bytes: Vec<u8> = (0..BLOCK_BYTES).map(|at| (at % 253) as u8).collect();
    for content in [StoredContent::Tags, StoredContent::MetadataOnly] {
        let first = World::new(WorldSpec { content, ..WorldSpec::new(1) });
        first.add_disk("d", SimDiskSpec::new(SIZE));
        let seam = first.seam();
        first.block_on(async {
            let disk = seam.open_disk(&open_spec("d")).await.unwrap();
            let mut block = seam.alloc().unwrap();
            block.write_metadata(0, &bytes);
            disk.write(4096, vec![Piece::whole(block.freeze())]).await.unwrap();
            disk.flush().await.unwrap();
        });
        let second = World::new(WorldSpec { content, ..WorldSpec::new(2) });
        second.adopt(first.crash(CrashMode::LoseAll));
        second.disk("d").unwrap().flip_bit(9, 3);
        let seam = second.seam();
        let mut content = vec![0; BLOCK_BYTES];
        second.block_on(async {
            let disk = seam.open_disk(&open_spec("d")).await.unwrap();
            let (result, pieces) = disk.read(4096, vec![Piece::whole(seam.alloc().unwrap())]).await;
            result.unwrap();
            pieces.into_iter().next().unwrap().block.freeze().read_bytes(0, &mut content);
        });
        content[512] ^= 1 << 3;
        assert_eq!(content, bytes);
    }
}
