//! Splits a request at the boundaries of slices.

use seam::{Block, BlockMut, Disk, Piece, PieceMut, Seam};

use crate::buffers::Buffers;
use crate::number::SliceNo;
use crate::state::State;

/// The slices of a byte range: slice, offset in it, length.
pub(crate) fn ranges<S: Seam, D: Disk<S>>(
    state: &State<S, D>,
    at: u64,
    len: u64,
) -> impl Iterator<Item = (SliceNo, u64, u64)> + use<S, D> {
    let slice_bytes = state.slice_bytes();
    let mut done = 0;
    std::iter::from_fn(move || {
        if done == len {
            return None;
        }
        let (slice, offset) = ((at + done) / slice_bytes, (at + done) % slice_bytes);
        let count = (slice_bytes - offset).min(len - done);
        done += count;
        Some((SliceNo(slice as u32), offset, count))
    })
}

/// The slice of a byte range that lies in one slice, and the offset in it.
pub(crate) fn only_slice<S: Seam, D: Disk<S>>(state: &State<S, D>, at: u64, len: u64) -> Option<(SliceNo, u64)> {
    let slice_bytes = state.slice_bytes();
    let (slice, offset) = (at / slice_bytes, at % slice_bytes);
    (len > 0 && offset + len <= slice_bytes).then_some((SliceNo(slice as u32), offset))
}

/// Cuts the first `len` bytes off `pieces`, which must be longer or as long.
fn cut_off<B: Block>(pieces: &mut std::collections::VecDeque<Piece<B>>, len: u64) -> Vec<Piece<B>> {
    let (mut part, mut left) = (Vec::new(), len as usize);
    while left > 0 {
        let piece = pieces.pop_front().expect("the pieces are as long as the request");
        if piece.len() > left {
            let rest = Piece::new(piece.block.clone(), piece.start() + left, piece.len() - left);
            pieces.push_front(rest);
            part.push(Piece::new(piece.block, usize::from(piece.start), left));
            left = 0;
        } else {
            left -= piece.len();
            part.push(piece);
        }
    }
    part
}

/// The pieces of a write by slice: slice, offset in it, pieces.
pub(crate) fn split_write<B: Block>(
    ranges: impl Iterator<Item = (SliceNo, u64, u64)>,
    pieces: Vec<Piece<B>>,
) -> Vec<(SliceNo, u64, Vec<Piece<B>>)> {
    let mut pieces = pieces.into();
    ranges.map(|(slice, offset, len)| (slice, offset, cut_off(&mut pieces, len))).collect()
}

/// The pieces of a read that belong to one slice.
pub(crate) struct ReadPart<M> {
    pub slice: SliceNo,
    pub offset: u64,
    pub pieces: Vec<PieceMut<M>>,
    /// The first piece is a spare buffer with the end of the former part's last piece, which crosses the boundary.
    pub has_spare: bool,
}

/// Splits a read. A buffer that crosses two slices has one owner, so the second part gets a spare buffer.
pub(crate) async fn split_read<S: Seam>(
    buffers: &Buffers<S>,
    ranges: Vec<(SliceNo, u64, u64)>,
    pieces: Vec<PieceMut<S::BlockMut>>,
) -> Vec<ReadPart<S::BlockMut>> {
    let mut parts = Vec::with_capacity(ranges.len());
    let mut pieces = pieces.into_iter();
    let mut crossing = 0;
    for (slice, offset, len) in ranges {
        let (mut part, mut left) = (Vec::new(), len as usize);
        let has_spare = crossing > 0;
        if has_spare {
            part.push(Piece::new(buffers.get().await, 0, crossing));
            left -= std::mem::take(&mut crossing);
        }
        while left > 0 {
            let mut piece = pieces.next().expect("the pieces are as long as the request");
            if piece.len() > left {
                crossing = piece.len() - left;
                piece.len = left as u16;
            }
            left -= piece.len();
            part.push(piece);
        }
        parts.push(ReadPart { slice, offset, pieces: part, has_spare });
    }
    parts
}

/// Puts the pieces of a read together again.
pub(crate) fn join_read<S: Seam>(
    buffers: &Buffers<S>,
    parts: Vec<(bool, Vec<PieceMut<S::BlockMut>>)>,
) -> Vec<PieceMut<S::BlockMut>> {
    let mut joined: Vec<PieceMut<S::BlockMut>> = Vec::new();
    for (has_spare, pieces) in parts {
        let mut pieces = pieces.into_iter();
        if has_spare {
            let spare = pieces.next().expect("a part with a spare buffer has it first");
            let (len, block) = (spare.len(), spare.block.freeze());
            let piece = joined.last_mut().expect("a spare buffer follows the piece that it completes");
            let end = piece.start() + piece.len();
            piece.block.copy_from(end, &block, 0, len);
            piece.len += len as u16;
            buffers.put_frozen(block);
        }
        joined.extend(pieces);
    }
    joined
}
