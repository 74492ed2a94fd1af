//! Connections in their handshake, bounded apart from sessions: past the bound one is closed, the oldest that has said nothing, else the
//! oldest. Clients on this machine (Unix sockets) and others are bounded apart, so that no flood from a network keeps the first out.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use front::{Control, Stop};

/// All handshakes of a server.
pub(crate) struct HalfOpen {
    /// Of each kind at once.
    max: usize,
    next: Cell<u64>,
    handshakes: RefCell<BTreeMap<u64, Handshake>>,
}

struct Handshake {
    control: Rc<Control>,
    is_local: bool,
    has_spoken: bool,
}

impl HalfOpen {
    /// None yet.
    pub(crate) fn new(max: usize) -> HalfOpen {
        HalfOpen { max, next: Cell::new(0), handshakes: RefCell::default() }
    }

    /// One more; where there are too many of its kind, one is asked to end.
    pub(crate) fn enter(&self, control: &Rc<Control>, is_local: bool) -> InHandshake<'_> {
        let number = self.next.get();
        self.next.set(number + 1);
        let mut handshakes = self.handshakes.borrow_mut();
        handshakes.insert(number, Handshake { control: Rc::clone(control), is_local, has_spoken: false });
        let alike = || handshakes.iter().filter(|(_, other)| other.is_local == is_local);
        if alike().count() > self.max {
            let silent = alike().find(|(_, other)| !other.has_spoken);
            let evicted = silent.or_else(|| alike().next()).map(|(number, _)| *number);
            if let Some(evicted) = evicted.and_then(|number| handshakes.remove(&number)) {
                evicted.control.ask(Stop::Now);
            }
        }
        InHandshake { half_open: self, number }
    }

    /// Handshakes now.
    pub(crate) fn count(&self) -> usize {
        self.handshakes.borrow().len()
    }

    /// Asks all to end.
    pub(crate) fn end(&self) {
        self.handshakes.borrow().values().for_each(|handshake| handshake.control.ask(Stop::Now));
    }
}

/// A connection in its handshake; no longer when dropped.
pub(crate) struct InHandshake<'a> {
    half_open: &'a HalfOpen,
    number: u64,
}

impl InHandshake<'_> {
    /// The client has said something of the protocol.
    pub(crate) fn has_spoken(&self) {
        if let Some(handshake) = self.half_open.handshakes.borrow_mut().get_mut(&self.number) {
            handshake.has_spoken = true;
        }
    }
}

impl Drop for InHandshake<'_> {
    fn drop(&mut self) {
        self.half_open.handshakes.borrow_mut().remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn oldest_silent_handshake_of_its_kind_is_evicted_first() {
        let half_open = HalfOpen::new(2);
        let controls: Vec<Rc<Control>> = (0..6).map(|_| Rc::default()).collect();
        let ended = || controls.iter().map(|control| control.stop() == Stop::Now).collect::<Vec<_>>();
        let local = half_open.enter(&controls[0], true);
        let spoken = half_open.enter(&controls[1], false);
        spoken.has_spoken();
        let _silent = half_open.enter(&controls[2], false);
        assert_eq!(ended(), [false; 6]);
        let third = half_open.enter(&controls[3], false);
        assert_eq!(ended(), [false, false, true, false, false, false]);
        third.has_spoken();
        let fourth = half_open.enter(&controls[4], false);
        // The one that came last is the only silent one: a flood closes itself.
        assert_eq!(ended(), [false, false, true, false, true, false]);
        drop((fourth, spoken));
        let _fifth = half_open.enter(&controls[5], false);
        assert_eq!((ended()[5], half_open.count()), (false, 3));
        drop(local);
        assert_eq!(half_open.count(), 2);
    }
}
