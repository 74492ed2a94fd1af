//! The NBD client as a disk, against other servers with various features: with and without structured replies, with 4
//! KiB blocks, without flush or zeroes, and killed during use.

#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "foreign servers are processes and sockets")]

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use nbd_client::{NbdDisk, NbdOptions, NbdTarget};
use seam::real::{RealCoreSpec, RealSeam, run_core};
use seam::{Address, BLOCK_BYTES, Block, BlockMut, Disk, DiskError, Nanos, Piece, PieceMut, Seam};

const SIZE: u64 = 8 << 20;

/// A running server; dropping it kills the process.
struct ForeignServer {
    process: Child,
    socket: PathBuf,
}

impl ForeignServer {
    /// Starts `command` (`SOCKET` and `DISK` are replaced) and waits until it listens; `None` if it is not installed.
    fn start(folder: &Path, command: &str) -> Option<ForeignServer> {
        let (socket, disk) = (folder.join("socket"), folder.join("disk"));
        if !disk.exists() {
            std::fs::File::create(&disk).and_then(|file| file.set_len(SIZE)).expect("the folder is writable");
        }
        // A killed server leaves its socket behind.
        let _ = std::fs::remove_file(&socket);
        let command = command.replace("SOCKET", &socket.to_string_lossy()).replace("DISK", &disk.to_string_lossy());
        let mut words = command.split_whitespace();
        let program = words.next().expect("the command names a program");
        let started = Command::new(program).args(words).stdin(Stdio::null()).spawn();
        let Ok(process) = started else {
            eprintln!("skipped: {program} is not installed");
            return None;
        };
        let foreign = ForeignServer { process, socket };
        for _ in 0..500 {
            if std::os::unix::net::UnixStream::connect(&foreign.socket).is_ok() {
                return Some(foreign);
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        panic!("{command} does not listen");
    }

    fn target(&self) -> NbdTarget {
        NbdTarget { address: Address::Unix(self.socket.clone()), export: String::new() }
    }
}

impl Drop for ForeignServer {
    fn drop(&mut self) {
        // The process may have ended by itself.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn filled_block(seam: &RealSeam, byte: u8) -> Piece<<RealSeam as Seam>::Block> {
    let mut block = seam.alloc().expect("the pool is large enough");
    block.write_bytes(0, &[byte; BLOCK_BYTES]);
    Piece::whole(block.freeze())
}

fn buffers(seam: &RealSeam, count: usize) -> Vec<PieceMut<<RealSeam as Seam>::BlockMut>> {
    (0..count).map(|_| Piece::whole(seam.alloc().expect("the pool is large enough"))).collect()
}

/// First byte of each block read.
async fn read(disk: &NbdDisk<RealSeam>, seam: &RealSeam, at: u64, count: usize) -> Result<Vec<u8>, DiskError> {
    let (result, pieces) = disk.read(at, buffers(seam, count)).await;
    let first = |piece: PieceMut<<RealSeam as Seam>::BlockMut>| piece.block.freeze().as_bytes().map(|bytes| bytes[0]);
    result.map(|()| pieces.into_iter().map(|piece| first(piece).expect("real blocks have bytes")).collect())
}

async fn exercise(seam: RealSeam, target: NbdTarget, command: &'static str) {
    let disk = NbdDisk::open(&seam, target, NbdOptions::default()).await.expect(command);
    assert_eq!(disk.geometry().size_bytes, SIZE, "{command}");
    let blocks = (0..700).map(|number| filled_block(&seam, (number % 250) as u8 + 1)).collect();
    assert_eq!(disk.write(8192, blocks).await, Ok(()), "{command}");
    let bytes = read(&disk, &seam, 0, 703).await.expect(command);
    let expected = |number: usize| if (2..702).contains(&number) { ((number - 2) % 250) as u8 + 1 } else { 0 };
    assert!(bytes.iter().enumerate().all(|(number, byte)| *byte == expected(number)), "{command}");
    assert_eq!(disk.flush().await, Ok(()), "{command}");
    match disk.zero(8192, 4096, true).await {
        Ok(()) => assert_eq!(read(&disk, &seam, 8192, 2).await, Ok(vec![0, 2]), "{command}"),
        Err(error) => assert_eq!(error, DiskError::Unsupported, "{command}"),
    }
    let extents = disk.allocation(0, SIZE).await.expect(command);
    assert!(extents.iter().map(|extent| extent.len_bytes).sum::<u64>() <= SIZE, "{command}");
    assert!(!(extents[0].zero && extents[0].len_bytes > 8192 + 4096), "{command}: data is reported as zeroes");
}

#[test]
fn foreign_servers_work_as_disks() {
    let commands = [
        "nbdkit -f -U SOCKET file DISK",
        "nbdkit -f --no-sr -U SOCKET file DISK",
        "nbdkit -f --mask-handshake=1 -U SOCKET file DISK",
        "nbdkit -f -U SOCKET --filter=nozero --filter=nofilter file DISK",
        "nbdkit -f -U SOCKET --filter=nozero file DISK zeromode=none",
        "nbdkit -f -U SOCKET --filter=blocksize-policy file DISK blocksize-minimum=4096 blocksize-preferred=65536 \
         blocksize-maximum=262144 blocksize-error-policy=error",
        "qemu-nbd -t -f raw -k SOCKET DISK",
        "qemu-nbd -t -f raw --cache=none --discard=unmap --detect-zeroes=unmap -e 4 -k SOCKET DISK",
    ];
    for command in commands {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let Some(foreign) = ForeignServer::start(folder.path(), command) else { continue };
        let target = foreign.target();
        run_core(RealCoreSpec::new(64 << 20), move |seam| exercise(seam, target, command))
            .expect("io_uring is allowed");
    }
}

#[test]
fn requests_survive_the_restart_of_a_killed_server() {
    let command = "qemu-nbd -t -f raw -e 4 -k SOCKET DISK";
    let folder = tempfile::tempdir().expect("a temporary directory");
    let Some(foreign) = ForeignServer::start(folder.path(), command) else { return };
    run_core(RealCoreSpec::new(64 << 20), move |seam| async move {
        let disk = NbdDisk::open(&seam, foreign.target(), NbdOptions::default()).await.expect("the server listens");
        let completed = std::rc::Rc::new(std::cell::Cell::new(0));
        for number in 0..300_u64 {
            let (disk, completed, block) =
                (disk.clone(), completed.clone(), filled_block(&seam, (number % 250) as u8 + 1));
            seam.spawn(async move {
                assert_eq!(disk.write(number * BLOCK_BYTES as u64, vec![block]).await, Ok(()));
                completed.set(completed.get() + 1);
            });
        }
        seam.yield_now().await;
        drop(foreign);
        let foreign = ForeignServer::start(folder.path(), command).expect("the server is installed");
        while completed.get() < 300 {
            seam.sleep(Nanos::from_millis(10)).await;
        }
        let bytes = read(&disk, &seam, 0, 300).await.expect("the server is back");
        assert!(bytes.iter().enumerate().all(|(number, byte)| *byte == (number % 250) as u8 + 1));
        assert!(disk.connection_epoch() > 0);
        drop(foreign);
    })
    .expect("io_uring is allowed");
}
