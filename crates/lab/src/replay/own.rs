//! The engine's own replacement, run as the engine runs it: slots, and a policy that chooses among them.

use engine::policy::{Admit, Policy};

use super::Cache;

const NO_SLOT: u32 = u32::MAX;

/// A cache whose pages a policy of the engine chooses.
pub struct Own<P> {
    policy: P,
    slots: usize,
    /// By page.
    slot: Vec<u32>,
    /// By slot.
    page: Vec<u32>,
}

impl<P: Policy> Own<P> {
    /// `slots` pages of `distinct`; `policy` was made for as many slots.
    pub fn new(policy: P, slots: usize, distinct: u32) -> Self {
        Own { policy, slots, slot: vec![NO_SLOT; distinct as usize], page: Vec::with_capacity(slots) }
    }
}

impl<P: Policy> Cache for Own<P> {
    fn access(&mut self, page: u32) -> bool {
        let slot = self.slot[page as usize];
        if slot != NO_SLOT {
            self.policy.hit(slot);
            return true;
        }
        let slot = if self.page.len() < self.slots {
            self.page.push(page);
            (self.page.len() - 1) as u32
        } else {
            let slot = self.policy.victim(&[0]).expect("nothing is pinned");
            let gone = std::mem::replace(&mut self.page[slot as usize], page);
            self.slot[gone as usize] = NO_SLOT;
            slot
        };
        self.slot[page as usize] = slot;
        self.policy.insert(0, slot, mixed(page), Admit::Normal);
        false
    }
}

/// 64 well mixed bits of a page, as the engine makes them of an address.
pub fn mixed(page: u32) -> u64 {
    let mixed = u64::from(page).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (mixed ^ (mixed >> 32)).wrapping_mul(0xD6E8_FEB8_6659_FD93)
}
