//! Blocks that contain their place and the number of the write that wrote them.

use std::io;

use crate::client::Client;

/// Bytes of a block.
pub const BLOCK: usize = 4096;

/// The content of block `index` after write number `sequence`.
pub fn content(index: usize, sequence: u64) -> Vec<u8> {
    [(index as u64).to_le_bytes(), sequence.to_le_bytes()].concat().repeat(BLOCK / 16)
}

/// The numbers of the newest acknowledged writes of a single client.
pub struct Numbered {
    /// Number of the newest write of each block; 0 for none.
    newest: Vec<u64>,
    next: u64,
}

impl Numbered {
    /// A fresh volume of `blocks`.
    pub fn new(blocks: usize) -> Numbered {
        Numbered { newest: vec![0; blocks], next: 1 }
    }

    /// Number of acknowledged writes.
    pub fn count(&self) -> u64 {
        self.next - 1
    }

    /// The block of the next write. A stride that is prime to the number of blocks: neighbours are apart.
    pub fn next_index(&self) -> usize {
        (self.next as usize * 197) % self.newest.len()
    }

    /// Writes the next block. After an error the same write is the next one.
    pub fn write(&mut self, client: &mut Client) -> io::Result<()> {
        let index = self.next_index();
        client.write((index * BLOCK) as u64, &content(index, self.next))?;
        (self.newest[index], self.next) = (self.next, self.next + 1);
        Ok(())
    }

    /// Reads a block that the client chooses by a draw, and returns what is wrong with it.
    pub fn check_one(&self, client: &mut Client, draw: u64) -> io::Result<Option<String>> {
        let index = (draw % self.newest.len() as u64) as usize;
        let found = client.read((index * BLOCK) as u64, BLOCK)?;
        Ok(self.fault(index, &found))
    }

    /// Reads all blocks, and returns what is wrong with them.
    pub fn check_all(&self, client: &mut Client) -> io::Result<Vec<String>> {
        client.read_all().map(|image| self.faults_in(&image))
    }

    /// The blocks of a volume's content that are not those of the newest writes.
    pub fn faults_in(&self, image: &[u8]) -> Vec<String> {
        let blocks = image.chunks(BLOCK).take(self.newest.len()).enumerate();
        blocks.filter_map(|(index, block)| self.fault(index, block)).collect()
    }

    /// The fault of a block's content, if it has one. The next write may have landed without an acknowledgement.
    fn fault(&self, index: usize, found: &[u8]) -> Option<String> {
        let newest = self.newest[index];
        let is_newest = if newest == 0 { found.iter().all(|byte| *byte == 0) } else { found == content(index, newest) };
        let is_next = index == self.next_index() && found == content(index, self.next);
        (!is_newest && !is_next).then(|| {
            let number = |at: usize| u64::from_le_bytes(found[at..at + 8].try_into().expect("eight bytes"));
            format!("block {index} is not that of write {newest}, but of {} in block {}", number(8), number(0))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn older_write_in_a_block_is_a_fault() {
        let mut numbered = Numbered::new(2);
        (numbered.newest, numbered.next) = (vec![3, 4], 5);
        let image = |first, second| [content(0, first), content(1, second)].concat();
        assert_eq!(numbered.faults_in(&image(3, 4)), Vec::<String>::new());
        assert_eq!(numbered.faults_in(&image(3, 5)), Vec::<String>::new(), "the next write may have landed");
        assert_eq!(numbered.faults_in(&image(1, 4)).len(), 1);
        assert_eq!(numbered.faults_in(&image(3, 2)).len(), 1);
        assert_eq!(numbered.faults_in(&image(0, 6)).len(), 2);
    }
}
