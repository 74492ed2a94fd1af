//! The check of a pool's metadata, offline from the disks or of an open pool.

use std::collections::BTreeMap;
use std::fmt;

use seam::{Disk, Seam};

use crate::buffers::Buffers;
use crate::error::PoolError;
use crate::format::record::Lineage;
use crate::format::superblock::{MemberState, Superblock};
use crate::journal::load::load;
use crate::journal::replay::LoadedVolume;
use crate::map::VolumeMap;
use crate::number::{GroupNo, SliceAddress, SliceNo, SlotAddress, SlotNo, VolumeId};
use crate::open::{find_groups, present_copies};
use crate::policy::VolumeSpec;
use crate::slots::SlotUse;
use crate::state::State;

/// A contradiction in a pool's metadata.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Finding {
    /// Two slices lie in one slot, and are not the same slice of one family.
    Doubled {
        /// The slot.
        slot: SlotAddress,
        /// The slice that was found first.
        first: SliceAddress,
        /// The other slice.
        second: SliceAddress,
    },
    /// A slice lies in a slot past its group's end.
    OutOfRange {
        /// The slice.
        slice: SliceAddress,
        /// The slot.
        slot: SlotAddress,
    },
    /// A slice lies on a group that the pool does not have.
    Foreign {
        /// The slice.
        slice: SliceAddress,
        /// The slot.
        slot: SlotAddress,
    },
    /// A slot is not free, and no slice within a volume's size lies in it.
    Leaked {
        /// The slot.
        slot: SlotAddress,
    },
    /// A slot counts as one slice's own, and others share it: a write would change them.
    FalselyPrivate {
        /// The slot.
        slot: SlotAddress,
        /// The slice that would be written in place.
        slice: SliceAddress,
    },
    /// A snapshot has no volume.
    Orphan {
        /// The snapshot.
        snapshot: VolumeId,
        /// Its volume.
        volume: VolumeId,
    },
    /// A metadata copy is damaged or missing; another one serves.
    Copy {
        /// Its group.
        group: GroupNo,
        /// The reason.
        reason: String,
    },
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Finding::Doubled { slot, first, second } => write!(f, "{slot} holds both {first} and {second}"),
            Finding::OutOfRange { slice, slot } => write!(f, "{slice} lies in {slot}, past the group's end"),
            Finding::Foreign { slice, slot } => {
                write!(f, "{slice} lies in {slot}, of a group that the pool does not have")
            }
            Finding::Leaked { slot } => write!(f, "{slot} is not free and holds no slice"),
            Finding::FalselyPrivate { slot, slice } => {
                write!(f, "{slot} of {slice} counts as not shared, and other slices share it")
            }
            Finding::Orphan { snapshot, volume } => {
                write!(f, "snapshot {snapshot} belongs to volume {volume}, which does not exist")
            }
            Finding::Copy { group, reason } => write!(f, "the copy of the metadata on group {group}: {reason}"),
        }
    }
}

/// Result of a check.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CheckReport {
    /// Volumes.
    pub volumes: usize,
    /// Snapshots.
    pub snapshots: usize,
    /// Allocated slices.
    pub slices: u64,
    /// Slots that several volumes and snapshots share.
    pub shared_slots: u64,
    /// Contradictions; none in a sound pool.
    pub findings: Vec<Finding>,
}

/// The slices found so far, by slot.
struct Checker<'a> {
    superblock: &'a Superblock,
    /// The slice found first in each slot, its family, and the number of references.
    owners: BTreeMap<SlotAddress, (SliceAddress, VolumeId, u32)>,
    report: CheckReport,
}

impl Checker<'_> {
    fn add_volume(&mut self, volume: VolumeId, spec: &VolumeSpec, lineage: Lineage, map: &VolumeMap) {
        *(if lineage.snapshot.is_some() { &mut self.report.snapshots } else { &mut self.report.volumes }) += 1;
        for (slice, slot) in map.allocated_from(SliceNo(0)) {
            self.add(SliceAddress { volume, slice }, lineage.family, slot, spec.size_bytes);
        }
    }

    fn add(&mut self, slice: SliceAddress, family: VolumeId, slot: SlotAddress, size_bytes: u64) {
        self.report.slices += 1;
        let member = self.superblock.members.get(slot.group.index());
        let Some(member) = member.filter(|member| member.state != MemberState::Removed) else {
            self.report.findings.push(Finding::Foreign { slice, slot });
            return;
        };
        if slot.slot.0 >= member.slots {
            self.report.findings.push(Finding::OutOfRange { slice, slot });
        }
        if u64::from(slice.slice.0) * self.superblock.slice_bytes >= size_bytes {
            self.report.findings.push(Finding::Leaked { slot });
        }
        let (first, first_family, references) = self.owners.entry(slot).or_insert((slice, family, 0));
        *references += 1;
        if (*first_family, first.slice) != (family, slice.slice) {
            let first = *first;
            self.report.findings.push(Finding::Doubled { slot, first, second: slice });
        } else if *references == 2 {
            self.report.shared_slots += 1;
        }
    }
}

/// Checks a pool that is not open; nothing is written.
pub(crate) async fn check<S: Seam, D: Disk<S>>(seam: &S, disks: &[D]) -> Result<CheckReport, PoolError> {
    let buffers = Buffers::new(seam);
    let present = find_groups(&buffers, disks).await?;
    let copies = present_copies(&present, true)?;
    let loaded = load(seam, &buffers, &present.superblock, &copies).await?;
    let mut checker =
        Checker { superblock: &present.superblock, owners: BTreeMap::new(), report: CheckReport::default() };
    for (group, reason) in &loaded.damaged {
        checker.report.findings.push(Finding::Copy { group: *group, reason: reason.clone() });
    }
    for group in present.superblock.metadata_groups() {
        if !copies.iter().any(|(copy, _)| *copy == group) {
            checker.report.findings.push(Finding::Copy { group, reason: "the group is missing".to_owned() });
        }
    }
    for (volume, LoadedVolume { spec, lineage, map }) in &loaded.volumes.volumes {
        checker.add_volume(*volume, spec, *lineage, map);
        if let Some(of) = lineage.snapshot
            && !loaded.volumes.volumes.contains_key(&of.volume)
        {
            checker.report.findings.push(Finding::Orphan { snapshot: *volume, volume: of.volume });
        }
    }
    Ok(checker.report)
}

/// Checks the maps and slots of an open pool. Slots in use by a request in flight or an unfinished commit count as
/// leaked: the pool has to be idle.
pub(crate) fn check_open<S: Seam, D: Disk<S>>(state: &State<S, D>) -> CheckReport {
    let mut checker =
        Checker { superblock: &state.superblock, owners: BTreeMap::new(), report: CheckReport::default() };
    for (id, volume) in &state.volumes {
        checker.add_volume(*id, &volume.spec, volume.lineage, &volume.map);
    }
    for (id, volume) in &state.volumes {
        for (slice, slot) in volume.map.allocated_from(SliceNo(0)).filter(|(slice, _)| volume.private.get(*slice)) {
            if checker.owners[&slot].2 > 1 {
                let slice = SliceAddress { volume: *id, slice };
                checker.report.findings.push(Finding::FalselyPrivate { slot, slice });
            }
        }
    }
    let Checker { owners, mut report, .. } = checker;
    for (index, group) in state.groups.iter().enumerate() {
        for slot in (0..group.slots.count()).map(SlotNo) {
            let address = SlotAddress { group: GroupNo(index as u16), slot };
            let owner = owners.get(&address);
            let is_sound = match group.slots.slot_use(slot) {
                SlotUse::Free | SlotUse::Quarantined => owner.is_none(),
                SlotUse::Slice(slice) => {
                    owner.is_some_and(|(first, family, _)| (*family, first.slice) == (slice.family, slice.slice))
                }
                SlotUse::Filling | SlotUse::Released => false,
            };
            if !is_sound {
                report.findings.push(Finding::Leaked { slot: address });
            }
        }
    }
    report
}
