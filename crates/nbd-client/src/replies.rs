//! The receiving half of a connection: parses replies and passes their content to the waiting requests.

use std::io;
use std::rc::Rc;

use nbd_protocol::reply::{parse_data_offset, parse_error, parse_hole, parse_status};
use nbd_protocol::{ChunkKind, Errno, ProtocolError, ReplyHeader, Step, flags};
use seam::{AllocationExtent, BufferedReader, DiskError, SECTOR_BYTES, Seam, StreamReader};

use crate::export_info::ExportInfo;
use crate::request_table::{OpenRequest, Operation};
use crate::shared::SharedConnection;

/// Bytes of the offset at the start of a data chunk's payload.
const DATA_OFFSET_BYTES: usize = 8;

/// Why a connection cannot be used any longer.
#[derive(Debug, thiserror::Error)]
pub enum ConnectionError {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error(transparent)]
    Protocol(#[from] ProtocolError),
    #[error("the server is shutting down")]
    Shutdown,
}

impl<S: Seam> SharedConnection<S> {
    /// Receives replies until the connection is lost.
    pub async fn receive_until_lost<R: StreamReader<S>>(
        &self,
        incoming: &mut BufferedReader<S, R>,
        export_info: &ExportInfo,
    ) -> Result<(), ConnectionError> {
        loop {
            let Step::Got(header, used) = ReplyHeader::decode(incoming.bytes())? else {
                self.receive_more(incoming).await?;
                continue;
            };
            incoming.consume(used);
            match header {
                ReplyHeader::Simple { cookie, error } => {
                    let request = self.open_request(cookie)?;
                    match (error, &request.operation) {
                        (Some(error), _) => request.fail(disk_error(error, "")?),
                        (None, Operation::Read) if !export_info.has_structured_replies => {
                            self.receive_data(incoming, &request, request.at, request.len as usize).await?;
                        }
                        (None, Operation::Read | Operation::Status) => {
                            return Err(
                                ProtocolError::Malformed("reply: a simple one where chunks were agreed on").into()
                            );
                        }
                        (None, _) => (),
                    }
                    self.complete(cookie, &request);
                }
                ReplyHeader::Chunk { cookie, kind, done, len } => {
                    let request = self.open_request(cookie)?;
                    self.receive_chunk(incoming, &request, kind, len as usize, export_info).await?;
                    if done {
                        self.complete(cookie, &request);
                    }
                }
            }
        }
    }

    async fn receive_chunk<R: StreamReader<S>>(
        &self,
        incoming: &mut BufferedReader<S, R>,
        request: &OpenRequest<S>,
        kind: ChunkKind,
        len: usize,
        export_info: &ExportInfo,
    ) -> Result<(), ConnectionError> {
        if kind == ChunkKind::Data {
            let offset_len = DATA_OFFSET_BYTES.min(len);
            self.receive_at_least(incoming, offset_len).await?;
            let at =
                parse_data_offset(&incoming.bytes()[..offset_len]).ok_or(ProtocolError::Malformed("data chunk"))?;
            incoming.consume(DATA_OFFSET_BYTES);
            if !request.covers(at, len as u64 - DATA_OFFSET_BYTES as u64) {
                return Err(ProtocolError::Malformed("data chunk: outside its request").into());
            }
            return self.receive_data(incoming, request, at, len - DATA_OFFSET_BYTES).await;
        }
        self.receive_at_least(incoming, len).await?;
        let payload = &incoming.bytes()[..len];
        match kind {
            ChunkKind::None => (),
            ChunkKind::Hole => {
                let (at, len) = parse_hole(payload)?;
                let aligned = at.is_multiple_of(SECTOR_BYTES as u64) && len.is_multiple_of(SECTOR_BYTES as u32);
                if !request.covers(at, len.into()) || !aligned {
                    return Err(ProtocolError::Malformed("hole chunk: outside its request").into());
                }
                request.put_zeroes(at, len as usize);
            }
            ChunkKind::BlockStatus => {
                let (context, extents) = parse_status(payload)?;
                if export_info.allocation_context_id == Some(context) {
                    request.put_extents(extents.into_iter().map(extent).collect());
                }
            }
            kind if kind.is_error() => {
                let (error, text) = parse_error(payload)?;
                request.fail(disk_error(error, text)?);
            }
            _ => return Err(ProtocolError::Malformed("reply: a chunk of an unknown kind").into()),
        }
        incoming.consume(len);
        Ok(())
    }

    /// Receives `len` bytes of the export from `at` on.
    async fn receive_data<R: StreamReader<S>>(
        &self,
        incoming: &mut BufferedReader<S, R>,
        request: &OpenRequest<S>,
        mut at: u64,
        mut len: usize,
    ) -> Result<(), ConnectionError> {
        while len > 0 {
            // Buffers are filled in whole sectors, unless the server's own chunks are finer.
            self.receive_at_least(incoming, len.min(SECTOR_BYTES)).await?;
            let received = incoming.bytes().len();
            let count = if received >= len { len } else { received / SECTOR_BYTES * SECTOR_BYTES };
            request.put(at, &incoming.bytes()[..count]);
            incoming.consume(count);
            at += count as u64;
            len -= count;
        }
        Ok(())
    }

    /// Receives until `incoming` holds at least `len` bytes.
    async fn receive_at_least<R: StreamReader<S>>(
        &self,
        incoming: &mut BufferedReader<S, R>,
        len: usize,
    ) -> io::Result<()> {
        while incoming.bytes().len() < len {
            incoming.grow(len);
            self.receive_more(incoming).await?;
        }
        Ok(())
    }

    async fn receive_more<R: StreamReader<S>>(&self, incoming: &mut BufferedReader<S, R>) -> io::Result<()> {
        incoming.receive_more().await?;
        self.record_receive();
        Ok(())
    }

    fn open_request(&self, cookie: u64) -> Result<Rc<OpenRequest<S>>, ProtocolError> {
        self.request_table.borrow().get(cookie).ok_or(ProtocolError::Malformed("reply: to a request that was not sent"))
    }

    fn complete(&self, cookie: u64, request: &OpenRequest<S>) {
        self.request_table.borrow_mut().remove(cookie);
        request.complete();
    }
}

/// Maps a server's error to a disk error. The shutdown error is not an answer: the request is repeated on the next
/// connection.
fn disk_error(error: Errno, text: &str) -> Result<DiskError, ConnectionError> {
    let text = if text.is_empty() { error.text() } else { text };
    match error {
        Errno::Shutdown => Err(ConnectionError::Shutdown),
        Errno::NoSpace => Ok(DiskError::NoSpace),
        Errno::Perm => Ok(DiskError::ReadOnly),
        Errno::NotSup => Ok(DiskError::Unsupported),
        Errno::Io | Errno::NoMem | Errno::Inval | Errno::Overflow => Ok(DiskError::Io(format!("NBD server: {text}"))),
    }
}

fn extent((len, state): (u32, u32)) -> AllocationExtent {
    AllocationExtent {
        len_bytes: len.into(),
        hole: state & flags::STATE_HOLE != 0,
        zero: state & flags::STATE_ZERO != 0,
    }
}
