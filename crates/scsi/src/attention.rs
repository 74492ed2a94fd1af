//! Unit attention conditions: changes of a unit that its next command must report to an initiator.

use std::collections::VecDeque;

use crate::sense::{Asc, Sense, SenseKey};

/// Cause of a unit attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attention {
    /// The unit is new to the initiator, or was started.
    PowerOn,
    /// The unit or the whole target was reset.
    Reset,
    /// Units were added or removed.
    LunsChanged,
    /// The unit's size changed.
    CapacityChanged,
    /// Another initiator changed mode parameters.
    ModeChanged,
    /// INQUIRY data changed.
    InquiryChanged,
    /// Another initiator cleared all reservations.
    ReservationsPreempted,
    /// Another initiator released a reservation that includes this one as a registrant.
    ReservationsReleased,
    /// Another initiator removed this one's registration.
    RegistrationsPreempted,
    /// Another initiator ended this one's commands.
    CommandsCleared,
}

impl Attention {
    /// The attention as sense data.
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
        Sense::new(SenseKey::UNIT_ATTENTION, Asc(asc, ascq))
    }
}

/// Pending attentions of one initiator for one unit, each at most once, so that their number is bounded.
#[derive(Clone, Debug, Default)]
pub struct Attentions(VecDeque<Attention>);

impl Attentions {
    /// Adds an attention. A reset or a start replaces all earlier attentions.
    pub fn raise(&mut self, attention: Attention) {
        if matches!(attention, Attention::PowerOn | Attention::Reset) {
            self.0.clear();
        }
        if !self.0.contains(&attention) {
            self.0.push_back(attention);
        }
    }

    /// Takes the oldest attention.
    pub fn take(&mut self) -> Option<Attention> {
        self.0.pop_front()
    }

    /// Removes an attention that need not be reported any more.
    pub fn remove(&mut self, attention: Attention) {
        self.0.retain(|other| *other != attention);
    }

    /// True if no attention is pending.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attentions_are_reported_once_in_order_and_reset_replaces_all() {
        let mut attentions = Attentions::default();
        for attention in [Attention::ModeChanged, Attention::LunsChanged, Attention::ModeChanged] {
            attentions.raise(attention);
        }
        assert_eq!(attentions.take(), Some(Attention::ModeChanged));
        attentions.raise(Attention::Reset);
        attentions.raise(Attention::CapacityChanged);
        attentions.remove(Attention::CapacityChanged);
        assert_eq!((attentions.take(), attentions.take()), (Some(Attention::Reset), None));
    }
}
