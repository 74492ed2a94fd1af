//! NBD exports as the target of a workload.

use std::cell::Cell;
use std::rc::Rc;

use crate::workload::address_space::AddressSpace;
use crate::workload::{Access, RequestTarget};
use nbd_client::NbdDisk;
use seam::real::RealSeam;
use seam::{BLOCK_BYTES, BlockMut, Disk, Nanos, Piece, PieceMut, SECTOR_BYTES, Seam};

/// Exports as one linear address space, each over some connections.
#[derive(Clone)]
pub struct Exports {
    addresses: AddressSpace,
    connections: Rc<[Vec<NbdDisk<RealSeam>>]>,
    /// Number of the next connection, modulo the number of connections.
    next_connection: Rc<Cell<usize>>,
}

impl Exports {
    /// Takes each export's connections, in the order of the address space.
    pub fn new(addresses: AddressSpace, connections: Vec<Vec<NbdDisk<RealSeam>>>) -> Exports {
        Exports { addresses, connections: connections.into(), next_connection: Rc::default() }
    }

    async fn buffer(seam: &RealSeam) -> <RealSeam as Seam>::BlockMut {
        loop {
            if let Some(block) = seam.alloc() {
                return block;
            }
            // Ending requests free their buffers.
            seam.sleep(Nanos::from_millis(1)).await;
        }
    }

    fn connection(&self, export: usize) -> &NbdDisk<RealSeam> {
        let connections = &self.connections[export];
        self.next_connection.set(self.next_connection.get().wrapping_add(1));
        &connections[self.next_connection.get() % connections.len()]
    }
}

impl RequestTarget<RealSeam> for Exports {
    async fn execute(&self, seam: &RealSeam, access: Access) -> bool {
        let (export, at) = self.addresses.locate(access);
        let mut pieces = Vec::with_capacity(access.len as usize / BLOCK_BYTES + 1);
        let mut remaining = access.len as usize;
        while remaining > 0 {
            let len = remaining.min(BLOCK_BYTES);
            pieces.push(PieceMut::new(Exports::buffer(seam).await, 0, len));
            remaining -= len;
        }
        if !access.write {
            return self.connection(export).read(at, pieces).await.0.is_ok();
        }
        // Each sector holds its address and a number that is unique to the write, so that data is not deduplicated.
        let write_id = seam.random().to_le_bytes();
        let frozen = pieces.into_iter().enumerate().map(|(index, mut piece)| {
            let len = piece.len();
            piece.block.zero(0, BLOCK_BYTES);
            for start in (0..len).step_by(SECTOR_BYTES) {
                let at = access.at + (index * BLOCK_BYTES + start) as u64;
                let mut bytes = [0; SECTOR_BYTES];
                bytes[..8].copy_from_slice(&at.to_le_bytes());
                bytes[8..16].copy_from_slice(&write_id);
                let count = SECTOR_BYTES.min(len - start);
                piece.block.write_bytes(start, &bytes[..count]);
            }
            Piece::new(piece.block.freeze(), 0, len)
        });
        self.connection(export).write(at, frozen.collect()).await.is_ok()
    }
}
