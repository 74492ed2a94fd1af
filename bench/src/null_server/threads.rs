//! The null server with a blocking thread per connection.

use std::io::{self, ErrorKind, IoSlice, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::{Arc, RwLock, RwLockReadGuard};

use nbd_protocol::{Command, Errno, Request, Step, reply};

use super::{Handshake, Progress, RECEIVE_BYTES, REPLY_BYTES, REQUEST_BYTES_MAX};

/// Memory in pages with a lock each, so that connections rarely contend.
type Memory = Vec<RwLock<Box<[u8]>>>;

const PAGE_BYTES: usize = 64 << 10;

/// Part of a reply.
enum ReplyPart<'a> {
    Header([u8; 16]),
    /// A locked page, and the start and length of the data in it.
    Data(RwLockReadGuard<'a, Box<[u8]>>, usize, usize),
}

/// Serves `size_bytes` of zeroes at `path`; returns only on failure.
pub fn serve(path: &Path, size_bytes: usize) -> io::Result<()> {
    let pages = size_bytes.div_ceil(PAGE_BYTES);
    let memory: Arc<Memory> =
        Arc::new((0..pages).map(|_| RwLock::new(vec![0; PAGE_BYTES].into_boxed_slice())).collect());
    let listener = UnixListener::bind(path)?;
    for stream in listener.incoming() {
        let (stream, memory) = (stream?, memory.clone());
        // A protocol error or disconnect ends only this connection.
        std::thread::spawn(move || serve_connection(stream, &memory, size_bytes));
    }
    Ok(())
}

fn serve_connection(mut stream: UnixStream, memory: &Memory, size_bytes: usize) -> io::Result<()> {
    let mut received = vec![0; RECEIVE_BYTES + REQUEST_BYTES_MAX];
    let mut received_bytes = handshake(&mut stream, &mut received, size_bytes)?;
    loop {
        let (mut offset, mut parts, mut queued_bytes) = (0, Vec::new(), 0);
        while queued_bytes < REPLY_BYTES
            && let Step::Got(request, header_bytes) =
                Request::decode(&received[offset..received_bytes]).map_err(io::Error::other)?
        {
            let len = request.len as usize;
            let payload_bytes = if request.command == Command::Write { len } else { 0 };
            if payload_bytes > REQUEST_BYTES_MAX {
                return Err(ErrorKind::InvalidData.into());
            }
            if received_bytes - offset < header_bytes + payload_bytes {
                break;
            }
            let is_inside = request.offset.checked_add(len as u64).is_some_and(|end| end <= size_bytes as u64);
            let is_valid = is_inside && len <= REQUEST_BYTES_MAX;
            let volume_offset = request.offset as usize;
            match request.command {
                Command::Disconnect => return Ok(()),
                Command::Flush => parts.push(ReplyPart::Header(reply::simple(request.cookie, None))),
                Command::Read if is_valid => {
                    parts.push(ReplyPart::Header(reply::simple(request.cookie, None)));
                    for (page, start, len) in pages(volume_offset, len) {
                        // Blocking while other pages are locked could deadlock, so pending replies are sent first.
                        let locked_page = match memory[page].try_read() {
                            Ok(locked_page) => locked_page,
                            Err(_) => {
                                send(&mut stream, &mut parts)?;
                                memory[page].read().expect("no thread panics with a page locked")
                            }
                        };
                        parts.push(ReplyPart::Data(locked_page, start, len));
                    }
                    queued_bytes += len;
                }
                Command::Write if is_valid => {
                    let mut data = &received[offset + header_bytes..][..len];
                    for (page, start, len) in pages(volume_offset, len) {
                        // Replies of this thread may hold the page lock.
                        send(&mut stream, &mut parts)?;
                        let (piece, remaining) = data.split_at(len);
                        memory[page].write().expect("no thread panics with a page locked")[start..start + len]
                            .copy_from_slice(piece);
                        data = remaining;
                    }
                    parts.push(ReplyPart::Header(reply::simple(request.cookie, None)));
                }
                _ => parts.push(ReplyPart::Header(reply::simple(request.cookie, Some(Errno::Inval)))),
            }
            offset += header_bytes + payload_bytes;
        }
        send(&mut stream, &mut parts)?;
        drop(parts);
        received.copy_within(offset..received_bytes, 0);
        received_bytes -= offset;
        if offset > 0
            && let Ok(Step::Got(request, _)) = Request::decode(&received[..received_bytes])
            && request.command != Command::Write
        {
            continue;
        }
        let count = stream.read(&mut received[received_bytes..])?;
        if count == 0 {
            return Ok(());
        }
        received_bytes += count;
    }
}

/// Pages of a range: page, offset in it, length.
fn pages(offset: usize, len: usize) -> impl Iterator<Item = (usize, usize, usize)> {
    let mut position = offset;
    std::iter::from_fn(move || {
        let remaining = offset + len - position;
        let (page, start) = (position / PAGE_BYTES, position % PAGE_BYTES);
        let count = remaining.min(PAGE_BYTES - start);
        position += count;
        (count > 0).then_some((page, start, count))
    })
}

/// Sends `parts` in as few calls as the kernel allows, and unlocks the pages.
fn send(stream: &mut UnixStream, parts: &mut Vec<ReplyPart<'_>>) -> io::Result<()> {
    let slices = parts.iter().map(|part| match part {
        ReplyPart::Header(header) => IoSlice::new(header),
        ReplyPart::Data(page, start, len) => IoSlice::new(&page[*start..*start + *len]),
    });
    let mut slices: Vec<IoSlice<'_>> = slices.collect();
    let mut remaining = slices.as_mut_slice();
    while !remaining.is_empty() {
        match stream.write_vectored(&remaining[..remaining.len().min(1024)]) {
            Ok(sent) => IoSlice::advance_slices(&mut remaining, sent),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    parts.clear();
    Ok(())
}

/// Runs the handshake; returns the number of request bytes after it, which are at the front of `received`.
fn handshake(stream: &mut UnixStream, received: &mut [u8], size_bytes: usize) -> io::Result<usize> {
    let mut handshake = Handshake::new(size_bytes as u64);
    stream.write_all(&handshake.greeting())?;
    let mut pending = Vec::new();
    loop {
        let count = stream.read(received)?;
        pending.extend_from_slice(&received[..count]);
        let mut out = Vec::new();
        let progress = handshake.step(&mut pending, &mut out).map_err(io::Error::other)?;
        stream.write_all(&out)?;
        match progress {
            Progress::More if count > 0 => {}
            Progress::Done => {
                received[..pending.len()].copy_from_slice(&pending);
                return Ok(pending.len());
            }
            Progress::More | Progress::Disconnected => return Err(ErrorKind::UnexpectedEof.into()),
        }
    }
}
