//! Unit attentions: what an initiator has to be told of a unit before its next command is done.

use std::collections::VecDeque;

use crate::sense::{Asc, Key, Sense};

/// What happened to a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attention {
    /// The initiator is new to it, or it was started.
    PowerOn,
    /// It, or the whole target, was reset.
    Reset,
    /// Other units came or went.
    LunsChanged,
    /// It has another size.
    CapacityChanged,
    /// Another initiator changed mode parameters.
    ModeChanged,
    /// INQUIRY says something else than before.
    InquiryChanged,
    /// Another initiator cleared all reservations.
    ReservationsPreempted,
    /// Another initiator released a reservation that this one took part in.
    ReservationsReleased,
    /// Another initiator took this one's registration away.
    RegistrationsPreempted,
    /// Another initiator's command ended this one's.
    CommandsCleared,
}

impl Attention {
    /// As sense data.
    pub fn sense(self) -> Sense {
        let (asc, ascq) = match self {
            Attention::PowerOn => (0x29, 0x00),
            Attention::Reset => (0x29, 0x03),
            Attention::LunsChanged => (0x3f, 0x0e),
            Attention::CapacityChanged => (0x2a, 0x09),
            Attention::ModeChanged => (0x2a, 0x01),
            Attention::InquiryChanged => (0x3f, 0x03),
            Attention::ReservationsPreempted => (0x2a, 0x03),
            Attention::ReservationsReleased => (0x2a, 0x04),
            Attention::RegistrationsPreempted => (0x2a, 0x05),
            Attention::CommandsCleared => (0x2f, 0x00),
        };
        Sense::new(Key::UNIT_ATTENTION, Asc(asc, ascq))
    }
}

/// What one initiator has yet to be told of one unit, each thing once: bounded by the kinds that there are.
#[derive(Clone, Debug, Default)]
pub struct Attentions(VecDeque<Attention>);

impl Attentions {
    /// One more. A reset or a start says all that was to be said of what went before it.
    pub fn raise(&mut self, attention: Attention) {
        if matches!(attention, Attention::PowerOn | Attention::Reset) {
            self.0.clear();
        }
        if !self.0.contains(&attention) {
            self.0.push_back(attention);
        }
    }

    /// The next to be told.
    pub fn take(&mut self) -> Option<Attention> {
        self.0.pop_front()
    }

    /// It need not be told any more.
    pub fn forget(&mut self, attention: Attention) {
        self.0.retain(|other| *other != attention);
    }

    /// True when nothing is to be told.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_is_told_once_in_order_and_a_reset_stands_for_all() {
        let mut attentions = Attentions::default();
        for attention in [Attention::ModeChanged, Attention::LunsChanged, Attention::ModeChanged] {
            attentions.raise(attention);
        }
        assert_eq!(attentions.take(), Some(Attention::ModeChanged));
        attentions.raise(Attention::Reset);
        attentions.raise(Attention::CapacityChanged);
        attentions.forget(Attention::CapacityChanged);
        assert_eq!((attentions.take(), attentions.take()), (Some(Attention::Reset), None));
    }
}
