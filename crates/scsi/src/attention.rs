//! Unit attention conditions: changes of a unit that its next command must report to an initiator.

use std::collections::VecDeque;

use crate::pool_space::SoftThreshold;
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
    /// The fill of the unit's pool has reached a threshold.
    SoftThresholdReached(SoftThreshold),
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
            Attention::SoftThresholdReached(_) => (0x38, 0x07),
        };
        let sense = Sense::new(SenseKey::UNIT_ATTENTION, Asc(asc, ascq));
        match self {
            Attention::SoftThresholdReached(threshold) => sense.with_information(threshold.descriptor_offset()),
            _ => sense,
        }
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
    use crate::sense::SenseFormat;

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

    #[test]
    fn threshold_attention_names_its_descriptor() {
        let [first, _, last] = SoftThreshold::ALL;
        let sense = Attention::SoftThresholdReached(first).sense().bytes(SenseFormat::Fixed);
        assert_eq!(sense, [0xf0, 0, 6, 0, 0, 0, 16, 10, 0, 0, 0, 0, 0x38, 0x07, 0, 0, 0, 0]);
        let sense = Attention::SoftThresholdReached(last).sense().bytes(SenseFormat::Fixed);
        assert_eq!(sense[3..7], [0, 0, 0, 32]);
    }
}
