//! Pieces read from one volume as the source of a write to another; block boundaries may differ between the two.

use engine::WriteSource;
use seam::{BlockMut, Piece, Seam};

/// Consecutive pieces as the content of a write.
pub struct PieceSource<'a, B> {
    pieces: &'a [Piece<B>],
    /// Byte offset of each piece.
    starts: Vec<usize>,
}

impl<'a, B> PieceSource<'a, B> {
    /// The content of `pieces`.
    pub fn new(pieces: &'a [Piece<B>]) -> Self {
        let mut at = 0;
        let starts = pieces.iter().map(|piece| {
            let start = at;
            at += piece.len();
            start
        });
        PieceSource { pieces, starts: starts.collect() }
    }
}

impl<S: Seam> WriteSource<S> for PieceSource<'_, S::Block> {
    fn fill(&mut self, from: usize, block: &mut S::BlockMut, at: usize, len: usize) {
        let mut index = self.starts.partition_point(|start| *start <= from) - 1;
        let mut copied = 0;
        while copied < len {
            let piece = &self.pieces[index];
            let within = from + copied - self.starts[index];
            let count = (piece.len() - within).min(len - copied);
            block.copy_from(at + copied, &piece.block, piece.start() + within, count);
            copied += count;
            index += 1;
        }
    }
}
