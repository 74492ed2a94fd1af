//! Ranges of volumes whose slices lie on groups that are missing or gone.

use std::rc::Rc;

use seam::{Disk, Seam};

use crate::number::{GroupNo, SliceNo, VolumeId};
use crate::state::{Inner, State};

/// Slices that a step of the pass reads; other tasks of the core run between two steps.
const SCAN_STEP: usize = 4_096;
/// Volumes that a notice names, and ranges of each.
const NOTICE_VOLUMES: usize = 8;
const NOTICE_RANGES: usize = 3;

/// A range of a volume on a group that is missing or gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LostRange {
    /// The volume.
    pub volume: VolumeId,
    /// First byte.
    pub at: u64,
    /// Length in bytes.
    pub len: u64,
    /// The group.
    pub group: GroupNo,
}

/// The lost ranges of a volume.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LostVolume {
    /// Its name.
    pub name: String,
    /// Bytes on groups that are missing or gone.
    pub bytes: u64,
    /// Ranges without a gap or a change of the group.
    pub ranges: u64,
    /// The first of them.
    pub first: Vec<LostRange>,
}

/// The lost ranges of a volume, collected in the order of its slices.
struct Collector {
    found: LostVolume,
    last: Option<LostRange>,
    max: usize,
}

impl Collector {
    fn new(name: String, max: usize) -> Collector {
        Collector { found: LostVolume { name, ..LostVolume::default() }, last: None, max }
    }

    fn add(&mut self, range: LostRange) {
        self.found.bytes += range.len;
        match &mut self.last {
            Some(last) if last.group == range.group && last.at + last.len == range.at => last.len += range.len,
            _ => {
                self.end_range();
                self.last = Some(range);
            }
        }
    }

    fn end_range(&mut self) {
        if let Some(range) = self.last.take() {
            self.found.ranges += 1;
            if self.found.first.len() < self.max {
                self.found.first.push(range);
            }
        }
    }

    fn finish(mut self) -> LostVolume {
        self.end_range();
        self.found
    }
}

/// Volumes with lost ranges, by number; of all volumes together the first `max` ranges are listed.
pub(crate) async fn lost<S: Seam, D: Disk<S>>(inner: &Rc<Inner<S, D>>, max: usize) -> Vec<LostVolume> {
    let volumes: Vec<VolumeId> = inner.state.borrow().volumes.keys().copied().collect();
    let (mut lost, mut left) = (Vec::new(), max);
    for id in volumes {
        let name = inner.state.borrow().volumes.get(&id).map(|volume| volume.spec.name.clone());
        let Some(name) = name else { continue };
        let (mut collector, mut from) = (Collector::new(name, left), Some(SliceNo(0)));
        while let Some(first) = from {
            from = scan(&inner.state.borrow(), (id, first, SCAN_STEP), |_| true, &mut collector);
            inner.seam.yield_now().await;
        }
        let found = collector.finish();
        left -= found.first.len();
        lost.extend((found.bytes > 0).then_some(found));
    }
    lost
}

/// Adds the lost ranges among `count` allocated slices of a volume from a slice on, on groups of interest. Returns the
/// slice after them, if there may be more.
fn scan<S: Seam, D: Disk<S>>(
    state: &State<S, D>,
    (id, from, count): (VolumeId, SliceNo, usize),
    is_wanted: impl Fn(GroupNo) -> bool,
    collector: &mut Collector,
) -> Option<SliceNo> {
    let volume = state.volumes.get(&id)?;
    let (slice_bytes, mut read) = (state.slice_bytes(), 0);
    for (slice, slot) in volume.map.allocated_from(from) {
        if read == count {
            return Some(slice);
        }
        read += 1;
        let at = u64::from(slice.0) * slice_bytes;
        if state.is_absent(slot.group) && is_wanted(slot.group) && at < volume.spec.size_bytes {
            let len = slice_bytes.min(volume.spec.size_bytes - at);
            collector.add(LostRange { volume: id, at, len, group: slot.group });
        }
    }
    None
}

/// The slices of an absent group as a sentence for people: volumes, bytes, and the first ranges of each.
pub(crate) fn describe<S: Seam, D: Disk<S>>(state: &State<S, D>, group: GroupNo) -> String {
    let mut texts = Vec::new();
    for (id, volume) in &state.volumes {
        let mut collector = Collector::new(volume.spec.name.clone(), NOTICE_RANGES);
        scan(state, (*id, SliceNo(0), usize::MAX), |wanted| wanted == group, &mut collector);
        let LostVolume { name, bytes, ranges, first } = collector.finish();
        if bytes > 0 {
            let listed: Vec<_> = first.iter().map(|range| format!("{}+{}", range.at, range.len)).collect();
            let more = if ranges as usize > first.len() { ", ..." } else { "" };
            texts.push(format!("{bytes} bytes of volume {name} in {ranges} ranges ({}{more})", listed.join(", ")));
        }
    }
    if texts.is_empty() {
        return "no slice of a volume lies on it".to_owned();
    }
    let more = match texts.len().saturating_sub(NOTICE_VOLUMES) {
        0 => String::new(),
        more => format!(" and of {more} more volumes"),
    };
    texts.truncate(NOTICE_VOLUMES);
    format!("requests to these ranges fail: {}{more}", texts.join("; "))
}
