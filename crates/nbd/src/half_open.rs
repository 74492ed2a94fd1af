//! Connections in the handshake phase, with a limit of their own. Beyond the limit the oldest silent connection is
//! closed, or the oldest if none is silent. Local clients (Unix sockets) and remote ones have separate limits, so that
//! a flood from a network does not lock out local clients.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use connection::{Control, Stop};

/// All connections in the handshake phase of a server.
pub(crate) struct HandshakeConnections {
    /// Limit of the connections of local clients, and of those of remote clients.
    count_max: usize,
    next_number: Cell<u64>,
    handshakes: RefCell<BTreeMap<u64, Handshake>>,
}

struct Handshake {
    control: Rc<Control>,
    is_local: bool,
    has_replied: bool,
}

impl HandshakeConnections {
    /// An empty set.
    pub(crate) fn new(count_max: usize) -> HandshakeConnections {
        HandshakeConnections { count_max, next_number: Cell::new(0), handshakes: RefCell::default() }
    }

    /// Adds a connection; beyond the limit of its kind one connection is disconnected.
    pub(crate) fn enter(&self, control: &Rc<Control>, is_local: bool) -> HandshakeGuard<'_> {
        let number = self.next_number.get();
        self.next_number.set(number + 1);
        let mut handshakes = self.handshakes.borrow_mut();
        handshakes.insert(number, Handshake { control: Rc::clone(control), is_local, has_replied: false });
        let same_kind = || handshakes.iter().filter(|(_, other)| other.is_local == is_local);
        if same_kind().count() > self.count_max {
            let silent = same_kind().find(|(_, other)| !other.has_replied);
            let evicted = silent.or_else(|| same_kind().next()).map(|(number, _)| *number);
            if let Some(evicted) = evicted.and_then(|number| handshakes.remove(&number)) {
                evicted.control.request_stop(Stop::Now);
            }
        }
        HandshakeGuard { half_open: self, number }
    }

    /// Number of connections.
    pub(crate) fn count(&self) -> usize {
        self.handshakes.borrow().len()
    }

    /// Disconnects all connections.
    pub(crate) fn disconnect_all(&self) {
        self.handshakes.borrow().values().for_each(|handshake| handshake.control.request_stop(Stop::Now));
    }
}

/// A connection in the handshake phase; dropping the guard removes it.
pub(crate) struct HandshakeGuard<'a> {
    half_open: &'a HandshakeConnections,
    number: u64,
}

impl HandshakeGuard<'_> {
    /// Records that the client has sent its flags.
    pub(crate) fn record_reply(&self) {
        if let Some(handshake) = self.half_open.handshakes.borrow_mut().get_mut(&self.number) {
            handshake.has_replied = true;
        }
    }
}

impl Drop for HandshakeGuard<'_> {
    fn drop(&mut self) {
        self.half_open.handshakes.borrow_mut().remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn oldest_silent_handshake_of_its_kind_is_evicted_first() {
        let half_open = HandshakeConnections::new(2);
        let controls: Vec<Rc<Control>> = (0..6).map(|_| Rc::default()).collect();
        let stopped = || controls.iter().map(|control| control.stop() == Stop::Now).collect::<Vec<_>>();
        let local = half_open.enter(&controls[0], true);
        let replied = half_open.enter(&controls[1], false);
        replied.record_reply();
        let _silent = half_open.enter(&controls[2], false);
        assert_eq!(stopped(), [false; 6]);
        let third = half_open.enter(&controls[3], false);
        assert_eq!(stopped(), [false, false, true, false, false, false]);
        third.record_reply();
        let fourth = half_open.enter(&controls[4], false);
        // The newest connection is the only silent one, so the flood closes its own connections.
        assert_eq!(stopped(), [false, false, true, false, true, false]);
        drop((fourth, replied));
        let _fifth = half_open.enter(&controls[5], false);
        assert_eq!((stopped()[5], half_open.count()), (false, 3));
        drop(local);
        assert_eq!(half_open.count(), 2);
    }
}
