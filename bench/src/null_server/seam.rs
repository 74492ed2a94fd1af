//! The null server on one core of the project's runtime: a task per connection, and blocks frozen in memory and sent
//! without a copy.

use std::cell::RefCell;
use std::io::{self, ErrorKind};
use std::path::Path;
use std::rc::Rc;

use nbd_protocol::{Command, Errno, Request, Step, reply};
use seam::real::{RealCoreSpec, RealReader, RealSeam, RealStream, RealWriter, run_core};
use seam::{
    Address, BLOCK_BYTES, Block, BlockMut, ByteStream, Gather, Listener, Piece, Seam, StreamReader, StreamWriter,
};

use super::{Handshake, Progress, RECEIVE_BYTES, REPLY_BYTES, REQUEST_BYTES_MAX};

type Memory = Rc<RefCell<Vec<<RealSeam as Seam>::Block>>>;

/// Buffers beyond the memory's own, for overwritten blocks that a reply in flight still holds.
const SPARE_BYTES: usize = 64 << 20;

/// Serves `size_bytes` of zeroes at `path`; returns only on failure.
pub fn serve(path: &Path, size_bytes: usize) -> Result<(), String> {
    let address = Address::Unix(path.to_owned());
    let spec = RealCoreSpec::new(size_bytes + size_bytes / 128 + SPARE_BYTES);
    let result = run_core(spec, move |seam| async move {
        let listener = seam.listen(&address).await?;
        let memory: Memory = Rc::new(RefCell::new(vec![seam.zero_block(); size_bytes / BLOCK_BYTES]));
        loop {
            let stream = listener.accept().await?;
            let (task_seam, memory) = (seam.clone(), memory.clone());
            seam.spawn(async move {
                // A protocol error or disconnect ends only this connection.
                let _ = serve_connection(&task_seam, stream, &memory).await;
            });
        }
    });
    let result: io::Result<()> = result.map_err(|error| error.to_string())?;
    result.map_err(|error| error.to_string())
}

async fn serve_connection(seam: &RealSeam, stream: RealStream, memory: &Memory) -> io::Result<()> {
    let (mut reader, mut writer) = stream.split();
    let size_bytes = memory.borrow().len() * BLOCK_BYTES;
    let mut received = handshake(&mut reader, &mut writer, size_bytes).await?;
    let mut gather = Gather::default();
    loop {
        let mut offset = 0;
        while gather.len() < REPLY_BYTES
            && let Step::Got(request, header_bytes) = Request::decode(&received[offset..]).map_err(io::Error::other)?
        {
            let len = request.len as usize;
            let payload_bytes = if request.command == Command::Write { len } else { 0 };
            if payload_bytes > REQUEST_BYTES_MAX {
                return Err(ErrorKind::InvalidData.into());
            }
            if received.len() - offset < header_bytes + payload_bytes {
                break;
            }
            let is_inside = request.offset.checked_add(len as u64).is_some_and(|end| end <= size_bytes as u64);
            let is_valid = is_inside && len <= REQUEST_BYTES_MAX;
            let (volume_offset, mut memory) = (request.offset as usize, memory.borrow_mut());
            match request.command {
                Command::Disconnect => return Ok(()),
                Command::Flush => gather.push_bytes(&reply::simple(request.cookie, None)),
                Command::Read if is_valid => {
                    gather.push_bytes(&reply::simple(request.cookie, None));
                    for (block, start, len) in blocks(volume_offset, len) {
                        gather.push_piece(Piece::new(memory[block].clone(), start, len));
                    }
                }
                Command::Write if is_valid => {
                    let mut data = &received[offset + header_bytes..][..len];
                    for (block, start, len) in blocks(volume_offset, len) {
                        let (piece, remaining) = data.split_at(len);
                        write(seam, &mut memory[block], start, piece)?;
                        data = remaining;
                    }
                    gather.push_bytes(&reply::simple(request.cookie, None));
                }
                _ => gather.push_bytes(&reply::simple(request.cookie, Some(Errno::Inval))),
            }
            offset += header_bytes + payload_bytes;
        }
        let is_full = gather.len() >= REPLY_BYTES;
        if !gather.is_empty() {
            let (result, sent) = writer.send(gather).await;
            result?;
            gather = sent;
            gather.clear();
        }
        received.drain(..offset);
        if is_full {
            continue;
        }
        let (result, more) = reader.read(received).await;
        received = more;
        if result? == 0 {
            return Ok(());
        }
    }
}

/// Blocks of a range: block, offset in it, length.
fn blocks(offset: usize, len: usize) -> impl Iterator<Item = (usize, usize, usize)> {
    let mut position = offset;
    std::iter::from_fn(move || {
        let remaining = offset + len - position;
        let (block, start) = (position / BLOCK_BYTES, position % BLOCK_BYTES);
        let count = remaining.min(BLOCK_BYTES - start);
        position += count;
        (count > 0).then_some((block, start, count))
    })
}

/// Writes `data` into a block: in place if there are no other references, else into a new block that replaces it.
fn write(seam: &RealSeam, slot: &mut <RealSeam as Seam>::Block, start: usize, data: &[u8]) -> io::Result<()> {
    let mut block = match std::mem::replace(slot, seam.zero_block()).thaw() {
        Ok(block) => block,
        Err(shared) => {
            let mut block = seam.alloc().ok_or(ErrorKind::OutOfMemory)?;
            if data.len() < BLOCK_BYTES {
                block.copy_from(0, &shared, 0, BLOCK_BYTES);
            }
            block
        }
    };
    block.write_bytes(start, data);
    *slot = block.freeze();
    Ok(())
}

/// Runs the handshake; returns the bytes received after it.
pub(super) async fn handshake(
    reader: &mut RealReader,
    writer: &mut RealWriter,
    size_bytes: usize,
) -> io::Result<Vec<u8>> {
    let mut handshake = Handshake::new(size_bytes as u64);
    let mut received = Vec::with_capacity(RECEIVE_BYTES + REQUEST_BYTES_MAX);
    let mut out = handshake.greeting().to_vec();
    let mut progress = Progress::More;
    loop {
        let mut gather = Gather::default();
        gather.push_bytes(&out);
        writer.send(gather).await.0?;
        match progress {
            Progress::More => {}
            Progress::Done => return Ok(received),
            Progress::Disconnected => return Err(ErrorKind::UnexpectedEof.into()),
        }
        let (result, more) = reader.read(received).await;
        if result? == 0 {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        received = more;
        out.clear();
        progress = handshake.step(&mut received, &mut out).map_err(io::Error::other)?;
    }
}
