//! Simulated byte streams: two pipes whose bytes arrive delayed, in chunks and in order.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::io;
use std::pin::pin;
use std::rc::Rc;
use std::task::{Poll, Waker};

use super::listener::WireSpec;
use super::timer::Event;
use super::trace::{TraceOp, TracePhase};
use super::world::WorldState;
use super::{SimBlockMut, SimSeam};
use crate::{Address, Block, BlockMut, ByteStream, Gather, Nanos, Part, PieceMut, StreamReader, StreamWriter};

/// One direction of a connection.
pub(super) struct Pipe {
    world: Rc<WorldState>,
    number: u32,
    spec: WireSpec,
    state: RefCell<State>,
    /// Total bytes in `State::chunks`.
    buffered_bytes: Cell<usize>,
    /// An interruptible read is waiting.
    waits: Cell<bool>,
    /// The waiting read has been interrupted.
    interrupted: Cell<bool>,
}

#[derive(Default)]
struct State {
    /// Chunks with their arrival times, which never go back.
    chunks: VecDeque<(Nanos, Vec<u8>)>,
    /// Bytes of the first chunk that have been read.
    consumed_bytes: usize,
    /// Arrival time of the last chunk.
    arrival: Nanos,
    /// The writer has closed: the end of the stream follows the last byte.
    closed: bool,
    /// The reader has been dropped: writes fail.
    broken: bool,
    /// The connection was cut: unread bytes are lost, and both sides get an error.
    cut: bool,
    reader: Option<Waker>,
    writer: Option<Waker>,
}

impl Pipe {
    pub(super) fn new(world: &Rc<WorldState>, spec: WireSpec) -> Rc<Pipe> {
        let number = world.assign_number();
        Rc::new(Pipe {
            world: Rc::clone(world),
            number,
            spec,
            state: Default::default(),
            buffered_bytes: Default::default(),
            waits: Default::default(),
            interrupted: Default::default(),
        })
    }

    /// Appends bytes up to the window and returns their number; an error if the connection is closed or cut.
    fn push(self: &Rc<Self>, bytes: &[u8]) -> io::Result<usize> {
        let mut state = self.state.borrow_mut();
        if state.cut {
            return Err(io::ErrorKind::ConnectionReset.into());
        }
        if state.broken || state.closed {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        let room = self.spec.window_bytes.saturating_sub(self.buffered_bytes.get());
        let mut taken = 0;
        while taken < bytes.len().min(room) {
            let remaining = bytes.len().min(room) - taken;
            let chunk_max = self.spec.chunk_bytes_max.min(remaining);
            let count = if self.spec.chunk_bytes_max == usize::MAX {
                chunk_max
            } else {
                1 + self.world.wire_rng.below(chunk_max as u64) as usize
            };
            let delay = self.world.wire_rng.between(self.spec.delay.min, self.spec.delay.max);
            state.arrival = state.arrival.max(self.world.now() + delay);
            let at = state.arrival;
            state.chunks.push_back((at, bytes[taken..taken + count].to_vec()));
            if at > self.world.now() {
                self.world.schedule(at, Rc::clone(self) as Rc<dyn Event>, 0);
            }
            taken += count;
        }
        self.buffered_bytes.set(self.buffered_bytes.get() + taken);
        let reader = state.reader.take();
        drop(state);
        reader.into_iter().for_each(Waker::wake);
        Ok(taken)
    }

    /// Takes up to `room` arrived bytes; `None` if no bytes have arrived.
    fn pull(&self, room: usize, out: &mut Vec<u8>) -> Option<io::Result<usize>> {
        let mut guard = self.state.borrow_mut();
        let state = &mut *guard;
        if state.cut {
            return Some(Err(io::ErrorKind::ConnectionReset.into()));
        }
        if state.broken {
            return Some(Ok(0));
        }
        let mut received = 0;
        while received < room {
            let consumed_bytes = state.consumed_bytes;
            let Some((at, chunk)) = state.chunks.front() else { break };
            if *at > self.world.now() {
                break;
            }
            let count = (chunk.len() - consumed_bytes).min(room - received);
            out.extend_from_slice(&chunk[consumed_bytes..consumed_bytes + count]);
            received += count;
            state.consumed_bytes = consumed_bytes + count;
            if state.chunks.front().is_some_and(|(_, chunk)| chunk.len() == state.consumed_bytes) {
                state.chunks.pop_front();
                state.consumed_bytes = 0;
            }
        }
        self.buffered_bytes.set(self.buffered_bytes.get() - received);
        if received == 0 {
            return (state.closed && state.chunks.is_empty()).then_some(Ok(0));
        }
        let writer = state.writer.take();
        drop(guard);
        writer.into_iter().for_each(Waker::wake);
        Some(Ok(received))
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        let mut state = self.state.borrow_mut();
        change(&mut state);
        let wakers = [state.reader.take(), state.writer.take()];
        drop(state);
        wakers.into_iter().flatten().for_each(Waker::wake);
    }

    fn close(&self) {
        self.change(|state| state.closed = true);
    }

    /// Marks the reader as dropped and discards all chunks.
    fn break_pipe(&self) {
        self.change(|state| {
            state.broken = true;
            state.chunks.clear();
        });
    }

    pub(super) fn cut(&self) {
        self.change(|state| {
            state.cut = true;
            state.chunks.clear();
        });
    }

    pub(super) fn discard(&self) {
        drop(self.state.take());
    }

    async fn pull_when_arrived(&self, room: usize, out: &mut Vec<u8>) -> io::Result<usize> {
        poll_fn(|context| match self.pull(room, out) {
            Some(result) => Poll::Ready(result),
            None => {
                self.state.borrow_mut().reader = Some(context.waker().clone());
                Poll::Pending
            }
        })
        .await
    }

    /// Awaits `wait`, but returns `Interrupted` if an interrupt arrives while it is pending. A pending `wait` has taken
    /// no bytes.
    async fn unless_interrupted(&self, wait: impl Future<Output = io::Result<usize>>) -> io::Result<usize> {
        let mut wait = pin!(wait);
        poll_fn(|context| {
            let result = match wait.as_mut().poll(context) {
                Poll::Pending if self.interrupted.take() => Poll::Ready(Err(io::ErrorKind::Interrupted.into())),
                result => result,
            };
            self.waits.set(result.is_pending());
            result
        })
        .await
    }

    /// Interrupts a waiting read; has no effect otherwise.
    fn interrupt(&self) {
        self.interrupted.set(self.waits.get());
        self.change(|_| ());
    }
}

impl Event for Pipe {
    fn fire(self: Rc<Self>, _token: u64) {
        let reader = self.state.borrow_mut().reader.take();
        reader.into_iter().for_each(Waker::wake);
    }
}

/// A connected simulated stream.
pub struct SimStream {
    incoming: Rc<Pipe>,
    outgoing: Rc<Pipe>,
    /// The address that the client connected to.
    address: Address,
}

impl SimStream {
    pub(super) fn new(incoming: Rc<Pipe>, outgoing: Rc<Pipe>, address: &Address) -> SimStream {
        SimStream { incoming, outgoing, address: address.clone() }
    }
}

/// Shared by both directions: after the drop of both, the other side's writes fail.
struct StreamEnd {
    incoming: Rc<Pipe>,
    address: Address,
    /// The directions were joined again, so the stream continues.
    is_rejoined: Cell<bool>,
}

impl Drop for StreamEnd {
    fn drop(&mut self) {
        if !self.is_rejoined.get() {
            self.incoming.break_pipe();
        }
    }
}

impl ByteStream<SimSeam> for SimStream {
    type Reader = SimReader;
    type Writer = SimWriter;

    fn local_address(&self) -> Option<Address> {
        matches!(self.address, Address::Tcp(..)).then(|| self.address.clone())
    }

    fn split(self) -> (SimReader, SimWriter) {
        let (incoming, is_rejoined) = (Rc::clone(&self.incoming), Cell::new(false));
        let end = Rc::new(StreamEnd { incoming, address: self.address, is_rejoined });
        (
            SimReader { pipe: self.incoming, end: Rc::clone(&end) },
            SimWriter { pipe: self.outgoing, end, bytes: Vec::new() },
        )
    }

    fn join(reader: SimReader, writer: SimWriter) -> io::Result<SimStream> {
        assert!(Rc::ptr_eq(&reader.end, &writer.end), "two directions of one stream");
        reader.end.is_rejoined.set(true);
        Ok(SimStream::new(reader.pipe, Rc::clone(&writer.pipe), &reader.end.address))
    }
}

/// The incoming direction.
pub struct SimReader {
    pipe: Rc<Pipe>,
    end: Rc<StreamEnd>,
}

impl StreamReader<SimSeam> for SimReader {
    async fn read(&mut self, mut buffer: Vec<u8>) -> (io::Result<usize>, Vec<u8>) {
        let room = buffer.capacity() - buffer.len();
        assert!(room > 0, "a read into a buffer without room");
        let (pipe, wait) = (Rc::clone(&self.pipe), self.pipe.pull_when_arrived(room, &mut buffer));
        let result = pipe.unless_interrupted(wait).await;
        (result, buffer)
    }

    fn interrupter(&self) -> Box<dyn Fn()> {
        let pipe = Rc::clone(&self.pipe);
        Box::new(move || pipe.interrupt())
    }

    async fn read_pieces(
        &mut self,
        mut pieces: Vec<PieceMut<SimBlockMut>>,
    ) -> (io::Result<()>, Vec<PieceMut<SimBlockMut>>) {
        let mut bytes = Vec::with_capacity(crate::BLOCK_BYTES);
        for piece in &mut pieces {
            bytes.clear();
            while bytes.len() < piece.len() {
                match self.pipe.pull_when_arrived(piece.len() - bytes.len(), &mut bytes).await {
                    Ok(0) => return (Err(io::ErrorKind::UnexpectedEof.into()), pieces),
                    Ok(_) => {}
                    Err(error) => return (Err(error), pieces),
                }
            }
            let start = piece.start();
            piece.block.write_bytes(start, &bytes);
        }
        (Ok(()), pieces)
    }
}

/// The outgoing direction.
pub struct SimWriter {
    pipe: Rc<Pipe>,
    end: Rc<StreamEnd>,
    bytes: Vec<u8>,
}

impl StreamWriter<SimSeam> for SimWriter {
    async fn send(&mut self, gather: Gather<SimSeam>) -> (io::Result<()>, Gather<SimSeam>) {
        self.bytes.clear();
        for part in gather.parts() {
            match part {
                Part::Bytes(range) => self.bytes.extend_from_slice(&gather.bytes()[range.clone()]),
                Part::Piece(piece) => {
                    let start = self.bytes.len();
                    self.bytes.resize(start + piece.len(), 0);
                    piece.block.read_bytes(piece.start(), &mut self.bytes[start..]);
                }
            }
        }
        let (mut sent_bytes, pipe, bytes) = (0, &self.pipe, &self.bytes);
        pipe.world.record(pipe.number, TraceOp::Send, TracePhase::Start, 0, bytes.len() as u64, 0);
        let sent = poll_fn(|context| {
            while sent_bytes < bytes.len() {
                match pipe.push(&bytes[sent_bytes..]) {
                    Ok(0) => {
                        pipe.state.borrow_mut().writer = Some(context.waker().clone());
                        return Poll::Pending;
                    }
                    Ok(count) => sent_bytes += count,
                    Err(error) => return Poll::Ready(Err(error)),
                }
            }
            Poll::Ready(Ok(()))
        });
        (sent.await, gather)
    }

    fn shutdown(&mut self) {
        self.pipe.close();
        self.end.incoming.break_pipe();
    }
}

impl Drop for SimWriter {
    fn drop(&mut self) {
        if !self.end.is_rejoined.get() {
            self.pipe.close();
        }
    }
}
