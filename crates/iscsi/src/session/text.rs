//! Text requests: SendTargets (section 11.10, appendix C).

use iscsi_protocol::request::Reject;
use iscsi_protocol::text::{self, Collector};
use iscsi_protocol::{NO_TAG, ResponseBody, name};
use seam::Seam;

use super::Session;
use crate::options::PORTAL_GROUP;

/// Target transfer tag of a text exchange over several PDUs; a session has at most one.
const CONTINUE_TAG: u32 = 1;

/// A text exchange over several PDUs.
#[derive(Default)]
pub(super) struct TextExchange {
    request: Collector,
    reply: Vec<u8>,
}

impl<S: Seam> Session<S> {
    /// Serves one text request PDU.
    pub(super) fn handle_text(
        &self,
        task_tag: u32,
        continues: bool,
        target_tag: u32,
        lun: [u8; 8],
        data: &[u8],
    ) -> Result<(), Reject> {
        let mut text_exchange = self.text_exchange.borrow_mut();
        if target_tag == NO_TAG {
            *text_exchange = TextExchange::default();
        } else if target_tag != CONTINUE_TAG {
            return Err(Reject::Protocol);
        }
        text_exchange.request.push(data).map_err(|_| Reject::Protocol)?;
        if !continues && text_exchange.reply.is_empty() {
            let request = text_exchange.request.take();
            text_exchange.reply = self.answer_pairs(&request)?;
        }
        let len = text_exchange.reply.len().min(self.framing.data_bytes_max as usize);
        let part: Vec<u8> = text_exchange.reply.drain(..len).collect();
        let has_more = !text_exchange.reply.is_empty();
        let (is_final, target_tag) = match continues || has_more {
            true => (false, CONTINUE_TAG),
            false => (true, NO_TAG),
        };
        self.queue(task_tag, ResponseBody::Text { is_final, continues: has_more, target_tag, lun }, &part);
        Ok(())
    }

    /// Answers the pairs of a complete request.
    fn answer_pairs(&self, request: &[u8]) -> Result<Vec<u8>, Reject> {
        let pairs = text::parse_pairs(request).map_err(|_| Reject::Protocol)?;
        let mut out = Vec::new();
        for pair in pairs {
            match pair.key {
                "SendTargets" => self.send_targets(pair.value, &mut out),
                key => text::push(&mut out, key, "NotUnderstood"),
            }
        }
        Ok(out)
    }

    /// Answers SendTargets with this value.
    fn send_targets(&self, value: &str, out: &mut Vec<u8>) {
        let (shared, is_discovery) = (&self.spec.shared, self.spec.nexus.is_none());
        let target = shared.target.name();
        let is_addressed = match value {
            "All" => is_discovery,
            "" => !is_discovery,
            requested => name::is_same_name(requested, target),
        };
        match is_addressed {
            true => text::push(out, "TargetName", target),
            // "All" and "" are each valid in one session type only; an unknown target has an empty reply.
            false if matches!(value, "All" | "") => return text::push(out, "SendTargets", "Reject"),
            false => return,
        }
        let portals = &shared.options.announce;
        let addresses = if portals.is_empty() { self.spec.portal.as_slice() } else { portals };
        for address in addresses {
            text::push(out, "TargetAddress", &format!("{address},{PORTAL_GROUP}"));
        }
    }
}
