//! The former owner's side.

use std::io;

use engine::{RetainedBlocks, RetainedPosition};
use seam::{BLOCK_BYTES, ByteStream, Gather, Piece, Seam, StreamWriter};

use super::{BATCH_BLOCKS_MAX, checksum, part_number};

/// Sends the retained blocks, as far as they are not evicted meanwhile. Returns the number of bytes sent; an error
/// means that the receiver has closed the stream.
pub async fn send<S: Seam>(seam: &S, stream: S::Stream, retained: &RetainedBlocks<S>) -> io::Result<u64> {
    // The reader is held: its end would close the stream.
    let (_reader, mut writer) = stream.split();
    let (mut position, mut gather, mut sent_bytes) = (RetainedPosition::START, Gather::<S>::default(), 0);
    while let Some(batch) = retained.next(&mut position, BATCH_BLOCKS_MAX) {
        if batch.blocks.is_empty() {
            seam.yield_now().await;
            continue;
        }
        gather.push_bytes(&(batch.blocks.len() as u32).to_le_bytes());
        gather.push_bytes(&part_number(batch.part).to_le_bytes());
        for (block, data) in &batch.blocks {
            gather.push_bytes(&block.0.to_le_bytes());
            gather.push_bytes(&checksum(*block, data).to_le_bytes());
        }
        sent_bytes += (batch.blocks.len() * BLOCK_BYTES) as u64;
        batch.blocks.into_iter().for_each(|(_, data)| gather.push_piece(Piece::whole(data)));
        let (result, returned) = writer.send(gather).await;
        result?;
        gather = returned;
        gather.clear();
    }
    gather.push_bytes(&[0; super::HEADER_BYTES]);
    writer.send(gather).await.0?;
    Ok(sent_bytes)
}
