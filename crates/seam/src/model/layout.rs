//! Placement of data in a RAID group: the disks that a request touches, and the reads that a write needs first.
//!
//! Data is striped over the disks in units; a stripe is one unit on each disk, at the same offset. Parity moves one
//! disk to the left with each stripe (left-symmetric, as in Linux md). Concurrent writes to one stripe are not
//! serialised: controllers do that in their memory, and the model counts only the disks' time.

use std::fmt;

use super::Access;

/// RAID level of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RaidLevel {
    /// Striped.
    Raid0,
    /// Mirrored on every disk.
    Raid1,
    /// Striped with one parity unit per stripe.
    Raid5,
    /// Striped with two parity units per stripe.
    Raid6,
    /// Striped over mirrored pairs.
    Raid10,
}

impl RaidLevel {
    /// All levels with their numbers in the configuration.
    pub const ALL: [(u32, RaidLevel); 5] = [
        (0, RaidLevel::Raid0),
        (1, RaidLevel::Raid1),
        (5, RaidLevel::Raid5),
        (6, RaidLevel::Raid6),
        (10, RaidLevel::Raid10),
    ];

    /// The level with this number.
    pub fn from_number(number: u32) -> Option<RaidLevel> {
        RaidLevel::ALL.iter().find(|(other, _)| *other == number).map(|(_, level)| *level)
    }

    /// Fewest disks of a group.
    pub fn disks_min(self) -> usize {
        match self {
            RaidLevel::Raid0 => 1,
            RaidLevel::Raid1 => 2,
            RaidLevel::Raid5 => 3,
            RaidLevel::Raid6 | RaidLevel::Raid10 => 4,
        }
    }

    fn parity(self) -> usize {
        match self {
            RaidLevel::Raid5 => 1,
            RaidLevel::Raid6 => 2,
            RaidLevel::Raid0 | RaidLevel::Raid1 | RaidLevel::Raid10 => 0,
        }
    }
}

impl fmt::Display for RaidLevel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let number = RaidLevel::ALL.iter().find(|(_, level)| level == self).map(|(number, _)| *number);
        write!(f, "RAID {}", number.expect("every level has a number"))
    }
}

/// One disk's part of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Part {
    pub(super) disk: usize,
    pub(super) access: Access,
    pub(super) at: u64,
    pub(super) len: u64,
}

/// The geometry of a group.
#[derive(Clone, Copy, Debug)]
pub(super) struct Layout {
    pub(super) level: RaidLevel,
    pub(super) disks: usize,
    /// Bytes of a stripe on one disk.
    pub(super) unit_bytes: u64,
}

impl Layout {
    /// Units of data in a stripe.
    pub(super) fn width(&self) -> usize {
        match self.level {
            RaidLevel::Raid1 => 1,
            RaidLevel::Raid10 => self.disks / 2,
            level => self.disks - level.parity(),
        }
    }

    /// Bytes of data in a stripe.
    pub(super) fn stripe_bytes(&self) -> u64 {
        self.width() as u64 * self.unit_bytes
    }

    /// The range of disks that hold data unit `unit` of `stripe`.
    fn holders(&self, stripe: u64, unit: usize) -> std::ops::Range<usize> {
        match self.level {
            RaidLevel::Raid1 => 0..self.disks,
            RaidLevel::Raid10 => 2 * unit..2 * unit + 2,
            level => {
                let disk = (self.first_parity(stripe) + level.parity() + unit) % self.disks;
                disk..disk + 1
            }
        }
    }

    fn first_parity(&self, stripe: u64) -> usize {
        match self.level.parity() {
            0 => 0,
            _ => self.disks - 1 - (stripe % self.disks as u64) as usize,
        }
    }

    /// Reads for `len` bytes from `at` on; `pick` chooses a disk among mirrors.
    pub(super) fn read(&self, at: u64, len: u64, pick: impl Fn(std::ops::Range<usize>) -> usize, out: &mut Vec<Part>) {
        for (stripe, unit, start, count) in self.units(at, len) {
            let disk = pick(self.holders(stripe, unit));
            push(out, Part { disk, access: Access::Read, at: stripe * self.unit_bytes + start, len: count });
        }
    }

    /// Prior reads and writes for `len` bytes from `at` on.
    pub(super) fn write(&self, at: u64, len: u64, prior_reads: &mut Vec<Part>, writes: &mut Vec<Part>) {
        for (stripe, unit, start, count) in self.units(at, len) {
            for disk in self.holders(stripe, unit) {
                push(writes, Part { disk, access: Access::Write, at: stripe * self.unit_bytes + start, len: count });
            }
        }
        if self.level.parity() == 0 {
            return;
        }
        let (first, last) = (at / self.stripe_bytes(), (at + len - 1) / self.stripe_bytes());
        for stripe in first..=last {
            let from = at.max(stripe * self.stripe_bytes());
            let to = (at + len).min((stripe + 1) * self.stripe_bytes());
            self.write_parity(stripe, from, to - from, prior_reads, writes);
        }
    }

    /// Adds the parity accesses for one stripe's part of a write: by read-modify-write or by reconstruction, whichever
    /// reads less.
    fn write_parity(&self, stripe: u64, at: u64, len: u64, prior_reads: &mut Vec<Part>, writes: &mut Vec<Part>) {
        let touched = || self.units(at, len);
        // Parity covers the changed range of a single touched unit; a write over several units counts as a change of
        // the whole parity unit.
        let (start, count) = match len <= self.unit_bytes - at % self.unit_bytes {
            true => (at % self.unit_bytes, len),
            false => (0, self.unit_bytes),
        };
        let base = stripe * self.unit_bytes;
        let parity = (0..self.level.parity()).map(|number| (self.first_parity(stripe) + number) % self.disks);
        let complete = touched().filter(|(_, _, from, len)| (*from, *len) == (start, count)).count();
        let modify = touched().count() + self.level.parity();
        let reconstruct = self.width() - complete;
        let mut read = |disk, at, len| push(prior_reads, Part { disk, access: Access::Read, at, len });
        if modify <= reconstruct {
            touched().for_each(|(_, unit, from, len)| read(self.holders(stripe, unit).start, base + from, len));
            parity.clone().for_each(|disk| read(disk, base + start, count));
        } else {
            for unit in 0..self.width() {
                if !touched().any(|(_, other, from, len)| other == unit && (from, len) == (start, count)) {
                    read(self.holders(stripe, unit).start, base + start, count);
                }
            }
        }
        parity.for_each(|disk| push(writes, Part { disk, access: Access::Write, at: base + start, len: count }));
    }

    /// The units under `len` bytes from `at` on: (stripe, unit within the stripe, first byte within the unit, bytes).
    fn units(&self, at: u64, len: u64) -> impl Iterator<Item = (u64, usize, u64, u64)> + use<> {
        let (unit_bytes, width) = (self.unit_bytes, self.width() as u64);
        let mut mapped = 0;
        std::iter::from_fn(move || {
            if mapped == len {
                return None;
            }
            let (number, start) = ((at + mapped) / unit_bytes, (at + mapped) % unit_bytes);
            let count = (unit_bytes - start).min(len - mapped);
            mapped += count;
            Some((number / width, (number % width) as usize, start, count))
        })
    }
}

/// Appends a part, or extends the last part of the same disk if the new one follows it directly.
fn push(parts: &mut Vec<Part>, part: Part) {
    let last = parts.iter_mut().rev().find(|other| other.disk == part.disk && other.access == part.access);
    match last {
        Some(last) if last.at + last.len == part.at => last.len += part.len,
        _ => parts.push(part),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const UNIT: u64 = 64 << 10;

    fn layout(level: RaidLevel, disks: usize) -> Layout {
        Layout { level, disks, unit_bytes: UNIT }
    }

    fn write(layout: Layout, at: u64, len: u64) -> (usize, usize, u64) {
        let (mut prior_reads, mut writes) = (Vec::new(), Vec::new());
        layout.write(at, len, &mut prior_reads, &mut writes);
        (prior_reads.len(), writes.len(), writes.iter().map(|part| part.len).sum())
    }

    #[test]
    fn small_write_costs_the_penalty_of_its_raid_level() {
        let penalty = |level, disks| {
            let (reads, writes, _) = write(layout(level, disks), 128 << 10, 8 << 10);
            reads + writes
        };
        assert_eq!(penalty(RaidLevel::Raid0, 4), 1);
        assert_eq!(penalty(RaidLevel::Raid1, 2), 2);
        assert_eq!(penalty(RaidLevel::Raid10, 8), 2);
        assert_eq!(penalty(RaidLevel::Raid5, 5), 4);
        assert_eq!(penalty(RaidLevel::Raid6, 8), 6);
    }

    #[test]
    fn a_full_stripe_is_written_without_reading() {
        assert_eq!(write(layout(RaidLevel::Raid5, 5), 0, 4 * UNIT), (0, 5, 5 * UNIT));
        assert_eq!(write(layout(RaidLevel::Raid6, 6), 4 * UNIT, 4 * UNIT), (0, 6, 6 * UNIT));
    }

    #[test]
    fn nearly_full_stripe_reads_only_the_missing_units() {
        assert_eq!(write(layout(RaidLevel::Raid5, 5), 0, 3 * UNIT), (1, 4, 4 * UNIT));
    }

    #[test]
    fn parity_rotates_over_all_disks_apart_from_its_data() {
        for (level, disks) in [(RaidLevel::Raid5, 5), (RaidLevel::Raid6, 7)] {
            let layout = layout(level, disks);
            let mut seen = vec![0; disks];
            for stripe in 0..disks as u64 {
                let mut used: Vec<_> = (0..layout.width()).map(|number| layout.holders(stripe, number).start).collect();
                let parity = (0..level.parity()).map(|number| (layout.first_parity(stripe) + number) % disks);
                parity.for_each(|disk| {
                    seen[disk] += 1;
                    used.push(disk);
                });
                used.sort_unstable();
                assert_eq!(used, (0..disks).collect::<Vec<_>>(), "stripe {stripe}");
            }
            assert!(seen.iter().all(|count| *count == level.parity()));
        }
    }

    #[test]
    fn a_long_read_is_one_operation_a_disk() {
        let mut parts = Vec::new();
        layout(RaidLevel::Raid0, 4).read(0, 16 * UNIT, |disks| disks.start, &mut parts);
        assert_eq!(parts.len(), 4);
        assert!(parts.iter().all(|part| part.len == 4 * UNIT));
    }
}
