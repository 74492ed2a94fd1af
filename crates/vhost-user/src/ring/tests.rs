//! Rings written byte by byte as by a driver.

use super::*;
use crate::memory::Region;

const LAYOUT: Layout = Layout { size: 4, descriptors: 0, available: 0x100, used: 0x200, event_idx: true };

fn memory() -> Memory {
    Memory::new(vec![Region::anonymous(0, 0x1000).expect("memory")]).expect("memory")
}

fn set(memory: &Memory, at: u64, value: u16) {
    memory.write(at, &value.to_le_bytes()).expect("in memory");
}

fn get(memory: &Memory, at: u64) -> u16 {
    let mut bytes = [0; 2];
    memory.read(at, &mut bytes).expect("in memory");
    u16::from_le_bytes(bytes)
}

#[test]
fn indices_wrap_and_a_new_ring_continues_at_the_used_index() {
    let memory = memory();
    for at in [0x102, 0x202] {
        set(&memory, at, 0xfffe);
    }
    let mut ring = Ring::new(LAYOUT, &memory).expect("in memory");
    for head in 0..4_u16 {
        set(&memory, 0x104 + 2 * u64::from((0xfffe_u16).wrapping_add(head) % 4), head);
    }
    set(&memory, 0x102, 2);
    for head in 0..4 {
        assert_eq!(ring.pop(), Ok(Some(head)));
        ring.push_used(head, 1, None);
    }
    assert_eq!((ring.pop(), get(&memory, 0x202), ring.next_used()), (Ok(None), 2, 2));
    assert_eq!(Ring::new(LAYOUT, &memory).expect("in memory").next_available(), 2);
    set(&memory, 0x102, 7);
    assert_eq!(ring.pop(), Err(QueueError::Available(5, 4)));
}

#[test]
fn driver_is_notified_at_its_event_index() {
    let memory = memory();
    let mut ring = Ring::new(LAYOUT, &memory).expect("in memory");
    assert!(ring.must_notify(), "a new ring has no record of earlier notifications");
    // The driver requests a notification when the third request is used.
    set(&memory, 0x104 + 8, 2);
    let mut notified = Vec::new();
    for head in 0..4 {
        ring.push_used(head, 1, None);
        notified.push(ring.must_notify());
    }
    assert_eq!(notified, [false, false, true, false]);
    let mut plain = Ring::new(Layout { event_idx: false, ..LAYOUT }, &memory).expect("in memory");
    plain.must_notify();
    assert!(plain.must_notify());
    set(&memory, 0x100, NO_INTERRUPT);
    assert!(!plain.must_notify());
}

#[test]
fn enabling_notifications_reports_requests_that_arrived_meanwhile() {
    let memory = memory();
    let mut ring = Ring::new(LAYOUT, &memory).expect("in memory");
    assert!(!ring.enable_notifications(None));
    set(&memory, 0x102, 1);
    assert!(ring.enable_notifications(None));
    assert_eq!(ring.pop(), Ok(Some(0)));
    assert!(!ring.enable_notifications(None));
    assert_eq!(get(&memory, 0x204 + 32), 1, "the driver is asked to notify at the next request");
    let mut plain = Ring::new(Layout { event_idx: false, ..LAYOUT }, &memory).expect("in memory");
    plain.disable_notifications();
    assert_eq!(get(&memory, 0x200), NO_NOTIFY);
    plain.enable_notifications(None);
    assert_eq!(get(&memory, 0x200), 0);
}

#[test]
fn rings_outside_memory_or_misaligned_are_refused() {
    let memory = memory();
    for layout in [
        Layout { size: 3, ..LAYOUT },
        Layout { size: 0, ..LAYOUT },
        Layout { descriptors: 8, ..LAYOUT },
        Layout { available: 0x101, ..LAYOUT },
        Layout { used: 0x202, ..LAYOUT },
        Layout { used: 0xff0, ..LAYOUT },
        Layout { descriptors: 0xfffff000, ..LAYOUT },
    ] {
        assert!(matches!(Ring::new(layout, &memory), Err(QueueError::Rings)), "{layout:?}");
    }
}
