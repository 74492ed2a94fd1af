//! Rings written byte by byte as by a driver.

use super::*;
use crate::memory::Region;

const LAYOUT: Layout = Layout { size: 4, descriptor_table: 0, available: 0x100, used: 0x200, event_idx: true };

/// Guest addresses of fields in these rings.
const AVAILABLE_FLAGS: u64 = 0x100;
const AVAILABLE_INDEX: u64 = 0x102;
const AVAILABLE_ENTRIES: u64 = 0x104;
const USED_FLAGS: u64 = 0x200;
const USED_INDEX: u64 = 0x202;
const USED_ENTRIES: u64 = 0x204;
/// Event index after the four entries of the available ring, by which the driver controls notifications.
const USED_EVENT: u64 = AVAILABLE_ENTRIES + 8;
/// Event index after the four entries of the used ring, by which the device controls notifications.
const AVAILABLE_EVENT: u64 = USED_ENTRIES + 32;

fn memory() -> Memory {
    Memory::new(vec![Region::anonymous(0, 0x1000).expect("memory")]).expect("memory")
}

fn set(memory: &Memory, address: u64, value: u16) {
    memory.write(address, &value.to_le_bytes()).expect("in memory");
}

fn get(memory: &Memory, address: u64) -> u16 {
    let mut bytes = [0; 2];
    memory.read(address, &mut bytes).expect("in memory");
    u16::from_le_bytes(bytes)
}

#[test]
fn indices_wrap_and_a_new_ring_continues_at_the_used_index() {
    let memory = memory();
    for address in [AVAILABLE_INDEX, USED_INDEX] {
        set(&memory, address, 0xfffe);
    }
    let mut ring = Ring::new(LAYOUT, &memory).expect("in memory");
    for head in 0..4_u16 {
        set(&memory, AVAILABLE_ENTRIES + 2 * u64::from((0xfffe_u16).wrapping_add(head) % 4), head);
    }
    set(&memory, AVAILABLE_INDEX, 2);
    for head in 0..4 {
        assert_eq!(ring.pop(), Ok(Some(head)));
        ring.push_used(head, 1, None);
    }
    assert_eq!((ring.pop(), get(&memory, USED_INDEX), ring.next_used()), (Ok(None), 2, 2));
    assert_eq!(Ring::new(LAYOUT, &memory).expect("in memory").next_available(), 2);
    set(&memory, AVAILABLE_INDEX, 7);
    assert_eq!(ring.pop(), Err(QueueError::Available(5, 4)));
}

#[test]
fn driver_is_notified_at_its_event_index() {
    let memory = memory();
    let mut ring = Ring::new(LAYOUT, &memory).expect("in memory");
    assert!(ring.must_notify(), "a new ring has no record of earlier notifications");
    // The driver requests a notification when the third request is used.
    set(&memory, USED_EVENT, 2);
    let mut notified = Vec::new();
    for head in 0..4 {
        ring.push_used(head, 1, None);
        notified.push(ring.must_notify());
    }
    assert_eq!(notified, [false, false, true, false]);
    let mut plain = Ring::new(Layout { event_idx: false, ..LAYOUT }, &memory).expect("in memory");
    plain.must_notify();
    assert!(plain.must_notify());
    set(&memory, AVAILABLE_FLAGS, NO_INTERRUPT);
    assert!(!plain.must_notify());
}

#[test]
fn enabling_notifications_reports_requests_that_arrived_meanwhile() {
    let memory = memory();
    let mut ring = Ring::new(LAYOUT, &memory).expect("in memory");
    assert!(!ring.enable_notifications(None));
    set(&memory, AVAILABLE_INDEX, 1);
    assert!(ring.enable_notifications(None));
    assert_eq!(ring.pop(), Ok(Some(0)));
    assert!(!ring.enable_notifications(None));
    assert_eq!(get(&memory, AVAILABLE_EVENT), 1, "the driver is asked to notify at the next request");
    let mut plain = Ring::new(Layout { event_idx: false, ..LAYOUT }, &memory).expect("in memory");
    plain.disable_notifications();
    assert_eq!(get(&memory, USED_FLAGS), NO_NOTIFY);
    plain.enable_notifications(None);
    assert_eq!(get(&memory, USED_FLAGS), 0);
}

#[test]
fn rings_outside_memory_or_misaligned_are_refused() {
    let memory = memory();
    for layout in [
        Layout { size: 3, ..LAYOUT },
        Layout { size: 0, ..LAYOUT },
        Layout { descriptor_table: 8, ..LAYOUT },
        Layout { available: 0x101, ..LAYOUT },
        Layout { used: 0x202, ..LAYOUT },
        Layout { used: 0xff0, ..LAYOUT },
        Layout { descriptor_table: 0xfffff000, ..LAYOUT },
    ] {
        assert!(matches!(Ring::new(layout, &memory), Err(QueueError::Rings)), "{layout:?}");
    }
}
