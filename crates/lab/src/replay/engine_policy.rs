//! The engine's own replacement policy, used as in the engine: slots, and a policy that chooses the victim among them.

use engine::policy::{InsertKind, Policy};

use super::Cache;

const NO_SLOT: u32 = u32::MAX;

/// A cache under a replacement policy of the engine.
pub struct EnginePolicy<P> {
    policy: P,
    slots: usize,
    /// Slot by page.
    slot_of_page: Vec<u32>,
    /// Page by slot.
    page_in_slot: Vec<u32>,
}

impl<P: Policy> EnginePolicy<P> {
    /// A cache of `slots` pages; `policy` has the same number of slots; the trace has `distinct` pages.
    pub fn new(policy: P, slots: usize, distinct: u32) -> Self {
        EnginePolicy {
            policy,
            slots,
            slot_of_page: vec![NO_SLOT; distinct as usize],
            page_in_slot: Vec::with_capacity(slots),
        }
    }
}

impl<P: Policy> Cache for EnginePolicy<P> {
    fn access(&mut self, page: u32) -> bool {
        let slot = self.slot_of_page[page as usize];
        if slot != NO_SLOT {
            self.policy.record_hit(slot);
            return true;
        }
        let slot = if self.page_in_slot.len() < self.slots {
            self.page_in_slot.push(page);
            (self.page_in_slot.len() - 1) as u32
        } else {
            let slot = self.policy.choose_victim(&[0]).expect("no slot is pinned, so there is a victim");
            let evicted = std::mem::replace(&mut self.page_in_slot[slot as usize], page);
            self.slot_of_page[evicted as usize] = NO_SLOT;
            slot
        };
        self.slot_of_page[page as usize] = slot;
        self.policy.insert(0, slot, mix_bits(page), InsertKind::Normal);
        false
    }
}

/// 64 well-mixed bits of a page number, as the engine makes them from an address.
pub fn mix_bits(page: u32) -> u64 {
    let mixed = u64::from(page).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (mixed ^ (mixed >> 32)).wrapping_mul(0xD6E8_FEB8_6659_FD93)
}
