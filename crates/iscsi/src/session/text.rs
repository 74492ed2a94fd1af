//! Questions in text: which targets there are, and where (section 11.10, appendix C).

use iscsi_protocol::request::Reject;
use iscsi_protocol::text::{self, Collector};
use iscsi_protocol::{NO_TAG, ResponseBody, name};
use seam::Seam;

use super::Session;
use crate::options::PORTAL_GROUP;

/// The tag with which an initiator goes on with its question or our answer: there is one of either at a time.
const GO_ON: u32 = 1;

/// A question or an answer that takes several PDUs.
#[derive(Default)]
pub(super) struct Texts {
    question: Collector,
    answer: Vec<u8>,
}

impl<S: Seam> Session<S> {
    /// Takes one PDU of a question.
    pub(super) fn text(
        &self,
        task_tag: u32,
        continues: bool,
        target_tag: u32,
        lun: [u8; 8],
        data: &[u8],
    ) -> Result<(), Reject> {
        let mut texts = self.texts.borrow_mut();
        if target_tag == NO_TAG {
            *texts = Texts::default();
        } else if target_tag != GO_ON {
            return Err(Reject::Protocol);
        }
        texts.question.push(data).map_err(|_| Reject::Protocol)?;
        if !continues && texts.answer.is_empty() {
            let question = texts.question.take();
            texts.answer = self.answer(&question)?;
        }
        let len = texts.answer.len().min(self.framing.data_bytes_max as usize);
        let part: Vec<u8> = texts.answer.drain(..len).collect();
        let goes_on = !texts.answer.is_empty();
        let (is_final, target_tag) = match continues || goes_on {
            true => (false, GO_ON),
            false => (true, NO_TAG),
        };
        self.queue(task_tag, ResponseBody::Text { is_final, continues: goes_on, target_tag, lun }, &part);
        Ok(())
    }

    fn answer(&self, question: &[u8]) -> Result<Vec<u8>, Reject> {
        let pairs = text::pairs(question).map_err(|_| Reject::Protocol)?;
        let mut out = Vec::new();
        for pair in pairs {
            match pair.key {
                "SendTargets" => self.send_targets(pair.value, &mut out),
                key => text::push(&mut out, key, "NotUnderstood"),
            }
        }
        Ok(out)
    }

    fn send_targets(&self, which: &str, out: &mut Vec<u8>) {
        let (shared, is_discovery) = (&self.spec.shared, self.spec.nexus.is_none());
        let target = shared.target.name();
        let wanted = match which {
            "All" => is_discovery,
            "" => !is_discovery,
            asked => name::same(asked, target),
        };
        match wanted {
            true => text::push(out, "TargetName", target),
            // What is asked for makes no sense in this kind of session; a target that is not there is no answer at all.
            false if matches!(which, "All" | "") => return text::push(out, "SendTargets", "Reject"),
            false => return,
        }
        let announced = &shared.options.announce;
        let addresses = if announced.is_empty() { self.spec.portal.as_slice() } else { announced };
        for address in addresses {
            text::push(out, "TargetAddress", &format!("{address},{PORTAL_GROUP}"));
        }
    }
}
