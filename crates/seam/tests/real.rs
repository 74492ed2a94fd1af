//! Tests of the real world's properties that a simulated world cannot show.

#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "the test uses the operating system directly")]

use std::cell::Cell;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Mutex;

use seam::model::{DiskType, SsdSpec};
use seam::real::{RealCoreSpec, RealDisk, RealError, RealSeam, RealStream, report_lock_waits, run_core};
use seam::{
    Address, BLOCK_BYTES, Block, BlockMut, ByteStream, Disk, DiskError, DiskOpen, Gather, Listener, Nanos, Piece, Seam,
    StreamReader, StreamWriter, mailbox,
};

fn core<F, T>(main: impl FnOnce(RealSeam) -> F) -> T
where
    F: Future<Output = T> + 'static,
    T: 'static,
{
    run_core(RealCoreSpec::new(64 << 20), main).expect("io_uring is allowed where the tests run")
}

fn folder() -> tempfile::TempDir {
    tempfile::tempdir().expect("a temporary directory can be created")
}

fn open_spec(path: &Path, create_bytes: Option<u64>) -> DiskOpen {
    DiskOpen { path: path.to_owned(), create_bytes, read_only: false, lock_wait_ms: 0 }
}

async fn open_new(seam: &RealSeam, path: &Path) -> RealDisk {
    seam.open_disk(&open_spec(path, Some(1 << 20))).await.expect("the file can be created")
}

/// A new disk that this process has locked without opening it as a disk.
async fn locked(seam: &RealSeam, path: &Path) -> std::fs::File {
    drop(open_new(seam, path).await);
    let holder = std::fs::File::open(path).expect("the file exists");
    holder.lock().expect("the file is not locked");
    holder
}

fn filled(seam: &RealSeam, byte: u8) -> <RealSeam as Seam>::Block {
    let mut block = seam.alloc().expect("the pool has a free block");
    block.write_bytes(0, &[byte; BLOCK_BYTES]);
    block.freeze()
}

#[test]
fn second_opener_is_refused_with_the_holder_s_process() {
    let folder = folder();
    let path = folder.path().join("disk");
    core(|seam| async move {
        let holder = locked(&seam, &path).await;
        let DiskError::Busy(text) = seam.open_disk(&open_spec(&path, None)).await.err().expect("locked") else {
            panic!("the error names the lock")
        };
        assert!(text.contains(&format!("pid {}", std::process::id())), "{text}");
        drop(holder);
        seam.open_disk(&open_spec(&path, None)).await.expect("the lock ended with its holder");
    });
}

#[test]
fn wait_for_a_lock_is_reported_once_with_its_holder() {
    static REPORTS: Mutex<Vec<(PathBuf, Option<u32>)>> = Mutex::new(Vec::new());
    report_lock_waits(|path, holder, _| REPORTS.lock().expect("no panic").push((path.to_owned(), holder)));
    let folder = folder();
    let path = folder.path().join("disk");
    core(|seam| async move {
        let _holder = locked(&seam, &path).await;
        // Long enough for a first attempt on a busy machine, after which the wait is reported.
        let spec = DiskOpen { lock_wait_ms: 2_000, ..open_spec(&path, None) };
        assert!(matches!(seam.open_disk(&spec).await, Err(DiskError::Busy(_))));
        let reports = REPORTS.lock().expect("no panic");
        let own: Vec<_> = reports.iter().filter(|(reported, _)| *reported == path).collect();
        assert_eq!(own, [&(path.clone(), Some(std::process::id()))]);
    });
}

#[test]
fn second_path_to_an_open_disk_is_refused_with_both_names() {
    let folder = folder();
    let path = folder.path().join("disk");
    let names = ["hard", "soft"].map(|name| folder.path().join(name));
    core(|seam| async move {
        let first = open_new(&seam, &path).await;
        std::fs::hard_link(&path, &names[0]).expect("the link can be created");
        std::os::unix::fs::symlink(&path, &names[1]).expect("the link can be created");
        for other in names.iter().chain([&path]) {
            let error = seam.open_disk(&open_spec(other, None)).await.err().expect("the disk is open already");
            let DiskError::Shared { path: second, other: holder, .. } = &error else { panic!("{error}") };
            assert_eq!((second, holder), (other, &path));
        }
        drop(first);
        let read = DiskOpen { read_only: true, ..open_spec(&path, None) };
        let reader = seam.open_disk(&read).await.expect("the disk is closed");
        let second = seam
            .open_disk(&DiskOpen { path: names[0].clone(), ..read })
            .await
            .expect("read-only openers share the disk");
        let error = seam.open_disk(&open_spec(&names[0], None)).await.err().expect("a writer excludes readers");
        assert!(matches!(error, DiskError::Shared { .. }), "{error}");
        drop((reader, second));
        seam.open_disk(&open_spec(&names[1], None)).await.expect("the disk is closed");
    });
}

#[test]
fn opener_waits_for_the_holder_to_close() {
    let folder = folder();
    let path = folder.path().join("disk");
    core(|seam| async move {
        let first = open_new(&seam, &path).await;
        let later = seam.clone();
        seam.spawn(async move {
            later.sleep(Nanos::from_millis(50)).await;
            drop(first);
        });
        let waiting = DiskOpen { lock_wait_ms: 10_000, ..open_spec(&path, None) };
        seam.open_disk(&waiting).await.expect("the holder closes the disk in time");
    });
}

#[test]
fn file_with_latency_of_an_ssd_keeps_to_its_ceiling() {
    let folder = folder();
    let path = folder.path().join("disk");
    core(|seam| async move {
        let ssd = DiskType::Ssd.ssd().expect("the type is an SSD");
        let disk = open_new(&seam, &path).await.with_ssd_latency(SsdSpec { write_iops_max: 100, ..ssd });
        let started_at = seam.now();
        for _ in 0..6 {
            let piece = Piece::new(filled(&seam, 1), 0, BLOCK_BYTES);
            disk.write(0, vec![piece]).await.expect("the write succeeds");
        }
        // The first write is admitted at once. Even on a slow machine the sixth is not admitted earlier than this.
        assert!(seam.now().since(started_at) >= Nanos::from_millis(50));
    });
}

#[test]
fn dropped_write_completes_and_holds_its_buffers() {
    let folder = folder();
    let path = folder.path().join("disk");
    let in_core = path.clone();
    core(|seam| async move {
        let disk = open_new(&seam, &in_core).await;
        let free = seam.blocks_free();
        {
            let mut write = Box::pin(disk.write(8192, vec![Piece::whole(filled(&seam, 7))]));
            std::future::poll_fn(|context| {
                assert!(write.as_mut().poll(context).is_pending());
                std::task::Poll::Ready(())
            })
            .await;
        }
        assert_eq!(seam.blocks_free(), free - 1, "the operation owns its block");
        drop(disk);
        while seam.blocks_free() != free {
            seam.sleep(Nanos::from_millis(1)).await;
        }
    });
    let mut read = [0; BLOCK_BYTES];
    std::fs::File::open(&path)
        .expect("the file exists")
        .read_exact_at(&mut read, 8192)
        .expect("the file is long enough");
    assert_eq!(read, [7; BLOCK_BYTES]);
}

#[test]
fn core_does_not_end_before_its_disk_operations() {
    let folder = folder();
    let path = folder.path().join("disk");
    let in_core = path.clone();
    core(|seam| async move {
        let disk = open_new(&seam, &in_core).await;
        for block in 0..64 {
            disk.write(block * 4096, vec![Piece::whole(filled(&seam, 255))]).await.expect("the write succeeds");
        }
        disk.flush().await.expect("the flush succeeds");
    });
    let in_core = path.clone();
    core(|seam| async move {
        let disk = open_new(&seam, &in_core).await;
        let writer = seam.clone();
        for block in 0..64 {
            let (disk, content) = (disk.clone(), filled(&writer, block as u8 + 1));
            seam.spawn(async move {
                disk.write(block * 4096, vec![Piece::whole(content)]).await.expect("the write succeeds")
            });
        }
        // Two yields submit the operations or queue them for a worker; then no task waits for them.
        seam.yield_now().await;
        seam.yield_now().await;
    });
    let data = std::fs::read(&path).expect("the file exists");
    let is_whole = |block: usize, value: u8| data[block * 4096..][..4096].iter().all(|byte| *byte == value);
    assert!(
        (0..64).all(|block| is_whole(block, block as u8 + 1) || is_whole(block, 255)),
        "a block is written in part"
    );
    std::thread::sleep(std::time::Duration::from_millis(50));
    assert_eq!(std::fs::read(&path).expect("the file exists"), data, "an operation outlives its core");
}

#[test]
fn transfer_beyond_the_limit_of_one_call_is_complete() {
    let folder = folder();
    let path = folder.path().join("disk");
    core(|seam| async move {
        let disk = seam.open_disk(&open_spec(&path, Some(16 << 20))).await.expect("the file can be created");
        // Alternating between two blocks keeps the buffers apart, so that none are merged.
        let blocks = [filled(&seam, 1), filled(&seam, 2)];
        let pieces = (0..3000).map(|index| Piece::whole(blocks[index % 2].clone())).collect();
        disk.write(4096, pieces).await.expect("the write succeeds");
        disk.flush().await.expect("the flush succeeds");
        let into = (0..3000).map(|_| Piece::whole(seam.alloc().expect("free"))).collect();
        let (result, pieces) = disk.read(4096, into).await;
        result.expect("the read succeeds");
        for (index, piece) in pieces.into_iter().enumerate() {
            assert!(piece.block.freeze().has_same_content(&blocks[index % 2]), "block {index}");
        }
    });
}

#[test]
fn unsuitable_disks_are_refused_with_a_reason() {
    let folder = folder();
    let odd = folder.path().join("odd");
    std::fs::write(&odd, [0; 1000]).expect("the file can be written");
    let expected = [
        (odd.clone(), "truncate -s 1024"),
        (folder.path().join("missing"), "does not exist"),
        (folder.path().to_owned(), "directory"),
        (PathBuf::from("/dev/null"), "neither a regular file nor a block device"),
    ];
    core(|seam| async move {
        for (path, reason) in expected {
            let error = seam.open_disk(&open_spec(&path, None)).await.err().expect("the disk is refused").to_string();
            assert!(error.contains(reason) && error.contains(&*path.to_string_lossy()), "{error}");
        }
    });
}

#[test]
fn existing_file_keeps_its_size_and_identity() {
    let folder = folder();
    let path = folder.path().join("disk");
    core(|seam| async move {
        let disk = open_new(&seam, &path).await;
        let identity = disk.identity();
        drop(disk);
        let disk = seam.open_disk(&open_spec(&path, Some(2 << 20))).await.expect("the file exists");
        assert_eq!((disk.geometry().size_bytes, disk.identity()), (1 << 20, identity.clone()));
        let copy = path.with_extension("copy");
        std::fs::copy(&path, &copy).expect("the file can be copied");
        assert_ne!(open_new(&seam, &copy).await.identity(), identity);
        disk.set_size(3 << 20).await.expect("a file grows");
        assert_eq!(disk.geometry().size_bytes, 3 << 20);
    });
}

#[test]
fn holes_are_reported_and_zeroing_makes_them() {
    let folder = folder();
    let path = folder.path().join("disk");
    core(|seam| async move {
        let disk = open_new(&seam, &path).await;
        let pieces = (0..16).map(|_| Piece::whole(filled(&seam, 9))).collect();
        disk.write(64 << 10, pieces).await.expect("the write succeeds");
        disk.flush().await.expect("the flush succeeds");
        let runs = disk.allocation(0, 1 << 20).await.expect("the allocation is known");
        let seen: Vec<_> = runs.iter().map(|run| (run.len_bytes >> 10, run.hole)).collect();
        assert_eq!(seen, [(64, true), (64, false), (896, true)]);
        disk.zero(64 << 10, 32 << 10, true).await.expect("punching holes works where the tests run");
        let runs = disk.allocation(64 << 10, 64 << 10).await.expect("the allocation is known");
        assert_eq!(
            runs.iter().map(|run| (run.len_bytes >> 10, run.zero)).collect::<Vec<_>>(),
            [(32, true), (32, false)]
        );
    });
}

#[test]
fn growth_beyond_the_file_system_reports_no_space() {
    core(|seam| async move {
        let error = seam.open_disk(&open_spec(Path::new("/dev/full"), None)).await.err().expect("the disk is refused");
        assert!(matches!(error, DiskError::Open(_)), "{error}");
        let folder = folder();
        let disk = open_new(&seam, &folder.path().join("disk")).await;
        // No file system supports files of eight exbibytes.
        assert_eq!(disk.set_size(i64::MAX as u64 & !4095).await, Err(DiskError::NoSpace));
    });
}

#[test]
fn stale_socket_is_replaced_and_live_one_is_not() {
    let folder = folder();
    let path = folder.path().join("socket");
    core(|seam| async move {
        // A socket file left behind, as by a killed server.
        drop(std::os::unix::net::UnixListener::bind(&path).expect("the socket can be created"));
        let at = Address::Unix(path.clone());
        let listener = seam.listen(&at).await.expect("the stale socket is replaced");
        let error = seam.listen(&at).await.err().expect("a live socket is not replaced");
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
        drop(listener);
        assert!(!path.exists(), "a dropped listener removes its socket");
        std::fs::write(&path, "precious").expect("the file can be written");
        assert!(seam.listen(&at).await.is_err());
        assert_eq!(std::fs::read(&path).expect("the file is unchanged"), b"precious");
    });
}

/// A connected pair: the client's and the server's end.
async fn pair(seam: &RealSeam, at: &Address) -> (RealStream, RealStream) {
    let listener = seam.listen(at).await.expect("the address is free");
    let at = match at {
        Address::Tcp(host, _) => Address::Tcp(host.clone(), listener.port().expect("a TCP listener has a port")),
        unix => unix.clone(),
    };
    let server = Rc::new(Cell::new(None));
    let accepted = server.clone();
    seam.spawn(async move { accepted.set(Some(listener.accept().await.expect("the connection succeeds"))) });
    let client = seam.connect(&at).await.expect("the connection succeeds");
    loop {
        if let Some(server) = server.take() {
            return (client, server);
        }
        seam.yield_now().await;
    }
}

#[test]
fn megabytes_pass_both_kinds_of_socket_unchanged() {
    let folder = folder();
    let unix = Address::Unix(folder.path().join("socket"));
    core(|seam| async move {
        for at in [unix, Address::Tcp("127.0.0.1".into(), 0)] {
            let (client, server) = pair(&seam, &at).await;
            let (mut sender, count) = (client.split().1, 2500);
            let from = seam.clone();
            seam.spawn(async move {
                let mut gather = Gather::default();
                for index in 0..count {
                    gather.push_bytes(&[index as u8; 16]);
                    gather.push_piece(Piece::whole(filled(&from, index as u8)));
                }
                let (result, gather) = sender.send(gather).await;
                result.expect("the send succeeds");
                assert_eq!(gather.len(), count * (16 + BLOCK_BYTES));
            });
            let (mut receiver, _writer) = server.split();
            for index in 0..count {
                let mut header = Vec::with_capacity(16);
                while header.len() < 16 {
                    let (result, read) = receiver.read(header).await;
                    assert!(result.expect("bytes arrive") > 0);
                    header = read;
                }
                assert_eq!(header, [index as u8; 16]);
                let (result, mut pieces) = receiver.read_pieces(vec![Piece::whole(seam.alloc().expect("free"))]).await;
                result.expect("a block arrives");
                let block = pieces.remove(0).block.freeze();
                assert!(block.as_bytes().expect("a real block has bytes").iter().all(|byte| *byte == index as u8));
            }
            let (end, _) = receiver.read(Vec::with_capacity(1)).await;
            assert_eq!(end.expect("the sender closes the stream"), 0);
        }
    });
}

#[test]
fn shutdown_ends_a_pending_read() {
    let folder = folder();
    let at = Address::Unix(folder.path().join("socket"));
    core(|seam| async move {
        let (_client, server) = pair(&seam, &at).await;
        let (mut reader, mut writer) = server.split();
        let later = seam.clone();
        seam.spawn(async move {
            later.sleep(Nanos::from_millis(20)).await;
            writer.shutdown();
        });
        assert_eq!(reader.read(Vec::with_capacity(10)).await.0.expect("the stream ends"), 0);
    });
}

#[test]
fn interrupted_stream_rejoins_without_losing_bytes() {
    /// Bytes per send.
    const SEND_BYTES: usize = 5;
    let folder = folder();
    let path = folder.path().join("socket");
    core(|seam| async move {
        let (mut client, server) = pair(&seam, &Address::Unix(path)).await;
        let (mut server_reader, mut server_writer) = server.split();
        let (mut received, mut sent) = (Vec::with_capacity(1 << 16), Vec::new());
        for round in 0..=255_u8 {
            let (mut reader, mut writer) = client.split();
            let (interrupt, ended) = (reader.interrupter(), Rc::new(Cell::new(None)));
            let ends = ended.clone();
            seam.spawn(async move {
                let error = loop {
                    let result;
                    (result, received) = reader.read(received).await;
                    match result {
                        Ok(count) => assert_ne!(count, 0, "the peer is connected"),
                        Err(error) => break error,
                    }
                };
                ends.set(Some((error.kind(), received, reader)));
            });
            // The arrival of the bytes races with the interrupt.
            seam.sleep(Nanos::from_micros(u64::from(round) % 7 * 20)).await;
            send(&mut server_writer, &[round; SEND_BYTES]).await;
            sent.extend([round; SEND_BYTES]);
            let (kind, bytes, reader) = loop {
                interrupt();
                seam.sleep(Nanos::from_micros(50)).await;
                if let Some(ended) = ended.take() {
                    break ended;
                }
            };
            assert_eq!(kind, io::ErrorKind::Interrupted);
            received = bytes;
            // An interrupt has no effect on a send.
            interrupt();
            send(&mut writer, &[round]).await;
            client = RealStream::join(reader, writer).expect("a descriptor is free");
        }
        let (mut reader, writer) = client.split();
        while received.len() < sent.len() {
            (_, received) = reader.read(received).await;
        }
        assert_eq!(received, sent);
        drop((reader, writer));
        let mut replies = Vec::with_capacity(1 << 10);
        loop {
            let result;
            (result, replies) = server_reader.read(replies).await;
            if result.expect("the stream ends without an error") == 0 {
                break;
            }
        }
        assert_eq!(replies, (0..=255).collect::<Vec<u8>>(), "the socket closes only with its last owner");
    });
}

async fn send(writer: &mut <RealStream as ByteStream<RealSeam>>::Writer, bytes: &[u8]) {
    let mut gather = Gather::default();
    gather.push_bytes(bytes);
    writer.send(gather).await.0.expect("the peer is connected");
}

#[test]
fn panic_of_a_task_ends_its_core() {
    let outcome = std::thread::spawn(|| {
        core(|seam| async move {
            seam.spawn(async { panic!("on purpose") });
            seam.sleep(Nanos::from_secs(60)).await;
        })
    });
    assert!(outcome.join().is_err());
}

#[test]
fn missing_processor_is_named_in_the_error() {
    let spec = RealCoreSpec { cpu: Some(1023), ..RealCoreSpec::new(1 << 20) };
    let error = run_core(spec, |_| async {}).expect_err("no such processor");
    assert!(matches!(error, RealError::Pin { cpu: 1023, .. }), "{error}");
}

#[test]
fn random_numbers_differ_and_time_advances() {
    core(|seam| async move {
        let numbers: std::collections::BTreeSet<u64> = (0..1000).map(|_| seam.random()).collect();
        assert_eq!(numbers.len(), 1000);
        let before = seam.now();
        seam.sleep(Nanos::from_millis(5)).await;
        assert!(seam.now().since(before) >= Nanos::from_millis(5));
    });
}

#[test]
fn cores_exchange_messages_without_losing_a_wake_up() {
    const MESSAGES: u64 = 100_000;
    // A small capacity, so that both sides wait for each other often.
    let (to_other, mut from_first) = mailbox::mailbox::<u64>(8);
    let (to_first, mut from_other) = mailbox::mailbox::<u64>(8);
    let other = std::thread::spawn(move || {
        core(|_| async move {
            while let Some(message) = from_first.receive().await {
                to_first.send(message + 1).await.expect("the first core receives");
            }
        });
    });
    core(|seam| async move {
        let sending = seam.clone();
        seam.spawn(async move {
            for message in 0..MESSAGES {
                to_other.send(message).await.expect("the other core receives");
                // Occasional pauses let the other side fall asleep.
                if message % 10_000 == 0 {
                    sending.sleep(Nanos::from_millis(1)).await;
                }
            }
        });
        for message in 0..MESSAGES {
            assert_eq!(from_other.receive().await, Some(message + 1));
        }
        assert_eq!(from_other.receive().await, None);
    });
    other.join().expect("the thread does not panic");
}

#[test]
fn file_passes_the_conformance_suite() {
    let folder = folder();
    let path = folder.path().join("disk");
    core(|seam| async move {
        let disk = seam.open_disk(&open_spec(&path, Some(4 << 20))).await.expect("the file can be created");
        assert_eq!(disk.open_warning(), None, "the tests' folder supports direct I/O");
        seam::conformance::disk(&seam, &disk).await;
    });
}

#[test]
fn file_without_direct_io_passes_the_conformance_suite() {
    let path = Path::new("/dev/shm").join(format!("hotset-test-{}", std::process::id()));
    let in_core = path.clone();
    core(|seam| async move {
        let disk = seam.open_disk(&open_spec(&in_core, Some(4 << 20))).await.expect("the file can be created");
        seam::conformance::disk(&seam, &disk).await;
    });
    std::fs::remove_file(path).expect("the file exists");
}
