//! The reading half: cuts PDUs out of what arrives, and leads each to what answers it.

use std::io;
use std::rc::Rc;

use iscsi_protocol::limits::RECEIVE_BYTES_MAX;
use iscsi_protocol::request::Reject;
use iscsi_protocol::window::Numbered;
use iscsi_protocol::{Broken, Frame, Framing, NO_TAG, Request, RequestBody, ResponseBody, Step};
use seam::{Incoming, Seam, StreamReader};

use super::Session;
use crate::options::PDU_COST;

/// Why the reading half ended, unless the initiator has logged out.
#[derive(Debug, thiserror::Error)]
pub(super) enum Ended {
    /// The socket failed or was closed.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The initiator does not speak the protocol, or the connection damages what it says.
    #[error(transparent)]
    Broken(#[from] Broken),
    /// It does not keep to what was agreed; recovery of an error begins with a new session.
    #[error("the initiator does not keep to the protocol")]
    Protocol,
}

/// What follows a PDU.
pub(super) enum Then {
    /// The next one.
    GoOn,
    /// The end of the session, for that reason.
    LogOut { task_tag: u32 },
}

impl<S: Seam> Session<S> {
    /// Serves PDUs until there are no more.
    pub(super) async fn read_pdus<R: StreamReader<S>>(
        self: &Rc<Self>,
        incoming: &mut Incoming<S, R>,
    ) -> Result<(), Ended> {
        let framing = Framing { data_bytes_max: RECEIVE_BYTES_MAX, ..self.framing };
        incoming.grow(framing.pdu_bytes_max());
        loop {
            self.wait_for_room().await;
            match framing.decode(incoming.bytes()) {
                Ok(Step::Got(frame, used)) => {
                    self.spec.shared.seam.spend(PDU_COST);
                    let then = self.take(&frame)?;
                    incoming.consume(used);
                    if let Then::LogOut { task_tag } = then {
                        self.end_tasks().await;
                        self.queue(task_tag, ResponseBody::Logout { response: 0 }, &[]);
                        return Ok(());
                    }
                }
                Ok(Step::More(_)) => {
                    self.let_replies_go().await;
                    incoming.more().await?;
                    self.heard.set(self.spec.shared.seam.now());
                    self.asked.set(false);
                }
                Err(broken) => {
                    if let Broken::DataDigest(header) = &broken {
                        self.queue(NO_TAG, ResponseBody::Reject(Reject::DataDigest), &header[..]);
                    }
                    return Err(broken.into());
                }
            }
        }
    }

    /// Serves one PDU.
    fn take(self: &Rc<Self>, frame: &Frame<'_>) -> Result<Then, Ended> {
        let request = match Request::decode(frame.header, frame.ahs) {
            Ok(request) => request,
            Err(reason) => {
                self.reject(reason, frame);
                return Ok(Then::GoOn);
            }
        };
        let numbered = !matches!(request.body, RequestBody::DataOut(_) | RequestBody::Snack | RequestBody::Login(_));
        if numbered && !request.immediate {
            let mut window = self.window.get();
            let order = window.take(request.cmd_sn);
            self.window.set(window);
            match order {
                Numbered::Next => (),
                Numbered::Outside => return Ok(Then::GoOn),
                // On one connection nothing overtakes anything: what is missing was lost.
                Numbered::Gap => return Err(Ended::Protocol),
            }
        }
        match request.body {
            RequestBody::DataOut(data) => self.take_data(request.task_tag, &data, frame.data),
            RequestBody::Command(_) if self.spec.nexus.is_none() => self.reject(Reject::Protocol, frame),
            RequestBody::Command(command) => {
                if let Err(reason) = self.command(request.task_tag, request.immediate, &command, frame.data) {
                    self.reject(reason, frame);
                    if reason == Reject::Protocol {
                        return Err(Ended::Protocol);
                    }
                }
            }
            RequestBody::NopOut { lun, .. } => {
                if request.task_tag != NO_TAG {
                    let data = &frame.data[..frame.data.len().min(self.framing.data_bytes_max as usize)];
                    self.queue(request.task_tag, ResponseBody::NopIn { lun, target_tag: NO_TAG }, data);
                }
            }
            RequestBody::TaskManagement(_) if self.spec.nexus.is_none() => self.reject(Reject::Protocol, frame),
            RequestBody::TaskManagement(task) => {
                if let Err(reason) = self.manage(request.task_tag, &task) {
                    self.reject(reason, frame);
                }
            }
            RequestBody::Text { continues, target_tag, lun, .. } => {
                if let Err(reason) = self.text(request.task_tag, continues, target_tag, lun, frame.data) {
                    self.reject(reason, frame);
                }
            }
            RequestBody::Logout { reason: 2, .. } => {
                // Nothing is kept for recovery.
                self.queue(request.task_tag, ResponseBody::Logout { response: 2 }, &[]);
            }
            RequestBody::Logout { reason: 1, connection } if connection != self.connection() => {
                self.queue(request.task_tag, ResponseBody::Logout { response: 1 }, &[]);
            }
            RequestBody::Logout { reason: 0 | 1, .. } => return Ok(Then::LogOut { task_tag: request.task_tag }),
            RequestBody::Logout { .. } => self.reject(Reject::InvalidField, frame),
            RequestBody::Snack => self.reject(Reject::Snack, frame),
            RequestBody::Login(_) => {
                self.reject(Reject::Protocol, frame);
                return Err(Ended::Protocol);
            }
        }
        Ok(Then::GoOn)
    }

    fn reject(&self, reason: Reject, frame: &Frame<'_>) {
        self.queue(NO_TAG, ResponseBody::Reject(reason), frame.header);
    }
}
