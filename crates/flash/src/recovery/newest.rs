//! Of each block the newest record counts: data, zeroes, or a tombstone that leaves nothing.

use std::collections::BTreeMap;

use crate::commit::positions;
use crate::format::batch::RecordKind;
use crate::record::{Owner, Recovered, RecoveredContent};
use crate::recovery::chain::Chain;

/// The record that speaks of some blocks.
#[derive(Clone, Copy)]
struct Piece {
    blocks: u64,
    /// Which record, in the log's order.
    order: u64,
    recovered: Recovered,
}

/// Live records, oldest first, and how many each segment has.
pub fn newest(chain: &Chain) -> (Vec<Recovered>, Vec<u32>) {
    let mut pieces: BTreeMap<Owner, Piece> = BTreeMap::new();
    let mut order = 0;
    for link in &chain.links {
        for (record, position) in link.header.records.iter().zip(positions(&link.header)) {
            order += 1;
            let owner = Owner { incarnation: record.incarnation, block: record.block };
            cut_out(&mut pieces, owner, u64::from(record.blocks));
            let content = match record.kind {
                RecordKind::Data { .. } => RecoveredContent::Data,
                RecordKind::Zero { may_unmap } => RecoveredContent::Zero { blocks: record.blocks, may_unmap },
                RecordKind::Retire => continue,
            };
            let recovered = Recovered { owner, epoch: record.epoch, position, content };
            pieces.insert(owner, Piece { blocks: u64::from(record.blocks), order, recovered });
        }
    }
    let mut live = vec![0; chain.segments as usize];
    let mut left: Vec<(u64, Recovered)> = Vec::with_capacity(pieces.len());
    for (owner, piece) in pieces {
        let mut recovered = Recovered { owner, ..piece.recovered };
        if let RecoveredContent::Zero { blocks, .. } = &mut recovered.content {
            *blocks = u32::try_from(piece.blocks).expect("a piece is no longer than its record");
        }
        live[recovered.position.segment as usize] += 1;
        left.push((piece.order, recovered));
    }
    left.sort_by_key(|(order, _)| *order);
    (left.into_iter().map(|(_, recovered)| recovered).collect(), live)
}

/// Takes `blocks` from `owner` on away from whoever has them.
fn cut_out(pieces: &mut BTreeMap<Owner, Piece>, owner: Owner, blocks: u64) {
    let end = Owner { block: owner.block + blocks, ..owner };
    // At most one piece begins before and reaches into it.
    let before = pieces.range(..owner).next_back().map(|(start, piece)| (*start, *piece));
    if let Some((start, piece)) = before
        && start.incarnation == owner.incarnation
        && start.block + piece.blocks > owner.block
    {
        pieces.insert(start, Piece { blocks: owner.block - start.block, ..piece });
        if start.block + piece.blocks > end.block {
            pieces.insert(end, Piece { blocks: start.block + piece.blocks - end.block, ..piece });
        }
    }
    let inside: Vec<_> = pieces.range(owner..end).map(|(start, piece)| (*start, *piece)).collect();
    for (start, piece) in inside {
        pieces.remove(&start);
        if start.block + piece.blocks > end.block {
            pieces.insert(end, Piece { blocks: start.block + piece.blocks - end.block, ..piece });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Position;

    fn insert(pieces: &mut BTreeMap<Owner, Piece>, order: u64, block: u64, blocks: u64) {
        let owner = Owner { incarnation: 1, block };
        cut_out(pieces, owner, blocks);
        let position = Position { segment: 0, index: 0, checksum: 0, live: true };
        let recovered = Recovered { owner, epoch: 0, position, content: RecoveredContent::Data };
        pieces.insert(owner, Piece { blocks, order, recovered });
    }

    #[test]
    fn newer_ranges_cut_older_ones_like_a_plain_array() {
        let mut state = 1_u64;
        let mut below = |bound: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % bound
        };
        for _ in 0..200 {
            let (mut pieces, mut array) = (BTreeMap::new(), [0; 64]);
            for order in 1..20 {
                let block = below(60);
                let blocks = 1 + below(64 - block);
                insert(&mut pieces, order, block, blocks);
                array[block as usize..(block + blocks) as usize].fill(order);
            }
            let mut found = [0; 64];
            for (owner, piece) in &pieces {
                found[owner.block as usize..(owner.block + piece.blocks) as usize].fill(piece.order);
            }
            assert_eq!(found, array);
            let total: u64 = pieces.values().map(|piece| piece.blocks).sum();
            assert_eq!(total, array.iter().filter(|order| **order != 0).count() as u64, "no two overlap");
        }
    }
}
