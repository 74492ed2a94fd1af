//! A node that does not own the volume: forwards reads and flushes, and asks for the ownership when a client writes.

use super::Ownership;
use crate::action::Action;
use crate::claim::Trigger;
use crate::ids::{Epoch, NodeId, RequestId};
use crate::peer::PeerMessage;
use crate::request::{Request, RequestKind, Source, Stage};
use crate::sabotage::Sabotage;
use crate::settings::RETRY_PERIOD;
use crate::state::{Standby, State};
use seam::Nanos;

/// Treatment of a waiting request at a standby.
enum Treatment {
    Answer,
    ForwardToOwner,
    TakeOwnership { is_first_write: bool },
}

impl Ownership {
    pub(super) fn enter_standby(&mut self, now: Nanos, standby: Standby) {
        self.state = State::Standby(standby);
        self.answer_peers_as_standby(now);
        self.step(now);
    }

    pub(super) fn step_standby(&mut self, now: Nanos) {
        let State::Standby(mut standby) = self.state else { return };
        if let Some(order) = self.order.take_if(|_| now >= standby.look_at) {
            return self.start_claim(now, Trigger::Command(order));
        }
        let other_owner = standby.owner.filter(|owner| owner.node != self.settings.node);
        let (mut needs_look, mut asks) = (false, None::<bool>);
        for id in self.requests_in(Stage::Waiting) {
            match self.treat(id) {
                Treatment::Answer => self.answer(id, Ok(())),
                Treatment::ForwardToOwner if now < self.requests[&id].forward_at => {}
                Treatment::ForwardToOwner => match other_owner {
                    Some(owner) => self.forward(id, owner.node, standby.epoch),
                    None => needs_look = true,
                },
                Treatment::TakeOwnership { is_first_write } => {
                    asks = Some(asks.unwrap_or(false) || is_first_write);
                }
            }
        }
        if let Some(is_first_write) = asks {
            needs_look = true;
            if let Some(owner) = other_owner.filter(|_| now >= standby.ask_at) {
                let message = PeerMessage::HandOverRequest { epoch: standby.epoch, is_first_write };
                self.actions.push(Action::Send { to: owner.node, message });
                if standby.ask_at == Nanos::default() {
                    // The owner's answer comes before the next look, unless it is lost or the owner is another one now.
                    standby.look_at = standby.look_at.max(now + RETRY_PERIOD);
                }
                standby.ask_at = now + RETRY_PERIOD;
            }
        }
        self.state = State::Standby(standby);
        if needs_look && now >= standby.look_at {
            self.start_claim(now, Trigger::Request);
        }
    }

    fn treat(&self, id: RequestId) -> Treatment {
        let request: &Request = &self.requests[&id];
        let Source::Connection(connection) = request.source else { unreachable!("a standby refuses other nodes") };
        let connection = self.connections[&connection];
        match request.kind {
            RequestKind::Write => Treatment::TakeOwnership { is_first_write: !connection.is_superseded },
            RequestKind::Flush if self.settings.sabotage.is(Sabotage::HandOverOnFlush) => {
                Treatment::TakeOwnership { is_first_write: true }
            }
            RequestKind::Flush if self.settings.sabotage.is(Sabotage::AnswerFlushAtStandby) => Treatment::Answer,
            RequestKind::Flush if connection.is_departing => Treatment::Answer,
            RequestKind::Read | RequestKind::Flush => Treatment::ForwardToOwner,
        }
    }

    fn forward(&mut self, request: RequestId, to: NodeId, epoch: Epoch) {
        self.requests.get_mut(&request).expect("the request waits").stage = Stage::Forwarded;
        self.actions.push(Action::Forward { request, to, epoch });
    }

    /// Another node takes this one for the owner. That is so if the ownership was lost without a release: this node
    /// claims the volume, as only its own process can know that the old session is not used any more.
    pub(super) fn taken_for_owner(&mut self, now: Nanos) {
        if let State::Standby(standby) = &self.state
            && now >= standby.look_at
        {
            self.start_claim(now, Trigger::Peer);
        }
    }

    /// The owner has released the volume: a node with clients claims it at once.
    pub(super) fn released(&mut self, now: Nanos, epoch: Epoch) {
        let State::Standby(standby) = &mut self.state else { return };
        if epoch < standby.epoch {
            return;
        }
        standby.owner = None;
        if !self.connections.is_empty() {
            self.start_claim(now, Trigger::Request);
        }
    }
}
