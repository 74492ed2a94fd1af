//! Opens a pool: the newest superblock, the newest checkpoint, the journal to its end; then the slots' owners follow
//! from the maps.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use seam::{Disk, Seam};

use crate::buffers::Buffers;
use crate::create::failed;
use crate::device::{read_one, write_durably};
use crate::error::PoolError;
use crate::format::superblock::{
    DEVICE_NAME_BYTES, FEATURE_LISTS, MemberEntry, MemberState, SUPERBLOCK_OFFSETS, Superblock, SuperblockError, cut,
};
use crate::give_up;
use crate::import;
use crate::journal;
use crate::journal::load::{Loaded, load};
use crate::journal::replay::LoadedVolume;
use crate::lost;
use crate::membership;
use crate::number::{FamilySlice, GroupNo, PoolGeneration, SliceAddress, SliceNo};
use crate::sabotage::Sabotage;
use crate::slots::{ClaimError, SlotClaims};
use crate::state::{Group, Inner, State, Volume};
use crate::timeline;
use task_sync::{BoxFuture, TaskMutex, join};

/// Attempts to flush a group at the opening: a connection may be lost once.
const FLUSH_ATTEMPTS: u32 = 3;

/// Options of the opening.
#[derive(Clone, Copy, Debug, Default)]
pub struct OpenOptions {
    /// Open without a missing metadata copy although the present groups are no majority.
    pub accept_missing: bool,
    /// A rule to violate on purpose.
    #[doc(hidden)]
    pub sabotage: Sabotage,
}

/// The groups of a pool that are present.
pub(crate) struct Present<D> {
    /// The newest superblock.
    pub superblock: Superblock,
    /// The highest generation of all superblocks.
    generation: PoolGeneration,
    /// The highest revision of all superblocks.
    pub revision: u64,
    /// The disk of each member, if it is present.
    pub disks: Vec<Option<D>>,
    /// The place of each member's newest superblock, if it is present.
    places: Vec<usize>,
    /// The generation of each member's newest superblock; 0 if it is missing.
    generations: Vec<PoolGeneration>,
    /// The timeline of each member that is present.
    timelines: Vec<Option<u64>>,
    /// A present group has an older generation or timeline.
    pub has_older: bool,
    /// Disks without a superblock.
    pub without_superblock: Vec<D>,
    /// Disks that are no group of the pool, with the reasons.
    pub unusable: Vec<String>,
}

/// Reads the superblocks of disks, and checks that they are groups of one pool.
pub(crate) async fn find_groups<S: Seam, D: Disk<S>>(
    buffers: &Buffers<S>,
    disks: &[D],
) -> Result<Present<D>, PoolError> {
    let mut found: Vec<(Superblock, usize, &D)> = Vec::new();
    let (mut unusable, mut without_superblock) = (Vec::new(), Vec::new());
    for disk in disks {
        match read_superblock(buffers, disk).await {
            Ok((superblock, place)) => found.push((superblock, place, disk)),
            // A blank or failed disk in the place of a group: the group is missing.
            Err(error @ (PoolError::NoPool { .. } | PoolError::Disk { .. })) => {
                if matches!(error, PoolError::NoPool { .. }) {
                    without_superblock.push(disk.clone());
                }
                unusable.push(error);
            }
            Err(error) => return Err(error),
        }
    }
    let Some((first, _, _)) = found.iter().max_by_key(|(found, _, _)| (found.generation, found.revision)) else {
        let none = || PoolError::Refused("no disk of the pool was given".to_owned());
        return Err(unusable.pop().unwrap_or_else(none));
    };
    if let Some((_, _, disk)) = found.iter().find(|(superblock, _, _)| superblock.pool != first.pool) {
        return Err(PoolError::OtherPool { device: disk.identity() });
    }
    let superblocks: Vec<_> = found.iter().map(|(superblock, _, _)| superblock).collect();
    let newest = timeline::find_newest(&superblocks).map_err(|sides| {
        let names = |branch: Vec<usize>| branch.into_iter().map(|index| found[index].2.identity()).collect();
        PoolError::Diverged { sides: sides.into_iter().map(names).collect() }
    })?;
    let newest = found[newest].0.clone();
    let mut present: Vec<Option<D>> = newest.members.iter().map(|_| None).collect();
    let mut places = vec![0; newest.members.len()];
    let mut generations = vec![PoolGeneration(0); newest.members.len()];
    let mut timelines = vec![None; newest.members.len()];
    let mut has_older = false;
    for (superblock, newest_place, disk) in &found {
        let uuid = superblock.members[superblock.group.index()].uuid;
        let entry = newest.members.get(superblock.group.index()).filter(|member| member.uuid == uuid);
        let Some(entry) = entry else {
            if superblock.generation > PoolGeneration(0) {
                return Err(PoolError::OtherPool { device: disk.identity() });
            }
            let reason = "its addition to the pool was interrupted; add it again".to_owned();
            unusable.push(PoolError::NoPool { device: disk.identity(), reason });
            continue;
        };
        if !entry.state.is_member() && entry.state != MemberState::Marking {
            let event = if entry.state == MemberState::Lost { "given up by" } else { "removed from" };
            let reason = format!("group {} was {event} its pool", superblock.group);
            unusable.push(PoolError::NoPool { device: disk.identity(), reason });
            continue;
        }
        check_device(*disk, &newest, entry)?;
        let place = &mut present[superblock.group.index()];
        if place.is_some() {
            return Err(PoolError::Duplicate { device: disk.identity(), group: superblock.group });
        }
        *place = Some((*disk).clone());
        places[superblock.group.index()] = *newest_place;
        timelines[superblock.group.index()] = Some(superblock.timeline);
        if superblock.timeline == newest.timeline {
            generations[superblock.group.index()] = superblock.generation;
        }
        has_older |= generations[superblock.group.index()] < newest.generation;
    }
    let revision = found.iter().map(|(superblock, _, _)| superblock.revision).max().expect("a superblock was found");
    let generation =
        found.iter().map(|(superblock, _, _)| superblock.generation).max().expect("a superblock was found");
    let unusable = unusable.into_iter().map(|error| error.to_string()).collect();
    Ok(Present {
        superblock: newest,
        generation,
        revision,
        disks: present,
        places,
        generations,
        timelines,
        has_older,
        without_superblock,
        unusable,
    })
}

/// Refuses a device that is not what its group was made on: one that has lost its end, or has larger blocks than the
/// volumes, as after a copy to another device.
fn check_device<S: Seam, D: Disk<S>>(disk: &D, superblock: &Superblock, member: &MemberEntry) -> Result<(), PoolError> {
    let geometry = disk.geometry();
    let min_bytes = member.data_at + u64::from(member.slots) * superblock.slice_bytes;
    if geometry.size_bytes < min_bytes {
        return Err(PoolError::TooSmall { device: disk.identity(), size_bytes: geometry.size_bytes, min_bytes });
    }
    if geometry.logical_block > superblock.logical_block {
        let (device, found, wanted) = (disk.identity(), geometry.logical_block, superblock.logical_block);
        let text = format!(
            "{device} has logical blocks of {found} bytes, but the pool's volumes have {wanted}: attach the original \
             device, or one with blocks of at most {wanted} bytes"
        );
        return Err(PoolError::Refused(text));
    }
    Ok(())
}

/// The newer valid superblock of a disk, and its place.
async fn read_superblock<S: Seam, D: Disk<S>>(
    buffers: &Buffers<S>,
    disk: &D,
) -> Result<(Superblock, usize), PoolError> {
    let (mut newest, mut reason, mut error) = (None::<(Superblock, usize)>, "no superblock".to_owned(), None);
    for (place, at) in SUPERBLOCK_OFFSETS.into_iter().enumerate() {
        match read_one(buffers, disk, at).await {
            Err(read_error) => error = Some(read_error),
            Ok(raw) => match Superblock::decode(&raw) {
                Ok(superblock) if newest.as_ref().is_none_or(|(newest, _)| newest.revision < superblock.revision) => {
                    newest = Some((superblock, place));
                }
                Ok(_) | Err(SuperblockError::NotASuperblock) => {}
                Err(SuperblockError::Invalid(text)) => reason = text,
                Err(SuperblockError::Newer(newer)) => {
                    return Err(PoolError::Newer { device: disk.identity(), newer });
                }
            },
        }
    }
    match (newest, error) {
        (Some(newest), _) => Ok(newest),
        (None, Some(error)) => Err(failed(disk, error)),
        (None, None) => Err(PoolError::NoPool { device: disk.identity(), reason }),
    }
}

/// The present metadata copies. Refuses a pool without one, and one that may have a newer state elsewhere.
pub(crate) fn present_copies<D: Clone>(
    present: &Present<D>,
    accepts_missing: bool,
) -> Result<Vec<(GroupNo, D)>, PoolError> {
    let carriers = present.superblock.metadata_groups();
    let missing: Vec<_> = carriers
        .iter()
        .filter(|group| present.disks[group.index()].is_none())
        .map(|group| format!("group {group} ({})", present.superblock.members[group.index()].name))
        .collect();
    let missing_names = missing.join(", ");
    let copies: Vec<_> =
        carriers.iter().filter_map(|group| Some((*group, present.disks[group.index()].clone()?))).collect();
    if copies.is_empty() {
        return Err(PoolError::NoMetadata { missing: missing_names });
    }
    let is_majority = is_majority(present);
    if !missing.is_empty() && !is_majority && !accepts_missing {
        return Err(PoolError::NoMajority { missing: missing_names });
    }
    Ok(copies)
}

/// True if more than half of the members are present.
fn is_majority<D>(present: &Present<D>) -> bool {
    let members = present.superblock.members.iter().zip(&present.disks);
    let found = members.filter(|(member, disk)| member.state.is_member() && disk.is_some()).count();
    2 * found > present.superblock.member_count()
}

/// Opens a pool on the present ones of its disks, in any order.
pub(crate) async fn open<S: Seam, D: Disk<S>>(
    seam: &S,
    disks: &[D],
    options: OpenOptions,
) -> Result<Rc<Inner<S, D>>, PoolError> {
    let buffers = Buffers::new(seam);
    let mut present = find_groups(&buffers, disks).await?;
    flush_groups(&mut present).await;
    let copies = present_copies(&present, options.accept_missing)?;
    let loaded = load(seam, &buffers, &present.superblock, &copies).await?;
    let has_majority = is_majority(&present);
    let Present {
        mut superblock,
        generation,
        revision,
        disks,
        places,
        generations,
        timelines,
        has_older,
        without_superblock,
        unusable,
    } = present;
    superblock.revision = revision;
    let held: Vec<_> = timelines.into_iter().zip(&disks).map(|(held, disk)| held.filter(|_| disk.is_some())).collect();
    let group_of = |(disk, member): (Option<D>, &MemberEntry)| match member.state {
        MemberState::Removed => Group::new(disk, 0),
        _ => Group::new(disk, member.slots),
    };
    let groups = disks.into_iter().zip(&superblock.members).map(group_of);
    let mut state = State::new(superblock.clone(), groups.collect(), options.sabotage);
    state.notices.extend(unusable);
    for (number, group) in (0..).map(GroupNo).zip(&mut state.groups) {
        (group.next_place, group.durable_generation) = (1 - places[number.index()], generations[number.index()]);
        if group.disk.is_none() && !has_majority && !superblock.members[number.index()].state.is_import() {
            state.given_up.insert(number);
        }
    }
    timeline::begin_opening(&mut state.superblock, &held, has_majority, || seam.random());
    write_missing(&buffers, &copies, &loaded, &mut state).await?;
    state.demand_since = seam.now();
    state.journal.boot = seam.random();
    let needs_checkpoint = !loaded.damaged.is_empty();
    adopt(&mut state, loaded)?;
    give_up::remove_unused(&mut state);
    adapt_members(&mut state);
    // Before the first checkpoint of this opening.
    state.superblock.features |= FEATURE_LISTS;
    let (now, before) = (&state.superblock, &superblock);
    let is_changed = (now.features, now.timeline, &now.former, &now.members)
        != (before.features, before.timeline, &before.former, &before.members);
    if has_older || is_changed {
        state.superblock.generation = generation.max(state.superblock.generation).next();
    }
    let inner = Inner {
        seam: seam.clone(),
        state: RefCell::new(state),
        buffers,
        commit_lock: TaskMutex::default(),
        superblock_lock: TaskMutex::default(),
        copies_lock: TaskMutex::default(),
        membership_lock: TaskMutex::default(),
        volumes_lock: TaskMutex::default(),
    };
    let inner = Rc::new(inner);
    membership::persist(&inner).await?;
    import::recover(&inner, &without_superblock).await?;
    journal::repair_in_background(&inner, needs_checkpoint);
    Ok(inner)
}

/// Flushes all groups. After a kill of the process the newest journal blocks may lie in a disk's volatile cache, and
/// what follows from them must not become durable before they do. A group that cannot be flushed counts as missing. So
/// does one whose flush fails without a reconnect: the device reports a loss once, and its next flush succeeds.
async fn flush_groups<S: Seam, D: Disk<S>>(present: &mut Present<D>) {
    let flushes = present.disks.iter().map(|disk| {
        let disk = disk.clone();
        let flush: BoxFuture<'_, bool> = Box::pin(async move {
            let Some(disk) = disk else { return false };
            for _ in 0..FLUSH_ATTEMPTS {
                let connection_epoch = disk.connection_epoch();
                if disk.flush().await.is_ok() {
                    return true;
                }
                if disk.connection_epoch() == connection_epoch {
                    return false;
                }
            }
            false
        });
        flush
    });
    let flushed = join(flushes.collect()).await;
    for (disk, is_flushed) in present.disks.iter_mut().zip(flushed) {
        disk.take_if(|_| !is_flushed);
    }
}

/// Writes the journal's blocks that a copy lacks: what a client sees from now on must be in every copy. A copy that
/// fails is taken out of service.
async fn write_missing<S: Seam, D: Disk<S>>(
    buffers: &Buffers<S>,
    copies: &[(GroupNo, D)],
    loaded: &Loaded,
    state: &mut State<S, D>,
) -> Result<(), PoolError> {
    let mut damaged: BTreeMap<GroupNo, String> = loaded.damaged.iter().cloned().collect();
    for (group, disk) in copies {
        let mut runs = Vec::new();
        for block in loaded.missing.iter().filter(|block| block.group == *group) {
            runs.push((block.at, vec![buffers.metadata(&block.raw).await]));
        }
        if !runs.is_empty()
            && !damaged.contains_key(group)
            && let Err(error) = write_durably::<S, D>(disk, &runs).await
        {
            damaged.insert(*group, error.to_string());
        }
    }
    // A checkpoint that could be read from the copies together is better than none.
    if damaged.len() < copies.len() {
        for (group, reason) in damaged {
            let name = state.group_name(group);
            state.notices.push(format!("the metadata copy on group {group} ({name}) is damaged: {reason}"));
            state.superblock.members[group.index()].carries_metadata = false;
        }
    }
    Ok(())
}

/// Takes missing groups out of the metadata copies, and notes the devices' present names.
fn adapt_members<S: Seam, D: Disk<S>>(state: &mut State<S, D>) {
    for index in 0..state.groups.len() {
        let group = GroupNo(index as u16);
        let name = state.group_name(group);
        let member = state.superblock.members[index].state;
        if state.groups[index].disk.is_none() && member != MemberState::Removed && !member.is_import() {
            let ranges = lost::describe(state, group);
            let event = if member == MemberState::Lost { "was given up" } else { "is missing" };
            state.notices.push(format!("group {group} ({name}) {event}; {ranges}"));
            state.superblock.members[index].carries_metadata = false;
        }
        state.superblock.members[index].name = cut(&name, DEVICE_NAME_BYTES);
    }
}

/// Takes over the loaded maps, and derives the slots' owners from them.
fn adopt<S: Seam, D: Disk<S>>(state: &mut State<S, D>, loaded: Loaded) -> Result<(), PoolError> {
    let journal = &mut state.journal;
    (journal.next, journal.previous) = (loaded.next, loaded.previous);
    (journal.settled, journal.settled_previous) = (loaded.next, loaded.previous);
    (journal.replay_from, journal.checkpoint) = (loaded.replay_from, loaded.checkpoint);
    state.next_volume = loaded.volumes.next_volume;
    state.journal.checkpoint_records = loaded.checkpoint_records;
    state.journal.journal_records = loaded.volumes.map_records - loaded.checkpoint_records;
    let mut claims: Vec<_> = state.groups.iter().map(|group| SlotClaims::new(group.slots.count())).collect();
    for (id, LoadedVolume { spec, lineage, map }) in loaded.volumes.volumes {
        // Internal iteration: the nested iterators become nested loops.
        let claimed = map.allocated_from(SliceNo(0)).try_for_each(|(slice, slot)| {
            let claims = claims.get_mut(slot.group.index()).ok_or(ClaimError::NoSlot);
            let claimed =
                claims.and_then(|claims| claims.claim(slot.slot, FamilySlice { family: lineage.family, slice }));
            claimed.map_err(|error| (slice, slot, error))
        });
        claimed.map_err(|(slice, slot, error)| {
            let address = SliceAddress { volume: id, slice };
            PoolError::Damaged(match error {
                ClaimError::NoSlot => format!("{address} lies in {slot}, which does not exist"),
                ClaimError::Used(other) => format!("{slot} is used twice: by {address} and {other:?}"),
            })
        })?;
        state.insert_volume(id, Volume { map, ..Volume::new(spec, lineage) });
    }
    for (group, claims) in state.groups.iter_mut().zip(claims) {
        group.slots = claims.finish();
    }
    Ok(())
}
