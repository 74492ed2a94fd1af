//! Timelines: proof that two groups have not been continued without each other.
//!
//! A pool gets a new random timeline whenever it opens without a group that the present timeline has had. The
//! superblocks name the former timelines that a group may still hold, each with the last generation of it that the
//! present one follows from. A group belongs to a pool if it holds the present timeline, or a former one up to that
//! generation. Groups of which neither follows from the other have been continued separately: they are refused
//! together, whatever their generations, because each may have used slots that the other one holds data in.
//!
//! An opening with a majority follows from every generation of the former timeline: without a majority none became
//! durable that it does not know. An opening that accepts missing groups follows only from those up to its own.

use crate::format::superblock::{FORMER_TIMELINES_MAX, FormerTimeline, MemberEntry, Superblock};
use crate::number::{GroupNo, PoolGeneration};

/// The newest of the superblocks of different groups, from which the state of the pool follows. The error has the
/// groups that belong together, as indexes: they were continued separately.
pub(crate) fn find_newest(superblocks: &[&Superblock]) -> Result<usize, Vec<Vec<usize>>> {
    let age = |superblock: &&Superblock| (superblock.generation, superblock.revision);
    let is_newest =
        |head: &&Superblock| superblocks.iter().all(|other| other.timeline != head.timeline || age(other) <= age(head));
    let follows = |head: &&Superblock| superblocks.iter().all(|other| can_open_with(head, other, superblocks));
    let mut heads: Vec<&Superblock> = superblocks.iter().copied().filter(is_newest).filter(follows).collect();
    // A head that another one follows from is older, also if it has removed the other's group since.
    let all = heads.clone();
    heads.retain(|head| !all.iter().any(|later| later.timeline != head.timeline && follows_from(later, head)));
    let newest = heads.iter().max_by_key(|head| age(head));
    match newest {
        Some(newest) if heads.iter().all(|head| head.timeline == newest.timeline) => {
            let index = superblocks.iter().position(|superblock| std::ptr::eq(*superblock, *newest));
            Ok(index.expect("the newest is one of the superblocks"))
        }
        _ => Err(sides(superblocks)),
    }
}

/// The superblocks of each timeline that no other one follows from, with those that it follows from.
fn sides(superblocks: &[&Superblock]) -> Vec<Vec<usize>> {
    let mut last: Vec<&Superblock> = Vec::new();
    for superblock in superblocks {
        let is_former =
            superblocks.iter().any(|other| other.timeline != superblock.timeline && follows_from(other, superblock));
        if !is_former && !last.iter().any(|other| other.timeline == superblock.timeline) {
            last.push(superblock);
        }
    }
    let of_side = |head: &&Superblock| {
        let members = superblocks.iter().enumerate().filter(|(_, other)| {
            let others = superblocks.iter().filter(|member| member.timeline == head.timeline);
            other.timeline == head.timeline || others.into_iter().any(|member| follows_from(member, other))
        });
        members.map(|(index, _)| index).collect()
    };
    last.iter().map(of_side).collect()
}

/// True if the state of `head` follows from that of `other`.
fn follows_from(head: &Superblock, other: &Superblock) -> bool {
    let is_known = |former: &FormerTimeline| other.generation <= former.last;
    head.timeline == other.timeline || held_former(head, other).is_some_and(is_known)
}

/// The former timeline of `head` on which `other` is, if its group may still be there: by the notes of `head`, or by an
/// opening that ended before enough groups knew of it. Such an opening can have reached a group that has been absent
/// ever since an older timeline.
fn held_former<'a>(head: &'a Superblock, other: &Superblock) -> Option<&'a FormerTimeline> {
    let entry = head.former.iter().position(|former| former.timeline == other.timeline)?;
    let uuid = other.members[other.group.index()].uuid;
    let member = head.members.get(other.group.index()).filter(|member| member.uuid == uuid);
    let may_hold = |member: &MemberEntry| {
        let is_noted = member.may_hold & 1 << entry != 0;
        is_noted || member.missed_timeline && u32::from(member.may_hold) < 1 << entry
    };
    member.is_none_or(may_hold).then(|| &head.former[entry])
}

/// True if a group with the superblock `other` may be opened with `head`, or is none of its members.
fn can_open_with(head: &Superblock, other: &Superblock, superblocks: &[&Superblock]) -> bool {
    let uuid = other.members[other.group.index()].uuid;
    match head.members.get(other.group.index()).filter(|member| member.uuid == uuid) {
        // An interrupted addition has made no changes.
        None => other.generation == PoolGeneration(0) || head.timeline == other.timeline,
        Some(member) if member.state.has_left() => true,
        Some(_) if follows_from(head, other) => true,
        Some(_) => held_former(head, other).is_some() && was_never_durable(head, other, superblocks),
    }
}

/// True if nothing relies on the state of `other`: a durable state is on each group that it names for the metadata, and
/// one of them came to the timeline of `head` without it.
fn was_never_durable(head: &Superblock, other: &Superblock, superblocks: &[&Superblock]) -> bool {
    let lacks_it = |group: &GroupNo| {
        let uuid = other.members[group.index()].uuid;
        let came_to_head = |present: &&Superblock| {
            present.group == *group && present.timeline == head.timeline && present.members[group.index()].uuid == uuid
        };
        *group != other.group && superblocks.iter().any(came_to_head)
    };
    other.metadata_groups().iter().any(lacks_it)
}

/// Notes the timelines that the present groups hold, by the number of the member, and begins a new one if a group is
/// absent that the present one has had.
pub(crate) fn begin_opening(
    superblock: &mut Superblock,
    held: &[Option<u64>],
    has_majority: bool,
    mut random: impl FnMut() -> u64,
) {
    let (present, former) = (superblock.timeline, superblock.former.clone());
    let members = superblock.members.iter_mut().zip(held);
    for (member, held) in members.filter_map(|(member, held)| Some((member, (*held)?))) {
        let entry = former.iter().position(|former| former.timeline == held).filter(|_| held != present);
        (member.missed_timeline, member.may_hold) = (false, entry.map_or(0, |entry| 1 << entry));
    }
    drop_unheld_timelines(superblock);
    let has_left = |(member, held): (&MemberEntry, &Option<u64>)| {
        member.state.is_member() && held.is_none() && !member.missed_timeline
    };
    if !superblock.members.iter().zip(held).any(has_left) {
        return;
    }
    if superblock.former.len() == FORMER_TIMELINES_MAX {
        // The groups that hold it are refused from now on.
        forget(superblock, 0);
    }
    let last = if has_majority { PoolGeneration(u64::MAX) } else { superblock.generation };
    let bit = 1 << superblock.former.len();
    superblock.former.push(FormerTimeline { timeline: present, last });
    let members = superblock.members.iter_mut().zip(held);
    for (member, held) in members.filter(|(member, _)| !member.state.has_left()) {
        if !member.missed_timeline && held.is_none_or(|held| held == present) {
            member.may_hold |= bit;
        }
        member.missed_timeline = held.is_none();
    }
    superblock.timeline = random().max(1);
}

/// Removes the former timelines that no group can hold any more.
fn drop_unheld_timelines(superblock: &mut Superblock) {
    for member in &mut superblock.members {
        if member.state.has_left() {
            member.may_hold = 0;
        }
    }
    for entry in (0..superblock.former.len()).rev() {
        let bit = 1_u8 << entry;
        if superblock.members.iter().all(|member| member.may_hold & bit == 0) {
            forget(superblock, entry);
        }
    }
}

/// Removes a former timeline.
fn forget(superblock: &mut Superblock, entry: usize) {
    superblock.former.remove(entry);
    let below = (1_u8 << entry) - 1;
    for member in &mut superblock.members {
        member.may_hold = member.may_hold & below | (member.may_hold >> 1) & !below;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::layout::area_blocks_for;
    use crate::format::superblock::MemberState;
    use crate::number::TierNo;

    const PRESENT: Option<u64> = Some(0);

    fn pool(groups: u8) -> Superblock {
        let member = |number: u8| MemberEntry {
            uuid: [number; 16],
            slots: 10,
            tier: TierNo(0),
            state: MemberState::InService,
            carries_metadata: number < 2,
            has_area: true,
            data_at: 1 << 20,
            name: format!("disk-{number}"),
            missed_timeline: false,
            may_hold: 0,
        };
        Superblock {
            features: 0,
            pool: [9; 16],
            revision: 7,
            generation: PoolGeneration(3),
            group: GroupNo(0),
            slice_bytes: 4 << 20,
            journal_blocks: 64,
            area_blocks: area_blocks_for(1000),
            slots_max: 1000,
            logical_block: 512,
            tiers: vec!["one".to_owned()],
            import: None,
            timeline: 0,
            former: Vec::new(),
            members: (0..groups).map(member).collect(),
        }
    }

    fn on_group(superblock: &Superblock, group: u16, generation: u64) -> Superblock {
        Superblock { group: GroupNo(group), generation: PoolGeneration(generation), ..superblock.clone() }
    }

    fn opened(superblock: &Superblock, held: &[Option<u64>], has_majority: bool, timeline: u64) -> Superblock {
        let mut next = superblock.clone();
        begin_opening(&mut next, held, has_majority, || timeline);
        Superblock { generation: superblock.generation.next(), ..next }
    }

    #[test]
    fn full_opening_keeps_the_timeline() {
        assert_eq!(opened(&pool(2), &[PRESENT; 2], true, 5).timeline, 0);
    }

    #[test]
    fn majority_follows_from_every_generation_of_its_former_timeline() {
        let (old, absent) = (pool(3), [PRESENT, None, PRESENT]);
        let new = opened(&old, &absent, true, 5);
        // The absent group got a superblock that never reached a majority.
        assert_eq!(find_newest(&[&on_group(&old, 1, 9), &new]), Ok(1));
        let new = opened(&old, &absent, false, 5);
        assert_eq!(find_newest(&[&on_group(&old, 1, 3), &new]), Ok(1));
        let mut other = on_group(&old, 1, 9);
        assert_eq!(find_newest(&[&other, &new]), Ok(1), "group 0 carries the metadata and lacks this state");
        other.members[0].carries_metadata = false;
        assert_eq!(find_newest(&[&other, &new]), Err(vec![vec![0], vec![1]]));
    }

    #[test]
    fn group_that_was_found_on_the_new_timeline_is_refused_on_the_former_one() {
        let old = pool(4);
        let new = opened(&old, &[PRESENT, PRESENT, None, None], false, 5);
        let held = [Some(5), Some(5), Some(5), None];
        let next = opened(&new, &held, true, 6);
        assert_eq!(find_newest(&[&next, &on_group(&old, 3, 3)]), Ok(0), "it was absent all the time");
        assert_eq!(find_newest(&[&next, &on_group(&old, 2, 3)]), Err(vec![vec![0], vec![1]]), "a copy of the device");
    }

    #[test]
    fn absent_group_that_an_interrupted_opening_has_reached_returns() {
        let old = pool(5);
        let second = opened(&old, &[PRESENT, PRESENT, PRESENT, PRESENT, None], true, 5);
        // The opening with group 4 reached only its superblock.
        let reached = on_group(&second, 4, second.generation.0 + 1);
        let third = opened(&second, &[Some(5), Some(5), Some(5), None, None], true, 6);
        assert_eq!(find_newest(&[&third, &reached]), Ok(0));
        // It was on the third timeline and leaves again.
        let fourth = opened(&third, &[Some(6), Some(6), Some(6), None, Some(6)], true, 7);
        let fifth = opened(&fourth, &[Some(6), Some(6), Some(6), None, None], true, 8);
        assert_eq!(find_newest(&[&fifth, &reached]), Err(vec![vec![0], vec![1]]), "a copy of the device");
    }

    #[test]
    fn only_the_newest_superblock_of_a_timeline_is_chosen() {
        let old = pool(3);
        let older = opened(&old, &[PRESENT, PRESENT, None], true, 5);
        let newer = Superblock { former: Vec::new(), ..on_group(&older, 1, 9) };
        assert_eq!(find_newest(&[&older, &newer, &on_group(&old, 2, 3)]), Err(vec![vec![0, 1, 2]]));
    }

    #[test]
    fn older_group_is_named_with_each_side_that_follows_from_it() {
        let old = pool(3);
        let first = opened(&old, &[PRESENT, None, None], false, 5);
        let second = on_group(&opened(&old, &[None, PRESENT, None], false, 6), 1, 8);
        let third = on_group(&old, 2, 3);
        assert_eq!(find_newest(&[&first, &second, &third]), Err(vec![vec![0, 2], vec![1, 2]]));
    }

    #[test]
    fn two_groups_that_gave_each_other_up_are_refused_together() {
        let old = pool(2);
        let mut first = opened(&old, &[PRESENT, None], false, 5);
        first.members[1].state = MemberState::Lost;
        let mut second = on_group(&opened(&old, &[None, PRESENT], false, 6), 1, 20);
        assert_eq!(find_newest(&[&first, &second]), Ok(0), "one of them gave up the other");
        second.members[0].state = MemberState::Lost;
        assert_eq!(find_newest(&[&first, &second]), Err(vec![vec![0], vec![1]]));
    }

    #[test]
    fn absences_at_more_times_than_a_superblock_has_room_for_drop_the_oldest() {
        let (old, mut superblock) = (pool(20), pool(20));
        let mut held = vec![PRESENT; 20];
        for absent in 0..FORMER_TIMELINES_MAX {
            held[absent] = None;
            superblock = opened(&superblock, &held, true, absent as u64 + 1);
            held[absent + 1..].fill(Some(superblock.timeline));
        }
        assert_eq!(superblock.former.len(), FORMER_TIMELINES_MAX);
        let on_last = on_group(&superblock, 19, superblock.generation.0);
        assert_eq!(find_newest(&[&on_last, &on_group(&old, 0, 3)]), Ok(0));
        let mut absent = held.clone();
        absent[FORMER_TIMELINES_MAX] = None;
        let next = on_group(&opened(&superblock, &absent, true, 99), 19, 99);
        assert_eq!((next.former.len(), next.former[0].timeline), (FORMER_TIMELINES_MAX, 1));
        assert_eq!(find_newest(&[&next, &on_group(&old, 0, 3)]), Err(vec![vec![0], vec![1]]));
        // A group may have missed the superblock of the opening before its absence, so it may hold two timelines.
        (held[2], held[3]) = (Some(superblock.timeline), Some(superblock.timeline));
        held[FORMER_TIMELINES_MAX] = Some(superblock.timeline);
        let next = opened(&superblock, &held, true, 99);
        assert_eq!((next.former.len(), next.members[4].may_hold), (FORMER_TIMELINES_MAX - 1, 0b1100));
        assert_eq!(next.former[2].timeline, 3);
    }
}
