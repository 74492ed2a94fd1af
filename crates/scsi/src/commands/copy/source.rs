//! Pieces read from one volume as the source of a write to another; block boundaries may differ between the two.

use engine::WriteSource;
use seam::{BlockMut, Piece, Seam};

/// Consecutive pieces as the content of a write.
pub struct Pieces<'a, B> {
    pieces: &'a [Piece<B>],
    /// Byte offset of each piece.
    starts: Vec<usize>,
}

impl<'a, B> Pieces<'a, B> {
    pub fn new(pieces: &'a [Piece<B>]) -> Self {
        let mut at = 0;
        let starts = pieces.iter().map(|piece| {
            let start = at;
            at += piece.len();
            start
        });
        Pieces { pieces, starts: starts.collect() }
    }
}

impl<S: Seam> WriteSource<S> for Pieces<'_, S::Block> {
    fn fill(&mut self, from: usize, block: &mut S::BlockMut, at: usize, len: usize) {
        let mut place = self.starts.partition_point(|start| *start <= from) - 1;
        let mut read_blocks = 0;
        while read_blocks < len {
            let piece = &self.pieces[place];
            let within = from + read_blocks - self.starts[place];
            let count = (piece.len() - within).min(len - read_blocks);
            block.copy_from(at + read_blocks, &piece.block, piece.start() + within, count);
            read_blocks += count;
            place += 1;
        }
    }
}
