//! NBD exports as the target of a workload.

use std::cell::Cell;
use std::rc::Rc;

use crate::workload::row::Row;
use crate::workload::{Access, Door};
use engine::backing::nbd::NbdDisk;
use seam::real::RealSeam;
use seam::{BLOCK_BYTES, BlockMut, Disk, Nanos, Piece, PieceMut, SECTOR_BYTES, Seam};

/// Exports as one row of addresses, each over some connections.
#[derive(Clone)]
pub struct Exports {
    row: Row,
    connections: Rc<[Vec<NbdDisk<RealSeam>>]>,
    /// Which connection is next.
    turn: Rc<Cell<usize>>,
}

impl Exports {
    /// Each export's connections, in the row's order.
    pub fn new(row: Row, connections: Vec<Vec<NbdDisk<RealSeam>>>) -> Exports {
        Exports { row, connections: connections.into(), turn: Rc::default() }
    }

    async fn buffer(seam: &RealSeam) -> <RealSeam as Seam>::BlockMut {
        loop {
            if let Some(block) = seam.alloc() {
                return block;
            }
            // Others' requests end and give theirs back.
            seam.sleep(Nanos::from_millis(1)).await;
        }
    }

    fn connection(&self, export: usize) -> &NbdDisk<RealSeam> {
        let connections = &self.connections[export];
        self.turn.set(self.turn.get().wrapping_add(1));
        &connections[self.turn.get() % connections.len()]
    }
}

impl Door<RealSeam> for Exports {
    async fn ask(&self, seam: &RealSeam, access: Access) -> bool {
        let (export, at) = self.row.place(access);
        let mut pieces = Vec::with_capacity(access.len as usize / BLOCK_BYTES + 1);
        let mut left = access.len as usize;
        while left > 0 {
            let len = left.min(BLOCK_BYTES);
            pieces.push(PieceMut::new(Exports::buffer(seam).await, 0, len));
            left -= len;
        }
        if !access.write {
            return self.connection(export).read(at, pieces).await.0.is_ok();
        }
        // Where each sector lies and a number that differs each time: neither compresses nor repeats.
        let stamp = seam.random().to_le_bytes();
        let frozen = pieces.into_iter().enumerate().map(|(index, mut piece)| {
            let len = piece.len();
            piece.block.zero(0, BLOCK_BYTES);
            for start in (0..len).step_by(SECTOR_BYTES) {
                let at = access.at + (index * BLOCK_BYTES + start) as u64;
                let mut bytes = [0; SECTOR_BYTES];
                bytes[..8].copy_from_slice(&at.to_le_bytes());
                bytes[8..16].copy_from_slice(&stamp);
                let count = SECTOR_BYTES.min(len - start);
                piece.block.write_bytes(start, &bytes[..count]);
            }
            Piece::new(piece.block.freeze(), 0, len)
        });
        self.connection(export).write(at, frozen.collect()).await.is_ok()
    }
}
