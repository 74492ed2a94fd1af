//! An array: devices, the layout over them, an optional write cache, and the requests in flight.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::controller::{CACHE_TIME, Controller, WaitingWrite};
use super::layout::{Layout, Part, RaidLevel};
use super::spindle::{Spindle, SpindleSpec};
use super::ssd::{Ssd, SsdSpec};
use super::types::DiskType;
use super::{Access, Device};
use crate::Nanos;

/// Configuration of an array.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArraySpec {
    /// RAID level.
    pub level: RaidLevel,
    /// Number of disks.
    pub disks: usize,
    /// Type of every disk.
    pub disk: DiskType,
    /// Bytes of a stripe on one disk.
    pub stripe_unit_bytes: u64,
    /// Bytes of the controller's battery-backed write cache; 0 = none.
    pub write_cache_bytes: u64,
    /// Capacity of each disk in bytes, spread over its whole stroke; `None`: its type's capacity.
    pub disk_bytes: Option<u64>,
    /// Bytes that each disk reads ahead; `None`: its type's value. A disk much smaller than its type would otherwise
    /// hold all its data in its buffer.
    pub read_ahead_bytes: Option<u64>,
}

/// Reason why an array cannot be built or has no room.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ModelError {
    /// Too few or too many disks, or an odd number for RAID 10.
    #[error("{level} of {disks} disks cannot be built; use {allowed}")]
    Disks {
        /// The level.
        level: RaidLevel,
        /// Requested number of disks.
        disks: usize,
        /// Allowed numbers of disks.
        allowed: String,
    },
    /// The stripe unit is not a power of two, or out of bounds.
    #[error("a stripe unit of {0} bytes is not modelled; use a power of two from 4 KiB to 1 MiB")]
    StripeUnit(u64),
    /// The volumes on the array exceed its capacity, or leave no large enough gap.
    #[error(
        "the array holds {array_bytes} bytes and {used_bytes} are allocated: no room for {wanted_bytes} in one piece; \
         use more or larger disks"
    )]
    Full {
        /// Capacity of the array.
        array_bytes: u64,
        /// Bytes of the volumes on it.
        used_bytes: u64,
        /// Requested bytes.
        wanted_bytes: u64,
    },
}

/// Maximum number of disks of an array.
const DISKS_MAX: usize = 64;

impl ArraySpec {
    /// Number of disk accesses that a request needs, including the reads before a write.
    pub fn count_accesses(&self, access: Access, at: u64, len: u64) -> u64 {
        let (mut prior_reads, mut parts) = (Vec::new(), Vec::new());
        match access {
            Access::Read => self.layout().read(at, len.max(1), |holders| holders.start, &mut parts),
            Access::Write => self.layout().write(at, len.max(1), &mut prior_reads, &mut parts),
        }
        (prior_reads.len() + parts.len()) as u64
    }

    /// An array with 64 KiB stripe units, without a write cache, of disks with their type's capacity.
    pub fn new(level: RaidLevel, disks: usize, disk: DiskType) -> ArraySpec {
        ArraySpec {
            level,
            disks,
            disk,
            stripe_unit_bytes: 64 << 10,
            write_cache_bytes: 0,
            disk_bytes: None,
            read_ahead_bytes: None,
        }
    }

    /// The same array with disks just large enough for `size_bytes`, spread over their whole stroke. A volume with an
    /// array of its own is then as slow as on a full array.
    pub fn fitted(self, size_bytes: u64) -> ArraySpec {
        let stripes = size_bytes.div_ceil(self.layout().stripe_bytes());
        ArraySpec { disk_bytes: Some(stripes * self.stripe_unit_bytes), ..self }
    }

    /// Checks that the array can be built.
    pub fn check(&self) -> Result<(), ModelError> {
        let disks_min = self.level.disks_min();
        let has_valid_count = self.level != RaidLevel::Raid10 || self.disks.is_multiple_of(2);
        if !(disks_min..=DISKS_MAX).contains(&self.disks) || !has_valid_count {
            let parity_note = if self.level == RaidLevel::Raid10 { ", an even number" } else { "" };
            let allowed = format!("{disks_min} to {DISKS_MAX}{parity_note}");
            return Err(ModelError::Disks { level: self.level, disks: self.disks, allowed });
        }
        if !self.stripe_unit_bytes.is_power_of_two() || !(4 << 10..=1 << 20).contains(&self.stripe_unit_bytes) {
            return Err(ModelError::StripeUnit(self.stripe_unit_bytes));
        }
        Ok(())
    }

    /// Capacity in bytes of data.
    pub fn size_bytes(&self) -> u64 {
        self.disk_capacity() / self.stripe_unit_bytes * self.layout().stripe_bytes()
    }

    /// Data bytes of a full stripe: the size of a write that needs no prior reads.
    pub fn stripe_bytes(&self) -> u64 {
        self.layout().stripe_bytes()
    }

    fn disk_capacity(&self) -> u64 {
        self.disk_bytes.unwrap_or(self.disk.capacity_bytes())
    }

    fn layout(&self) -> Layout {
        Layout { level: self.level, disks: self.disks, unit_bytes: self.stripe_unit_bytes }
    }
}

/// The originator of a group of parts.
#[derive(Clone, Copy)]
enum GroupOrigin {
    Client(u64),
    Destage(u64),
}

/// Concurrent parts of one request, and the parts that follow their completion.
struct PartGroup {
    origin: GroupOrigin,
    remaining: usize,
    next_parts: Vec<Part>,
}

/// An array in operation. Times passed to it never go back.
pub struct Array {
    spec: ArraySpec,
    layout: Layout,
    devices: Vec<Box<dyn Device>>,
    groups: Vec<PartGroup>,
    free: Vec<usize>,
    controller: Option<Controller>,
    /// Completions from the write cache: (time, sequence, token).
    cache_completions: BinaryHeap<Reverse<(Nanos, u64, u64)>>,
    sequence: u64,
    /// Tokens of completed requests that [`Array::advance`] has not yet returned.
    finished: Vec<u64>,
    /// Scratch: the parts that start at once, and the parts that wait for them.
    first_parts: Vec<Part>,
    second_parts: Vec<Part>,
    /// Vectors of ended groups, for reuse.
    spare: Vec<Vec<Part>>,
}

impl Array {
    /// An idle array.
    pub fn new(spec: ArraySpec) -> Result<Array, ModelError> {
        spec.check()?;
        let capacity_bytes = spec.disk_capacity();
        let device = |number| -> Box<dyn Device> {
            match (spec.disk.spindle(), spec.disk.ssd()) {
                (Some(spindle), _) => {
                    let read_ahead_bytes = spec.read_ahead_bytes.unwrap_or(spindle.read_ahead_bytes);
                    Box::new(Spindle::new(SpindleSpec { capacity_bytes, read_ahead_bytes, ..spindle }, number))
                }
                (None, Some(ssd)) => Box::new(Ssd::new(SsdSpec { capacity_bytes, ..ssd })),
                (None, None) => unreachable!("a disk either turns or is flash"),
            }
        };
        Ok(Array {
            spec,
            layout: spec.layout(),
            devices: (0..spec.disks).map(device).collect(),
            groups: Vec::new(),
            free: Vec::new(),
            controller: (spec.write_cache_bytes > 0).then(|| Controller::new(spec.write_cache_bytes)),
            cache_completions: BinaryHeap::new(),
            sequence: 0,
            finished: Vec::new(),
            first_parts: Vec::new(),
            second_parts: Vec::new(),
            spare: Vec::new(),
        })
    }

    /// The array's configuration.
    pub fn spec(&self) -> &ArraySpec {
        &self.spec
    }

    /// Submits a request; [`Array::advance`] returns `token` on its completion.
    pub fn submit(&mut self, now: Nanos, token: u64, access: Access, at: u64, len: u64) {
        assert!(len > 0 && at + len <= self.spec.size_bytes(), "outside the array: {at}+{len}");
        self.advance_to(now);
        match (access, &mut self.controller) {
            (Access::Read, Some(controller)) if controller.covers_read(&self.layout, at, len) => {
                self.complete_from_cache(now, token)
            }
            (Access::Read, _) => {
                let mut parts = std::mem::take(&mut self.first_parts);
                let devices = &self.devices;
                let shortest_queue = |disks: std::ops::Range<usize>| {
                    let start = disks.start;
                    disks.min_by_key(|disk| devices[*disk].outstanding()).unwrap_or(start)
                };
                self.layout.read(at, len, shortest_queue, &mut parts);
                let next_parts = self.spare.pop().unwrap_or_default();
                self.start(now, GroupOrigin::Client(token), &parts, next_parts);
                parts.clear();
                self.first_parts = parts;
            }
            (Access::Write, Some(controller)) => {
                if controller.waiting.is_empty() && controller.accept_write(&self.layout, at, len) {
                    self.complete_from_cache(now, token);
                } else {
                    controller.waiting.push_back(WaitingWrite { token, at, len });
                }
                self.destage(now);
            }
            (Access::Write, None) => self.start_write(now, GroupOrigin::Client(token), at, len),
        }
    }

    /// Time of the next event.
    pub fn next_event(&self) -> Option<Nanos> {
        if !self.finished.is_empty() {
            return Some(Nanos::ZERO);
        }
        let completion = self.cache_completions.peek().map(|Reverse((time, _, _))| *time);
        self.devices.iter().filter_map(|device| device.next_event()).chain(completion).min()
    }

    /// Processes all events up to `now` and appends the tokens of completed requests.
    pub fn advance(&mut self, now: Nanos, completed: &mut Vec<u64>) {
        self.advance_to(now);
        completed.append(&mut self.finished);
    }

    /// Total busy time of all disks.
    pub fn busy(&self) -> Nanos {
        Nanos(self.devices.iter().map(|device| device.busy().0).sum())
    }

    fn advance_to(&mut self, now: Nanos) {
        loop {
            let next = self.devices.iter().enumerate().filter_map(|(disk, device)| Some((device.next_event()?, disk)));
            let next = next.min();
            let completion = self.cache_completions.peek().map(|Reverse((time, _, _))| *time);
            match (next, completion) {
                (device, Some(time)) if time <= now && device.is_none_or(|(other, _)| time <= other) => {
                    let Reverse((_, _, token)) = self.cache_completions.pop().expect("the peeked entry exists");
                    self.finished.push(token);
                }
                (Some((time, disk)), _) if time <= now => {
                    let group = self.devices[disk].complete();
                    self.complete_part(time, group as usize);
                }
                _ => return,
            }
        }
    }

    fn complete_part(&mut self, now: Nanos, index: usize) {
        let group = &mut self.groups[index];
        group.remaining -= 1;
        if group.remaining > 0 {
            return;
        }
        let (origin, mut next_parts) = (group.origin, std::mem::take(&mut group.next_parts));
        if !next_parts.is_empty() {
            group.remaining = next_parts.len();
            next_parts
                .iter()
                .for_each(|part| self.devices[part.disk].submit(now, index as u64, part.access, part.at, part.len));
            next_parts.clear();
            self.spare.push(next_parts);
            return;
        }
        self.spare.push(next_parts);
        self.free.push(index);
        match origin {
            GroupOrigin::Client(token) => self.finished.push(token),
            GroupOrigin::Destage(len) => {
                let controller = self.controller.as_mut().expect("only a controller destages");
                controller.complete_destage(len);
                let mut admitted = Vec::new();
                while let Some(WaitingWrite { token, at, len }) = controller.waiting.front().copied() {
                    if !controller.accept_write(&self.layout, at, len) {
                        break;
                    }
                    controller.waiting.pop_front();
                    admitted.push(token);
                }
                admitted.into_iter().for_each(|token| self.complete_from_cache(now, token));
                self.destage(now);
            }
        }
    }

    fn complete_from_cache(&mut self, now: Nanos, token: u64) {
        self.sequence += 1;
        self.cache_completions.push(Reverse((now + CACHE_TIME, self.sequence, token)));
    }

    /// Keeps the disks busy with dirty data from the write cache.
    fn destage(&mut self, now: Nanos) {
        let destaging_max = 4 * self.spec.disks;
        loop {
            let idle = self.devices.iter().all(|device| device.outstanding() == 0);
            let Some(controller) = &mut self.controller else { return };
            if controller.destaging >= destaging_max {
                return;
            }
            let Some((at, len)) = controller.take_next_destage(idle) else { return };
            self.start_write(now, GroupOrigin::Destage(len), at, len);
        }
    }

    fn start_write(&mut self, now: Nanos, origin: GroupOrigin, at: u64, len: u64) {
        let (mut first_parts, mut second_parts) =
            (std::mem::take(&mut self.first_parts), std::mem::take(&mut self.second_parts));
        self.layout.write(at, len, &mut first_parts, &mut second_parts);
        if first_parts.is_empty() {
            std::mem::swap(&mut first_parts, &mut second_parts);
        }
        let mut next_parts = self.spare.pop().unwrap_or_default();
        next_parts.extend_from_slice(&second_parts);
        self.start(now, origin, &first_parts, next_parts);
        first_parts.clear();
        second_parts.clear();
        (self.first_parts, self.second_parts) = (first_parts, second_parts);
    }

    fn start(&mut self, now: Nanos, origin: GroupOrigin, parts: &[Part], next_parts: Vec<Part>) {
        let group = PartGroup { origin, remaining: parts.len(), next_parts };
        let index = match self.free.pop() {
            Some(index) => {
                self.groups[index] = group;
                index
            }
            None => {
                self.groups.push(group);
                self.groups.len() - 1
            }
        };
        parts.iter().for_each(|part| self.devices[part.disk].submit(now, index as u64, part.access, part.at, part.len));
    }
}
