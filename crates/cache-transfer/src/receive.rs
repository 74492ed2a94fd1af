//! The next owner's side.

use std::cell::Cell;
use std::io;

use engine::{BlockNo, Volume};
use seam::{BLOCK_BYTES, BlockMut, BufferedReader, ByteStream, Nanos, SECTOR_BYTES, Seam};

use super::{BATCH_BLOCKS_MAX, ENTRY_BYTES, HEADER_BYTES, checksum, part_of};
use task_sync::within;

/// Pause after a batch of 256 KiB: clients' requests come first, and a transfer takes at most 256 MiB a second.
const PAUSE: Nanos = Nanos::from_millis(1);

/// Bytes of the receive buffer: whole sectors, as [`BufferedReader::read_blocks`] requires.
const BUFFER_BYTES: usize = (BATCH_BLOCKS_MAX * ENTRY_BYTES).next_multiple_of(SECTOR_BYTES);

/// Result of a transfer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Received {
    /// Bytes that were received.
    pub bytes: u64,
    /// Bytes of the blocks that were admitted: the others were changed since, or were in memory already.
    pub admitted_bytes: u64,
    /// The former owner has sent all that it had. Otherwise memory is full, or the volume admits nothing more.
    pub is_complete: bool,
}

/// Why a transfer has failed. The blocks received before stay.
#[derive(Debug, thiserror::Error)]
pub enum ReceiveError {
    /// The stream broke.
    #[error("the stream broke: {0}")]
    Stream(#[from] io::Error),
    /// The stream is no transfer.
    #[error("the header of a batch names {blocks} blocks of part {part}")]
    Header {
        /// The number of blocks.
        blocks: u32,
        /// The number of the part.
        part: u32,
    },
    /// The content of a block does not have its checksum.
    #[error("block {0} does not have its checksum")]
    Checksum(u64),
}

/// Receives blocks of the former owner, and admits them, until it ends the stream, or the volume has no room for more
/// or stops.
pub async fn receive<S: Seam>(seam: &S, stream: S::Stream, volume: &Volume<S>) -> Result<Received, ReceiveError> {
    let received = Cell::default();
    // A volume that stops does not wait for the former owner.
    match within(volume.wait_for_transfer_end(), receive_all(seam, stream, volume, &received)).await {
        Some(Err(error)) => Err(error),
        Some(Ok(())) | None => Ok(received.get()),
    }
}

async fn receive_all<S: Seam>(
    seam: &S,
    stream: S::Stream,
    volume: &Volume<S>,
    received: &Cell<Received>,
) -> Result<(), ReceiveError> {
    // The writer is held: its end would close the stream.
    let (reader, _writer) = stream.split();
    let mut reader = BufferedReader::new(reader, BUFFER_BYTES);
    loop {
        let header = read(&mut reader, HEADER_BYTES).await?;
        let number = |at: usize| u32::from_le_bytes(header[at..at + 4].try_into().expect("four bytes"));
        let (blocks, part) = (number(0), number(4));
        if blocks == 0 {
            received.set(Received { is_complete: true, ..received.get() });
            return Ok(());
        }
        let count = blocks as usize;
        let part = part_of(part).filter(|_| count <= BATCH_BLOCKS_MAX).ok_or(ReceiveError::Header { blocks, part })?;
        let entries = read(&mut reader, count * ENTRY_BYTES).await?;
        let mut buffers = volume.transfer_buffers(part, count);
        if buffers.len() < count {
            return Ok(());
        }
        reader.read_blocks(&mut buffers).await?;
        let mut so_far = received.get();
        so_far.bytes += (count * BLOCK_BYTES) as u64;
        for (entry, buffer) in entries.chunks(ENTRY_BYTES).zip(buffers) {
            let block = BlockNo(u64::from_le_bytes(entry[..8].try_into().expect("eight bytes")));
            let data = buffer.freeze();
            if checksum(block, &data).to_le_bytes() != entry[8..] {
                return Err(ReceiveError::Checksum(block.0));
            }
            if volume.admit_transferred(part, block, data) {
                so_far.admitted_bytes += BLOCK_BYTES as u64;
            }
            received.set(so_far);
        }
        seam.sleep(PAUSE).await;
    }
}

async fn read<S: Seam>(reader: &mut BufferedReader<S, ReaderOf<S>>, len: usize) -> io::Result<Vec<u8>> {
    while reader.bytes().len() < len {
        reader.receive_more().await?;
    }
    let bytes = reader.bytes()[..len].to_vec();
    reader.consume(len);
    Ok(bytes)
}

type ReaderOf<S> = <<S as Seam>::Stream as ByteStream<S>>::Reader;
