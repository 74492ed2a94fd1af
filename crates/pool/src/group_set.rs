//! A set of groups.

use crate::format::superblock::MEMBERS_MAX;
use crate::number::GroupNo;

const _: () = assert!(MEMBERS_MAX <= u32::BITS as usize, "each member has a bit");

/// A set of groups.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct GroupSet(u32);

impl GroupSet {
    pub fn insert(&mut self, group: GroupNo) {
        self.0 |= 1 << group.0;
    }

    pub fn contains(self, group: GroupNo) -> bool {
        self.0 >> group.0 & 1 == 1
    }

    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The groups of this set that are not in the other one.
    #[must_use]
    pub fn difference(self, other: GroupSet) -> GroupSet {
        GroupSet(self.0 & !other.0)
    }

    pub fn remove(&mut self, group: GroupNo) {
        self.0 &= !(1 << group.0);
    }

    /// True if the sets have a group in common.
    pub fn intersects(self, other: GroupSet) -> bool {
        self.0 & other.0 != 0
    }

    #[must_use]
    pub fn union(self, other: GroupSet) -> GroupSet {
        GroupSet(self.0 | other.0)
    }

    pub fn iter(self) -> impl Iterator<Item = GroupNo> {
        (0..MEMBERS_MAX as u16).map(GroupNo).filter(move |group| self.contains(*group))
    }
}

impl FromIterator<GroupNo> for GroupSet {
    fn from_iter<I: IntoIterator<Item = GroupNo>>(groups: I) -> GroupSet {
        let mut set = GroupSet::default();
        groups.into_iter().for_each(|group| set.insert(group));
        set
    }
}
