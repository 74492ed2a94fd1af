//! The null server for misses: one core of the project's runtime reads a file with direct I/O, a task per request.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::io;
use std::path::Path;
use std::rc::Rc;
use std::task::{Poll, Waker};

use nbd_protocol::{Command, Errno, Request, Step, reply};
use seam::real::{RealCoreSpec, RealDisk, RealReader, RealSeam, RealStream, RealWriter, run_core};
use seam::{
    Address, BLOCK_BYTES, BlockMut, ByteStream, Disk, DiskOpen, Gather, Listener, Piece, Seam, StreamReader,
    StreamWriter,
};

use super::REQUEST_BYTES_MAX;
use super::seam::handshake;

/// Memory for reads in flight.
const POOL_BYTES: usize = 64 << 20;

/// Replies waiting to be sent.
#[derive(Default)]
struct Outgoing {
    gather: RefCell<Gather<RealSeam>>,
    sender: RefCell<Option<Waker>>,
    closed: Cell<bool>,
}

impl Outgoing {
    fn wake(&self) {
        if let Some(waker) = self.sender.take() {
            waker.wake();
        }
    }
}

/// Serves reads of `file` at `path`; returns only on failure.
pub fn serve(path: &Path, file: &Path) -> Result<(), String> {
    let address = Address::Unix(path.to_owned());
    let open = DiskOpen { path: file.to_owned(), create_bytes: None, read_only: true, lock_wait_ms: 0 };
    let result = run_core(RealCoreSpec::new(POOL_BYTES), move |seam| async move {
        let disk = seam.open_disk(&open).await.map_err(io::Error::other)?;
        let listener = seam.listen(&address).await?;
        loop {
            let stream = listener.accept().await?;
            let (task_seam, disk) = (seam.clone(), disk.clone());
            seam.spawn(async move {
                // A protocol error or disconnect ends only this connection.
                let _ = serve_connection(&task_seam, stream, &disk).await;
            });
        }
    });
    let result: io::Result<()> = result.map_err(|error| error.to_string())?;
    result.map_err(|error| error.to_string())
}

async fn serve_connection(seam: &RealSeam, stream: RealStream, disk: &RealDisk) -> io::Result<()> {
    let (mut reader, mut writer) = stream.split();
    let arrived = handshake(&mut reader, &mut writer, disk.geometry().size_bytes as usize).await?;
    let out = Rc::new(Outgoing::default());
    let sending = out.clone();
    seam.spawn(async move { send(&sending, writer).await });
    let result = serve_requests(seam, reader, arrived, disk, &out).await;
    out.closed.set(true);
    out.wake();
    result
}

/// Spawns a task for every read.
async fn serve_requests(
    seam: &RealSeam,
    mut reader: RealReader,
    mut arrived: Vec<u8>,
    disk: &RealDisk,
    out: &Rc<Outgoing>,
) -> io::Result<()> {
    loop {
        let mut offset = 0;
        while let Step::Got(request, header_bytes) = Request::decode(&arrived[offset..]).map_err(io::Error::other)? {
            offset += header_bytes;
            let len = request.len as usize;
            let is_valid = len > 0 && len <= REQUEST_BYTES_MAX && len.is_multiple_of(BLOCK_BYTES);
            match request.command {
                Command::Disconnect => return Ok(()),
                Command::Read if is_valid => {
                    let blocks = (0..len / BLOCK_BYTES).map(|_| seam.alloc().map(Piece::<_>::whole));
                    let blocks = blocks.collect::<Option<Vec<_>>>().ok_or(io::ErrorKind::OutOfMemory)?;
                    let (disk, out) = (disk.clone(), out.clone());
                    seam.spawn(async move {
                        let (result, blocks) = disk.read(request.offset, blocks).await;
                        let mut gather = out.gather.borrow_mut();
                        gather.push_bytes(&reply::simple(request.cookie, result.as_ref().err().map(|_| Errno::Io)));
                        if result.is_ok() {
                            blocks.into_iter().for_each(|piece| gather.push_piece(Piece::whole(piece.block.freeze())));
                        }
                        out.wake();
                    });
                }
                // The payload of a write is not supported here.
                Command::Write => return Err(io::ErrorKind::Unsupported.into()),
                _ => out.gather.borrow_mut().push_bytes(&reply::simple(request.cookie, Some(Errno::Inval))),
            }
        }
        arrived.drain(..offset);
        let (result, more) = reader.read(arrived).await;
        arrived = more;
        if result? == 0 {
            return Ok(());
        }
    }
}

/// Sends all waiting replies at once.
async fn send(out: &Outgoing, mut writer: RealWriter) {
    let mut gather = Gather::default();
    loop {
        poll_fn(|context| {
            if !out.gather.borrow().is_empty() || out.closed.get() {
                return Poll::Ready(());
            }
            *out.sender.borrow_mut() = Some(context.waker().clone());
            Poll::Pending
        })
        .await;
        if out.gather.borrow().is_empty() {
            return;
        }
        std::mem::swap(&mut *out.gather.borrow_mut(), &mut gather);
        let (result, sent) = writer.send(gather).await;
        if result.is_err() {
            return;
        }
        gather = sent;
        gather.clear();
    }
}
