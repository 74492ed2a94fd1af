//! The reading half of a session: decodes PDUs and dispatches them.

use std::io;
use std::rc::Rc;

use iscsi_protocol::limits::RECEIVE_BYTES_MAX;
use iscsi_protocol::request::Reject;
use iscsi_protocol::window::CommandOrder;
use iscsi_protocol::{Frame, Framing, NO_TAG, ProtocolError, Request, RequestBody, ResponseBody, Step};
use seam::{BufferedReader, Seam, StreamReader};

use super::Session;
use crate::options::PDU_COST;

/// Reasons of a logout request.
const CLOSE_SESSION: u8 = 0;
const CLOSE_CONNECTION: u8 = 1;
const REMOVE_CONNECTION_FOR_RECOVERY: u8 = 2;
/// Responses to a logout request.
const CLOSED: u8 = 0;
const NO_SUCH_CONNECTION: u8 = 1;
const RECOVERY_NOT_SUPPORTED: u8 = 2;

/// Reason why the reading half ended, other than a logout.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReadError {
    /// The socket failed or was closed.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// Malformed PDU or a digest error.
    #[error(transparent)]
    Malformed(#[from] ProtocolError),
    /// A protocol error. The initiator recovers with a new session.
    #[error("the initiator violates the protocol")]
    Protocol,
}

/// Action after a PDU.
pub(super) enum Next {
    /// Read the next PDU.
    Continue,
    /// End the session after a logout.
    LogOut { task_tag: u32 },
}

impl<S: Seam> Session<S> {
    /// Reads PDUs until the connection ends.
    pub(super) async fn read_pdus<R: StreamReader<S>>(
        self: &Rc<Self>,
        incoming: &mut BufferedReader<S, R>,
    ) -> Result<(), ReadError> {
        let framing = Framing { data_bytes_max: RECEIVE_BYTES_MAX, ..self.framing };
        incoming.grow(framing.pdu_bytes_max());
        loop {
            self.duplex.wait_while(|| self.is_full()).await;
            match framing.decode(incoming.bytes()) {
                Ok(Step::Got(frame, used)) => {
                    self.spec.shared.seam.spend(PDU_COST);
                    let next = self.handle_pdu(&frame)?;
                    incoming.consume(used);
                    if let Next::LogOut { task_tag } = next {
                        self.abort_all_tasks().await;
                        self.queue(task_tag, ResponseBody::Logout { response: CLOSED }, &[]);
                        return Ok(());
                    }
                }
                Ok(Step::Incomplete(_)) => {
                    // No complete PDU is left: send the queued answers before the task waits for more.
                    self.duplex.wait_until_sent().await;
                    incoming.receive_more().await?;
                    self.last_received_at.set(self.spec.shared.seam.now());
                    self.ping_sent.set(false);
                }
                Err(error) => {
                    if let ProtocolError::DataDigest(header) = &error {
                        self.queue(NO_TAG, ResponseBody::Reject(Reject::DataDigest), &header[..]);
                    }
                    return Err(error.into());
                }
            }
        }
    }

    /// Serves one PDU.
    fn handle_pdu(self: &Rc<Self>, frame: &Frame<'_>) -> Result<Next, ReadError> {
        let request = match Request::decode(frame.header, frame.ahs) {
            Ok(request) => request,
            Err(reason) => {
                self.reject(reason, frame);
                return Ok(Next::Continue);
            }
        };
        let is_numbered = !matches!(request.body, RequestBody::DataOut(_) | RequestBody::Snack | RequestBody::Login(_));
        if is_numbered && !request.immediate {
            let mut window = self.window.get();
            let order = window.accept(request.cmd_sn);
            self.window.set(window);
            match order {
                CommandOrder::Next => (),
                CommandOrder::Outside => return Ok(Next::Continue),
                // A single connection delivers in order: a missing command was lost.
                CommandOrder::Gap => return Err(ReadError::Protocol),
            }
        }
        match request.body {
            RequestBody::DataOut(data) => self.receive_data(request.task_tag, &data, frame.data),
            RequestBody::Command(_) if self.spec.nexus.is_none() => self.reject(Reject::Protocol, frame),
            RequestBody::Command(command) => {
                if let Err(reason) = self.start_command(request.task_tag, request.immediate, &command, frame.data) {
                    self.reject(reason, frame);
                    if reason == Reject::Protocol {
                        return Err(ReadError::Protocol);
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
                if let Err(reason) = self.manage_tasks(request.task_tag, &task) {
                    self.reject(reason, frame);
                }
            }
            RequestBody::Text { continues, target_tag, lun, .. } => {
                if let Err(reason) = self.handle_text(request.task_tag, continues, target_tag, lun, frame.data) {
                    self.reject(reason, frame);
                }
            }
            RequestBody::Logout { reason: REMOVE_CONNECTION_FOR_RECOVERY, .. } => {
                self.queue(request.task_tag, ResponseBody::Logout { response: RECOVERY_NOT_SUPPORTED }, &[]);
            }
            RequestBody::Logout { reason: CLOSE_CONNECTION, connection } if connection != self.cid() => {
                self.queue(request.task_tag, ResponseBody::Logout { response: NO_SUCH_CONNECTION }, &[]);
            }
            RequestBody::Logout { reason: CLOSE_SESSION | CLOSE_CONNECTION, .. } => {
                return Ok(Next::LogOut { task_tag: request.task_tag });
            }
            RequestBody::Logout { .. } => self.reject(Reject::InvalidField, frame),
            RequestBody::Snack => self.reject(Reject::Snack, frame),
            RequestBody::Login(_) => {
                self.reject(Reject::Protocol, frame);
                return Err(ReadError::Protocol);
            }
        }
        Ok(Next::Continue)
    }

    fn reject(&self, reason: Reject, frame: &Frame<'_>) {
        self.queue(NO_TAG, ResponseBody::Reject(reason), frame.header);
    }
}
