//! The sector contents that may exist after a crash.
//!
//! A sector may hold the last flushed write or any later one, and nothing else. A block that was only ever written
//! whole must hold a single write.

use std::collections::BTreeMap;
use std::fmt;

use crate::pattern::{self, Content, SECTOR};

/// Sectors in a block.
pub const BLOCK_SECTORS: u64 = 8;

#[derive(Clone, Copy, Debug, Default)]
struct SectorState {
    /// Newest write covered by a flush; 0 is the fresh volume.
    flushed: u64,
    /// Newest write sent, acknowledged or not.
    sent: u64,
    /// Newest acknowledged write.
    acknowledged: u64,
    /// Newest write that failed; it may have taken effect.
    failed: u64,
}

/// Writes of a single writer to a volume.
#[derive(Debug)]
pub struct WriteHistory {
    sectors: Vec<SectorState>,
    /// Writes of zeroes per sector, by sequence number: they leave no mark in the content.
    zeroes: BTreeMap<u64, Vec<u64>>,
    /// Acknowledged writes not yet covered by a flush: first sector, number of sectors, sequence number.
    unflushed: Vec<(u64, u64, u64)>,
    /// Number of entries ever removed from the front of `unflushed`.
    drained: u64,
    /// Sequence number of the newest write.
    sequence: u64,
    /// Number of acknowledged writes and flushes.
    acknowledgements: u64,
    /// True if the storage may tear a block (a power cut on a disk with 512-byte sectors).
    may_tear: bool,
}

/// A violated promise.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the message explains the fields")]
pub enum Fault {
    Lost { sector: u64, flushed: u64, found: u64 },
    Foreign { sector: u64, origin: u64 },
    Invented { sector: u64, sequence: u64 },
    Garbage { sector: u64 },
    Torn { block: u64, sequences: Vec<u64> },
    Stale { sector: u64, acknowledged: u64, found: u64 },
    Size { expected: u64, found: u64 },
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fault::Lost { sector, flushed, found } => {
                write!(f, "sector {sector}: write {flushed} was flushed, {found} was found")
            }
            Fault::Foreign { sector, origin } => write!(f, "sector {sector} holds data of sector {origin}"),
            Fault::Invented { sector, sequence } => {
                write!(f, "sector {sector} holds write {sequence}, which was never sent to it")
            }
            Fault::Garbage { sector } => write!(f, "sector {sector} holds no intact write"),
            Fault::Torn { block, sequences } => write!(f, "block {block} is torn between writes {sequences:?}"),
            Fault::Stale { sector, acknowledged, found } => {
                write!(f, "sector {sector}: write {acknowledged} was acknowledged, {found} was read")
            }
            Fault::Size { expected, found } => write!(f, "{found} bytes instead of {expected}"),
        }
    }
}

/// Number of acknowledged writes that a flush covers.
#[derive(Clone, Copy, Debug)]
pub struct FlushMark(u64);

impl WriteHistory {
    /// A fresh volume of `bytes`, all zeroes.
    pub fn new(bytes: u64, may_tear: bool) -> Self {
        let sectors = vec![SectorState::default(); (bytes / SECTOR as u64) as usize];
        WriteHistory {
            sectors,
            zeroes: BTreeMap::new(),
            unflushed: Vec::new(),
            drained: 0,
            sequence: 0,
            acknowledgements: 0,
            may_tear,
        }
    }

    /// Number of sectors.
    pub fn len(&self) -> u64 {
        self.sectors.len() as u64
    }

    /// True for a volume of size 0.
    pub fn is_empty(&self) -> bool {
        self.sectors.is_empty()
    }

    /// Number of writes so far.
    pub fn sequence(&self) -> u64 {
        self.sequence
    }

    /// Number of acknowledged writes and flushes.
    pub fn acknowledgements(&self) -> u64 {
        self.acknowledgements
    }

    /// Records that a write of `count` sectors is about to be sent; returns its sequence number.
    pub fn send(&mut self, first: u64, count: u64, zeroes: bool) -> u64 {
        self.sequence += 1;
        for sector in first..first + count {
            self.sectors[sector as usize].sent = self.sequence;
            if zeroes {
                self.zeroes.entry(sector).or_default().push(self.sequence);
            }
        }
        self.sequence
    }

    /// Records the acknowledgement of a write.
    pub fn acknowledge(&mut self, first: u64, count: u64, sequence: u64, durable: bool) {
        self.acknowledgements += 1;
        for sector in first..first + count {
            let state = &mut self.sectors[sector as usize];
            state.acknowledged = state.acknowledged.max(sequence);
            if durable {
                state.flushed = state.flushed.max(sequence);
            }
        }
        if !durable {
            self.unflushed.push((first, count, sequence));
        }
    }

    /// Records the failure of a write.
    pub fn fail(&mut self, first: u64, count: u64, sequence: u64) {
        for state in &mut self.sectors[first as usize..(first + count) as usize] {
            state.failed = state.failed.max(sequence);
        }
    }

    /// Records that a flush is about to be sent on any connection; it covers all writes acknowledged so far.
    pub fn begin_flush(&self) -> FlushMark {
        FlushMark(self.drained + self.unflushed.len() as u64)
    }

    /// Records the acknowledgement of a flush.
    pub fn end_flush(&mut self, mark: FlushMark) {
        self.acknowledgements += 1;
        let covered = mark.0.saturating_sub(self.drained) as usize;
        for (first, count, sequence) in self.unflushed.drain(..covered) {
            for state in &mut self.sectors[first as usize..(first + count) as usize] {
                state.flushed = state.flushed.max(sequence);
            }
        }
        self.drained += covered as u64;
    }

    /// Checks the content of a read from sector `first` on, without a crash and without concurrent writes: it must be
    /// exactly the newest acknowledged writes. A sector whose newest write failed is skipped.
    pub fn check_read(&self, first: u64, bytes: &[u8]) -> Vec<Fault> {
        let mut faults = Vec::new();
        for (sector, content) in (first..).zip(bytes.chunks(SECTOR)) {
            let SectorState { acknowledged, failed, .. } = self.sectors[sector as usize];
            if failed > acknowledged {
                continue;
            }
            let zeroed = self.zeroes.get(&sector).is_some_and(|sequences| sequences.contains(&acknowledged));
            match pattern::recognise(content) {
                Content::Zero if acknowledged == 0 || zeroed => {}
                Content::Zero => faults.push(Fault::Stale { sector, acknowledged, found: 0 }),
                Content::Whole { sector: origin, .. } if origin != sector => {
                    faults.push(Fault::Foreign { sector, origin });
                }
                Content::Whole { sequence, .. } if sequence == acknowledged && !zeroed => {}
                Content::Whole { sequence, .. } => faults.push(Fault::Stale { sector, acknowledged, found: sequence }),
                Content::Garbage => faults.push(Fault::Garbage { sector }),
            }
        }
        faults
    }

    /// Checks the whole volume after a crash. The content found becomes the new state.
    pub fn check_after_crash(&mut self, image: &[u8]) -> Vec<Fault> {
        let expected = self.len() * SECTOR as u64;
        if image.len() as u64 != expected {
            return vec![Fault::Size { expected, found: image.len() as u64 }];
        }
        let mut faults = Vec::new();
        let mut recovered = Vec::with_capacity(self.sectors.len());
        for (sector, content) in (0..).zip(image.chunks(SECTOR)) {
            match self.check_sector(sector, pattern::recognise(content)) {
                Ok(sequence) => recovered.push(sequence),
                Err(fault) => {
                    faults.push(fault);
                    recovered.push(0);
                }
            }
        }
        if !self.may_tear && faults.is_empty() {
            let torn = (0..).zip(recovered.chunks(BLOCK_SECTORS as usize)).filter(|(block, sequences)| {
                is_whole_block(*block) && sequences.iter().any(|sequence| *sequence != sequences[0])
            });
            faults.extend(torn.map(|(block, sequences)| Fault::Torn { block, sequences: sequences.to_vec() }));
        }
        self.reset_to(&recovered);
        faults
    }

    /// Sequence number of a sector's content, if a correct volume may return that content.
    fn check_sector(&self, sector: u64, content: Content) -> Result<u64, Fault> {
        let SectorState { flushed, sent, .. } = self.sectors[sector as usize];
        match content {
            Content::Garbage => Err(Fault::Garbage { sector }),
            Content::Zero => {
                let newest = self
                    .zeroes
                    .get(&sector)
                    .and_then(|sequences| sequences.last().copied())
                    .filter(|&last| last >= flushed);
                if flushed == 0 {
                    Ok(newest.unwrap_or(0))
                } else {
                    newest.ok_or(Fault::Lost { sector, flushed, found: 0 })
                }
            }
            Content::Whole { sector: origin, .. } if origin != sector => Err(Fault::Foreign { sector, origin }),
            Content::Whole { sequence, .. } if sequence > sent => Err(Fault::Invented { sector, sequence }),
            Content::Whole { sequence, .. } if sequence < flushed => {
                Err(Fault::Lost { sector, flushed, found: sequence })
            }
            Content::Whole { sequence, .. } => Ok(sequence),
        }
    }

    fn reset_to(&mut self, recovered: &[u64]) {
        self.drained += self.unflushed.len() as u64;
        self.unflushed.clear();
        for ((sector, state), &sequence) in (0..).zip(&mut self.sectors).zip(recovered) {
            let is_zeroed = self.zeroes.get(&sector).is_some_and(|sequences| sequences.contains(&sequence));
            self.zeroes.remove(&sector);
            if is_zeroed {
                self.zeroes.insert(sector, vec![sequence]);
            }
            *state = SectorState { flushed: sequence, sent: sequence, acknowledged: sequence, failed: 0 };
        }
    }
}

/// True for blocks that the writer only writes whole; the others are written by sector.
pub fn is_whole_block(block: u64) -> bool {
    block % 8 != 7
}

#[cfg(test)]
mod tests {
    use super::*;

    const BLOCKS: u64 = 16;

    fn write(history: &mut WriteHistory, image: &mut [u8], first: u64, count: u64) -> u64 {
        let sequence = history.send(first, count, false);
        for sector in first..first + count {
            pattern::fill(sector, sequence, &mut image[sector as usize * SECTOR..][..SECTOR]);
        }
        history.acknowledge(first, count, sequence, false);
        sequence
    }

    fn fresh() -> (WriteHistory, Vec<u8>) {
        let bytes = BLOCKS * BLOCK_SECTORS * SECTOR as u64;
        (WriteHistory::new(bytes, false), vec![0; bytes as usize])
    }

    fn flush(history: &mut WriteHistory) {
        let mark = history.begin_flush();
        history.end_flush(mark);
    }

    #[test]
    fn flushed_and_later_writes_pass() {
        let (mut history, mut image) = fresh();
        write(&mut history, &mut image, 8, 8);
        flush(&mut history);
        let flushed = image.clone();
        write(&mut history, &mut image, 8, 8);
        write(&mut history, &mut image, 24, 8);
        assert_eq!(history.check_after_crash(&image), []);
        // Content found once must stay, so the older image counts as a loss.
        assert!(matches!(history.check_after_crash(&flushed)[0], Fault::Lost { sector: 8, .. }));
    }

    #[test]
    fn unflushed_write_may_be_lost_but_not_a_flushed_one() {
        let (mut history, mut image) = fresh();
        write(&mut history, &mut image, 0, 8);
        assert_eq!(history.check_after_crash(&vec![0; image.len()]), []);
        let (mut history, mut image) = fresh();
        write(&mut history, &mut image, 0, 8);
        flush(&mut history);
        assert_eq!(history.check_after_crash(&vec![0; image.len()]).len(), 8);
    }

    #[test]
    fn flush_covers_only_writes_acknowledged_before_it() {
        let (mut history, mut image) = fresh();
        let mark = history.begin_flush();
        write(&mut history, &mut image, 0, 8);
        history.end_flush(mark);
        assert_eq!(history.check_after_crash(&vec![0; image.len()]), []);
    }

    #[test]
    fn foreign_torn_never_written_and_flipped_data_is_detected() {
        let faults_of = |corrupt: fn(&mut [u8])| {
            let (mut history, mut image) = fresh();
            write(&mut history, &mut image, 0, 8);
            flush(&mut history);
            write(&mut history, &mut image, 8, 8);
            corrupt(&mut image);
            history.check_after_crash(&image)
        };
        assert!(matches!(
            faults_of(|image| image.copy_within(0..SECTOR, 4096))[..],
            [Fault::Foreign { sector: 8, origin: 0 }]
        ));
        assert!(matches!(faults_of(|image| image[4096..4096 + SECTOR].fill(0))[..], [Fault::Torn { block: 1, .. }]));
        assert!(matches!(
            faults_of(|image| pattern::fill(3, 99, &mut image[3 * SECTOR..4 * SECTOR]))[..],
            [Fault::Invented { sector: 3, .. }]
        ));
        assert!(matches!(faults_of(|image| image[100] ^= 4)[..], [Fault::Garbage { sector: 0 }]));
        assert_eq!(faults_of(|_| {}), []);
    }

    #[test]
    fn zeroes_count_as_a_write_and_their_loss_is_detected() {
        let (mut history, mut image) = fresh();
        write(&mut history, &mut image, 0, 8);
        flush(&mut history);
        let before = image.clone();
        let sequence = history.send(0, 8, true);
        history.acknowledge(0, 8, sequence, true);
        image[..4096].fill(0);
        assert_eq!(history.check_read(0, &image[..4096]), []);
        assert_eq!(history.check_read(0, &before[..4096]).len(), 8);
        assert_eq!(history.check_after_crash(&image), []);
        assert_eq!(history.check_after_crash(&before).len(), 8);
    }
}
