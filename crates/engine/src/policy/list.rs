//! Doubly linked lists of slot numbers in one array of links: a slot is on at most one list.

/// Neighbour of the first or last slot of a list.
const END: u32 = u32::MAX;
/// Value of `prev` for a slot on no list.
const UNLINKED: u32 = u32::MAX - 1;

/// The links of all slots.
pub struct Links {
    next: Vec<u32>,
    prev: Vec<u32>,
}

/// A list: its ends and its length. The head is the young end, the tail the old one.
#[derive(Clone, Copy)]
pub struct LinkedList {
    head: u32,
    tail: u32,
    len: usize,
}

impl Links {
    /// Links for slots below `capacity`; memory is touched only as slots are used.
    pub fn new(capacity: usize) -> Self {
        Links { next: Vec::with_capacity(capacity), prev: Vec::with_capacity(capacity) }
    }

    /// Links for slots below `count`, all linkable.
    pub fn over(count: u32) -> Self {
        let mut links = Links::new(count as usize);
        if let Some(last) = count.checked_sub(1) {
            links.ensure_slot(last);
        }
        links
    }

    /// Makes `slot` linkable.
    pub fn ensure_slot(&mut self, slot: u32) {
        if self.next.len() <= slot as usize {
            self.next.resize(slot as usize + 1, END);
            self.prev.resize(slot as usize + 1, UNLINKED);
        }
    }

    /// True if `slot` is on a list.
    pub fn is_linked(&self, slot: u32) -> bool {
        self.prev[slot as usize] != UNLINKED
    }

    /// Puts `slot`, which is on no list, at the head (young end) of `list`.
    pub fn push_head(&mut self, list: &mut LinkedList, slot: u32) {
        assert!(!self.is_linked(slot), "a slot is on one list at a time");
        self.next[slot as usize] = list.head;
        self.prev[slot as usize] = END;
        match list.head {
            END => list.tail = slot,
            head => self.prev[head as usize] = slot,
        }
        list.head = slot;
        list.len += 1;
    }

    /// Takes `slot` out of `list`, which it is on.
    pub fn unlink(&mut self, list: &mut LinkedList, slot: u32) {
        assert!(self.is_linked(slot) && list.len > 0, "a slot is taken from a list that it is on");
        let (next, prev) = (self.next[slot as usize], self.prev[slot as usize]);
        match prev {
            END => list.head = next,
            prev => self.next[prev as usize] = next,
        }
        match next {
            END => list.tail = prev,
            next => self.prev[next as usize] = prev,
        }
        self.prev[slot as usize] = UNLINKED;
        list.len -= 1;
    }

    /// Takes the oldest slot out of `list`.
    pub fn take_tail(&mut self, list: &mut LinkedList) -> Option<u32> {
        let slot = list.tail()?;
        self.unlink(list, slot);
        Some(slot)
    }

    /// The slot that came into the list just after `slot`.
    pub fn younger(&self, slot: u32) -> Option<u32> {
        let younger = self.prev[slot as usize];
        (younger < UNLINKED).then_some(younger)
    }
}

impl LinkedList {
    /// The empty list.
    pub const EMPTY: LinkedList = LinkedList { head: END, tail: END, len: 0 };

    /// True if the list is empty.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Number of slots.
    pub fn len(&self) -> usize {
        self.len
    }

    /// The oldest slot.
    pub fn tail(&self) -> Option<u32> {
        (self.tail != END).then_some(self.tail)
    }
}
